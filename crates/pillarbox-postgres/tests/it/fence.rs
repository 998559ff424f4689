//! The fence: two sessions, stopped at each step in turn.

use std::{sync::Arc, time::Duration};

use pillarbox_core::domain::{NodeId, PartitionSet, Seq};
use pillarbox_core::port::{Batch, Change, OwnStore as _, Position, ReadStore as _, Settled, UpkeepStore as _};
use pillarbox_core::port::{PurgeRequest, PurgeScope, Purged};
use pillarbox_testkit::servers::Shared;
use sqlx::PgConnection;

use crate::support::{MINUTE, Outbox, event, join, outcome, owner, run_in, settle};

const SERVERS: [Shared; 2] = [Shared::Postgres, Shared::PostgresNewest];

const LAPSE: &str = "update outbox_instance set until = clock_timestamp() - interval '1 second' where id = 'old'";

/// What a settle does, by hand, so that it can be stopped.
const SETTLE: [&str; 3] = [
    "select 1 from outbox_instance where id = 'old' for key share",
    "update outbox_mark set mark = 1",
    "update outbox_event set status = 'DONE', done_at = clock_timestamp() where seq = 1",
];

/// And what an expulsion does.
const EXPEL: [&str; 3] = [
    "select 1 from outbox_instance where id = 'old' for update",
    "update outbox_partition set owner = null, epoch = epoch + 1 where owner = 'old'",
    "delete from outbox_instance where id = 'old'",
];

/// A transaction that has come so far.
async fn stopped_after(outbox: &Outbox, steps: &[&'static str]) -> PgConnection {
    let mut session = outbox.session().await;
    run_in(&mut session, "begin").await;
    for step in steps {
        run_in(&mut session, step).await;
    }
    session
}

#[tokio::test]
async fn an_expulsion_comes_after_a_settle_stopped_at_any_step_and_waits_for_nobody() {
    for (server, stop) in SERVERS.into_iter().flat_map(|server| (1..=SETTLE.len()).map(move |stop| (server, stop))) {
        let outbox = Outbox::on(server.database()).await;
        outbox.write([event()]).await;
        let (old, _) = owner(&outbox, "old").await;
        let new = join(&outbox, "new").await;
        let mut settling = stopped_after(&outbox, &SETTLE[..stop]).await;
        outbox.run(LAPSE).await;
        assert_eq!(outbox.expel(&new).await.unwrap(), Some(Vec::new()), "stopped after step {stop}");
        assert_eq!(outbox.number("select count(*) from outbox_partition where owner = 'old'").await, 256);
        assert_eq!(outbox.take(&new, PartitionSet::ALL).await.unwrap(), Some(Vec::new()));
        run_in(&mut settling, "commit").await;
        assert_eq!(outbox.expel(&new).await.unwrap(), Some(vec![NodeId::new("old")]));
        let taken = outbox.take(&new, PartitionSet::ALL).await.unwrap().unwrap();
        let mark = Seq(i64::from(stop >= 2));
        assert!(taken.len() == 256 && taken.iter().all(|taken| taken.mark == mark), "{taken:?}");
        assert_eq!(settle(&outbox, &old, vec![]).await, Settled::Fenced);
    }
}

#[tokio::test]
async fn a_settle_waits_for_an_expulsion_stopped_at_any_step_and_writes_nothing_if_it_commits() {
    let ends = [("commit", Settled::Fenced, 1), ("rollback", Settled::Applied { stale: 0 }, 0)];
    for (server, stop) in SERVERS.into_iter().flat_map(|server| (1..=EXPEL.len()).map(move |stop| (server, stop))) {
        for (end, expected, left) in ends {
            let outbox = Outbox::on(server.database()).await;
            outbox.write([event()]).await;
            let (old, taken) = owner(&outbox, "old").await;
            let rows = outbox.page(&Position::START).await.rows;
            let mut expelling = stopped_after(&outbox, &EXPEL[..stop]).await;
            let late = vec![outcome(&rows[0], &taken, Change::Delete)];
            let settling = tokio::spawn({
                let store = outbox.store.clone();
                async move { settle(&store, &old, late).await }
            });
            outbox.someone_waits().await;
            assert!(!settling.is_finished());
            for step in &EXPEL[stop..] {
                run_in(&mut expelling, step).await;
            }
            run_in(&mut expelling, end).await;
            assert_eq!(settling.await.unwrap(), expected, "stopped after step {stop}, {end}");
            assert_eq!(outbox.number("select count(*) from outbox_event").await, left, "{end}");
        }
    }
}

/// `now()` would be the time when the settle began to wait.
#[tokio::test]
async fn a_lease_that_lapsed_while_the_settle_waited_fences_it() {
    let outbox = Arc::new(Outbox::new().await);
    outbox.write([event()]).await;
    let (old, taken) = owner(&outbox, "old").await;
    let rows = outbox.page(&Position::START).await.rows;
    let mut holding = outbox.session().await;
    run_in(&mut holding, "update outbox_instance set until = clock_timestamp() + interval '1 s'").await;
    run_in(&mut holding, "begin; select 1 from outbox_instance where id = 'old' for update").await;
    let late = vec![outcome(&rows[0], &taken, Change::Delete)];
    let settling = tokio::spawn({
        let store = outbox.store.clone();
        async move { settle(&store, &old, late).await }
    });
    outbox.someone_waits().await;
    while outbox.number("select count(*) from outbox_instance where until > clock_timestamp()").await == 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Touched, so that the settle looks at it again.
    run_in(&mut holding, "update outbox_instance set routes = routes; commit").await;
    assert_eq!(settling.await.unwrap(), Settled::Fenced);
    assert_eq!(outbox.number("select count(*) from outbox_event").await, 1);
}

#[tokio::test]
async fn a_settle_that_hangs_is_not_in_the_way_of_the_renewal() {
    let outbox = Outbox::new().await;
    let (lease, _) = owner(&outbox, "n").await;
    let mut settling = outbox.session().await;
    run_in(&mut settling, "begin; select 1 from outbox_instance for key share; update outbox_mark set mark = 1").await;
    let renewal = tokio::time::timeout(Duration::from_secs(10), outbox.renew(&lease, MINUTE)).await;
    assert!(renewal.unwrap().unwrap().is_some());
}

#[tokio::test]
async fn nothing_is_done_with_a_lease_that_is_gone() {
    let outbox = Outbox::new().await;
    outbox.write([event()]).await;
    let (old, _) = owner(&outbox, "old").await;
    let batch = Batch { mark: Some(Seq(1)), ..Batch::default() };
    outbox.settle(&old, &batch).await.unwrap();
    outbox.run(LAPSE).await;
    assert!(outbox.renew(&old, MINUTE).await.unwrap().is_none(), "a lapsed lease is not revived");
    assert_eq!(outbox.settle(&old, &batch).await.unwrap(), Settled::Fenced);
    assert!(outbox.start(&old, Seq(1)).await.unwrap().is_none());
    assert!(outbox.expel(&old).await.unwrap().is_none());
    assert!(outbox.leave(&old, None).await.unwrap().is_none());
    let purge = PurgeRequest { scope: PurgeScope::ByAge(Duration::ZERO), batch: 9, cursor: None, lease: Some(&old) };
    assert_eq!(outbox.purge(purge).await.unwrap(), Purged::Fenced);
    // The mark goes with the partitions.
    let new = join(&outbox, "new").await;
    outbox.expel(&new).await.unwrap();
    assert_eq!(outbox.number("select min(mark) from outbox_partition").await, 1);
    assert_eq!(outbox.number("select count(*) from outbox_mark").await, 1);
}

//! The fence, with two sessions stopped at each step in turn.

use std::time::Duration;

use pillarbox_core::domain::{NodeId, PartitionSet, Seq};
use pillarbox_core::port::{Change, OwnStore as _, ReadStore as _, Settled};
use pillarbox_testkit::servers::Shared;
use sqlx::{Executor as _, Row as _};

use crate::support::{MINUTE, Outbox, event, join, on_each_server, outcome, owner, page, settle};
use pillarbox_core::port::Position;

on_each_server!(
    a_takeover_waits_for_a_settle_stopped_at_any_step,
    a_settle_waits_for_a_takeover_stopped_at_any_step_and_writes_nothing,
    a_lease_that_lapses_while_the_settle_waits_is_fenced,
    a_lease_renewed_before_the_expulsion_got_its_lock_stays,
    calls_from_another_runtime_have_a_connection_of_their_own,
    a_settle_that_is_dropped_anywhere_happens_whole_or_not_at_all,
);

const STEPS: [&str; 3] = [
    "select * from outbox_instance where id = 'old' for update",
    "update outbox_instance set mark = 1 where id = 'old'",
    "update outbox_event set status = 'DONE', done_at = utc_timestamp(6) where seq = 1",
];

async fn a_takeover_waits_for_a_settle_stopped_at_any_step(server: Shared) {
    for stop in 1..=STEPS.len() {
        let outbox = Outbox::new(server).await;
        outbox.write([event()]).await;
        let (old, _) = owner(&outbox, "old", MINUTE).await;
        let new = join(&outbox, "new", MINUTE).await;
        // What a settle does, by hand, so that it can be stopped; its lease lapses meanwhile.
        let mut session = outbox.session().await;
        session.execute("start transaction").await.unwrap();
        for step in &STEPS[..stop] {
            session.execute(*step).await.unwrap();
        }
        session
            .execute("update outbox_instance set `until` = utc_timestamp(6) - interval 1 second where id = 'old'")
            .await
            .unwrap();
        let other = outbox.another().await;
        let by = new.clone();
        let expelling = tokio::spawn(async move {
            loop {
                let expelled = other.expel(&by).await.unwrap().unwrap();
                if !expelled.is_empty() {
                    return expelled;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        tokio::time::sleep(Duration::from_millis(150)).await;
        assert!(!expelling.is_finished(), "stopped after step {stop}");
        assert!(outbox.take(&new, PartitionSet::ALL).await.unwrap().unwrap().is_empty());
        session.execute("commit").await.unwrap();
        assert_eq!(expelling.await.unwrap(), [NodeId::new("old")]);
        let taken = outbox.take(&new, PartitionSet::ALL).await.unwrap().unwrap();
        assert_eq!(taken.len(), 256);
        assert!(taken.iter().all(|taken| taken.mark == if stop >= 2 { Seq(1) } else { Seq(0) }));
        assert_eq!(settle(&outbox, &old, vec![]).await, Settled::Fenced);
    }
}

async fn a_settle_waits_for_a_takeover_stopped_at_any_step_and_writes_nothing(server: Shared) {
    let steps = [
        "select * from outbox_instance where id = 'old' for update",
        "update outbox_partition set owner = null, epoch = epoch + 1 where owner = 'old'",
        "delete from outbox_instance where id = 'old'",
    ];
    for stop in 1..=steps.len() {
        let outbox = Outbox::new(server).await;
        outbox.write([event()]).await;
        let (old, taken) = owner(&outbox, "old", MINUTE).await;
        let rows = outbox.page(&Position::START).await.rows;
        let late = vec![outcome(&rows[0], &taken, Change::Delete)];
        let mut session = outbox.session().await;
        session.execute("start transaction").await.unwrap();
        for step in &steps[..stop] {
            session.execute(*step).await.unwrap();
        }
        let store = outbox.another().await;
        let settling = tokio::spawn(async move { settle(&store, &old, late).await });
        tokio::time::sleep(Duration::from_millis(150)).await;
        assert!(!settling.is_finished(), "stopped after step {stop}");
        for step in &steps[stop..] {
            session.execute(*step).await.unwrap();
        }
        session.execute("commit").await.unwrap();
        assert_eq!(settling.await.unwrap(), Settled::Fenced);
        assert_eq!(outbox.number("select count(*) from outbox_event where status = 'NEW'").await, 1);
    }
}

/// The clock is read when the lock is there, not when the statement began.
async fn a_lease_that_lapses_while_the_settle_waits_is_fenced(server: Shared) {
    let outbox = Outbox::new(server).await;
    outbox.write([event()]).await;
    let (old, taken) = owner(&outbox, "old", Duration::from_millis(1_500)).await;
    let rows = outbox.page(&Position::START).await.rows;
    let late = vec![outcome(&rows[0], &taken, Change::Delete)];
    let mut session = outbox.session().await;
    session.execute("start transaction").await.unwrap();
    let live = "select `until` > sysdate(6) from outbox_instance where id = 'old' for update";
    let row = session.fetch_one(live).await.unwrap();
    assert_eq!(row.get::<i64, _>(0), 1);
    let store = outbox.another().await;
    let lease = old.clone();
    let settling = tokio::spawn(async move { settle(&store, &lease, late).await });
    let store = outbox.another().await;
    let renewing = tokio::spawn(async move { store.renew(&old, MINUTE).await.unwrap().is_none() });
    tokio::time::sleep(Duration::from_millis(1_700)).await;
    assert!(!settling.is_finished() && !renewing.is_finished());
    session.execute("commit").await.unwrap();
    assert_eq!(settling.await.unwrap(), Settled::Fenced);
    assert!(renewing.await.unwrap(), "a lapsed lease was revived");
    assert_eq!(outbox.number("select count(*) from outbox_event where status = 'NEW'").await, 1);
}

async fn a_lease_renewed_before_the_expulsion_got_its_lock_stays(server: Shared) {
    let outbox = Outbox::new(server).await;
    let (_, _) = owner(&outbox, "old", MINUTE).await;
    let new = join(&outbox, "new", MINUTE).await;
    outbox.run("update outbox_instance set `until` = utc_timestamp(6) - interval 1 second where id = 'old'").await;
    let mut session = outbox.session().await;
    session.execute("start transaction").await.unwrap();
    session
        .execute("update outbox_instance set `until` = utc_timestamp(6) + interval 1 minute where id = 'old'")
        .await
        .unwrap();
    let store = outbox.another().await;
    assert!(store.expel(&new).await.unwrap().unwrap().is_empty(), "it waits for nobody");
    session.execute("commit").await.unwrap();
    assert!(store.expel(&new).await.unwrap().unwrap().is_empty());
    assert_eq!(outbox.number("select count(*) from outbox_partition where owner = 'old'").await, 256);
}

async fn calls_from_another_runtime_have_a_connection_of_their_own(server: Shared) {
    let outbox = Outbox::new(server).await;
    let (lease, _) = owner(&outbox, "n", MINUTE).await;
    for _ in 0..3 {
        let (store, own) = (outbox.store.clone(), lease.clone());
        let elsewhere = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                assert!(store.renew(&own, MINUTE).await.unwrap().is_some());
                page(&store, &Position::START, &mut |_| true).await;
                settle(&store, &own, vec![]).await
            })
        });
        let settled = tokio::task::spawn_blocking(|| elsewhere.join().unwrap()).await.unwrap();
        assert_eq!(settled, Settled::Applied { stale: 0 });
        // The other runtime is gone, and its sockets with it.
        assert!(outbox.renew(&lease, MINUTE).await.unwrap().is_some());
        outbox.page(&Position::START).await;
        assert_eq!(settle(&outbox, &lease, vec![]).await, Settled::Applied { stale: 0 });
    }
}

async fn a_settle_that_is_dropped_anywhere_happens_whole_or_not_at_all(server: Shared) {
    let outbox = Outbox::new(server).await;
    let (lease, taken) = owner(&outbox, "n", MINUTE).await;
    let mut position = Position::START;
    for micros in (0..6_000).step_by(250) {
        outbox.write([event(), event()]).await;
        let read = outbox.page(&position).await;
        position = read.position;
        let outcomes: Vec<_> = read.rows.iter().map(|row| outcome(row, &taken, Change::Delete)).collect();
        let batch = pillarbox_core::port::Batch { outcomes, ..Default::default() };
        let _ = tokio::time::timeout(Duration::from_micros(micros), outbox.store.settle(&lease, &batch)).await;
        assert!(outbox.take(&lease, PartitionSet::EMPTY).await.unwrap().is_some());
        let left = outbox.number("select count(*) from outbox_event").await;
        assert!(left == 0 || left == 2, "{left} left after {micros} us");
        assert_eq!(outbox.store.settle(&lease, &batch).await.unwrap(), Settled::Applied { stale: 0 });
        assert_eq!(outbox.number("select count(*) from outbox_event").await, 0);
    }
}

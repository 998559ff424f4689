//! Numbers that begin anew while the server lives, and those that sessions keep for later.

use std::time::Duration;

use pillarbox_core::Outbox as Engine;
use pillarbox_core::domain::Seq;
use pillarbox_core::port::{
    Batch, Change, OwnStore as _, Position, ReadStore as _, Released, Settled, StoreErrorKind, UpkeepStore as _,
};
use pillarbox_postgres::Options;
use pillarbox_testkit::Probe;
use sqlx::{AssertSqlSafe, PgConnection};

use crate::support::{MINUTE, Outbox, event, keyed, outcome, owner, run_in};

const WRITE: &str = "insert into outbox_event (event_type, payload) select 'Placed', '7' from generate_series(1, 5)";
const EMPTY: &str = "truncate outbox_event restart identity";

const WAITING: &str = "select count(*) from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock' and state = 'active'";
const EMPTIES: [&str; 2] = [EMPTY, "truncate outbox_event"];

async fn write(outbox: &Outbox, empty: &str, count: usize) {
    let events = format!(
        "begin; {empty}; insert into outbox_event (event_type, payload, event_key)
            select 'Placed', '7', case when n % 2 = 0 then 'k' || n % 3 end from generate_series(1, {count}) as n; commit"
    );
    sqlx::raw_sql(AssertSqlSafe(events)).execute(outbox.pool()).await.unwrap();
}

async fn until_all_done(outbox: &Outbox) {
    while outbox.number("select count(*) from outbox_event where status <> 'DONE'").await > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// P1. As tests of an application do between two cases. With the new events in the same transaction no look of the node falls
/// in between: as many as before, fewer and more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_delivered_after_the_table_was_emptied_under_a_node() {
    for empty in EMPTIES {
        let outbox = Outbox::new().await;
        let probe = Probe::new();
        let engine = Engine::single_node(outbox.store.clone()).route("Placed", probe.handler()).start().await.unwrap();
        let mut written = 0;
        for count in [5, 5, 2, 9] {
            write(&outbox, if written == 0 { "" } else { empty }, count).await;
            written += count;
            probe.wait_for(written).await;
            until_all_done(&outbox).await;
        }
        outbox.run(EMPTY).await;
        write(&outbox, "", 12).await;
        probe.wait_for(written + 12).await;
        engine.shutdown().await;
        assert_eq!(probe.log().ids().len(), written + 12);
    }
}

/// P1, O9. The one that does not write hears of it as well, and what is left of both is void.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_delivered_after_the_table_was_emptied_under_two_nodes() {
    let outbox = Outbox::new().await;
    let probe = Probe::new();
    let mut nodes = Vec::new();
    for name in ["a", "b"] {
        let builder = Engine::multi_node(outbox.another(Options::new())).node_name(name);
        nodes.push(
            builder.heartbeat(Duration::from_millis(300)).route("Placed", probe.handler()).start().await.unwrap(),
        );
    }
    let mut written = 0;
    for count in [40, 40, 10, 90] {
        write(&outbox, if written == 0 { "" } else { EMPTY }, count).await;
        written += count;
        probe.wait_for(written).await;
        until_all_done(&outbox).await;
    }
    for node in nodes {
        node.shutdown().await;
    }
}

/// P1, O4. The events of before are in flight when the table is emptied, and others have their numbers afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_whoever_empties_the_table_writes_nothing_of_before() {
    for (after_the_fence, stale) in [(true, 3), (true, 0), (false, 3)] {
        let outbox = Outbox::new().await;
        outbox.write([keyed("a"), keyed("b"), event()]).await;
        let (lease, taken) = owner(&outbox, "old").await;
        let rows = outbox.page(&Position::START).await.rows;
        outbox.run("insert into outbox_hold values (1, 'DEAD_HEAD', 'a', 1)").await;
        let outcomes = rows.iter().take(stale).map(|row| outcome(row, &taken, Change::Done)).collect();
        let batch = Batch { outcomes, mark: Some(Seq(3)), ..Batch::default() };
        let only_mark = Batch { mark: Some(Seq(3)), ..Batch::default() };
        let given: Vec<_> = taken.iter().map(|taken| Released { partition: taken.partition, suspects: 0 }).collect();
        let mut emptying = outbox.session().await;
        run_in(&mut emptying, "begin; truncate outbox_event restart identity").await;
        write_in(&mut emptying).await;
        if !after_the_fence {
            run_in(&mut emptying, "commit").await;
        }
        let (settled, marked, released) = tokio::join!(
            outbox.settle(&lease, &batch),
            async {
                // Behind the first, on the same connection.
                outbox.settle(&lease, &only_mark).await
            },
            async {
                if after_the_fence {
                    outbox.someone_waits().await;
                }
                let release = outbox.release(&lease, &given, Seq(3));
                let commit = async {
                    if after_the_fence {
                        while outbox.number(WAITING).await < 2 {
                            tokio::time::sleep(Duration::from_millis(2)).await;
                        }
                        run_in(&mut emptying, "commit").await;
                    }
                };
                tokio::join!(release, commit).0
            },
        );
        if after_the_fence {
            assert_eq!(settled.unwrap(), Settled::Applied { stale });
            released.unwrap();
        } else {
            assert_eq!(settled.unwrap_err().kind(), StoreErrorKind::Rewound);
            assert_eq!(released.unwrap_err().kind(), StoreErrorKind::Rewound);
        }
        assert_eq!(marked.unwrap_err().kind(), StoreErrorKind::Rewound);
        assert_eq!(outbox.number("select count(*) from outbox_event where status = 'NEW'").await, 3);
        assert_eq!(outbox.number("select count(*) from outbox_hold").await, 0);
        assert_eq!(outbox.number("select max(mark) from outbox_partition").await, 0);
        assert_eq!(outbox.number("select count(mark) from outbox_mark").await, 0);
        assert_eq!(outbox.renew(&lease, MINUTE).await.unwrap_err().kind(), StoreErrorKind::Rewound);
        let (_, taken) = owner(&outbox, "old").await;
        assert_eq!(taken.len(), 256);
        assert!(taken.iter().all(|taken| taken.mark == Seq(0)), "{taken:?}");
    }
}

async fn write_in(session: &mut PgConnection) {
    run_in(session, "insert into outbox_event (event_type, payload) select 'Placed', '7' from generate_series(1, 3)")
        .await;
}

/// P1. As long as it holds a partition, and as its next owner finds it.
#[tokio::test]
async fn a_mark_above_the_last_number_is_set_back_when_its_partition_is_taken() {
    let outbox = Outbox::new().await;
    outbox.run(WRITE).await;
    outbox.run("update outbox_partition set mark = case when number < 128 then 5 else 6 end").await;
    let (_, taken) = owner(&outbox, "a").await;
    let of = |low: bool| taken.iter().filter(move |taken| (taken.partition.0 < 128) == low).map(|taken| taken.mark);
    assert!(of(true).all(|mark| mark == Seq(5)) && of(false).all(|mark| mark == Seq(0)), "{taken:?}");
    assert_eq!(outbox.number("select sum(mark)::bigint from outbox_partition").await, 128 * 5);
}

/// P1, O9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_delivered_after_the_table_was_emptied_between_two_nodes() {
    let outbox = Outbox::new().await;
    let probe = Probe::new();
    for round in 1..=3 {
        let another = outbox.another(Options::new());
        let engine = Engine::single_node(another).route("Placed", probe.handler()).start().await.unwrap();
        outbox.run(WRITE).await;
        probe.wait_for(5 * round).await;
        engine.shutdown().await;
        outbox.run(EMPTY).await;
    }
    assert_eq!(probe.log().ids().len(), 15);
}

/// P1. A number that a session keeps for later is passed by those of others.
#[tokio::test]
async fn a_sequence_with_a_cache_is_refused_with_the_statement_that_mends_it() {
    let outbox = Outbox::new().await;
    outbox.run("alter sequence outbox_event_seq_seq cache 20").await;
    for error in [outbox.check().await.unwrap_err(), outbox.migrate().await.unwrap_err()] {
        assert_eq!(error.kind(), StoreErrorKind::Rejected, "{error:?}");
        assert!(error.to_string().contains("alter sequence public.outbox_event_seq_seq cache 1"), "{error}");
    }
    outbox.run("alter sequence public.outbox_event_seq_seq cache 1").await;
    outbox.check().await.unwrap();
}

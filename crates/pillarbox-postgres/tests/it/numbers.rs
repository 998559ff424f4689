//! Numbers that begin anew while the server lives, and those that sessions keep for later.

use pillarbox_core::Outbox as Engine;
use pillarbox_core::port::{StoreErrorKind, UpkeepStore as _};
use pillarbox_postgres::Options;
use pillarbox_testkit::Probe;

use crate::support::Outbox;

const WRITE: &str = "insert into outbox_event (event_type, payload) select 'Placed', '7' from generate_series(1, 5)";
const EMPTY: &str = "truncate outbox_event restart identity";

/// P1. As tests of an application do between two cases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_delivered_after_the_table_was_emptied_under_a_node() {
    let outbox = Outbox::new().await;
    let probe = Probe::new();
    let engine = Engine::single_node(outbox.store.clone()).route("Placed", probe.handler()).start().await.unwrap();
    for round in 1..=3 {
        outbox.run(WRITE).await;
        probe.wait_for(5 * round).await;
        while outbox.number("select count(*) from outbox_event where status <> 'DONE'").await > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        outbox.run(EMPTY).await;
    }
    engine.shutdown().await;
    assert_eq!(probe.log().ids().len(), 15);
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

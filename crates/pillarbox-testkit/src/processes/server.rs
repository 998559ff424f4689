//! The server goes away and comes back.

use serde_json::json;

use super::{Private, Site, Stage, site::Served};

/// Two nodes that write, a node that doesn't, and a writer: four processes in all.
fn start<S: Site>(stage: &Stage<S>) -> Vec<super::Process> {
    let busy = json!({ "role": "multi", "work": 2, "count": 100_000, "pace": 10, "lease": 3_000 });
    let processes = vec![
        stage.start("one", busy.clone()),
        stage.start("two", busy),
        stage.start("quiet", json!({ "role": "multi", "work": 2, "lease": 3_000 })),
        stage.start("writer", json!({ "role": "writer", "count": 100_000, "pace": 10 })),
    ];
    for node in ["one", "two", "quiet"] {
        stage.until_joined(node);
    }
    until_more::<S>(stage);
    processes
}

/// Waits until much of what is written from now on is delivered.
fn until_more<S: Site>(stage: &Stage<S>) {
    let (written, delivered) = (stage.ledger().of("committed").count(), stage.ledger().of("end").count());
    stage.until("writing to go on", |ledger| (ledger.of("committed").count() > written + 60).then_some(()));
    stage.until("delivery to go on", |ledger| (ledger.of("end").count() > delivered + 60).then_some(()));
}

fn end<S: Site>(stage: &Stage<S>) {
    stage.stop_writing(&["one", "two", "writer"]);
    let (orders, ledger) = stage.until_all_done();
    ledger.assert_delivered_is(&orders);
    ledger.assert_in_order_per_key(&orders);
    ledger.assert_commits_are_in(&orders);
    stage.assert_no_attempt_was_counted();
    println!(
        "{} committed, {} refused, {} unknown, {} delivered again",
        orders.len(),
        ledger.of("refused").count(),
        ledger.of("unknown").count(),
        ledger.repeats()
    );
}

/// D11, O9.
pub fn a_server_that_restarts_or_is_killed_loses_no_event_and_uses_up_no_attempt<S: Private>() {
    let mut stage = Stage::<S>::new();
    let _processes = start(&stage);
    for how in S::WAYS.iter().chain(S::WAYS) {
        stage.site.restart(*how);
        until_more(&stage);
    }
    end(&stage);
}

/// D11, O9.
pub fn connections_ended_at_random_lose_no_event_and_use_up_no_attempt<S: Served>() {
    let stage = Stage::<S>::new();
    let _processes = start(&stage);
    for _ in 0..4 {
        for _ in 0..10 {
            stage.ask("an end", || async { stage.site.end_a_connection(stage.store()).await });
            let lines = stage.ledger().of("end").count();
            stage.until("a delivery", |ledger| (ledger.of("end").count() > lines).then_some(()));
        }
        until_more(&stage);
    }
    end(&stage);
}

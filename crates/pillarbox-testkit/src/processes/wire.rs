//! The connection breaks at a chosen moment.

use serde_json::json;

use super::{Stage, site::Served, wait};
use crate::servers::Proxy;

/// W1: to its writer, a commit whose answer is lost looks like one that never arrived. What counts is what the
/// database has.
pub fn a_commit_of_unknown_outcome_is_delivered_if_and_only_if_it_was_committed<S: Served>() {
    let stage = Stage::<S>::new();
    let proxy = Proxy::to_url(&stage.site.url()).unwrap();
    let through = proxy.url(&stage.site.url());
    let _node = stage.start("node", json!({ "role": "multi", "lease": 5_000 }));
    stage.until_joined("node");
    let _writer = stage.start("writer", json!({ "role": "writer", "url": through, "count": 100_000, "pace": 5 }));
    let mut lost = Vec::new();
    for n in 0..8 {
        stage.until("a commit", |ledger| (ledger.of("committed").count() > n * 3).then_some(()));
        if n % 2 == 0 {
            proxy.lose_next_commit_answer();
        } else {
            proxy.lose_next_commit();
        }
        let id = stage.until("an unknown outcome", |ledger| ledger.of("unknown").nth(n).map(|line| line.id.clone()));
        lost.push((n % 2 == 0, id));
    }
    stage.stop_writing(&["writer"]);
    let (orders, ledger) = stage.until_all_done();
    ledger.assert_delivered_is(&orders);
    ledger.assert_in_order_per_key(&orders);
    ledger.assert_each_once();
    for (committed, id) in lost {
        assert_eq!(orders.iter().any(|order| order.id == id), committed, "{id}");
        assert_eq!(ledger.delivered().contains_key(id.as_str()), committed, "{id}");
    }
    assert_eq!(ledger.of("refused").count(), 0);
}

/// D11: the same on a node, whose settles lose their commits as well.
pub fn a_node_that_loses_commits_and_their_answers_loses_no_event_and_counts_no_attempt<S: Served>() {
    let stage = Stage::<S>::new();
    let proxy = Proxy::to_url(&stage.site.url()).unwrap();
    let task = json!({ "role": "multi", "url": proxy.url(&stage.site.url()), "lease": 10_000, "heartbeat": 1_000,
        "count": 100_000, "pace": 5 });
    let _node = stage.start("node", task);
    stage.until_joined("node");
    for n in 0..20 {
        let ends = stage.ledger().of("end").count();
        stage.until("deliveries", |ledger| (ledger.of("end").count() > ends + 5).then_some(()));
        if n % 2 == 0 {
            proxy.lose_next_commit_answer();
        } else {
            proxy.lose_next_commit();
        }
        wait("a lost commit", || (proxy.lost_commits() > n).then_some(()));
    }
    stage.stop_writing(&["node"]);
    let (orders, ledger) = stage.until_all_done();
    println!("{} unknown, {} delivered again", ledger.of("unknown").count(), ledger.repeats());
    assert!(ledger.of("unknown").next().is_some(), "only commits of settles were lost, and none of a writer");
    ledger.assert_delivered_is(&orders);
    ledger.assert_in_order_per_key(&orders);
    ledger.assert_commits_are_in(&orders);
    // It kept its lease, and so its memory of what it had delivered.
    ledger.assert_each_once();
    stage.assert_no_attempt_was_counted();
}

/// D11: the database is gone when the handlers come to their end.
pub fn a_connection_lost_between_handler_and_settle_counts_no_failure<S: Served>() {
    let stage = Stage::<S>::new();
    let proxy = Proxy::to_url(&stage.site.url()).unwrap();
    let url = proxy.url(&stage.site.url());
    let _node = stage.start("node", json!({ "role": "multi", "url": url, "lease": 60_000, "workers": 8 }));
    stage.until_joined("node");
    let orders: Vec<_> = (0..40)
        .map(|n| if n % 2 == 0 { json!({ "then": "wait" }) } else { json!({ "then": "wait", "key": format!("k{n}") }) })
        .collect();
    assert!(stage.start("writer", json!({ "role": "writer", "once": orders })).end());
    stage.until("every worker at work", |ledger| (ledger.of("begin").count() == 8).then_some(()));
    proxy.refuse();
    proxy.cut();
    stage.say("unblock");
    stage.until("the handlers' ends", |ledger| (ledger.of("end").count() >= 8).then_some(()));
    wait("a settle that fails twice", || (stage.log().matches("settling failed").count() >= 2).then_some(()));
    proxy.accept().unwrap();
    let (orders, ledger) = stage.until_all_done();
    ledger.assert_delivered_is(&orders);
    ledger.assert_each_once();
    ledger.assert_in_order_per_key(&orders);
    assert_eq!(ledger.count("joined", "node"), 1);
    stage.assert_no_attempt_was_counted();
}

//! kill -9: what is committed is delivered, in its order, and nothing else is.

use std::{
    hash::{BuildHasher as _, RandomState},
    time::{Duration, Instant},
};

use serde_json::json;

use super::{Process, Site, Stage, now};

/// A number from a range; the test prints it.
fn random(from: usize, to: usize) -> usize {
    let random = usize::try_from(RandomState::new().hash_one(0) % 1_000_000).unwrap();
    from + random % (to - from)
}

/// Kills a node at a moment of its work that nobody has chosen.
fn kill_in_the_middle<S: Site>(stage: &Stage<S>, node: &mut Process) -> u128 {
    let lines = random(3, 80);
    println!("{node:?} is killed after {lines} lines");
    stage.until("a node at work", |ledger| {
        let written = ledger.count("begin", node.name()) + ledger.count("end", node.name());
        (written >= lines).then_some(())
    });
    node.kill();
    now()
}

/// P7: the survivor takes over within the lease and one look at the nodes (1 s and 300 ms).
pub fn nodes_killed_again_and_again_lose_nothing_and_the_survivor_takes_over<S: Site>() {
    let stage = Stage::<S>::new();
    let _survivor = stage.start("survivor", json!({ "role": "multi", "work": 2 }));
    stage.until_joined("survivor");
    let _writer = stage.start("writer", json!({ "role": "writer", "count": 100_000, "pace": 4 }));
    for round in 0..3 {
        let name = format!("victim-{round}");
        let mut victim = stage.start(&name, json!({ "role": "multi", "work": 2 }));
        let killed = kill_in_the_middle(&stage, &mut victim);
        let owned = stage.owned(&name);
        assert!(!owned.is_empty(), "a node at work owns partitions");
        let taken = stage.until("a takeover", |ledger| {
            let after = ledger.of("begin").filter(|line| line.node == "survivor" && line.at > killed);
            after.into_iter().find(|line| owned.contains(&line.partition)).map(|line| line.at)
        });
        let took = Duration::from_micros(u64::try_from(taken - killed).unwrap());
        println!("taken over after {took:?}");
        assert!(took < Duration::from_millis(1_300 + 1_500), "the takeover took {took:?}");
    }
    stage.stop_writing(&["writer"]);
    let (orders, ledger) = stage.until_all_done();
    ledger.assert_delivered_is(&orders);
    ledger.assert_in_order_per_key(&orders);
    ledger.assert_commits_are_in(&orders);
    println!("{} events, {} delivered again", orders.len(), ledger.repeats());
    stage.assert_no_attempt_was_counted();
}

/// P7: with the settings that `single_node` has by itself.
pub fn a_single_node_started_again_after_a_kill_delivers_within_seconds<S: Site>() {
    let stage = Stage::<S>::new();
    let _writer = stage.start("writer", json!({ "role": "writer", "count": 100_000, "pace": 10 }));
    let mut first = stage.start("first", json!({ "role": "single", "work": 2 }));
    kill_in_the_middle(&stage, &mut first);
    let begun = Instant::now();
    let _second = stage.start("second", json!({ "role": "single", "work": 2 }));
    stage.until("the first delivery", |ledger| (ledger.count("end", "second") > 0).then_some(()));
    let took = begun.elapsed();
    println!("delivers again {took:?} after the start");
    assert!(took < Duration::from_secs(10), "{took:?}");
    stage.stop_writing(&["writer"]);
    let (orders, ledger) = stage.until_all_done();
    ledger.assert_delivered_is(&orders);
    ledger.assert_in_order_per_key(&orders);
}

/// W1: an event is delivered if and only if its transaction was committed, wherever its writer is killed.
pub fn a_killed_writers_event_is_delivered_if_and_only_if_it_was_committed<S: Site>() {
    let stage = Stage::<S>::new();
    let _survivor = stage.start("survivor", json!({ "role": "multi" }));
    stage.until_joined("survivor");
    let mut victims = Vec::new();
    for role in ["writer", "multi"] {
        for key in [None, Some("k")] {
            for at in ["written", "unconfirmed"] {
                let name = format!("{role}-{at}-{}", key.unwrap_or("none"));
                let mut victim = stage.start(&name, json!({ "role": role, "at": at, "key": key }));
                let id = stage
                    .until(&name, |ledger| ledger.of(at).find(|line| line.node == name).map(|line| line.id.clone()));
                victim.kill();
                victims.push((at, id));
            }
        }
    }
    // What comes afterwards in the same key and partitions is delivered: nobody waits for what never was.
    let mut after = stage.start("after", json!({ "role": "writer", "once": [{ "key": "k" }, {}, { "key": "k" }] }));
    assert!(after.end());
    let (orders, ledger) = stage.until_all_done();
    ledger.assert_delivered_is(&orders);
    ledger.assert_in_order_per_key(&orders);
    assert_eq!(orders.len(), 4 + 3);
    for (at, id) in victims {
        assert_eq!(ledger.delivered().contains_key(id.as_str()), at == "unconfirmed", "{at}");
    }
}

/// W10: the key goes with the transaction that entered it, and is free for the next writer.
pub fn a_writer_killed_between_a_dedup_key_and_its_event_leaves_neither<S: Site>() {
    let stage = Stage::<S>::new();
    let _node = stage.start("node", json!({ "role": "multi" }));
    stage.until_joined("node");
    let mut victim = stage.start("victim", json!({ "role": "half", "dedup": "d" }));
    stage.until("a key without its event", |ledger| (ledger.count("half", "victim") > 0).then_some(()));
    victim.kill();
    for name in ["next", "too-late"] {
        assert!(stage.start(name, json!({ "role": "writer", "once": [{ "dedup": "d" }] })).end());
        assert_eq!(stage.number("select count(*) from outbox_event"), 1, "after the writer {name}");
    }
    let (orders, ledger) = stage.until_all_done();
    ledger.assert_delivered_is(&orders);
    ledger.assert_each_once();
    assert_eq!(orders.len(), 2);
    assert_eq!(orders[0].id, orders[1].id, "the second is told of the first");
}

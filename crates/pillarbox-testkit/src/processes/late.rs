//! Transactions that stay open for long.

use serde_json::{Value, json};

use super::{
    Stage, now,
    site::{Held, Served},
};

/// Ten seconds: longer than anything that a store waits for by itself.
const LONG: u128 = 10_000_000;

/// P1, O8: numbers above theirs are delivered and settled long before they commit.
pub fn writers_that_commit_late_are_delivered_in_the_order_of_their_keys<S: Served>() {
    let stage = Stage::<S>::new();
    let _node = stage.start("node", json!({ "role": "multi", "lease": 5_000 }));
    stage.until_joined("node");
    let late = |name: &str, key: Value| {
        let process = stage.start(name, json!({ "role": "writer", "at": "late", "key": key }));
        stage.until(name, |ledger| (ledger.count("late", name) > 0).then_some(()));
        process
    };
    let mut writers = vec![late("keyless", Value::Null), late("alone", json!("a")), late("first", json!("s"))];
    // Waits for the first writer's lock.
    writers.push(stage.start("successor", json!({ "role": "writer", "once": [{ "key": "s" }, { "key": "s" }] })));
    let _others = stage.start("others", json!({ "role": "writer", "count": 100_000, "pace": 10 }));
    let since = now();
    stage
        .until("much that comes later", |ledger| (now() - since > LONG && ledger.of("end").count() > 50).then_some(()));
    assert!(stage.ledger().of("end").all(|line| !matches!(line.key.as_deref(), Some("a" | "s"))));
    stage.say("commit");
    for writer in &mut writers {
        assert!(writer.end(), "{writer:?}");
    }
    let committed = now();
    stage.until("the late ones", |ledger| {
        let late: Vec<_> = ledger.of("late").map(|line| &line.id).collect();
        late.iter().all(|id| ledger.of("end").any(|line| line.id == **id)).then_some(())
    });
    println!("delivered within {} ms", (now() - committed) / 1_000);
    stage.stop_writing(&["others"]);
    let (orders, ledger) = stage.until_all_done();
    ledger.assert_delivered_is(&orders);
    ledger.assert_each_once();
    ledger.assert_in_order_per_key(&orders);
    assert_eq!(ledger.of("end").filter(|line| line.key.as_deref() == Some("s")).count(), 3);
    stage.assert_no_attempt_was_counted();
}

/// P1, S6: neither a snapshot nor a writer that stays open stops delivery, and a page does not read again and again
/// what was delivered before.
pub fn transactions_held_open_elsewhere_neither_stop_nor_slow_delivery<S: Served>() {
    let stage = Stage::<S>::new();
    let _held = (stage.site.hold_open(Held::Snapshot), stage.site.hold_open(Held::Writer));
    let _node = stage.start("node", json!({ "role": "multi", "lease": 10_000, "heartbeat": 1_000 }));
    stage.until_joined("node");
    let latency = |round: usize| {
        let name = format!("writer-{round}");
        assert!(stage.start(&name, json!({ "role": "writer", "count": 30, "pace": 20 })).end());
        stage.until_all_done();
        let ledger = stage.ledger();
        let mut times: Vec<u128> = ledger
            .of("committed")
            .filter(|line| line.node == name)
            .map(|line| ledger.of("begin").find(|begun| begun.id == line.id).unwrap().at.saturating_sub(line.at))
            .collect();
        times.sort_unstable();
        times[times.len() / 2]
    };
    let at_first = latency(0);
    assert!(stage.start("bulk", json!({ "role": "writer", "count": 1_500 })).end());
    stage.until_all_done();
    let at_last = latency(1);
    println!("{at_first} us at first, {at_last} us at last");
    assert!(at_last < 10 * at_first.max(20_000), "{at_first} us at first, {at_last} us at last");
    let (orders, ledger) = stage.until_all_done();
    ledger.assert_delivered_is(&orders);
    ledger.assert_each_once();
    ledger.assert_in_order_per_key(&orders);
}

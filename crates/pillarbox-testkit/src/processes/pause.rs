//! O6, P4: a process that stands still past its lease, and wakes.

use serde_json::json;

use super::{Site, Stage, wait};

pub fn a_node_that_wakes_after_its_lease_settles_nothing_and_starts_nothing_old<S: Site>() {
    let stage = Stage::<S>::new();
    let sleeper = stage.start("sleeper", json!({ "role": "multi", "workers": 2, "work": 20 }));
    stage.until_joined("sleeper");
    // One blocks its thread, and many wait in the sleeper's queues.
    let mut orders = vec![json!({ "then": "block", "where": "sleeper", "key": "b" }), json!({ "key": "b" })];
    orders.extend((0..200).map(|n| if n % 2 == 0 { json!({}) } else { json!({ "key": format!("k{}", n % 7) }) }));
    let mut writer = stage.start("writer", json!({ "role": "writer", "once": orders }));
    stage.until("a delivery that blocks", |ledger| {
        (ledger.of("begin").any(|line| line.key.as_deref() == Some("b")) && ledger.count("end", "sleeper") > 3)
            .then_some(())
    });
    assert!(writer.end());
    sleeper.pause();
    while stage.is_locked() {
        sleeper.resume();
        sleeper.pause();
    }
    let taker = stage.start("taker", json!({ "role": "multi", "work": 1 }));
    let (_, before) = stage.until_all_done();
    let states = || {
        let events = stage.events(&[]).into_iter();
        events.map(|found| (found.seq, found.status, found.attempts, found.done_at)).collect::<Vec<_>>()
    };
    let settled = states();
    let first_taken = before.of("begin").find(|line| line.node == "taker").unwrap().at;

    sleeper.resume();
    wait("its return", || (stage.owned("sleeper").len() == 128).then_some(()));
    stage.say("unblock");
    stage.until("its late outcome", |ledger| (ledger.count("stale", "sleeper") > 0).then_some(()));
    // Its worker is free again, and delivers what is new.
    let more: Vec<_> =
        (0..40).map(|n| if n % 2 == 0 { json!({}) } else { json!({ "key": format!("k{}", n % 7) }) }).collect();
    assert!(stage.start("more", json!({ "role": "writer", "once": more })).end());
    let (orders, ledger) = stage.until_all_done();
    assert_eq!(states()[..settled.len()], settled, "the late outcome changed a row");

    ledger.assert_delivered_is(&orders);
    ledger.assert_in_order_per_key(&orders);
    let highest = |partition: u8| {
        let lines = before.of("begin").filter(|line| line.node == "taker" && line.partition == partition);
        lines.map(|line| line.epoch).max()
    };
    let late = ledger.of("begin").filter(|line| line.node == "sleeper" && line.at > first_taken);
    let mut after = 0;
    for line in late {
        after += 1;
        assert!(highest(line.partition).is_none_or(|epoch| line.epoch > epoch), "an old epoch: {line:?}");
    }
    assert!(after > 0, "the sleeper delivers again");
    drop((sleeper, taker));
}

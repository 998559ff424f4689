//! O6, P4: a process that stands still past its lease, and wakes.

use std::time::{Duration, Instant};

use pillarbox_core::domain::Status;
use serde_json::json;

use super::{Served, Site, Stage, wait};

/// O6, P4: what it had begun settles nothing, and what it had read is not delivered.
pub fn a_node_that_wakes_after_its_lease_settles_nothing_and_starts_nothing_old<S: Site>() {
    let stage = Stage::<S>::new();
    let sleeper = stage.start("sleeper", json!({ "role": "multi", "workers": 2, "work": 20 }));
    stage.until_joined("sleeper");
    // One blocks its thread, and many wait in the sleeper's queues.
    let blocks = json!({ "then": "block", "where": "sleeper", "elsewhere": "deliver", "key": "b" });
    let mut orders = vec![blocks, json!({ "key": "b" })];
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
    stage.until("the one that blocks, by the taker", |ledger| {
        let mut begun = ledger.of("begin");
        begun.any(|line| line.node == "taker" && line.key.as_deref() == Some("b")).then_some(())
    });
    let states = || {
        let events = stage.events(&[]).into_iter();
        events.map(|found| (found.seq, found.status, found.attempts, found.done_at)).collect::<Vec<_>>()
    };
    let first = states()[0];
    assert_eq!(first.1, Status::New);
    sleeper.resume();
    stage.say("unblock");
    stage.until("its late outcome", |ledger| (ledger.count("stale", "sleeper") > 0).then_some(()));
    assert_eq!(states()[0], first, "the late outcome changed its row");

    stage.say("deliver");
    let (_, before) = stage.until_all_done();
    let settled = states();
    let first_taken = before.of("begin").find(|line| line.node == "taker").unwrap().at;
    wait("its return", || (stage.owned("sleeper").len() == 128).then_some(()));
    // Its worker is free again, and delivers what is new.
    let more: Vec<_> =
        (0..40).map(|n| if n % 2 == 0 { json!({}) } else { json!({ "key": format!("k{}", n % 7) }) }).collect();
    assert!(stage.start("more", json!({ "role": "writer", "once": more })).end());
    let (orders, ledger) = stage.until_all_done();
    assert_eq!(states()[..settled.len()], settled, "what was settled has changed");

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

/// Its settle holds the lock that a takeover wants. Who waits for it must go on renewing its own lease, and the server
/// must end the session of one that does not come back.
pub fn a_node_paused_in_the_middle_of_a_settle_takes_no_other_node_along<S: Served>() {
    let stage = Stage::<S>::new();
    let task = json!({ "role": "multi", "lease": 2_000, "heartbeat": 300, "work": 1 });
    let other = stage.start("other", task.clone());
    let sleeper = stage.start("sleeper", task);
    stage.until_shared(&["other", "sleeper"]);
    let _writer = stage.start("writer", json!({ "role": "writer", "count": 100_000, "pace": 3, "keys": 50 }));
    let stands = || {
        sleeper.pause();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(600) {
            if stage.number(S::STANDING) > 0 {
                return Some(());
            }
            // Some views are made anew only for who has not looked for a tenth of a second.
            std::thread::sleep(Duration::from_millis(150));
        }
        let ends = stage.ledger().count("end", "sleeper");
        sleeper.resume();
        stage.until("its next delivery", |ledger| (ledger.count("end", "sleeper") > ends).then_some(()));
        None
    };
    wait("a pause in the middle of a settle", stands);
    let incarnation = || {
        let fleet = stage.fleet();
        fleet.nodes.iter().find(|node| node.node.as_str() == "other").map(|node| node.incarnation)
    };
    let (before, begun) = (incarnation(), Instant::now());
    assert!(before.is_some());
    wait("a takeover", || {
        assert_eq!(incarnation(), before, "the other node lost its lease, {:?} after the pause", begun.elapsed());
        (stage.owned("other").len() == 256).then_some(())
    });
    println!("taken over after {:?}", begun.elapsed());
    sleeper.resume();
    stage.stop_writing(&["writer"]);
    let (orders, ledger) = stage.until_all_done();
    ledger.assert_delivered_is(&orders);
    ledger.assert_in_order_per_key(&orders);
    stage.assert_no_attempt_was_counted();
    drop(other);
}

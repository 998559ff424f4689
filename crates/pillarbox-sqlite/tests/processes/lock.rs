//! D11: an outside process keeps the write lock.

use pillarbox_testkit::processes::{Stage, now};
use serde_json::json;

use crate::shop::File;

#[test]
fn a_lock_held_past_the_busy_timeout_loses_nothing_and_counts_no_attempt() {
    let stage = Stage::<File>::new();
    let orders: Vec<_> =
        (0..60).map(|n| if n % 2 == 0 { json!({}) } else { json!({ "key": format!("k{}", n % 7) }) }).collect();
    assert!(stage.start("writer", json!({ "role": "writer", "once": orders })).end());
    // The lease outlives the lock; the busy timeout does not.
    let task = json!({ "role": "multi", "lease": 60_000, "heartbeat": 300, "busy_timeout": 100, "work": 100 });
    let _node = stage.start("node", task);
    stage.until("the first delivery", |ledger| (ledger.count("end", "node") > 0).then_some(()));
    let mut locker = stage.start("locker", json!({ "role": "locker" }));
    let since = stage.until("the lock", |ledger| ledger.of("locked").next().map(|line| line.at));
    stage.until("many busy timeouts", |_| (now() - since > 1_000_000).then_some(()));
    // Reading needs no lock: the handlers have gone on.
    let ledger = stage.ledger();
    let meanwhile = ledger.of("end").filter(|line| line.at > since).count();
    stage.say("unlock");
    assert!(locker.end());
    let (orders, ledger) = stage.until_all_done();
    println!("{meanwhile} deliveries while the file was locked");
    assert!(meanwhile > 0, "the lock stopped the handlers");
    ledger.assert_each_once();
    ledger.assert_delivered_is(&orders);
    ledger.assert_in_order_per_key(&orders);
    stage.assert_no_attempt_was_counted();
}

/// Nobody can renew a lease in a file that is locked: the node loses it, drops what it runs, and begins
/// again when it can. What was delivered meanwhile comes again, for its outcome could not be written.
#[test]
fn a_lock_held_past_the_lease_repeats_events_and_loses_none() {
    let stage = Stage::<File>::new();
    let orders: Vec<_> =
        (0..80).map(|n| if n % 2 == 0 { json!({}) } else { json!({ "key": format!("k{}", n % 7) }) }).collect();
    assert!(stage.start("writer", json!({ "role": "writer", "once": orders })).end());
    let _node = stage.start("node", json!({ "role": "multi", "lease": 900, "busy_timeout": 100, "work": 20 }));
    stage.until("the first delivery", |ledger| (ledger.count("end", "node") > 0).then_some(()));
    let mut locker = stage.start("locker", json!({ "role": "locker" }));
    let since = stage.until("the lock", |ledger| ledger.of("locked").next().map(|line| line.at));
    stage.until("the lease's end", |_| (now() - since > 2_000_000).then_some(()));
    stage.say("unlock");
    assert!(locker.end());
    let (orders, ledger) = stage.until_all_done();
    ledger.assert_delivered_is(&orders);
    ledger.assert_in_order_per_key(&orders);
    println!("{} of {} delivered again", ledger.repeats(), orders.len());
    stage.assert_no_attempt_was_counted();
}

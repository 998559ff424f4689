//! One key with a million waiting events: while its head runs, while its head is dead, and when its node goes away.

use pillarbox_core::{
    domain::Status,
    port::{Actor, AdminStore as _},
};
use serde_json::json;

use super::{Application as _, Process, Site, Stage, wait};

const CROWD: i64 = 1_000_000;

/// These come before the event that fails, all others after it.
const BEFORE: i64 = 500;

/// A process with a million events in memory would have ten times as much.
const MEMORY: u64 = 150 << 20;

/// O1, O3, O9, decision 6: nobody else waits, memory stays small, the stored mark passes what waits, whether its head runs,
/// is dead or the key flows, so that no read meets it, also after a takeover; and in the end the key goes on where it was.
pub fn a_million_waiting_events_of_a_key_starve_nobody_and_fill_no_memory<S: Site>() {
    let stage = Stage::<S>::new();
    write(&stage, "head", &json!({ "key": "crowd", "then": "wait" }));
    crowd(&stage, BEFORE);
    write(&stage, "poison", &json!({ "key": "crowd", "then": "fail" }));
    crowd(&stage, CROWD - BEFORE);

    // The head runs.
    let mut node = start(&stage, "one");
    stage.until("the head", |ledger| (ledger.count("begin", "one") > 0).then_some(()));
    assert_others_are_served(&stage, &node, "a");
    assert_mark_is_above(&stage);
    node.kill();
    let mut node = start(&stage, "two");
    stage.until("the head again", |ledger| (ledger.count("begin", "two") > 0).then_some(()));
    assert_others_are_served(&stage, &node, "b");
    assert_mark_is_above(&stage);

    // It ends, and what follows flows until the head is dead.
    stage.say("unblock");
    wait("a dead head", || (stage.count(&[Status::Dead]) == 1).then_some(()));
    assert_others_are_served(&stage, &node, "c");
    assert_mark_is_above(&stage);
    stage.say("stop-two");
    assert!(node.end(), "{node:?}");
    let mut node = start(&stage, "three");
    assert_others_are_served(&stage, &node, "d");
    assert_mark_is_above(&stage);
    node.kill();
    let node = start(&stage, "four");
    assert_others_are_served(&stage, &node, "e");
    assert_mark_is_above(&stage);
    assert_eq!(crowd_served(&stage), BEFORE, "the key waits for an operator");

    // It is skipped, and the rest flows.
    let dead = stage.events(&[Status::Dead])[0].seq;
    let actor = Actor { who: "test".into(), why: Some("it blocks a million".into()) };
    let skipped = stage.ask("a skip", || async { Ok(stage.store().skip(&[dead], &actor).await?) });
    assert_eq!(skipped, [dead]);
    wait("the rest", || (crowd_served(&stage) > BEFORE * 2).then_some(()));
    assert_others_are_served(&stage, &node, "f");
    assert_mark_is_above(&stage);
    assert_in_order(&stage);
}

fn write<S: Site>(stage: &Stage<S>, name: &str, order: &serde_json::Value) {
    assert!(stage.start(name, json!({ "role": "writer", "once": [order] })).end(), "{name}");
}

fn crowd<S: Site>(stage: &Stage<S>, count: i64) {
    stage.ask("a crowd", || S::App::crowd(stage.store(), "crowd", count));
}

fn start<S: Site>(stage: &Stage<S>, name: &str) -> Process {
    // A million rows keep the disk busy: a lease that lapses meanwhile would interrupt the head, and a suspect that is
    // interrupted again and again is dead.
    let node = stage.start(name, json!({ "role": "multi", "workers": 4, "lease": 5_000 }));
    stage.until_joined(name);
    node
}

/// Others write, and are served, and the node has little in memory.
fn assert_others_are_served<S: Site>(stage: &Stage<S>, node: &Process, writer: &str) {
    let task = json!({ "role": "writer", "count": 60, "keys": 6, "pace": 5 });
    assert!(stage.start(writer, task).end(), "{writer}");
    let unserved = |ledger: &super::Ledger| {
        let delivered = ledger.delivered();
        let written = ledger.of("committed").filter(|line| line.node == writer);
        (written.filter(|line| !delivered.contains_key(line.id.as_str())).count() == 0).then_some(())
    };
    stage.until("the others", unserved);
    assert!(stage.ledger().count("committed", writer) >= 60);
    let memory = node.memory();
    assert!(memory < MEMORY, "{node:?} has {} MiB", memory >> 20);
}

/// The crowd is left to its hold: whoever takes over begins above it.
fn assert_mark_is_above<S: Site>(stage: &Stage<S>) {
    wait("a mark above the crowd", || (stage.number(S::App::MARK) > CROWD).then_some(()));
}

/// How many of the crowd were served; they have no order of their own.
fn crowd_served<S: Site>(stage: &Stage<S>) -> i64 {
    let ledger = stage.ledger();
    let served = ledger.of("end").filter(|line| line.key.as_deref() == Some("crowd") && line.order == 0);
    i64::try_from(served.count()).unwrap()
}

/// The ids of the crowd rise.
fn assert_in_order<S: Site>(stage: &Stage<S>) {
    let ledger = stage.ledger();
    let begun = ledger.of("begin").filter(|line| line.key.as_deref() == Some("crowd") && line.order == 0);
    let mut highest = "";
    for line in begun {
        // What the process that was killed had begun comes again.
        assert!(line.id.as_str() > highest, "{line:?} after {highest}");
        highest = &line.id;
    }
}

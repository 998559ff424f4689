//! P3: nodes whose clocks are wrong.

use std::{path::PathBuf, process::Command, time::Duration};

use serde_json::json;

use super::{Process, Stage, now, site::Served, wait};
use crate::servers::packages;

const HOUR: u128 = 3_600_000_000;

/// This binary, with a clock that is off. The clock that measures spans goes right, as it does on such a machine.
///
/// Without the `faketime` command, which would be one process more, and the one that is killed.
fn at(offset: &str) -> Command {
    packages::ensure(&["faketime"]).unwrap();
    let folders = std::fs::read_dir("/usr/lib").unwrap();
    let library = folders.filter_map(|folder| {
        let file: PathBuf = folder.ok()?.path().join("faketime/libfaketimeMT.so.1");
        file.exists().then_some(file)
    });
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env("LD_PRELOAD", library.into_iter().next().expect("libfaketime"));
    command.env("FAKETIME", offset).env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("DONT_FAKE_MONOTONIC", "1");
    command
}

/// P3, P7: they share the partitions, deliver each event once, and are taken over when they die.
pub fn nodes_an_hour_ahead_and_behind_neither_steal_nor_stall<S: Served>() {
    let stage = Stage::<S>::new();
    let task = json!({ "role": "multi", "work": 2, "lease": 4_000, "heartbeat": 500, "count": 100_000, "pace": 10 });
    let start = |name: &str, offset: &str| -> Process { stage.start_by(at(offset), name, task.clone()) };
    let _right = stage.start("right", task.clone());
    let mut ahead = start("ahead", "+1h");
    let mut behind = start("behind", "-1h");
    let nodes = ["right", "ahead", "behind"];
    stage.until_shared(&nodes);
    let before = stage.ledger();
    stage.until("each of them at work", |ledger| {
        nodes.iter().all(|node| ledger.count("end", node) > before.count("end", node) + 50).then_some(())
    });
    let ledger = stage.ledger();
    let told = |node: &str| ledger.of("joined").find(|line| line.node == node).unwrap().at;
    assert!(told("ahead") > now() + HOUR / 2 && told("behind") < now() - HOUR / 2, "their clocks are not off");
    ledger.assert_each_once();
    for node in nodes {
        assert_eq!(ledger.count("joined", node), 1, "{node} lost its lease");
    }
    assert!(!stage.log().contains("was expelled"), "somebody was expelled");

    let killed = std::time::Instant::now();
    ahead.kill();
    behind.kill();
    wait("a takeover", || (stage.owned("right").len() == 256).then_some(()));
    let took = killed.elapsed();
    println!("taken over after {took:?}");
    assert!(took < Duration::from_secs(4 + 6), "the takeover took {took:?}");
    stage.stop_writing(&["right"]);
    let (orders, ledger) = stage.until_all_done();
    ledger.assert_delivered_is(&orders);
    ledger.assert_in_order_per_key(&orders);
    stage.assert_no_attempt_was_counted();
}

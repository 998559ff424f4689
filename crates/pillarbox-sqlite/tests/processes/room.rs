//! A disk without room: the limit on the size of a file is the operating system's.

use std::process::Command;

use pillarbox_testkit::processes::{Ledger, Process, Stage, wait};
use serde_json::json;

use crate::shop::File;

#[test]
fn a_node_without_room_says_so_and_goes_on_when_there_is_room() {
    let stage = Stage::<File>::new();
    // Writes beyond the limit fail, instead of ending the process.
    let mut limited = Command::new("sh");
    let limit = "trap '' XFSZ; ulimit -S -f 2000; exec \"$0\" \"$@\"";
    limited.args(["-c", limit]).arg(std::env::current_exe().unwrap());
    let task = json!({ "role": "multi", "lease": 60_000, "count": 100_000, "pad": 20_000, "pace": 5 });
    let node = stage.start_by(limited, "node", task);
    let failures = |ledger: &Ledger| ledger.of("refused").count() + ledger.of("unknown").count();
    stage.until("a full disk", |ledger| (failures(ledger) > 2).then_some(()));
    let before = stage.orders().len();
    raise_file_size(&node);
    wait("new orders", || (stage.orders().len() > before + 5).then_some(()));
    stage.stop_writing(&["node"]);
    let (orders, ledger) = stage.until_all_done();
    println!("{} failures, {} committed", failures(&ledger), orders.len());
    ledger.assert_delivered_is(&orders);
    ledger.assert_in_order_per_key(&orders);
    ledger.assert_each_once();
    stage.assert_no_attempt_was_counted();
    for refusal in stage.log().lines().filter(|line| line.starts_with("refused: ") || line.starts_with("unknown: ")) {
        assert!(refusal.contains("disk") || refusal.contains("SQLite could not"), "{refusal}");
    }
}

/// There is room again for a process that was started with a limit on the size of files.
fn raise_file_size(process: &Process) {
    let raised = Command::new("prlimit").args(["--pid", &process.id().to_string(), "--fsize=unlimited"]).status();
    assert!(raised.unwrap().success(), "prlimit");
}

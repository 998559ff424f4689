//! A disk without room: the limit on the size of a file is the operating system's.

use std::process::Command;

use serde_json::json;

use crate::stage::{Stage, wait};

#[test]
fn a_node_without_room_says_so_and_goes_on_when_there_is_room() {
    let stage = Stage::new();
    // Writes beyond the limit fail, instead of ending the process.
    let mut limited = Command::new("sh");
    let limit = "trap '' XFSZ; ulimit -S -f 2000; exec \"$0\" \"$@\"";
    limited.args(["-c", limit]).arg(std::env::current_exe().unwrap());
    let task = json!({ "role": "multi", "lease": 60_000, "count": 100_000, "pad": 20_000, "pace": 5 });
    let node = stage.start_by(limited, "node", task);
    stage.until("a full disk", |ledger| (ledger.count("refused", "node") > 2).then_some(()));
    let before = stage.orders().len();
    node.raise_file_size();
    wait("new orders", || (stage.orders().len() > before + 5).then_some(()));
    stage.say("stop-writing");
    stage.until("the last write", |ledger| (ledger.count("wrote", "node") > 0).then_some(()));
    let (orders, ledger) = stage.until_all_done();
    println!("{} refused, {} committed", ledger.count("refused", "node"), orders.len());
    ledger.assert_delivered_is(&orders);
    ledger.assert_in_order_per_key(&orders);
    ledger.assert_each_once();
    assert_eq!(stage.number("select count(*) from outbox_event where attempts > 0 or status <> 'DONE'"), 0);
    let log = std::fs::read_to_string(stage.path("log")).unwrap();
    for refusal in log.lines().filter(|line| line.starts_with("refused: ")) {
        assert!(refusal.contains("disk") || refusal.contains("SQLite could not"), "{refusal}");
    }
}

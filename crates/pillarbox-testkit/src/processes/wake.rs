//! P8, D15: a commit in one process wakes a reader in another.

use std::time::Duration;

use serde_json::json;

use super::{Ledger, Process, Site, Stage};

/// How long an idle reader of these cases would sleep.
pub const POLL: Duration = Duration::from_secs(20);

/// A node that is woken, or sleeps for long.
pub fn sleepy_node<S: Site>(stage: &Stage<S>) -> Process {
    let node = stage.start("node", json!({ "role": "multi", "lease": 30_000, "heartbeat": 5_000, "poll": 20_000 }));
    stage.until_joined("node");
    node
}

/// Writes events in another process, one after another, and says how long each was on its way, the longest last.
pub fn write_and_time<S: Site>(stage: &Stage<S>, name: &str) -> Vec<Duration> {
    let count = 10;
    let _writer = stage.start(name, json!({ "role": "writer", "count": count, "pace": 50 }));
    let on_their_way = |ledger: &Ledger| -> Option<Vec<Duration>> {
        let committed: Vec<_> = ledger.of("committed").filter(|line| line.node == name).collect();
        let times = committed.iter().map(|line| {
            let begun = ledger.of("begin").find(|begun| begun.id == line.id)?;
            Some(Duration::from_micros(u64::try_from(begun.at.saturating_sub(line.at)).unwrap()))
        });
        if committed.len() == count { times.collect() } else { None }
    };
    let mut times = stage.until("all on their way", on_their_way);
    times.sort_unstable();
    println!("{name}: {times:?}");
    times
}

/// P8: far sooner than by polling.
pub fn a_commit_in_another_process_wakes_the_reader<S: Site>() {
    let stage = Stage::<S>::new();
    let _node = sleepy_node(&stage);
    let times = write_and_time(&stage, "writer");
    assert!(times[times.len() - 1] < POLL / 8, "{times:?}");
}

//! Processes that come together on one file without a fault.

use pillarbox_sqlite::VERSION;
use serde_json::json;

use crate::stage::{Process, Stage};

/// P9: `single_node` started three times by mistake, each with its own writes.
#[test]
fn three_single_nodes_on_one_file_deliver_each_event_once_and_in_order() {
    let stage = Stage::new();
    let names = ["one", "two", "three"];
    // With pauses: SQLite's write lock knows no order among processes, and writers that never pause can keep a
    // node from it for longer than its lease. That is a fault, and repeats events.
    let task = json!({ "role": "single", "count": 250, "keys": 6, "pace": 5 });
    let nodes: Vec<Process> = names.iter().map(|name| stage.start(name, task.clone())).collect();
    stage.until("all writes", |ledger| (ledger.of("wrote").count() == 3).then_some(()));
    stage.until_all_done();
    for name in names {
        stage.say(&format!("stop-{name}"));
    }
    for mut node in nodes {
        assert!(node.end(), "{node:?}");
    }
    let (orders, ledger) = stage.until_all_done();
    assert_eq!((orders.len(), ledger.of("refused").count()), (750, 0));
    ledger.assert_delivered_is(&orders);
    ledger.assert_each_once();
    ledger.assert_in_order_per_key(&orders);
    for name in names {
        assert!(ledger.count("end", name) > 0, "{name} had no share");
    }
}

/// S3: eight processes find a file without tables.
#[test]
fn eight_processes_migrate_one_file_once() {
    let stage = Stage::new();
    let migrators = (0..8).map(|n| stage.start(&format!("m{n}"), json!({ "role": "migrator", "file": "fresh.db" })));
    let migrators: Vec<_> = migrators.collect();
    stage.until("all eight", |ledger| (ledger.of("ready").count() == 8).then_some(()));
    stage.say("go");
    for mut migrator in migrators {
        assert!(migrator.end(), "{migrator:?}");
    }
    let applied = stage.runtime.block_on(async {
        let store = pillarbox_sqlite::SqliteStore::open(stage.path("fresh.db").to_str().unwrap()).await.unwrap();
        sqlx::query_scalar::<_, i64>("select count(*) from outbox_schema").fetch_one(store.pool()).await.unwrap()
    });
    assert_eq!(applied, VERSION);
}

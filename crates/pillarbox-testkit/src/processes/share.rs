//! Processes that come together on one database without a fault.

use serde_json::json;

use super::{Application as _, Process, Site, Stage};

/// P9: `single_node` started three times by mistake, each with its own writes.
pub fn three_single_nodes_on_one_database_deliver_each_event_once_and_in_order<S: Site>() {
    let stage = Stage::<S>::new();
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

/// S3: eight processes find a database without tables.
pub fn eight_processes_migrate_one_database_once<S: Site>() {
    let stage = Stage::<S>::bare();
    let migrators = (0..8).map(|n| stage.start(&format!("m{n}"), json!({ "role": "migrator" })));
    let migrators: Vec<_> = migrators.collect();
    stage.until("all eight", |ledger| (ledger.of("ready").count() == 8).then_some(()));
    stage.say("go");
    for mut migrator in migrators {
        assert!(migrator.end(), "{migrator:?}");
    }
    assert_eq!(stage.number("select count(*) from outbox_schema"), S::App::VERSION);
}

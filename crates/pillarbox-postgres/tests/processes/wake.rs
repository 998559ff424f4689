//! P8: `NOTIFY`, and what is left without it.

use pillarbox_testkit::{
    processes::{
        Site, Stage,
        wake::{POLL, sleepy_node, write_and_time},
    },
    servers::{self, Database},
};
use serde_json::json;

use crate::shop::{Shared, Shop};

const LISTENING: &str = "select count(*) from pg_stat_activity
    where datname = current_database() and query ilike 'listen %'";

#[test]
fn a_node_whose_listening_connection_was_ended_listens_again() {
    let stage = Stage::<Shared>::new();
    let _node = sleepy_node(&stage);
    let listens = || pillarbox_testkit::processes::wait("LISTEN", || (stage.number(LISTENING) == 1).then_some(()));
    listens();
    let before = write_and_time(&stage, "before");
    let end = "select count(pg_terminate_backend(pid)) from pg_stat_activity
        where datname = current_database() and query ilike 'listen %'";
    assert_eq!(stage.number(end), 1);
    pillarbox_testkit::processes::wait("the end", || (stage.number(LISTENING) == 0).then_some(()));
    listens();
    let after = write_and_time(&stage, "after");
    assert!(before[9].max(after[9]) < POLL / 8, "{before:?} {after:?}");
}

/// Behind a pooler in transaction mode.
struct Pooled(Database);

impl Site for Pooled {
    type App = Shop;

    fn fresh() -> Self {
        Self(servers::Shared::PgBouncer.database())
    }

    fn url(&self) -> String {
        format!("{}?pillarbox_pooler=transaction", self.0.url())
    }
}

#[test]
fn behind_a_pooler_a_node_finds_the_events_of_others_by_polling() {
    let stage = Stage::<Pooled>::new();
    let _node = stage.start("node", json!({ "role": "multi", "lease": 30_000, "heartbeat": 5_000, "poll": 200 }));
    stage.until_joined("node");
    let times = write_and_time(&stage, "writer");
    assert!(times[9] < POLL / 8, "{times:?}");
    let (orders, ledger) = stage.until_all_done();
    ledger.assert_delivered_is(&orders);
    ledger.assert_each_once();
}

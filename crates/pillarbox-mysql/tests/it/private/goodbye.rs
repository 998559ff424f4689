//! Connections that are closed in good order: others are errors in the server's log.

use std::time::{Duration, Instant};

use pillarbox_core::{
    Outbox as Engine,
    port::{AdminStore as _, Batch, OwnStore as _, SettleStore as _, TransactStore as _, UpkeepStore as _},
};
use pillarbox_mysql::MySqlStore;
use pillarbox_testkit::{
    Probe,
    servers::{
        Database, Shared,
        login::{Login, MYSQL_ADMIN, USER},
        mysql::Options,
    },
};

use super::Own;
use crate::support::{MINUTE, event, join, on_each_server};

on_each_server!(a_node_that_works_rests_and_stops_leaves_no_complaint_in_the_servers_log);

/// How many connections were lost in the server's eyes.
fn aborted(server: &Own) -> u64 {
    let told = server.admin_client("", "show global status like 'Aborted_clients'").unwrap();
    told.split_whitespace().last().unwrap().parse().unwrap()
}

fn sessions(server: &Own, database: &Database, login: Login) -> u64 {
    let (db, user) = (database.name(), login.name);
    let count = format!("select count(*) from information_schema.processlist where db = '{db}' and user = '{user}'");
    server.admin_client("", &count).unwrap().trim().parse().unwrap()
}

async fn until(mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + MINUTE;
    while !is_so() {
        assert!(Instant::now() < end, "waited for a minute");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn a_node_that_works_rests_and_stops_leaves_no_complaint_in_the_servers_log(like: Shared) {
    let server = Own::start(like, Options::default());
    let database = server.database();
    let before = aborted(&server);
    {
        // By name, to be told apart. As transactional handlers do.
        let other = MySqlStore::open(database.admin_url()).await.unwrap();
        other.migrate().await.unwrap();
        let lease = join(&other, "other", MINUTE).await;
        let mut work = other.begin_work().await.unwrap();
        other.settle_in(&mut work, &lease, &Batch::default()).await.unwrap();
        other.commit(work).await.unwrap();
        other.leave(&lease, None).await.unwrap();

        let probe = Probe::new();
        let store = MySqlStore::open(database.url()).await.unwrap();
        let engine = Engine::multi_node(store.clone()).route("Placed", probe.handler()).start().await.unwrap();
        for _ in 0..20 {
            let mut tx = engine.begin().await.unwrap();
            tx.write(event()).await.unwrap();
            tx.commit().await.unwrap();
        }
        probe.wait_for(20).await;
        store.stats().await.unwrap();
        // Either those that rest are closed in good order, or the server ends them.
        until(|| sessions(&server, &database, MYSQL_ADMIN) == 0).await;
        assert_eq!(aborted(&server), before, "ended by the server");
        engine.shutdown().await;
    }
    until(|| sessions(&server, &database, USER) == 0).await;
    assert_eq!(aborted(&server), before, "not told goodbye");
}

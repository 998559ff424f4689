//! Users with the rights of the page of the databases, and no others.

use pillarbox_core::Outbox as Engine;
use pillarbox_core::domain::Event;
use pillarbox_core::port::{AdminStore as _, PurgeRequest, PurgeScope, StoreErrorKind, UpkeepStore as _};
use pillarbox_mysql::MySqlStore;
use pillarbox_testkit::{
    Probe,
    servers::{Database, Shared, login::Login},
};

use crate::support::{MINUTE, on_each_server};

const PAGE: &str = include_str!("../../../../docs/book/src/databases.md");

on_each_server!(
    users_with_the_rights_of_the_page_migrate_deliver_and_write,
    a_node_that_may_make_nothing_starts_on_tables_of_an_administrator,
);

/// Users of this test, gone with it.
struct Users<'a> {
    database: &'a Database,
    /// The statements of the page, in its order.
    grants: Vec<String>,
}

impl<'a> Users<'a> {
    fn new(database: &'a Database) -> Self {
        let (_, section) = PAGE.split_once("## MySQL and MariaDB: privileges").unwrap();
        let blocks = section.split("```sql\n").skip(1).map(|block| block.split_once("```").unwrap().0);
        let name = database.name();
        let here = |block: &str| {
            let block = block.replace("'@'%'", "'@'127.0.0.1'").replace("shop_", &format!("{name}_"));
            block.replace("shop.", &format!("{name}."))
        };
        let users = Self { database, grants: blocks.map(here).collect() };
        for who in ["admin", "node", "writer"] {
            let user = users.login(who);
            let make = format!("create user '{}'@'127.0.0.1' identified by '{}'", user.name, user.password);
            database.run_as_admin(&make).unwrap();
        }
        users
    }

    fn login(&self, who: &str) -> Login {
        Login { name: format!("{}_{who}", self.database.name()).leak(), password: "third-class" }
    }

    async fn open(&self, who: &str) -> MySqlStore {
        MySqlStore::open(self.database.url_for(self.login(who))).await.unwrap()
    }
}

impl Drop for Users<'_> {
    fn drop(&mut self) {
        for who in ["admin", "node", "writer"] {
            let _ = self.database.run_as_admin(&format!("drop user '{}'@'127.0.0.1'", self.login(who).name));
        }
    }
}

async fn users_with_the_rights_of_the_page_migrate_deliver_and_write(server: Shared) {
    let database = server.database();
    let users = Users::new(&database);
    let [admin, node, writer] = &users.grants[..] else { panic!("{:?}", users.grants) };
    database.run_as_admin(admin).unwrap();
    let migrated = users.open("admin").await;
    assert!(migrated.migrate_and_tell().await.unwrap().is_empty());
    assert!(migrated.migrate_and_tell().await.unwrap().is_empty());
    database.run_as_admin(node).unwrap();
    database.run_as_admin(writer).unwrap();

    let store = users.open("node").await;
    let probe = Probe::new();
    let engine = Engine::multi_node(store.clone()).route("Placed", probe.handler()).start().await.unwrap();
    let mut tx = engine.begin().await.unwrap();
    tx.write(Event::builder("Placed").json(&1).key("k").dedup("once", MINUTE)).await.unwrap();
    tx.commit().await.unwrap();
    let writing = users.open("writer").await;
    for sql in [
        "insert into outbox_event (event_type, payload) values ('Placed', '2')",
        "insert into outbox_event (event_type, payload, event_key, `partition`)
            values ('Placed', '3', 'k', outbox_partition_of('k'))",
    ] {
        sqlx::query(sql).execute(writing.pool()).await.unwrap();
    }
    assert!(sqlx::query("select seq from outbox_event").execute(writing.pool()).await.is_err());
    probe.wait_for(3).await;
    engine.shutdown().await;
    assert_eq!(store.stats().await.unwrap().pending(), 0);
    let scope = PurgeScope::Finished { done: MINUTE, dead: None };
    store.purge(PurgeRequest { scope, batch: 10, cursor: None, lease: None }).await.unwrap();
}

/// Neither the tables' text nor the function is its affair, and it can't even see whether the function is there.
async fn a_node_that_may_make_nothing_starts_on_tables_of_an_administrator(server: Shared) {
    let database = server.database();
    let users = Users::new(&database);
    let without = MySqlStore::open(database.url_for(users.login("node"))).await.unwrap_err();
    assert_eq!(without.kind(), StoreErrorKind::Rejected);
    MySqlStore::open(database.url()).await.unwrap().migrate().await.unwrap();
    database.run_as_admin(&users.grants[1]).unwrap();
    // With the function, and without.
    for _ in 0..2 {
        let store = users.open("node").await;
        store.migrate().await.unwrap();
        let probe = Probe::new();
        let engine = Engine::multi_node(store).route("Placed", probe.handler()).start().await.unwrap();
        database.run("insert into outbox_event (event_type, payload) values ('Placed', '2')").unwrap();
        probe.wait_for(1).await;
        engine.shutdown().await;
        database.run("drop function if exists outbox_partition_of").unwrap();
    }
}

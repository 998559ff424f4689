//! What roles may do with the least rights, as the page of the databases grants them.

use std::time::Duration;

use pillarbox_core::Outbox as Engine;
use pillarbox_core::port::{OwnStore as _, StoreErrorKind, TransactStore as _, UpkeepStore as _, WriteStore as _};
use pillarbox_postgres::{Options, PostgresStore};
use pillarbox_testkit::{
    Probe,
    servers::{Database, Shared},
};

use crate::{
    migrate::older,
    support::{MINUTE, event, keyed, new_row, owner},
};

/// A role without any right of its own, gone with this value.
struct Role<'a> {
    database: &'a Database,
    name: String,
}

impl<'a> Role<'a> {
    fn new(database: &'a Database, what: &str) -> Self {
        let name = format!("{}_{what}", database.name());
        let owner = database.run("select current_user").unwrap();
        database.run_as_admin(&format!("create role {name}; grant {name} to {}", owner.trim())).unwrap();
        Self { database, name }
    }

    /// With `ROLE` for its name.
    fn granted(self, grants: &str) -> Self {
        self.database.run(&grants.replace("ROLE", &self.name)).unwrap();
        self
    }

    fn url(&self) -> String {
        format!("{}?options=-c%20role%3D{}", self.database.url(), self.name)
    }

    fn open(&self) -> PostgresStore {
        PostgresStore::open(self.url()).unwrap()
    }
}

impl Drop for Role<'_> {
    fn drop(&mut self) {
        let drop = format!("drop owned by {0}; drop role {0}", self.name);
        if let Err(error) = self.database.run_as_admin(&drop) {
            eprintln!("the role {} was not dropped: {error}", self.name);
        }
    }
}

/// The statements of the page, of which the parts are told by the words above them.
fn of_the_page(part: &str) -> String {
    let page = include_str!("../../../../docs/book/src/databases.md");
    let (_, rest) = page.split_once(&format!("-- {part}")).unwrap();
    let (_, rest) = rest.split_once('\n').unwrap();
    let end = rest.find("\n--").unwrap_or(rest.len()).min(rest.find("```").unwrap());
    rest[..end].replace("shop_node", "ROLE").replace("shop_clerk", "ROLE")
}

#[tokio::test]
async fn a_node_delivers_and_others_write_with_the_rights_that_the_page_grants() {
    for server in [Shared::Postgres, Shared::PostgresNewest] {
        let database = server.database();
        PostgresStore::open(database.url()).unwrap().migrate().await.unwrap();
        let node = Role::new(&database, "node").granted(&of_the_page("a node"));
        let clerk = Role::new(&database, "clerk").granted(&of_the_page("plain SQL"));
        let library = Role::new(&database, "library").granted(&of_the_page("a process that only writes"));

        let probe = Probe::new();
        let engine = Engine::multi_node(node.open()).route("Placed", probe.handler()).start().await.unwrap();
        let plain = format!(
            "set role {};
            insert into outbox_event (event_type, payload) values ('Placed', '1');
            select outbox_publish('Placed', '2', key => 'k')",
            clerk.name
        );
        database.run(&plain).unwrap();
        let writer = Engine::writer_only(library.open()).start().await.unwrap();
        let mut tx = writer.begin().await.unwrap();
        tx.write(event()).await.unwrap();
        tx.write(keyed("k").dedup("once", Duration::from_mins(1))).await.unwrap();
        tx.commit().await.unwrap();
        probe.wait_for(4).await;
        writer.shutdown().await;
        engine.shutdown().await;
        assert_eq!(database.run("select count(*) from outbox_event where status = 'DONE'").unwrap().trim(), "4");

        let peep = format!("set role {}; select payload from outbox_event", clerk.name);
        assert!(database.run(&peep).is_err());
    }
}

/// Newer servers answer null in place of the last number; older ones refuse.
#[tokio::test]
async fn a_node_without_a_right_on_the_sequence_is_told_what_to_grant() {
    for server in [Shared::Postgres, Shared::PostgresNewest] {
        for (options, name) in [
            (Options::new(), "public.outbox_event_seq_seq"),
            (Options::new().schema("my-shop"), "\"my-shop\".outbox_event_seq_seq"),
        ] {
            let database = server.database();
            let owner = options.clone().open(database.url()).unwrap();
            owner.migrate().await.unwrap();
            let schema = owner.schema().unwrap_or("public");
            let node = Role::new(&database, "node").granted(&format!(
                "grant usage on schema \"{schema}\" to ROLE;
                grant select, insert, update, delete on all tables in schema \"{schema}\" to ROLE"
            ));
            let store = options.open(node.url()).unwrap();
            let grant = format!("grant usage on sequence {name} to {}", node.name);
            for error in [store.check().await.unwrap_err(), store.migrate().await.unwrap_err()] {
                assert_eq!(error.kind(), StoreErrorKind::Rejected);
                assert!(error.to_string().contains(&format!("`{grant}`")), "{error}");
            }
            database.run(&grant).unwrap();
            store.check().await.unwrap();
            store.migrate().await.unwrap();
        }
    }
}

/// As one that was granted its rights before that table was there.
#[tokio::test]
async fn a_node_without_rights_on_the_life_of_the_server_is_told_what_to_grant() {
    for right in ["insert", "select"] {
        let database = Shared::Postgres.database();
        PostgresStore::open(database.url()).unwrap().migrate().await.unwrap();
        let node = Role::new(&database, "node").granted(&of_the_page("a node"));
        database.run(&format!("revoke {right} on outbox_life from {}", node.name)).unwrap();
        let store = node.open();
        let grant = format!("grant select, insert on outbox_life to {}", node.name);
        for error in [store.check().await.unwrap_err(), store.migrate().await.unwrap_err()] {
            assert_eq!(error.kind(), StoreErrorKind::Rejected);
            assert!(error.to_string().contains(&format!("`{grant}`")), "{error}");
        }
        database.run(&grant).unwrap();
        store.check().await.unwrap();
        owner(&store, "a").await;
    }
    let database = Shared::Postgres.database();
    PostgresStore::open(database.url()).unwrap().migrate().await.unwrap();
    let library = Role::new(&database, "library").granted(&of_the_page("a process that only writes"));
    library.open().check().await.unwrap();
}

/// Its rights are on the one table, and what it does makes void what is in the others.
#[tokio::test]
async fn a_role_that_may_only_empty_the_table_of_events_ends_the_leases() {
    let database = Shared::Postgres.database();
    let store = PostgresStore::open(database.url()).unwrap();
    store.migrate().await.unwrap();
    let (lease, _) = owner(&store, "a").await;
    let sweeper = Role::new(&database, "sweeper").granted("grant truncate on outbox_event to ROLE");
    database.run(&format!("set role {}; set search_path = ''; truncate public.outbox_event", sweeper.name)).unwrap();
    assert_eq!(store.renew(&lease, MINUTE).await.unwrap_err().kind(), StoreErrorKind::Rewound);
    let borrowed = format!(
        "set role {}; create temp table own (a int);
        create trigger own after truncate on own execute function public.outbox_emptied(); truncate own",
        sweeper.name
    );
    assert!(database.run(&borrowed).is_err(), "a trigger of another's table");
}

#[tokio::test]
async fn tables_of_another_role_are_left_to_it() {
    let database = Shared::Postgres.database();
    older(&database);
    let maker = Role::new(&database, "maker").granted(
        "grant create, usage on schema public to ROLE; grant select, insert, update, delete on all tables in schema public to ROLE",
    );
    let error = maker.open().migrate().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Rejected);
    assert!(error.to_string().contains("belong to another role"), "{error}");
}

#[tokio::test]
async fn a_role_that_may_only_make_tables_in_its_schema_migrates() {
    let database = Shared::Postgres.database();
    database.run("create schema shop").unwrap();
    let options = || Options::new().schema("shop");
    let maker = Role::new(&database, "maker").granted("grant usage on schema shop to ROLE");
    let store = options().open(maker.url()).unwrap();
    let error = store.migrate().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Rejected);
    assert!(error.to_string().contains("CREATE on the schema"), "{error}");

    let maker = maker.granted("grant create on schema shop to ROLE");
    store.migrate().await.unwrap();
    store.check().await.unwrap();
    let text = options().prefix("more_").migration_sql().unwrap();
    database.run(&format!("set role {}; {text} {text}", maker.name)).unwrap();
    options().prefix("more_").open(maker.url()).unwrap().check().await.unwrap();
    let mut tx = store.begin().await.unwrap();
    store.insert(&mut tx, &[new_row(event())]).await.unwrap();
    store.commit(tx).await.unwrap();
}

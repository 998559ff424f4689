//! What the migrations find: nothing, older tables, tables of others, and search paths.

use std::time::Duration;

use pillarbox_core::port::InboxUpkeep as _;
use pillarbox_core::port::{
    OwnStore as _, Position, StoreErrorKind, TransactStore as _, UpkeepStore as _, WriteStore as _,
};
use pillarbox_postgres::{Options, PostgresInbox, PostgresStore, VERSION};
use pillarbox_testkit::{
    servers::{Database, Shared},
    told,
};
use sqlx::{Connection as _, PgConnection};

use crate::support::{MINUTE, event, keyed, new_row, owner, page, run_in};

/// The tables of version 1, as the program of then made them, with a node in them and an event that waits.
pub(crate) fn older(database: &Database) {
    let text = include_str!("../../migrations/0001_tables.sql");
    let text = text.replace("{prefix_of}", "outbox_").replace("{prefix}", "outbox_");
    let text = text.replace('{', "outbox_").replace('}', "");
    let older = format!(
        "begin; {text};
        create table outbox_schema (version bigint primary key, applied_at timestamptz not null default now());
        insert into outbox_schema (version) values (1);
        insert into outbox_instance (id, until, routes, in_flight)
            values ('old', now() + interval '1 hour', '[]', 1);
        insert into outbox_event (event_type, payload) values ('Placed', '7');
        commit"
    );
    database.run(&older).unwrap();
}

/// With a node of the older program among them, and an event that waits.
async fn works_on_with_what_was_there(database: &Database) {
    let store = PostgresStore::open(database.url()).unwrap();
    store.check().await.unwrap();
    let (lease, _) = owner(&store, "new").await;
    assert!(store.renew(&lease, MINUTE).await.unwrap().is_some());
    assert_eq!(page(&store, &Position::START, 10).await.rows.len(), 1);
    assert_eq!(database.run("select count(*) from outbox_instance").unwrap().trim(), "2");
}

#[tokio::test]
async fn tables_of_an_older_version_are_brought_up_to_date_and_keep_what_is_in_them() {
    let database = Shared::Postgres.database();
    older(&database);
    let store = PostgresStore::open(database.url()).unwrap();
    let error = store.check().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Schema);
    assert!(error.to_string().contains("of version 1") && error.to_string().contains("run the migrations"), "{error}");
    store.migrate().await.unwrap();
    works_on_with_what_was_there(&database).await;
}

#[tokio::test]
async fn the_text_of_the_migrations_brings_older_tables_up_to_date_with_psql() {
    for server in [Shared::Postgres, Shared::PostgresNewest] {
        let database = server.database();
        older(&database);
        database.run(&Options::new().migration_sql().unwrap()).unwrap();
        works_on_with_what_was_there(&database).await;
        let versions = database.run("select string_agg(version::text, ' ' order by version) from outbox_schema");
        let expected: Vec<_> = (1..=VERSION).map(|version| version.to_string()).collect();
        assert_eq!(versions.unwrap().trim(), expected.join(" "));
    }
}

#[tokio::test]
async fn the_text_of_the_migrations_runs_as_often_as_one_likes_with_a_transaction_around_it_or_without() {
    let long = "x".repeat(63);
    for options in [
        Options::new(),
        Options::new().schema("sales").prefix("mine_"),
        Options::new().schema("my-shop"),
        Options::new().schema("a$$b"),
        Options::new().schema("$pillarbox$body$".replacen('$', "a$", 1)),
        Options::new().schema(long).prefix("y".repeat(32)),
    ] {
        let database = Shared::Postgres.database();
        let texts = [options.migration_sql().unwrap(), options.inbox_migration_sql("in_").unwrap()].concat();
        database.run(&format!("begin; {texts} rollback")).unwrap();
        database.run(&format!("begin; {texts} {texts} commit")).unwrap();
        let store = options.clone().open(database.url()).unwrap();
        store.check().await.unwrap();
        let mut tx = store.begin().await.unwrap();
        store.insert(&mut tx, &[new_row(event()), new_row(keyed("k"))]).await.unwrap();
        store.commit(tx).await.unwrap();
        database.run(&texts).unwrap();
        store.migrate().await.unwrap();
        PostgresInbox::with_prefix(&store, "in_").unwrap().migrate().await.unwrap();
        assert_eq!(page(&store, &Position::START, 9).await.rows.len(), 2);
    }
}

/// Eight at once, as when a tool runs it beside the nodes that start.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_text_and_the_program_migrate_at_once() {
    let database = Shared::Postgres.database();
    let text = Options::new().schema("fresh").migration_sql().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| database.run(&text).unwrap());
            let url = database.url();
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let store = Options::new().schema("fresh").open(url).unwrap();
                    store.migrate().await.unwrap();
                });
            });
        }
    });
    assert_eq!(database.run("select count(*) from fresh.outbox_schema").unwrap().trim(), VERSION.to_string());
}

/// Runs each on a thread of its own, all at once.
fn at_once(migrations: Vec<Box<dyn Future<Output = ()> + Send>>) {
    let ready = std::sync::Barrier::new(migrations.len());
    std::thread::scope(|scope| {
        for migration in migrations {
            let ready = &ready;
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                ready.wait();
                runtime.block_on(Box::into_pin(migration));
            });
        }
    });
}

/// The same tables, which some name and others find; and tables side by side in a schema that each of them would make.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn processes_with_different_options_migrate_at_once() {
    for _ in 0..4 {
        let database = Shared::Postgres.database();
        let outbox = |options: Options| -> Box<dyn Future<Output = ()> + Send> {
            let url = database.url();
            Box::new(async move { options.open(url).unwrap().migrate().await.unwrap() })
        };
        at_once(
            (0..8).map(|n| outbox(if n % 2 == 0 { Options::new() } else { Options::new().schema("public") })).collect(),
        );
        assert_eq!(database.run("select count(*) from outbox_schema").unwrap().trim(), VERSION.to_string());
        let inbox = || -> Box<dyn Future<Output = ()> + Send> {
            let url = database.url();
            Box::new(async move {
                let store = Options::new().schema("fresh").open(url).unwrap();
                PostgresInbox::new(&store).migrate().await.unwrap();
            })
        };
        at_once((0..8).map(|n| if n % 2 == 0 { outbox(Options::new().schema("fresh")) } else { inbox() }).collect());
        assert_eq!(database.run("select count(*) from fresh.inbox_schema").unwrap().trim(), "1");
    }
}

/// As a backup does. Whoever waits for it keeps the nodes waiting that live.
#[tokio::test]
async fn an_upgrade_does_not_wait_long_for_whoever_reads_the_tables() {
    let database = Shared::Postgres.database();
    older(&database);
    let mut reading = PgConnection::connect(&database.url()).await.unwrap();
    run_in(&mut reading, "begin; select * from outbox_instance").await;
    let store = PostgresStore::open(database.url()).unwrap();
    let migrated = tokio::time::timeout(Duration::from_secs(20), store.migrate()).await.expect("it waits for ever");
    assert_eq!(migrated.unwrap_err().kind(), StoreErrorKind::Conflict);
    run_in(&mut reading, "commit").await;
    store.migrate().await.unwrap();
    works_on_with_what_was_there(&database).await;
    let text = format!("set lock_timeout = '7s'; {} show lock_timeout", Options::new().migration_sql().unwrap());
    assert_eq!(database.run(&text).unwrap().trim(), "7s", "the session's own is set again");
}

/// Debezium's table is called `outbox_event`.
#[tokio::test]
async fn what_pillarbox_did_not_make_is_named_and_left_alone() {
    for (foreign, name) in [
        ("create table outbox_event (id uuid primary key, aggregatetype text)", "table, view or index outbox_event"),
        ("create view outbox_hold as select 1 as one", "table, view or index outbox_hold"),
        ("create type outbox_event as (a int)", "table, view or index outbox_event"),
        ("create table other (a int); create index outbox_event_due on other (a)", "outbox_event_due"),
        ("create function outbox_new_id() returns text language sql as 'select null'", "function outbox_new_id"),
        ("create table outbox_schema (name text)", "table outbox_schema"),
        ("create table outbox_schema (version boolean)", "table outbox_schema"),
        ("create table outbox_schema (version text); insert into outbox_schema values ('V1')", "table outbox_schema"),
    ] {
        let database = Shared::Postgres.database();
        database.run(foreign).unwrap();
        let before = database.run("select count(*) from pg_class").unwrap();
        let store = PostgresStore::open(database.url()).unwrap();
        assert!(store.check().await.is_err(), "{foreign}");
        let error = store.migrate().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Rejected, "{foreign}");
        let said = error.to_string();
        assert!(said.contains(name) && said.contains("Pillarbox did not make"), "{foreign}: {said}");
        assert!(said.contains("choose another prefix"), "{foreign}: {said}");
        assert_eq!(database.run("select count(*) from pg_class").unwrap(), before, "{foreign}");
        for options in [Options::new().prefix("mine_"), Options::new().schema("other")] {
            let store = options.open(database.url()).unwrap();
            store.migrate().await.unwrap();
            store.check().await.unwrap();
        }
    }
    let database = Shared::Postgres.database();
    database.run("create table inbox_guard (a int)").unwrap();
    let store = PostgresStore::open(database.url()).unwrap();
    let error = PostgresInbox::new(&store).migrate().await.unwrap_err();
    assert!(error.to_string().contains("inbox_guard is there that Pillarbox did not make"), "{error}");
}

/// A tenant's search path with the tables of all behind it: a second outbox there would leave what waits in the first.
#[tokio::test]
async fn tables_behind_the_first_schema_of_the_search_path_are_used_and_brought_up_to_date_where_they_are() {
    let database = Shared::Postgres.database();
    older(&database);
    database.run("create schema tenant_a").unwrap();
    let url = format!("{}?options[search_path]=tenant_a,public", database.url());
    let store = PostgresStore::open(&url).unwrap();
    store.migrate().await.unwrap();
    works_on_with_what_was_there(&database).await;
    let there = "select count(*) from pg_class where relnamespace = 'tenant_a'::regnamespace";
    assert_eq!(database.run(there).unwrap().trim(), "0");

    let log = told::Log::new();
    let store = PostgresStore::open(&url).unwrap();
    store.migrate().await.unwrap();
    let said = log.text();
    assert!(said.contains("tenant_a") && said.contains("--schema"), "{said}");
    let own = Options::new().schema("tenant_a").open(&url).unwrap();
    own.migrate().await.unwrap();
    assert!(page(&own, &Position::START, 10).await.rows.is_empty());
}

#[tokio::test]
async fn new_tables_are_made_in_the_first_schema_of_the_search_path_that_is_there() {
    let database = Shared::Postgres.database();
    database.run("create schema tenant_a").unwrap();
    let url = format!("{}?options[search_path]=nowhere,tenant_a,public", database.url());
    let store = PostgresStore::open(&url).unwrap();
    store.migrate().await.unwrap();
    store.check().await.unwrap();
    assert_eq!(database.run("select count(*) from tenant_a.outbox_partition").unwrap().trim(), "256");

    let store = PostgresStore::open(format!("{}?options[search_path]=nowhere", database.url())).unwrap();
    let error = store.migrate().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Rejected);
    assert!(error.to_string().contains("no schema of the search path"), "{error}");
}

/// W8: with the tables found by the path of who migrated, and by a schema that was named.
#[tokio::test]
async fn events_are_published_under_any_search_path() {
    for (options, schema) in [(Options::new(), "public"), (Options::new().schema("my-shop"), "my-shop")] {
        let database = Shared::Postgres.database();
        let store = options.open(database.url()).unwrap();
        store.migrate().await.unwrap();
        let publish = format!(
            "create schema elsewhere; set search_path = elsewhere;
            select \"{schema}\".outbox_publish('Placed', '1', key => 'k');
            insert into \"{schema}\".outbox_event (event_type, payload, event_key) values ('Placed', '2', 'k');
            set search_path = '';
            select \"{schema}\".outbox_publish('Placed', '3', key => 'k')"
        );
        database.run(&publish).unwrap();
        assert_eq!(page(&store, &Position::START, 9).await.rows.len(), 3);
    }
}

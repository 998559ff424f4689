//! Migrations, names, and rows that people insert by hand.

use std::time::Duration;

use pillarbox_core::port::{Row, StoreErrorKind, TransactStore as _, UpkeepStore as _, WriteStore as _};
use pillarbox_sqlite::{Durability, Options, SqliteStore, VERSION, migrations};
use sqlx::{
    SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};

use crate::support::{Outbox, event, new_row, open};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_at_once_migrate_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("outbox.db");
    let starts = (0..8).map(|_| {
        let path = path.to_str().unwrap().to_owned();
        tokio::spawn(async move {
            let store = SqliteStore::open(path).await?;
            store.migrate().await?;
            store.check().await
        })
    });
    for start in starts.collect::<Vec<_>>() {
        start.await.unwrap().unwrap();
    }
    let store = open(&folder, Options::new()).await;
    let applied: i64 = sqlx::query_scalar("select count(*) from outbox_schema").fetch_one(store.pool()).await.unwrap();
    assert_eq!(applied, VERSION);
}

#[tokio::test]
async fn tables_of_a_newer_version_are_refused() {
    let outbox = Outbox::new().await;
    outbox.run("insert into outbox_schema (version) values (1000)").await;
    for result in [outbox.migrate().await, outbox.check().await] {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Schema);
        assert!(error.to_string().contains("update the program"), "{error}");
    }
}

#[tokio::test]
async fn missing_tables_ask_for_the_migrations() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder, Options::new()).await;
    let mut tx = store.begin().await.unwrap();
    let insert = store.insert(&mut tx, &[new_row(event())]).await.unwrap_err();
    drop(tx);
    for error in [store.check().await.unwrap_err(), insert] {
        assert_eq!(error.kind(), StoreErrorKind::Schema, "{error:?}");
        assert!(error.to_string().contains("migrations"), "{error}");
    }
}

#[tokio::test]
async fn two_prefixes_share_a_file() {
    let outbox = Outbox::new().await;
    let other = open(&outbox.folder, Options::new().prefix("other_")).await;
    other.migrate().await.unwrap();
    outbox.write([event()]).await;
    assert_eq!(outbox.number("select count(*) from outbox_event").await, 1);
    assert_eq!(outbox.number("select count(*) from other_event").await, 0);
}

#[tokio::test]
async fn the_text_of_the_migrations_makes_the_tables() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder, Options::new().prefix("mine_")).await;
    for (_, sql) in migrations("mine_").unwrap() {
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(store.pool()).await.unwrap();
    }
    store.check().await.unwrap();
    store.migrate().await.unwrap();
    assert!(migrations("x; drop table y").is_err());
}

#[tokio::test]
async fn a_hostile_prefix_is_refused_before_anything_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("outbox.db");
    let refused = Options::new().prefix("x; drop table users; --").open(path.to_str().unwrap()).await;
    assert_eq!(refused.unwrap_err().kind(), StoreErrorKind::Rejected);
    assert!(!path.exists());
}

#[tokio::test]
async fn memory_is_refused() {
    for url in ["sqlite::memory:", ":memory:", "sqlite:x.db?mode=memory"] {
        let error = SqliteStore::open(url).await.unwrap_err();
        assert!(error.to_string().contains("open a file"), "{error}");
    }
}

#[tokio::test]
async fn a_pool_with_another_journal_mode_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteConnectOptions::new()
        .filename(folder.path().join("outbox.db"))
        .create_if_missing(true)
        .busy_timeout(Duration::from_millis(50));
    let pool = SqlitePoolOptions::new().connect_lazy_with(options.clone());
    SqliteStore::from_pool(pool).unwrap().migrate().await.unwrap();

    let memory =
        SqlitePoolOptions::new().max_connections(1).connect_lazy_with(SqliteConnectOptions::new().in_memory(true));
    assert!(SqliteStore::from_pool(memory).unwrap().migrate().await.is_err());

    let folder = tempfile::tempdir().unwrap();
    let delete = options.filename(folder.path().join("other.db")).journal_mode(SqliteJournalMode::Delete);
    let pool = SqlitePoolOptions::new().max_connections(1).connect_lazy_with(delete);
    let error = SqliteStore::from_pool(pool).unwrap().migrate().await.unwrap_err();
    assert!(!error.to_string().is_empty());
}

#[tokio::test]
async fn a_plain_insert_by_hand_is_an_event() {
    let outbox = Outbox::new().await;
    outbox
        .run(
            "insert into outbox_event (event_id, event_type, payload)
             values ('01ARZ3NDEKTSV4RRFFQ69G5FAV', 'Placed', '{\"a\": 1}')",
        )
        .await;
    let page = outbox.page_after(0).await;
    let [Row::Event(record)] = &page.rows[..] else { panic!("{page:?}") };
    assert_eq!(record.event.aggregate_type().as_str(), "__GLOBAL__");
    assert_eq!(record.event.payload().as_text(), Some("{\"a\": 1}"));
    assert_eq!(record.event.payload().content_type(), "application/json");
    assert_eq!((record.attempts, record.starts), (0, 0));
    assert!(record.created_at <= page.now && page.now.since(record.created_at) < Duration::from_secs(5));
    assert_eq!(record.event.occurred_at(), record.created_at);
}

#[tokio::test]
async fn partitions_and_statuses_that_do_not_exist_are_refused_by_the_table() {
    let outbox = Outbox::new().await;
    for sql in [
        "insert into outbox_event (event_id, event_type, payload, partition) values ('x', 'y', 'z', 256)",
        "insert into outbox_event (event_id, event_type, payload, partition) values ('x', 'y', 'z', 'p')",
        "insert into outbox_event (event_id, event_type, payload, status) values ('x', 'y', 'z', 'new')",
    ] {
        assert!(sqlx::query(sql).execute(outbox.pool()).await.is_err(), "{sql}");
    }
}

#[tokio::test]
async fn a_pool_that_does_not_wait_for_the_disk_is_refused_unless_that_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteConnectOptions::new().filename(folder.path().join("lazy.db")).create_if_missing(true);
    let pool = SqlitePool::connect_with(options.synchronous(SqliteSynchronous::Normal)).await.unwrap();
    let refused = SqliteStore::from_pool(pool.clone()).unwrap().migrate().await.unwrap_err();
    assert!(refused.to_string().contains("Durability::Normal"), "{refused}");
    let accepted = Options::new().durability(Durability::Normal).from_pool(pool).unwrap();
    accepted.migrate().await.unwrap();
}

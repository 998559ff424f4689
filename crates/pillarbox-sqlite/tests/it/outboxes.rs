//! Several outboxes in one file and in one process, and a file without room.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use pillarbox_core::{Delivery, Event, Outbox, port::StoreErrorKind};
use pillarbox_sqlite::{Options, SqliteStore};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};

type Seen = Arc<Mutex<Vec<String>>>;

/// A running outbox that notes the texts it is given.
async fn start(store: SqliteStore) -> (Outbox<SqliteStore>, Seen) {
    let seen = Seen::default();
    let notes = seen.clone();
    let handler = move |delivery: Delivery| {
        let text: String = delivery.event().payload().to().unwrap();
        notes.lock().unwrap().push(text);
        async {}
    };
    (Outbox::single_node(store).route("a", handler).start().await.unwrap(), seen)
}

async fn write(outbox: &Outbox<SqliteStore>, text: &str) {
    for n in 0..10 {
        let mut tx = outbox.begin().await.unwrap();
        let event = Event::builder("a").json(text);
        tx.write(if n % 2 == 0 { event.key("k") } else { event }).await.unwrap();
        tx.commit().await.unwrap();
    }
}

async fn until(what: &str, mut check: impl FnMut() -> bool) {
    let wait = async {
        while !check() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(30), wait).await.is_ok(), "waited for {what}");
}

/// Each outbox delivers its own events, each once, and no others.
async fn assert_apart(stores: Vec<(String, SqliteStore)>) {
    let mut outboxes = Vec::new();
    for (name, store) in stores {
        let (outbox, seen) = start(store).await;
        outboxes.push((name, outbox, seen));
    }
    for (name, outbox, _) in &outboxes {
        write(outbox, name).await;
    }
    for (name, outbox, seen) in &outboxes {
        until(name, || seen.lock().unwrap().len() >= 10).await;
        outbox.shutdown().await;
    }
    for (name, _, seen) in &outboxes {
        assert_eq!(*seen.lock().unwrap(), vec![name.clone(); 10]);
    }
}

/// S7, S4: names that are words of SQL, that begin with another's, and as long as can be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outboxes_of_one_file_do_not_mix_whatever_they_are_called() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("outbox.db");
    let mut stores = Vec::new();
    for prefix in ["outbox_", "outbox_event_", "_", "select", "Order_", &"x".repeat(32)] {
        let store = Options::new().prefix(prefix).open(path.to_str().unwrap()).await.unwrap();
        stores.push((prefix.to_owned(), store));
    }
    assert_apart(stores).await;
}

/// S7.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outboxes_of_two_files_do_not_mix() {
    let folder = tempfile::tempdir().unwrap();
    let mut stores = Vec::new();
    for name in ["one", "two"] {
        let path = folder.path().join(name);
        stores.push((name.to_owned(), SqliteStore::open(path.to_str().unwrap()).await.unwrap()));
    }
    assert_apart(stores).await;
}

/// S4: what could end a statement is refused, and the file's other tables are as they were.
#[tokio::test]
async fn hostile_prefixes_leave_a_file_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shop.db");
    let path = path.to_str().unwrap();
    let store = SqliteStore::open(path).await.unwrap();
    sqlx::query("create table users (id integer)").execute(store.pool()).await.unwrap();
    let long = "x".repeat(33);
    for prefix in [
        "x; drop table users; --",
        "users\" --",
        "users'",
        "`users`",
        "main.users",
        "sqlite_",
        "SQLite_x",
        "",
        "ü",
        "a\0b",
        &long,
    ] {
        let refused = Options::new().prefix(prefix).open(path).await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Rejected, "{prefix:?}");
        let pool = store.pool().clone();
        assert!(Options::new().prefix(prefix).from_pool(pool).is_err(), "{prefix:?}");
        assert!(pillarbox_sqlite::migrations(prefix).is_err(), "{prefix:?}");
    }
    let tables: Vec<String> =
        sqlx::query_scalar("select name from sqlite_schema").fetch_all(store.pool()).await.unwrap();
    assert_eq!(tables, ["users"]);
}

/// A database at its size limit: every connection has the limit, the outbox's own as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_database_refuses_writes_in_clear_words_and_goes_on_when_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("outbox.db");
    let whole = SqliteStore::open(path.to_str().unwrap()).await.unwrap();
    sqlx::query("create table filler as select zeroblob(1000000) as bytes").execute(whole.pool()).await.unwrap();
    let limited = SqliteConnectOptions::new().filename(&path).pragma("max_page_count", "400");
    let pool = SqlitePoolOptions::new().max_connections(2).connect_lazy_with(limited);
    let (outbox, seen) = start(SqliteStore::from_pool(pool).unwrap()).await;

    let mut committed = Vec::new();
    let mut refusals = 0;
    for n in 0..1_000 {
        let text = format!("{n}{}", "x".repeat(10_000));
        let result = async {
            let mut tx = outbox.begin().await?;
            tx.write(Event::builder("a").json(&text)).await?;
            tx.commit().await
        };
        match result.await {
            Ok(()) => committed.push(text),
            Err(error) => {
                let cause = std::error::Error::source(&error).unwrap().to_string();
                assert!(cause.contains("make room"), "{cause}");
                refusals += 1;
                if refusals == 3 {
                    sqlx::query("delete from filler").execute(whole.pool()).await.unwrap();
                }
            }
        }
        if refusals >= 3 && n % 5 == 4 {
            break;
        }
    }
    assert!(committed.len() > 20 && refusals >= 3, "{} committed, {refusals} refused", committed.len());
    for n in 0..20 {
        let text = format!("after {n}");
        let mut tx = outbox.begin().await.unwrap();
        tx.write(Event::builder("a").json(&text)).await.unwrap();
        tx.commit().await.unwrap();
        committed.push(text);
    }
    until("all that was committed", || seen.lock().unwrap().len() >= committed.len()).await;
    outbox.shutdown().await;
    let mut seen = std::mem::take(&mut *seen.lock().unwrap());
    seen.sort();
    committed.sort();
    assert_eq!(seen, committed);
}

/// A transaction of the application's own that stays open past the lease: no lease can be renewed meanwhile, so
/// the node gives everything up; it joins again after the commit, and nothing is lost or delivered twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_open_past_the_lease_costs_the_lease_and_no_event() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("outbox.db");
    let seen = Seen::default();
    let notes = seen.clone();
    let handler = move |delivery: Delivery| {
        notes.lock().unwrap().push(delivery.event().payload().to().unwrap());
        async {}
    };
    let store = SqliteStore::open(path.to_str().unwrap()).await.unwrap();
    let outbox = Outbox::single_node(store).lease(Duration::from_millis(600)).route("a", handler);
    let outbox = outbox.start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.write(Event::builder("a").json("hot")).await.unwrap();
    tx.write(Event::builder("a").key("k").json("keyed")).await.unwrap();
    until("the lease's end", || outbox.partitions_owned() == 0).await;
    tx.commit().await.unwrap();
    until("both", || seen.lock().unwrap().len() >= 2).await;
    until("its return", || outbox.partitions_owned() == 256).await;
    write(&outbox, "after").await;
    until("the rest", || seen.lock().unwrap().len() >= 12).await;
    outbox.shutdown().await;
    let mut seen = std::mem::take(&mut *seen.lock().unwrap());
    seen.sort();
    let mut wanted = vec!["after"; 10];
    wanted.extend(["hot", "keyed"]);
    assert_eq!(seen, wanted);
}

#[tokio::test]
async fn a_read_only_database_says_so_and_keeps_its_events() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("outbox.db");
    let path = path.to_str().unwrap();
    let writer = Outbox::writer_only(SqliteStore::open(path).await.unwrap()).start().await.unwrap();
    write(&writer, "kept").await;

    let read_only = SqliteStore::open(format!("sqlite:{path}?mode=ro")).await.unwrap();
    let refused = Outbox::single_node(read_only).route("a", |_: Delivery| async {}).start().await.unwrap_err();
    let words = format!("{refused:?}");
    assert!(words.contains("Rejected") && words.contains("make its file and its folder writable"), "{words}");

    let (outbox, seen) = start(SqliteStore::open(path).await.unwrap()).await;
    until("what was kept", || seen.lock().unwrap().len() >= 10).await;
    outbox.shutdown().await;
    assert_eq!(*seen.lock().unwrap(), vec!["kept"; 10]);
}

//! What the server's errors become, and what a lost connection leaves behind.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use pillarbox_core::port::{
    AdminStore as _, Batch, Candidate, Change, NewKey, OwnStore as _, Position, ReadStore as _, Scan, Settled,
    StoreError, StoreErrorKind, TransactStore as _, UpkeepStore as _, WriteStore as _,
};
use pillarbox_core::{Delivery, Event, Outbox as Engine, domain::PartitionSet, new_id};
use pillarbox_mysql::{MySqlStore, Options};
use pillarbox_testkit::{
    servers::{Proxy, Shared, login},
    silence, told,
};
use sqlx::{Executor as _, MySqlConnection, MySqlPool, Row as _};
use tokio::task::JoinHandle;

use crate::support::{MINUTE, Outbox, event, join, new_row, on_each_server, outcome, owner, settle};

on_each_server!(
    killed_connections_are_unavailable_and_replaced,
    a_transaction_begins_though_the_pooled_connections_were_killed,
    a_connection_lost_in_the_commit_leaves_the_outcome_unknown,
    a_lock_held_for_too_long_is_a_conflict,
    a_settle_that_loses_in_a_deadlock_is_run_again,
    a_deadlock_that_is_passed_over_fails_the_commit,
    a_statement_that_commits_by_itself_is_noticed_at_the_commit,
    a_settle_whose_lock_is_held_for_too_long_is_run_again,
    missing_tables_ask_for_the_migrations,
    a_database_that_is_not_there_is_told_as_such,
    passwords_are_not_told,
    a_full_pool_is_unavailable,
    a_user_who_holds_every_pooled_connection_does_not_starve_the_renewal,
);

/// Ends every other connection to the outbox's database.
async fn kill_all(outbox: &Outbox) -> usize {
    use sqlx::Connection as _;
    let mut admin = MySqlConnection::connect(&outbox.database.admin_url()).await.unwrap();
    let others = "select id from information_schema.processlist where db = database() and id <> connection_id()";
    let others = sqlx::query(others).fetch_all(&mut admin).await.unwrap();
    for row in &others {
        let id = row.try_get::<u64, _>(0).or_else(|_| row.try_get::<i64, _>(0).map(i64::unsigned_abs)).unwrap();
        let _ = admin.execute(sqlx::AssertSqlSafe(format!("kill {id}"))).await;
    }
    others.len()
}

async fn everything(store: &MySqlStore, lease: &pillarbox_core::domain::Lease) -> Vec<StoreError> {
    let scan =
        || Scan { partitions: PartitionSet::ALL, after: &Position::START, limit: 10, skip_recent: Duration::ZERO };
    let mut all = |_: Candidate<'_>| true;
    [
        store.renew(lease, MINUTE).await.err(),
        store.settle(lease, &Batch::default()).await.err(),
        store.page(scan(), &mut all).await.err(),
        store.stats().await.err(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

async fn killed_connections_are_unavailable_and_replaced(server: Shared) {
    let outbox = Outbox::new(server).await;
    let lease = join(&outbox, "n", MINUTE).await;
    assert!(everything(&outbox, &lease).await.is_empty());
    assert!(kill_all(&outbox).await >= 4);
    let errors = everything(&outbox, &lease).await;
    assert!(errors.iter().all(|error| error.kind() == StoreErrorKind::Unavailable), "{errors:?}");
    assert!(everything(&outbox, &lease).await.is_empty(), "opened again");
    assert_eq!(outbox.settle(&lease, &Batch::default()).await.unwrap(), Settled::Applied { stale: 0 });
}

/// D11: they were used a moment ago, and nobody asks whether they live.
async fn a_transaction_begins_though_the_pooled_connections_were_killed(server: Shared) {
    let outbox = Outbox::new(server).await;
    let (one, other) = (outbox.begin().await.unwrap(), outbox.begin().await.unwrap());
    outbox.rollback(one).await.unwrap();
    outbox.rollback(other).await.unwrap();
    while outbox.pool().num_idle() < 2 {
        tokio::task::yield_now().await;
    }
    assert!(kill_all(&outbox).await >= 2);
    let mut tx = outbox.begin().await.unwrap();
    outbox.insert(&mut tx, &[new_row(event())]).await.unwrap();
    outbox.commit(tx).await.unwrap();
    assert_eq!(outbox.another().await.stats().await.unwrap().pending(), 1);
}

async fn a_connection_lost_in_the_commit_leaves_the_outcome_unknown(server: Shared) {
    let outbox = Outbox::new(server).await;
    let mut tx = outbox.begin().await.unwrap();
    outbox.insert(&mut tx, &[new_row(event())]).await.unwrap();
    kill_all(&outbox).await;
    let error = outbox.commit(tx).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::OutcomeUnknown, "{error:?}");
    assert_eq!(outbox.another().await.stats().await.unwrap().pending(), 0);
}

async fn a_lock_held_for_too_long_is_a_conflict(server: Shared) {
    let outbox = Outbox::new(server).await;
    let mut holder = outbox.session().await;
    holder.execute("start transaction").await.unwrap();
    let entered = "insert into outbox_dedup (dedup_key, event_id, expires_at, entered_by) values ('k', 'x', now(), 1)";
    holder.execute(entered).await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.execute("set session innodb_lock_wait_timeout = 1").await.unwrap();
    let key = NewKey { key: "k", window: Duration::from_mins(1), id: new_id() };
    let error = outbox.enter_keys(&mut tx, &[key]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Conflict, "{error:?}");
    // The server rolls back the statement alone: the transaction is its owner's to end.
    outbox.insert(&mut tx, &[new_row(event())]).await.unwrap();
    outbox.rollback(tx).await.unwrap();
    assert_eq!(outbox.number("select count(*) from outbox_event").await, 0);
}

/// Two events, and a settle of both in a task of its own. The second is locked by the session, so the settle waits with
/// the first one locked: it goes by rising numbers.
async fn settle_that_waits(outbox: &Outbox, holder: &mut MySqlConnection) -> (u64, JoinHandle<Settled>) {
    outbox.write([event(), event()]).await;
    let (lease, taken) = owner(outbox, "n", MINUTE).await;
    let rows = outbox.page(&Position::START).await.rows;
    let done = rows.iter().map(|row| outcome(row, &taken, Change::Done)).collect();
    holder.execute("select seq from outbox_event where seq = 2 for update").await.unwrap();
    let store = outbox.store.clone();
    let settling = tokio::spawn(async move { settle(&store, &lease, done).await });
    (outbox.someone_waits(0).await, settling)
}

/// Decision 9.
async fn a_settle_that_loses_in_a_deadlock_is_run_again(server: Shared) {
    let outbox = Outbox::new(server).await;
    outbox.run("create table side (n int primary key)").await;
    let mut holder = outbox.session().await;
    holder.execute("start transaction").await.unwrap();
    // The server ends the transaction that has done less.
    for n in 0..50 {
        sqlx::query("insert into side values (?)").bind(n).execute(&mut holder).await.unwrap();
    }
    let (loser, settling) = settle_that_waits(&outbox, &mut holder).await;
    holder.execute("select seq from outbox_event where seq = 1 for update").await.unwrap();
    // Its second run waits for the first event.
    outbox.someone_waits(loser).await;
    holder.execute("commit").await.unwrap();
    assert_eq!(settling.await.unwrap(), Settled::Applied { stale: 0 });
    assert_eq!(outbox.number("select count(*) from outbox_event where status = 'DONE'").await, 2);
}

/// W1. The server ends the transaction; the application goes on as if it had not.
async fn a_deadlock_that_is_passed_over_fails_the_commit(server: Shared) {
    let outbox = Outbox::new(server).await;
    outbox.run("create table side (n int primary key)").await;
    outbox.run("insert into side values (1), (2)").await;
    let delivered = Arc::new(AtomicUsize::new(0));
    let counter = delivered.clone();
    let count = move |_: Delivery| {
        counter.fetch_add(1, Ordering::Relaxed);
        async {}
    };
    let engine = Engine::single_node(outbox.another().await).route("a", count).start().await.unwrap();

    let mut holder = outbox.session().await;
    holder.execute("start transaction").await.unwrap();
    // The server ends the transaction that has done less.
    for n in 10..60 {
        sqlx::query("insert into side values (?)").bind(n).execute(&mut holder).await.unwrap();
    }
    holder.execute("select n from side where n = 1 for update").await.unwrap();
    let mut tx = engine.begin().await.unwrap();
    tx.execute("select n from side where n = 2 for update").await.unwrap();
    tx.write(Event::builder("a").json(&1)).await.unwrap();
    let losing = tokio::spawn(async move {
        let passed_over = tx.execute("select n from side where n = 1 for update").await;
        (passed_over.map(drop), tx.commit().await)
    });
    outbox.someone_waits(0).await;
    holder.execute("select n from side where n = 2 for update").await.unwrap();
    let (passed_over, committed) = losing.await.unwrap();
    passed_over.expect_err("it loses in the deadlock");
    let error = committed.unwrap_err();
    assert!(error.is_outcome_unknown(), "{error:?}");
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("deadlock"), "{cause}");
    holder.execute("commit").await.unwrap();

    // The next one is delivered, alone, on a connection that is as it should be.
    let mut tx = engine.begin().await.unwrap();
    tx.write(Event::builder("a").json(&2)).await.unwrap();
    tx.commit().await.unwrap();
    while outbox.number("select count(*) from outbox_event where status = 'DONE'").await < 1 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    engine.shutdown().await;
    assert_eq!(delivered.load(Ordering::Relaxed), 1, "of the event that is gone nothing was delivered");
    assert_eq!(outbox.number("select count(*) from outbox_event").await, 1);
}

/// W1. The event is in effect before the commit, and delivered.
async fn a_statement_that_commits_by_itself_is_noticed_at_the_commit(server: Shared) {
    let outbox = Outbox::new(server).await;
    let mut tx = outbox.begin().await.unwrap();
    outbox.insert(&mut tx, &[new_row(event())]).await.unwrap();
    tx.execute("create table side (n int primary key)").await.unwrap();
    let error = outbox.commit(tx).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::OutcomeUnknown, "{error:?}");
    assert_eq!(outbox.number("select count(*) from outbox_event").await, 1);
}

/// Decision 9.
async fn a_settle_whose_lock_is_held_for_too_long_is_run_again(server: Shared) {
    let outbox = Outbox::new(server).await;
    let mut holder = outbox.session().await;
    holder.execute("start transaction").await.unwrap();
    let (first, settling) = settle_that_waits(&outbox, &mut holder).await;
    outbox.someone_waits(first).await;
    holder.execute("commit").await.unwrap();
    assert_eq!(settling.await.unwrap(), Settled::Applied { stale: 0 });
    assert_eq!(outbox.number("select count(*) from outbox_event where status = 'DONE'").await, 2);
}

async fn missing_tables_ask_for_the_migrations(server: Shared) {
    let database = server.database();
    let store = MySqlStore::open(database.url()).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    let insert = store.insert(&mut tx, &[new_row(event())]).await.unwrap_err();
    drop(tx);
    for error in [store.check().await.unwrap_err(), insert, store.stats().await.unwrap_err()] {
        assert_eq!(error.kind(), StoreErrorKind::Schema, "{error:?}");
        assert!(error.to_string().contains("migrations"), "{error}");
    }
}

async fn a_database_that_is_not_there_is_told_as_such(server: Shared) {
    let database = server.database();
    let url = database.url().replace(database.name(), "pb_not_there");
    let opened = MySqlStore::open(url).await.unwrap_err();
    let store = Options::new().schema("pb_not_there").open(database.url()).await.unwrap();
    for error in [opened, store.migrate().await.unwrap_err()] {
        assert_eq!(error.kind(), StoreErrorKind::Rejected, "{error:?}");
        assert!(error.to_string().contains("there is no such database"), "{error}");
    }
}

async fn passwords_are_not_told(server: Shared) {
    let database = server.database();
    let good = database.url();
    let password = login::USER.password;
    let port = format!(":{}", database.port());
    for url in [
        good.replace(password, "hunter2"),
        good.replace(&port, ":1").replace(password, "hunter2"),
        format!("{}?ssl_mode=hunter2", good.replace(password, "hunter2")),
        format!("{}?ssl-mode=hunter2", good.replace(password, "hunter2")),
        "mysql://me:hunter2@[".to_owned(),
        "hunter2".to_owned(),
        good.replace(database.name(), "").replace(password, "hunter2"),
    ] {
        let error = MySqlStore::open(&url).await.unwrap_err();
        assert!(!told::by(&error).contains("hunter2"), "{error:?}");
    }
    let store = MySqlStore::open(&good).await.unwrap();
    let pooled = MySqlStore::from_pool(store.pool().clone()).unwrap();
    let shown = format!("{store:?} {pooled:?} {:?} {:?}", Options::new(), store.begin().await.unwrap());
    assert!(!shown.contains(password), "{shown}");
}

#[tokio::test]
async fn no_log_tells_the_password() {
    let database = Shared::MariaDb.database();
    let proxy = Proxy::to_url(&database.url()).unwrap();
    let store = Options::new().log_statements().open(proxy.url(&database.url())).await.unwrap();
    let log = told::in_trouble(store, &proxy).await;
    assert!(log.contains("insert into"), "the driver's words are missing: {log}");
    assert!(!log.contains(login::USER.password), "{log}");
}

#[tokio::test]
async fn a_database_that_falls_silent_is_outlived() {
    let outbox = Outbox::new(Shared::MariaDb).await;
    let url = outbox.database.url();
    let proxy = Proxy::to_url(&url).unwrap();
    let store = Options::new().answer_within(Duration::from_secs(1)).open(proxy.url(&url)).await.unwrap();
    silence::is_outlived(store, outbox.store.clone(), &proxy).await;
}

async fn a_full_pool_is_unavailable(server: Shared) {
    let outbox = Outbox::new(server).await;
    let pool = sqlx::mysql::MySqlPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(Duration::from_secs(1))
        .connect_lazy(&outbox.database.url())
        .unwrap();
    let store = Options::new().from_pool(pool).unwrap();
    let first = store.begin().await.unwrap();
    let error = store.begin().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
    // The outbox's own work goes on beside it.
    join(&store, "n", MINUTE).await;
    store.rollback(first).await.unwrap();
    let _: &MySqlPool = store.pool();
}

/// O6: the lease is renewed beside the pool, and so is everything else that the node does by itself.
async fn a_user_who_holds_every_pooled_connection_does_not_starve_the_renewal(server: Shared) {
    let outbox = Outbox::new(server).await;
    let pool = sqlx::mysql::MySqlPoolOptions::new().max_connections(2).connect_lazy(&outbox.database.url()).unwrap();
    let lease = Duration::from_secs(2);
    let (deliver, mut delivered) = tokio::sync::mpsc::unbounded_channel();
    let engine = pillarbox_core::Outbox::multi_node(Options::new().from_pool(pool).unwrap())
        .route("a", move |delivery: Delivery| {
            let _ = deliver.send(delivery.seq());
            async {}
        })
        .node_name("n")
        .heartbeat(lease / 10)
        .stale_after(lease)
        .start()
        .await
        .unwrap();
    let held = [engine.begin().await.unwrap(), engine.begin().await.unwrap()];
    let fleet = async || {
        let fleet = outbox.fleet().await.unwrap();
        let node = fleet.nodes.into_iter().find(|node| node.node.as_str() == "n").unwrap();
        (fleet.now, node)
    };
    let (begun, first) = fleet().await;
    loop {
        let (now, node) = fleet().await;
        assert_eq!(node.incarnation, first.incarnation);
        assert!(node.is_live(now), "the lease has lapsed");
        if now.since(begun) > lease * 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // And what others write is delivered meanwhile.
    outbox.write([Event::builder("a").json(&1)]).await;
    delivered.recv().await.unwrap();
    drop(held);
    engine.shutdown().await;
}

//! Connections that break, and what the errors say.

use std::time::Duration;

use pillarbox_core::domain::{Partition, Seq};
use pillarbox_core::port::{
    AdminStore as _, Change, OwnStore as _, Position, ReadStore as _, Settled, StoreErrorKind, TransactStore as _,
    UpkeepStore as _, WakeStore as _, WriteStore as _,
};
use pillarbox_postgres::{Options, PostgresStore};
use pillarbox_testkit::{
    servers::{Proxy, Shared, login},
    silence, told,
};

use crate::support::{MINUTE, Outbox, event, new_row, outcome, owner, page, run_in, settle};

#[tokio::test]
async fn every_connection_comes_back_after_it_broke() {
    let outbox = Outbox::new().await;
    let (lease, _) = owner(&outbox, "n").await;
    outbox.page(&Position::START).await;
    settle(&outbox, &lease, vec![]).await;
    outbox.kill_sessions();
    let error = outbox.rows(&[Seq(1)]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
    assert_eq!(outbox.renew(&lease, MINUTE).await.unwrap_err().kind(), StoreErrorKind::Unavailable);
    let batch = pillarbox_core::port::Batch::default();
    assert_eq!(outbox.settle(&lease, &batch).await.unwrap_err().kind(), StoreErrorKind::Unavailable);

    page(&outbox, &Position::START, 9).await;
    assert!(outbox.renew(&lease, MINUTE).await.unwrap().is_some());
    assert_eq!(settle(&outbox, &lease, vec![]).await, Settled::Applied { stale: 0 });
}

#[tokio::test]
async fn a_commit_whose_connection_breaks_has_an_unknown_outcome() {
    let outbox = Outbox::new().await;
    let mut tx = outbox.begin().await.unwrap();
    outbox.insert(&mut tx, &[new_row(event())]).await.unwrap();
    outbox.kill_sessions();
    let error = outbox.commit(tx).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::OutcomeUnknown, "{error:?}");
}

/// PostgreSQL answers the commit of a failed transaction with a rollback, and no error.
#[tokio::test]
async fn a_transaction_with_a_failed_statement_does_not_pass_for_committed() {
    let outbox = Outbox::new().await;
    let mut tx = outbox.begin().await.unwrap();
    outbox.insert(&mut tx, &[new_row(event())]).await.unwrap();
    sqlx::query("select 1 / 0").execute(&mut *tx).await.unwrap_err();
    let error = outbox.commit(tx).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Rejected);
    assert!(error.to_string().contains("earlier statement"), "{error}");
    assert_eq!(outbox.write([event()]).await.len(), 1);
    assert_eq!(outbox.number("select count(*) from outbox_event").await, 1);
}

#[tokio::test]
async fn a_lock_timeout_is_a_conflict() {
    let outbox = Outbox::new().await;
    let mut locking = outbox.session().await;
    run_in(&mut locking, "begin; lock table outbox_event").await;
    let mut tx = outbox.begin().await.unwrap();
    run_in(&mut tx, "set local lock_timeout = '10ms'").await;
    let error = outbox.insert(&mut tx, &[new_row(event())]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Conflict, "{error:?}");
}

/// The application's transactions are as the database sets them; the store's own say what they need.
#[tokio::test]
async fn a_database_set_to_read_only_refuses_writers_in_clear_words_and_settles_what_it_has() {
    let outbox = Outbox::new().await;
    outbox.write([event()]).await;
    let (name, set) = (outbox.database.name(), "default_transaction_read_only");
    outbox.database.run(&format!("alter database {name} set {set} = on")).unwrap();
    let store = outbox.another(Options::new());
    let mut tx = store.begin().await.unwrap();
    let error = store.insert(&mut tx, &[new_row(event())]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("read only"), "{error}");
    drop(tx);
    let (lease, taken) = owner(&store, "n").await;
    let rows = page(&store, &Position::START, 9).await.rows;
    let done = vec![outcome(&rows[0], &taken, Change::Done)];
    assert_eq!(settle(&store, &lease, done).await, Settled::Applied { stale: 0 });
    assert_eq!(outbox.number("select count(*) from outbox_event where status = 'DONE'").await, 1);
}

#[tokio::test]
async fn a_call_that_is_not_answered_is_given_up() {
    let outbox = Outbox::new().await;
    let hasty = outbox.another(Options::new().answer_within(Duration::from_millis(300)));
    page(&hasty, &Position::START, 1).await;
    let mut locking = outbox.session().await;
    run_in(&mut locking, "begin; lock table outbox_event").await;
    let error = hasty.rows(&[Seq(1)]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(error.to_string().contains("in time"), "{error}");
    run_in(&mut locking, "commit").await;
    page(&hasty, &Position::START, 1).await;
}

#[tokio::test]
async fn no_error_tells_the_password() {
    let port = Shared::Postgres.database().port();
    for url in [
        format!("postgres://nobody:open-sesame@127.0.0.1:{port}/nowhere"),
        "postgres://nobody:open-sesame@127.0.0.1:1/nowhere".into(),
    ] {
        let store = Options::new().answer_within(Duration::from_secs(3)).open(&url).unwrap();
        for error in [store.begin().await.unwrap_err(), store.rows(&[Seq(1)]).await.unwrap_err()] {
            assert!(!format!("{} {store:?}", told::by(&error)).contains("open-sesame"), "{error:?}");
        }
    }
    for url in [
        "postgres://nobody:open-sesame@host:port/x",
        "postgres://nobody:open-sesame@[",
        "postgres://nobody:open-sesame@host/x?sslmode=perhaps",
        "postgres://nobody:open-sesame@host/x?pillarbox_pooler=perhaps",
        "open-sesame",
    ] {
        let error = PostgresStore::open(url).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Rejected, "{url}");
        assert!(!told::by(&error).contains("open-sesame"), "{error:?}");
    }
    let outbox = Outbox::new().await;
    let pooled = PostgresStore::from_pool(outbox.pool().clone()).unwrap();
    let shown = format!("{:?} {pooled:?} {:?} {:?}", outbox.store, Options::new(), outbox.begin().await.unwrap());
    assert!(!shown.contains(login::USER.password), "{shown}");
}

#[tokio::test]
async fn no_log_tells_the_password() {
    let database = Shared::Postgres.database();
    let proxy = Proxy::to_url(&database.url()).unwrap();
    let store = Options::new().log_statements().open(proxy.url(&database.url())).unwrap();
    let log = told::in_trouble(store, &proxy).await;
    assert!(log.contains("insert into"), "the driver's words are missing: {log}");
    assert!(!log.contains(login::USER.password), "{log}");
}

#[tokio::test]
async fn a_database_that_falls_silent_is_outlived() {
    let outbox = Outbox::new().await;
    let url = outbox.database.url();
    let proxy = Proxy::to_url(&url).unwrap();
    let store = Options::new().answer_within(Duration::from_secs(1)).open(proxy.url(&url)).unwrap();
    silence::is_outlived(store, outbox.store.clone(), &proxy).await;
}

#[tokio::test]
async fn an_undeclared_pooler_is_guessed_at() {
    let database = Shared::PgBouncer.database();
    let declared = Options::new().open(format!("{}?pillarbox_pooler=transaction", database.url())).unwrap();
    declared.migrate().await.unwrap();
    // Several clients share sessions, in which the statements of others are missing.
    let stores: Vec<_> = (0..4).map(|_| PostgresStore::open(database.url()).unwrap()).collect();
    for _ in 0..50 {
        for store in &stores {
            let rows = store.rows(&[Seq(1)]).await;
            if let Err(error) = rows {
                assert!(error.to_string().contains("pillarbox_pooler=transaction"), "{error:?}");
                return;
            }
        }
    }
    panic!("the pooler was not noticed");
}

#[tokio::test]
async fn hints_reach_other_processes_and_a_broken_listener_says_so() {
    let outbox = Outbox::new().await;
    let other = outbox.another(Options::new());
    let within = Duration::from_secs(10);
    // The first wait ends when it listens.
    for store in [&outbox.store, &other] {
        tokio::time::timeout(within, store.news()).await.unwrap().unwrap();
    }
    let hinted = [Partition(3)].into_iter().collect();
    outbox.hint(hinted).await.unwrap();
    tokio::time::timeout(within, other.news()).await.unwrap().unwrap();
    // A store's own hints are no news to it.
    outbox.hint(hinted).await.unwrap();
    let own = tokio::time::timeout(Duration::from_millis(300), outbox.store.news()).await;
    assert!(own.is_err());
    // A wait that is dropped loses nothing that comes later.
    other.hint(hinted).await.unwrap();
    tokio::time::timeout(within, outbox.store.news()).await.unwrap().unwrap();

    tokio::time::timeout(within, other.news()).await.unwrap().unwrap();
    outbox.kill_sessions();
    let broken = tokio::time::timeout(within, other.news()).await.unwrap().unwrap_err();
    assert_eq!(broken.kind(), StoreErrorKind::Unavailable);
    tokio::time::timeout(within, other.news()).await.unwrap().unwrap();
    assert!(other.wants_hints() && !outbox.another(Options::new().behind_pooler()).wants_hints());
}

/// The server takes channels of 63 bytes.
#[tokio::test]
async fn hints_reach_other_processes_with_the_longest_names() {
    let database = Shared::Postgres.database();
    let options = || Options::new().schema("s".repeat(63)).prefix("p".repeat(32));
    let [one, other] = [(); 2].map(|()| options().open(database.url()).unwrap());
    one.migrate().await.unwrap();
    let within = Duration::from_secs(10);
    tokio::time::timeout(within, other.news()).await.unwrap().unwrap();
    one.hint([Partition(3)].into_iter().collect()).await.unwrap();
    tokio::time::timeout(within, other.news()).await.unwrap().unwrap();
    one.hint_fleet().await.unwrap();
    // Who waits for events passes on what is said of the nodes.
    let said = async {
        tokio::select! {
            said = other.fleet_news() => said.unwrap(),
            events = other.news() => panic!("no event was told of, and {events:?} came"),
        }
    };
    tokio::time::timeout(within, said).await.unwrap();
}

/// A socket belongs to the runtime that opened it: a line that is used from another opens one of its own.
#[test]
fn a_blocked_runtime_does_not_starve_the_renewal() {
    let (store, lease, _database) = {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (outbox, lease) = runtime.block_on(async {
            let outbox = Outbox::new().await;
            let (lease, _) = owner(&outbox, "n").await;
            (outbox, lease)
        });
        let store = outbox.store.clone();
        // Kept, and never run again.
        std::mem::forget(runtime);
        (store, lease, outbox.database)
    };
    let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    other.block_on(async {
        let renewal = tokio::time::timeout(Duration::from_secs(10), store.renew(&lease, MINUTE)).await;
        assert!(renewal.unwrap().unwrap().is_some());
    });
}

/// O6: the lease is renewed beside the pool, and so is everything else that the node does by itself.
#[tokio::test]
async fn a_user_who_holds_every_pooled_connection_does_not_starve_the_renewal() {
    let outbox = Outbox::new().await;
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(2).connect_lazy(&outbox.database.url()).unwrap();
    let lease = Duration::from_secs(2);
    let (deliver, mut delivered) = tokio::sync::mpsc::unbounded_channel();
    let engine = pillarbox_core::Outbox::multi_node(PostgresStore::from_pool(pool).unwrap())
        .route("a", move |delivery: pillarbox_core::Delivery| {
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
    outbox.write([pillarbox_core::Event::builder("a").json(&1)]).await;
    delivered.recv().await.unwrap();
    drop(held);
    engine.shutdown().await;
}

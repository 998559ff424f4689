//! The connections that stay with the store from one transaction to the next, and how many there are in all.

use std::time::Duration;

use pillarbox_core::port::{TransactStore as _, WriteStore as _};
use pillarbox_core::{Delivery, Event, Outbox as Engine};
use pillarbox_postgres::{Options, PostgresStore};

use crate::support::{Outbox, event, new_row, number_in};

const SESSION: &str = "select pg_backend_pid()::bigint";

async fn session_of_next(store: &PostgresStore) -> i64 {
    let mut tx = store.begin().await.unwrap();
    let session = number_in(&mut tx, SESSION).await;
    // Not by commit, which would be a doubtful one after a statement of the user's.
    store.rollback(tx).await.unwrap();
    session
}

async fn idle_in_pool(store: &PostgresStore, count: usize) {
    while store.pool().num_idle() != count {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn transactions_one_after_another_have_one_session_and_the_pool_has_it_back_then() {
    let outbox = Outbox::new().await;
    let store = outbox.another(Options::new().pool_size(4));
    let first = session_of_next(&store).await;
    assert_eq!(store.pool().num_idle(), 0);
    for _ in 0..20 {
        assert_eq!(session_of_next(&store).await, first);
    }
    idle_in_pool(&store, 1).await;
    assert_eq!(session_of_next(&store).await, first);
}

#[tokio::test]
async fn an_exhausted_pool_has_its_connections_back_at_once() {
    let outbox = Outbox::new().await;
    let store = outbox.another(Options::new().pool_size(2));
    let tx = store.begin().await.unwrap();
    let _other = store.pool().acquire().await.unwrap();
    store.rollback(tx).await.unwrap();
    let acquired = tokio::time::timeout(Duration::from_secs(10), store.pool().acquire());
    let mut acquired = acquired.await.unwrap().unwrap();
    assert_eq!(number_in(&mut acquired, "select 1::bigint").await, 1);
}

#[tokio::test]
async fn a_session_that_ended_while_it_was_kept_is_replaced_unnoticed() {
    let outbox = Outbox::new().await;
    let store = outbox.another(Options::new());
    let mut operator = outbox.session().await;
    for _ in 0..5 {
        let first = session_of_next(&store).await;
        let end = sqlx::query_scalar::<_, bool>("select pg_terminate_backend($1::integer, 10000)").bind(first);
        assert!(end.fetch_one(&mut operator).await.unwrap());
        assert_ne!(session_of_next(&store).await, first);
    }
}

/// D11: they were used a moment ago, and nobody asks whether they live.
#[tokio::test]
async fn a_transaction_begins_though_the_pooled_connections_were_killed() {
    let outbox = Outbox::new().await;
    let store = outbox.another(Options::new());
    let (one, other) = (store.pool().acquire().await.unwrap(), store.pool().acquire().await.unwrap());
    drop((one, other));
    idle_in_pool(&store, 2).await;
    outbox.kill_sessions();
    let mut tx = store.begin().await.unwrap();
    store.insert(&mut tx, &[new_row(event())]).await.unwrap();
    store.commit(tx).await.unwrap();
    assert_eq!(outbox.number("select count(*) from outbox_event").await, 1);
}

#[tokio::test]
async fn a_begin_that_was_cut_off_leaves_no_transaction_to_the_next() {
    let outbox = Outbox::new().await;
    let store = outbox.another(Options::new().pool_size(1));
    for _ in 0..20 {
        session_of_next(&store).await;
        // Sent, and not waited for.
        let _ = tokio::time::timeout(Duration::ZERO, store.begin()).await;
        let mut acquired = store.pool().acquire().await.unwrap();
        // The time stands still in a transaction.
        let time = "select (extract(epoch from now()) * 1000000)::bigint";
        assert_ne!(number_in(&mut acquired, time).await, number_in(&mut acquired, time).await);
    }
}

#[tokio::test]
async fn an_outbox_has_four_connections_beside_its_pool() {
    let outbox = Outbox::new().await;
    let store = PostgresStore::open(format!("{}?application_name=engine", outbox.database.url())).unwrap();
    let engine = Engine::multi_node(store).workers(8).route("a", |_: Delivery| async {}).start().await.unwrap();
    for n in 0..50 {
        let mut tx = engine.begin().await.unwrap();
        let event = Event::builder("a").json(&n);
        tx.write(if n % 2 == 0 { event.key("k") } else { event }).await.unwrap();
        tx.commit().await.unwrap();
    }
    while outbox.number("select count(*) from outbox_event where status <> 'DONE'").await > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let sessions = "select count(*) from pg_stat_activity where application_name = 'engine'";
    let (all, pool) = (outbox.number(sessions).await, i64::from(engine.store().pool().size()));
    assert!((1..=4).contains(&(all - pool)), "{all} connections, of which {pool} are in the pool");
    engine.shutdown().await;
}

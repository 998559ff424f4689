//! Transactions of the application that lose against each other.

use std::time::Duration;

use pillarbox_core::{
    Delivery, Event, Outbox,
    domain::EventBuilder,
    engine::Transaction,
    port::{AdminStore as _, Query},
};
use pillarbox_postgres::PostgresStore;
use pillarbox_testkit::servers::{Database, Shared};
use sqlx::Executor as _;
use tokio::{
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    time::timeout,
};

/// An outbox with two accounts beside it, and what its handler gets.
struct Bank {
    outbox: Outbox<PostgresStore>,
    delivered: UnboundedReceiver<String>,
    _database: Database,
}

impl Bank {
    async fn open() -> Self {
        let database = Shared::Postgres.database();
        let store = PostgresStore::open(database.url()).unwrap();
        let accounts = "create table accounts (id bigint primary key, amount bigint not null);
            insert into accounts values (1, 100), (2, 100)";
        store.pool().execute(sqlx::raw_sql(accounts)).await.unwrap();
        let (sender, delivered) = unbounded_channel();
        let outbox = Outbox::single_node(store)
            .route("Moved", move |delivery: Delivery| {
                let sender = sender.clone();
                async move { sender.send(delivery.event().id().to_string()) }
            })
            .start()
            .await
            .unwrap();
        Self { outbox, delivered, _database: database }
    }

    /// What is delivered, up to a last event on the same key.
    async fn rest(mut self) -> Vec<String> {
        let mut tx = self.outbox.begin().await.unwrap();
        let last = tx.write(moved()).await.unwrap().to_string();
        tx.commit().await.unwrap();
        let mut all = Vec::new();
        while all.last() != Some(&last) {
            all.push(timeout(Duration::from_secs(30), self.delivered.recv()).await.unwrap().unwrap());
        }
        let rows = self.outbox.store().count(&Query::default()).await.unwrap();
        assert_eq!(rows, all.len() as u64, "a row is left of what was rolled back");
        self.outbox.shutdown().await;
        all.pop();
        all
    }
}

fn moved() -> EventBuilder {
    Event::builder("Moved").key("bank").json(&1)
}

/// W1. Each takes from one account what it found in both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_serialization_failure_leaves_no_trace_of_the_event() {
    let bank = Bank::open().await;
    let begin = async || {
        let mut tx = bank.outbox.begin().await.unwrap();
        tx.execute("set transaction isolation level serializable").await.unwrap();
        tx.execute("select sum(amount) from accounts").await.unwrap();
        tx
    };
    let (mut first, mut second) = (begin().await, begin().await);
    first.execute("update accounts set amount = amount - 150 where id = 1").await.unwrap();
    second.execute("update accounts set amount = amount - 150 where id = 2").await.unwrap();
    let winner = first.write(moved()).await.unwrap().to_string();
    second.write(moved()).await.unwrap();
    first.commit().await.unwrap();
    let error = second.commit().await.unwrap_err();
    assert!(!error.is_outcome_unknown(), "{error:?}");
    assert_eq!(bank.rest().await, [winner]);
}

/// W1. Each waits for the account that the other has changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadlock_leaves_no_trace_of_the_event() {
    async fn cross(mut tx: Transaction<PostgresStore>, sql: &'static str, id: String) -> Option<String> {
        // The loser's transaction is dropped, which rolls it back.
        tx.execute(sql).await.ok()?;
        tx.commit().await.unwrap();
        Some(id)
    }
    let bank = Bank::open().await;
    let begin = async |sql: &'static str| {
        let mut tx = bank.outbox.begin().await.unwrap();
        tx.execute(sql).await.unwrap();
        let id = tx.write(moved()).await.unwrap().to_string();
        (tx, id)
    };
    let (first, one) = begin("update accounts set amount = 1 where id = 1").await;
    let (second, two) = begin("update accounts set amount = 2 where id = 2").await;
    let (one, two) = tokio::join!(
        cross(first, "update accounts set amount = 3 where id = 2", one),
        cross(second, "update accounts set amount = 4 where id = 1", two),
    );
    let winners: Vec<_> = one.into_iter().chain(two).collect();
    assert_eq!(winners.len(), 1, "one of them wins");
    assert_eq!(bank.rest().await, winners);
}

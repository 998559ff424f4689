//! Transactions of the application that lose against each other.

use std::time::Duration;

use pillarbox_core::{
    Delivery, Event, Outbox,
    domain::EventBuilder,
    engine::Transaction,
    port::{AdminStore as _, Query},
};
use pillarbox_mysql::MySqlStore;
use pillarbox_testkit::servers::{Database, Shared};
use sqlx::{Executor as _, mysql::MySqlPoolOptions};
use tokio::{
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    time::timeout,
};

/// An outbox with two accounts beside it, and what its handler gets.
struct Bank {
    outbox: Outbox<MySqlStore>,
    delivered: UnboundedReceiver<String>,
    _database: Database,
}

impl Bank {
    /// With these settings for the sessions of the application.
    async fn open(server: Shared, settings: &'static str) -> Self {
        let database = server.database();
        let pool = MySqlPoolOptions::new()
            .after_connect(move |connection, _| Box::pin(async move { connection.execute(settings).await.map(drop) }));
        let store = MySqlStore::from_pool(pool.connect(&database.url()).await.unwrap()).unwrap();
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

fn servers() -> impl Iterator<Item = Shared> {
    [Shared::MariaDb, Shared::MySql].into_iter().filter(|server| server.is_there())
}

/// Two transactions that both write an event between their statements, where only one can go through.
async fn one_of_two_wins(bank: Bank, first: [&'static str; 2], second: [&'static str; 2]) {
    async fn end(mut tx: Transaction<MySqlStore>, sql: &'static str, id: String) -> Option<String> {
        // The loser's transaction is dropped, which rolls it back.
        if let Err(error) = tx.execute(sql).await {
            let error = error.into_database_error().unwrap();
            assert!(error.message().contains("Deadlock") || error.message().contains("has changed"), "{error}");
            return None;
        }
        tx.commit().await.unwrap();
        Some(id)
    }
    let begin = async |sql: &'static str| {
        let mut tx = bank.outbox.begin().await.unwrap();
        tx.execute(sql).await.unwrap();
        let id = tx.write(moved()).await.unwrap().to_string();
        (tx, id)
    };
    let (one, id_of_one) = begin(first[0]).await;
    let (two, id_of_two) = begin(second[0]).await;
    let (one, two) = tokio::join!(end(one, first[1], id_of_one), end(two, second[1], id_of_two));
    let winners: Vec<_> = one.into_iter().chain(two).collect();
    assert_eq!(winners.len(), 1, "one of them wins");
    assert_eq!(bank.rest().await, winners);
}

/// W1. Each waits for the account that the other has changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadlock_leaves_no_trace_of_the_event() {
    for server in servers() {
        let bank = Bank::open(server, "do 0").await;
        let first = ["update accounts set amount = 1 where id = 1", "update accounts set amount = 3 where id = 2"];
        let second = ["update accounts set amount = 2 where id = 2", "update accounts set amount = 4 where id = 1"];
        one_of_two_wins(bank, first, second).await;
    }
}

/// W1. Both have read what both then change: what the one has read would not be so any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_serialization_failure_leaves_no_trace_of_the_event() {
    let steps = ["select amount from accounts where id = 1", "update accounts set amount = amount + 1 where id = 1"];
    for server in servers() {
        let bank = Bank::open(server, "set session transaction isolation level serializable").await;
        one_of_two_wins(bank, steps, steps).await;
    }
    let bank = Bank::open(Shared::MariaDb, "set session innodb_snapshot_isolation = on").await;
    one_of_two_wins(bank, steps, steps).await;
}

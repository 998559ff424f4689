//! Messages, handlers that remember, and a file for those that work in a transaction.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use parking_lot::Mutex;
use pillarbox_core::{
    HandlerError, Outbox, RetryPolicy,
    domain::Key,
    engine::{Metadata, Work},
    port::{Incoming, LetterQuery},
};
use pillarbox_inbox::{DeadLetters, MemoryLetters};
use pillarbox_macros::OutboxEvent;
use pillarbox_sqlite::{SqliteInbox, SqliteStore};
use pillarbox_testkit::MemoryBroker;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokio::sync::watch;

pub(crate) const TOPIC: &str = "orders";

#[derive(Clone, Debug, Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core)]
pub(crate) struct OrderPlaced {
    pub(crate) number: u32,
}

/// A message as the relay sends it.
pub(crate) fn message(number: u32, key: Option<&str>) -> Incoming {
    let id = pillarbox_core::new_id().to_string();
    Incoming {
        topic: TOPIC.into(),
        key: key.map(Key::from),
        id: Some(id.clone()),
        content_type: "application/json".into(),
        attributes: [("specversion", "1.0"), ("id", &id), ("type", "OrderPlaced"), ("source", "/orders")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec(),
        headers: Vec::new(),
        payload: Bytes::from(format!("{{\"number\": {number}}}")),
    }
}

/// Remembers which numbers it has seen, and fails those it is told to.
#[derive(Clone)]
pub(crate) struct Seen {
    numbers: watch::Sender<Vec<u32>>,
    failing: Arc<Mutex<Vec<u32>>>,
}

impl Seen {
    pub(crate) fn new() -> Self {
        Self { numbers: watch::Sender::new(Vec::new()), failing: Arc::default() }
    }

    pub(crate) fn fail(&self, numbers: impl IntoIterator<Item = u32>) {
        *self.failing.lock() = numbers.into_iter().collect();
    }

    pub(crate) fn numbers(&self) -> Vec<u32> {
        self.numbers.borrow().clone()
    }

    /// Waits until so many calls were made.
    pub(crate) async fn calls(&self, count: usize) -> Vec<u32> {
        let mut numbers = self.numbers.subscribe();
        let waited =
            tokio::time::timeout(Duration::from_secs(30), numbers.wait_for(|numbers| numbers.len() >= count)).await;
        waited.unwrap_or_else(|_| panic!("only {:?}", self.numbers())).unwrap().clone()
    }

    fn call(&self, number: u32) -> Result<(), HandlerError> {
        self.numbers.send_modify(|numbers| numbers.push(number));
        if self.failing.lock().contains(&number) {
            return Err(HandlerError::msg(format!("the card of order {number} was declined")));
        }
        Ok(())
    }

    pub(crate) fn handler(&self) -> impl Fn(OrderPlaced, Metadata) -> Ready + Clone + Send + Sync + 'static {
        let seen = self.clone();
        move |placed: OrderPlaced, _: Metadata| std::future::ready(seen.call(placed.number))
    }
}

pub(crate) type Ready = std::future::Ready<Result<(), HandlerError>>;

/// Quick retries: three attempts.
pub(crate) fn retry() -> RetryPolicy {
    RetryPolicy::fixed(Duration::from_millis(5)).jitter(0.0).max_attempts(3)
}

/// A broker with a dead letter queue that sends to it.
pub(crate) fn place() -> (MemoryBroker, DeadLetters) {
    let broker = MemoryBroker::new();
    let queue = DeadLetters::new(MemoryLetters::new()).sink(Arc::new(broker.clone()));
    (broker, queue)
}

/// Waits until something is so.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, is_so: impl Fn() -> F) {
    let begun = Instant::now();
    while !is_so().await {
        assert!(begun.elapsed() < Duration::from_secs(30), "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub(crate) async fn acknowledged(broker: &MemoryBroker, group: &str, count: usize) {
    until(&format!("{count} acknowledged"), || async { broker.acknowledged(TOPIC, group) >= count }).await;
    assert_eq!(broker.acknowledged(TOPIC, group), count);
}

pub(crate) async fn letters(queue: &DeadLetters, count: usize) -> Vec<pillarbox_core::port::Letter> {
    until(&format!("{count} letters"), || async {
        queue.list(&LetterQuery::default(), None, 100).await.unwrap().len() >= count
    })
    .await;
    queue.list(&LetterQuery::default(), None, 100).await.unwrap()
}

/// A database for handlers that work in a transaction: an outbox that writes, and a table of charges.
pub(crate) struct Shop {
    pub(crate) store: SqliteStore,
    pub(crate) outbox: Outbox<SqliteStore>,
    _folder: TempDir,
}

impl Shop {
    pub(crate) async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path().join("shop.db").to_str().unwrap()).await.unwrap();
        let outbox = Outbox::writer_only(store.clone()).start().await.unwrap();
        sqlx::query("create table charge (number integer not null check (number < 1000))")
            .execute(store.pool())
            .await
            .unwrap();
        Self { store, outbox, _folder: folder }
    }

    pub(crate) fn inbox(&self) -> SqliteInbox {
        SqliteInbox::new(&self.store)
    }

    /// What was charged, in the order of the charges.
    pub(crate) async fn charges(&self) -> Vec<u32> {
        sqlx::query_scalar("select number from charge order by rowid").fetch_all(self.store.pool()).await.unwrap()
    }
}

/// Charges an order.
pub(crate) async fn charge(work: &mut Work<SqliteStore>, number: u32) -> Result<(), HandlerError> {
    sqlx::query("insert into charge (number) values (?)").bind(number).execute(&mut **work).await?;
    Ok(())
}

/// Holds handlers until it is opened.
#[derive(Clone)]
pub(crate) struct Gate {
    arrived: watch::Sender<usize>,
    is_open: watch::Sender<bool>,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self { arrived: watch::Sender::new(0), is_open: watch::Sender::new(false) }
    }

    pub(crate) async fn pass(&self) {
        self.arrived.send_modify(|arrived| *arrived += 1);
        self.is_open.subscribe().wait_for(|is_open| *is_open).await.unwrap();
    }

    /// Waits until so many handlers stand there.
    pub(crate) async fn reached(&self, count: usize) {
        self.arrived.subscribe().wait_for(|arrived| *arrived >= count).await.unwrap();
    }

    /// How many have come so far.
    pub(crate) fn count(&self) -> usize {
        *self.arrived.borrow()
    }

    pub(crate) fn open(&self) {
        self.is_open.send_replace(true);
    }
}

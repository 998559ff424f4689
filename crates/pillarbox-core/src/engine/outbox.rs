//! The running outbox.

use std::sync::Arc;

use super::{
    dead::Dead,
    error::{OutboxError, WriteError},
    node::Node,
    shared::Shared,
    transaction::{Receipt, Transaction},
    work::Working,
    writer::{IntoEvent, Writer},
};
use crate::{
    domain::Codecs,
    port::{SettleStore, Stats, StoreError, TransactStore, WriteStore},
};

/// A running outbox: writes events, and delivers them unless it is
/// [`writer_only`](Outbox::writer_only). Clones are the same outbox.
///
/// Call [`shutdown`](Self::shutdown) before the process ends. An outbox that is dropped stops too, but its
/// partitions are free for others only when its lease has lapsed.
///
/// ```
/// # use pillarbox_core::{Delivery, Event, Outbox, port::{Store, TransactStore}};
/// # async fn example<S: Store + TransactStore>(store: S) -> Result<(), Box<dyn std::error::Error>> {
/// let outbox = Outbox::single_node(store)
///     .route("OrderPlaced", |delivery: Delivery| async move { println!("{}", delivery.event().id()) })
///     .start()
///     .await?;
///
/// let mut tx = outbox.begin().await?;
/// tx.write(Event::builder("OrderPlaced").key("order-7").json(&7)).await?;
/// tx.commit().await?;
///
/// outbox.shutdown().await;
/// # Ok(()) }
/// ```
pub struct Outbox<S> {
    inner: Arc<Inner<S>>,
}

pub(crate) struct Inner<S> {
    pub(crate) store: Arc<S>,
    pub(crate) writer: Arc<Writer>,
    shared: Arc<Shared>,
    node: Node,
}

impl<S> Outbox<S> {
    pub(crate) fn assemble(store: Arc<S>, writer: Arc<Writer>, shared: Arc<Shared>, node: Node) -> Self {
        Self { inner: Arc::new(Inner { store, writer, shared, node }) }
    }

    /// Begins a transaction of the outbox's own: events written in it are delivered right after its commit.
    pub async fn begin(&self) -> Result<Transaction<S>, WriteError>
    where
        S: TransactStore,
    {
        let tx = self.inner.store.begin().await?;
        Ok(Transaction::new(self.inner.clone(), tx))
    }

    /// Begins a transaction for the handlers of a consumer, on a connection that no transaction of the application waits for.
    pub async fn begin_work(&self) -> Result<Working<S>, StoreError>
    where
        S: SettleStore + 'static,
    {
        Working::begin(self.inner.store.clone(), self.inner.writer.clone()).await
    }

    /// Writes one event in a transaction of the caller's own. Confirm the receipt after the commit.
    ///
    /// ```
    /// # use pillarbox_core::{Event, Outbox, port::WriteStore};
    /// # struct Transaction;
    /// # impl Transaction { async fn commit(self) -> Result<(), std::io::Error> { Ok(()) } }
    /// # async fn example<S: WriteStore<Transaction>>(outbox: Outbox<S>, mut tx: Transaction)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// let receipt = outbox.write(&mut tx, Event::builder("OrderPlaced").json(&7)).await?;
    /// tx.commit().await?;
    /// receipt.confirm();
    /// # Ok(()) }
    /// ```
    pub async fn write<Tx>(&self, tx: &mut Tx, event: impl IntoEvent) -> Result<Receipt, WriteError>
    where
        S: WriteStore<Tx>,
    {
        self.write_all(tx, [event]).await
    }

    /// Writes a batch, in one statement or a few, in a transaction of the caller's own.
    pub async fn write_all<Tx>(
        &self,
        tx: &mut Tx,
        events: impl IntoIterator<Item: IntoEvent>,
    ) -> Result<Receipt, WriteError>
    where
        S: WriteStore<Tx>,
    {
        Ok(Receipt::new(self.inner.writer.write(&*self.inner.store, tx, events).await?))
    }

    /// The dead events, and what can be done about them.
    pub fn dead(&self) -> Dead<'_> {
        Dead::new(&self.inner.shared)
    }

    /// The outbox in numbers.
    ///
    /// ```
    /// # use pillarbox_core::{Outbox, domain::Status, engine::OutboxError};
    /// # async fn example<S>(outbox: Outbox<S>) -> Result<(), OutboxError> {
    /// let stats = outbox.stats().await?;
    /// println!("{} wait, {} are dead", stats.pending(), stats.count(Status::Dead));
    /// # Ok(()) }
    /// ```
    pub async fn stats(&self) -> Result<Stats, OutboxError> {
        Ok(self.inner.shared.store.stats().await?)
    }

    /// Purges now what the schedule would purge next; returns how many rows are gone. On a node that does
    /// not own partition 0 it does nothing.
    pub async fn purge(&self) -> Result<u64, OutboxError> {
        self.inner.node.purge_now().await
    }

    /// Whether this node's lease is in force: it is one of those that deliver.
    pub fn is_joined(&self) -> bool {
        self.inner.shared.flight.lock().owned.may_deliver(tokio::time::Instant::now())
    }

    /// How many partitions this node owns.
    pub fn partitions_owned(&self) -> usize {
        self.inner.shared.flight.lock().owned.active().len()
    }

    /// The database that events are written to.
    pub fn store(&self) -> &S {
        &self.inner.store
    }

    /// The formats that it writes and reads.
    pub fn codecs(&self) -> &Codecs {
        self.inner.writer.codecs()
    }

    /// Stops: nothing new is started, what runs is finished within the drain timeout or dropped without
    /// counting as an attempt, outcomes are settled, and the node's partitions are free for others. Calling
    /// it twice is fine.
    pub async fn shutdown(&self) {
        self.inner.node.shutdown().await;
    }
}

impl<S> Clone for Outbox<S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<S> std::fmt::Debug for Outbox<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outbox").field("shared", &self.inner.shared).finish_non_exhaustive()
    }
}

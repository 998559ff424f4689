//! The outbox's own transaction, and the receipt for those who keep theirs.

use std::{
    ops::{Deref, DerefMut},
    panic::AssertUnwindSafe,
    sync::Arc,
};

use futures_util::FutureExt;
use parking_lot::Mutex;

use super::{
    calling::panic_text,
    dedup::Duplicate,
    error::WriteError,
    outbox::Inner,
    writer::{IntoEvent, Written},
};
use crate::{
    domain::{Codecs, EventId},
    port::{BoxFuture, TransactStore},
};

/// A database transaction that knows its events. `&mut *tx` is the driver's connection.
///
/// Dropping it rolls back.
///
/// ```
/// # use pillarbox_core::{Event, Outbox, engine::WriteError, port::TransactStore};
/// # async fn example<S: TransactStore>(outbox: Outbox<S>, is_paid: bool) -> Result<(), WriteError> {
/// let mut tx = outbox.begin().await?;
/// // Statements of your own run on `&mut *tx`.
/// let id = tx.write(Event::builder("OrderPlaced").key("order-7").json(&7)).await?;
/// if is_paid {
///     tx.commit().await?;
///     println!("{id} is on its way");
/// } else {
///     tx.rollback().await?;
/// }
/// # Ok(()) }
/// ```
#[must_use = "a transaction that is dropped is rolled back"]
pub struct Transaction<S: TransactStore> {
    outbox: Arc<Inner<S>>,
    // `None` once the end has begun.
    tx: Option<S::Tx>,
    written: Vec<Written>,
    duplicates: Vec<Duplicate>,
    // In a mutex for the sake of `Sync`, which futures lack.
    afterwards: Mutex<Vec<BoxFuture<'static, ()>>>,
}

impl<S: TransactStore> Transaction<S> {
    pub(crate) fn new(outbox: Arc<Inner<S>>, tx: S::Tx) -> Self {
        Self { outbox, tx: Some(tx), written: Vec::new(), duplicates: Vec::new(), afterwards: Mutex::default() }
    }

    /// Writes one event. Returns its id, or that of the event a hook put in its place, or that of the earlier
    /// event that has its dedup key (see [`duplicates`](Self::duplicates)).
    ///
    /// A hook that suppresses the event makes this an error of kind [`WriteError::Hook`]; use
    /// [`write_all`](Self::write_all) where that may happen.
    pub async fn write(&mut self, event: impl IntoEvent) -> Result<EventId, WriteError> {
        let ids = self.write_all([event]).await?;
        ids.first().copied().ok_or_else(|| WriteError::Hook("the event was suppressed".into()))
    }

    /// Writes a batch in one statement, or a few. Returns the ids in order.
    pub async fn write_all(&mut self, events: impl IntoIterator<Item: IntoEvent>) -> Result<Vec<EventId>, WriteError> {
        let Some(tx) = self.tx.as_mut() else {
            return Ok(Vec::new());
        };
        let written = self.outbox.writer.write(&*self.outbox.store, tx, events).await?;
        let ids = written.ids().to_vec();
        self.duplicates.extend_from_slice(written.duplicates());
        if written.is_registered() {
            self.written.push(written);
        }
        Ok(ids)
    }

    /// The events of this transaction that were not written, since their dedup keys stood already.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use pillarbox_core::{Event, Outbox, engine::WriteError, port::TransactStore};
    /// # async fn example<S: TransactStore>(outbox: Outbox<S>) -> Result<(), WriteError> {
    /// let mut tx = outbox.begin().await?;
    /// let reminder = Event::builder("Reminder").json(&7).dedup("reminder-7", Duration::from_secs(3_600));
    /// tx.write(reminder).await?;
    /// for duplicate in tx.duplicates() {
    ///     println!("{} was written before", duplicate.kept);
    /// }
    /// tx.commit().await
    /// # }
    /// ```
    pub fn duplicates(&self) -> &[Duplicate] {
        &self.duplicates
    }

    pub(crate) fn codecs(&self) -> &Codecs {
        self.outbox.writer.codecs()
    }

    /// Runs this when the transaction has committed, after what was given before it; `commit` comes back when it is
    /// done. A panic is logged. After a rollback, and when it is not known whether the commit took effect, it is dropped.
    ///
    /// It lives in memory alone: when the process dies between the commit and this, it is lost. What must not be lost is
    /// an event.
    ///
    /// ```
    /// # use pillarbox_core::{Outbox, engine::WriteError, port::TransactStore};
    /// # async fn example<S: TransactStore>(outbox: Outbox<S>) -> Result<(), WriteError> {
    /// let mut tx = outbox.begin().await?;
    /// tx.after_commit(async { println!("the order is placed") });
    /// tx.commit().await
    /// # }
    /// ```
    pub fn after_commit(&mut self, run: impl Future<Output = ()> + Send + 'static) {
        self.afterwards.get_mut().push(Box::pin(run));
    }

    /// Commits, and hands the events to the dispatcher.
    ///
    /// An error that [is of unknown outcome](WriteError::is_outcome_unknown) means that the connection broke
    /// meanwhile: the events are delivered if and only if the transaction was committed.
    pub async fn commit(mut self) -> Result<(), WriteError> {
        let Some(tx) = self.tx.take() else { return Ok(()) };
        match self.outbox.store.commit(tx).await {
            Ok(()) => {
                self.written.drain(..).for_each(Written::committed);
                for run in std::mem::take(self.afterwards.get_mut()) {
                    if let Err(panic) = AssertUnwindSafe(run).catch_unwind().await {
                        tracing::error!(panic = panic_text(&*panic), "what was to run after a commit panicked");
                    }
                }
                Ok(())
            }
            Err(error) => {
                let error = WriteError::from(error);
                if !error.is_outcome_unknown() {
                    self.written.drain(..).for_each(Written::rolled_back);
                }
                Err(error)
            }
        }
    }

    /// Rolls back.
    pub async fn rollback(mut self) -> Result<(), WriteError> {
        let Some(tx) = self.tx.take() else { return Ok(()) };
        let result = self.outbox.store.rollback(tx).await;
        // Whatever the database said, it can't commit any more.
        self.written.drain(..).for_each(Written::rolled_back);
        Ok(result?)
    }
}

impl<S: TransactStore> Deref for Transaction<S> {
    type Target = S::Connection;

    fn deref(&self) -> &Self::Target {
        // `tx` is taken only by the methods that consume the transaction.
        self.tx.as_ref().expect("the transaction is open as long as it can be named")
    }
}

impl<S: TransactStore> DerefMut for Transaction<S> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.tx.as_mut().expect("the transaction is open as long as it can be named")
    }
}

impl<S: TransactStore> Drop for Transaction<S> {
    fn drop(&mut self) {
        // Still open: dropping it rolls back. Otherwise a commit was cut off, and its outcome is unknown:
        // the batches' own drop leaves them to the reader.
        if self.tx.take().is_some() {
            self.written.drain(..).for_each(Written::rolled_back);
        }
    }
}

impl<S: TransactStore> std::fmt::Debug for Transaction<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction").field("written", &self.written).finish_non_exhaustive()
    }
}

/// What a write into a transaction of the caller's own gives back.
///
/// Call [`confirm`](Self::confirm) after the commit, and the events take the hot path. Forgetting it costs
/// latency only: the reader finds them.
#[must_use = "call `confirm` after the commit, so that the events are delivered at once"]
#[derive(Debug)]
pub struct Receipt(Written);

impl Receipt {
    pub(crate) fn new(written: Written) -> Self {
        Self(written)
    }

    /// The ids of the events, in order: of a duplicate, that of the event that has its dedup key. Empty if a
    /// hook suppressed the batch.
    pub fn ids(&self) -> &[EventId] {
        self.0.ids()
    }

    /// The events that were not written, since their dedup keys stood already.
    pub fn duplicates(&self) -> &[Duplicate] {
        self.0.duplicates()
    }

    /// The transaction is committed: hands the events to the dispatcher and runs the `after_commit` hooks.
    pub fn confirm(self) {
        self.0.committed();
    }

    /// The transaction is rolled back: runs the `after_rollback` hooks.
    pub fn rolled_back(self) {
        self.0.rolled_back();
    }
}

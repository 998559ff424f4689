//! The transactions in which transactional handlers work.
//!
//! Workers know no driver: to them a transaction is [`Open`], which lends itself to one handler after another as
//! [`Work`], and keeps or undoes what each of them did.

use std::{
    any::Any,
    fmt,
    ops::{Deref, DerefMut},
    sync::Arc,
};

use parking_lot::Mutex;

use super::{
    error::WriteError,
    writer::{IntoEvent, Writer, Written},
};
use crate::{
    domain::{EventId, Lease, Seq},
    port::{Batch, BoxFuture, SettleStore, Settled, StoreError, StoreErrorKind, TransactStore},
};

/// The transaction that a transactional handler works in. `&mut *work` is the driver's connection.
///
/// It commits together with the outcome of the event, if the handler succeeds: neither commit nor rollback is the
/// handler's affair. Drop it before the handler returns; one that outlives its handler is a failure of that handler.
///
/// See [`Builder::handle_in_tx`](super::Builder::handle_in_tx).
pub struct Work<S: TransactStore> {
    of: Arc<Of<S>>,
    // `None` once it is on its way home.
    tx: Option<S::Tx>,
    written: Vec<Written>,
    home: Home<S>,
}

/// Where a transaction goes when its handler has ended.
type Home<S> = Arc<Mutex<Option<Returned<S>>>>;

struct Returned<S: TransactStore> {
    tx: S::Tx,
    written: Vec<Written>,
}

impl<S: TransactStore> Work<S> {
    /// Writes one event in the same transaction: it is delivered if, and only if, this handler's work is committed.
    /// Returns its id, or that of the event a hook put in its place, or that of the earlier event that has its dedup key.
    pub async fn write(&mut self, event: impl IntoEvent) -> Result<EventId, WriteError> {
        let ids = self.write_all([event]).await?;
        ids.first().copied().ok_or_else(|| WriteError::Hook("the event was suppressed".into()))
    }

    /// Writes a batch in one statement, or a few. Returns the ids in order.
    pub async fn write_all(&mut self, events: impl IntoIterator<Item: IntoEvent>) -> Result<Vec<EventId>, WriteError> {
        let tx = self.tx.as_mut().expect(OPEN);
        let written = self.of.writer.write(&*self.of.store, tx, events).await?;
        let ids = written.ids().to_vec();
        if written.is_registered() {
            self.written.push(written);
        }
        Ok(ids)
    }
}

const OPEN: &str = "the transaction is open as long as it can be named";

impl<S: TransactStore> Deref for Work<S> {
    type Target = S::Connection;

    fn deref(&self) -> &Self::Target {
        self.tx.as_ref().expect(OPEN)
    }
}

impl<S: TransactStore> DerefMut for Work<S> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.tx.as_mut().expect(OPEN)
    }
}

impl<S: TransactStore> Drop for Work<S> {
    fn drop(&mut self) {
        if let Some(tx) = self.tx.take() {
            *self.home.lock() = Some(Returned { tx, written: std::mem::take(&mut self.written) });
        }
    }
}

impl<S: TransactStore> fmt::Debug for Work<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("written", &self.written).finish_non_exhaustive()
    }
}

/// Where transactions for handlers are begun; workers see it without its store.
pub(crate) trait Desk: Send + Sync {
    fn begin(&self) -> BoxFuture<'_, Result<Box<dyn Open>, StoreError>>;

    /// See [`SettleStore::unsettled`].
    fn unsettled<'a>(&'a self, seqs: &'a [Seq]) -> BoxFuture<'a, Result<Vec<Seq>, StoreError>>;
}

/// A transaction for handlers. Dropping it rolls back.
pub(crate) trait Open: Send {
    /// The transaction as [`Work`], for a handler that knows of which store.
    fn lend(&mut self) -> Box<dyn Any + Send>;

    /// The handler has ended: `false` if it has kept what it was lent.
    fn take_back(&mut self) -> bool;

    /// Keeps the work of the last handler.
    fn keep(&mut self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Undoes the work of the last handler.
    fn undo(&mut self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Settles in the transaction; see [`SettleStore::settle_in`].
    fn settle<'a>(&'a mut self, lease: &'a Lease, batch: &'a Batch) -> BoxFuture<'a, Result<Settled, StoreError>>;

    /// Commits, and announces what was written.
    fn commit(self: Box<Self>) -> BoxFuture<'static, Result<(), StoreError>>;

    /// Rolls back.
    fn rollback(self: Box<Self>) -> BoxFuture<'static, ()>;
}

/// The desk of an outbox with such a store.
pub(crate) fn desk<S: SettleStore + 'static>(store: Arc<S>, writer: Arc<Writer>) -> Arc<dyn Desk> {
    Arc::new(OfStore(Arc::new(Of { store, writer })))
}

struct Of<S> {
    store: Arc<S>,
    writer: Arc<Writer>,
}

struct OfStore<S>(Arc<Of<S>>);

impl<S: SettleStore + 'static> Desk for OfStore<S> {
    fn begin(&self) -> BoxFuture<'_, Result<Box<dyn Open>, StoreError>> {
        Box::pin(async {
            let tx = self.0.store.begin_work().await?;
            let open =
                Begun { of: self.0.clone(), tx: Some(tx), home: Arc::default(), last: Vec::new(), kept: Vec::new() };
            Ok(Box::new(open) as Box<dyn Open>)
        })
    }

    fn unsettled<'a>(&'a self, seqs: &'a [Seq]) -> BoxFuture<'a, Result<Vec<Seq>, StoreError>> {
        self.0.store.unsettled(seqs)
    }
}

struct Begun<S: TransactStore> {
    of: Arc<Of<S>>,
    // `None` while it is lent, and once its end has begun.
    tx: Option<S::Tx>,
    home: Home<S>,
    /// What the last handler has written, and those before it.
    last: Vec<Written>,
    kept: Vec<Written>,
}

impl<S: TransactStore> Begun<S> {
    fn all_rolled_back(&mut self) {
        self.kept.drain(..).chain(self.last.drain(..)).for_each(Written::rolled_back);
    }
}

impl<S: SettleStore + 'static> Open for Begun<S> {
    fn lend(&mut self) -> Box<dyn Any + Send> {
        Box::new(Work { of: self.of.clone(), tx: self.tx.take(), written: Vec::new(), home: self.home.clone() })
    }

    fn take_back(&mut self) -> bool {
        if let Some(Returned { tx, written }) = self.home.lock().take() {
            self.tx = Some(tx);
            self.last = written;
        }
        self.tx.is_some()
    }

    fn keep(&mut self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async {
            self.of.store.keep(held(&mut self.tx)?).await?;
            self.kept.append(&mut self.last);
            Ok(())
        })
    }

    fn undo(&mut self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async {
            self.of.store.undo(held(&mut self.tx)?).await?;
            self.last.drain(..).for_each(Written::rolled_back);
            Ok(())
        })
    }

    fn settle<'a>(&'a mut self, lease: &'a Lease, batch: &'a Batch) -> BoxFuture<'a, Result<Settled, StoreError>> {
        Box::pin(async move { self.of.store.settle_in(held(&mut self.tx)?, lease, batch).await })
    }

    fn commit(mut self: Box<Self>) -> BoxFuture<'static, Result<(), StoreError>> {
        Box::pin(async move {
            let tx = self.tx.take().ok_or_else(void)?;
            let mut written = std::mem::take(&mut self.kept);
            // Cut off from here on, and when the outcome is unknown, what was written is left to the reader.
            let committed = self.of.store.commit(tx).await;
            match &committed {
                Ok(()) => written.drain(..).for_each(Written::committed),
                Err(error) if error.kind() == StoreErrorKind::OutcomeUnknown => {}
                Err(_) => written.drain(..).for_each(Written::rolled_back),
            }
            committed
        })
    }

    fn rollback(mut self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let Some(tx) = self.tx.take() else { return };
            // If it fails, the connection is gone, and the database rolls back by itself.
            if let Err(error) = self.of.store.rollback(tx).await {
                tracing::debug!(error = &error as &dyn std::error::Error, "a rollback failed");
            }
            self.all_rolled_back();
        })
    }
}

impl<S: TransactStore> Drop for Begun<S> {
    fn drop(&mut self) {
        // Before the events are told: nobody must look for them while they can still commit.
        drop(self.tx.take());
        self.all_rolled_back();
    }
}

/// A transaction in which the handlers of a consumer work, one after another, and which all of their work commits with.
/// Dropping it rolls back. See [`Calls::work`](super::Calls::work).
pub struct Working<S: SettleStore + 'static>(Box<Begun<S>>);

impl<S: SettleStore + 'static> Working<S> {
    pub(crate) async fn begin(store: Arc<S>, writer: Arc<Writer>) -> Result<Self, StoreError> {
        let tx = store.begin_work().await?;
        let of = Arc::new(Of { store, writer });
        Ok(Self(Box::new(Begun { of, tx: Some(tx), home: Arc::default(), last: Vec::new(), kept: Vec::new() })))
    }

    /// The driver's transaction, for statements of one's own.
    pub fn tx(&mut self) -> Result<&mut S::Tx, StoreError> {
        held(&mut self.0.tx)
    }

    pub(crate) fn lend(&mut self) -> Box<dyn Any + Send> {
        self.0.lend()
    }

    /// `false` if the handler has kept what it was lent.
    pub(crate) fn take_back(&mut self) -> bool {
        let is_back = self.0.take_back();
        let written = std::mem::take(&mut self.0.last);
        self.0.kept.extend(written);
        is_back
    }

    /// Commits, and announces what the handlers have written. An error of kind `OutcomeUnknown` means that it may be in
    /// effect.
    pub async fn commit(self) -> Result<(), StoreError> {
        self.0.commit().await
    }

    /// Rolls back.
    pub async fn rollback(self) {
        self.0.rollback().await;
    }
}

impl<S: SettleStore + 'static> fmt::Debug for Working<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Working").field("is_open", &self.0.tx.is_some()).finish_non_exhaustive()
    }
}

fn held<Tx>(tx: &mut Option<Tx>) -> Result<&mut Tx, StoreError> {
    tx.as_mut().ok_or_else(void)
}

fn void() -> StoreError {
    StoreError::new(StoreErrorKind::Rejected, "the transaction is void: a handler has kept it")
}

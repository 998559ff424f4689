//! Settling in the transaction of a handler's own work.

use super::{Batch, BoxFuture, Settled, StoreError, TransactStore};
use crate::domain::{Lease, Seq};

/// Transactions in which handlers work, and which settle their events: the work and the outcome commit together, behind
/// the fence, or neither does.
///
/// A call that fails, or is dropped before it ends, leaves the transaction fit for nothing but its end, unless it says
/// otherwise.
pub trait SettleStore: TransactStore {
    /// Begins a transaction with a savepoint. Each of its statements sees what was committed before it, or nobody else
    /// can write meanwhile. It takes no lock of the node's: leases are renewed while handlers work.
    ///
    /// It must not wait for transactions of the application, whose handlers may wait for one of these.
    fn begin_work(&self) -> BoxFuture<'_, Result<Self::Tx, StoreError>>;

    /// Keeps what was done since the savepoint, and sets the next one there. An error that is not transient means that
    /// it can't be kept, as when one of its statements failed and nobody minded: then it can be undone.
    fn keep<'a>(&'a self, tx: &'a mut Self::Tx) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Undoes what was done since the savepoint, which stays.
    fn undo<'a>(&'a self, tx: &'a mut Self::Tx) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Records a batch in the transaction, as [`ReadStore::settle`](super::ReadStore::settle) does in one of its own: it
    /// first locks the node's row and finds the lease in force, and keeps the lock to the end. `Fenced`, or a stale
    /// outcome, must be followed by a rollback: the work is not this node's any more.
    fn settle_in<'a>(
        &'a self,
        tx: &'a mut Self::Tx,
        lease: &'a Lease,
        batch: &'a Batch,
    ) -> BoxFuture<'a, Result<Settled, StoreError>>;

    /// Those of the rows that wait for their outcome still, once no transaction is open that has settled one of them: for a
    /// caller who does not know whether his commit took effect.
    fn unsettled<'a>(&'a self, seqs: &'a [Seq]) -> BoxFuture<'a, Result<Vec<Seq>, StoreError>>;
}

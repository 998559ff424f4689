//! Transactions of transactional handlers.

use pillarbox_core::{
    domain::{Lease, Seq},
    port::{Batch, BoxFuture, SettleStore, Settled, StoreError, TransactStore as _},
};

use super::{MemoryStore, MemoryTx};

impl SettleStore for MemoryStore {
    fn begin_work(&self) -> BoxFuture<'_, Result<MemoryTx, StoreError>> {
        Box::pin(async {
            tokio::task::yield_now().await;
            self.begin().await
        })
    }

    fn keep<'a>(&'a self, tx: &'a mut MemoryTx) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async {
            tx.set_savepoint();
            Ok(())
        })
    }

    fn undo<'a>(&'a self, tx: &'a mut MemoryTx) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async {
            tx.undo();
            Ok(())
        })
    }

    fn settle_in<'a>(
        &'a self,
        tx: &'a mut MemoryTx,
        lease: &'a Lease,
        batch: &'a Batch,
    ) -> BoxFuture<'a, Result<Settled, StoreError>> {
        Box::pin(async {
            tokio::task::yield_now().await;
            Ok(tx.settle(lease, batch))
        })
    }

    fn unsettled<'a>(&'a self, seqs: &'a [Seq]) -> BoxFuture<'a, Result<Vec<Seq>, StoreError>> {
        Box::pin(async move {
            let pending = self.run(|tables, _| {
                let pending = |seq: &Seq| tables.row(*seq).is_some_and(|row| row.status.is_pending());
                seqs.iter().copied().filter(pending).collect()
            });
            Ok(pending.await)
        })
    }
}

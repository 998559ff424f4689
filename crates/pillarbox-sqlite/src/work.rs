//! Transactions of transactional handlers: work and settle commit together.
//!
//! They hold the write lock from their begin to their end, so the fence may come last: nobody can expel the node meanwhile.
//! When the process dies before the commit, the file has nothing of them; after it, everything.

use pillarbox_core::domain::{Lease, Seq};
use pillarbox_core::port::{Batch, BoxFuture, SettleStore, Settled, StoreError, TransactStore as _};

use crate::{SqliteStore, SqliteTransaction, error};

const SAVEPOINT: &str = "savepoint pillarbox_work";
const KEEP: &str = "release pillarbox_work; savepoint pillarbox_work";
const UNDO: &str = "rollback to pillarbox_work";

async fn run(tx: &mut SqliteTransaction, sql: &'static str) -> Result<(), StoreError> {
    sqlx::raw_sql(sql).execute(&mut **tx).await.map(drop).map_err(error::of)
}

impl SettleStore for SqliteStore {
    fn begin_work(&self) -> BoxFuture<'_, Result<SqliteTransaction, StoreError>> {
        Box::pin(async {
            let mut tx = self.begin().await?;
            run(&mut tx, SAVEPOINT).await?;
            Ok(tx)
        })
    }

    fn keep<'a>(&'a self, tx: &'a mut SqliteTransaction) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(run(tx, KEEP))
    }

    fn undo<'a>(&'a self, tx: &'a mut SqliteTransaction) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(run(tx, UNDO))
    }

    fn settle_in<'a>(
        &'a self,
        tx: &'a mut SqliteTransaction,
        lease: &'a Lease,
        batch: &'a Batch,
    ) -> BoxFuture<'a, Result<Settled, StoreError>> {
        Box::pin(self.settle_on(tx, lease, batch))
    }

    fn unsettled<'a>(&'a self, seqs: &'a [Seq]) -> BoxFuture<'a, Result<Vec<Seq>, StoreError>> {
        Box::pin(self.pending(seqs))
    }
}

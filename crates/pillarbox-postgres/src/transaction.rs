//! The store's own transaction, and its commit.

use std::ops::{Deref, DerefMut};

use pillarbox_core::domain::{EventId, Seq};
use pillarbox_core::port::{BoxFuture, NewKey, NewRow, StoreError, TransactStore, WriteStore};
use sqlx::{PgConnection, Postgres, Transaction};

use crate::{PostgresStore, error};

/// Commits, or fails. PostgreSQL answers a bare `commit` after a failed statement with a rollback and no error, so that
/// an event could be delivered whose transaction is not in effect: something that fails then goes first. The driver
/// does not know of this commit and rolls back when its transaction is dropped, so it finds an empty one to end.
const COMMIT: &str = "select 1; commit; begin";

/// A transaction of the store's. `&mut *tx` is the driver's connection; dropping it rolls back.
#[derive(Debug)]
pub struct PostgresTransaction {
    tx: Transaction<'static, Postgres>,
    /// Whether a statement that we know nothing of may have failed since the last one of ours succeeded.
    doubtful: bool,
}

impl Deref for PostgresTransaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.tx
    }
}

impl DerefMut for PostgresTransaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.doubtful = true;
        &mut self.tx
    }
}

impl WriteStore<PostgresTransaction> for PostgresStore {
    fn insert<'a>(
        &'a self,
        tx: &'a mut PostgresTransaction,
        rows: &'a [NewRow],
    ) -> BoxFuture<'a, Result<Vec<Seq>, StoreError>> {
        Box::pin(async move {
            let seqs = self.insert(tx.by_us(), rows).await?;
            // In a transaction that has failed, this would have, too.
            tx.doubtful &= rows.is_empty();
            Ok(seqs)
        })
    }

    fn enter_keys<'a>(
        &'a self,
        tx: &'a mut PostgresTransaction,
        keys: &'a [NewKey<'a>],
    ) -> BoxFuture<'a, Result<Vec<Option<EventId>>, StoreError>> {
        Box::pin(async move { self.enter_keys(tx.by_us(), keys).await })
    }
}

impl PostgresTransaction {
    /// For a statement of ours: until it has succeeded, what comes of it is in doubt.
    fn by_us(&mut self) -> &mut Transaction<'static, Postgres> {
        self.doubtful = true;
        &mut self.tx
    }
}

impl TransactStore for PostgresStore {
    type Connection = PgConnection;
    type Tx = PostgresTransaction;

    fn begin(&self) -> BoxFuture<'_, Result<Self::Tx, StoreError>> {
        Box::pin(async {
            let tx = self.0.pool.begin().await.map_err(error::of)?;
            Ok(PostgresTransaction { tx, doubtful: false })
        })
    }

    fn commit(&self, tx: Self::Tx) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let PostgresTransaction { mut tx, doubtful } = tx;
            if doubtful {
                return sqlx::raw_sql(COMMIT).execute(&mut *tx).await.map_err(error::of_commit).map(drop);
            }
            tx.commit().await.map_err(error::of_commit)
        })
    }

    fn rollback(&self, tx: Self::Tx) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async { tx.tx.rollback().await.map_err(error::of) })
    }
}

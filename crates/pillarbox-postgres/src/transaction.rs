//! The store's own transaction, and its commit.

use std::ops::{Deref, DerefMut};

use pillarbox_core::port::{BoxFuture, StoreError, TransactStore};
use sqlx::{PgConnection, Postgres, Transaction};

use crate::{
    PostgresStore, error,
    writer::{InTransaction, Statement, Value},
};

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

impl InTransaction for PostgresTransaction {
    async fn numbers(&mut self, statement: Statement<'_>, values: Vec<Value<'_>>) -> Result<Vec<i64>, StoreError> {
        // Until it has succeeded; in a transaction that has failed, this fails too.
        self.doubtful = true;
        let numbers = self.tx.numbers(statement, values).await?;
        self.doubtful = false;
        Ok(numbers)
    }

    async fn pairs(
        &mut self,
        statement: Statement<'_>,
        values: Vec<Value<'_>>,
    ) -> Result<Vec<(String, String)>, StoreError> {
        self.doubtful = true;
        let pairs = self.tx.pairs(statement, values).await?;
        self.doubtful = false;
        Ok(pairs)
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

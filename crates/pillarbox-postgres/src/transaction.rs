//! The store's own transaction, and its commit.
//!
//! A process that dies before the commit leaves nothing: the server rolls back when the connection is gone. One that dies
//! after it has committed, and the reader finds the rows.

use std::ops::{Deref, DerefMut};

use pillarbox_core::port::{BoxFuture, StoreError, TransactStore};
use sqlx::{PgConnection, PgPool, SqlStr, postgres::PgTransactionManager};
use sqlx_core::transaction::TransactionManager as _;

use crate::{
    PostgresStore, error,
    kept::{Kept, Lent},
    write,
    writer::{InTransaction, Statement, Value},
};

/// Commits, or fails. PostgreSQL answers a bare `commit` after a failed statement with a rollback and no error, so that
/// an event could be delivered whose transaction is not in effect: something that fails then goes first. The driver
/// does not know of this commit and rolls back when the transaction is dropped, so it finds an empty one to end.
const COMMIT: &str = "select 1; commit; begin";

/// A transaction of the store's. `&mut *tx` is the driver's connection; dropping it rolls back.
#[derive(Debug)]
pub struct PostgresTransaction {
    /// Until it has ended.
    lent: Option<Lent>,
    /// Whether a statement that we know nothing of may have failed since the last one of ours succeeded.
    doubtful: bool,
    /// For handlers' work.
    works: bool,
}

impl PostgresTransaction {
    /// Begins on a connection of a pool, or on one of it that was kept.
    pub(crate) async fn begin(
        pool: &PgPool,
        kept: &Kept,
        statement: Option<&'static str>,
        works: bool,
    ) -> Result<Self, StoreError> {
        // One that was used a moment ago gives no sign of life first. If the server has ended it since, nothing has begun, and
        // the next one is taken; others may have been lost with it.
        for _ in 0..pool.size() {
            let lent = kept.take(pool).await.map_err(error::of)?;
            match Self::begin_on(lent, statement, works).await {
                Err(error) if error::is_lost(&error) => {}
                begun => return begun.map_err(error::of),
            }
        }
        let lent = kept.take(pool).await.map_err(error::of)?;
        Self::begin_on(lent, statement, works).await.map_err(error::of)
    }

    async fn begin_on(lent: Lent, statement: Option<&'static str>, works: bool) -> Result<Self, sqlx::Error> {
        // Ours from here on: a begin that is cut off is noticed when it is dropped.
        let mut tx = Self { lent: Some(lent), doubtful: false, works };
        PgTransactionManager::begin(tx.connection(), statement.map(SqlStr::from_static)).await?;
        Ok(tx)
    }

    /// The connection, for statements of ours, and a word to be set when they have succeeded.
    pub(crate) fn sound(&mut self) -> (&mut PgConnection, &mut bool) {
        (&mut self.lent.as_mut().expect(OPEN).connection, &mut self.doubtful)
    }

    fn connection(&mut self) -> &mut PgConnection {
        &mut self.lent.as_mut().expect(OPEN).connection
    }
}

const OPEN: &str = "a transaction has its connection until it ends";

impl Deref for PostgresTransaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.lent.as_ref().expect(OPEN).connection
    }
}

impl DerefMut for PostgresTransaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.doubtful = true;
        self.connection()
    }
}

impl Drop for PostgresTransaction {
    fn drop(&mut self) {
        let Some(lent) = &mut self.lent else { return };
        if PgTransactionManager::get_transaction_depth(&lent.connection) == 0 {
            // A begin that was cut off: the driver does not know whether the server has begun.
            lent.connection.close_on_drop();
        } else {
            PgTransactionManager::start_rollback(&mut lent.connection);
        }
    }
}

impl InTransaction for PostgresTransaction {
    async fn numbers(&mut self, statement: Statement<'_>, values: Vec<Value<'_>>) -> Result<Vec<i64>, StoreError> {
        // Until it has succeeded; in a transaction that has failed, this fails too.
        self.doubtful = true;
        let numbers = write::numbers(self.connection(), statement, values).await?;
        self.doubtful = false;
        Ok(numbers)
    }

    async fn pairs(
        &mut self,
        statement: Statement<'_>,
        values: Vec<Value<'_>>,
    ) -> Result<Vec<(String, String)>, StoreError> {
        self.doubtful = true;
        let pairs = write::pairs(self.connection(), statement, values).await?;
        self.doubtful = false;
        Ok(pairs)
    }
}

impl PostgresStore {
    fn ended(&self, mut tx: PostgresTransaction) {
        let Some(lent) = tx.lent.take() else { return };
        if tx.works {
            self.0.work.kept.keep(&self.0.work.pool, lent);
        } else {
            self.0.kept.keep(&self.0.pool, lent);
        }
    }
}

impl TransactStore for PostgresStore {
    type Connection = PgConnection;
    type Tx = PostgresTransaction;

    fn begin(&self) -> BoxFuture<'_, Result<Self::Tx, StoreError>> {
        Box::pin(PostgresTransaction::begin(&self.0.pool, &self.0.kept, None, false))
    }

    fn commit(&self, mut tx: Self::Tx) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            if tx.doubtful {
                return sqlx::raw_sql(COMMIT).execute(tx.connection()).await.map_err(error::of_commit).map(drop);
            }
            PgTransactionManager::commit(tx.connection()).await.map_err(error::of_commit)?;
            self.ended(tx);
            Ok(())
        })
    }

    fn rollback(&self, mut tx: Self::Tx) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            PgTransactionManager::rollback(tx.connection()).await.map_err(error::of)?;
            self.ended(tx);
            Ok(())
        })
    }
}

//! Transactions of transactional handlers: work and settle commit together.
//!
//! They have connections of their own, made as the application's pool makes its own: who waits for that pool while such a
//! handler runs, or is that handler, does not wait for these.
//!
//! When the process dies before the commit, the server rolls back; after it, everything is in effect.

use pillarbox_core::domain::{Lease, Seq};
use pillarbox_core::port::{Batch, BoxFuture, SettleStore, Settled, StoreError};
use sqlx::{PgPool, Row as _};

use crate::{PostgresStore, PostgresTransaction, error, kept::Kept, life};

const BEGIN: &str = "begin isolation level read committed read write; savepoint pillarbox_work";
/// Fails in a transaction in which a statement has failed.
const KEEP: &str = "release savepoint pillarbox_work; savepoint pillarbox_work";
const UNDO: &str = "rollback to savepoint pillarbox_work";

/// The connections for it.
pub(crate) struct Work {
    pub(crate) pool: PgPool,
    pub(crate) kept: Kept,
}

impl Work {
    /// As many as a pool has, opened when they are needed, with its hooks.
    pub(crate) fn beside(pool: &PgPool) -> Self {
        let options = pool.options().clone().min_connections(0);
        Self { pool: options.connect_lazy_with(pool.connect_options().as_ref().clone()), kept: Kept::new() }
    }
}

async fn run(tx: &mut PostgresTransaction, sql: &'static str) -> Result<(), StoreError> {
    let (connection, doubtful) = tx.sound();
    *doubtful = true;
    sqlx::raw_sql(sql).execute(connection).await.map_err(error::of)?;
    *doubtful = false;
    Ok(())
}

impl SettleStore for PostgresStore {
    fn begin_work(&self) -> BoxFuture<'_, Result<PostgresTransaction, StoreError>> {
        let Work { pool, kept } = &self.0.work;
        Box::pin(PostgresTransaction::begin(pool, kept, Some(BEGIN), true))
    }

    fn keep<'a>(&'a self, tx: &'a mut PostgresTransaction) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.within(run(tx, KEEP)))
    }

    fn undo<'a>(&'a self, tx: &'a mut PostgresTransaction) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.within(run(tx, UNDO)))
    }

    fn settle_in<'a>(
        &'a self,
        tx: &'a mut PostgresTransaction,
        lease: &'a Lease,
        batch: &'a Batch,
    ) -> BoxFuture<'a, Result<Settled, StoreError>> {
        Box::pin(self.within(async move {
            let (connection, doubtful) = tx.sound();
            *doubtful = true;
            let fence = self.query(&self.0.sql.own.fence_work).bind(lease.incarnation.0).bind(lease.node.as_str());
            let Some(fenced) = fence.fetch_optional(&mut *connection).await.map_err(error::of)? else {
                return Ok(Settled::Fenced);
            };
            life::is_present(&fenced)?;
            let stale = self.apply(connection, lease, batch).await.map_err(error::of)?;
            *doubtful = false;
            Ok(Settled::Applied { stale })
        }))
    }

    fn unsettled<'a>(&'a self, seqs: &'a [Seq]) -> BoxFuture<'a, Result<Vec<Seq>, StoreError>> {
        Box::pin(self.within(async move {
            let mut entered = self.0.settles.enter().await?;
            entered.begin().await?;
            let unsettled =
                self.query(&self.0.sql.settle.unsettled).bind(seqs.iter().map(|seq| seq.0).collect::<Vec<_>>());
            let rows = unsettled.fetch_all(entered.connection().map_err(error::of)?).await.map_err(error::of)?;
            entered.rollback().await?;
            rows.iter().map(|row| row.try_get(0).map(Seq)).collect::<Result<_, _>>().map_err(error::of)
        }))
    }
}

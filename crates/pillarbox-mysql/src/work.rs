//! Transactions of transactional handlers: work and settle commit together.
//!
//! They have connections of their own, made as the application's pool makes its own: who waits for that pool while such a
//! handler runs, or is that handler, does not wait for these. Their isolation level is that of settles, READ COMMITTED.
//!
//! When the process dies before the commit, the server rolls back; after it, everything is in effect.

use std::time::Duration;

use pillarbox_core::domain::{Lease, Seq};
use pillarbox_core::port::{Batch, BoxFuture, SettleStore, Settled, StoreError};
use sqlx::{Executor as _, MySql, MySqlPool, SqlStr, Transaction};

use crate::{
    MySqlStore,
    connection::retried,
    error,
    life::{Life, present},
    settle::locked,
};

/// A handler may let its transaction rest, as long as its timeout allows.
const BEGIN: &str = "set session transaction isolation level read committed; \
     set session time_zone = coalesce(@pillarbox_zone, @@session.time_zone), session wait_timeout = default \
     /*M!100600 , session idle_transaction_timeout = default */; \
     start transaction; savepoint pillarbox; savepoint pillarbox_work";
/// Fails if the server has rolled the transaction back, as it does after a deadlock, and the handler did not mind.
const KEEP: &str = "release savepoint pillarbox_work; savepoint pillarbox_work";
const UNDO: &str = "rollback to savepoint pillarbox_work";
/// From the fence on the node's row is locked, and a session that stands still is ended by the server; and times are UTC, as
/// the tables have them, whatever the application has set. Tells the server's life, which each of these connections asks for
/// once.
const HURRY: &str = concat!(
    "set @pillarbox_zone = @@session.time_zone, session time_zone = '+00:00', session wait_timeout = 15, \
     @pillarbox_life = coalesce(@pillarbox_life, ",
    present!(),
    ") /*M!100600 , session idle_transaction_timeout = 10 */; select convert(@pillarbox_life using utf8mb4)"
);

/// After so long without use a connection is closed, at the latest in twice this time: before the server does so by the
/// `wait_timeout` that [`HURRY`] leaves behind.
const REST: Duration = Duration::from_secs(5);

/// As many connections as a pool has, opened when they are needed, with its hooks.
pub(crate) fn beside(pool: &MySqlPool) -> MySqlPool {
    let options = pool.options().clone().min_connections(0);
    let rest = options.get_idle_timeout().map_or(REST, |own| own.min(REST));
    let options = options.idle_timeout(rest);
    options.connect_lazy_with(pool.connect_options().as_ref().clone())
}

async fn run(tx: &mut Transaction<'static, MySql>, sql: &'static str) -> Result<(), StoreError> {
    tx.execute(sql).await.map(drop).map_err(error::of)
}

impl SettleStore for MySqlStore {
    fn begin_work(&self) -> BoxFuture<'_, Result<Transaction<'static, MySql>, StoreError>> {
        Box::pin(async { self.0.work.begin_with(SqlStr::from_static(BEGIN)).await.map_err(error::of) })
    }

    fn keep<'a>(&'a self, tx: &'a mut Transaction<'static, MySql>) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.within(run(tx, KEEP)))
    }

    fn undo<'a>(&'a self, tx: &'a mut Transaction<'static, MySql>) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.within(run(tx, UNDO)))
    }

    fn settle_in<'a>(
        &'a self,
        tx: &'a mut Transaction<'static, MySql>,
        lease: &'a Lease,
        batch: &'a Batch,
    ) -> BoxFuture<'a, Result<Settled, StoreError>> {
        Box::pin(self.within(async move {
            let hurried = tx.fetch_one(HURRY).await.map_err(error::of)?;
            self.compare_life(Some(lease), &Life::told(&hurried).map_err(error::of)?)?;
            if !self.in_force(tx, lease).await? {
                return Ok(Settled::Fenced);
            }
            let stale = self.settle_behind_fence(tx, lease, batch).await?;
            Ok(Settled::Applied { stale })
        }))
    }

    fn unsettled<'a>(&'a self, seqs: &'a [Seq]) -> BoxFuture<'a, Result<Vec<Seq>, StoreError>> {
        Box::pin(self.within(retried(move || async move {
            let mut tx = self.0.settles.begin().await?;
            let pending = locked(&mut tx, &self.0.sql.settle.dying, seqs).await.map_err(error::of)?;
            tx.rollback().await?;
            Ok(pending)
        })))
    }
}

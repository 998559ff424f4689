//! Transactions of whichever database.

use std::ops::{Deref, DerefMut};

use pillarbox_core::{
    domain::{EventId, Lease, Seq},
    port::{
        Batch, BoxFuture, NewKey, NewRow, SettleStore, Settled, StoreError, StoreErrorKind, TransactStore, WriteStore,
    },
};

use super::AnyStore;

/// A transaction of an [`AnyStore`]. Dropping it rolls back.
#[derive(Debug)]
pub struct AnyTransaction(AnyConnection);

/// The open transaction of one of the databases. Its methods give the driver's connection, for statements of
/// one's own in that database's dialect.
///
/// ```
/// # use pillarbox::{AnyStore, Outbox};
/// # async fn example(outbox: Outbox<AnyStore>) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = outbox.begin().await?;
/// if let Some(sqlite) = tx.sqlite() {
///     sqlx::query("insert into orders values (7)").execute(sqlite).await?;
/// }
/// tx.commit().await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum AnyConnection {
    /// SQLite's.
    #[cfg(feature = "sqlite")]
    Sqlite(<crate::SqliteStore as TransactStore>::Tx),
    /// PostgreSQL's.
    #[cfg(feature = "postgres")]
    Postgres(<crate::PostgresStore as TransactStore>::Tx),
    /// MySQL's or MariaDB's.
    #[cfg(feature = "mysql")]
    MySql(<crate::MySqlStore as TransactStore>::Tx),
}

impl AnyConnection {
    /// The connection, if the database is SQLite.
    #[cfg(feature = "sqlite")]
    pub fn sqlite(&mut self) -> Option<&mut <crate::SqliteStore as TransactStore>::Connection> {
        match self {
            Self::Sqlite(tx) => Some(tx),
            #[allow(unreachable_patterns, reason = "there may be no other database in this build")]
            _ => None,
        }
    }

    /// The connection, if the database is PostgreSQL.
    #[cfg(feature = "postgres")]
    pub fn postgres(&mut self) -> Option<&mut <crate::PostgresStore as TransactStore>::Connection> {
        match self {
            Self::Postgres(tx) => Some(tx),
            #[allow(unreachable_patterns, reason = "there may be no other database in this build")]
            _ => None,
        }
    }

    /// The connection, if the database is MySQL or MariaDB.
    #[cfg(feature = "mysql")]
    pub fn mysql(&mut self) -> Option<&mut <crate::MySqlStore as TransactStore>::Connection> {
        match self {
            Self::MySql(tx) => Some(tx),
            #[allow(unreachable_patterns, reason = "there may be no other database in this build")]
            _ => None,
        }
    }
}

impl Deref for AnyTransaction {
    type Target = AnyConnection;

    fn deref(&self) -> &AnyConnection {
        &self.0
    }
}

impl DerefMut for AnyTransaction {
    fn deref_mut(&mut self) -> &mut AnyConnection {
        &mut self.0
    }
}

/// Calls a store with the transaction of its own kind.
macro_rules! with_same_kind {
    ($store:expr, $tx:expr, |$inner:ident, $of:ident| $call:expr) => {
        match ($store, $tx) {
            #[cfg(feature = "sqlite")]
            (AnyStore::Sqlite($inner), AnyConnection::Sqlite($of)) => $call,
            #[cfg(feature = "postgres")]
            (AnyStore::Postgres($inner), AnyConnection::Postgres($of)) => $call,
            #[cfg(feature = "mysql")]
            (AnyStore::MySql($inner), AnyConnection::MySql($of)) => $call,
            #[allow(unreachable_patterns, reason = "there may be no other database in this build")]
            _ => Box::pin(std::future::ready(Err(another_kind()))),
        }
    };
}

fn another_kind() -> StoreError {
    StoreError::new(StoreErrorKind::Rejected, "the transaction is of another database: begin it on this store")
}

impl WriteStore<AnyTransaction> for AnyStore {
    fn insert<'a>(
        &'a self,
        tx: &'a mut AnyTransaction,
        rows: &'a [NewRow],
    ) -> BoxFuture<'a, Result<Vec<Seq>, StoreError>> {
        with_same_kind!(self, &mut tx.0, |store, tx| store.insert(tx, rows))
    }

    fn enter_keys<'a>(
        &'a self,
        tx: &'a mut AnyTransaction,
        keys: &'a [NewKey<'a>],
    ) -> BoxFuture<'a, Result<Vec<Option<EventId>>, StoreError>> {
        with_same_kind!(self, &mut tx.0, |store, tx| store.enter_keys(tx, keys))
    }
}

impl TransactStore for AnyStore {
    type Connection = AnyConnection;
    type Tx = AnyTransaction;

    fn begin(&self) -> BoxFuture<'_, Result<AnyTransaction, StoreError>> {
        Box::pin(async move {
            Ok(AnyTransaction(match self {
                #[cfg(feature = "sqlite")]
                Self::Sqlite(store) => AnyConnection::Sqlite(store.begin().await?),
                #[cfg(feature = "postgres")]
                Self::Postgres(store) => AnyConnection::Postgres(store.begin().await?),
                #[cfg(feature = "mysql")]
                Self::MySql(store) => AnyConnection::MySql(store.begin().await?),
            }))
        })
    }

    fn commit(&self, tx: AnyTransaction) -> BoxFuture<'_, Result<(), StoreError>> {
        with_same_kind!(self, tx.0, |store, tx| store.commit(tx))
    }

    fn rollback(&self, tx: AnyTransaction) -> BoxFuture<'_, Result<(), StoreError>> {
        with_same_kind!(self, tx.0, |store, tx| store.rollback(tx))
    }
}

impl SettleStore for AnyStore {
    fn begin_work(&self) -> BoxFuture<'_, Result<AnyTransaction, StoreError>> {
        Box::pin(async move {
            Ok(AnyTransaction(match self {
                #[cfg(feature = "sqlite")]
                Self::Sqlite(store) => AnyConnection::Sqlite(store.begin_work().await?),
                #[cfg(feature = "postgres")]
                Self::Postgres(store) => AnyConnection::Postgres(store.begin_work().await?),
                #[cfg(feature = "mysql")]
                Self::MySql(store) => AnyConnection::MySql(store.begin_work().await?),
            }))
        })
    }

    fn keep<'a>(&'a self, tx: &'a mut AnyTransaction) -> BoxFuture<'a, Result<(), StoreError>> {
        with_same_kind!(self, &mut tx.0, |store, tx| store.keep(tx))
    }

    fn undo<'a>(&'a self, tx: &'a mut AnyTransaction) -> BoxFuture<'a, Result<(), StoreError>> {
        with_same_kind!(self, &mut tx.0, |store, tx| store.undo(tx))
    }

    fn settle_in<'a>(
        &'a self,
        tx: &'a mut AnyTransaction,
        lease: &'a Lease,
        batch: &'a Batch,
    ) -> BoxFuture<'a, Result<Settled, StoreError>> {
        with_same_kind!(self, &mut tx.0, |store, tx| store.settle_in(tx, lease, batch))
    }

    fn unsettled<'a>(&'a self, seqs: &'a [Seq]) -> BoxFuture<'a, Result<Vec<Seq>, StoreError>> {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => store.unsettled(seqs),
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store.unsettled(seqs),
            #[cfg(feature = "mysql")]
            Self::MySql(store) => store.unsettled(seqs),
        }
    }
}

//! Pillarbox events in transactions of `diesel-async`, on PostgreSQL, MySQL, MariaDB and SQLite.
//!
//! ```no_run
//! use diesel_async::{AsyncPgConnection, SimpleAsyncConnection};
//! use pillarbox_core::{Event, Outbox};
//! use pillarbox_postgres::PostgresStore;
//!
//! # async fn example(
//! #     outbox: Outbox<PostgresStore>,
//! #     connection: &mut AsyncPgConnection,
//! # ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let receipt = pillarbox_diesel::transaction(connection, async |mut tx| {
//!     // `&mut *tx` is the connection, for the application's own statements.
//!     tx.batch_execute("insert into orders (id) values ('order-7')").await?;
//!     let placed = Event::builder("OrderPlaced").key("order-7").json(&7);
//!     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(outbox.write(&mut tx, placed).await?)
//! })
//! .await?;
//! receipt.confirm();
//! # Ok(()) }
//! ```
//!
//! Whoever is in a transaction already, that of `connection.transaction(..)` for one, writes with [`Diesel::new`],
//! which fails at once where there is none:
//!
//! ```no_run
//! # use diesel_async::{AsyncConnection, AsyncPgConnection};
//! # use pillarbox_core::{Event, Outbox};
//! # use pillarbox_postgres::PostgresStore;
//! use pillarbox_diesel::Diesel;
//!
//! # async fn example(
//! #     outbox: Outbox<PostgresStore>,
//! #     connection: &mut AsyncPgConnection,
//! # ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let receipt = connection
//!     .transaction(async |connection| {
//!         let placed = Event::builder("OrderPlaced").key("order-7").json(&7);
//!         let receipt = outbox.write(&mut Diesel::new(connection)?, placed).await?;
//!         Ok::<_, Box<dyn std::error::Error + Send + Sync>>(receipt)
//!     })
//!     .await?;
//! receipt.confirm();
//! # Ok(()) }
//! ```
//!
//! A connection alone is refused by the compiler:
//!
//! ```compile_fail,E0277
//! # use diesel_async::AsyncPgConnection;
//! # use pillarbox_core::{Event, Outbox};
//! # use pillarbox_postgres::PostgresStore;
//! # async fn example(
//! #     outbox: Outbox<PostgresStore>,
//! #     connection: &mut AsyncPgConnection,
//! # ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let receipt = outbox.write(connection, Event::builder("OrderPlaced").json(&7)).await?;
//! # Ok(()) }
//! ```
//!
//! The connection must be one to the outbox's database, and find its tables.
//!
//! # Features
//! | feature | transactions of | the outbox's store |
//! |---|---|---|
//! | `postgres`, on by default | `AsyncPgConnection` | `PostgresStore` |
//! | `mysql` | `AsyncMysqlConnection`, to MySQL and MariaDB | `MySqlStore` |
//! | `sqlite` | `SyncConnectionWrapper<SqliteConnection>` | `SqliteStore` |
//!
//! What is particular to each is told at [`Connection`].

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(any(feature = "mysql", feature = "sqlite"))]
mod prepared;
#[cfg(feature = "sqlite")]
mod sqlite;

#[cfg(not(any(feature = "postgres", feature = "mysql", feature = "sqlite")))]
compile_error!("name the database: enable the feature `postgres`, `mysql` or `sqlite` of pillarbox-diesel");

use std::{
    fmt,
    ops::{Deref, DerefMut},
};

use diesel_async::{AsyncConnection, TransactionManager as _};
use pillarbox_core::engine::WriteError;
use pillarbox_core::port::{StoreError, StoreErrorKind};

/// A connection in a transaction, to write events in. `&mut *tx` is the connection.
pub struct Diesel<'c, C>(&'c mut C);

impl<'c, C: Connection> Diesel<'c, C> {
    /// For a connection that is in a transaction already. Where there is none, it is an error.
    pub fn new(connection: &'c mut C) -> Result<Self, WriteError> {
        let mut tx = Self(connection);
        tx.check()?;
        Ok(tx)
    }

    /// The transaction may have been ended through the connection: asked before each write, which costs nothing.
    fn check(&mut self) -> Result<(), StoreError> {
        match C::TransactionManager::transaction_manager_status_mut(self.0).transaction_depth() {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(no_transaction()),
            Err(error) => Err(C::error(error)),
        }
    }
}

/// Runs `work` in a transaction, or in a savepoint of the one that is open: commits if it succeeds, and rolls back if
/// it fails. As `connection.transaction(..)` of `diesel-async`, with a [`Diesel`] for the events; on SQLite it is begun
/// with `begin immediate`.
///
/// Return the receipts of the events from `work`, and confirm them afterwards.
pub async fn transaction<C, T, E>(
    connection: &mut C,
    work: impl AsyncFnOnce(Diesel<'_, C>) -> Result<T, E>,
) -> Result<T, E>
where
    C: Connection,
    E: From<diesel::result::Error>,
{
    C::begin(connection).await?;
    match work(Diesel(connection)).await {
        Ok(done) => {
            C::TransactionManager::commit_transaction(connection).await?;
            Ok(done)
        }
        Err(error) => match C::TransactionManager::rollback_transaction(connection).await {
            // What broke the connection is told by the first error.
            Ok(()) | Err(diesel::result::Error::BrokenTransactionManager) => Err(error),
            Err(rollback) => Err(rollback.into()),
        },
    }
}

/// A connection of `diesel-async` that events are written on: [one to PostgreSQL](#impl-Connection-for-AsyncPgConnection),
/// [to MySQL or MariaDB](#impl-Connection-for-AsyncMysqlConnection), or
/// [to SQLite](#impl-Connection-for-SyncConnectionWrapper<SqliteConnection>). Each with the feature of its name.
pub trait Connection: AsyncConnection + sealed::Connection {}

mod sealed {
    use diesel::QueryResult;
    use pillarbox_core::port::StoreError;

    pub trait Connection: Sized {
        /// Begins a transaction, or a savepoint.
        fn begin(connection: &mut Self) -> impl Future<Output = QueryResult<()>> + Send;

        /// What an error of diesel's means to the caller.
        fn error(error: diesel::result::Error) -> StoreError;
    }
}

impl<C> Deref for Diesel<'_, C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.0
    }
}

impl<C> DerefMut for Diesel<'_, C> {
    fn deref_mut(&mut self) -> &mut C {
        self.0
    }
}

impl<C> fmt::Debug for Diesel<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Diesel").finish_non_exhaustive()
    }
}

fn no_transaction() -> StoreError {
    StoreError::new(
        StoreErrorKind::Rejected,
        "the connection is in no transaction: write events in `pillarbox_diesel::transaction` or in \
         `connection.transaction`, so that they commit together with the data they tell of",
    )
}

//! Pillarbox events in transactions of SeaORM, on PostgreSQL, MySQL, MariaDB and SQLite.
//!
//! ```no_run
//! use pillarbox_core::{Event, Outbox};
//! use pillarbox_postgres::PostgresStore;
//! use pillarbox_sea_orm::SeaOrm;
//! use sea_orm::{ConnectionTrait, DatabaseConnection, TransactionTrait};
//!
//! # async fn example(
//! #     outbox: Outbox<PostgresStore>,
//! #     database: DatabaseConnection,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! let tx = database.begin().await?;
//! tx.execute_unprepared("insert into orders (id) values ('order-7')").await?;
//! let placed = Event::builder("OrderPlaced").key("order-7").json(&7);
//! let receipt = outbox.write(&mut SeaOrm(&tx), placed).await?;
//! tx.commit().await?;
//! receipt.confirm();
//! # Ok(()) }
//! ```
//!
//! A connection without a transaction is refused by the compiler:
//!
//! ```compile_fail,E0308
//! # use pillarbox_core::{Event, Outbox};
//! # use pillarbox_postgres::PostgresStore;
//! # use pillarbox_sea_orm::SeaOrm;
//! # async fn example(
//! #     outbox: Outbox<PostgresStore>,
//! #     database: sea_orm::DatabaseConnection,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! let receipt = outbox.write(&mut SeaOrm(&database), Event::builder("OrderPlaced").json(&7)).await?;
//! # Ok(()) }
//! ```
//!
//! The connection must be one to the outbox's database, and find its tables. A transaction on a database of another
//! kind is refused when it is used.
//!
//! # Features
//! | feature | transactions on | the outbox's store |
//! |---|---|---|
//! | `postgres`, on by default | PostgreSQL | `PostgresStore` |
//! | `mysql` | MySQL, MariaDB | `MySqlStore` |
//! | `sqlite` | SQLite | `SqliteStore` |
//!
//! On SQLite begin with `begin immediate`, that is `database.begin_with_options(..)` with
//! `SqliteTransactionMode::Immediate`: a transaction that reads before it writes may fail otherwise, for another may
//! have written in between. [`SeaOrm`] shows how.

#[cfg(feature = "postgres")]
mod literal;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

#[cfg(not(any(feature = "postgres", feature = "mysql", feature = "sqlite")))]
compile_error!("name the database: enable the feature `postgres`, `mysql` or `sqlite` of pillarbox-sea-orm");

use std::sync::Arc;

use pillarbox_core::port::{StoreError, StoreErrorKind};
use sea_orm::{ConnectionTrait as _, DatabaseTransaction, DbBackend, DbErr, RuntimeErr, SqlxError, Statement, Value};

/// A transaction of the application's own, to write events in.
#[derive(Debug)]
pub struct SeaOrm<'t>(pub &'t DatabaseTransaction);

impl SeaOrm<'_> {
    /// A statement for the outbox's database, if the transaction is on one of its kind.
    fn statement(
        &self,
        outbox: DbBackend,
        sql: &str,
        values: impl IntoIterator<Item = Value>,
    ) -> Result<Statement, StoreError> {
        let backend = self.0.get_database_backend();
        if backend != outbox {
            return Err(StoreError::new(
                StoreErrorKind::Rejected,
                format!(
                    "the transaction is on {}, and the outbox on {}: begin it on a connection to the outbox's database",
                    name(backend),
                    name(outbox)
                ),
            ));
        }
        Ok(Statement::from_sql_and_values(outbox, sql, values))
    }
}

fn name(backend: DbBackend) -> &'static str {
    match backend {
        DbBackend::Postgres => "PostgreSQL",
        DbBackend::MySql => "MySQL or MariaDB",
        DbBackend::Sqlite => "SQLite",
        _ => "another database",
    }
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
fn pair(row: &sea_orm::QueryResult) -> Result<(String, String), DbErr> {
    Ok((row.try_get_by_index(0)?, row.try_get_by_index(1)?))
}

/// What the database's driver says.
fn cause(error: &DbErr) -> Option<Arc<SqlxError>> {
    match error {
        DbErr::Conn(RuntimeErr::SqlxError(cause))
        | DbErr::Exec(RuntimeErr::SqlxError(cause))
        | DbErr::Query(RuntimeErr::SqlxError(cause)) => Some(cause.clone()),
        _ => None,
    }
}

fn is_broken(cause: &SqlxError) -> bool {
    matches!(cause, SqlxError::Io(_) | SqlxError::Protocol(_) | SqlxError::WorkerCrashed | SqlxError::PoolClosed)
}

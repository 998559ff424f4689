//! Pillarbox events in transactions of SeaORM, on PostgreSQL.
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
//! The connection must be one to the outbox's database, and find its tables. Transactions on MySQL and SQLite are
//! refused when they are used.

mod literal;

use pillarbox_core::port::{StoreError, StoreErrorKind};
use pillarbox_postgres::writer::{self, InTransaction, Value};
use sea_orm::{
    ConnectionTrait as _, DatabaseTransaction, DbBackend, DbErr, QueryResult, RuntimeErr, SqlxError, Statement,
};

/// A transaction of the application's own, to write events in.
#[derive(Debug)]
pub struct SeaOrm<'t>(pub &'t DatabaseTransaction);

impl SeaOrm<'_> {
    async fn rows(
        &self,
        statement: writer::Statement<'_>,
        values: Vec<Value<'_>>,
    ) -> Result<Vec<QueryResult>, StoreError> {
        if self.0.get_database_backend() != DbBackend::Postgres {
            return Err(StoreError::new(
                StoreErrorKind::Rejected,
                "the transaction is not one of PostgreSQL, where the outbox is: begin it on a connection to the \
                 outbox's database",
            ));
        }
        let values = values.into_iter().map(literal::bind);
        let statement = Statement::from_sql_and_values(DbBackend::Postgres, statement.as_str(), values);
        self.0.query_all_raw(statement).await.map_err(error)
    }
}

impl InTransaction for SeaOrm<'_> {
    async fn numbers(
        &mut self,
        statement: writer::Statement<'_>,
        values: Vec<Value<'_>>,
    ) -> Result<Vec<i64>, StoreError> {
        let rows = self.rows(statement, values).await?;
        rows.iter().map(|row| row.try_get_by_index(0)).collect::<Result<_, _>>().map_err(error)
    }

    async fn pairs(
        &mut self,
        statement: writer::Statement<'_>,
        values: Vec<Value<'_>>,
    ) -> Result<Vec<(String, String)>, StoreError> {
        let rows = self.rows(statement, values).await?;
        let pair = |row: &QueryResult| Ok((row.try_get_by_index(0)?, row.try_get_by_index(1)?));
        rows.iter().map(pair).collect::<Result<_, _>>().map_err(error)
    }
}

fn error(error: DbErr) -> StoreError {
    let (DbErr::Conn(RuntimeErr::SqlxError(cause))
    | DbErr::Exec(RuntimeErr::SqlxError(cause))
    | DbErr::Query(RuntimeErr::SqlxError(cause))) = &error
    else {
        return writer::misunderstood(error);
    };
    let cause = cause.clone();
    match &*cause {
        SqlxError::Database(database) => {
            writer::refused(database.code().as_deref().unwrap_or_default(), database.message(), error)
        }
        SqlxError::Io(_) | SqlxError::Protocol(_) | SqlxError::WorkerCrashed | SqlxError::PoolClosed => {
            writer::broken(error)
        }
        _ => writer::misunderstood(error),
    }
}

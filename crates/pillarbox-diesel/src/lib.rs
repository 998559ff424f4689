//! Pillarbox events in transactions of `diesel-async`, on PostgreSQL.
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

mod error;

use std::{
    fmt,
    ops::{Deref, DerefMut},
};

use diesel::{
    QueryableByName,
    pg::{Pg, data_types::PgTimestamp},
    query_builder::{BoxedSqlQuery, SqlQuery},
    sql_types::{Array, BigInt, Bytea, Nullable, SmallInt, Text, Timestamptz},
};
use diesel_async::{AnsiTransactionManager, AsyncPgConnection, RunQueryDsl as _, TransactionManager as _};
use pillarbox_core::domain::Timestamp;
use pillarbox_core::engine::WriteError;
use pillarbox_core::port::StoreError;
use pillarbox_postgres::writer::{self, InTransaction, Statement, Value};

/// A connection in a transaction, to write events in. `&mut *tx` is the connection.
pub struct Diesel<'c>(&'c mut AsyncPgConnection);

impl<'c> Diesel<'c> {
    /// For a connection that is in a transaction already. Where there is none, it is an error.
    pub fn new(connection: &'c mut AsyncPgConnection) -> Result<Self, WriteError> {
        let mut tx = Self(connection);
        tx.check()?;
        Ok(tx)
    }

    /// The transaction may have been ended through the connection: asked before each write, which costs nothing.
    fn check(&mut self) -> Result<(), StoreError> {
        match AnsiTransactionManager::transaction_manager_status_mut(self.0).transaction_depth() {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(error::no_transaction()),
            Err(error) => Err(error::of(error)),
        }
    }

    fn query<'v>(&mut self, statement: Statement<'_>, values: Vec<Value<'v>>) -> Result<Query<'v>, StoreError> {
        self.check()?;
        let query = diesel::sql_query(statement.as_str()).into_boxed::<Pg>();
        Ok(values.into_iter().fold(query, bind))
    }
}

/// Runs `work` in a transaction, or in a savepoint of the one that is open: commits if it succeeds, and rolls back if
/// it fails. As `connection.transaction(..)` of `diesel-async`, with a [`Diesel`] for the events.
///
/// Return the receipts of the events from `work`, and confirm them afterwards.
pub async fn transaction<T, E>(
    connection: &mut AsyncPgConnection,
    work: impl AsyncFnOnce(Diesel<'_>) -> Result<T, E>,
) -> Result<T, E>
where
    E: From<diesel::result::Error>,
{
    AnsiTransactionManager::begin_transaction(connection).await?;
    match work(Diesel(connection)).await {
        Ok(done) => {
            AnsiTransactionManager::commit_transaction(connection).await?;
            Ok(done)
        }
        Err(error) => match AnsiTransactionManager::rollback_transaction(connection).await {
            // What broke the connection is told by the first error.
            Ok(()) | Err(diesel::result::Error::BrokenTransactionManager) => Err(error),
            Err(rollback) => Err(rollback.into()),
        },
    }
}

impl InTransaction for Diesel<'_> {
    async fn numbers(&mut self, statement: Statement<'_>, values: Vec<Value<'_>>) -> Result<Vec<i64>, StoreError> {
        let query = self.query(statement, values)?;
        let rows: Vec<Number> = query.load(self.0).await.map_err(error::of)?;
        Ok(rows.into_iter().map(|row| row.seq).collect())
    }

    async fn pairs(
        &mut self,
        statement: Statement<'_>,
        values: Vec<Value<'_>>,
    ) -> Result<Vec<(String, String)>, StoreError> {
        let query = self.query(statement, values)?;
        let rows: Vec<Pair> = query.load(self.0).await.map_err(error::of)?;
        Ok(rows.into_iter().map(|row| (row.dedup_key, row.event_id)).collect())
    }
}

impl Deref for Diesel<'_> {
    type Target = AsyncPgConnection;

    fn deref(&self) -> &AsyncPgConnection {
        self.0
    }
}

impl DerefMut for Diesel<'_> {
    fn deref_mut(&mut self) -> &mut AsyncPgConnection {
        self.0
    }
}

impl fmt::Debug for Diesel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Diesel").finish_non_exhaustive()
    }
}

type Query<'v> = BoxedSqlQuery<'v, Pg, SqlQuery>;

fn bind<'v>(query: Query<'v>, value: Value<'v>) -> Query<'v> {
    match value {
        Value::SmallInt(value) => query.bind::<SmallInt, _>(value),
        Value::BigInt(value) => query.bind::<Nullable<BigInt>, _>(value),
        Value::Text(value) => query.bind::<Nullable<Text>, _>(value),
        Value::Bytea(value) => query.bind::<Nullable<Bytea>, _>(value),
        Value::Timestamptz(value) => query.bind::<Nullable<Timestamptz>, _>(value.map(time)),
        Value::SmallIntArray(values) => query.bind::<Array<SmallInt>, _>(values),
        Value::BigIntArray(values) => query.bind::<Array<Nullable<BigInt>>, _>(values),
        Value::TextArray(values) => query.bind::<Array<Nullable<Text>>, _>(values),
        Value::ByteaArray(values) => query.bind::<Array<Nullable<Bytea>>, _>(values),
        Value::TimestamptzArray(values) => {
            let times: Vec<_> = values.into_iter().map(|value| value.map(time)).collect();
            query.bind::<Array<Nullable<Timestamptz>>, _>(times)
        }
    }
}

fn time(time: Timestamp) -> PgTimestamp {
    PgTimestamp(writer::since_2000(time))
}

#[derive(QueryableByName)]
struct Number {
    #[diesel(sql_type = BigInt)]
    seq: i64,
}

#[derive(QueryableByName)]
struct Pair {
    #[diesel(sql_type = Text)]
    dedup_key: String,
    #[diesel(sql_type = Text)]
    event_id: String,
}

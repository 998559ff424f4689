//! Pillarbox events in transactions of `tokio-postgres`, alone or with a pool such as `deadpool-postgres`.
//!
//! ```no_run
//! use pillarbox_core::{Event, Outbox};
//! use pillarbox_postgres::PostgresStore;
//! use pillarbox_tokio_postgres::TokioPostgres;
//!
//! # async fn example(
//! #     outbox: Outbox<PostgresStore>,
//! #     client: &mut tokio_postgres::Client,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! let tx = client.transaction().await?;
//! tx.execute("insert into orders (id) values ($1)", &[&"order-7"]).await?;
//! let placed = Event::builder("OrderPlaced").key("order-7").json(&7);
//! let receipt = outbox.write(&mut TokioPostgres(&tx), placed).await?;
//! tx.commit().await?;
//! receipt.confirm();
//! # Ok(()) }
//! ```
//!
//! A client without a transaction is refused by the compiler:
//!
//! ```compile_fail,E0308
//! # use pillarbox_core::{Event, Outbox};
//! # use pillarbox_postgres::PostgresStore;
//! # use pillarbox_tokio_postgres::TokioPostgres;
//! # async fn example(
//! #     outbox: Outbox<PostgresStore>,
//! #     client: &mut tokio_postgres::Client,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! let receipt = outbox.write(&mut TokioPostgres(&client), Event::builder("OrderPlaced").json(&7)).await?;
//! # Ok(()) }
//! ```
//!
//! The client must be connected to the outbox's database, and find its tables. Each write is one round trip, and
//! prepares nothing, so that poolers are no trouble.

use std::fmt;

use bytes::BytesMut;
use pillarbox_core::domain::Timestamp;
use pillarbox_core::port::StoreError;
use pillarbox_postgres::writer::{self, InTransaction, Statement, Value};
use tokio_postgres::{
    Row, Transaction,
    types::{IsNull, ToSql, Type, to_sql_checked},
};

/// A transaction of the application's own, to write events in.
pub struct TokioPostgres<'t>(pub &'t Transaction<'t>);

impl TokioPostgres<'_> {
    async fn rows(&self, statement: Statement<'_>, values: Vec<Value<'_>>) -> Result<Vec<Row>, StoreError> {
        let values: Vec<_> = values.into_iter().map(bind).collect();
        let values: Vec<_> = values.iter().map(|(value, of)| (&**value as &(dyn ToSql + Sync), of.clone())).collect();
        self.0.query_typed(statement.as_str(), &values).await.map_err(error)
    }
}

impl InTransaction for TokioPostgres<'_> {
    async fn numbers(&mut self, statement: Statement<'_>, values: Vec<Value<'_>>) -> Result<Vec<i64>, StoreError> {
        let rows = self.rows(statement, values).await?;
        rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().map_err(error)
    }

    async fn pairs(
        &mut self,
        statement: Statement<'_>,
        values: Vec<Value<'_>>,
    ) -> Result<Vec<(String, String)>, StoreError> {
        let rows = self.rows(statement, values).await?;
        let pair = |row: &Row| Ok((row.try_get(0)?, row.try_get(1)?));
        rows.iter().map(pair).collect::<Result<_, _>>().map_err(error)
    }
}

impl fmt::Debug for TokioPostgres<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TokioPostgres").finish_non_exhaustive()
    }
}

fn bind(value: Value<'_>) -> (Box<dyn ToSql + Send + Sync + '_>, Type) {
    match value {
        Value::SmallInt(value) => (Box::new(value), Type::INT2),
        Value::BigInt(value) => (Box::new(value), Type::INT8),
        Value::Text(value) => (Box::new(value), Type::TEXT),
        Value::Bytea(value) => (Box::new(value), Type::BYTEA),
        Value::Timestamptz(value) => (Box::new(value.map(Time)), Type::TIMESTAMPTZ),
        Value::SmallIntArray(values) => (Box::new(values), Type::INT2_ARRAY),
        Value::BigIntArray(values) => (Box::new(values), Type::INT8_ARRAY),
        Value::TextArray(values) => (Box::new(values), Type::TEXT_ARRAY),
        Value::ByteaArray(values) => (Box::new(values), Type::BYTEA_ARRAY),
        Value::TimestamptzArray(values) => {
            let times: Vec<_> = values.into_iter().map(|time| time.map(Time)).collect();
            (Box::new(times), Type::TIMESTAMPTZ_ARRAY)
        }
    }
}

#[derive(Debug)]
struct Time(Timestamp);

impl ToSql for Time {
    fn to_sql(&self, of: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        // Eight bytes on the wire, whatever they count.
        writer::since_2000(self.0).to_sql(of, out)
    }

    fn accepts(of: &Type) -> bool {
        *of == Type::TIMESTAMPTZ
    }

    to_sql_checked!();
}

fn error(error: tokio_postgres::Error) -> StoreError {
    match error.as_db_error() {
        Some(database) => {
            let (state, message) = (database.code().code().to_owned(), database.message().to_owned());
            writer::refused(&state, &message, error)
        }
        None if is_ours(&error) => writer::misunderstood(error),
        None => writer::broken(error),
    }
}

/// Whether a value could not be sent or read; what is left is the connection's doing.
fn is_ours(error: &tokio_postgres::Error) -> bool {
    let words = error.to_string();
    ["error serializing", "error deserializing", "invalid column"].iter().any(|start| words.starts_with(start))
}

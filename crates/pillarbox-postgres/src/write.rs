//! Events in transactions of `sqlx`.

use pillarbox_core::port::StoreError;
use sqlx::{
    PgConnection, Postgres, Row as _, Transaction,
    postgres::{PgArguments, PgRow},
    query::Query,
};

use crate::{
    error,
    row::Time,
    writer::{InTransaction, Statement, Value},
};

/// Events go into a `sqlx` transaction:
///
/// ```no_run
/// # use pillarbox_core::{Event, Outbox};
/// # use pillarbox_postgres::PostgresStore;
/// # async fn example(outbox: Outbox<PostgresStore>) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = outbox.store().pool().begin().await?;
/// let receipt = outbox.write(&mut tx, Event::builder("OrderPlaced").json(&7)).await?;
/// tx.commit().await?;
/// receipt.confirm();
/// # Ok(()) }
/// ```
///
/// Into a connection without a transaction they don't, and the compiler says so:
///
/// ```compile_fail
/// # use pillarbox_core::{Event, Outbox};
/// # use pillarbox_postgres::PostgresStore;
/// # async fn example(outbox: Outbox<PostgresStore>) -> Result<(), Box<dyn std::error::Error>> {
/// let mut connection = outbox.store().pool().acquire().await?;
/// let receipt = outbox.write(&mut *connection, Event::builder("OrderPlaced").json(&7)).await?;
/// # Ok(()) }
/// ```
impl InTransaction for Transaction<'_, Postgres> {
    async fn numbers(&mut self, statement: Statement<'_>, values: Vec<Value<'_>>) -> Result<Vec<i64>, StoreError> {
        numbers(self, statement, values).await
    }

    async fn pairs(
        &mut self,
        statement: Statement<'_>,
        values: Vec<Value<'_>>,
    ) -> Result<Vec<(String, String)>, StoreError> {
        pairs(self, statement, values).await
    }
}

pub(crate) async fn numbers(
    connection: &mut PgConnection,
    statement: Statement<'_>,
    values: Vec<Value<'_>>,
) -> Result<Vec<i64>, StoreError> {
    let rows = query(statement, values).fetch_all(connection).await.map_err(error::of)?;
    rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().map_err(error::of)
}

pub(crate) async fn pairs(
    connection: &mut PgConnection,
    statement: Statement<'_>,
    values: Vec<Value<'_>>,
) -> Result<Vec<(String, String)>, StoreError> {
    let pair = |row: &PgRow| Ok((row.try_get(0)?, row.try_get(1)?));
    let rows = query(statement, values).fetch_all(connection).await.map_err(error::of)?;
    rows.iter().map(pair).collect::<Result<_, _>>().map_err(error::of)
}

fn query<'q>(statement: Statement<'_>, values: Vec<Value<'q>>) -> Query<'q, Postgres, PgArguments> {
    let times = |times: Vec<Option<_>>| times.into_iter().map(|time| time.map(Time)).collect::<Vec<_>>();
    let query = sqlx::query(statement.sql()).persistent(statement.may_be_prepared());
    values.into_iter().fold(query, |query, value| match value {
        Value::SmallInt(value) => query.bind(value),
        Value::BigInt(value) => query.bind(value),
        Value::Text(value) => query.bind(value),
        Value::Bytea(value) => query.bind(value),
        Value::Timestamptz(value) => query.bind(value.map(Time)),
        Value::SmallIntArray(values) => query.bind(values),
        Value::BigIntArray(values) => query.bind(values),
        Value::TextArray(values) => query.bind(values),
        Value::ByteaArray(values) => query.bind(values),
        Value::TimestamptzArray(values) => query.bind(times(values)),
    })
}

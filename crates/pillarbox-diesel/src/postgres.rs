//! Transactions on PostgreSQL.

use diesel::{
    QueryResult, QueryableByName,
    pg::{Pg, data_types::PgTimestamp},
    query_builder::{BoxedSqlQuery, SqlQuery},
    result::{DatabaseErrorKind, Error},
    sql_types::{Array, BigInt, Bytea, Nullable, SmallInt, Text, Timestamptz},
};
use diesel_async::{AnsiTransactionManager, AsyncPgConnection, RunQueryDsl as _, TransactionManager as _};
use pillarbox_core::{domain::Timestamp, port::StoreError};
use pillarbox_postgres::writer::{self, InTransaction, Statement, Value};

use crate::{Connection, Diesel, sealed};

/// The first page of this crate shows it.
impl Connection for AsyncPgConnection {}

impl sealed::Connection for AsyncPgConnection {
    async fn begin(connection: &mut Self) -> QueryResult<()> {
        AnsiTransactionManager::begin_transaction(connection).await
    }

    fn error(error: Error) -> StoreError {
        of(error)
    }
}

impl Diesel<'_, AsyncPgConnection> {
    fn query<'v>(&mut self, statement: Statement<'_>, values: Vec<Value<'v>>) -> Result<Query<'v>, StoreError> {
        self.check()?;
        let query = diesel::sql_query(statement.as_str()).into_boxed::<Pg>();
        Ok(values.into_iter().fold(query, bind))
    }
}

impl InTransaction for Diesel<'_, AsyncPgConnection> {
    async fn numbers(&mut self, statement: Statement<'_>, values: Vec<Value<'_>>) -> Result<Vec<i64>, StoreError> {
        let query = self.query(statement, values)?;
        let rows: Vec<Number> = query.load(self.0).await.map_err(of)?;
        Ok(rows.into_iter().map(|row| row.seq).collect())
    }

    async fn pairs(
        &mut self,
        statement: Statement<'_>,
        values: Vec<Value<'_>>,
    ) -> Result<Vec<(String, String)>, StoreError> {
        let query = self.query(statement, values)?;
        let rows: Vec<Pair> = query.load(self.0).await.map_err(of)?;
        Ok(rows.into_iter().map(|row| (row.dedup_key, row.event_id)).collect())
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

fn of(error: Error) -> StoreError {
    match &error {
        Error::DatabaseError(DatabaseErrorKind::UnableToSendCommand | DatabaseErrorKind::ClosedConnection, _)
        | Error::BrokenTransactionManager => writer::broken(error),
        Error::DatabaseError(kind, details) => {
            let message = details.message().to_owned();
            writer::refused(state(*kind, &message), &message, error)
        }
        _ => writer::misunderstood(error),
    }
}

/// Diesel keeps a kind instead of the SQLSTATE. Where it has none the words decide, as far as they are English.
fn state(kind: DatabaseErrorKind, message: &str) -> &'static str {
    match kind {
        DatabaseErrorKind::UniqueViolation => "23505",
        DatabaseErrorKind::SerializationFailure => "40001",
        DatabaseErrorKind::ReadOnlyTransaction => "25006",
        _ if message.starts_with("deadlock detected") => "40P01",
        _ if message.starts_with("canceling statement due to lock timeout") => "55P03",
        _ if message.starts_with("current transaction is aborted") => "25P02",
        _ if message.starts_with("relation ") && message.ends_with(" does not exist") => "42P01",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use pillarbox_core::port::StoreErrorKind;

    use super::*;

    #[test]
    fn a_deadlock_is_known_by_its_words() {
        let kind_of = |kind, words: &str| of(Error::DatabaseError(kind, Box::new(words.to_owned()))).kind();
        for (kind, words, expected) in [
            (DatabaseErrorKind::SerializationFailure, "could not serialize access", StoreErrorKind::Conflict),
            (DatabaseErrorKind::Unknown, "deadlock detected", StoreErrorKind::Conflict),
            (DatabaseErrorKind::UniqueViolation, "duplicate key", StoreErrorKind::Rejected),
            (DatabaseErrorKind::Unknown, "relation \"outbox_event\" does not exist", StoreErrorKind::Schema),
            (DatabaseErrorKind::UnableToSendCommand, "connection closed", StoreErrorKind::Unavailable),
        ] {
            assert_eq!(kind_of(kind, words), expected, "{words}");
        }
    }
}

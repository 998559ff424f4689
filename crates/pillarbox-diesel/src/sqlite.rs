//! Transactions on SQLite.

use diesel::{
    QueryResult, QueryableByName, SqliteConnection,
    query_builder::{AstPass, QueryFragment},
    result::{DatabaseErrorKind, Error},
    sql_types::{BigInt, Binary, Nullable, Text},
    sqlite::Sqlite,
};
use diesel_async::{
    AsyncConnection, RunQueryDsl as _, TransactionManager as _, sync_connection_wrapper::SyncConnectionWrapper,
};
use pillarbox_core::port::StoreError;
use pillarbox_sqlite::writer::{self, InTransaction, Statement, Value};

use crate::{
    Connection, Diesel,
    prepared::{Bind, Prepared},
    sealed,
};

type Wrapper = SyncConnectionWrapper<SqliteConnection>;

/// SQLite has one writer at a time, and the outbox is one of them. Let the connection wait for its turn, which a new one
/// of diesel's does not; and begin by [`transaction`](crate::transaction), or by `immediate_transaction` of the connection:
/// one that begins otherwise, and reads before it writes, fails if another has written in between.
///
/// ```no_run
/// use diesel::SqliteConnection;
/// use diesel_async::{AsyncConnection, SimpleAsyncConnection, sync_connection_wrapper::SyncConnectionWrapper};
/// use pillarbox_core::{Event, Outbox};
/// use pillarbox_sqlite::SqliteStore;
///
/// # async fn example(outbox: Outbox<SqliteStore>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let mut connection = SyncConnectionWrapper::<SqliteConnection>::establish("shop.db").await?;
/// connection.batch_execute("pragma busy_timeout = 5000").await?;
///
/// let receipt = pillarbox_diesel::transaction(&mut connection, async |mut tx| {
///     tx.batch_execute("insert into orders (id) values ('order-7')").await?;
///     let placed = Event::builder("OrderPlaced").key("order-7").json(&7);
///     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(outbox.write(&mut tx, placed).await?)
/// })
/// .await?;
/// receipt.confirm();
/// # Ok(()) }
/// ```
///
/// A connection alone is refused by the compiler:
///
/// ```compile_fail,E0277
/// # use diesel::SqliteConnection;
/// # use diesel_async::sync_connection_wrapper::SyncConnectionWrapper;
/// # use pillarbox_core::{Event, Outbox};
/// # use pillarbox_sqlite::SqliteStore;
/// # async fn example(
/// #     outbox: Outbox<SqliteStore>,
/// #     connection: &mut SyncConnectionWrapper<SqliteConnection>,
/// # ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let receipt = outbox.write(connection, Event::builder("OrderPlaced").json(&7)).await?;
/// # Ok(()) }
/// ```
impl Connection for Wrapper {}

impl sealed::Connection for Wrapper {
    async fn begin(connection: &mut Self) -> QueryResult<()> {
        type Manager = <Wrapper as AsyncConnection>::TransactionManager;
        if Manager::transaction_manager_status_mut(connection).transaction_depth()?.is_some() {
            return Manager::begin_transaction(connection).await;
        }
        let begin = |connection: &mut SqliteConnection| {
            diesel::connection::AnsiTransactionManager::begin_transaction_sql(connection, "begin immediate")
        };
        connection.spawn_blocking(begin).await
    }

    fn error(error: Error) -> StoreError {
        of(error)
    }
}

/// The number of the row that this connection has inserted last.
const NUMBER: &str = "select last_insert_rowid() as number";

impl InTransaction for Diesel<'_, Wrapper> {
    async fn insert(&mut self, statement: Statement<'_>, values: Vec<Value<'_>>) -> Result<i64, StoreError> {
        self.check()?;
        let query = Prepared { sql: statement.as_str(), values };
        query.execute(self.0).await.map_err(of)?;
        let number = Prepared::<Value<'_>> { sql: NUMBER, values: Vec::new() };
        let number: Number = number.get_result(self.0).await.map_err(of)?;
        Ok(number.number)
    }

    async fn pairs(
        &mut self,
        statement: Statement<'_>,
        values: Vec<Value<'_>>,
    ) -> Result<Vec<(String, String)>, StoreError> {
        self.check()?;
        let query = Prepared { sql: statement.as_str(), values };
        let rows: Vec<Pair> = query.load(self.0).await.map_err(of)?;
        Ok(rows.into_iter().map(|row| (row.dedup_key, row.event_id)).collect())
    }
}

#[derive(QueryableByName)]
struct Number {
    #[diesel(sql_type = BigInt)]
    number: i64,
}

#[derive(QueryableByName)]
struct Pair {
    #[diesel(sql_type = Text)]
    dedup_key: String,
    #[diesel(sql_type = Text)]
    event_id: String,
}

impl QueryFragment<Sqlite> for Prepared<'_, Value<'_>> {
    fn walk_ast<'b>(&'b self, out: AstPass<'_, 'b, Sqlite>) -> QueryResult<()> {
        self.walk(out)
    }
}

impl Bind<Sqlite> for Value<'_> {
    fn push<'b>(&'b self, out: &mut AstPass<'_, 'b, Sqlite>) -> QueryResult<()> {
        match self {
            Value::Integer(value) => out.push_bind_param::<Nullable<BigInt>, _>(value),
            Value::Text(value) => out.push_bind_param::<Nullable<Text>, _>(value),
            Value::Blob(value) => out.push_bind_param::<Nullable<Binary>, _>(value),
        }
    }
}

fn of(error: Error) -> StoreError {
    match &error {
        Error::DatabaseError(DatabaseErrorKind::UnableToSendCommand | DatabaseErrorKind::ClosedConnection, _)
        | Error::BrokenTransactionManager => writer::broken(error),
        Error::DatabaseError(kind, details) => {
            let message = details.message().to_owned();
            writer::refused(code(*kind, &message), &message, error)
        }
        _ => writer::misunderstood(error),
    }
}

/// Diesel keeps a kind instead of the result code. Where it has none SQLite's own words decide.
fn code(kind: DatabaseErrorKind, message: &str) -> u32 {
    const CONSTRAINT: u32 = 19;
    match (kind, message) {
        (DatabaseErrorKind::Unknown, "database is locked") => 5,
        (DatabaseErrorKind::Unknown, "database table is locked") => 6,
        (DatabaseErrorKind::Unknown, "out of memory") => 7,
        (DatabaseErrorKind::Unknown, "attempt to write a readonly database") => 8,
        (DatabaseErrorKind::Unknown, "interrupted") => 9,
        (DatabaseErrorKind::Unknown, "disk I/O error") => 10,
        (DatabaseErrorKind::Unknown, "database disk image is malformed") => 11,
        (DatabaseErrorKind::Unknown, "database or disk is full") => 13,
        (DatabaseErrorKind::Unknown, "unable to open database file") => 14,
        (DatabaseErrorKind::Unknown, "file is not a database") => 26,
        (DatabaseErrorKind::Unknown, _) => 1,
        _ => CONSTRAINT,
    }
}

#[cfg(test)]
mod tests {
    use pillarbox_core::port::StoreErrorKind::{Rejected, Schema, Unavailable};

    use super::*;

    #[test]
    fn an_error_without_a_code_is_known_by_its_words() {
        for (kind, words, expected) in [
            (DatabaseErrorKind::Unknown, "database is locked", Unavailable),
            (DatabaseErrorKind::Unknown, "no such table: outbox_event", Schema),
            (DatabaseErrorKind::Unknown, "database or disk is full", Rejected),
            (DatabaseErrorKind::UniqueViolation, "no such table", Rejected),
            (DatabaseErrorKind::ClosedConnection, "", Unavailable),
        ] {
            let error = of(Error::DatabaseError(kind, Box::new(words.to_owned())));
            assert_eq!(error.kind(), expected, "{words}");
        }
    }
}

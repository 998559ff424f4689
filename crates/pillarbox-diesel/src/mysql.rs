//! Transactions on MySQL and MariaDB.

use diesel::{
    QueryResult, QueryableByName,
    mysql::Mysql,
    query_builder::{AstPass, QueryFragment},
    result::{DatabaseErrorKind, Error},
    sql_types::{BigInt, Blob, Nullable, Text},
};
use diesel_async::{AnsiTransactionManager, AsyncMysqlConnection, RunQueryDsl as _, TransactionManager as _};
use pillarbox_core::port::StoreError;
use pillarbox_mysql::writer::{self, InTransaction, Statement, Value};

use crate::{
    Connection, Diesel,
    prepared::{Bind, Prepared},
    sealed,
};

/// Diesel does not tell which number an insert was given, so each insert is followed by a question for it: one more round
/// trip for each event that is written alone, or for each hundred of a batch.
///
/// ```no_run
/// use diesel_async::{AsyncMysqlConnection, SimpleAsyncConnection};
/// use pillarbox_core::{Event, Outbox};
/// use pillarbox_mysql::MySqlStore;
///
/// # async fn example(
/// #     outbox: Outbox<MySqlStore>,
/// #     connection: &mut AsyncMysqlConnection,
/// # ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let receipt = pillarbox_diesel::transaction(connection, async |mut tx| {
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
/// # use diesel_async::AsyncMysqlConnection;
/// # use pillarbox_core::{Event, Outbox};
/// # use pillarbox_mysql::MySqlStore;
/// # async fn example(
/// #     outbox: Outbox<MySqlStore>,
/// #     connection: &mut AsyncMysqlConnection,
/// # ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let receipt = outbox.write(connection, Event::builder("OrderPlaced").json(&7)).await?;
/// # Ok(()) }
/// ```
impl Connection for AsyncMysqlConnection {}

impl sealed::Connection for AsyncMysqlConnection {
    async fn begin(connection: &mut Self) -> QueryResult<()> {
        AnsiTransactionManager::begin_transaction(connection).await
    }

    fn error(error: Error) -> StoreError {
        of(error)
    }
}

/// The number that the last insert of this connection was given, or its first row.
const NUMBER: &str = "select cast(last_insert_id() as signed) as number";

impl InTransaction for Diesel<'_, AsyncMysqlConnection> {
    async fn insert(&mut self, statement: Statement<'_>, values: Vec<Value<'_>>) -> Result<i64, StoreError> {
        InTransaction::execute(self, statement, values).await?;
        let number = Prepared::<Value<'_>> { sql: NUMBER, values: Vec::new() };
        let number: Number = number.get_result(self.0).await.map_err(of)?;
        Ok(number.number)
    }

    async fn execute(&mut self, statement: Statement<'_>, values: Vec<Value<'_>>) -> Result<(), StoreError> {
        self.check()?;
        let query = Prepared { sql: statement.as_str(), values };
        query.execute(self.0).await.map_err(of)?;
        Ok(())
    }

    async fn text(&mut self, statement: Statement<'_>, values: Vec<Value<'_>>) -> Result<Option<String>, StoreError> {
        self.check()?;
        let query = Prepared { sql: statement.as_str(), values };
        let rows: Vec<Answer> = query.load(self.0).await.map_err(of)?;
        Ok(rows.into_iter().next().map(|row| row.answer))
    }
}

#[derive(QueryableByName)]
struct Number {
    #[diesel(sql_type = BigInt)]
    number: i64,
}

#[derive(QueryableByName)]
struct Answer {
    #[diesel(sql_type = Text)]
    answer: String,
}

impl QueryFragment<Mysql> for Prepared<'_, Value<'_>> {
    fn walk_ast<'b>(&'b self, out: AstPass<'_, 'b, Mysql>) -> QueryResult<()> {
        self.walk(out)
    }
}

impl Bind<Mysql> for Value<'_> {
    fn push<'b>(&'b self, out: &mut AstPass<'_, 'b, Mysql>) -> QueryResult<()> {
        match self {
            Value::BigInt(value) => out.push_bind_param::<Nullable<BigInt>, _>(value),
            Value::Text(value) => out.push_bind_param::<Nullable<Text>, _>(value),
            Value::Blob(value) => out.push_bind_param::<Nullable<Blob>, _>(value),
        }
    }
}

fn of(error: Error) -> StoreError {
    match &error {
        Error::BrokenTransactionManager => writer::broken(error),
        Error::DatabaseError(kind, details) => match number(*kind, details.message()) {
            Some(number) => writer::refused(number, error),
            None => writer::broken(error),
        },
        _ => writer::misunderstood(error),
    }
}

/// Diesel keeps a kind instead of the server's number. Where it has none the words decide, as far as they are English;
/// what is not the server's is an error of the connection.
fn number(kind: DatabaseErrorKind, message: &str) -> Option<u16> {
    Some(match kind {
        DatabaseErrorKind::UniqueViolation => 1062,
        DatabaseErrorKind::CheckViolation => 3819,
        DatabaseErrorKind::ReadOnlyTransaction => 1792,
        DatabaseErrorKind::UnableToSendCommand | DatabaseErrorKind::ClosedConnection => return None,
        _ if ["Input/output error:", "Driver error:", "Other error:"]
            .iter()
            .any(|start| message.starts_with(start)) =>
        {
            return None;
        }
        _ if message.starts_with("Deadlock found") => 1213,
        _ if message.starts_with("Lock wait timeout exceeded") => 1205,
        _ if message.starts_with("Record has changed since last read") => 1020,
        _ if message.starts_with("Table ") && message.ends_with(" doesn't exist") => 1146,
        _ if message.starts_with("Unknown column ") => 1054,
        _ if message.contains("server is running with the --") && message.contains("read-only") => 1290,
        _ if message.starts_with("Query execution was interrupted") => 1317,
        _ => 0,
    })
}

#[cfg(test)]
mod tests {
    use pillarbox_core::port::StoreErrorKind::{Conflict, Rejected, Schema, Unavailable};

    use super::*;

    #[test]
    fn an_error_without_a_number_is_known_by_its_words() {
        for (words, expected) in [
            ("Deadlock found when trying to get lock; try restarting transaction", Conflict),
            ("Lock wait timeout exceeded; try restarting transaction", Conflict),
            ("Record has changed since last read in table 'outbox_dedup'", Conflict),
            ("Table 'shop.outbox_event' doesn't exist", Schema),
            (
                "The MariaDB server is running with the --read-only option so it cannot execute this statement",
                Unavailable,
            ),
            (
                "The MySQL server is running with the --super-read-only option so it cannot execute this statement",
                Unavailable,
            ),
            ("Input/output error: connection closed", Unavailable),
            ("Data too long for column 'event_type' at row 1", Rejected),
        ] {
            let error = of(Error::DatabaseError(DatabaseErrorKind::Unknown, Box::new(words.to_owned())));
            assert_eq!(error.kind(), expected, "{words}");
        }
    }
}

//! Transactions on SQLite.

use pillarbox_core::port::StoreError;
use pillarbox_sqlite::writer::{self, InTransaction, Statement, Value};
use sea_orm::{ConnectionTrait as _, DbBackend, DbErr, SqlxError};

use crate::{SeaOrm, cause, is_broken};

impl SeaOrm<'_> {
    fn sqlite_statement(
        &self,
        statement: Statement<'_>,
        values: Vec<Value<'_>>,
    ) -> Result<sea_orm::Statement, StoreError> {
        self.statement(DbBackend::Sqlite, statement.as_str(), values.into_iter().map(bind))
    }
}

/// Events go into a transaction on SQLite. SQLite has one writer at a time, and the outbox is one of them: a transaction
/// that begins with `begin immediate` waits for its turn. One that begins otherwise, and reads before it writes, fails
/// with a conflict if another has written in between.
///
/// ```no_run
/// use pillarbox_core::{Event, Outbox};
/// use pillarbox_sea_orm::SeaOrm;
/// use pillarbox_sqlite::SqliteStore;
/// use sea_orm::{ConnectionTrait, DatabaseConnection, SqliteTransactionMode, TransactionOptions, TransactionTrait};
///
/// # async fn example(
/// #     outbox: Outbox<SqliteStore>,
/// #     database: DatabaseConnection,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let immediate = Some(SqliteTransactionMode::Immediate);
/// let immediate = TransactionOptions { sqlite_transaction_mode: immediate, ..Default::default() };
/// let tx = database.begin_with_options(immediate).await?;
/// tx.execute_unprepared("insert into orders (id) values ('order-7')").await?;
/// let placed = Event::builder("OrderPlaced").key("order-7").json(&7);
/// let receipt = outbox.write(&mut SeaOrm(&tx), placed).await?;
/// tx.commit().await?;
/// receipt.confirm();
/// # Ok(()) }
/// ```
///
/// Into a connection without a transaction they don't go, and the compiler says so:
///
/// ```compile_fail,E0308
/// # use pillarbox_core::{Event, Outbox};
/// # use pillarbox_sea_orm::SeaOrm;
/// # use pillarbox_sqlite::SqliteStore;
/// # async fn example(
/// #     outbox: Outbox<SqliteStore>,
/// #     database: sea_orm::DatabaseConnection,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let receipt = outbox.write(&mut SeaOrm(&database), Event::builder("OrderPlaced").json(&7)).await?;
/// # Ok(()) }
/// ```
impl InTransaction for SeaOrm<'_> {
    async fn insert(&mut self, statement: Statement<'_>, values: Vec<Value<'_>>) -> Result<i64, StoreError> {
        let done = self.0.execute_raw(self.sqlite_statement(statement, values)?).await.map_err(error)?;
        i64::try_from(done.last_insert_id()).map_err(writer::misunderstood)
    }

    async fn pairs(
        &mut self,
        statement: Statement<'_>,
        values: Vec<Value<'_>>,
    ) -> Result<Vec<(String, String)>, StoreError> {
        let rows = self.0.query_all_raw(self.sqlite_statement(statement, values)?).await.map_err(error)?;
        rows.iter().map(crate::pair).collect::<Result<_, _>>().map_err(error)
    }
}

fn bind(value: Value<'_>) -> sea_orm::Value {
    match value {
        Value::Integer(value) => value.into(),
        Value::Text(value) => value.map(String::from).into(),
        Value::Blob(value) => value.map(<[u8]>::to_vec).into(),
    }
}

fn error(error: DbErr) -> StoreError {
    match cause(&error).as_deref() {
        Some(SqlxError::Database(database)) => {
            let code = database.code().and_then(|code| code.parse().ok()).unwrap_or_default();
            let message = database.message().to_owned();
            writer::refused(code, &message, error)
        }
        Some(cause) if is_broken(cause) => writer::broken(error),
        _ => writer::misunderstood(error),
    }
}

//! Transactions on MySQL and MariaDB.

use pillarbox_core::port::StoreError;
use pillarbox_mysql::writer::{self, InTransaction, Statement, Value};
use sea_orm::{ConnectionTrait as _, DbBackend, DbErr, ExecResult, SqlxError, SqlxMySqlError};

use crate::{SeaOrm, cause, is_broken};

impl SeaOrm<'_> {
    fn mysql_statement(
        &self,
        statement: Statement<'_>,
        values: Vec<Value<'_>>,
    ) -> Result<sea_orm::Statement, StoreError> {
        self.statement(DbBackend::MySql, statement.as_str(), values.into_iter().map(bind))
    }

    async fn run(&self, statement: Statement<'_>, values: Vec<Value<'_>>) -> Result<ExecResult, StoreError> {
        self.0.execute_raw(self.mysql_statement(statement, values)?).await.map_err(error)
    }
}

/// Events go into a transaction on MySQL or MariaDB:
///
/// ```no_run
/// use pillarbox_core::{Event, Outbox};
/// use pillarbox_mysql::MySqlStore;
/// use pillarbox_sea_orm::SeaOrm;
/// use sea_orm::{ConnectionTrait, DatabaseConnection, TransactionTrait};
///
/// # async fn example(
/// #     outbox: Outbox<MySqlStore>,
/// #     database: DatabaseConnection,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let tx = database.begin().await?;
/// tx.execute_unprepared("insert into orders (id) values ('order-7')").await?;
/// let placed = Event::builder("OrderPlaced").key("order-7").json(&7);
/// let receipt = outbox.write(&mut SeaOrm(&tx), placed).await?;
/// tx.commit().await?;
/// receipt.confirm();
/// # Ok(()) }
/// ```
///
/// Into a connection without a transaction they don't, and the compiler says so:
///
/// ```compile_fail,E0308
/// # use pillarbox_core::{Event, Outbox};
/// # use pillarbox_mysql::MySqlStore;
/// # use pillarbox_sea_orm::SeaOrm;
/// # async fn example(
/// #     outbox: Outbox<MySqlStore>,
/// #     database: sea_orm::DatabaseConnection,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let receipt = outbox.write(&mut SeaOrm(&database), Event::builder("OrderPlaced").json(&7)).await?;
/// # Ok(()) }
/// ```
impl InTransaction for SeaOrm<'_> {
    async fn insert(&mut self, statement: Statement<'_>, values: Vec<Value<'_>>) -> Result<i64, StoreError> {
        let done = self.run(statement, values).await?;
        i64::try_from(done.last_insert_id()).map_err(writer::misunderstood)
    }

    async fn execute(&mut self, statement: Statement<'_>, values: Vec<Value<'_>>) -> Result<(), StoreError> {
        self.run(statement, values).await.map(drop)
    }

    async fn text(&mut self, statement: Statement<'_>, values: Vec<Value<'_>>) -> Result<Option<String>, StoreError> {
        let row = self.0.query_one_raw(self.mysql_statement(statement, values)?).await.map_err(error)?;
        row.map(|row| row.try_get_by_index(0)).transpose().map_err(error)
    }
}

fn bind(value: Value<'_>) -> sea_orm::Value {
    match value {
        Value::BigInt(value) => value.into(),
        Value::Text(value) => value.map(String::from).into(),
        Value::Blob(value) => value.map(<[u8]>::to_vec).into(),
    }
}

fn error(error: DbErr) -> StoreError {
    match cause(&error).as_deref() {
        Some(SqlxError::Database(database)) => {
            let number = database.try_downcast_ref::<SqlxMySqlError>().map(SqlxMySqlError::number);
            writer::refused(number.unwrap_or_default(), error)
        }
        Some(cause) if is_broken(cause) => writer::broken(error),
        _ => writer::misunderstood(error),
    }
}

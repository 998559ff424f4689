//! Transactions on PostgreSQL.

use pillarbox_core::port::StoreError;
use pillarbox_postgres::writer::{self, InTransaction, Statement, Value};
use sea_orm::{ConnectionTrait as _, DbBackend, DbErr, QueryResult, SqlxError};

use crate::{SeaOrm, cause, is_broken, literal};

impl SeaOrm<'_> {
    async fn postgres_rows(
        &self,
        statement: Statement<'_>,
        values: Vec<Value<'_>>,
    ) -> Result<Vec<QueryResult>, StoreError> {
        let values = values.into_iter().map(literal::bind);
        let statement = self.statement(DbBackend::Postgres, statement.as_str(), values)?;
        self.0.query_all_raw(statement).await.map_err(error)
    }
}

impl InTransaction for SeaOrm<'_> {
    async fn numbers(&mut self, statement: Statement<'_>, values: Vec<Value<'_>>) -> Result<Vec<i64>, StoreError> {
        let rows = self.postgres_rows(statement, values).await?;
        rows.iter().map(|row| row.try_get_by_index(0)).collect::<Result<_, _>>().map_err(error)
    }

    async fn pairs(
        &mut self,
        statement: Statement<'_>,
        values: Vec<Value<'_>>,
    ) -> Result<Vec<(String, String)>, StoreError> {
        let rows = self.postgres_rows(statement, values).await?;
        rows.iter().map(crate::pair).collect::<Result<_, _>>().map_err(error)
    }
}

fn error(error: DbErr) -> StoreError {
    match cause(&error).as_deref() {
        Some(SqlxError::Database(database)) => {
            let (state, message) = (database.code().unwrap_or_default().into_owned(), database.message().to_owned());
            writer::refused(&state, &message, error)
        }
        Some(cause) if is_broken(cause) => writer::broken(error),
        _ => writer::misunderstood(error),
    }
}

//! Inserting events in the application's transaction.

use std::ops::{Deref, DerefMut};

use pillarbox_core::domain::{Event, Seq};
use pillarbox_core::port::{BoxFuture, NewRow, StoreError, StoreErrorKind, TransactStore, WriteStore};
use sqlx::{
    Arguments as _, Connection as _, SqlStr, Sqlite, SqliteConnection, Transaction, pool::PoolConnection,
    sqlite::SqliteArguments,
};
use tokio::sync::OwnedMutexGuard;

use crate::{SqliteStore, connection::BEGIN, error, tables::Prefix};

/// Inserts of some numbers of rows: any number of rows takes a few statements, and each is prepared once.
#[derive(Debug)]
pub(crate) struct WriteSql([SqlStr; SIZES.len()]);

/// Powers of two, and the round numbers that people choose for a batch.
const SIZES: [usize; 11] = [1, 2, 4, 8, 10, 16, 32, 50, 64, 100, 128];

const BINDS: usize = 12;

impl WriteSql {
    pub(crate) fn new(prefix: &Prefix) -> Self {
        Self(SIZES.map(|size| {
            let row = format!("({}?)", "?, ".repeat(BINDS - 1));
            let rows = vec![row; size].join(", ");
            prefix.statement(&format!(
                "insert into {{event}} (partition, event_id, event_type, aggregate_type, aggregate_id, tenant_id, \
                 event_key, content_type, payload, headers, available_at, occurred_at) values {rows}"
            ))
        }))
    }

    /// The insert for the most rows that are not more than these.
    fn at_most(&self, rows: usize) -> (usize, &SqlStr) {
        let index = SIZES.partition_point(|size| *size <= rows).saturating_sub(1);
        (SIZES[index], &self.0[index])
    }
}

impl SqliteStore {
    async fn insert_rows(&self, tx: &mut SqliteConnection, rows: &[NewRow]) -> Result<Vec<Seq>, StoreError> {
        let mut seqs = Vec::with_capacity(rows.len());
        let mut rest = rows;
        while !rest.is_empty() {
            let (count, sql) = self.0.sql.write.at_most(rest.len());
            let (chunk, later) = rest.split_at(count);
            rest = later;
            let mut arguments = SqliteArguments::default();
            arguments.reserve(count * BINDS, 0);
            for row in chunk {
                bind(&mut arguments, row).map_err(|error| error::of(sqlx::Error::Encode(error)))?;
            }
            let done = sqlx::query_with(sql.clone(), arguments).execute(&mut *tx).await.map_err(error::of)?;
            // The one writer's statement numbers its rows without a gap, in their order.
            let last = done.last_insert_rowid();
            let first = last - i64::try_from(count).unwrap_or(0) + 1;
            seqs.extend((first..=last).map(Seq));
        }
        Ok(seqs)
    }
}

fn bind(arguments: &mut SqliteArguments, row: &NewRow) -> Result<(), sqlx::error::BoxDynError> {
    let event = &row.event;
    arguments.add(i64::from(row.partition.0))?;
    arguments.add(event.id().to_string())?;
    arguments.add(event.event_type().as_str())?;
    arguments.add(event.aggregate_type().as_str())?;
    arguments.add(event.aggregate_id())?;
    arguments.add(event.tenant_id())?;
    arguments.add(event.key().map(pillarbox_core::domain::Key::as_str))?;
    let payload = event.payload();
    arguments.add(payload.content_type())?;
    // Text stays text in the table, for people to read.
    match payload.as_text() {
        Some(text) => arguments.add(text)?,
        None => arguments.add(&payload.as_bytes()[..])?,
    }
    let headers = event.headers();
    arguments.add((!headers.is_empty()).then(|| headers.to_json()))?;
    arguments.add(due(event))?;
    arguments.add(event.occurred_at().as_micros())?;
    Ok(())
}

fn due(event: &Event) -> Option<i64> {
    let delayed = || event.deliver_after().map(|delay| crate::store::now().saturating_add(delay));
    event.available_at().or_else(delayed).map(pillarbox_core::domain::Timestamp::as_micros)
}

impl WriteStore<Transaction<'_, Sqlite>> for SqliteStore {
    fn insert<'a>(
        &'a self,
        tx: &'a mut Transaction<'_, Sqlite>,
        rows: &'a [NewRow],
    ) -> BoxFuture<'a, Result<Vec<Seq>, StoreError>> {
        Box::pin(self.insert_rows(tx, rows))
    }
}

impl WriteStore<SqliteTransaction> for SqliteStore {
    fn insert<'a>(
        &'a self,
        tx: &'a mut SqliteTransaction,
        rows: &'a [NewRow],
    ) -> BoxFuture<'a, Result<Vec<Seq>, StoreError>> {
        Box::pin(self.insert_rows(tx, rows))
    }
}

/// A transaction that waited for its turn among the writers of this process. Dropping it rolls back.
#[derive(Debug)]
pub struct SqliteTransaction {
    // Before the turn: the rollback of a dropped transaction is queued before the next writer begins.
    transaction: Transaction<'static, Sqlite>,
    _turn: OwnedMutexGuard<()>,
}

impl Deref for SqliteTransaction {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.transaction
    }
}

impl DerefMut for SqliteTransaction {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.transaction
    }
}

impl SqliteStore {
    /// A connection of the pool that is fit to begin. SQLite ends a transaction by itself, as when the disk is
    /// full, and the driver does not notice: for it one stays open for ever. Our own pool sorts such a
    /// connection out; the application's does not.
    async fn acquire(&self) -> Result<PoolConnection<Sqlite>, StoreError> {
        loop {
            let mut connection = self.0.pool.acquire().await.map_err(error::of)?;
            // The rollback of a dropped transaction may be in the driver's queue: let it pass.
            if !connection.is_in_transaction() || connection.ping().await.is_ok() && !connection.is_in_transaction() {
                return Ok(connection);
            }
            let _ = connection.close().await;
        }
    }
}

impl TransactStore for SqliteStore {
    type Connection = SqliteConnection;
    type Tx = SqliteTransaction;

    fn begin(&self) -> BoxFuture<'_, Result<SqliteTransaction, StoreError>> {
        Box::pin(async {
            // The connection first: who waits for a full pool must not keep the turn from the others.
            let connection = self.acquire().await?;
            let turn = self.0.turn.clone().lock_owned();
            // Two transactions of one task would wait for each other without end.
            let turn = tokio::time::timeout(self.0.busy_timeout, turn).await.map_err(|_| {
                StoreError::new(
                    StoreErrorKind::Unavailable,
                    "another transaction of this process held the write lock for longer than the busy timeout",
                )
            })?;
            let transaction =
                Transaction::begin(connection, Some(SqlStr::from_static(BEGIN))).await.map_err(error::of)?;
            Ok(SqliteTransaction { transaction, _turn: turn })
        })
    }

    fn commit(&self, tx: SqliteTransaction) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let SqliteTransaction { transaction, _turn } = tx;
            transaction.commit().await.map_err(error::of_commit)
        })
    }

    fn rollback(&self, tx: SqliteTransaction) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let SqliteTransaction { transaction, _turn } = tx;
            transaction.rollback().await.map_err(error::of)
        })
    }
}

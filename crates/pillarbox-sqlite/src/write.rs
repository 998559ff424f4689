//! Inserting events in the application's transaction.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    ops::{Deref, DerefMut},
    sync::Arc,
};

use futures_util::TryStreamExt as _;
use pillarbox_core::domain::{Event, EventId, Key, Seq, Timestamp};
use pillarbox_core::port::{BoxFuture, NewKey, NewRow, StoreError, StoreErrorKind, TransactStore, WriteStore};
use sqlx::{
    Arguments as _, Connection as _, Either, Executor as _, Row as _, SqlStr, Sqlite, SqliteConnection, Transaction,
    pool::PoolConnection,
    sqlite::{SqliteArguments, SqliteQueryResult, SqliteRow, SqliteTransactionManager},
};
use sqlx_core::transaction::TransactionManager as _;
use tokio::sync::OwnedMutexGuard;

use crate::{
    SqliteStore,
    connection::{BEGIN, Line},
    error,
    own::micros,
    tables::{Prefix, statements},
    writer::{InTransaction, Statement, Value},
};

statements!(KeySql {
    /// By primary key. One whose window is over is taken over.
    enter: "insert into {dedup} (dedup_key, event_id, expires_at)
        select value ->> 0, value ->> 1, {now} + (value ->> 2) from json_each(?) where true
        on conflict (dedup_key) do update set event_id = excluded.event_id, expires_at = excluded.expires_at
            where expires_at <= {now}
        returning dedup_key, event_id",
    /// By primary key.
    standing: "select dedup_key, event_id from {dedup} where dedup_key in (select value from json_each(?))",
});

/// Inserts of some numbers of rows: any number of rows takes a few statements, and each is prepared once.
#[derive(Debug)]
pub(crate) struct WriteSql([SqlStr; SIZES.len()]);

/// Powers of two, and the round numbers that people choose for a batch.
const SIZES: [usize; 11] = [1, 2, 4, 8, 10, 16, 32, 50, 64, 100, 128];

/// How many values a row has.
const COLUMNS: usize = 12;

impl WriteSql {
    pub(crate) fn new(prefix: &Prefix) -> Self {
        Self(SIZES.map(|size| {
            let row = format!("({}?)", "?, ".repeat(COLUMNS - 1));
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
    async fn insert_rows(&self, tx: &mut impl InTransaction, rows: &[NewRow]) -> Result<Vec<Seq>, StoreError> {
        let mut seqs = Vec::with_capacity(rows.len());
        let mut rest = rows;
        while !rest.is_empty() {
            let (count, sql) = self.0.sql.write.at_most(rest.len());
            let (chunk, later) = rest.split_at(count);
            rest = later;
            // The one writer's statement numbers its rows without a gap, in their order.
            let last = tx.insert(Statement(sql), columns(chunk)).await?;
            let first = last - i64::try_from(count).unwrap_or(0) + 1;
            seqs.extend((first..=last).map(Seq));
        }
        Ok(seqs)
    }

    async fn enter(
        &self,
        tx: &mut impl InTransaction,
        keys: &[NewKey<'_>],
    ) -> Result<Vec<Option<EventId>>, StoreError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let sql = &self.0.sql.keys;
        let rows: Vec<_> = keys.iter().map(|key| (key.key, key.id.to_string(), micros(key.window))).collect();
        let entered = tx.pairs(Statement(&sql.enter), list(serde_json::to_string(&rows))?).await?;
        let entered: HashSet<String> = entered.into_iter().map(|(key, _)| key).collect();
        let others: Vec<&str> = keys.iter().map(|key| key.key).filter(|key| !entered.contains(*key)).collect();
        if others.is_empty() {
            return Ok(vec![None; keys.len()]);
        }
        let standing = tx.pairs(Statement(&sql.standing), list(serde_json::to_string(&others))?).await?;
        let standing = standing
            .into_iter()
            .map(|(key, id)| Ok((key, id.parse().map_err(error::unreadable)?)))
            .collect::<Result<HashMap<String, EventId>, StoreError>>()?;
        Ok(keys.iter().map(|key| standing.get(key.key).copied()).collect())
    }
}

fn list(json: serde_json::Result<String>) -> Result<Vec<Value<'static>>, StoreError> {
    Ok(vec![Value::Text(Some(json.map_err(error::unreadable)?.into()))])
}

/// Runs one statement, and returns with its result. The driver's own `execute` waits for the end of the results
/// too: one more wake-up between two threads, which its thread may as well use to ready itself for the next command.
pub(crate) async fn execute(
    connection: &mut SqliteConnection,
    sql: SqlStr,
    arguments: SqliteArguments,
) -> Result<SqliteQueryResult, sqlx::Error> {
    let mut results = connection.fetch_many(sqlx::query_with(sql, arguments));
    while let Some(result) = results.try_next().await? {
        if let Either::Left(done) = result {
            return Ok(done);
        }
    }
    Err(sqlx::Error::WorkerCrashed)
}

fn columns(rows: &[NewRow]) -> Vec<Value<'_>> {
    fn text<'a>(text: impl Into<Cow<'a, str>>) -> Value<'a> {
        Value::Text(Some(text.into()))
    }
    let mut values = Vec::with_capacity(rows.len() * COLUMNS);
    for row in rows {
        let event = &row.event;
        let payload = event.payload();
        let headers = Some(event.headers()).filter(|headers| !headers.is_empty());
        values.extend([
            Value::Integer(Some(row.partition.0.into())),
            text(event.id().to_string()),
            text(event.event_type().as_str()),
            text(event.aggregate_type().as_str()),
            Value::Text(event.aggregate_id().map(Cow::from)),
            Value::Text(event.tenant_id().map(Cow::from)),
            Value::Text(event.key().map(Key::as_str).map(Cow::from)),
            text(payload.content_type()),
            // Text stays text in the table, for people to read.
            match payload.as_text() {
                Some(payload) => text(payload),
                None => Value::Blob(Some(payload.as_bytes())),
            },
            Value::Text(headers.map(|headers| headers.to_json().into())),
            Value::Integer(due(event)),
            Value::Integer(Some(event.occurred_at().as_micros())),
        ]);
    }
    values
}

fn due(event: &Event) -> Option<i64> {
    let delayed = || event.deliver_after().map(|delay| crate::store::now().saturating_add(delay));
    event.available_at().or_else(delayed).map(Timestamp::as_micros)
}

impl<Tx: InTransaction> WriteStore<Tx> for SqliteStore {
    fn insert<'a>(&'a self, tx: &'a mut Tx, rows: &'a [NewRow]) -> BoxFuture<'a, Result<Vec<Seq>, StoreError>> {
        Box::pin(self.insert_rows(tx, rows))
    }

    fn enter_keys<'a>(
        &'a self,
        tx: &'a mut Tx,
        keys: &'a [NewKey<'a>],
    ) -> BoxFuture<'a, Result<Vec<Option<EventId>>, StoreError>> {
        Box::pin(self.enter(tx, keys))
    }
}

impl InTransaction for Transaction<'_, Sqlite> {
    async fn insert(&mut self, statement: Statement<'_>, values: Vec<Value<'_>>) -> Result<i64, StoreError> {
        insert(self, statement, values).await
    }

    async fn pairs(
        &mut self,
        statement: Statement<'_>,
        values: Vec<Value<'_>>,
    ) -> Result<Vec<(String, String)>, StoreError> {
        pairs(self, statement, values).await
    }
}

impl InTransaction for SqliteTransaction {
    async fn insert(&mut self, statement: Statement<'_>, values: Vec<Value<'_>>) -> Result<i64, StoreError> {
        insert(self, statement, values).await
    }

    async fn pairs(
        &mut self,
        statement: Statement<'_>,
        values: Vec<Value<'_>>,
    ) -> Result<Vec<(String, String)>, StoreError> {
        pairs(self, statement, values).await
    }
}

async fn insert(
    connection: &mut SqliteConnection,
    statement: Statement<'_>,
    values: Vec<Value<'_>>,
) -> Result<i64, StoreError> {
    let done = execute(connection, statement.sql(), arguments(values)?).await.map_err(error::of)?;
    Ok(done.last_insert_rowid())
}

async fn pairs(
    connection: &mut SqliteConnection,
    statement: Statement<'_>,
    values: Vec<Value<'_>>,
) -> Result<Vec<(String, String)>, StoreError> {
    let query = sqlx::query_with(statement.sql(), arguments(values)?);
    let rows = query.fetch_all(connection).await.map_err(error::of)?;
    let pair = |row: &SqliteRow| Ok((row.try_get(0)?, row.try_get(1)?));
    rows.iter().map(pair).collect::<Result<_, _>>().map_err(error::of)
}

fn arguments(values: Vec<Value<'_>>) -> Result<SqliteArguments, StoreError> {
    let mut arguments = SqliteArguments::default();
    arguments.reserve(values.len(), 0);
    let bound = values.into_iter().try_for_each(|value| match value {
        Value::Integer(value) => arguments.add(value),
        Value::Text(Some(Cow::Owned(text))) => arguments.add(text),
        Value::Text(text) => arguments.add(text.as_deref()),
        Value::Blob(bytes) => arguments.add(bytes),
    });
    bound.map_err(|error| error::of(sqlx::Error::Encode(error)))?;
    Ok(arguments)
}

/// A transaction that waited for its turn among the writers of this process. Dropping it rolls back.
///
/// Events go into this one or into a `sqlx` transaction:
///
/// ```no_run
/// # use pillarbox_core::{Event, Outbox, engine::WriteError};
/// # use pillarbox_sqlite::SqliteStore;
/// # async fn example(outbox: Outbox<SqliteStore>) -> Result<(), Box<dyn std::error::Error>> {
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
/// # use pillarbox_core::{Event, Outbox, engine::WriteError};
/// # use pillarbox_sqlite::SqliteStore;
/// # async fn example(outbox: Outbox<SqliteStore>) -> Result<(), Box<dyn std::error::Error>> {
/// let mut connection = outbox.store().pool().acquire().await?;
/// let receipt = outbox.write(&mut *connection, Event::builder("OrderPlaced").json(&7)).await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct SqliteTransaction {
    // Before the turn: the rollback of a dropped transaction is queued before the next writer begins.
    transaction: Held,
    _turn: OwnedMutexGuard<()>,
}

#[derive(Debug)]
enum Held {
    /// On the application's pool.
    Pooled(Transaction<'static, Sqlite>),
    /// On the store's own connection for this.
    Own(Own),
}

/// A transaction on a connection that stays with the store. A pool would hand out its connections in turn, and
/// each would find its page cache outdated by the others.
#[derive(Debug)]
struct Own {
    line: Arc<Line>,
    connection: OwnedMutexGuard<Option<SqliteConnection>>,
    open: bool,
}

impl Own {
    async fn begin(line: Arc<Line>) -> Result<Self, StoreError> {
        let connection = line.enter_owned().await?;
        // Open from here on: a begin that is cut off is rolled back like any other.
        let mut own = Self { line, connection, open: true };
        let begun = SqliteTransactionManager::begin(own.connection()?, Some(SqlStr::from_static(BEGIN))).await;
        begun.map_err(|error| {
            own.open = false;
            own.line.noted(error)
        })?;
        Ok(own)
    }

    async fn commit(mut self) -> Result<(), StoreError> {
        SqliteTransactionManager::commit(self.connection()?).await.map_err(error::of_commit)?;
        self.open = false;
        Ok(())
    }

    async fn rollback(mut self) -> Result<(), StoreError> {
        SqliteTransactionManager::rollback(self.connection()?).await.map_err(error::of)?;
        self.open = false;
        Ok(())
    }

    fn connection(&mut self) -> Result<&mut SqliteConnection, StoreError> {
        self.connection.as_mut().ok_or_else(|| error::of(sqlx::Error::WorkerCrashed))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let (true, Some(connection)) = (self.open, self.connection.as_mut()) {
            SqliteTransactionManager::start_rollback(connection);
        }
    }
}

impl Deref for SqliteTransaction {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        match &self.transaction {
            Held::Pooled(transaction) => transaction,
            Held::Own(own) => own.connection.as_ref().expect("a transaction has its connection"),
        }
    }
}

impl DerefMut for SqliteTransaction {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        match &mut self.transaction {
            Held::Pooled(transaction) => transaction,
            Held::Own(own) => own.connection.as_mut().expect("a transaction has its connection"),
        }
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

impl SqliteStore {
    /// Waits for the turn to write, but not for ever: two transactions of one task would wait for each other.
    async fn turn(&self) -> Result<OwnedMutexGuard<()>, StoreError> {
        // Fair all the same: while others wait, there is nothing to be had at once.
        if let Ok(turn) = self.0.turn.clone().try_lock_owned() {
            return Ok(turn);
        }
        tokio::time::timeout(self.0.busy_timeout, self.0.turn.clone().lock_owned()).await.map_err(|_| {
            StoreError::new(
                StoreErrorKind::Unavailable,
                "another transaction of this process held the write lock for longer than the busy timeout",
            )
        })
    }
}

impl TransactStore for SqliteStore {
    type Connection = SqliteConnection;
    type Tx = SqliteTransaction;

    fn begin(&self) -> BoxFuture<'_, Result<SqliteTransaction, StoreError>> {
        Box::pin(async {
            // The pool's connection first: who waits for a full pool must not keep the turn from the others.
            let pooled = if self.0.writer.is_none() { Some(self.acquire().await?) } else { None };
            let turn = self.turn().await?;
            let transaction = match (pooled, &self.0.writer) {
                (None, Some(line)) => Held::Own(Own::begin(line.clone()).await?),
                (pooled, _) => {
                    let connection = match pooled {
                        Some(connection) => connection,
                        None => self.acquire().await?,
                    };
                    let begun = Transaction::begin(connection, Some(SqlStr::from_static(BEGIN))).await;
                    Held::Pooled(begun.map_err(error::of)?)
                }
            };
            Ok(SqliteTransaction { transaction, _turn: turn })
        })
    }

    fn commit(&self, tx: SqliteTransaction) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let SqliteTransaction { transaction, _turn } = tx;
            match transaction {
                Held::Pooled(transaction) => transaction.commit().await.map_err(error::of_commit),
                Held::Own(own) => own.commit().await,
            }
        })
    }

    fn rollback(&self, tx: SqliteTransaction) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let SqliteTransaction { transaction, _turn } = tx;
            match transaction {
                Held::Pooled(transaction) => transaction.rollback().await.map_err(error::of),
                Held::Own(own) => own.rollback().await,
            }
        })
    }
}

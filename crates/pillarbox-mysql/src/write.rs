//! Inserting events in the application's transaction.

use std::borrow::Cow;

use pillarbox_core::domain::{Event, EventId, Key, Seq, Timestamp};
use pillarbox_core::port::{BoxFuture, NewKey, NewRow, StoreError, StoreErrorKind, TransactStore, WriteStore};
use sqlx::{
    Arguments as _, Executor, MySql, MySqlConnection, Row as _, SqlStr, Transaction,
    mysql::{MySqlArguments, MySqlQueryResult},
};

use crate::{
    MySqlStore, error,
    own::micros,
    tables::{Names, statements},
    writer::{InTransaction, Statement, Value, misunderstood},
};

statements!(KeySql {
    /// By primary key, in the order of the keys. One whose window is over is taken over.
    enter: "insert into {dedup} (dedup_key, event_id, expires_at, entered_by)
        select cast(k as binary), id, utc_timestamp(6) + interval w microsecond, ?
        from json_table(?, '$[*]' columns (k varchar(512) character set utf8mb4 path '$[0]',
            id varchar(26) character set utf8mb4 path '$[1]', w bigint path '$[2]')) as given
        order by cast(k as binary)
        on duplicate key update
            event_id = if({dedup}.expires_at <= utc_timestamp(6), values(event_id), {dedup}.event_id),
            entered_by = if({dedup}.expires_at <= utc_timestamp(6), values(entered_by), {dedup}.entered_by),
            expires_at = if({dedup}.expires_at <= utc_timestamp(6), values(expires_at), {dedup}.expires_at)",
    /// By primary key. With locks, which this transaction has: an old snapshot of the caller's would not show them.
    standing: "select event_id as answer from {dedup} where dedup_key = ? and entered_by <> ? for update",
});

const PACKET: SqlStr = SqlStr::from_static("select cast(@@max_allowed_packet as char) as answer");
const STEP: SqlStr = SqlStr::from_static("select cast(@@auto_increment_increment as char) as answer");

/// Inserts of some numbers of rows: any number of rows takes a few statements, and each is prepared once.
#[derive(Debug)]
pub(crate) struct WriteSql([SqlStr; SIZES.len()]);

/// Powers of two, and the round numbers that people choose for a batch.
const SIZES: [usize; 11] = [1, 2, 4, 8, 10, 16, 32, 50, 64, 100, 128];

/// What a row takes beside its texts: lengths, numbers, times.
const ROW_OVERHEAD: usize = 256;

const ROW: &str = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, coalesce({epoch} + interval ? microsecond, \
     utc_timestamp(6) + interval ? microsecond), {epoch} + interval ? microsecond)";

// A statement numbers its rows one after another if the step is 1. With another step the table's check refuses the
// first row, without a question of its own to the server.
const FIRST_OF_MANY: &str = "(if(@@auto_increment_increment = 1, ?, -2), ";

impl WriteSql {
    pub(crate) fn new(names: &Names) -> Self {
        Self(SIZES.map(|size| {
            let mut rows = vec![ROW; size].join(", ");
            if size > 1 {
                rows = rows.replacen("(?, ", FIRST_OF_MANY, 1);
            }
            names.statement(&format!(
                "insert into {{event}} (`partition`, event_id, event_type, aggregate_type, aggregate_id, tenant_id, \
                 event_key, content_type, payload, payload_bytes, headers, available_at, occurred_at) values {rows}"
            ))
        }))
    }

    /// The insert for the most rows that are not more than these.
    fn at_most(&self, rows: usize) -> (usize, &SqlStr) {
        let index = SIZES.partition_point(|size| *size <= rows).saturating_sub(1);
        (SIZES[index], &self.0[index])
    }
}

impl MySqlStore {
    async fn insert_rows(&self, tx: &mut impl InTransaction, rows: &[NewRow]) -> Result<Vec<Seq>, StoreError> {
        let mut seqs = Vec::with_capacity(rows.len());
        let mut rest = rows;
        while !rest.is_empty() {
            let fitting = if rest.len() == 1 { 1 } else { fitting(rest, self.packet(tx).await?) };
            let (count, sql) = self.0.sql.write.at_most(fitting);
            let (chunk, later) = rest.split_at(count);
            rest = later;
            let first = match tx.insert(Statement(sql), columns(chunk)).await {
                Ok(first) => first,
                Err(error) if count > 1 => return Err(refused(tx, error).await),
                Err(error) => return Err(error),
            };
            // The number of the first; the statement knew how many it would insert, so the others follow it.
            seqs.extend((first..).take(count).map(Seq));
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
        let me = Value::BigInt(Some(fastrand::i64(0..)));
        let rows: Vec<_> = keys.iter().map(|key| (key.key, key.id.to_string(), micros(key.window))).collect();
        let list = serde_json::to_string(&rows).map_err(error::unreadable)?;
        tx.execute(Statement(&sql.enter), vec![me.clone(), Value::Text(Some(list.into()))]).await?;
        let mut answers = Vec::with_capacity(keys.len());
        // One by one: MySQL locks no rows that it finds through a list.
        for key in keys {
            let values = vec![Value::Blob(Some(key.key.as_bytes())), me.clone()];
            let id = tx.text(Statement(&sql.standing), values).await?;
            answers.push(id.map(|id| id.parse()).transpose().map_err(error::unreadable)?);
        }
        Ok(answers)
    }

    /// How large a statement may be.
    async fn packet(&self, tx: &mut impl InTransaction) -> Result<usize, StoreError> {
        if let Some(packet) = self.0.packet.get() {
            return Ok(*packet);
        }
        let packet = number(tx, &PACKET).await?;
        Ok(*self.0.packet.get_or_init(|| usize::try_from(packet).unwrap_or(usize::MAX)))
    }
}

/// A setting of the server.
async fn number(tx: &mut impl InTransaction, sql: &SqlStr) -> Result<i64, StoreError> {
    let answer = tx.text(Statement(sql), Vec::new()).await?;
    answer.unwrap_or_default().parse().map_err(misunderstood)
}

/// How many of the rows fit into a packet, and at least one.
fn fitting(rows: &[NewRow], packet: usize) -> usize {
    let mut size = ROW_OVERHEAD;
    rows.iter()
        .take_while(|row| {
            size = size.saturating_add(size_of_row(&row.event));
            size < packet
        })
        .count()
        .max(1)
}

fn size_of_row(event: &Event) -> usize {
    let texts = [
        Some(event.event_type().as_str()),
        Some(event.aggregate_type().as_str()),
        event.aggregate_id(),
        event.tenant_id(),
        event.key().map(Key::as_str),
        Some(event.payload().content_type()),
    ];
    let headers: usize = event.headers().iter().map(|(name, value)| 8 + 6 * (name.len() + value.len())).sum();
    ROW_OVERHEAD + texts.into_iter().flatten().map(str::len).sum::<usize>() + event.payload().len() + headers
}

/// Why the server refused an insert of many rows, in words.
async fn refused(tx: &mut impl InTransaction, error: StoreError) -> StoreError {
    if error.kind() == StoreErrorKind::Rejected
        && let Ok(step) = number(tx, &STEP).await
        && step != 1
    {
        return StoreError::new(StoreErrorKind::Rejected, crate::store::step_refused(step)).caused_by(error);
    }
    error
}

/// How many values a row has.
const COLUMNS: usize = 14;

fn columns(rows: &[NewRow]) -> Vec<Value<'_>> {
    fn text<'a>(text: impl Into<Cow<'a, str>>) -> Value<'a> {
        Value::Text(Some(text.into()))
    }
    let mut values = Vec::with_capacity(rows.len() * COLUMNS);
    for row in rows {
        let event = &row.event;
        let payload = event.payload();
        let headers = Some(event.headers()).filter(|headers| !headers.is_empty());
        // Text stays text in the table, for people to read.
        let as_text = payload.as_text();
        values.extend([
            Value::BigInt(Some(row.partition.0.into())),
            text(event.id().to_string()),
            text(event.event_type().as_str()),
            text(event.aggregate_type().as_str()),
            Value::Text(event.aggregate_id().map(Cow::from)),
            Value::Text(event.tenant_id().map(Cow::from)),
            Value::Text(event.key().map(Key::as_str).map(Cow::from)),
            text(payload.content_type()),
            Value::Text(as_text.map(Cow::from)),
            Value::Blob(as_text.is_none().then(|| &payload.as_bytes()[..])),
            Value::Text(headers.map(|headers| headers.to_json().into())),
            Value::BigInt(event.available_at().map(storable)),
            Value::BigInt(event.deliver_after().map(micros)),
            Value::BigInt(Some(storable(event.occurred_at()))),
        ]);
    }
    values
}

/// The nearest time that the column can hold: years 1000 to 9999.
pub(crate) fn storable(time: Timestamp) -> i64 {
    const FIRST: i64 = -30_610_224_000_000_000;
    const LAST: i64 = 253_402_300_799_999_999;
    time.as_micros().clamp(FIRST, LAST)
}

impl<Tx: InTransaction> WriteStore<Tx> for MySqlStore {
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

/// Events go into a `sqlx` transaction:
///
/// ```no_run
/// # use pillarbox_core::{Event, Outbox, engine::WriteError};
/// # use pillarbox_mysql::MySqlStore;
/// # async fn example(outbox: Outbox<MySqlStore>) -> Result<(), Box<dyn std::error::Error>> {
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
/// # use pillarbox_mysql::MySqlStore;
/// # async fn example(outbox: Outbox<MySqlStore>) -> Result<(), Box<dyn std::error::Error>> {
/// let mut connection = outbox.store().pool().acquire().await?;
/// let receipt = outbox.write(&mut *connection, Event::builder("OrderPlaced").json(&7)).await?;
/// # Ok(()) }
/// ```
impl InTransaction for Transaction<'_, MySql> {
    async fn insert(&mut self, statement: Statement<'_>, values: Vec<Value<'_>>) -> Result<i64, StoreError> {
        let done = run(self, statement, values).await?;
        i64::try_from(done.last_insert_id()).map_err(error::unreadable)
    }

    async fn execute(&mut self, statement: Statement<'_>, values: Vec<Value<'_>>) -> Result<(), StoreError> {
        run(self, statement, values).await.map(drop)
    }

    async fn text(&mut self, statement: Statement<'_>, values: Vec<Value<'_>>) -> Result<Option<String>, StoreError> {
        let query = sqlx::query_with(statement.sql(), arguments(values)?);
        let row = query.fetch_optional(&mut **self).await.map_err(error::of)?;
        row.map(|row| row.try_get(0)).transpose().map_err(error::of)
    }
}

async fn run(
    connection: &mut MySqlConnection,
    statement: Statement<'_>,
    values: Vec<Value<'_>>,
) -> Result<MySqlQueryResult, StoreError> {
    sqlx::query_with(statement.sql(), arguments(values)?).execute(connection).await.map_err(error::of)
}

fn arguments(values: Vec<Value<'_>>) -> Result<MySqlArguments, StoreError> {
    let mut arguments = MySqlArguments::default();
    let bound = values.into_iter().try_for_each(|value| match value {
        Value::BigInt(value) => arguments.add(value),
        Value::Text(value) => arguments.add(value.as_deref()),
        Value::Blob(value) => arguments.add(value),
    });
    bound.map_err(|error| error::of(sqlx::Error::Encode(error)))?;
    Ok(arguments)
}

const BEGIN: SqlStr = SqlStr::from_static("start transaction; savepoint pillarbox");
/// Fails if the server has ended the transaction before, as it does at a deadlock: its `commit` alone would succeed, and
/// events be delivered whose rows are gone. The driver does not know of this commit and rolls back when the transaction is
/// dropped, so it finds an empty one to end.
const COMMIT: SqlStr = SqlStr::from_static("release savepoint pillarbox; commit");

impl TransactStore for MySqlStore {
    type Connection = MySqlConnection;
    type Tx = Transaction<'static, MySql>;

    fn begin(&self) -> BoxFuture<'_, Result<Self::Tx, StoreError>> {
        Box::pin(async {
            // One that was used a moment ago gives no sign of life first. If the server has ended it since, nothing has
            // begun, and the next one is taken; others may have been lost with it.
            for _ in 0..self.0.pool.size() {
                match self.0.pool.begin_with(BEGIN).await {
                    Err(error) if error::is_lost(&error) => {}
                    begun => return begun.map_err(error::of),
                }
            }
            self.0.pool.begin_with(BEGIN).await.map_err(error::of)
        })
    }

    fn commit(&self, mut tx: Self::Tx) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move { Executor::execute(&mut *tx, COMMIT).await.map(drop).map_err(error::of_commit) })
    }

    fn rollback(&self, tx: Self::Tx) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move { tx.rollback().await.map_err(error::of) })
    }
}

//! For writers on other drivers: what an insert says and binds, whatever driver runs it.
//!
//! A driver's crate wraps the driver's transaction in a type of its own and implements [`InTransaction`] for it:
//! two queries, whose texts and values come from here. [`PostgresStore`] then writes events with it. `sqlx` goes the
//! same way.
//!
//! | statement | values | answer |
//! |---|---|---|
//! | insert of one event | a value for each column | its number |
//! | insert of many | an array for each column | their numbers |
//! | entering of dedup keys | arrays: keys, ids, windows | those that were entered, each with its event |
//! | dedup keys that stand | an array of keys | each with its event |
//! | entering of messages in an inbox | a consumer, an array of messages, numbers, and of many that are looked up the least and the greatest | a word with a text each |

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    error::Error,
    future::Future,
};

use pillarbox_core::domain::{Event, EventId, Key, Payload, Seq, Timestamp};
use pillarbox_core::port::{BoxFuture, NewKey, NewRow, StoreError, StoreErrorKind, WriteStore};
use sqlx::SqlStr;

use crate::{PostgresStore, error, own::micros, tables::statements};

/// A transaction of a driver, as far as writing events needs it.
///
/// Implement it for a type that can't be had outside of a transaction, or that asks the driver before each query and
/// fails at once if there is none: an event must commit together with the data it tells of. The transaction must be
/// in the outbox's database, on a connection that finds its tables: by the schema that was named to the store, or by
/// the search path.
///
/// Errors are made by [`refused`], [`broken`] and [`misunderstood`].
#[diagnostic::on_unimplemented(
    message = "events can't be written in a `{Self}`",
    note = "pass the transaction of a driver that this store supports, not a connection or a pool: \
            an event must commit together with the data it tells of"
)]
pub trait InTransaction: Send {
    /// Runs the statement; its one column is `seq`, a `bigint`.
    fn numbers(
        &mut self,
        statement: Statement<'_>,
        values: Vec<Value<'_>>,
    ) -> impl Future<Output = Result<Vec<i64>, StoreError>> + Send;

    /// Runs the statement; its two columns are `dedup_key` and `event_id`, both `text`.
    fn pairs(
        &mut self,
        statement: Statement<'_>,
        values: Vec<Value<'_>>,
    ) -> impl Future<Output = Result<Vec<(String, String)>, StoreError>> + Send;
}

/// A statement with the places `$1`, `$2` and so on, and the same for the life of the store.
#[derive(Clone, Copy, Debug)]
pub struct Statement<'a> {
    sql: &'a SqlStr,
    prepared: bool,
}

impl<'a> Statement<'a> {
    /// The text.
    pub fn as_str(self) -> &'a str {
        self.sql.as_str()
    }

    /// Whether it may be prepared under a name and kept: not behind a pooler in transaction mode.
    pub fn may_be_prepared(self) -> bool {
        self.prepared
    }

    pub(crate) fn sql(self) -> SqlStr {
        self.sql.clone()
    }
}

/// A value to bind, of the type in PostgreSQL that its name says. `None` is null.
///
/// Arrays and times may be bound as text in PostgreSQL's form as well: the statements cast them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the types")]
pub enum Value<'a> {
    SmallInt(i16),
    BigInt(Option<i64>),
    Text(Option<Cow<'a, str>>),
    Bytea(Option<&'a [u8]>),
    Timestamptz(Option<Timestamp>),
    SmallIntArray(Vec<i16>),
    BigIntArray(Vec<Option<i64>>),
    TextArray(Vec<Option<Cow<'a, str>>>),
    ByteaArray(Vec<Option<&'a [u8]>>),
    TimestamptzArray(Vec<Option<Timestamp>>),
}

/// A time as `timestamptz` holds it: microseconds since 2000. Times that it can't hold become its farthest.
pub fn since_2000(time: Timestamp) -> i64 {
    /// 4714-11-24 BC, and the last microsecond of the year 294276.
    const FARTHEST: (i64, i64) = (-211_813_488_000_000_000, 9_223_371_331_199_999_999);
    time.as_micros().saturating_sub(EPOCH).clamp(FARTHEST.0, FARTHEST.1)
}

/// 2000-01-01 in microseconds since 1970.
pub(crate) const EPOCH: i64 = 946_684_800_000_000;

/// The server refused a statement, with this SQLSTATE and message.
pub fn refused(state: &str, message: &str, source: impl Into<Box<dyn Error + Send + Sync>>) -> StoreError {
    let (kind, words) = error::of_state(state, message);
    StoreError::new(kind, words).caused_by(source)
}

/// The connection broke, or could not be had.
pub fn broken(source: impl Into<Box<dyn Error + Send + Sync>>) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, error::BROKEN).caused_by(source)
}

/// The driver could not make sense of the answer, or of a value.
pub fn misunderstood(source: impl Into<Box<dyn Error + Send + Sync>>) -> StoreError {
    StoreError::new(StoreErrorKind::Rejected, error::MISUNDERSTOOD).caused_by(source)
}

/// At most so many rows and payload bytes in one statement.
const ROWS: usize = 2_000;
const BYTES: usize = 8 * 1024 * 1024;

statements!(WriteSql {
    one:
        "insert into {event} (given_partition, event_id, event_type, aggregate_type, aggregate_id, tenant_id, event_key,
            content_type, payload, payload_bytes, headers, occurred_at, available_at)
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::timestamptz,
            coalesce($13::timestamptz, {now} + $14::bigint * interval '1 microsecond'))
        returning seq",
    /// Numbers are given out above the sort, so they rise in the order of the rows.
    many:
        "insert into {event} (given_partition, event_id, event_type, aggregate_type, aggregate_id, tenant_id, event_key,
            content_type, payload, payload_bytes, headers, occurred_at, available_at)
        select given_partition, event_id, event_type, aggregate_type, aggregate_id, tenant_id, event_key,
            content_type, payload, payload_bytes, headers, occurred_at,
            coalesce(available_at, {now} + delay * interval '1 microsecond')
        from unnest($1::smallint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
                $9::text[], $10::bytea[], $11::text[], $12::timestamptz[], $13::timestamptz[], $14::bigint[])
            with ordinality as given (given_partition, event_id, event_type, aggregate_type, aggregate_id, tenant_id,
                event_key, content_type, payload, payload_bytes, headers, occurred_at, available_at, delay, place)
        order by place
        returning seq",
    /// By primary key, in the order of the keys. One whose window is over is taken over.
    enter_keys: "insert into {dedup} as standing (dedup_key, event_id, expires_at)
        select given.key, id, {now} + span * interval '1 microsecond'
        from unnest($1::text[], $2::text[], $3::bigint[]) as given (key, id, span)
        order by given.key collate \"C\"
        on conflict (dedup_key) do update set event_id = excluded.event_id, expires_at = excluded.expires_at
            where standing.expires_at <= {now}
        returning dedup_key, event_id",
    /// By primary key.
    standing_keys: "select dedup_key, event_id from {dedup} where dedup_key = any($1::text[])",
});

impl PostgresStore {
    pub(crate) fn statement<'a>(&self, sql: &'a SqlStr) -> Statement<'a> {
        Statement { sql, prepared: !self.0.behind_pooler }
    }

    async fn insert_rows(&self, tx: &mut impl InTransaction, rows: &[NewRow]) -> Result<Vec<Seq>, StoreError> {
        let sql = &self.0.sql.write;
        let mut seqs = Vec::with_capacity(rows.len());
        let mut rest = rows;
        while !rest.is_empty() {
            let (chunk, later) = rest.split_at(chunk_len(rest));
            rest = later;
            let text = if chunk.len() == 1 { &sql.one } else { &sql.many };
            let mut numbers = tx.numbers(self.statement(text), columns(chunk)).await?;
            if numbers.len() != chunk.len() {
                return Err(misunderstood(format!("{} rows, and {} numbers", chunk.len(), numbers.len())));
            }
            // They come in the order of the inserts; the contract rests on more than that.
            numbers.sort_unstable();
            seqs.extend(numbers.into_iter().map(Seq));
        }
        Ok(seqs)
    }

    async fn enter(
        &self,
        tx: &mut impl InTransaction,
        keys: &[NewKey<'_>],
    ) -> Result<Vec<Option<EventId>>, StoreError> {
        let sql = &self.0.sql.write;
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let values = vec![
            Value::TextArray(keys.iter().map(|key| Some(key.key.into())).collect()),
            Value::TextArray(keys.iter().map(|key| Some(key.id.to_string().into())).collect()),
            Value::BigIntArray(keys.iter().map(|key| Some(micros(key.window))).collect()),
        ];
        let entered = tx.pairs(self.statement(&sql.enter_keys), values).await?;
        let entered: HashSet<String> = entered.into_iter().map(|(key, _)| key).collect();
        let others = keys.iter().map(|key| key.key).filter(|key| !entered.contains(*key));
        let others: Vec<_> = others.map(|key| Some(key.into())).collect();
        if others.is_empty() {
            return Ok(vec![None; keys.len()]);
        }
        let standing = tx.pairs(self.statement(&sql.standing_keys), vec![Value::TextArray(others)]).await?;
        let standing = standing
            .into_iter()
            .map(|(key, id)| Ok((key, id.parse().map_err(error::unreadable)?)))
            .collect::<Result<HashMap<String, EventId>, StoreError>>()?;
        Ok(keys.iter().map(|key| standing.get(key.key).copied()).collect())
    }
}

impl<Tx: InTransaction> WriteStore<Tx> for PostgresStore {
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

/// How many of the rows go into the next statement: at least one.
fn chunk_len(rows: &[NewRow]) -> usize {
    let mut bytes = 0;
    let fits = rows.iter().take(ROWS).take_while(|row| {
        let first = bytes == 0;
        bytes += row.event.payload().len() + 1;
        first || bytes <= BYTES
    });
    fits.count()
}

/// The values of the inserts: of one row as they are, of many as arrays.
fn columns(rows: &[NewRow]) -> Vec<Value<'_>> {
    let text = |of: fn(&Event) -> Option<Cow<'_, str>>| column(rows, Value::Text, Value::TextArray, of);
    let time = |of: fn(&Event) -> Option<Timestamp>| column(rows, Value::Timestamptz, Value::TimestamptzArray, of);
    let partition = match rows {
        [row] => Value::SmallInt(row.partition.0.into()),
        rows => Value::SmallIntArray(rows.iter().map(|row| row.partition.0.into()).collect()),
    };
    vec![
        partition,
        text(|event| Some(event.id().to_string().into())),
        text(|event| Some(event.event_type().as_str().into())),
        text(|event| Some(event.aggregate_type().as_str().into())),
        text(|event| event.aggregate_id().map(Cow::from)),
        text(|event| event.tenant_id().map(Cow::from)),
        text(|event| event.key().map(Key::as_str).map(Cow::from)),
        text(|event| Some(event.payload().content_type().into())),
        text(|event| body(event.payload()).0.map(Cow::from)),
        column(rows, Value::Bytea, Value::ByteaArray, |event| body(event.payload()).1),
        text(|event| {
            Some(event.headers()).filter(|headers| !headers.is_empty()).map(|headers| headers.to_json().into())
        }),
        time(|event| Some(event.occurred_at())),
        time(Event::available_at),
        column(rows, Value::BigInt, Value::BigIntArray, |event| event.deliver_after().map(micros)),
    ]
}

fn column<'a, T>(
    rows: &'a [NewRow],
    one: impl Fn(T) -> Value<'a>,
    many: impl Fn(Vec<T>) -> Value<'a>,
    of: impl Fn(&'a Event) -> T,
) -> Value<'a> {
    match rows {
        [row] => one(of(&row.event)),
        rows => many(rows.iter().map(|row| of(&row.event)).collect()),
    }
}

/// Text stays text in the table, for people to read, as far as PostgreSQL can hold it.
pub(crate) fn body(payload: &Payload) -> (Option<&str>, Option<&[u8]>) {
    match payload.as_text().filter(|text| !text.contains('\0')) {
        Some(text) => (Some(text), None),
        None => (None, Some(payload.as_bytes())),
    }
}

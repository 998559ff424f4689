//! Inserting events in the application's transaction.

use pillarbox_core::domain::{Event, EventId, Key, Seq, Timestamp};
use pillarbox_core::port::{BoxFuture, NewKey, NewRow, StoreError, StoreErrorKind, TransactStore, WriteStore};
use sqlx::{
    Arguments as _, Executor as _, MySql, MySqlConnection, Row as _, SqlStr, Transaction, mysql::MySqlArguments,
};

use crate::{
    MySqlStore, error,
    own::micros,
    tables::{Names, statements},
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
    standing: "select event_id from {dedup} where dedup_key = ? and entered_by <> ? for update",
});

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
    async fn insert_rows(&self, tx: &mut MySqlConnection, rows: &[NewRow]) -> Result<Vec<Seq>, StoreError> {
        let mut seqs = Vec::with_capacity(rows.len());
        let mut rest = rows;
        while !rest.is_empty() {
            let fitting = if rest.len() == 1 { 1 } else { fitting(rest, self.packet(tx).await?) };
            let (count, sql) = self.0.sql.write.at_most(fitting);
            let (chunk, later) = rest.split_at(count);
            rest = later;
            let mut arguments = MySqlArguments::default();
            for row in chunk {
                bind(&mut arguments, row).map_err(|error| error::of(sqlx::Error::Encode(error)))?;
            }
            let done = match sqlx::query_with(sql.clone(), arguments).execute(&mut *tx).await {
                Ok(done) => done,
                Err(error) => return Err(refused(tx, error).await),
            };
            // The number of the first; the statement knew how many it would insert, so the others follow it.
            let first = i64::try_from(done.last_insert_id()).map_err(error::unreadable)?;
            seqs.extend((first..).take(count).map(Seq));
        }
        Ok(seqs)
    }

    async fn enter(&self, tx: &mut MySqlConnection, keys: &[NewKey<'_>]) -> Result<Vec<Option<EventId>>, StoreError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let me = fastrand::u64(..);
        let rows: Vec<_> = keys.iter().map(|key| (key.key, key.id.to_string(), micros(key.window))).collect();
        sqlx::query(self.0.sql.keys.enter.clone())
            .bind(me)
            .bind(serde_json::to_string(&rows).map_err(error::unreadable)?)
            .execute(&mut *tx)
            .await
            .map_err(error::of)?;
        let mut answers = Vec::with_capacity(keys.len());
        // One by one: MySQL locks no rows that it finds through a list.
        for key in keys {
            let standing = sqlx::query(self.0.sql.keys.standing.clone())
                .bind(key.key.as_bytes())
                .bind(me)
                .fetch_optional(&mut *tx)
                .await
                .map_err(error::of)?;
            let id = standing.map(|row| row.try_get::<String, _>(0)).transpose().map_err(error::of)?;
            answers.push(id.map(|id| id.parse()).transpose().map_err(error::unreadable)?);
        }
        Ok(answers)
    }

    /// How large a statement may be.
    async fn packet(&self, tx: &mut MySqlConnection) -> Result<usize, StoreError> {
        if let Some(packet) = self.0.packet.get() {
            return Ok(*packet);
        }
        let row = sqlx::query("select cast(@@max_allowed_packet as signed)").fetch_one(tx).await.map_err(error::of)?;
        let packet = row.try_get::<i64, _>(0).map_err(error::of)?;
        Ok(*self.0.packet.get_or_init(|| usize::try_from(packet).unwrap_or(usize::MAX)))
    }
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

/// Why the server refused an insert, in words.
async fn refused(tx: &mut MySqlConnection, error: sqlx::Error) -> StoreError {
    if error::number(&error).is_some_and(|number| error::CHECKS.contains(&number))
        && let Ok(row) = sqlx::query("select cast(@@auto_increment_increment as signed)").fetch_one(tx).await
        && let Ok(step) = row.try_get::<i64, _>(0)
        && step != 1
    {
        return StoreError::new(StoreErrorKind::Rejected, crate::store::step_refused(step)).caused_by(error);
    }
    error::of(error)
}

fn bind(arguments: &mut MySqlArguments, row: &NewRow) -> Result<(), sqlx::error::BoxDynError> {
    let event = &row.event;
    arguments.add(i64::from(row.partition.0))?;
    arguments.add(event.id().to_string())?;
    arguments.add(event.event_type().as_str())?;
    arguments.add(event.aggregate_type().as_str())?;
    arguments.add(event.aggregate_id())?;
    arguments.add(event.tenant_id())?;
    arguments.add(event.key().map(Key::as_str))?;
    let payload = event.payload();
    arguments.add(payload.content_type())?;
    // Text stays text in the table, for people to read.
    let text = payload.as_text();
    arguments.add(text)?;
    arguments.add(text.is_none().then(|| &payload.as_bytes()[..]))?;
    let headers = event.headers();
    arguments.add((!headers.is_empty()).then(|| headers.to_json()))?;
    arguments.add(event.available_at().map(storable))?;
    arguments.add(event.deliver_after().map(micros))?;
    arguments.add(storable(event.occurred_at()))?;
    Ok(())
}

/// The nearest time that the column can hold: years 1000 to 9999.
pub(crate) fn storable(time: Timestamp) -> i64 {
    const FIRST: i64 = -30_610_224_000_000_000;
    const LAST: i64 = 253_402_300_799_999_999;
    time.as_micros().clamp(FIRST, LAST)
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
impl WriteStore<Transaction<'_, MySql>> for MySqlStore {
    fn insert<'a>(
        &'a self,
        tx: &'a mut Transaction<'_, MySql>,
        rows: &'a [NewRow],
    ) -> BoxFuture<'a, Result<Vec<Seq>, StoreError>> {
        Box::pin(self.insert_rows(tx, rows))
    }

    fn enter_keys<'a>(
        &'a self,
        tx: &'a mut Transaction<'_, MySql>,
        keys: &'a [NewKey<'a>],
    ) -> BoxFuture<'a, Result<Vec<Option<EventId>>, StoreError>> {
        Box::pin(self.enter(tx, keys))
    }
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
        Box::pin(async move { tx.execute(COMMIT).await.map(drop).map_err(error::of_commit) })
    }

    fn rollback(&self, tx: Self::Tx) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move { tx.rollback().await.map_err(error::of) })
    }
}

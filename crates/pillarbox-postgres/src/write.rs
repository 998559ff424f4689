//! Inserting events in the application's transaction.

use std::collections::{HashMap, HashSet};

use pillarbox_core::domain::{Event, EventId, Key, Seq};
use pillarbox_core::port::{BoxFuture, NewKey, NewRow, StoreError, TransactStore, WriteStore};
use sqlx::{PgConnection, Postgres, Row as _, SqlStr, Transaction, postgres::PgRow};

use crate::{PostgresStore, error, own::micros, row::Time, tables::statements};

/// At most so many rows and payload bytes in one statement.
const ROWS: usize = 2_000;
const BYTES: usize = 8 * 1024 * 1024;

/// Commits, or fails. PostgreSQL answers a bare `commit` after a failed statement with a rollback and no error, so that
/// an event could be delivered whose transaction is not in effect: something that fails then goes first. The driver
/// does not know of this commit and rolls back when its transaction is dropped, so it finds an empty one to end.
const COMMIT: &str = "select 1; commit; begin";

statements!(WriteSql {
    one:
        "insert into {event} (given_partition, event_id, event_type, aggregate_type, aggregate_id, tenant_id, event_key,
            content_type, payload, payload_bytes, headers, occurred_at, available_at)
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12,
            coalesce($13, {now} + $14::bigint * interval '1 microsecond'))
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
        returning dedup_key",
    /// By primary key.
    standing_keys: "select dedup_key, event_id from {dedup} where dedup_key = any($1)",
});

impl PostgresStore {
    async fn insert_rows(&self, tx: &mut PgConnection, rows: &[NewRow]) -> Result<Vec<Seq>, StoreError> {
        if let [row] = rows {
            return self.insert_one(tx, row).await.map(|seq| vec![seq]).map_err(error::of);
        }
        let mut seqs = Vec::with_capacity(rows.len());
        let mut rest = rows;
        while !rest.is_empty() {
            let (chunk, later) = rest.split_at(chunk_len(rest));
            rest = later;
            seqs.extend(self.insert_many(tx, chunk).await.map_err(error::of)?);
        }
        Ok(seqs)
    }

    async fn insert_one(&self, tx: &mut PgConnection, row: &NewRow) -> Result<Seq, sqlx::Error> {
        let event = &row.event;
        let (text, bytes) = payload(event);
        let inserted = self
            .query(&self.0.sql.write.one)
            .bind(i16::from(row.partition.0))
            .bind(event.id().to_string())
            .bind(event.event_type().as_str())
            .bind(event.aggregate_type().as_str())
            .bind(event.aggregate_id())
            .bind(event.tenant_id())
            .bind(event.key().map(Key::as_str))
            .bind(event.payload().content_type())
            .bind(text)
            .bind(bytes)
            .bind(headers(event))
            .bind(Time(event.occurred_at()))
            .bind(event.available_at().map(Time))
            .bind(event.deliver_after().map(micros))
            .fetch_one(tx)
            .await?;
        inserted.try_get(0).map(Seq)
    }

    async fn insert_many(&self, tx: &mut PgConnection, rows: &[NewRow]) -> Result<Vec<Seq>, sqlx::Error> {
        fn column<'a, T>(rows: &'a [NewRow], value: impl Fn(&'a Event) -> T) -> Vec<T> {
            rows.iter().map(|row| value(&row.event)).collect()
        }
        let sql: &SqlStr = &self.0.sql.write.many;
        let inserted = self
            .query(sql)
            .bind(rows.iter().map(|row| i16::from(row.partition.0)).collect::<Vec<_>>())
            .bind(column(rows, |event| event.id().to_string()))
            .bind(column(rows, |event| event.event_type().as_str()))
            .bind(column(rows, |event| event.aggregate_type().as_str()))
            .bind(column(rows, Event::aggregate_id))
            .bind(column(rows, Event::tenant_id))
            .bind(column(rows, |event| event.key().map(Key::as_str)))
            .bind(column(rows, |event| event.payload().content_type()))
            .bind(column(rows, |event| payload(event).0))
            .bind(column(rows, |event| payload(event).1))
            .bind(column(rows, headers))
            .bind(column(rows, |event| Time(event.occurred_at())))
            .bind(column(rows, |event| event.available_at().map(Time)))
            .bind(column(rows, |event| event.deliver_after().map(micros)))
            .fetch_all(tx)
            .await?;
        let mut seqs = inserted.iter().map(|row| row.try_get(0).map(Seq)).collect::<Result<Vec<_>, _>>()?;
        // They come in the order of the inserts; the contract rests on more than that.
        seqs.sort_unstable();
        Ok(seqs)
    }

    async fn enter(&self, tx: &mut PgConnection, keys: &[NewKey<'_>]) -> Result<Vec<Option<EventId>>, StoreError> {
        let column = |row: &PgRow| row.try_get::<String, _>(0);
        let entered = self
            .query(&self.0.sql.write.enter_keys)
            .bind(keys.iter().map(|key| key.key).collect::<Vec<_>>())
            .bind(keys.iter().map(|key| key.id.to_string()).collect::<Vec<_>>())
            .bind(keys.iter().map(|key| micros(key.window)).collect::<Vec<_>>())
            .fetch_all(&mut *tx)
            .await
            .map_err(error::of)?;
        let entered = entered.iter().map(column).collect::<Result<HashSet<_>, _>>().map_err(error::of)?;
        let others: Vec<&str> = keys.iter().map(|key| key.key).filter(|key| !entered.contains(*key)).collect();
        if others.is_empty() {
            return Ok(vec![None; keys.len()]);
        }
        let standing = self.query(&self.0.sql.write.standing_keys).bind(others).fetch_all(tx).await;
        let standing = standing
            .map_err(error::of)?
            .iter()
            .map(|row| {
                let id = row.try_get::<&str, _>(1).map_err(error::of)?;
                Ok((column(row).map_err(error::of)?, id.parse().map_err(error::unreadable)?))
            })
            .collect::<Result<HashMap<String, EventId>, StoreError>>()?;
        Ok(keys.iter().map(|key| standing.get(key.key).copied()).collect())
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

/// Text stays text in the table, for people to read, as far as PostgreSQL can hold it.
fn payload(event: &Event) -> (Option<&str>, Option<&[u8]>) {
    let payload = event.payload();
    match payload.as_text().filter(|text| !text.contains('\0')) {
        Some(text) => (Some(text), None),
        None => (None, Some(payload.as_bytes())),
    }
}

fn headers(event: &Event) -> Option<String> {
    let headers = event.headers();
    (!headers.is_empty()).then(|| headers.to_json())
}

/// Events go into a `sqlx` transaction:
///
/// ```no_run
/// # use pillarbox_core::{Event, Outbox};
/// # use pillarbox_postgres::PostgresStore;
/// # async fn example(outbox: Outbox<PostgresStore>) -> Result<(), Box<dyn std::error::Error>> {
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
/// # use pillarbox_core::{Event, Outbox};
/// # use pillarbox_postgres::PostgresStore;
/// # async fn example(outbox: Outbox<PostgresStore>) -> Result<(), Box<dyn std::error::Error>> {
/// let mut connection = outbox.store().pool().acquire().await?;
/// let receipt = outbox.write(&mut *connection, Event::builder("OrderPlaced").json(&7)).await?;
/// # Ok(()) }
/// ```
impl WriteStore<Transaction<'_, Postgres>> for PostgresStore {
    fn insert<'a>(
        &'a self,
        tx: &'a mut Transaction<'_, Postgres>,
        rows: &'a [NewRow],
    ) -> BoxFuture<'a, Result<Vec<Seq>, StoreError>> {
        Box::pin(self.insert_rows(tx, rows))
    }

    fn enter_keys<'a>(
        &'a self,
        tx: &'a mut Transaction<'_, Postgres>,
        keys: &'a [NewKey<'a>],
    ) -> BoxFuture<'a, Result<Vec<Option<EventId>>, StoreError>> {
        Box::pin(self.enter(tx, keys))
    }
}

impl TransactStore for PostgresStore {
    type Connection = PgConnection;
    type Tx = Transaction<'static, Postgres>;

    fn begin(&self) -> BoxFuture<'_, Result<Self::Tx, StoreError>> {
        Box::pin(async { self.0.pool.begin().await.map_err(error::of) })
    }

    fn commit(&self, tx: Self::Tx) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async {
            let mut tx = tx;
            sqlx::raw_sql(COMMIT).execute(&mut *tx).await.map_err(error::of_commit).map(drop)
        })
    }

    fn rollback(&self, tx: Self::Tx) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async { tx.rollback().await.map_err(error::of) })
    }
}

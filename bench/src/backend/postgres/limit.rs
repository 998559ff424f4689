//! The limit: what a hand-written loop reaches on the same table, with the same driver and settings.
//!
//! - Writing: begin, one prepared insert for all events of the transaction, commit. Many rows come as arrays, which the
//!   server takes faster than a long list of values.
//! - Draining: select a page of the columns that a delivery needs, by primary key from where the last page
//!   ended, and finish exactly these rows by their range (they have no gaps here; checked) in a transaction
//!   that is this one statement. Every row's payload is looked at, and nothing else is done with it.

use std::time::Instant;

use futures_util::TryStreamExt as _;
use sqlx::{Connection as _, PgConnection, Row as _};

use super::Database;
use crate::{
    Result, backend,
    backend::{CONTENT_TYPE, EVENT_TYPE, Finish, PAYLOAD},
};

/// Writes transactions of so many events.
#[derive(Debug)]
pub(crate) struct Writer {
    connection: PgConnection,
    events: usize,
    written: u64,
    payload: Vec<u8>,
}

impl Writer {
    pub(super) async fn open(database: &Database, events: usize) -> Result<Self> {
        Ok(Self { connection: database.connect().await?, events, written: 0, payload: vec![b'x'; PAYLOAD] })
    }

    async fn one(&mut self) -> Result<()> {
        self.written += 1;
        let mut tx = self.connection.begin().await?;
        sqlx::query(
            "insert into outbox_event (given_partition, event_id, event_type, aggregate_type, aggregate_id, tenant_id, \
             event_key, content_type, payload_bytes, headers, occurred_at) \
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, to_timestamp($11::double precision))",
        )
        .bind(i16::try_from(self.written % 256)?)
        .bind(format!("{:026}", self.written))
        .bind(EVENT_TYPE)
        .bind("__GLOBAL__")
        .bind(None::<&str>)
        .bind(None::<&str>)
        .bind(None::<&str>)
        .bind(CONTENT_TYPE)
        .bind(&self.payload)
        .bind(None::<&str>)
        .bind(1_700_000_000.0)
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(())
    }

    async fn many(&mut self) -> Result<()> {
        let numbers: Vec<u64> = (self.written + 1..).take(self.events).collect();
        self.written += u64::try_from(self.events)?;
        let partitions = numbers.iter().map(|number| Ok(i16::try_from(number % 256)?)).collect::<Result<Vec<_>>>()?;
        let none = vec![None::<&str>; self.events];
        let mut tx = self.connection.begin().await?;
        sqlx::query(
            "insert into outbox_event (given_partition, event_id, event_type, aggregate_type, aggregate_id, tenant_id, \
             event_key, content_type, payload_bytes, headers, occurred_at) \
             select a, b, c, d, e, f, g, h, i, j, to_timestamp(k) \
             from unnest($1::smallint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], \
             $8::text[], $9::bytea[], $10::text[], $11::double precision[]) as given (a, b, c, d, e, f, g, h, i, j, k)",
        )
        .bind(partitions)
        .bind(numbers.iter().map(|number| format!("{number:026}")).collect::<Vec<_>>())
        .bind(vec![EVENT_TYPE; self.events])
        .bind(vec!["__GLOBAL__"; self.events])
        .bind(&none)
        .bind(&none)
        .bind(&none)
        .bind(vec![CONTENT_TYPE; self.events])
        .bind(vec![&self.payload[..]; self.events])
        .bind(&none)
        .bind(vec![1_700_000_000.0; self.events])
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(())
    }
}

impl backend::Writer for Writer {
    async fn write(&mut self, transactions: usize) -> Result<f64> {
        let begun = Instant::now();
        for _ in 0..transactions {
            if self.events == 1 {
                self.one().await?;
            } else {
                self.many().await?;
            }
        }
        Ok(begun.elapsed().as_secs_f64())
    }

    async fn close(self) -> Result<()> {
        Ok(self.connection.close().await?)
    }
}

/// Finishes the events from 1 to `events` page by page; seconds.
pub(super) async fn drain(database: &Database, events: usize, page: usize, finish: Finish) -> Result<f64> {
    let sql = match finish {
        Finish::Keep => {
            "update outbox_event set status = 'DONE', done_at = clock_timestamp() where seq between $1 and $2"
        }
        Finish::Delete => "delete from outbox_event where seq between $1 and $2",
    };
    let mut connection = database.connect().await?;
    let begun = Instant::now();
    let mut after = 0;
    let mut finished = 0;
    while let Some((first, last)) = read(&mut connection, after, page).await? {
        let done = sqlx::query(sql).bind(first).bind(last).execute(&mut connection).await?;
        after = last;
        finished += usize::try_from(done.rows_affected())?;
    }
    let took = begun.elapsed();
    if finished != events {
        return Err(format!("the limit finished {finished} of {events} events").into());
    }
    connection.close().await?;
    Ok(took.as_secs_f64())
}

/// Reads a page, and returns its first and last number.
async fn read(connection: &mut PgConnection, after: i64, page: usize) -> Result<Option<(i64, i64)>> {
    let mut rows = sqlx::query(
        "select seq, partition, event_key, event_id, event_type, aggregate_type, aggregate_id, tenant_id, \
         content_type, payload_bytes, headers, attempts, starts, progress, occurred_at, created_at \
         from outbox_event where seq > $1 and status = 'NEW' and available_at is null order by seq limit $2",
    )
    .bind(after)
    .bind(i64::try_from(page)?)
    .fetch(connection);
    let mut span: Option<(i64, i64)> = None;
    while let Some(row) = rows.try_next().await? {
        let seq: i64 = row.try_get_unchecked(0)?;
        let payload: &[u8] = row.try_get_unchecked(9)?;
        let follows = span.is_none_or(|(_, last)| last + 1 == seq);
        if payload.len() != PAYLOAD || !follows {
            return Err(format!("row {seq} is not what was filled in").into());
        }
        span = Some((span.map_or(seq, |(first, _)| first), seq));
    }
    Ok(span)
}

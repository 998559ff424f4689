//! The limit: what a hand-written loop reaches on the same table, with the same driver and settings.
//!
//! - Writing: begin immediate, one prepared insert for all events of the transaction, commit.
//! - Draining: select a page of the columns that a delivery needs, by primary key from where the last page
//!   ended, and finish exactly these rows by their range (they have no gaps here; checked) in a transaction
//!   that is this one statement. Every row's payload is looked at, and nothing else is done with it.

use std::time::Instant;

use futures_util::TryStreamExt as _;
use sqlx::{
    Arguments as _, AssertSqlSafe, Connection as _, Row as _, SqlSafeStr as _, SqlStr, SqliteConnection,
    sqlite::SqliteArguments,
};

use super::Database;
use crate::{
    Result, backend,
    backend::{CONTENT_TYPE, EVENT_TYPE, Finish, PAYLOAD},
};

/// Writes transactions of so many events.
pub(crate) struct Writer {
    connection: SqliteConnection,
    insert: SqlStr,
    events: usize,
    written: u64,
    payload: Vec<u8>,
}

impl Writer {
    pub(super) async fn open(database: &Database, events: usize) -> Result<Self> {
        Ok(Self {
            connection: database.connect().await?,
            insert: insert(events),
            events,
            written: 0,
            payload: vec![b'x'; PAYLOAD],
        })
    }
}

impl backend::Writer for Writer {
    async fn write(&mut self, transactions: usize) -> Result<f64> {
        let begun = Instant::now();
        for _ in 0..transactions {
            let mut tx = self.connection.begin_with("begin immediate").await?;
            let mut arguments = SqliteArguments::default();
            arguments.reserve(self.events * 12, 0);
            for _ in 0..self.events {
                self.written += 1;
                bind(&mut arguments, self.written, &self.payload)?;
            }
            sqlx::query_with(self.insert.clone(), arguments).execute(&mut *tx).await?;
            tx.commit().await?;
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
            "update outbox_event not indexed set status = 'DONE', \
             done_at = (cast(round(unixepoch('subsec') * 1000) as integer) * 1000) where seq between ? and ?"
        }
        Finish::Delete => "delete from outbox_event not indexed where seq between ? and ?",
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
async fn read(connection: &mut SqliteConnection, after: i64, page: usize) -> Result<Option<(i64, i64)>> {
    let mut rows = sqlx::query(
        "select seq, partition, event_key, event_id, event_type, aggregate_type, aggregate_id, tenant_id, \
         content_type, payload, headers, attempts, starts, progress, occurred_at, created_at \
         from outbox_event not indexed where seq > ? and status = 'NEW' and available_at is null \
         order by seq limit ?",
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

fn insert(events: usize) -> SqlStr {
    let row = format!("({}?)", "?, ".repeat(11));
    let sql = format!(
        "insert into outbox_event (partition, event_id, event_type, aggregate_type, aggregate_id, tenant_id, \
         event_key, content_type, payload, headers, available_at, occurred_at) values {}",
        vec![row; events].join(", ")
    );
    // Only the count of rows was filled in.
    AssertSqlSafe(sql).into_sql_str()
}

fn bind(arguments: &mut SqliteArguments, number: u64, payload: &[u8]) -> Result<()> {
    arguments.add(i64::try_from(number % 256)?)?;
    arguments.add(format!("{number:026}"))?;
    arguments.add(EVENT_TYPE)?;
    arguments.add("__GLOBAL__")?;
    for _ in ["aggregate_id", "tenant_id", "event_key"] {
        arguments.add(None::<&str>)?;
    }
    arguments.add(CONTENT_TYPE)?;
    arguments.add(payload)?;
    arguments.add(None::<&str>)?;
    arguments.add(None::<i64>)?;
    // As long in the row as a time of today.
    arguments.add(1_700_000_000_000_000 + i64::try_from(number)?)?;
    Ok(())
}

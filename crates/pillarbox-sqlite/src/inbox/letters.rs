//! Messages that a consumer has given up.

use pillarbox_core::{
    domain::Timestamp,
    port::{
        Acted, BoxFuture, Deed, DeedPlace, DeedQuery, DeedStore, Deeds, Letter, LetterId, LetterPlace, LetterQuery,
        LetterStatus, LetterStore, StoreError,
    },
};
use sqlx::{
    Row as _, SqlStr, Sqlite,
    query::Query,
    sqlite::{SqliteArguments, SqliteRow},
};

use super::{SqliteInbox, now};
use crate::{error, tables::statements};

/// The columns, as [`bind`] binds them and [`letter`] reads them.
macro_rules! columns {
    () => {
        "id, version, consumer, event_id, event_type, topic, message_key, content_type, attributes, headers, payload, \
         reason, attempts, dead_at, source, saga_id, correlation_id, replays, status, finished_at, claim, history"
    };
}

/// What a [`LetterQuery`] asks, with the binds of [`ask`].
macro_rules! matching {
    () => {
        "(?1 is null or status = ?1) and (?2 is null or consumer = ?2) and (?3 is null or event_type = ?3)
            and (?4 is null or topic = ?4) and (?5 is null or event_id = ?5) and (?6 is null or saga_id = ?6)
            and (?7 is null or correlation_id = ?7) and (?8 is null or dead_at >= ?8) and (?9 is null or dead_at < ?9)
            and (?10 is null or instr(lower(reason), lower(?10)) > 0
                or instr(lower(cast(payload as text)), lower(?10)) > 0)"
    };
}

statements!(LetterSql {
    /// By primary key, as the two that follow.
    insert: concat!(
        "insert into {letter} (",
        columns!(),
        ") values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict do nothing"
    ),
    replace: concat!(
        "update {letter} set (",
        columns!(),
        ") = (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22)
        where id = ?1 and version = ?2 - 1"
    ),
    find: concat!("select ", columns!(), " from {letter} where id = ?"),
    /// By the index on their time.
    list: concat!(
        "select ",
        columns!(),
        " from {letter} indexed by {letter}_newest 
        where dead_at <= coalesce(?11, 9223372036854775807) and (?11 is null or dead_at < ?11 or id > ?12) and ",
        matching!(),
        " order by dead_at desc, id limit ?13"
    ),
    /// By the same index, backwards.
    list_oldest: concat!(
        "select ",
        columns!(),
        " from {letter} indexed by {letter}_newest
        where dead_at >= coalesce(?11, -9223372036854775808) and (?11 is null or dead_at > ?11 or id < ?12) and ",
        matching!(),
        " order by dead_at, id desc limit ?13"
    ),
    /// By primary key.
    acted: "select id, consumer, event_id, event_type, content_type, history from {letter}
        where id > ? and history <> '[]' order by id limit ?",
    /// Reads the table, or those of one status by its index.
    count: concat!("select count(*) from {letter} where ", matching!()),
    count_status: "select count(*) from {letter} indexed by {letter}_status where status = ?",
    /// By the index on their end.
    purge: "delete from {letter} where id in (select id from {letter} indexed by {letter}_finished
        where finished_at < ? and status <> 'PENDING' order by finished_at limit ?)",
});

/// How many letters are looked at in one go.
const PAGE: u32 = 500;

impl DeedStore for SqliteInbox {
    fn deeds<'a>(
        &'a self,
        query: &'a DeedQuery,
        after: Option<&'a DeedPlace>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<Deed>, StoreError>> {
        Box::pin(async move {
            let mut deeds = Deeds::new(query, after, limit);
            let mut last = String::new();
            loop {
                let mut entered = self.0.store.0.operators.enter().await?;
                let page = sqlx::query(self.0.letters.acted.clone()).bind(&last).bind(PAGE);
                let rows = page.fetch_all(entered.connection()?).await.map_err(|error| entered.failed(error))?;
                for row in &rows {
                    let acted = acted(row)?;
                    last.clone_from(&acted.letter.0);
                    deeds.look(acted);
                }
                if rows.len() < PAGE as usize {
                    return Ok(deeds.done());
                }
            }
        })
    }
}

impl LetterStore for SqliteInbox {
    fn insert<'a>(&'a self, letter: &'a Letter) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(self.keep(&self.0.letters.insert, letter))
    }

    fn replace<'a>(&'a self, letter: &'a Letter) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(self.keep(&self.0.letters.replace, letter))
    }

    fn find<'a>(&'a self, id: &'a LetterId) -> BoxFuture<'a, Result<Option<Letter>, StoreError>> {
        Box::pin(async move {
            let mut entered = self.0.store.0.operators.enter().await?;
            let row = sqlx::query(self.0.letters.find.clone()).bind(&id.0).fetch_optional(entered.connection()?).await;
            row.map_err(|error| entered.failed(error))?.as_ref().map(letter).transpose()
        })
    }

    fn list<'a>(
        &'a self,
        query: &'a LetterQuery,
        after: Option<&'a LetterPlace>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<Letter>, StoreError>> {
        Box::pin(async move {
            let mut entered = self.0.store.0.operators.enter().await?;
            let LetterSql { list, list_oldest, .. } = &self.0.letters;
            let rows = ask(if query.oldest_first { list_oldest } else { list }, query)
                .bind(after.map(|place| place.dead_at.as_micros()))
                .bind(after.map(|place| place.id.0.as_str()))
                .bind(limit)
                .fetch_all(entered.connection()?)
                .await;
            rows.map_err(|error| entered.failed(error))?.iter().map(letter).collect()
        })
    }

    fn count<'a>(&'a self, query: &'a LetterQuery) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(async move {
            let mut entered = self.0.store.0.operators.enter().await?;
            let by_status = query.status.filter(|status| {
                let oldest_first = query.oldest_first;
                *query == LetterQuery { status: Some(*status), oldest_first, ..<_>::default() }
            });
            let count = match by_status {
                Some(status) => sqlx::query(self.0.letters.count_status.clone()).bind(status.as_str()),
                None => ask(&self.0.letters.count, query),
            };
            let row = count.fetch_one(entered.connection()?).await;
            let count: i64 = row.and_then(|row| row.try_get(0)).map_err(|error| entered.failed(error))?;
            Ok(u64::try_from(count).unwrap_or(0))
        })
    }

    fn purge(&self, finished_before: Timestamp, most: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            let store = &self.0.store;
            let (_turn, mut entered) = store.write_on(&store.0.settles).await?;
            let mut tx = entered.begin().await?;
            let purge = sqlx::query(self.0.letters.purge.clone()).bind(finished_before.as_micros()).bind(most);
            let purged = purge.execute(&mut *tx).await.map_err(error::of)?.rows_affected();
            tx.commit().await.map_err(error::of_commit)?;
            Ok(purged)
        })
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp, StoreError>> {
        Box::pin(async { Ok(now()) })
    }
}

impl SqliteInbox {
    async fn keep(&self, sql: &SqlStr, letter: &Letter) -> Result<bool, StoreError> {
        let store = &self.0.store;
        let (_turn, mut entered) = store.write_on(&store.0.settles).await?;
        let mut tx = entered.begin().await?;
        let stored = bind(sql, letter)?.execute(&mut *tx).await.map_err(error::of)?.rows_affected() > 0;
        tx.commit().await.map_err(error::of_commit)?;
        Ok(stored)
    }
}

type Asked<'q> = Query<'q, Sqlite, SqliteArguments>;

fn bind<'q>(sql: &SqlStr, letter: &'q Letter) -> Result<Asked<'q>, StoreError> {
    let json = |value: Result<String, serde_json::Error>| value.map_err(error::unreadable);
    let claim = letter.claim.as_ref().map(serde_json::to_string).transpose();
    Ok(sqlx::query(sql.clone())
        .bind(&letter.id.0)
        .bind(signed(letter.version))
        .bind(&letter.consumer)
        .bind(&letter.event_id)
        .bind(&letter.event_type)
        .bind(&letter.topic)
        .bind(letter.key.as_deref())
        .bind(&letter.content_type)
        .bind(json(serde_json::to_string(&letter.attributes))?)
        .bind(json(serde_json::to_string(&letter.headers))?)
        .bind(&letter.payload[..])
        .bind(&letter.reason)
        .bind(letter.attempts)
        .bind(letter.dead_at.as_micros())
        .bind(letter.source.as_deref())
        .bind(letter.saga_id.as_deref())
        .bind(letter.correlation_id.as_deref())
        .bind(letter.replays)
        .bind(letter.status.as_str())
        .bind(letter.finished_at.map(Timestamp::as_micros))
        .bind(claim.map_err(error::unreadable)?)
        .bind(json(serde_json::to_string(&letter.history))?))
}

fn ask<'q>(sql: &SqlStr, query: &'q LetterQuery) -> Asked<'q> {
    sqlx::query(sql.clone())
        .bind(query.status.map(LetterStatus::as_str))
        .bind(query.consumer.as_deref())
        .bind(query.event_type.as_deref())
        .bind(query.topic.as_deref())
        .bind(query.event_id.as_deref())
        .bind(query.saga_id.as_deref())
        .bind(query.correlation_id.as_deref())
        .bind(query.from.map(Timestamp::as_micros))
        .bind(query.until.map(Timestamp::as_micros))
        .bind(query.text.as_deref())
}

fn acted(row: &SqliteRow) -> Result<Acted, StoreError> {
    let text = |column: usize| row.try_get::<String, _>(column).map_err(error::of);
    Ok(Acted {
        letter: LetterId(text(0)?),
        consumer: text(1)?,
        event_id: text(2)?,
        event_type: text(3)?,
        content_type: text(4)?,
        history: serde_json::from_str(row.try_get(5).map_err(error::of)?).map_err(error::unreadable)?,
    })
}

fn letter(row: &SqliteRow) -> Result<Letter, StoreError> {
    let column = error::of;
    let status: &str = row.try_get(18).map_err(column)?;
    let claim: Option<&str> = row.try_get(20).map_err(column)?;
    Ok(Letter {
        id: LetterId(row.try_get(0).map_err(column)?),
        version: row.try_get::<i64, _>(1).map_err(column)?.unsigned_abs(),
        consumer: row.try_get(2).map_err(column)?,
        event_id: row.try_get(3).map_err(column)?,
        event_type: row.try_get(4).map_err(column)?,
        topic: row.try_get(5).map_err(column)?,
        key: row.try_get(6).map_err(column)?,
        content_type: row.try_get(7).map_err(column)?,
        attributes: serde_json::from_str(row.try_get(8).map_err(column)?).map_err(error::unreadable)?,
        headers: serde_json::from_str(row.try_get(9).map_err(column)?).map_err(error::unreadable)?,
        payload: row.try_get::<Vec<u8>, _>(10).map_err(column)?.into(),
        reason: row.try_get(11).map_err(column)?,
        attempts: row.try_get(12).map_err(column)?,
        dead_at: Timestamp::from_micros(row.try_get(13).map_err(column)?),
        source: row.try_get(14).map_err(column)?,
        saga_id: row.try_get(15).map_err(column)?,
        correlation_id: row.try_get(16).map_err(column)?,
        replays: row.try_get(17).map_err(column)?,
        status: status.parse().map_err(error::unreadable)?,
        finished_at: row.try_get::<Option<i64>, _>(19).map_err(column)?.map(Timestamp::from_micros),
        claim: claim.map(serde_json::from_str).transpose().map_err(error::unreadable)?,
        history: serde_json::from_str(row.try_get(21).map_err(column)?).map_err(error::unreadable)?,
    })
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

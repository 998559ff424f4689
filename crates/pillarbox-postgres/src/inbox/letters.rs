//! Messages that a consumer has given up.
//!
//! What can't be understood may contain anything, so nothing in a letter is refused: see the module `text`.

use pillarbox_core::{
    domain::Timestamp,
    port::{
        Acted, BoxFuture, Deed, DeedPlace, DeedQuery, DeedStore, Deeds, Letter, LetterId, LetterPlace, LetterQuery,
        LetterStatus, LetterStore, StoreError,
    },
};
use serde::{Serialize, de::DeserializeOwned};
use sqlx::{
    Postgres, Row as _, SqlStr,
    postgres::{PgArguments, PgRow},
    query::Query,
};

use super::{
    PostgresInbox,
    text::{kept, whole},
};
use crate::{
    admin::{BY_INDEX, WHOLE_TABLE},
    error,
    row::Time,
    tables::statements,
};

/// The columns, as [`PostgresInbox::bind`] binds them and [`letter`] reads them.
macro_rules! columns {
    () => {
        "id, version, consumer, event_id, event_type, topic, message_key, content_type, attributes, headers, payload, \
         reason, attempts, dead_at, source, saga_id, correlation_id, replays, status, finished_at, claim, history"
    };
}

macro_rules! values {
    () => {
        "($1, $2::bigint, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13::bigint, $14, $15, $16, $17, $18::bigint, $19, \
         $20, $21, $22)"
    };
}

/// What a [`LetterQuery`] asks, with the binds of [`PostgresInbox::ask`]. Bytes are searched in their escaped form, in which
/// letter case is that of ASCII.
macro_rules! matching {
    () => {
        "($1::text is null or status = $1) and ($2::text is null or consumer = $2)
            and ($3::text is null or event_type = $3) and ($4::text is null or topic = $4)
            and ($5::text is null or event_id = $5) and ($6::text is null or saga_id = $6)
            and ($7::text is null or correlation_id = $7)
            and ($8::timestamptz is null or dead_at >= $8) and ($9::timestamptz is null or dead_at < $9)
            and ($10::text is null or position(lower($10 collate \"C\") in lower(reason collate \"C\")) > 0
                or position(lower(encode($11::bytea, 'escape')) in lower(encode(payload, 'escape'))) > 0)"
    };
}

/// What comes after a place, and how much of it.
macro_rules! after {
    () => {
        " and dead_at <= coalesce($12::timestamptz, 'infinity')
            and ($12 is null or dead_at < $12 or id > $13::text collate \"C\")
        order by dead_at desc, id limit $14::bigint"
    };
}

/// The same the other way round.
macro_rules! before {
    () => {
        " and dead_at >= coalesce($12::timestamptz, '-infinity')
            and ($12 is null or dead_at > $12 or id < $13::text collate \"C\")
        order by dead_at, id desc limit $14::bigint"
    };
}

statements!(LetterSql {
    /// By primary key, as the two that follow.
    insert: concat!("insert into {letter} (", columns!(), ") values ", values!(), " on conflict do nothing"),
    replace: concat!(
        "update {letter} set (",
        columns!(),
        ") = ",
        values!(),
        " where id = $1 and version = $2::bigint - 1"
    ),
    find: concat!("select ", columns!(), " from {letter} where id = $1"),
    /// By the index on their time.
    list: concat!("select ", columns!(), " from {letter} where ", matching!(), after!()),
    /// By the index on their status.
    list_status: concat!("select ", columns!(), " from {letter} where status = $1::text and ", matching!(), after!()),
    /// By the same two indexes, backwards.
    oldest: concat!("select ", columns!(), " from {letter} where ", matching!(), before!()),
    oldest_status: concat!(
        "select ",
        columns!(),
        " from {letter} where status = $1::text and ",
        matching!(),
        before!()
    ),
    /// By primary key. The history is not compared: where the statistics say that hardly any letter has one, a plan would read
    /// all of them and sort.
    acted: "select id, consumer, event_id, event_type, content_type, history from {letter}
        where id > $1::text collate \"C\" and octet_length(history) > 2 order by id limit $2::bigint",
    /// Reads the table.
    count: concat!("select count(*) from {letter} where ", matching!()),
    /// By the index on their status.
    count_status: concat!("select count(*) from {letter} where status = $1::text and ", matching!()),
    /// By the index on their end, and then by primary key.
    purge: "delete from {letter} where id = any(array(select id from {letter}
        where finished_at < $1 and status <> 'PENDING' order by finished_at limit $2 for update skip locked))",
});

/// How many letters are looked at in one go.
const PAGE: u32 = 500;

impl DeedStore for PostgresInbox {
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
                let mut tx = self.0.store.pool().begin_with(BY_INDEX).await.map_err(error::of)?;
                let page = self.0.store.query(&self.0.sql.letters.acted).bind(kept(&last)).bind(i64::from(PAGE));
                let rows = page.fetch_all(&mut *tx).await.map_err(error::of)?;
                tx.commit().await.map_err(error::of)?;
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

impl LetterStore for PostgresInbox {
    fn insert<'a>(&'a self, letter: &'a Letter) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(self.0.store.within(self.keep(&self.0.sql.letters.insert, letter)))
    }

    fn replace<'a>(&'a self, letter: &'a Letter) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(self.0.store.within(self.keep(&self.0.sql.letters.replace, letter)))
    }

    fn find<'a>(&'a self, id: &'a LetterId) -> BoxFuture<'a, Result<Option<Letter>, StoreError>> {
        Box::pin(async move {
            let row = self.one(self.0.store.query(&self.0.sql.letters.find).bind(kept(&id.0))).await?;
            row.as_ref().map(letter).transpose()
        })
    }

    fn list<'a>(
        &'a self,
        query: &'a LetterQuery,
        after: Option<&'a LetterPlace>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<Letter>, StoreError>> {
        Box::pin(async move {
            let LetterSql { list, list_status, oldest, oldest_status, .. } = &self.0.sql.letters;
            let sql = match (query.status.is_some(), query.oldest_first) {
                (false, false) => list,
                (true, false) => list_status,
                (false, true) => oldest,
                (true, true) => oldest_status,
            };
            let mut tx = self.0.store.pool().begin_with(BY_INDEX).await.map_err(error::of)?;
            let rows = self
                .ask(sql, query)
                .bind(after.map(|place| Time(place.dead_at)))
                .bind(after.map(|place| kept(&place.id.0)))
                .bind(i64::from(limit))
                .fetch_all(&mut *tx)
                .await
                .map_err(error::of)?;
            tx.commit().await.map_err(error::of)?;
            rows.iter().map(letter).collect()
        })
    }

    fn count<'a>(&'a self, query: &'a LetterQuery) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(async move {
            let LetterSql { count, count_status, .. } = &self.0.sql.letters;
            let (begin, count) = if query.status.is_some() { (BY_INDEX, count_status) } else { (WHOLE_TABLE, count) };
            let mut tx = self.0.store.pool().begin_with(begin).await.map_err(error::of)?;
            let row = self.ask(count, query).fetch_one(&mut *tx).await.map_err(error::of)?;
            tx.commit().await.map_err(error::of)?;
            row.try_get(0).map(|count: i64| count.unsigned_abs()).map_err(error::of)
        })
    }

    fn purge(&self, finished_before: Timestamp, most: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(self.0.store.within(async move {
            let mut entered = self.0.upkeep.enter().await?;
            let purge = self.0.store.query(&self.0.sql.letters.purge).bind(Time(finished_before)).bind(i64::from(most));
            let purged = purge.execute(entered.begin_one().await.map_err(error::of)?).await.map_err(error::of)?;
            entered.end_one().await?;
            Ok(purged.rows_affected())
        }))
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp, StoreError>> {
        Box::pin(async {
            let row = self.one(self.0.store.query(&self.0.sql.upkeep.clock)).await?;
            let row = row.ok_or_else(|| error::of(sqlx::Error::RowNotFound))?;
            row.try_get(0).map(|Time(now)| now).map_err(error::of)
        })
    }
}

type Asked<'q> = Query<'q, Postgres, PgArguments>;

impl PostgresInbox {
    async fn keep(&self, sql: &SqlStr, letter: &Letter) -> Result<bool, StoreError> {
        let keep = self.bind(sql, letter)?;
        let mut entered = self.0.upkeep.enter().await?;
        let kept = keep.execute(entered.begin_one().await.map_err(error::of)?).await.map_err(error::of)?;
        entered.end_one().await?;
        Ok(kept.rows_affected() > 0)
    }

    async fn one(&self, query: Asked<'_>) -> Result<Option<PgRow>, StoreError> {
        let reading = self.0.store.within(async {
            let mut entered = self.0.upkeep.enter().await?;
            let connection = entered.begin_reading().await.map_err(error::of)?;
            let row = query.fetch_optional(connection).await.map_err(error::of)?;
            entered.end_reading().await.map_err(error::of)?;
            entered.leave();
            Ok(row)
        });
        reading.await
    }

    fn bind<'q>(&self, sql: &SqlStr, letter: &'q Letter) -> Result<Asked<'q>, StoreError> {
        let text = |text: &'q Option<String>| text.as_deref().map(kept);
        Ok(self
            .0
            .store
            .query(sql)
            .bind(kept(&letter.id.0))
            .bind(i64::try_from(letter.version).unwrap_or(i64::MAX))
            .bind(kept(&letter.consumer))
            .bind(kept(&letter.event_id))
            .bind(kept(&letter.event_type))
            .bind(kept(&letter.topic))
            .bind(text(&letter.key))
            .bind(kept(&letter.content_type))
            .bind(json(&letter.attributes)?)
            .bind(json(&letter.headers)?)
            .bind(&letter.payload[..])
            .bind(kept(&letter.reason))
            .bind(i64::from(letter.attempts))
            .bind(Time(letter.dead_at))
            .bind(text(&letter.source))
            .bind(text(&letter.saga_id))
            .bind(text(&letter.correlation_id))
            .bind(i64::from(letter.replays))
            .bind(letter.status.as_str())
            .bind(letter.finished_at.map(Time))
            .bind(letter.claim.as_ref().map(json).transpose()?)
            .bind(json(&letter.history)?))
    }

    fn ask<'q>(&self, sql: &SqlStr, query: &'q LetterQuery) -> Asked<'q> {
        let text = |text: &'q Option<String>| text.as_deref().map(kept);
        self.0
            .store
            .query(sql)
            .bind(query.status.map(LetterStatus::as_str))
            .bind(text(&query.consumer))
            .bind(text(&query.event_type))
            .bind(text(&query.topic))
            .bind(text(&query.event_id))
            .bind(text(&query.saga_id))
            .bind(text(&query.correlation_id))
            .bind(query.from.map(Time))
            .bind(query.until.map(Time))
            .bind(text(&query.text))
            .bind(query.text.as_deref().map(str::as_bytes))
    }
}

/// As text: JSON has an escape of its own for the character NUL.
fn json(value: &impl Serialize) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(error::unreadable)
}

fn acted(row: &PgRow) -> Result<Acted, StoreError> {
    let text = |column: usize| row.try_get(column).map(whole).map_err(error::of);
    Ok(Acted {
        letter: LetterId(text(0)?),
        consumer: text(1)?,
        event_id: text(2)?,
        event_type: text(3)?,
        content_type: text(4)?,
        history: of_json(row, 5)?,
    })
}

fn letter(row: &PgRow) -> Result<Letter, StoreError> {
    let text = |column: usize| row.try_get(column).map(whole).map_err(error::of);
    let optional = |column: usize| {
        let text = row.try_get::<Option<String>, _>(column).map_err(error::of)?;
        Ok::<_, StoreError>(text.map(whole))
    };
    let number = |column: usize| row.try_get::<i64, _>(column).map(i64::unsigned_abs).map_err(error::of);
    let count = |column: usize| u32::try_from(number(column)?).map_err(error::unreadable);
    let finished_at = row.try_get::<Option<Time>, _>(19).map_err(error::of)?;
    let claim = row.try_get::<Option<&str>, _>(20).map_err(error::of)?;
    Ok(Letter {
        id: LetterId(text(0)?),
        version: number(1)?,
        consumer: text(2)?,
        event_id: text(3)?,
        event_type: text(4)?,
        topic: text(5)?,
        key: optional(6)?,
        content_type: text(7)?,
        attributes: of_json(row, 8)?,
        headers: of_json(row, 9)?,
        payload: row.try_get::<Vec<u8>, _>(10).map_err(error::of)?.into(),
        reason: text(11)?,
        attempts: count(12)?,
        dead_at: row.try_get(13).map(|Time(at)| at).map_err(error::of)?,
        source: optional(14)?,
        saga_id: optional(15)?,
        correlation_id: optional(16)?,
        replays: count(17)?,
        status: text(18)?.parse().map_err(error::unreadable)?,
        finished_at: finished_at.map(|Time(at)| at),
        claim: claim.map(serde_json::from_str).transpose().map_err(error::unreadable)?,
        history: of_json(row, 21)?,
    })
}

fn of_json<T: DeserializeOwned>(row: &PgRow, column: usize) -> Result<T, StoreError> {
    serde_json::from_str(row.try_get(column).map_err(error::of)?).map_err(error::unreadable)
}

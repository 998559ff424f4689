//! Messages that a consumer has given up.

use pillarbox_core::{
    domain::Timestamp,
    port::{
        Acted, BoxFuture, Deed, DeedPlace, DeedQuery, DeedStore, Deeds, Letter, LetterId, LetterPlace, LetterQuery,
        LetterStore, StoreError,
    },
};
use serde::{Serialize, de::DeserializeOwned};
use sqlx::{
    Arguments as _, AssertSqlSafe, MySql, Row as _, SqlSafeStr as _, SqlStr,
    mysql::{MySqlArguments, MySqlRow},
    query::Query,
};

use super::MySqlInbox;
use crate::{connection::retried, error, read::at_most, tables::statements, write::storable};

/// The columns, as [`bind`] binds them.
macro_rules! columns {
    () => {
        "id, version, consumer, event_id, event_type, topic, message_key, content_type, attributes, headers, payload, \
         reason, attempts, dead_at, source, saga_id, correlation_id, replays, status, finished_at, claim, history"
    };
}

/// The columns, as [`letter`] reads them.
macro_rules! read {
    () => {
        "select id, version, consumer, event_id, event_type, topic, message_key, content_type, attributes, headers, payload, \
         reason, attempts, timestampdiff(microsecond, {epoch}, dead_at), source, saga_id, correlation_id, replays, status, \
         timestampdiff(microsecond, {epoch}, finished_at), claim, history from {letter} "
    };
}

statements!(LetterSql {
    /// By primary key, as the two that follow.
    insert: concat!(
        "insert into {letter} (",
        columns!(),
        ") values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {epoch} + interval ? microsecond, ?, ?, ?, ?, ?, \
        {epoch} + interval ? microsecond, ?, ?)"
    ),
    replace: "update {letter} set id = ?, version = ?, consumer = ?, event_id = ?, event_type = ?, topic = ?,
            message_key = ?, content_type = ?, attributes = ?, headers = ?, payload = ?, reason = ?, attempts = ?,
            dead_at = {epoch} + interval ? microsecond, source = ?, saga_id = ?, correlation_id = ?, replays = ?,
            status = ?, finished_at = {epoch} + interval ? microsecond, claim = ?, history = ?
        where id = ? and version + 1 = ?",
    find: concat!(read!(), "where id = ?"),
    /// By the index on their time; the conditions follow.
    list: concat!(read!(), "force index (newest) where "),
    /// By the index on their status; the conditions follow.
    list_status: concat!(read!(), "force index (by_status) where "),
    /// By primary key.
    acted: "select id, consumer, event_id, event_type, content_type, history from {letter}
        where id > ? and history <> '[]' order by id limit ?",
    /// Reads the table; the conditions follow.
    count: "select count(*) from {letter} where ",
    /// By the index on their status; the conditions follow.
    count_status: "select count(*) from {letter} force index (by_status) where ",
    /// By the index on their end.
    purge: "delete from {letter} where finished_at < {epoch} + interval ? microsecond and status <> 'PENDING'
        order by finished_at limit ?",
});

/// How many letters are looked at in one go.
const PAGE: u32 = 500;

impl DeedStore for MySqlInbox {
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
                let page = sqlx::query(self.0.sql.letters.acted.clone()).bind(last.clone()).bind(PAGE);
                let rows = self.rows(page).await?;
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

impl LetterStore for MySqlInbox {
    fn insert<'a>(&'a self, letter: &'a Letter) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(retried(move || async move {
            let insert = bind(&self.0.sql.letters.insert, letter)?;
            let mut entered = self.0.upkeep.enter().await?;
            let inserted = match insert.execute(&mut *entered).await {
                Ok(_) => true,
                Err(error) if error::number(&error) == Some(error::DUPLICATE) => false,
                Err(error) => return Err(error::of(error)),
            };
            entered.done();
            Ok(inserted)
        }))
    }

    fn replace<'a>(&'a self, letter: &'a Letter) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(retried(move || async move {
            let replace = bind(&self.0.sql.letters.replace, letter)?.bind(&letter.id.0).bind(letter.version);
            let mut entered = self.0.upkeep.enter().await?;
            let replaced = replace.execute(&mut *entered).await.map_err(error::of)?.rows_affected();
            entered.done();
            Ok(replaced > 0)
        }))
    }

    fn find<'a>(&'a self, id: &'a LetterId) -> BoxFuture<'a, Result<Option<Letter>, StoreError>> {
        Box::pin(async move {
            let rows = self.rows(sqlx::query(self.0.sql.letters.find.clone()).bind(&id.0)).await?;
            rows.first().map(letter).transpose()
        })
    }

    fn list<'a>(
        &'a self,
        query: &'a LetterQuery,
        after: Option<&'a LetterPlace>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<Letter>, StoreError>> {
        Box::pin(async move {
            let LetterSql { list, list_status, .. } = &self.0.sql.letters;
            let sql = if query.status.is_some() { list_status } else { list };
            let mut asked = Asked::of(query);
            if let Some(place) = after {
                let at = "{epoch} + interval ? microsecond";
                let tail = if query.oldest_first {
                    format!(" and dead_at >= {at} and (dead_at > {at} or id < ?)")
                } else {
                    format!(" and dead_at <= {at} and (dead_at < {at} or id > ?)")
                };
                let at = storable(place.dead_at);
                asked.and(&tail, at).and("", at).and("", place.id.0.as_str());
            }
            let order = if query.oldest_first { "dead_at, id desc" } else { "dead_at desc, id" };
            asked.and(&format!(" order by {order} limit ?"), limit);
            self.rows(self.query(sql, asked)?).await?.iter().map(letter).collect()
        })
    }

    fn count<'a>(&'a self, query: &'a LetterQuery) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(async move {
            let LetterSql { count, count_status, .. } = &self.0.sql.letters;
            let sql = if query.status.is_some() { count_status } else { count };
            let rows = self.rows(self.query(sql, Asked::of(query))?).await?;
            let count = rows.first().map_or(Ok(0), |row| row.try_get::<i64, _>(0)).map_err(error::of)?;
            Ok(count.unsigned_abs())
        })
    }

    fn purge(&self, finished_before: Timestamp, most: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(retried(move || async move {
            let mut entered = self.0.upkeep.enter().await?;
            let purge = sqlx::query(self.0.sql.letters.purge.clone()).bind(storable(finished_before)).bind(most);
            let purged = purge.execute(&mut *entered).await.map_err(error::of)?.rows_affected();
            entered.done();
            Ok(purged)
        }))
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp, StoreError>> {
        Box::pin(async {
            let rows = self.rows(sqlx::query(self.0.sql.upkeep.clock.clone())).await?;
            let row = rows.first().ok_or_else(|| error::of(sqlx::Error::RowNotFound))?;
            row.try_get(0).map(Timestamp::from_micros).map_err(error::of)
        })
    }
}

impl MySqlInbox {
    async fn rows(&self, query: Query<'_, MySql, MySqlArguments>) -> Result<Vec<MySqlRow>, StoreError> {
        let mut entered = self.0.upkeep.enter().await?;
        let rows = query.fetch_all(&mut *entered).await.map_err(error::of)?;
        entered.done();
        Ok(rows)
    }

    /// A statement with the conditions that follow it.
    fn query(&self, sql: &SqlStr, asked: Asked) -> Result<Query<'static, MySql, MySqlArguments>, StoreError> {
        if let Some(error) = asked.refused {
            return Err(error::of(sqlx::Error::Encode(error)));
        }
        // Static text and marks: nothing else enters.
        let text = format!("{}{}", sql.as_str(), self.0.names.fill(&asked.sql));
        Ok(sqlx::query_with(AssertSqlSafe(text).into_sql_str(), asked.arguments))
    }
}

/// What a [`LetterQuery`] asks, as conditions with their values. Texts are compared byte by byte.
struct Asked {
    sql: String,
    arguments: MySqlArguments,
    refused: Option<sqlx::error::BoxDynError>,
}

impl Asked {
    fn of(query: &LetterQuery) -> Self {
        let mut asked = Self { sql: "1 = 1".into(), arguments: MySqlArguments::default(), refused: None };
        if let Some(status) = query.status {
            asked.and(" and status = ?", status.as_str());
        }
        let fields = [
            ("consumer", &query.consumer),
            ("event_type", &query.event_type),
            ("topic", &query.topic),
            ("event_id", &query.event_id),
            ("saga_id", &query.saga_id),
            ("correlation_id", &query.correlation_id),
        ];
        for (column, value) in fields {
            if let Some(value) = value {
                asked.and(&format!(" and {column} = ?"), value.as_str());
                // The collation takes no notice of spaces at the end.
                asked.and(&format!(" and octet_length({column}) = ?"), at_most(value.len()));
            }
        }
        for (condition, time) in [("dead_at >=", query.from), ("dead_at <", query.until)] {
            if let Some(time) = time {
                asked.and(&format!(" and {condition} {{epoch}} + interval ? microsecond"), storable(time));
            }
        }
        if let Some(text) = &query.text {
            asked.and(" and (locate(lower(?), lower(reason)) > 0", text.as_str());
            let in_payload = " or locate(lower(?), lower(convert(payload using utf8mb4)) collate utf8mb4_bin) > 0)";
            asked.and(in_payload, text.as_str());
        }
        asked
    }

    fn and<'q, T: sqlx::Encode<'q, MySql> + sqlx::Type<MySql>>(&mut self, sql: &str, value: T) -> &mut Self {
        self.sql.push_str(sql);
        if let Err(error) = self.arguments.add(value) {
            self.refused.get_or_insert(error);
        }
        self
    }
}

fn bind<'q>(sql: &SqlStr, letter: &'q Letter) -> Result<Query<'q, MySql, MySqlArguments>, StoreError> {
    Ok(sqlx::query(sql.clone())
        .bind(&letter.id.0)
        .bind(letter.version)
        .bind(&letter.consumer)
        .bind(&letter.event_id)
        .bind(&letter.event_type)
        .bind(&letter.topic)
        .bind(letter.key.as_deref())
        .bind(&letter.content_type)
        .bind(json(&letter.attributes)?)
        .bind(json(&letter.headers)?)
        .bind(&letter.payload[..])
        .bind(&letter.reason)
        .bind(letter.attempts)
        .bind(storable(letter.dead_at))
        .bind(letter.source.as_deref())
        .bind(letter.saga_id.as_deref())
        .bind(letter.correlation_id.as_deref())
        .bind(letter.replays)
        .bind(letter.status.as_str())
        .bind(letter.finished_at.map(storable))
        .bind(letter.claim.as_ref().map(json).transpose()?)
        .bind(json(&letter.history)?))
}

fn json(value: &impl Serialize) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(error::unreadable)
}

fn acted(row: &MySqlRow) -> Result<Acted, StoreError> {
    let text = |column: usize| row.try_get::<String, _>(column).map_err(error::of);
    Ok(Acted {
        letter: LetterId(text(0)?),
        consumer: text(1)?,
        event_id: text(2)?,
        event_type: text(3)?,
        content_type: text(4)?,
        history: of_json(row, 5)?,
    })
}

fn letter(row: &MySqlRow) -> Result<Letter, StoreError> {
    let text = |column: usize| row.try_get::<String, _>(column).map_err(error::of);
    let optional = |column: usize| row.try_get::<Option<String>, _>(column).map_err(error::of);
    let count = |column: usize| row.try_get::<u32, _>(column).map_err(error::of);
    let finished_at = row.try_get::<Option<i64>, _>(19).map_err(error::of)?;
    let claim = row.try_get::<Option<&str>, _>(20).map_err(error::of)?;
    Ok(Letter {
        id: LetterId(text(0)?),
        version: row.try_get(1).map_err(error::of)?,
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
        dead_at: row.try_get(13).map(Timestamp::from_micros).map_err(error::of)?,
        source: optional(14)?,
        saga_id: optional(15)?,
        correlation_id: optional(16)?,
        replays: count(17)?,
        status: text(18)?.parse().map_err(error::unreadable)?,
        finished_at: finished_at.map(Timestamp::from_micros),
        claim: claim.map(serde_json::from_str).transpose().map_err(error::unreadable)?,
        history: of_json(row, 21)?,
    })
}

fn of_json<T: DeserializeOwned>(row: &MySqlRow, column: usize) -> Result<T, StoreError> {
    serde_json::from_str(row.try_get(column).map_err(error::of)?).map_err(error::unreadable)
}

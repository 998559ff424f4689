//! Messages that a consumer has dealt with, entered in the transaction of its work.
//!
//! Whoever enters something holds the write lock, and sees everything that was entered before: two can't enter the same.
//!
//! When the process dies before the commit, SQLite rolls back both the work and the entry; after it, both are in effect.

use std::collections::HashSet;

use pillarbox_core::{
    domain::bucket::{SLOTS, before, slot},
    port::{BoxFuture, InboxStore, StoreError, StoreErrorKind},
};
use sqlx::{Arguments as _, Row as _, SqlStr, Sqlite, SqliteConnection, Transaction, sqlite::SqliteArguments};

use super::{SqliteInbox, now};
use crate::{SqliteTransaction, error, tables::Prefix, write::execute};

/// The statements for each slot that is written.
#[derive(Debug)]
pub(crate) struct SeenSql([Slot; SLOTS]);

#[derive(Debug)]
struct Slot {
    /// Enters one message, if the slot before does not have it.
    one: SqlStr,
    /// Enters many, or none if one of them is known: then it fails, and is undone.
    all: SqlStr,
    /// Enters those of many that are not known, and tells which.
    many: SqlStr,
}

impl SeenSql {
    pub(crate) fn new(prefix: &Prefix) -> Self {
        Self(std::array::from_fn(|slot| {
            let before = before(slot);
            // By primary key.
            let known = |message: &str| {
                format!("exists (select 1 from {{seen_{before}}} where consumer = ?1 and message = {message})")
            };
            let enter = |message: &str, from: &str| {
                format!(
                    "insert into {{seen_{slot}}} (consumer, message)
                select ?1, {message}{from} where not {}
                on conflict do nothing",
                    known(message)
                )
            };
            Slot {
                one: prefix.statement(&enter("?2", "")),
                all: prefix.statement(&format!(
                    "insert into {{seen_{slot}}} (consumer, message)
                select ?1, iif({}, null, value) from json_each(?2)",
                    known("value")
                )),
                many: prefix.statement(&format!("{} returning message", enter("value", " from json_each(?2)"))),
            }
        }))
    }

    /// Every statement with its name.
    #[cfg(test)]
    pub(crate) fn named(&self) -> Vec<(&'static str, &SqlStr)> {
        self.0.iter().flat_map(|slot| [&slot.one, &slot.all, &slot.many].map(|sql| ("enter", sql))).collect()
    }
}

impl SqliteInbox {
    async fn enter_in(
        &self,
        tx: &mut SqliteConnection,
        consumer: &str,
        messages: &[&str],
    ) -> Result<Vec<bool>, StoreError> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let Some(buckets) = self.buckets().await? else { return Err(not_agreed()) };
        let sql = &self.0.seen.0[slot(buckets.number(now()))];
        if let [message] = messages {
            let entered = execute(tx, sql.one.clone(), texts([consumer, message])?).await.map_err(error::of)?;
            return Ok(vec![entered.rows_affected() == 1]);
        }
        let list = serde_json::to_string(messages).map_err(error::unreadable)?;
        // Most have not been seen; and each row of an answer is handed from the driver's thread to this one.
        match execute(tx, sql.all.clone(), texts([consumer, &list])?).await {
            Ok(_) => return Ok(vec![true; messages.len()]),
            Err(error) if error::is_constraint(&error) => {}
            Err(error) => return Err(error::of(error)),
        }
        let entered = sqlx::query(sql.many.clone()).bind(consumer).bind(list).fetch_all(tx).await;
        let entered = entered.map_err(error::of)?;
        let entered = entered.iter().map(|row| row.try_get(0)).collect::<Result<HashSet<&str>, _>>();
        let entered = entered.map_err(error::of)?;
        Ok(messages.iter().map(|message| entered.contains(message)).collect())
    }
}

fn texts(texts: [&str; 2]) -> Result<SqliteArguments, StoreError> {
    let mut arguments = SqliteArguments::default();
    let bound = texts.into_iter().try_for_each(|text| arguments.add(text));
    bound.map_err(|error| error::of(sqlx::Error::Encode(error)))?;
    Ok(arguments)
}

fn not_agreed() -> StoreError {
    StoreError::new(
        StoreErrorKind::Schema,
        "the inbox's window was never set: start the inbox before anything is entered",
    )
}

impl InboxStore<Transaction<'_, Sqlite>> for SqliteInbox {
    fn enter<'a>(
        &'a self,
        tx: &'a mut Transaction<'_, Sqlite>,
        consumer: &'a str,
        messages: &'a [&'a str],
    ) -> BoxFuture<'a, Result<Vec<bool>, StoreError>> {
        Box::pin(self.enter_in(tx, consumer, messages))
    }
}

impl InboxStore<SqliteTransaction> for SqliteInbox {
    fn enter<'a>(
        &'a self,
        tx: &'a mut SqliteTransaction,
        consumer: &'a str,
        messages: &'a [&'a str],
    ) -> BoxFuture<'a, Result<Vec<bool>, StoreError>> {
        Box::pin(self.enter_in(tx, consumer, messages))
    }
}

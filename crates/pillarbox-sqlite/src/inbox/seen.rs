//! Messages that a consumer has dealt with, entered in the transaction of its work.
//!
//! Whoever enters something holds the write lock, and sees everything that was entered before: two can't enter the same.
//!
//! When the process dies before the commit, SQLite rolls back both the work and the entry; after it, both are in effect.

use std::collections::HashSet;

use pillarbox_core::{
    domain::bucket::{SLOTS, others, slot},
    port::{BoxFuture, InboxStore, StoreError, StoreErrorKind},
};
use sqlx::{Row as _, SqlStr, Sqlite, SqliteConnection, Transaction};

use super::{SqliteInbox, now};
use crate::{SqliteTransaction, error, tables::Prefix};

/// One statement for each slot that is written.
#[derive(Debug)]
pub(crate) struct SeenSql([SqlStr; SLOTS]);

impl SeenSql {
    pub(crate) fn new(prefix: &Prefix) -> Self {
        Self(std::array::from_fn(|slot| {
            // Each by primary key.
            let older = others(slot).map(|other| {
                format!(" and not exists (select 1 from {{seen_{other}}} where consumer = ?1 and message = value)")
            });
            prefix.statement(&format!(
                "insert into {{seen_{slot}}} (consumer, message)
                select ?1, value from json_each(?2) where true{}
                on conflict do nothing returning message",
                older.collect::<String>()
            ))
        }))
    }

    /// Every statement with its name.
    #[cfg(test)]
    pub(crate) fn named(&self) -> Vec<(&'static str, &SqlStr)> {
        self.0.iter().map(|sql| ("enter", sql)).collect()
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
        let sql = self.0.seen.0[slot(buckets.number(now()))].clone();
        let entered = sqlx::query(sql)
            .bind(consumer)
            .bind(serde_json::to_string(messages).map_err(error::unreadable)?)
            .fetch_all(&mut *tx)
            .await
            .map_err(error::of)?;
        let entered = entered.iter().map(|row| row.try_get(0)).collect::<Result<HashSet<&str>, _>>();
        let entered = entered.map_err(error::of)?;
        Ok(messages.iter().map(|message| entered.contains(message)).collect())
    }
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

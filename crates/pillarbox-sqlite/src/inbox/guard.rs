//! Marks of messages that a consumer has begun to deal with.
//!
//! Each call is one statement, which is its own transaction: one command for SQLite's thread, and one wait for the disk.

use std::{collections::HashSet, time::Duration};

use pillarbox_core::port::{BoxFuture, GuardStore, StoreError};
use sqlx::{Arguments as _, Row as _, sqlite::SqliteArguments};

use super::SqliteInbox;
use crate::{error, own::micros, tables::statements, write::execute};

/// A mark whose time is over is taken over.
macro_rules! or_take_over {
    () => {
        " on conflict (consumer, message) do update set taken_by = excluded.taken_by, expires_at = excluded.expires_at
            where expires_at <= {now}"
    };
}

statements!(GuardSql {
    /// By primary key.
    take_one: concat!(
        "insert into {guard} (consumer, message, taken_by, expires_at) values (?1, ?2, ?3, {now} + ?4)",
        or_take_over!()
    ),
    /// The same with many.
    take: concat!(
        "insert into {guard} (consumer, message, taken_by, expires_at)
        select ?1, value, ?3, {now} + ?4 from json_each(?2) where true",
        or_take_over!(),
        " returning message"
    ),
    /// By primary key.
    release: "delete from {guard}
        where consumer = ?1 and message in (select value from json_each(?2)) and taken_by = ?3",
    /// By the index on their end.
    purge: "delete from {guard} where (consumer, message) in (
        select consumer, message from {guard} indexed by {guard}_expiry
        where expires_at <= {now} order by expires_at limit ?)",
});

impl GuardStore for SqliteInbox {
    fn take<'a>(
        &'a self,
        consumer: &'a str,
        messages: &'a [&'a str],
        by: &'a str,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Vec<bool>, StoreError>> {
        Box::pin(async move {
            match messages {
                [] => Ok(Vec::new()),
                [message] => Ok(vec![self.take_one(consumer, message, by, ttl).await?]),
                messages => self.take_many(consumer, messages, by, ttl).await,
            }
        })
    }

    fn release<'a>(
        &'a self,
        consumer: &'a str,
        messages: &'a [&'a str],
        by: &'a str,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let list = serde_json::to_string(messages).map_err(error::unreadable)?;
            let store = &self.0.store;
            let (_turn, mut entered) = store.write_on(&store.0.settles).await?;
            let release = sqlx::query(self.0.guard.release.clone()).bind(consumer).bind(list).bind(by);
            let released = release.execute(entered.connection()?).await;
            released.map(drop).map_err(|error| entered.failed_commit(error))
        })
    }

    fn purge(&self, most: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            let store = &self.0.store;
            let (_turn, mut entered) = store.write_on(&store.0.settles).await?;
            let purge = sqlx::query(self.0.guard.purge.clone()).bind(most);
            let purged = purge.execute(entered.connection()?).await.map_err(|error| entered.failed_commit(error))?;
            Ok(purged.rows_affected())
        })
    }
}

impl SqliteInbox {
    async fn take_one(&self, consumer: &str, message: &str, by: &str, ttl: Duration) -> Result<bool, StoreError> {
        let mut arguments = SqliteArguments::default();
        let bound = [consumer, message, by].into_iter().try_for_each(|text| arguments.add(text));
        bound.and_then(|()| arguments.add(micros(ttl))).map_err(|error| error::of(sqlx::Error::Encode(error)))?;
        let store = &self.0.store;
        let (_turn, mut entered) = store.write_on(&store.0.settles).await?;
        let taken = execute(entered.connection()?, self.0.guard.take_one.clone(), arguments).await;
        Ok(taken.map_err(|error| entered.failed_commit(error))?.rows_affected() == 1)
    }

    async fn take_many(
        &self,
        consumer: &str,
        messages: &[&str],
        by: &str,
        ttl: Duration,
    ) -> Result<Vec<bool>, StoreError> {
        let list = serde_json::to_string(messages).map_err(error::unreadable)?;
        let store = &self.0.store;
        let (_turn, mut entered) = store.write_on(&store.0.settles).await?;
        let take = sqlx::query(self.0.guard.take.clone()).bind(consumer).bind(list).bind(by).bind(micros(ttl));
        let taken = take.fetch_all(entered.connection()?).await.map_err(|error| entered.failed_commit(error))?;
        let taken = taken.iter().map(|row| row.try_get(0)).collect::<Result<HashSet<&str>, _>>();
        let taken = taken.map_err(error::of)?;
        Ok(messages.iter().map(|message| taken.contains(message)).collect())
    }
}

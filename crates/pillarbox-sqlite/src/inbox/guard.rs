//! Marks of messages that a consumer has begun to deal with.

use std::{collections::HashSet, time::Duration};

use pillarbox_core::port::{BoxFuture, GuardStore, StoreError};
use sqlx::Row as _;

use super::SqliteInbox;
use crate::{error, own::micros, tables::statements};

statements!(GuardSql {
    /// By primary key. A mark whose time is over is taken over.
    take: "insert into {guard} (consumer, message, taken_by, expires_at)
        select ?1, value, ?3, {now} + ?4 from json_each(?2) where true
        on conflict (consumer, message) do update set taken_by = excluded.taken_by, expires_at = excluded.expires_at
            where expires_at <= {now}
        returning message",
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
            if messages.is_empty() {
                return Ok(Vec::new());
            }
            let list = serde_json::to_string(messages).map_err(error::unreadable)?;
            let store = &self.0.store;
            let (_turn, mut entered) = store.write_on(&store.0.settles).await?;
            let mut tx = entered.begin().await?;
            let taken = sqlx::query(self.0.guard.take.clone())
                .bind(consumer)
                .bind(list)
                .bind(by)
                .bind(micros(ttl))
                .fetch_all(&mut *tx)
                .await
                .map_err(error::of)?;
            tx.commit().await.map_err(error::of_commit)?;
            let taken = taken.iter().map(|row| row.try_get(0)).collect::<Result<HashSet<&str>, _>>();
            let taken = taken.map_err(error::of)?;
            Ok(messages.iter().map(|message| taken.contains(message)).collect())
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
            let mut tx = entered.begin().await?;
            let release = sqlx::query(self.0.guard.release.clone()).bind(consumer).bind(list).bind(by);
            release.execute(&mut *tx).await.map_err(error::of)?;
            tx.commit().await.map_err(error::of_commit)
        })
    }

    fn purge(&self, most: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            let store = &self.0.store;
            let (_turn, mut entered) = store.write_on(&store.0.settles).await?;
            let mut tx = entered.begin().await?;
            let purged = sqlx::query(self.0.guard.purge.clone()).bind(most).execute(&mut *tx).await;
            let purged = purged.map_err(error::of)?.rows_affected();
            tx.commit().await.map_err(error::of_commit)?;
            Ok(purged)
        })
    }
}

//! Marks of messages that a consumer has begun to deal with.
//!
//! Each call is one statement, and one round trip: the primary key decides between callers at once. Messages go in ascending
//! order, so that two calls wait for each other and never in a circle.

use std::{borrow::Cow, collections::HashSet, time::Duration};

use pillarbox_core::port::{BoxFuture, GuardStore, StoreError};
use sqlx::Row as _;

use super::{PostgresInbox, text::kept};
use crate::{error, own::micros, tables::statements};

statements!(GuardSql {
    /// By primary key. A mark whose time is over is taken over.
    take: "insert into {guard} as mark (consumer, message, taken_by, expires_at)
        select $1, message, $3, {now} + $4::bigint * interval '1 microsecond'
        from unnest($2::text[]) as given (message)
        order by message collate \"C\"
        on conflict (consumer, message) do update set taken_by = excluded.taken_by, expires_at = excluded.expires_at
            where mark.expires_at <= {now}
        returning message",
    /// By primary key.
    release: "delete from {guard} where consumer = $1 and message = any($2::text[]) and taken_by = $3",
    /// By the index on their end, and then by place: they are locked, and don't move. Those that are being taken over are
    /// left to that.
    purge: "delete from {guard} where ctid = any(array(
        select ctid from {guard} where expires_at <= {now} order by expires_at limit $1 for update skip locked))",
});

impl GuardStore for PostgresInbox {
    fn take<'a>(
        &'a self,
        consumer: &'a str,
        messages: &'a [&'a str],
        by: &'a str,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Vec<bool>, StoreError>> {
        Box::pin(self.0.store.within(async move {
            if messages.is_empty() {
                return Ok(Vec::new());
            }
            let names = kept_each(messages);
            let mut entered = self.0.marks.enter().await?;
            let taken = self
                .0
                .store
                .query(&self.0.sql.guard.take)
                .bind(kept(consumer))
                .bind(&names)
                .bind(kept(by))
                .bind(micros(ttl))
                .fetch_all(entered.begin_one().await.map_err(error::of)?)
                .await
                .map_err(error::of)?;
            entered.end_one().await?;
            let taken = taken.iter().map(|row| row.try_get(0)).collect::<Result<HashSet<&str>, _>>();
            let taken = taken.map_err(error::of)?;
            Ok(names.iter().map(|name| taken.contains(&**name)).collect())
        }))
    }

    fn release<'a>(
        &'a self,
        consumer: &'a str,
        messages: &'a [&'a str],
        by: &'a str,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.0.store.within(async move {
            if messages.is_empty() {
                return Ok(());
            }
            let mut entered = self.0.marks.enter().await?;
            let release = self.0.store.query(&self.0.sql.guard.release).bind(kept(consumer)).bind(kept_each(messages));
            let connection = entered.begin_one().await.map_err(error::of)?;
            release.bind(kept(by)).execute(connection).await.map_err(error::of)?;
            entered.end_one().await
        }))
    }

    fn purge(&self, most: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(self.0.store.within(async move {
            let mut entered = self.0.upkeep.enter().await?;
            let purge = self.0.store.query(&self.0.sql.guard.purge).bind(i64::from(most));
            let purged = purge.execute(entered.begin_one().await.map_err(error::of)?).await.map_err(error::of)?;
            entered.end_one().await?;
            Ok(purged.rows_affected())
        }))
    }
}

fn kept_each<'a>(messages: &[&'a str]) -> Vec<Cow<'a, str>> {
    messages.iter().map(|message| kept(message)).collect()
}

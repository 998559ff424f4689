//! Marks of messages that a consumer has begun to deal with.
//!
//! Each call is one statement, and one round trip: the primary key decides between callers at once. Messages go in ascending
//! order, so that two calls wait for each other and never in a circle. Callers at once share a statement, and its commit.

use std::{borrow::Cow, collections::HashSet, sync::Arc, time::Duration};

use pillarbox_core::port::{BoxFuture, GuardStore, Mark, StoreError};
use sqlx::Row as _;

use super::{PostgresInbox, text::kept};
use crate::{error, own::micros, tables::statements};

statements!(GuardSql {
    /// By primary key. A mark whose time is over is taken over.
    take_one: "insert into {guard} as mark (consumer, message, taken_by, expires_at)
        values ($1, $2, $3, {now} + $4::bigint * interval '1 microsecond')
        on conflict (consumer, message) do update set taken_by = excluded.taken_by, expires_at = excluded.expires_at
            where mark.expires_at <= {now}",
    /// The same with many.
    take: "insert into {guard} as mark (consumer, message, taken_by, expires_at)
        select consumer, message, taken_by, {now} + ttl * interval '1 microsecond'
        from unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) as given (consumer, message, taken_by, ttl)
        order by consumer collate \"C\", message collate \"C\"
        on conflict (consumer, message) do update set taken_by = excluded.taken_by, expires_at = excluded.expires_at
            where mark.expires_at <= {now}
        returning consumer, message",
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
        Box::pin(async move {
            let mark = |message: &&str| Mark {
                consumer: consumer.to_owned(),
                message: (*message).to_owned(),
                by: by.to_owned(),
                ttl,
            };
            match messages {
                [] => Ok(Vec::new()),
                [message] => {
                    let inbox = self.clone();
                    let ask = move |marks: Arc<[Mark]>| {
                        let inbox = inbox.clone();
                        async move { inbox.take_all(&marks).await }
                    };
                    Ok(vec![self.0.marking.take(mark(message), ask).await?])
                }
                messages => self.take_all(&messages.iter().map(mark).collect::<Vec<_>>()).await,
            }
        })
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

impl PostgresInbox {
    async fn take_all(&self, marks: &[Mark]) -> Result<Vec<bool>, StoreError> {
        match marks {
            [mark] => Ok(vec![self.take_one(mark).await?]),
            marks => self.take_many(marks).await,
        }
    }

    async fn take_one(&self, mark: &Mark) -> Result<bool, StoreError> {
        let store = &self.0.store;
        let taking = store.within(async {
            let mut entered = self.0.marks.enter().await?;
            let taken = store
                .query(&self.0.sql.guard.take_one)
                .bind(kept(&mark.consumer))
                .bind(kept(&mark.message))
                .bind(kept(&mark.by))
                .bind(micros(mark.ttl))
                .execute(entered.begin_one().await.map_err(error::of)?)
                .await
                .map_err(error::of)?;
            entered.end_one().await?;
            Ok(taken.rows_affected() == 1)
        });
        taking.await
    }

    async fn take_many(&self, marks: &[Mark]) -> Result<Vec<bool>, StoreError> {
        let store = &self.0.store;
        let texts = |of: fn(&Mark) -> &str| marks.iter().map(|mark| kept(of(mark))).collect::<Vec<_>>();
        let (consumers, messages) = (texts(|mark| &mark.consumer), texts(|mark| &mark.message));
        let taking = store.within(async {
            let mut entered = self.0.marks.enter().await?;
            let taken = store
                .query(&self.0.sql.guard.take)
                .bind(&consumers)
                .bind(&messages)
                .bind(texts(|mark| &mark.by))
                .bind(marks.iter().map(|mark| micros(mark.ttl)).collect::<Vec<_>>())
                .fetch_all(entered.begin_one().await.map_err(error::of)?)
                .await
                .map_err(error::of)?;
            entered.end_one().await?;
            Ok(taken)
        });
        let taken = taking.await?;
        let taken = taken.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
        let taken = taken.collect::<Result<HashSet<(&str, &str)>, sqlx::Error>>().map_err(error::of)?;
        Ok(consumers
            .iter()
            .zip(&messages)
            .map(|(consumer, message)| taken.contains(&(&**consumer, &**message)))
            .collect())
    }
}

fn kept_each<'a>(messages: &[&'a str]) -> Vec<Cow<'a, str>> {
    messages.iter().map(|message| kept(message)).collect()
}

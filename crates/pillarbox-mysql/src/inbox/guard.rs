//! Marks of messages that a consumer has begun to deal with.
//!
//! The first statement marks what has no mark, and its count says whether that was all: one round trip. Otherwise a second one
//! takes over what has lapsed, and a third reads what is marked with the number of this call. Each is atomic by itself, and each
//! mark by its row: of callers at once one inserts or changes it. When the process dies between two of them, some messages
//! are marked by this caller, until their time is over. Callers at once share these statements, and their commits.
//!
//! The numbers of calls are random: names of callers may come again, and who has a message already is told `false`.

use std::{collections::HashSet, sync::Arc, time::Duration};

use pillarbox_core::port::{BoxFuture, GuardStore, Mark, StoreError};
use sqlx::Row as _;

use super::MySqlInbox;
use crate::{connection::retried, error, own::micros, tables::statements};

/// The marks of a list.
macro_rules! asked {
    () => {
        "json_table(?, '$[*]' columns (
            c varchar(200) character set utf8mb4 path '$[0]', m varchar(200) character set utf8mb4 path '$[1]',
            b longtext character set utf8mb4 path '$[2]', t bigint path '$[3]')) as given"
    };
}

/// The same, with those that are there by primary key, in the order of the list.
macro_rules! asked_and_there {
    () => {
        concat!(
            asked!(),
            " straight_join {guard} force index (primary)
            on consumer = cast(given.c as binary) and message = cast(given.m as binary)"
        )
    };
}

/// The messages of a list, with their marks by primary key, in the order of the list.
macro_rules! given {
    () => {
        "json_table(?, '$[*]' columns (m varchar(200) character set utf8mb4 path '$')) as given
        straight_join {guard} force index (primary) on consumer = cast(? as binary) and message = cast(given.m as binary)"
    };
}

statements!(GuardSql {
    /// By primary key. Callers have checked the names, so there is nothing to ignore but marks that stand.
    take_one: "insert ignore into {guard} (consumer, message, taken_by, taken_in, expires_at)
        values (?, ?, ?, ?, {now} + interval ? microsecond)",
    /// The same with many.
    take: concat!(
        "insert ignore into {guard} (consumer, message, taken_by, taken_in, expires_at)
        select cast(c as binary), cast(m as binary), cast(b as binary), ?, {now} + interval t microsecond
        from ",
        asked!()
    ),
    /// By primary key, as those that follow.
    take_over: concat!(
        "update ",
        asked_and_there!(),
        " set taken_by = cast(given.b as binary), taken_in = ?, expires_at = {now} + interval given.t microsecond
        where expires_at <= {now}"
    ),
    taken: concat!("select consumer, message from ", asked_and_there!(), " where taken_in = ?"),
    release: concat!("delete {guard} from ", given!(), " where taken_by = cast(? as binary)"),
    /// By the index on their end.
    purge: "delete from {guard} where expires_at <= {now} order by expires_at limit ?",
});

impl GuardStore for MySqlInbox {
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
        Box::pin(async move {
            if messages.is_empty() {
                return Ok(());
            }
            let list = &super::list(&super::ascending(messages))?;
            retried(|| async move {
                let mut entered = self.0.marks.enter().await?;
                let release = sqlx::query(self.0.sql.guard.release.clone()).bind(list).bind(consumer).bind(by);
                release.execute(&mut *entered).await.map_err(error::of)?;
                entered.done();
                Ok(())
            })
            .await
        })
    }

    fn purge(&self, most: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(retried(move || async move {
            let mut entered = self.0.upkeep.enter().await?;
            let purge = sqlx::query(self.0.sql.guard.purge.clone()).bind(most);
            let purged = purge.execute(&mut *entered).await.map_err(error::of)?.rows_affected();
            entered.done();
            Ok(purged)
        }))
    }
}

impl MySqlInbox {
    async fn take_all(&self, marks: &[Mark]) -> Result<Vec<bool>, StoreError> {
        let mut sorted: Vec<_> =
            marks.iter().map(|mark| (&mark.consumer, &mark.message, &mark.by, micros(mark.ttl))).collect();
        sorted.sort_unstable();
        let list = &serde_json::to_string(&sorted).map_err(error::unreadable)?;
        // The same at each try: what an earlier one has marked is this call's.
        let call = fastrand::u64(..);
        let Some(taken) = retried(|| self.take_once(marks, list, call)).await? else {
            return Ok(vec![true; marks.len()]);
        };
        let is_taken = |mark: &Mark| taken.contains(&(mark.consumer.clone().into_bytes(), mark.message.clone().into()));
        Ok(marks.iter().map(is_taken).collect())
    }

    /// The consumers and messages that were marked, or nothing if all were.
    async fn take_once(
        &self,
        marks: &[Mark],
        list: &str,
        call: u64,
    ) -> Result<Option<HashSet<(Vec<u8>, Vec<u8>)>>, StoreError> {
        let sql = &self.0.sql.guard;
        let mut entered = self.0.marks.enter().await?;
        let take = match marks {
            [mark] => {
                let take = sqlx::query(sql.take_one.clone()).bind(mark.consumer.as_bytes());
                take.bind(mark.message.as_bytes()).bind(mark.by.as_bytes()).bind(call).bind(micros(mark.ttl))
            }
            _ => sqlx::query(sql.take.clone()).bind(call).bind(list),
        };
        let marked = take.execute(&mut *entered).await.map_err(error::of)?.rows_affected();
        if marked == marks.len() as u64 {
            entered.done();
            return Ok(None);
        }
        let take_over = sqlx::query(sql.take_over.clone()).bind(list).bind(call);
        take_over.execute(&mut *entered).await.map_err(error::of)?;
        let taken = sqlx::query(sql.taken.clone()).bind(list).bind(call);
        let taken = taken.fetch_all(&mut *entered).await.map_err(error::of)?;
        entered.done();
        let taken = taken.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
        taken.collect::<Result<_, sqlx::Error>>().map(Some).map_err(error::of)
    }
}

//! Marks of messages that a consumer has begun to deal with.
//!
//! The first statement marks what has no mark, and its count says whether that was all: one round trip. Otherwise a second one
//! takes over what has lapsed, and a third reads what is marked with the number of this call. Each is atomic by itself, and each
//! mark by its row: of callers at once one inserts or changes it. When the process dies between two of them, some messages
//! are marked by this caller, until their time is over.
//!
//! The numbers of calls are random: names of callers may come again, and who has a message already is told `false`.

use std::{collections::HashSet, time::Duration};

use pillarbox_core::port::{BoxFuture, GuardStore, StoreError};
use sqlx::Row as _;

use super::MySqlInbox;
use crate::{connection::retried, error, own::micros, tables::statements};

/// The messages of a list, with their marks by primary key, in the order of the list.
macro_rules! given {
    () => {
        "json_table(?, '$[*]' columns (m varchar(200) character set utf8mb4 path '$')) as given
        straight_join {guard} force index (primary) on consumer = cast(? as binary) and message = cast(given.m as binary)"
    };
}

statements!(GuardSql {
    /// By primary key. Callers have checked the names, so there is nothing to ignore but marks that stand.
    take: "insert ignore into {guard} (consumer, message, taken_by, taken_in, expires_at)
        select cast(? as binary), cast(m as binary), cast(? as binary), ?, {now} + interval ? microsecond
        from json_table(?, '$[*]' columns (m varchar(200) character set utf8mb4 path '$')) as given",
    /// By primary key, as those that follow.
    take_over: concat!(
        "update ",
        given!(),
        " set taken_by = cast(? as binary), taken_in = ?, expires_at = {now} + interval ? microsecond
        where expires_at <= {now}"
    ),
    taken: concat!("select message from ", given!(), " where taken_in = ?"),
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
            if messages.is_empty() {
                return Ok(Vec::new());
            }
            let list = super::ascending(messages)?;
            // The same at each try: what an earlier one has marked is this call's.
            let call = fastrand::u64(..);
            retried(|| self.take_once(consumer, messages, &list, by, call, ttl)).await
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
            let list = &super::ascending(messages)?;
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
    async fn take_once(
        &self,
        consumer: &str,
        messages: &[&str],
        list: &str,
        by: &str,
        call: u64,
        ttl: Duration,
    ) -> Result<Vec<bool>, StoreError> {
        let sql = &self.0.sql.guard;
        let mut entered = self.0.marks.enter().await?;
        let take = sqlx::query(sql.take.clone()).bind(consumer).bind(by).bind(call).bind(micros(ttl)).bind(list);
        let marked = take.execute(&mut *entered).await.map_err(error::of)?.rows_affected();
        if marked == messages.len() as u64 {
            entered.done();
            return Ok(vec![true; messages.len()]);
        }
        let take_over = sqlx::query(sql.take_over.clone()).bind(list).bind(consumer).bind(by).bind(call);
        take_over.bind(micros(ttl)).execute(&mut *entered).await.map_err(error::of)?;
        let taken = sqlx::query(sql.taken.clone()).bind(list).bind(consumer).bind(call);
        let taken = taken.fetch_all(&mut *entered).await.map_err(error::of)?;
        entered.done();
        let taken = taken.iter().map(|row| row.try_get(0)).collect::<Result<HashSet<&[u8]>, _>>();
        let taken = taken.map_err(error::of)?;
        Ok(messages.iter().map(|message| taken.contains(message.as_bytes())).collect())
    }
}

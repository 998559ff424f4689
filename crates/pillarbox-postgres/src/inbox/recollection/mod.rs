//! What a process recalls of the bucket before, so that ids are not looked up in it.
//!
//! A task reads the messages of a consumer into a filter, page by page by primary key, on the connection for upkeep, which it leaves
//! after each page. Nobody waits for it: until it is done messages are looked up.
//!
//! # Why what the filter does not know was never entered
//! - PostgreSQL shows nobody what is not committed. But who enters anything in a table holds a lock on it (ROW EXCLUSIVE) to the
//!   end of his transaction, also while that is prepared for a commit in two phases, and takes the lock before he looks at the
//!   clock. So the clock is looked at first, and then, in another statement, who holds that lock on the slot before. If nobody
//!   does, all have ended for whom it was the present one: who takes the lock later finds that the bucket has turned. If anybody
//!   does, it is tried again later.
//! - A transaction lets go of its locks after its commit has become visible. The pages have snapshots that are newer than the look
//!   at the locks, and see everything that was committed by those.
//! - Transactions that have begun early enter messages there while it is read, or afterwards. They enter them in the present slot as
//!   well, and there they meet who was told by the filter that nobody has.
//! - The slot is emptied in the next bucket at the earliest. By then the filter is of no use: it holds for one bucket, and
//!   who asks it enters what is not known by a statement that enters nothing in every other bucket.
//!
//! The view of all locks is open to every role. It shows the locks that sessions keep to themselves (the fast path) first and the
//! shared ones then, so one that becomes shared meanwhile may be shown twice, and is not missed.

#[cfg(test)]
mod tests;

use std::sync::{Arc, MutexGuard, PoisonError, Weak};

use pillarbox_core::{
    domain::{
        bucket::{Buckets, SLOTS, before, slot},
        recollection::{Bloom, Reading, Recalled, Recollection},
    },
    port::StoreError,
};
use sqlx::{Postgres, Row as _, SqlStr, postgres::PgArguments, postgres::PgRow, query::Query};
use tokio::runtime::Handle;

use super::{Inner, PostgresInbox};
use crate::{error, own::micros, tables::Names};

#[derive(Debug)]
pub(crate) struct RecollectionSql {
    /// Whether the time lies in a bucket, and at least so far in it.
    fits: SqlStr,
    slots: [Slot; SLOTS],
}

#[derive(Debug)]
struct Slot {
    /// Whether anybody may still commit what he has entered.
    is_open: SqlStr,
    /// A page of a consumer's messages, from one on, by primary key.
    page: SqlStr,
}

/// Messages of a page.
const PAGE: usize = 10_000;

impl RecollectionSql {
    pub(crate) fn new(names: &Names) -> Self {
        Self {
            fits: names.statement(
                "select micros / $1::bigint = $2::bigint and micros % $1::bigint >= $3::bigint
        from (select (extract(epoch from {now}) * 1000000)::bigint as micros) as clock",
            ),
            slots: std::array::from_fn(|slot| Slot {
                is_open: names.statement(&format!(
                    "select exists (select 1 from pg_locks
            where locktype = 'relation' and relation = '{{seen_{slot}}}'::regclass and mode = 'RowExclusiveLock'
                and database = (select oid from pg_database where datname = current_database()))"
                )),
                page: names.statement(&format!(
                    "select message from {{seen_{slot}}}
        where consumer = $1::text and message >= $2::text order by message limit {PAGE}"
                )),
            }),
        }
    }

    /// Every statement with its name.
    #[cfg(test)]
    pub(crate) fn named(&self) -> Vec<(&'static str, &SqlStr)> {
        let slots = self.slots.iter().flat_map(|slot| [("is_open", &slot.is_open), ("page", &slot.page)]);
        slots.chain([("fits", &self.fits)]).collect()
    }
}

impl PostgresInbox {
    /// Whether the bucket before has none of these messages, as far as it is recalled. Has it read if it is time for that.
    pub(super) fn recalls_none<T: AsRef<str>>(
        &self,
        buckets: Buckets,
        bucket: i64,
        consumer: &str,
        messages: &[T],
    ) -> bool {
        let recalled = self.recollection().recall(bucket, consumer.as_bytes(), messages.len(), self.guessed_now());
        match recalled {
            Recalled::Known(bloom) => !messages.iter().any(|message| bloom.may_have(message.as_ref().as_bytes())),
            Recalled::Unknown => false,
            Recalled::Unread => {
                let reader = Reader::new(self, buckets, bucket, consumer);
                if let Ok(runtime) = Handle::try_current() {
                    runtime.spawn(reader.run());
                }
                false
            }
        }
    }

    fn recollection(&self) -> MutexGuard<'_, Recollection> {
        self.0.recollection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rows of a statement, on the connection for upkeep. Behind a pooler it is in a transaction that may write: such a one is
    /// not sent to a replica, which is behind and knows of no locks.
    async fn rows(&self, query: Query<'_, Postgres, PgArguments>) -> Result<Vec<PgRow>, StoreError> {
        let rows = self.0.store.within(async {
            let mut entered = self.0.upkeep.enter().await?;
            let connection = entered.begin_one().await.map_err(error::of)?;
            let rows = query.fetch_all(connection).await.map_err(error::of)?;
            entered.end_one().await?;
            Ok(rows)
        });
        rows.await
    }
}

/// Reads the slot before for one consumer. If it is cut off, somebody reads it later.
struct Reader {
    /// Not kept alive by it.
    inbox: Weak<Inner>,
    buckets: Buckets,
    bucket: i64,
    consumer: Box<str>,
    /// How many messages it reads at most.
    most: usize,
    is_over: bool,
}

impl Reader {
    fn new(inbox: &PostgresInbox, buckets: Buckets, bucket: i64, consumer: &str) -> Self {
        let (inbox, consumer) = (Arc::downgrade(&inbox.0), consumer.into());
        Self { inbox, buckets, bucket, consumer, most: Bloom::MOST, is_over: false }
    }

    async fn run(mut self) {
        let reading = self.read().await.unwrap_or_else(|error| {
            tracing::debug!(%error, "the bucket before was not read, and its messages are looked up");
            Reading::Failed
        });
        self.tell(reading);
        self.is_over = true;
    }

    async fn read(&self) -> Result<Reading, StoreError> {
        if !self.is_settled().await? {
            return Ok(Reading::Failed);
        }
        let mut bloom = Bloom::new();
        let mut from = Some(String::new());
        while let Some(first) = from {
            let Some(inbox) = self.inbox() else { return Ok(Reading::Failed) };
            from = self.page(&inbox, &first, &mut bloom).await?;
            if bloom.inserted() > self.most {
                return Ok(Reading::TooMany);
            }
        }
        Ok(Reading::Whole(bloom.shrunk()))
    }

    /// Whether all have ended who have entered anything in the slot before while it was the present one.
    async fn is_settled(&self) -> Result<bool, StoreError> {
        let Some(inbox) = self.inbox() else { return Ok(false) };
        let sql = &inbox.0.sql.recollection;
        let is = async |query| {
            let rows = inbox.rows(query).await?;
            rows.first().map_or(Ok(false), |row| row.try_get(0)).map_err(error::of)
        };
        let fits = inbox.0.store.query(&sql.fits).bind(self.buckets.micros()).bind(self.bucket);
        // In this order: who has the lock after the look at it looks at the clock after that.
        if !is(fits.bind(micros(self.buckets.longest()))).await? {
            return Ok(false);
        }
        let is_open = is(inbox.0.store.query(&sql.slots[self.slot()].is_open)).await?;
        if is_open {
            tracing::debug!("the bucket before is not read yet: a transaction that has written to it is still open");
        }
        Ok(!is_open)
    }

    /// Reads the page from this message on; returns where the next one begins, with the last of this one once more.
    async fn page(&self, inbox: &PostgresInbox, from: &str, bloom: &mut Bloom) -> Result<Option<String>, StoreError> {
        let page = inbox.0.store.query(&inbox.0.sql.recollection.slots[self.slot()].page);
        let rows = inbox.rows(page.bind(&*self.consumer).bind(from)).await?;
        for row in &rows {
            bloom.insert(row.try_get::<&str, _>(0).map_err(error::of)?.as_bytes());
        }
        let last = rows.last().filter(|_| rows.len() == PAGE);
        last.map(|row| row.try_get(0)).transpose().map_err(error::of)
    }

    fn slot(&self) -> usize {
        before(slot(self.bucket))
    }

    fn tell(&self, reading: Reading) {
        if let Some(inbox) = self.inbox() {
            inbox.recollection().was_read(self.bucket, self.consumer.as_bytes(), reading, inbox.guessed_now());
        }
    }

    fn inbox(&self) -> Option<PostgresInbox> {
        self.inbox.upgrade().map(PostgresInbox)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if !self.is_over {
            self.tell(Reading::Failed);
        }
    }
}

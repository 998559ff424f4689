//! What a process recalls of the bucket before, so that ids which do not ascend are not all looked up in it.
//!
//! A task reads the messages of a consumer into a filter, page by page by primary key, on the connection for upkeep, which it leaves
//! after each page. Nobody waits for it: until it is done messages are looked up.
//!
//! # Why what the filter does not know was never entered
//! - It is read later than [`Buckets::longest`] after the turn, by the database's clock. Then nothing is entered in the slot before
//!   by those for whom it is the present one: each looks at the clock, and has ended its transaction.
//! - One that is open for longer than it may be has entered what it had to enter. Each page is a dirty read, which sees that,
//!   whatever will become of it.
//! - Those who believe that it is earlier enter messages there while it is read, or afterwards. They enter them in the present slot
//!   as well, and there they meet who was told by the filter that nobody has.
//! - The slot is emptied in the next bucket at the earliest. By then the filter is of no use: it holds for one bucket, and
//!   who asks it enters as given what is not known, by a statement that fails in every other bucket.

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
use sqlx::{Row as _, SqlStr};
use tokio::runtime::Handle;

use super::{
    Inner, MySqlInbox,
    migrate::{NO_PATIENCE, PATIENCE},
    seen::{DIRTY, in_time},
};
use crate::{error, own::micros, tables::Names};

#[derive(Debug)]
pub(crate) struct RecollectionSql {
    /// Whether the time lies in a bucket, and at least so far in it.
    fits: SqlStr,
    /// A page of a consumer's messages in each slot, from one on, by primary key.
    pages: [SqlStr; SLOTS],
}

/// Messages of a page.
const PAGE: usize = 10_000;

impl RecollectionSql {
    pub(crate) fn new(names: &Names) -> Self {
        Self {
            fits: names.statement(&format!("select {}", in_time())),
            pages: std::array::from_fn(|slot| {
                names.statement(&format!(
                    "select old.message from {{seen_{slot}}} as old force index (primary)
        where old.consumer = ? and old.message >= ? order by old.message limit {PAGE}"
                ))
            }),
        }
    }

    /// Every statement with its name.
    #[cfg(test)]
    pub(crate) fn named(&self) -> Vec<(&'static str, &SqlStr)> {
        self.pages.iter().map(|page| ("page", page)).chain([("fits", &self.fits)]).collect()
    }
}

impl MySqlInbox {
    /// Whether the bucket before has none of these messages, as far as it is recalled. Has it read if it is time for that.
    pub(super) fn recalls_none(&self, buckets: Buckets, bucket: i64, consumer: &[u8], messages: &[&str]) -> bool {
        let recalled = self.recollection().recall(bucket, consumer, messages.len(), self.guessed_now());
        match recalled {
            Recalled::Known(bloom) => !messages.iter().any(|message| bloom.may_have(message.as_bytes())),
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
}

/// Reads the slot before for one consumer. If it is cut off, somebody reads it later.
struct Reader {
    /// Not kept alive by it.
    inbox: Weak<Inner>,
    buckets: Buckets,
    bucket: i64,
    consumer: Box<[u8]>,
    /// How many messages it reads at most.
    most: usize,
    is_over: bool,
}

impl Reader {
    fn new(inbox: &MySqlInbox, buckets: Buckets, bucket: i64, consumer: &[u8]) -> Self {
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
        if !self.fits().await? {
            return Ok(Reading::Failed);
        }
        let mut bloom = Bloom::new();
        let mut from = Some(Vec::new());
        while let Some(first) = from {
            let Some(inbox) = self.inbox() else { return Ok(Reading::Failed) };
            from = self.page(&inbox, &first, &mut bloom).await?;
            if bloom.inserted() > self.most {
                return Ok(Reading::TooMany);
            }
        }
        Ok(Reading::Whole(bloom.shrunk()))
    }

    /// Whether nothing is entered in the slot before any more.
    async fn fits(&self) -> Result<bool, StoreError> {
        let Some(inbox) = self.inbox() else { return Ok(false) };
        let mut entered = inbox.0.upkeep.enter().await?;
        let length = self.buckets.micros();
        let fits = sqlx::query(inbox.0.sql.recollection.fits.clone()).bind(length).bind(self.bucket);
        let fits = fits.bind(length).bind(micros(self.buckets.longest())).fetch_one(&mut *entered).await;
        let fits = fits.and_then(|row| row.try_get(0)).map_err(error::of)?;
        entered.done();
        Ok(fits)
    }

    /// Reads the page from this message on; returns where the next one begins, with the last of this one once more.
    async fn page(&self, inbox: &MySqlInbox, from: &[u8], bloom: &mut Bloom) -> Result<Option<Vec<u8>>, StoreError> {
        let mut entered = inbox.0.upkeep.enter().await?;
        let read = async {
            let line = &mut *entered;
            for setting in [PATIENCE, DIRTY] {
                sqlx::raw_sql(setting).execute(&mut *line).await?;
            }
            let page = sqlx::query(inbox.0.sql.recollection.pages[before(slot(self.bucket))].clone());
            let rows = page.bind(&*self.consumer).bind(from).fetch_all(&mut *line).await?;
            sqlx::raw_sql(NO_PATIENCE).execute(line).await?;
            for row in &rows {
                bloom.insert(row.try_get(0)?);
            }
            let last = rows.last().filter(|_| rows.len() == PAGE);
            last.map(|row| row.try_get(0)).transpose()
        };
        let next = read.await.map_err(error::of)?;
        entered.done();
        Ok(next)
    }

    fn tell(&self, reading: Reading) {
        if let Some(inbox) = self.inbox() {
            inbox.recollection().was_read(self.bucket, &self.consumer, reading, inbox.guessed_now());
        }
    }

    fn inbox(&self) -> Option<MySqlInbox> {
        self.inbox.upgrade().map(MySqlInbox)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if !self.is_over {
            self.tell(Reading::Failed);
        }
    }
}

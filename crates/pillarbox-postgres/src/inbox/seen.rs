//! Messages that a consumer has dealt with, entered in the transaction of its work.
//!
//! One statement looks the messages up in the older slots, and enters those that are new in the slot of the present bucket.
//! The slot stands in the text of the statement, so the bucket is guessed from the database's time as it was told last; the
//! statement looks at the clock itself, enters nothing if the guess was wrong, and tells the time. Then it is sent again.
//!
//! # Why two transactions can't both enter a message
//! - In one bucket they meet at the primary key of its slot: the second waits for the end of the first. After a commit it
//!   finds the message known at READ COMMITTED, and fails with a serialization error at REPEATABLE READ and SERIALIZABLE,
//!   where its snapshot does not show what it has met: that is a conflict, and the transaction is to be run again. After a
//!   rollback the message is its own.
//! - After a turn the first may stand in the slot of the bucket before, uncommitted, where a lookup does not see it. So a
//!   transaction that has begun within [`Buckets::longest`] of the turn enters what is new in that slot first, and in the
//!   present one if it was new there: the two meet in the slot before. Whoever begins later sees the first committed, if
//!   that has kept to the longest time. What counts is when the transaction began, not when it enters: at REPEATABLE READ
//!   its snapshot may be as old as that. One whose snapshot is older than the two slots reach is refused.
//! - Slots are written in the order of their age, and messages in ascending order, so that no two calls wait in a circle. Several
//!   calls in one transaction may: PostgreSQL ends one of them, and that is a conflict, too.
//!
//! # When the process dies
//! Before the commit, PostgreSQL rolls back the work and the entries in both slots; after it, all are in effect. There is no
//! step between: nothing of an entry is outside of the user's transaction.

use std::{
    collections::HashSet,
    sync::PoisonError,
    time::{Instant, SystemTime},
};

use pillarbox_core::{
    domain::{
        Timestamp,
        bucket::{Buckets, SLOTS, others, slot},
    },
    port::{BoxFuture, InboxStore, StoreError, StoreErrorKind},
};
use sqlx::SqlStr;

use super::{PostgresInbox, text::kept};
use crate::{
    own::micros,
    tables::Names,
    writer::{InTransaction, Value, misunderstood},
};

/// One statement for each slot that is written.
#[derive(Debug)]
pub(crate) struct SeenSql([SqlStr; SLOTS]);

/// How often a guess may be wrong: it is, once a bucket, and again if the answer took longer than a bucket.
const GUESSES: usize = 10;

impl SeenSql {
    pub(crate) fn new(names: &Names) -> Self {
        Self(std::array::from_fn(|slot| {
            let before = (slot + SLOTS - 1) % SLOTS;
            // Each by primary key. As a value, not as a join: then there is no plan that reads the whole slot, which
            // would be a good one when the slot is empty, and is kept when it has filled up.
            let known = others(slot).map(|other| {
                format!(
                    "\n            and (select 1 from {{seen_{other}}} as other
                where other.consumer = $1 and other.message = given.message) is null"
                )
            });
            let known: String = known.collect();
            names.statement(&format!(
                "with clock as materialized (
            select micros, begun < $4::bigint * $3::bigint + $5::bigint as turning, micros / $3 = $4
                and (begun >= ($4 - 1) * $3 + $5
                    or current_setting('transaction_isolation') in ('read committed', 'read uncommitted')) as fits
            from (select (extract(epoch from {{now}}) * 1000000)::bigint as micros,
                (extract(epoch from now()) * 1000000)::bigint as begun) as times
        ), fresh as materialized (
            select message from unnest($2::text[]) as given (message), clock
            where fits{known}
        ), before as (
            insert into {{seen_{before}}} (consumer, message)
            select $1, message from fresh, clock where turning order by message collate \"C\"
            on conflict do nothing returning message
        ), entered as (
            insert into {{seen_{slot}}} (consumer, message)
            select $1, message
            from (select message from before union all select message from fresh, clock where not turning) as unknown
            order by message collate \"C\"
            on conflict do nothing returning message
        )
        select case when fits then '{FITS}' else '{MISSES}' end as dedup_key, micros::text as event_id from clock
        union all select '{COUNT}', count(*)::text from entered
        union all select '{ENTERED}', message from entered
            where (select count(*) from entered) < cardinality($2::text[])"
            ))
        }))
    }

    /// Every statement with its name.
    #[cfg(test)]
    pub(crate) fn named(&self) -> Vec<(&'static str, &SqlStr)> {
        self.0.iter().map(|sql| ("enter", sql)).collect()
    }
}

const FITS: &str = "fits";
const MISSES: &str = "misses";
/// How many were entered; if it is not all, each of them follows.
const COUNT: &str = "count";
const ENTERED: &str = "entered";

impl PostgresInbox {
    async fn enter_in<Tx: InTransaction>(
        &self,
        tx: &mut Tx,
        consumer: &str,
        messages: &[&str],
    ) -> Result<Vec<bool>, StoreError> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let buckets = self.buckets().await?.ok_or_else(not_agreed)?;
        let names: Vec<_> = messages.iter().map(|message| kept(message)).collect();
        for _ in 0..GUESSES {
            let guess = buckets.number(self.guessed_now());
            let values = vec![
                Value::Text(Some(kept(consumer))),
                Value::TextArray(names.iter().map(|name| Some(name.as_ref().into())).collect()),
                Value::BigInt(Some(buckets.micros())),
                Value::BigInt(Some(guess)),
                Value::BigInt(Some(micros(buckets.longest()))),
            ];
            let sql = &self.0.sql.seen.0[slot(guess)];
            let answer = tx.pairs(self.0.store.statement(sql), values).await?;
            let told = answer.iter().find(|(word, _)| word == FITS || word == MISSES);
            let (word, now) = told.ok_or_else(|| misunderstood("an answer without the time"))?;
            let now = Timestamp::from_micros(now.parse::<i64>().map_err(misunderstood)?);
            *self.0.clock.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, Instant::now()));
            if word == FITS {
                let count = answer.iter().find(|(word, _)| word == COUNT).map(|(_, count)| count.parse::<usize>());
                if count == Some(Ok(names.len())) {
                    return Ok(vec![true; names.len()]);
                }
                let entered = answer.iter().filter(|(word, _)| word == ENTERED).map(|(_, message)| message.as_str());
                let entered: HashSet<&str> = entered.collect();
                return Ok(names.iter().map(|name| entered.contains(&**name)).collect());
            }
            if buckets.number(now) == guess {
                return Err(too_old(buckets));
            }
        }
        Err(StoreError::new(
            StoreErrorKind::Unavailable,
            "the database's clock was in another bucket at each look: it jumps, or answers take longer than a bucket",
        ))
    }

    /// The database's time, as far as it is known here; by the host's clock at first. Only what to ask for is chosen by it.
    fn guessed_now(&self) -> Timestamp {
        match *self.0.clock.lock().unwrap_or_else(PoisonError::into_inner) {
            Some((told, at)) => told.saturating_add(at.elapsed()),
            None => SystemTime::now().into(),
        }
    }
}

fn not_agreed() -> StoreError {
    StoreError::new(
        StoreErrorKind::Schema,
        "the inbox's window was never set: start the inbox before anything is entered",
    )
}

fn too_old(buckets: Buckets) -> StoreError {
    StoreError::new(
        StoreErrorKind::Conflict,
        format!(
            "the transaction's snapshot is too old to tell which messages are known: run it again, and let it end within \
             {:?}, or use READ COMMITTED",
            buckets.longest()
        ),
    )
}

/// A message is entered in a transaction of any driver that events are written with:
///
/// ```no_run
/// # async fn example(inbox: pillarbox_postgres::PostgresInbox) -> Result<(), Box<dyn std::error::Error>> {
/// use pillarbox_core::port::InboxStore as _;
///
/// let mut tx = inbox.store().pool().begin().await?;
/// if inbox.enter(&mut tx, "billing", &["message-7"]).await? == [true] {
///     sqlx::query("insert into invoices ...").execute(&mut *tx).await?;
/// }
/// tx.commit().await?;
/// # Ok(()) }
/// ```
impl<Tx: InTransaction> InboxStore<Tx> for PostgresInbox {
    fn enter<'a>(
        &'a self,
        tx: &'a mut Tx,
        consumer: &'a str,
        messages: &'a [&'a str],
    ) -> BoxFuture<'a, Result<Vec<bool>, StoreError>> {
        Box::pin(self.enter_in(tx, consumer, messages))
    }
}

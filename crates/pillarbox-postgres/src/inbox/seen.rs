//! Messages that a consumer has dealt with, entered in the transaction of its work.
//!
//! One statement looks the messages up in the slot of the bucket before, and enters those that are new in that of the present
//! one. The slots stand in the text of the statement, so the bucket is guessed from the database's time as it was told last;
//! the statement looks at the clock itself, enters nothing if the guess was wrong, and tells the time. Then it is sent again.
//!
//! Of many messages each is looked up only if the slot before has anything of the consumer from the least to the greatest of
//! them, in the order of their bytes, which is that of the primary key. Ids that ascend with time, as those of events do, lie
//! beyond all of it, and one look tells so; messages that are not ASCII are looked up. If the process [recalls](super::recollection) the bucket before, and that it has none
//! of the messages, the statement has no lookup at all.
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
//! - What is entered without a lookup was not entered in the slot before by anybody who has ended, and those who may still enter it
//!   there enter it in the present slot as well, where the two meet: see [`recollection`](super::recollection).
//! - Slots are written in the order of their age, and messages in ascending order, so that no two calls wait in a circle. Several
//!   calls in one transaction may: PostgreSQL ends one of them, and that is a conflict, too.
//!
//! # When the process dies
//! Before the commit, PostgreSQL rolls back the work and the entries in both slots; after it, all are in effect. There is no
//! step between: nothing of an entry is outside of the user's transaction.

use std::{
    borrow::Cow,
    collections::HashSet,
    sync::PoisonError,
    time::{Instant, SystemTime},
};

use pillarbox_core::{
    domain::{
        Timestamp,
        bucket::{Buckets, SLOTS, before, slot},
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

/// The statements for each slot that is written.
#[derive(Debug)]
pub(crate) struct SeenSql([Slot; SLOTS]);

#[derive(Debug)]
struct Slot {
    /// Enters one message, if the slot before does not have it.
    one: SqlStr,
    /// The same with many, which are looked up one by one if it has anything from the least to the greatest of them.
    many: SqlStr,
    /// Enters one message, whatever the slot before has: it does not have it.
    new_one: SqlStr,
    /// The same with many.
    new_many: SqlStr,
    /// Enters messages in the slot before, and those that were new there in this one.
    turning: SqlStr,
}

/// How often a guess may be wrong: it is, once a bucket, and again if the answer took longer than a bucket. A transaction that
/// has begun before the turn, or soon after it, takes one more.
const GUESSES: usize = 10;

/// Whether the time lies in the bucket, and what time it is: looked at once, whatever is entered. `begun` is when the transaction
/// began.
fn clock(fits: &str) -> String {
    format!(
        "with clock as materialized (
            select micros, micros / $3::bigint = $4::bigint and {fits} as fits
            from (select (extract(epoch from {{now}}) * 1000000)::bigint as micros,
                (extract(epoch from now()) * 1000000)::bigint as begun) as times
        )"
    )
}

/// Not by the parameter itself, whose length would be known to the planner: plans for short lists would look cheaper than the
/// one for all lists, and be made anew for each.
const GIVEN: &str = "unnest((select $2::text[])) as given (message)";

impl SeenSql {
    pub(crate) fn new(names: &Names) -> Self {
        let tell = format!(
            "select case when fits then (select count(*) from entered)::text else '{MISSES}' end as dedup_key,
            micros::text as event_id from clock"
        );
        let tell_each = format!(
            "{tell}
        union all select '{ENTERED}', message from entered
            where (select count(*) from entered) < cardinality($2::text[])"
        );
        Self(std::array::from_fn(|slot| {
            let before = before(slot);
            let settled = clock("begun >= $4 * $3 + $5::bigint");
            let turning = clock(
                "(begun >= ($4 - 1) * $3 + $5::bigint
                or current_setting('transaction_isolation') in ('read committed', 'read uncommitted'))",
            );
            // By primary key. As a value, not as a join: then there is no plan that reads the whole slot, which would be a
            // good one when the slot is empty, and is kept when it has filled up.
            let unknown = |message: &str| {
                format!(
                    "(select 1 from {{seen_{before}}} as other
                where other.consumer = $1::text and other.message = {message}) is null"
                )
            };
            // Once for all: ids that ascend with time, as those of events do, lie beyond everything in the slot before.
            let clear = format!(
                "$6::text is not null and (select not exists (select 1 from {{seen_{before}}} as near
                where near.consumer = $1::text and near.message between $6::text and $7::text))"
            );
            let one = |and: &str| {
                names.statement(&format!(
                    "{settled}, entered as (
            insert into {{seen_{slot}}} (consumer, message)
            select $1::text, $2::text from clock
            where fits{and}
            on conflict do nothing returning 1
        )
        {tell}"
                ))
            };
            let many = |and: &str| {
                names.statement(&format!(
                    "{settled}, entered as (
            insert into {{seen_{slot}}} (consumer, message)
            select $1::text, message from {GIVEN}, clock
            where fits{and}
            order by message collate \"C\"
            on conflict do nothing returning message
        )
        {tell_each}"
                ))
            };
            Slot {
                one: one(&format!(" and {}", unknown("$2::text"))),
                many: many(&format!(" and case when {clear} then true else {} end", unknown("given.message"))),
                new_one: one(""),
                new_many: many(""),
                turning: names.statement(&format!(
                    "{turning}, before as (
            insert into {{seen_{before}}} (consumer, message)
            select $1::text, message from {GIVEN}, clock where fits order by message collate \"C\"
            on conflict do nothing returning message
        ), entered as (
            insert into {{seen_{slot}}} (consumer, message)
            select $1::text, message from before order by message collate \"C\"
            on conflict do nothing returning message
        )
        {tell_each}"
                )),
            }
        }))
    }

    /// Every statement with its name, slot by slot.
    #[cfg(test)]
    pub(crate) fn named(&self) -> Vec<(&'static str, &SqlStr)> {
        let named = self.0.iter().map(|slot| {
            [
                ("one", &slot.one),
                ("many", &slot.many),
                ("new_one", &slot.new_one),
                ("new_many", &slot.new_many),
                ("turning", &slot.turning),
            ]
        });
        named.flatten().collect()
    }
}

/// Stands with the time, in the place of how many were entered.
const MISSES: &str = "misses";
/// Stands with each that was entered, if it was not all of many.
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
        let consumer = kept(consumer);
        let names: Vec<_> = messages.iter().map(|message| kept(message)).collect();
        // Whether the transaction is known to have begun too early for the other statements.
        let mut is_early = false;
        for _ in 0..GUESSES {
            let guess = self.guessed_now();
            let (bucket, is_turning) = (buckets.number(guess), is_early || buckets.overlaps(guess));
            let is_new = !is_turning && self.recalls_none(buckets, bucket, &consumer, &names);
            let sql = &self.0.sql.seen.0[slot(bucket)];
            let list = || Value::TextArray(names.iter().map(|name| Some(name.as_ref().into())).collect());
            let (sql, given, ends) = match &names[..] {
                _ if is_turning => (&sql.turning, list(), None),
                [name] => (if is_new { &sql.new_one } else { &sql.one }, text(name), None),
                _ if is_new => (&sql.new_many, list(), None),
                names => (&sql.many, list(), Some(ends(names))),
            };
            let mut values = vec![
                text(&consumer),
                given,
                Value::BigInt(Some(buckets.micros())),
                Value::BigInt(Some(bucket)),
                Value::BigInt(Some(micros(buckets.longest()))),
            ];
            values.extend(ends.into_iter().flatten().map(|end| Value::Text(end.map(Into::into))));
            let answer = tx.pairs(self.0.store.statement(sql), values).await?;
            let told = answer.iter().find(|(word, _)| word != ENTERED);
            let (word, now) = told.ok_or_else(|| misunderstood("an answer without the time"))?;
            let now = Timestamp::from_micros(now.parse::<i64>().map_err(misunderstood)?);
            *self.0.clock.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, Instant::now()));
            if word != MISSES {
                if word.parse::<usize>().map_err(misunderstood)? == names.len() {
                    return Ok(vec![true; names.len()]);
                }
                let entered = answer.iter().filter(|(word, _)| word == ENTERED).map(|(_, message)| message.as_str());
                let entered: HashSet<&str> = entered.collect();
                return Ok(names.iter().map(|name| entered.contains(&**name)).collect());
            }
            if buckets.number(now) == bucket {
                if is_turning {
                    return Err(too_old(buckets));
                }
                is_early = true;
            }
        }
        Err(StoreError::new(
            StoreErrorKind::Unavailable,
            "the database's clock was in another bucket at each look: it jumps, or answers take longer than a bucket",
        ))
    }

    /// The database's time, as far as it is known here; by the host's clock at first. Only what to ask for is chosen by it.
    pub(super) fn guessed_now(&self) -> Timestamp {
        match *self.0.clock.lock().unwrap_or_else(PoisonError::into_inner) {
            Some((told, at)) => told.saturating_add(at.elapsed()),
            None => SystemTime::now().into(),
        }
    }
}

/// The least and the greatest of some messages by their bytes, as the slots are ordered. The bytes are those of the server's
/// encoding: of ASCII they are the same in all of them, and of other messages the ends can't be told here.
fn ends<'a>(names: &'a [Cow<'_, str>]) -> [Option<&'a str>; 2] {
    if names.iter().all(|name| name.is_ascii()) {
        [names.iter().min(), names.iter().max()].map(|end| end.map(|name| &**name))
    } else {
        [None, None]
    }
}

fn text(name: &str) -> Value<'_> {
    Value::Text(Some(name.into()))
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

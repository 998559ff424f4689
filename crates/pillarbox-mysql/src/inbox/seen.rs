//! Messages that a consumer has dealt with, entered in the transaction of its work.
//!
//! One statement looks the messages up in the slot of the bucket before, and enters those that are new in that of the present
//! one. The slots stand in the text of the statement, so the bucket is guessed from the database's time as it was told last;
//! the statement looks at the clock itself, and fails if the guess was wrong. Then the time is asked for, and it is sent
//! again: an error ends the statement here, not the transaction. If it did not enter all, those are read that have the number
//! of this call.
//!
//! # Without a lookup
//! A lookup takes time. But ids that ascend with time, as those of events do, lie beyond everything in the bucket before. What lies
//! above its [`Highest`](super::Highest) message, in the order of their bytes, which is that of the primary key, is entered row by
//! row as given, and the statement looks at the clock alone. So is what does not ascend, such as random ids, if the process
//! [recalls](super::recollection) the bucket before, and that it has none of them.
//!
//! # Many messages
//! To look each of them up takes more time. So the slot before is asked once whether it has any message of the consumer from
//! the least to the greatest of the batch. If it has none, none of the batch is there, and they are entered as given. Else the
//! statement fails before the first row, and the other one looks each of them up. It fails likewise if the guess was wrong,
//! and then so does the other: nobody has to tell the two apart. [`Ahead`](super::Ahead) keeps the tries that fail rare
//! where ids do not ascend.
//!
//! Where they do not, and the bucket before is filled and not recalled, a hundred lookups by primary key take as long as the
//! insert itself, in whatever statement they stand: a list of values, a condition for each row and a join were tried.
//!
//! The text has as many rows as there are messages, and each text is prepared once for a connection. So there are some
//! [`SIZES`], and what a size has too many is filled with the last message, which is ignored after the first time.
//!
//! # Why two transactions can't both enter a message
//! - In one bucket they meet at the primary key of its slot: the second waits for the end of the first. After a commit it finds
//!   the message known, whatever its snapshot shows, for a key is compared with what is there; after a rollback the
//!   message is its own. A MariaDB with strict snapshots ends the second, which is a conflict: it is to be run again.
//! - After a turn the first may stand in the slot of the bucket before, uncommitted. So within [`Buckets::longest`] of
//!   the turn what is new is entered in that slot first, and in the present one if it was new there: the two meet in
//!   the slot before. Whoever comes later sees the first committed, if that has kept to the longest time: at READ
//!   COMMITTED each statement sees what is committed when it begins, and at REPEATABLE READ and SERIALIZABLE an insert
//!   reads the newest state of the rows it selects, behind a lock, and not that of the snapshot. An insert of rows as
//!   given, which asks for a range, reads the newest state behind a lock at every level.
//! - What is entered without a lookup lies above all that was in the slot before when its highest message was read, be it
//!   committed or not, and that was later than [`Buckets::longest`] after the turn. What is entered there after that, by
//!   one who believes that it is earlier, is entered in the present slot as well, and the two meet there. The same holds of
//!   what is not recalled.
//! - Slots are written in the order of their age, and messages in ascending order. Where transactions still wait in a circle
//!   the server ends one of them, and that is a conflict, too.
//!
//! # When the process dies
//! Before the commit, the server rolls back the work and the entries in both slots; after it, all are in effect. There is no
//! step between: nothing of an entry is outside of the user's transaction.

use std::{
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
use sqlx::{Encode, MySql, MySqlConnection, Row as _, SqlStr, Transaction, Type, mysql::MySqlArguments, query::Query};

use super::{
    MySqlInbox,
    migrate::{NO_PATIENCE, PATIENCE},
};
use crate::{error, own::micros, tables::Names};

/// The statements for each slot that is written.
#[derive(Debug)]
pub(crate) struct SeenSql([Slot; SLOTS]);

#[derive(Debug)]
struct Slot {
    /// Enters one message, if the slot before does not have it.
    one: SqlStr,
    /// The same with many.
    many: SqlStr,
    /// Enters as many as [`SIZES`] has in its place, whatever the slot before has: it has none of them.
    above: [SqlStr; SIZES.len()],
    /// The same, and fails if the slot before has anything between them.
    ahead: [SqlStr; SIZES.len()],
    /// Whether the time fits, and the highest message of the slot before.
    highest: SqlStr,
    /// Enters messages in the slot before.
    before: SqlStr,
    /// Enters what this call has entered in the slot before.
    after: SqlStr,
    /// What this call has entered.
    entered: SqlStr,
}

/// How often a guess may be wrong: it is, once a bucket, and again if the answer took longer than a bucket.
const GUESSES: usize = 10;

/// The messages of a list.
const GIVEN: &str = "json_table(?, '$[*]' columns (m varchar(200) character set utf8mb4 path '$')) as given";

/// Whether the time lies in a bucket, and at least so far in it.
const IN_TIME: &str = "{micros} div ? = ? and {micros} mod ? >= ?";
/// Fails unless it does. Without an error nobody could tell a wrong guess from messages that are known.
const FITS: &str = "18446744073709551615 + (not ({in_time}{more})) > 0";
const MICROS: &str = "timestampdiff(microsecond, {epoch}, utc_timestamp(6))";
/// Before a read that sees what is not committed.
pub(super) const DIRTY: &str = "set transaction isolation level read uncommitted";
/// Of how many rows there are texts: each a quarter more than the one before, or one row. Larger batches are looked up one by
/// one.
const SIZES: [usize; 25] =
    [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 25, 32, 40, 50, 64, 80, 100, 125, 160, 200, 250, 320, 400, 500];

/// What [`FITS`] fails with: a number out of its range.
const MISSED: u16 = 1690;
/// The slot was emptied since the transaction's snapshot.
const EMPTIED: u16 = 1412;

/// [`IN_TIME`] in a statement.
pub(super) fn in_time() -> String {
    IN_TIME.replace("{micros}", MICROS)
}

impl SeenSql {
    pub(crate) fn new(names: &Names) -> Self {
        let in_time = in_time();
        let fits_and = |more: &str| FITS.replace("{in_time}", &in_time).replace("{more}", more);
        let fits = fits_and("");
        Self(std::array::from_fn(|slot| {
            let before = before(slot);
            let into = |into: usize| format!("insert ignore into {{seen_{into}}} (consumer, message, entered_by)");
            let insert = |slot: usize, select: &str| {
                names.statement(&format!(
                    "{}
        select {select}",
                    into(slot)
                ))
            };
            // The condition stands in the first row, which is made before any is entered.
            let as_given = |size: usize, condition: &str| {
                let more = ", (?, ?, ?)".repeat(size - 1);
                names.statement(&format!(
                    "{}
        values (?, ?, if({condition}, ?, 0)){more}",
                    into(slot)
                ))
            };
            let clear = fits_and(&format!(
                " and not exists (
            select 1 from {{seen_{before}}} as near where near.consumer = ? and near.message between ? and ?)"
            ));
            let own = |slot: usize| {
                format!(
                    "from {GIVEN} straight_join {{seen_{slot}}} as own force index (primary)
            on own.consumer = ? and own.message = cast(given.m as binary)
        where own.entered_by = ?"
                )
            };
            // Each by primary key.
            Slot {
                one: insert(
                    slot,
                    &format!(
                        "?, ?, ? from dual
        where {fits} and not exists (
            select 1 from {{seen_{before}}} as other where other.consumer = ? and other.message = ?)"
                    ),
                ),
                // A join, since MariaDB makes a table for what a subquery has answered.
                many: insert(
                    slot,
                    &format!(
                        "?, cast(given.m as binary), ?
        from {GIVEN} left join {{seen_{before}}} as other force index (primary)
            on other.consumer = ? and other.message = cast(given.m as binary)
        where {fits} and other.message is null"
                    ),
                ),
                above: SIZES.map(|size| as_given(size, &fits)),
                ahead: SIZES.map(|size| as_given(size, &clear)),
                highest: names.statement(&format!(
                    "select {in_time}, (
            select near.message from {{seen_{before}}} as near force index (primary)
            where near.consumer = ? order by near.message desc limit 1)"
                )),
                before: insert(before, &format!("?, cast(given.m as binary), ? from {GIVEN} where {fits}")),
                after: insert(slot, &format!("own.consumer, own.message, own.entered_by {}", own(before))),
                entered: names.statement(&format!("select own.message {}", own(slot))),
            }
        }))
    }

    /// Every statement with its name.
    #[cfg(test)]
    pub(crate) fn named(&self) -> Vec<(&'static str, &SqlStr)> {
        let slots = self.0.iter();
        let named = slots.map(|slot| {
            [
                ("one", &slot.one),
                ("many", &slot.many),
                ("above", &slot.above[0]),
                ("above", &slot.above[SIZES.len() - 1]),
                ("highest", &slot.highest),
                ("ahead", &slot.ahead[0]),
                ("ahead", &slot.ahead[SIZES.len() - 1]),
                ("before", &slot.before),
                ("after", &slot.after),
                ("entered", &slot.entered),
            ]
        });
        named.flatten().collect()
    }
}

/// Messages of one call.
struct Call<'a> {
    consumer: &'a [u8],
    messages: &'a [&'a str],
    ascending: Vec<&'a str>,
    list: String,
    /// Random, to know its entries by.
    number: u64,
}

type Insert<'q> = Query<'q, MySql, MySqlArguments>;

impl<'q> Call<'q> {
    /// The place of its size.
    fn place(&self) -> usize {
        SIZES.partition_point(|size| *size < self.ascending.len())
    }

    /// The least and the greatest message.
    fn ends(&self) -> [&'q [u8]; 2] {
        [self.ascending.first(), self.ascending.last()].map(|end| end.map_or(&[][..], |message| message.as_bytes()))
    }

    /// Enters all as given by this text, if the time fits and, if it asks for them, nothing lies between these ends.
    fn as_given(&'q self, text: &SqlStr, fits: [i64; 4], ends: &[&'q [u8]]) -> Insert<'q> {
        let [least, greatest] = self.ends();
        let first = bind(sqlx::query(text.clone()).bind(self.consumer).bind(least), fits);
        let first = if ends.is_empty() { first } else { bind(first.bind(self.consumer), ends.iter().copied()) };
        let given = self.ascending.iter().skip(1).map(|message| message.as_bytes());
        let others = given.chain(std::iter::repeat(greatest)).take(SIZES.get(self.place()).map_or(0, |size| size - 1));
        others
            .fold(first.bind(self.number), |insert, message| insert.bind(self.consumer).bind(message).bind(self.number))
    }
}

impl MySqlInbox {
    async fn enter_in(
        &self,
        tx: &mut MySqlConnection,
        consumer: &str,
        messages: &[&str],
    ) -> Result<Vec<bool>, StoreError> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let buckets = self.buckets().await?.ok_or_else(not_agreed)?;
        let ascending = super::ascending(messages);
        let call = Call {
            consumer: consumer.as_bytes(),
            messages,
            list: super::list(&ascending)?,
            ascending,
            number: fastrand::u64(..),
        };
        for _ in 0..GUESSES {
            match self.enter_at(tx, buckets, self.guessed_now(), &call).await {
                Ok(None) => return Ok(vec![true; messages.len()]),
                Ok(Some(entered)) => {
                    let entered: HashSet<&[u8]> = entered.iter().map(Vec::as_slice).collect();
                    return Ok(messages.iter().map(|message| entered.contains(message.as_bytes())).collect());
                }
                Err(error) if error::number(&error) == Some(MISSED) => self.ask_the_time(tx).await.map_err(of)?,
                Err(error) => return Err(of(error)),
            }
        }
        Err(StoreError::new(
            StoreErrorKind::Unavailable,
            "the database's clock was in another bucket at each look: it jumps, or answers take longer than a bucket",
        ))
    }

    /// Enters messages as if it were this time; returns those that were entered, or none if all were.
    async fn enter_at<'q>(
        &self,
        tx: &mut MySqlConnection,
        buckets: Buckets,
        now: Timestamp,
        call: &'q Call<'q>,
    ) -> Result<Option<Vec<Vec<u8>>>, sqlx::Error> {
        let bucket = buckets.number(now);
        let sql = &self.0.sql.seen.0[slot(bucket)];
        let length = buckets.micros();
        let fits = |at_least| [length, bucket, length, at_least];
        let settled = fits(micros(buckets.longest()));
        let mut count = match *call.messages {
            // The slot before is written as well, which does no harm if it is later than guessed.
            _ if buckets.overlaps(now) => {
                let insert = sqlx::query(sql.before.clone()).bind(call.consumer).bind(call.number).bind(&call.list);
                bind(insert, fits(0)).execute(&mut *tx).await?.rows_affected()
            }
            _ if self.is_above(sql, bucket, settled, call).await || self.is_new(buckets, bucket, call) => {
                let insert = call.as_given(&sql.above[call.place()], settled, &[]);
                insert.execute(&mut *tx).await?.rows_affected()
            }
            [message] => {
                let message = message.as_bytes();
                let insert = sqlx::query(sql.one.clone()).bind(call.consumer).bind(message).bind(call.number);
                let insert = bind(insert, settled).bind(call.consumer).bind(message);
                insert.execute(&mut *tx).await?.rows_affected()
            }
            _ => self.enter_many(tx, sql, settled, call).await?,
        };
        if buckets.overlaps(now) && count > 0 {
            let after = sqlx::query(sql.after.clone()).bind(&call.list).bind(call.consumer).bind(call.number);
            count = after.execute(&mut *tx).await?.rows_affected();
        }
        if count == call.messages.len() as u64 || count == 0 {
            return Ok((count == 0).then(Vec::new));
        }
        let entered = sqlx::query(sql.entered.clone()).bind(&call.list).bind(call.consumer).bind(call.number);
        let entered = entered.fetch_all(tx).await?;
        entered.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().map(Some)
    }

    /// Whether all messages lie above those of the slot before. Who can't tell looks them up.
    async fn is_above(&self, sql: &Slot, bucket: i64, settled: [i64; 4], call: &Call<'_>) -> bool {
        if call.place() == SIZES.len() {
            return false;
        }
        let [least, _] = call.ends();
        let told = || self.0.highest.is_below(bucket, call.consumer, least);
        if told().is_none() && self.0.reads.is_worth_a_try() {
            let read = self.read_highest(sql, bucket, settled, call.consumer).await;
            if let Err(error) = &read {
                tracing::debug!(%error, "the highest message of the bucket before was not read");
            }
            self.0.reads.was_tried(read.is_ok());
        }
        told().unwrap_or(false)
    }

    /// Whether none of the messages is in the slot before, as far as that is recalled.
    fn is_new(&self, buckets: Buckets, bucket: i64, call: &Call<'_>) -> bool {
        call.place() < SIZES.len() && self.recalls_none(buckets, bucket, call.consumer, call.messages)
    }

    /// Reads the highest message of the slot before, if the time fits. Others do not wait for that.
    async fn read_highest(
        &self,
        sql: &Slot,
        bucket: i64,
        settled: [i64; 4],
        consumer: &[u8],
    ) -> Result<(), StoreError> {
        // Not in the user's transaction: a lock could have to wait, and its snapshot may be too old.
        let Some(mut entered) = self.0.upkeep.try_enter().await? else { return Ok(()) };
        let line = &mut *entered;
        let read = async {
            for setting in [PATIENCE, DIRTY] {
                sqlx::raw_sql(setting).execute(&mut *line).await?;
            }
            let read = bind(sqlx::query(sql.highest.clone()), settled).bind(consumer);
            let row = read.fetch_one(&mut *line).await?;
            sqlx::raw_sql(NO_PATIENCE).execute(line).await?;
            Ok((row.try_get(0)?, row.try_get(1)?))
        };
        let (fits, highest) = read.await.map_err(error::of)?;
        entered.done();
        if fits {
            self.0.highest.is(bucket, consumer, highest);
        }
        Ok(())
    }

    /// Enters many messages as given if the slot before has nothing between them and that is worth a try, or those that are
    /// new; returns how many.
    async fn enter_many<'q>(
        &self,
        tx: &mut MySqlConnection,
        sql: &Slot,
        settled: [i64; 4],
        call: &'q Call<'q>,
    ) -> Result<u64, sqlx::Error> {
        let ahead = sql.ahead.get(call.place()).filter(|_| self.0.ahead.is_worth_a_try());
        if let Some(text) = ahead {
            match call.as_given(text, settled, &call.ends()).execute(&mut *tx).await {
                Err(error) if error::number(&error) == Some(MISSED) => {}
                done => {
                    let done = done?;
                    self.0.ahead.was_tried(true);
                    return Ok(done.rows_affected());
                }
            }
        }
        let insert = sqlx::query(sql.many.clone()).bind(call.consumer).bind(call.number).bind(&call.list);
        let done = bind(insert.bind(call.consumer), settled).execute(tx).await?;
        // If both have failed, it was for the time, which says nothing of the messages.
        if ahead.is_some() {
            self.0.ahead.was_tried(false);
        }
        Ok(done.rows_affected())
    }

    async fn ask_the_time(&self, tx: &mut MySqlConnection) -> Result<(), sqlx::Error> {
        let row = sqlx::query(self.0.sql.upkeep.clock.clone()).fetch_one(tx).await?;
        let now = Timestamp::from_micros(row.try_get(0)?);
        *self.0.clock.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, Instant::now()));
        Ok(())
    }

    /// The database's time, as far as it is known here; by the host's clock at first. Only what to ask for is chosen by it.
    pub(super) fn guessed_now(&self) -> Timestamp {
        match *self.0.clock.lock().unwrap_or_else(PoisonError::into_inner) {
            Some((told, at)) => told.saturating_add(at.elapsed()),
            None => SystemTime::now().into(),
        }
    }
}

/// Binds several values.
fn bind<'q, T>(insert: Insert<'q>, values: impl IntoIterator<Item = T>) -> Insert<'q>
where
    T: 'q + Encode<'q, MySql> + Type<MySql>,
{
    values.into_iter().fold(insert, Query::bind)
}

fn of(error: sqlx::Error) -> StoreError {
    if error::number(&error) == Some(EMPTIED) {
        let words = "a bucket of the inbox was emptied since the transaction began: run it again";
        return StoreError::new(StoreErrorKind::Conflict, words).caused_by(error);
    }
    error::of(error)
}

fn not_agreed() -> StoreError {
    StoreError::new(
        StoreErrorKind::Schema,
        "the inbox's window was never set: start the inbox before anything is entered",
    )
}

/// A message is entered in a `sqlx` transaction:
///
/// ```no_run
/// # async fn example(inbox: pillarbox_mysql::MySqlInbox) -> Result<(), Box<dyn std::error::Error>> {
/// use pillarbox_core::port::InboxStore as _;
///
/// let mut tx = inbox.store().pool().begin().await?;
/// if inbox.enter(&mut tx, "billing", &["message-7"]).await? == [true] {
///     sqlx::query("insert into invoices ...").execute(&mut *tx).await?;
/// }
/// tx.commit().await?;
/// # Ok(()) }
/// ```
impl InboxStore<Transaction<'_, MySql>> for MySqlInbox {
    fn enter<'a>(
        &'a self,
        tx: &'a mut Transaction<'_, MySql>,
        consumer: &'a str,
        messages: &'a [&'a str],
    ) -> BoxFuture<'a, Result<Vec<bool>, StoreError>> {
        Box::pin(self.enter_in(tx, consumer, messages))
    }
}

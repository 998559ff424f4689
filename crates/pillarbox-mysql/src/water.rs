//! The low-water mark: the number below which nothing can still commit.
//!
//! A row does not tell its transaction, and a number is visible only after the commit. So the reader notes a number
//! that it has seen, and later asks which transactions are open:
//! 1. A page has seen number H. Every number up to H was drawn before that, by a transaction that has ended, or is
//!    open, or is just about to show up in the server's list: a number is drawn a moment before the row is inserted
//!    and the transaction gets its id. That moment is given [`DELAY`].
//! 2. At least that much later the list of open transactions is read. Those with an id are the only ones that can
//!    have drawn a number up to H. Transactions without an id have written nothing: what they will insert draws a
//!    number above H. (One that has drawn its number had the delay to get its id.)
//! 3. When none of these is open any more, nothing at or below H can still commit.
//!
//! The server keeps its list for a tenth of a second after each reading of it, by whomever, and gives the same list
//! again to who asks sooner. So each look carries a word of its own in its text, and only a list in which the look
//! itself is found, with that word, is believed. A list without it is one from before, or the privilege PROCESS is
//! missing: MySQL says so, MariaDB shows an empty list, and then the grants tell.
//!
//! Without the privilege a number is taken as safe when it was seen longer ago than the longest write transaction.
//!
//! What lies between the mark and the newest number is not read again and again: see [`position`](crate::position).

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use pillarbox_core::domain::{PartitionSet, Seq};
use sqlx::{AssertSqlSafe, Executor as _, MySqlConnection, Row as _};

use crate::{
    MySqlStore, error,
    life::{InLife, Life},
    tables::statements,
};

/// How long a transaction may take from drawing a number to showing up in the list.
const DELAY: Duration = Duration::from_millis(500);
/// How often the list is read at the most, and how rarely when others keep it from being made anew.
const PAUSE: Duration = Duration::from_millis(150);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
const PAUSE_WHEN_HIDDEN: Duration = Duration::from_secs(1);
/// How many numbers are under observation at once.
const NOTES: u32 = 64;
/// Ids from here on are made up, for transactions that have none.
const NO_ID: u64 = 1 << 48;

statements!(WaterSql {
    /// All open transactions, and the text of this very statement. In a transaction of its own, so that it is itself
    /// one of them.
    look: "start transaction with consistent snapshot, read only;
        select /* {look} */ cast(trx_id as unsigned),
            if(trx_mysql_thread_id = connection_id(), trx_query, null), trx_mysql_thread_id = connection_id()
        from information_schema.innodb_trx;
        rollback",
});

/// What a look at the list of transactions has shown.
#[derive(Debug)]
pub(crate) enum View {
    /// The ids of those that have one, in ascending order.
    Open(Vec<u64>),
    /// A list from before.
    Old,
    /// The list may not be read.
    Hidden,
}

/// What is known about numbers and transactions. Facts about the database, the same for whoever reads it, in one life of the
/// server: in the next, numbers come again.
#[derive(Clone, Debug)]
pub(crate) struct Water {
    safe: Seq,
    notes: VecDeque<Note>,
    longest: Duration,
    hidden: bool,
    look_at: Option<Instant>,
    pause: Duration,
}

#[derive(Clone, Debug)]
struct Note {
    seq: Seq,
    at: Instant,
    /// The transactions that may have drawn a lower number, once they are known.
    waits_for: Option<Vec<u64>>,
}

impl Water {
    pub(crate) fn new(longest: Duration) -> Self {
        Self { safe: Seq(0), notes: VecDeque::new(), longest, hidden: false, look_at: None, pause: PAUSE }
    }

    /// Nothing at or below this can still commit.
    pub(crate) fn safe(&self) -> Seq {
        self.safe
    }

    /// A number was visible at this time.
    pub(crate) fn note(&mut self, seq: Seq, at: Instant) {
        let spacing = if self.hidden { self.longest / NOTES } else { PAUSE };
        let fresh = self.notes.back().is_none_or(|last| seq > last.seq && at >= last.at + spacing);
        if seq > self.safe && fresh && self.notes.len() < NOTES as usize {
            self.notes.push_back(Note { seq, at, waits_for: None });
        }
    }

    /// Whether it is time to look at the list, and something to be learned from it. Says yes once.
    pub(crate) fn is_time_to_look(&mut self, now: Instant) -> bool {
        let waits = |note: &Note| note.waits_for.is_some() || now >= note.at + DELAY;
        if !self.notes.front().is_some_and(waits) || self.look_at.is_some_and(|at| now < at) {
            return false;
        }
        self.look_at = Some(now + self.pause.mul_f64(0.8 + 0.8 * fastrand::f64()));
        true
    }

    /// A look was sent at this time, and has shown this.
    pub(crate) fn looked(&mut self, sent: Instant, view: &View) {
        match view {
            View::Open(open) => {
                self.pause = PAUSE;
                self.hidden = false;
                for note in &mut self.notes {
                    match &mut note.waits_for {
                        Some(waits_for) => waits_for.retain(|id| open.binary_search(id).is_ok()),
                        None if sent >= note.at + DELAY => note.waits_for = Some(open.clone()),
                        None => {}
                    }
                }
                self.settle(|note| note.waits_for.as_ref().is_some_and(Vec::is_empty));
            }
            // Others read it often: leave it alone for longer, so that it is made anew.
            View::Old => self.pause = (self.pause * 2).min(LONGEST_PAUSE),
            View::Hidden => {
                self.hidden = true;
                self.pause = PAUSE_WHEN_HIDDEN;
                let longest = self.longest;
                self.settle(|note| sent >= note.at + longest);
            }
        }
    }

    /// Whether this look is the first to show that the list may not be read.
    pub(crate) fn is_hidden(&self) -> bool {
        self.hidden
    }

    fn settle(&mut self, over: impl Fn(&Note) -> bool) {
        // Who is through with a later number is through with those before.
        if let Some(last) = self.notes.iter().rposition(over) {
            self.safe = self.safe.max(self.notes[last].seq);
            self.notes.drain(..=last);
        }
    }
}

/// When all pending rows are to be looked at.
#[derive(Clone, Debug)]
pub(crate) struct Sweeps {
    every: Duration,
    last: Option<(Instant, PartitionSet)>,
}

impl Sweeps {
    /// At a takeover, but not more often than this.
    const SPACING: Duration = Duration::from_secs(1);

    pub(crate) fn new(every: Duration) -> Self {
        Self { every, last: None }
    }

    pub(crate) fn is_due(&self, partitions: &PartitionSet, now: Instant) -> bool {
        self.last.as_ref().is_none_or(|(at, swept)| {
            let gained = partitions.iter().any(|partition| !swept.contains(partition));
            now >= *at + if gained { Self::SPACING.min(self.every) } else { self.every }
        })
    }

    pub(crate) fn done(&mut self, partitions: PartitionSet, now: Instant) {
        self.last = Some((now, partitions));
    }
}

impl MySqlStore {
    /// Looks at the open transactions, if it is time to.
    pub(crate) async fn watch_water(&self, connection: &mut MySqlConnection, life: &Life) -> Result<(), sqlx::Error> {
        let sent = Instant::now();
        if !self.water().of(life).is_time_to_look(sent) {
            return Ok(());
        }
        let word = format!("pillarbox {:016x}", fastrand::u64(..));
        let sql = self.0.sql.water.look.as_str().replace("{look}", &word);
        // Text of our own and a random number: nothing else enters.
        let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut *connection).await;
        let view = match rows {
            Ok(rows) => {
                let (mut open, mut old, mut fresh) = (Vec::with_capacity(rows.len()), false, false);
                for row in &rows {
                    let id: u64 = row.try_get_unchecked(0)?;
                    if row.try_get_unchecked::<i64, _>(2)? == 1 {
                        let text: Option<&[u8]> = row.try_get_unchecked(1)?;
                        let found = text.is_some_and(|text| String::from_utf8_lossy(text).contains(&word));
                        fresh |= found;
                        old |= !found;
                    } else if id != 0 && id < NO_ID {
                        open.push(id);
                    }
                }
                open.sort_unstable();
                if fresh {
                    View::Open(open)
                } else if old || !rows.is_empty() || may_look(connection).await? {
                    View::Old
                } else {
                    View::Hidden
                }
            }
            Err(error) if error::number(&error).is_some_and(|number| error::DENIED.contains(&number)) => {
                // The statement failed within the transaction that was begun for it.
                connection.execute("rollback").await?;
                View::Hidden
            }
            Err(error) => return Err(error),
        };
        let mut water = self.water();
        let water = water.of(life);
        let known = water.is_hidden();
        water.looked(sent, &view);
        if matches!(view, View::Hidden) && !known {
            tracing::warn!(
                "the open transactions can't be seen: grant the privilege PROCESS, or see to it that no transaction \
                 that writes events stays open for longer than `longest_write_transaction`"
            );
        }
        Ok(())
    }

    pub(crate) fn water(&self) -> std::sync::MutexGuard<'_, InLife<Water>> {
        self.0.water.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn sweeps(&self) -> std::sync::MutexGuard<'_, InLife<Sweeps>> {
        self.0.sweeps.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Whether the user has the privilege to see all transactions, by himself or by the role that is in force.
async fn may_look(connection: &mut MySqlConnection) -> Result<bool, sqlx::Error> {
    let grants = sqlx::raw_sql("show grants").fetch_all(connection).await?;
    Ok(grants.iter().any(|grant| {
        let text: &[u8] = grant.try_get_unchecked(0).unwrap_or_default();
        let text = String::from_utf8_lossy(text).to_uppercase();
        let (what, on) = text.split_once(" ON *.* ").unwrap_or_default();
        !on.is_empty() && (what.contains("ALL PRIVILEGES") || what.contains("PROCESS") || what.contains("SUPER"))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_mins(5);

    fn at(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    #[test]
    fn a_number_is_safe_when_all_that_were_open_after_the_delay_have_ended() {
        let (mut water, start) = (Water::new(LONGEST), Instant::now());
        water.note(Seq(10), start);
        assert!(!water.is_time_to_look(at(start, 499)), "nothing can be learned yet");
        water.looked(at(start, 499), &View::Open(vec![]));
        assert_eq!(water.safe(), Seq(0), "one that has just drawn its number may not be in the list");
        assert!(water.is_time_to_look(at(start, 500)));
        water.looked(at(start, 500), &View::Open(vec![7, 8]));
        water.note(Seq(20), at(start, 700));
        water.looked(at(start, 800), &View::Open(vec![8, 9]));
        assert_eq!(water.safe(), Seq(0));
        water.looked(at(start, 900), &View::Open(vec![9]));
        assert_eq!(water.safe(), Seq(10), "9 came later, and draws higher numbers");
        water.looked(at(start, 1_300), &View::Open(vec![9]));
        water.looked(at(start, 1_400), &View::Open(vec![10]));
        assert_eq!(water.safe(), Seq(20));
    }

    #[test]
    fn an_old_list_proves_nothing_and_is_left_alone_for_longer() {
        let (mut water, start) = (Water::new(LONGEST), Instant::now());
        water.note(Seq(10), start);
        assert!(water.is_time_to_look(at(start, 600)));
        assert!(!water.is_time_to_look(at(start, 610)), "not before the pause is over");
        for _ in 0..10 {
            water.looked(at(start, 600), &View::Old);
        }
        assert_eq!((water.safe(), water.pause), (Seq(0), LONGEST_PAUSE));
    }

    #[test]
    fn without_the_privilege_age_decides() {
        let (mut water, start) = (Water::new(Duration::from_secs(2)), Instant::now());
        water.note(Seq(10), start);
        water.looked(at(start, 1_999), &View::Hidden);
        assert_eq!(water.safe(), Seq(0));
        water.looked(at(start, 2_000), &View::Hidden);
        assert_eq!(water.safe(), Seq(10));
    }

    #[test]
    fn a_transaction_that_stays_open_costs_a_bounded_number_of_notes() {
        let (mut water, start) = (Water::new(LONGEST), Instant::now());
        for n in 1..1_000 {
            water.note(Seq(n), at(start, u64::try_from(n).unwrap() * 200));
            water.looked(at(start, u64::try_from(n).unwrap() * 200 + 100), &View::Open(vec![3]));
        }
        assert_eq!(water.safe(), Seq(0));
        assert!(water.notes.len() <= NOTES as usize);
        water.looked(at(start, 300_000), &View::Open(vec![]));
        assert!(water.safe() > Seq(50));
    }
}

//! Events with a key on the hot path.
//!
//! The writer has the event in memory, and needs no read to deliver it. What it does not know is whether an earlier event of
//! the same key lies in the table, written by somebody else. So the table is asked *while the transaction is still open*: who
//! writes an event with a key holds its aggregate's lock, so nothing of the key can be committed between the insert and the
//! commit, and a read that begins after the insert shows all that comes before it. There are two such reads:
//!
//! - Of one or two events it is asked what of their keys is pending above the node's mark: a few rows by the key's index, which
//!   takes a fraction of a page. Nothing below the mark can be: what is put off or held there is known to the lanes. There is
//!   nothing in most cases; and what this node has in flight is in the event's lane, or was, so that the event needs only to
//!   take its place behind it.
//! - Where there are more, or something was found that is not known here, a page is read to the end of the table.
//!
//! When that is done and the commit is known, in whichever order, the event goes to its lane as if it had been read. Question
//! and page may overlap, and whichever is answered first counts: both say that the lanes know all that comes before.
//!
//! - A page that shows the row itself, because the commit came first, takes it: it is **expected** no longer. The row need
//!   not be read for that, for what is expected is here; it takes its place among the rows that were. When that is the
//!   first, no worker gets it before its writer knows of the commit, or nobody will tell, or the time of a reservation is over:
//!   a database may show what is not yet on its disk. One behind others comes when they are done.
//! - Of several events of one key in one transaction only the first is expected, and none while another transaction of this
//!   process has written the key and its end is not known: the page shows neither the one nor the other.
//! - When nobody tells a transaction's end, it may still be open, and may write more of its keys. Until the mark has passed
//!   its numbers, nothing is expected at all.
//!
//! What is not expected is read after its commit, as it would be in any other process. Nothing here is needed to find a row
//! again, so nothing is lost with it: not by a crash, and not when the lease is lost.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;
use tokio::time::{Duration, Instant};

use super::{Entry, Flight, Job, NOWHERE, Signals, State, lanes::Placed, reserve::Confirmed};
use crate::{
    domain::{Delivery, Epoch, Key, Partition, PartitionSet, Record, Seq},
    engine::settings::Settings,
    port::{Candidate, Row},
};

/// What was written and may go the hot path, and what keeps others from it.
#[derive(Debug, Default)]
pub(super) struct Keyed {
    /// Nothing is expected if pages leave out what is young.
    shows_all: bool,
    expected: FxHashMap<Seq, Expected>,
    /// Those that nobody has seen to yet. In their order, so that a schedule of the simulation is the same every time.
    unseen: BTreeSet<Seq>,
    /// Those that are committed before it is known what comes before them.
    confirmed: Vec<Seq>,
    /// What the page under way has shown, and was not read for that.
    shown: Vec<Record>,
    /// What pages have shown before its writer knew of the commit.
    early: FxHashMap<Seq, Early>,
    /// For how long they wait for its word.
    patience: Duration,
    /// The keys of open transactions, each with the number of batches that have it.
    open: FxHashMap<Key, usize>,
    /// The highest number of a transaction whose end nobody told.
    adrift: Option<Seq>,
    /// How many pages were begun, and the last of them that was read to the end of the table.
    begun: u64,
    whole: u64,
}

#[derive(Debug)]
struct Expected {
    partition: Partition,
    epoch: Epoch,
    /// The first page that shows everything before it.
    page: u64,
    /// Nothing of its key comes before it but what the lanes know.
    is_next: bool,
    job: Job,
    is_committed: bool,
}

#[derive(Debug)]
struct Early {
    /// When it waits for its writer's word no longer.
    until: Instant,
    /// Once it is placed, and it is its key's turn.
    job: Option<Job>,
}

/// What is to be done about those that are expected.
#[derive(Debug)]
pub(crate) enum Before {
    /// Nothing.
    Known,
    /// To ask for what comes before one of them.
    Ask(Ask),
    /// To read a page.
    Page,
}

/// A question for the first pending rows of a key from a number on: none that is not known here should come before this
/// event.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) seq: Seq,
    pub(crate) partition: Partition,
    pub(crate) key: Key,
    pub(crate) from: Seq,
}

impl Ask {
    /// How many rows are asked for. Where one event of a key follows another closely, the one before is not settled yet.
    pub(crate) const ROWS: usize = 4;

    /// More events than this at once are quicker read together, by a page.
    const AT_ONCE: usize = 2;
}

/// An event with a key in an open transaction, as its writer knows it.
#[derive(Clone, Debug)]
pub(crate) struct OfKey {
    pub(crate) key: Key,
    pub(crate) seq: Seq,
    /// It was expected when it was written.
    pub(crate) is_expected: bool,
}

impl Keyed {
    pub(super) fn new(settings: &Settings) -> Self {
        Self { shows_all: settings.skip_recent.is_zero(), patience: settings.reservation_ttl, ..Self::default() }
    }

    /// It is expected no longer.
    pub(super) fn take(&mut self, seq: Seq) {
        self.expected.remove(&seq);
    }

    pub(super) fn clear(&mut self) {
        self.expected.clear();
        self.unseen.clear();
        self.confirmed.clear();
        self.shown.clear();
        self.early.clear();
    }

    pub(super) fn forget(&mut self, partitions: &PartitionSet) {
        self.expected.retain(|_, expected| !partitions.contains(expected.partition));
        let is_forgotten = |job: &Job| partitions.contains(job.delivery.record().partition);
        self.early.retain(|_, early| !early.job.as_ref().is_some_and(is_forgotten));
    }

    /// Keeps a job back whose commit the writer does not know yet, or gives it.
    pub(super) fn keep_back(&mut self, job: Job) -> Option<Job> {
        match self.early.get_mut(&job.delivery.seq()) {
            Some(early) => {
                early.job = Some(job);
                None
            }
            None => Some(job),
        }
    }

    /// When those that wait for their writer's word wait no longer.
    pub(super) fn patience_ends(&self) -> Option<Instant> {
        self.early.values().map(|early| early.until).min()
    }

    /// Everything up to here is visible, or never will be.
    pub(super) fn pass(&mut self, mark: Seq) {
        self.adrift.take_if(|adrift| *adrift <= mark);
    }
}

impl Flight {
    /// An event with a key is written, and its transaction is open. Whether it is expected: then the scout should see
    /// what comes [before](Self::before_expected) it.
    pub(crate) fn expect(&mut self, key: &Key, record: Record, written: Instant) -> bool {
        let batches = self.keyed.open.entry(key.clone()).or_default();
        *batches += 1;
        if !self.keyed.shows_all || *batches > 1 || self.keyed.adrift.is_some() || !self.has_idle_workers() {
            return false;
        }
        let (seq, partition) = (record.seq, record.partition);
        let Some(epoch) = self.owned.epoch(partition) else { return false };
        let (page, job) = (self.keyed.begun + 1, Job { delivery: Delivery::new(record, epoch), written });
        self.keyed.expected.insert(seq, Expected { partition, epoch, page, is_next: false, job, is_committed: false });
        self.keyed.unseen.insert(seq);
        true
    }

    /// What is to be done to know what comes before those that are expected. Each of them is told of once.
    pub(crate) fn before_expected(&mut self) -> Before {
        let Keyed { expected, unseen, whole, .. } = &mut self.keyed;
        unseen.retain(|seq| expected.get(seq).is_some_and(|expected| expected.page > *whole));
        if unseen.is_empty() {
            return Before::Known;
        }
        if unseen.len() <= Ask::AT_ONCE
            && self.durable != NOWHERE
            && let Some(seq) = unseen.pop_first()
            && let Some(first) = expected.get(&seq)
            && let Some(key) = first.job.delivery.event().key().cloned()
        {
            return Before::Ask(Ask { seq, partition: first.partition, key, from: Seq(self.durable.0 + 1) });
        }
        unseen.clear();
        Before::Page
    }

    /// The table's answer to a question: the numbers that were found, or that it could not be asked.
    pub(crate) fn asked(&mut self, ask: &Ask, found: Option<&[Seq]>, now: Instant) -> (Confirmed, Signals) {
        let (mut confirmed, mut signals) = (Confirmed::default(), Signals::default());
        let Some(expected) = self.keyed.expected.get_mut(&ask.seq) else { return (confirmed, signals) };
        // What was settled since the table was read is not known any more, and takes a page.
        let is_known = |seq: &Seq| self.entries.contains_key(seq);
        let is_next = found.is_some_and(|found| {
            // It may be committed by now, and show itself.
            let before = found.iter().take_while(|seq| **seq < ask.seq).count();
            before < Ask::ROWS && found[..before].iter().all(is_known)
        });
        if !is_next {
            signals.reader = true;
            return (confirmed, signals);
        }
        expected.is_next = true;
        if expected.is_committed {
            self.place_expected(ask.seq, now, &mut confirmed, &mut signals);
        }
        signals.workers = confirmed.enqueued.min(self.idle_workers);
        (confirmed, signals)
    }

    /// The end of a transaction is known: it keeps nobody from its keys any more.
    pub(super) fn ended(&mut self, of_keys: &[OfKey]) {
        for OfKey { key, .. } in of_keys {
            if let Some(batches) = self.keyed.open.get_mut(key) {
                *batches -= 1;
                if *batches == 0 {
                    self.keyed.open.remove(key);
                }
            }
        }
    }

    /// Nobody will tell the end of a transaction that has written these.
    pub(super) fn set_adrift(&mut self, of_keys: &[OfKey]) {
        self.keyed.adrift = self.keyed.adrift.max(of_keys.iter().map(|of_key| of_key.seq).max());
    }

    /// There will be no rows, or nobody will tell. What a page has shown stays with the reader.
    pub(super) fn expect_no_longer(&mut self, of_keys: &[OfKey], signals: &mut Signals) {
        for of_key in of_keys {
            self.keyed.take(of_key.seq);
            self.let_go(of_key.seq, signals);
        }
        self.ended(of_keys);
    }

    /// What a page has shown waits for its writer no longer.
    fn let_go(&mut self, seq: Seq, signals: &mut Signals) {
        if let Some(job) = self.keyed.early.remove(&seq).and_then(|early| early.job) {
            self.enqueue(job, signals);
            signals.workers = signals.workers.min(self.idle_workers);
        }
    }

    /// The same for all that have waited for too long.
    pub(super) fn let_go_of_the_late(&mut self, now: Instant, signals: &mut Signals) {
        let over = self.keyed.early.iter().filter(|(_, early)| early.until <= now);
        let over: Vec<Seq> = over.map(|(seq, _)| *seq).collect();
        over.into_iter().for_each(|seq| self.let_go(seq, signals));
    }

    /// The transaction is committed, in which this was expected.
    pub(super) fn confirm_keyed(&mut self, seq: Seq, now: Instant, confirmed: &mut Confirmed, signals: &mut Signals) {
        let Some(expected) = self.keyed.expected.get_mut(&seq) else {
            // The reader has it, or the partition is another's.
            signals.reader |= !self.entries.contains_key(&seq);
            self.let_go(seq, signals);
            return;
        };
        if expected.is_next || expected.page <= self.keyed.whole {
            self.place_expected(seq, now, confirmed, signals);
        } else {
            expected.is_committed = true;
            self.keyed.confirmed.push(seq);
        }
    }

    /// A page is about to be read.
    pub(crate) fn begin_page(&mut self) {
        self.begin_read();
        self.keyed.begun += 1;
        self.page_begins_again();
    }

    /// The reader's word on a row of a page. What is expected is wanted, and need not be read.
    pub(crate) fn wants_of_page(&mut self, candidate: Candidate<'_>, now: Instant) -> bool {
        if !self.wants(candidate, now) {
            return false;
        }
        let Some(expected) = self.keyed.expected.remove(&candidate.seq) else { return true };
        if !expected.is_committed {
            self.keyed.early.insert(candidate.seq, Early { until: now + self.keyed.patience, job: None });
        }
        self.keyed.shown.push(expected.job.delivery.into_record());
        false
    }

    /// The rows of the page are asked for anew. Those it has shown are read now: what lies before them may be another page's.
    pub(crate) fn page_begins_again(&mut self) {
        self.keyed.shown.clear();
        self.keyed.early.retain(|_, early| early.job.is_some());
    }

    /// The rows of a page, with those that it has shown and that were not read, in the order of their numbers.
    pub(crate) fn with_shown(&mut self, mut rows: Vec<Row>) -> Vec<Row> {
        if !self.keyed.shown.is_empty() {
            rows.extend(self.keyed.shown.drain(..).map(Row::Event));
            rows.sort_by_key(Row::seq);
        }
        rows
    }

    /// A page is read and its rows are placed; `whole` says that it came to the end of the table. What was committed and
    /// waited for it goes to the workers.
    pub(crate) fn page_is_read(&mut self, whole: bool, now: Instant) -> (Confirmed, Signals) {
        let (mut confirmed, mut signals) = (Confirmed::default(), Signals::default());
        if whole {
            self.keyed.whole = self.keyed.begun;
        }
        // The others did not find their way to a lane, or it is not their turn.
        self.keyed.early.retain(|_, early| early.job.is_some());
        let mut waiting = std::mem::take(&mut self.keyed.confirmed);
        waiting.sort_unstable();
        for seq in waiting {
            let Some(expected) = self.keyed.expected.get(&seq) else { continue };
            if expected.page > self.keyed.begun {
                self.keyed.confirmed.push(seq);
            } else if whole && expected.is_committed {
                self.place_expected(seq, now, &mut confirmed, &mut signals);
            } else {
                // The next page shows the row.
                self.keyed.take(seq);
                signals.reader = true;
            }
        }
        signals.workers = confirmed.enqueued.min(self.idle_workers);
        (confirmed, signals)
    }

    /// Brings an expected event to its lane, and to the hot queue when it is its key's turn.
    fn place_expected(&mut self, seq: Seq, now: Instant, confirmed: &mut Confirmed, signals: &mut Signals) {
        let Some(Expected { partition, epoch, job, .. }) = self.keyed.expected.remove(&seq) else { return };
        if self.owned.epoch(partition) != Some(epoch) {
            signals.reader = true;
            return;
        }
        if self.queues.is_hot_full() {
            confirmed.dropped(&job);
            signals.reader = true;
            return;
        }
        let placed = match job.delivery.event().key().cloned() {
            Some(key) => self.lanes.place(&key, job, now),
            None => Placed::Ready(job),
        };
        match placed {
            Placed::Ready(job) => {
                // There is room: it was asked for above.
                let _ = self.queues.offer_hot(job);
                confirmed.enqueued += 1;
            }
            Placed::Parked => {}
            Placed::LeftBeyond => {
                signals.reader |= self.lanes.is_waiting();
                return;
            }
        }
        self.entries.insert(seq, Entry { partition, epoch, state: State::Waiting });
    }
}

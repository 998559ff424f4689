//! Events with a key on the hot path.
//!
//! The writer has the event in memory, and needs no read to deliver it. What it does not know is whether an earlier event of
//! the same key lies in the table, written by somebody else. So a page is read *while the transaction is still open*: who
//! writes an event with a key holds its aggregate's lock, so nothing of the key can be committed between the insert and the
//! commit, and a page that begins after the insert shows all that comes before it. When that page has been read to
//! the end of the table and the commit is known, in whichever order, the event goes to its lane as if it had been read.
//!
//! - A page that shows the row itself, because the commit came first, takes it: it is **expected** no longer.
//! - Of several events of one key in one transaction only the first is expected, and none while another transaction of this
//!   process has written the key and its end is not known: the page shows neither the one nor the other.
//! - When nobody tells a transaction's end, it may still be open, and may write more of its keys. Until the mark has passed
//!   its numbers, nothing is expected at all.
//!
//! What is not expected is read after its commit, as it would be in any other process. Nothing here is needed to find a row
//! again, so nothing is lost with it: not by a crash, and not when the lease is lost.

use rustc_hash::FxHashMap;
use tokio::time::Instant;

use super::{Entry, Flight, Job, Signals, State, lanes::Placed, reserve::Confirmed};
use crate::domain::{Epoch, Key, Partition, PartitionSet, Seq};

/// What was written and may go the hot path, and what keeps others from it.
#[derive(Debug, Default)]
pub(super) struct Keyed {
    /// Nothing is expected if pages leave out what is young.
    shows_all: bool,
    expected: FxHashMap<Seq, Expected>,
    /// Those that are committed, and wait for their page.
    confirmed: Vec<Seq>,
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
    /// The transaction is committed.
    job: Option<Job>,
}

impl Keyed {
    /// `shows_all` is whether a page shows everything that is committed, however young.
    pub(super) fn new(shows_all: bool) -> Self {
        Self { shows_all, ..Self::default() }
    }

    /// It is expected no longer: the reader has the row, or there will be none, or nobody will tell.
    pub(super) fn take(&mut self, seq: Seq) {
        self.expected.remove(&seq);
    }

    pub(super) fn clear(&mut self) {
        self.expected.clear();
        self.confirmed.clear();
    }

    pub(super) fn forget(&mut self, partitions: &PartitionSet) {
        self.expected.retain(|_, expected| !partitions.contains(expected.partition));
    }

    /// Everything up to here is visible, or never will be.
    pub(super) fn pass(&mut self, mark: Seq) {
        self.adrift.take_if(|adrift| *adrift <= mark);
    }
}

impl Flight {
    /// An event with a key is written, and its transaction is open. The epoch under which it is expected, if it is: then the
    /// reader should begin a page.
    pub(crate) fn expect(&mut self, key: &Key, seq: Seq, partition: Partition) -> Option<Epoch> {
        let batches = self.keyed.open.entry(key.clone()).or_default();
        *batches += 1;
        if !self.keyed.shows_all || *batches > 1 || self.keyed.adrift.is_some() || !self.has_idle_workers() {
            return None;
        }
        let epoch = self.owned.epoch(partition)?;
        let page = self.keyed.begun + 1;
        self.keyed.expected.insert(seq, Expected { partition, epoch, page, job: None });
        Some(epoch)
    }

    /// The end of a transaction is known: it keeps nobody from its keys any more.
    pub(crate) fn ended<'a>(&mut self, keys: impl IntoIterator<Item = &'a Key>) {
        for key in keys {
            if let Some(batches) = self.keyed.open.get_mut(key) {
                *batches -= 1;
                if *batches == 0 {
                    self.keyed.open.remove(key);
                }
            }
        }
    }

    /// Nobody will tell the end of a transaction that has written up to this number.
    pub(crate) fn set_adrift(&mut self, seq: Seq) {
        self.keyed.adrift = self.keyed.adrift.max(Some(seq));
    }

    /// The transaction is committed.
    pub(super) fn confirm_keyed(&mut self, job: Job, now: Instant, confirmed: &mut Confirmed, signals: &mut Signals) {
        let seq = job.delivery.seq();
        let Some(expected) = self.keyed.expected.get_mut(&seq) else {
            // The reader has it, or the partition is another's.
            signals.reader = true;
            return;
        };
        if expected.page <= self.keyed.whole {
            self.place_expected(seq, job, now, confirmed, signals);
        } else {
            expected.job = Some(job);
            self.keyed.confirmed.push(seq);
        }
    }

    /// A page is about to be read.
    pub(crate) fn begin_page(&mut self) {
        self.begin_read();
        self.keyed.begun += 1;
    }

    /// A page is read and its rows are placed; `whole` says that it came to the end of the table. What was committed and
    /// waited for it goes to the workers.
    pub(crate) fn page_is_read(&mut self, whole: bool, now: Instant) -> (Confirmed, Signals) {
        let (mut confirmed, mut signals) = (Confirmed::default(), Signals::default());
        if whole {
            self.keyed.whole = self.keyed.begun;
        }
        let mut waiting = std::mem::take(&mut self.keyed.confirmed);
        waiting.sort_unstable();
        for seq in waiting {
            let Some(expected) = self.keyed.expected.get_mut(&seq) else { continue };
            if expected.page > self.keyed.begun {
                self.keyed.confirmed.push(seq);
            } else if let Some(job) = expected.job.take().filter(|_| whole) {
                self.place_expected(seq, job, now, &mut confirmed, &mut signals);
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
    fn place_expected(&mut self, seq: Seq, job: Job, now: Instant, confirmed: &mut Confirmed, signals: &mut Signals) {
        let Some(Expected { partition, epoch, .. }) = self.keyed.expected.remove(&seq) else { return };
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

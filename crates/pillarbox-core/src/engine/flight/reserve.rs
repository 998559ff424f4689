//! The writer's side: numbers that are written and not known to be committed. For those of events with a key see `keyed`.

use rustc_hash::FxHashMap;
use tokio::time::Instant;

use super::{Entry, Flight, Job, OfKey, Signals, State};
use crate::domain::{Epoch, EventId, Partition, Seq};

/// What a confirmed write led to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Confirmed {
    pub(crate) enqueued: usize,
    pub(crate) dropped: usize,
    pub(crate) first_dropped: Option<EventId>,
}

impl Confirmed {
    /// The queue is full: the reader will deliver it.
    pub(super) fn dropped(&mut self, job: &Job) {
        self.dropped += 1;
        self.first_dropped.get_or_insert(job.delivery.event().id());
    }
}

/// Reserved numbers, and those of them that must be looked up.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    open: FxHashMap<Seq, Reservation>,
    /// Numbers that the reader passed over because they were reserved, and that nobody confirmed.
    missed: Vec<Seq>,
}

#[derive(Debug)]
struct Reservation {
    partition: Partition,
    epoch: Epoch,
    expires: Instant,
    /// The reader has seen the row and left it alone.
    passed: bool,
}

impl Reservations {
    /// Whether the reader must leave a row alone, which it notes.
    pub(super) fn pass_over(&mut self, seq: Seq) -> bool {
        match self.open.get_mut(&seq) {
            Some(reservation) => {
                reservation.passed = true;
                true
            }
            None => false,
        }
    }

    pub(super) fn contains(&self, seq: Seq) -> bool {
        self.open.contains_key(&seq)
    }

    /// The lowest number that only this memory knows of.
    pub(super) fn lowest(&self) -> Option<Seq> {
        self.open.keys().chain(&self.missed).min().copied()
    }

    pub(super) fn clear(&mut self) {
        self.open.clear();
        self.missed.clear();
    }

    /// Nobody will confirm it: if the reader has passed the row, it must be looked up.
    fn abandon(&mut self, seq: Seq) {
        if self.open.remove(&seq).is_some_and(|reservation| reservation.passed) {
            self.missed.push(seq);
        }
    }
}

impl Flight {
    /// Reserves a number that was written and is not yet committed.
    pub(crate) fn reserve(&mut self, seq: Seq, partition: Partition, expires: Instant) -> Option<Epoch> {
        let epoch = self.owned.epoch(partition)?;
        self.reservations.open.insert(seq, Reservation { partition, epoch, expires, passed: false });
        Some(epoch)
    }

    /// The transaction is committed: live reservations become hot jobs, and so does what was expected; whatever else is left
    /// to the reader.
    pub(crate) fn confirm(&mut self, jobs: Vec<Job>, of_keys: &[OfKey], now: Instant) -> (Confirmed, Signals) {
        let mut confirmed = Confirmed::default();
        let mut signals = Signals::default();
        for of_key in of_keys.iter().filter(|of_key| of_key.is_expected) {
            self.confirm_keyed(of_key.seq, now, &mut confirmed, &mut signals);
        }
        self.ended(of_keys);
        for job in jobs {
            let seq = job.delivery.seq();
            let live = self.reservations.open.get(&seq).and_then(|reservation| {
                let Reservation { partition, epoch, .. } = *reservation;
                let live = epoch == job.delivery.fencing_token() && self.owned.epoch(partition) == Some(epoch);
                live.then_some((partition, epoch))
            });
            let Some((partition, epoch)) = live else {
                signals.reader = true;
                continue;
            };
            if let Err(job) = self.queues.offer_hot(job) {
                self.reservations.abandon(seq);
                confirmed.dropped(&job);
                signals.reader = true;
            } else {
                self.reservations.open.remove(&seq);
                self.entries.insert(seq, Entry { partition, epoch, state: State::Waiting });
                confirmed.enqueued += 1;
            }
        }
        signals.workers = (signals.workers + confirmed.enqueued).min(self.idle_workers);
        (confirmed, signals)
    }

    /// The transaction is rolled back: there will be no rows.
    pub(crate) fn rolled_back(&mut self, seqs: impl IntoIterator<Item = Seq>, of_keys: &[OfKey]) -> Signals {
        let mut signals = Signals::default();
        for seq in seqs {
            self.reservations.open.remove(&seq);
        }
        self.expect_no_longer(of_keys, &mut signals);
        signals
    }

    /// Nobody will tell the end of the transaction: the rows are left to the reader.
    pub(crate) fn abandon(&mut self, seqs: impl IntoIterator<Item = Seq>, of_keys: &[OfKey]) -> Signals {
        let mut signals = Signals { reader: true, ..Signals::default() };
        for seq in seqs {
            self.reservations.abandon(seq);
        }
        self.expect_no_longer(of_keys, &mut signals);
        self.set_adrift(of_keys);
        signals
    }

    /// Reservations that are over become lookups, and what waits for its writer's word waits no longer. Returns the lookups
    /// to do, and when the next one is over.
    pub(crate) fn lookups(&mut self, now: Instant, limit: usize) -> (Vec<Seq>, Option<Instant>, Signals) {
        let mut signals = Signals::default();
        self.let_go_of_the_late(now, &mut signals);
        let reservations = &mut self.reservations;
        let over = reservations.open.iter().filter(|(_, reservation)| reservation.expires <= now);
        let over: Vec<Seq> = over.map(|(seq, _)| *seq).collect();
        for seq in over {
            reservations.abandon(seq);
        }
        let next =
            reservations.open.values().map(|reservation| reservation.expires).chain(self.keyed.patience_ends()).min();
        let take = reservations.missed.len().min(limit);
        // They stay in `missed` until they are placed: the stored position must not pass them meanwhile.
        (reservations.missed[..take].to_vec(), next, signals)
    }

    /// These lookups are done, and found these rows. The lease may have been lost meanwhile, and what was missed with
    /// it. What lies in a partition that is being given up was not placed: it is missed still, so that the mark which
    /// is handed on stays below it.
    pub(crate) fn looked_up(&mut self, seqs: &[Seq], found: &[(Seq, Partition)]) {
        let owned = &self.owned;
        let put_off = |seq: &Seq| found.iter().any(|(of, partition)| of == seq && owned.is_leaving(*partition));
        self.reservations.missed.retain(|seq| !seqs.contains(seq) || put_off(seq));
    }
}

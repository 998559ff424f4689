//! What this node has in flight: the memory that stands where other outboxes have claims.
//!
//! One lock guards it all, because its parts must agree at every moment: the partitions that are owned, the
//! entries of events between their reading (or reservation) and their settling, the lanes, the queues, and
//! the outcomes that wait to be settled. Nothing here does I/O; whoever changes something gets [`Signals`]
//! that tell whom to wake.
//!
//! Two races end here (see `docs/guarantees.md`):
//! - A read begins, a settle removes row 42, and the read's rows arrive with 42 in them. Numbers that are
//!   settled while a read is under way stay as **tombstones** until that read is processed.
//! - A row is visible before its writer has said that it is committed. The writer **reserves** the number
//!   when it gets it, which is before the commit; the reader passes reserved rows over and notes that it did,
//!   so that a reservation which is never confirmed is looked up by its number.

mod lanes;
mod owned;
mod queues;
#[cfg(test)]
mod tests;

use rustc_hash::{FxHashMap, FxHashSet};
use tokio::time::{Duration, Instant};

use self::lanes::{Lanes, Placed};
pub(crate) use self::{
    lanes::{Fetch, Then},
    owned::Owned,
    queues::{Job, Queues},
};
use crate::{
    domain::{Delivery, Epoch, EventId, Failure, Key, Partition, PartitionSet, Seq, Timestamp},
    port::{Batch, Candidate, Change, Hold, HoldChange, Position, Recall, Released, Row, Settlement, Taken},
};

/// Whom to wake after a change.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "one flag a bell")]
pub(crate) struct Signals {
    /// So many workers.
    pub(crate) workers: usize,
    /// The worker for suspects.
    pub(crate) solo: bool,
    /// The reader.
    pub(crate) reader: bool,
    /// The settler: there is a first outcome.
    pub(crate) settler: bool,
    /// The settler: there are enough outcomes for a full batch.
    pub(crate) full_batch: bool,
}

/// Farther than any wait that matters, and near enough not to overflow an instant.
const FAR: Duration = Duration::from_hours(1);

/// The position of a node that owns nothing yet: above that of every partition it may take.
const NOWHERE: Position = Position {
    seq: Seq(i64::MAX),
    token: None,
};

#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) owned: Owned,
    pub(crate) queues: Queues,
    entries: FxHashMap<Seq, Entry>,
    tombstones: FxHashSet<Seq>,
    reading: bool,
    /// Numbers that the reader passed over because they were reserved, and that nobody confirmed.
    missed: Vec<Seq>,
    suspects: FxHashSet<Seq>,
    lanes: Lanes,
    outcomes: Vec<Settlement>,
    /// Events started and not settled, by partition: a partition is given up when it has none.
    busy: Box<[u32; Partition::COUNT]>,
    position: Position,
    stored_position: Option<Position>,
    /// The last position known to be durable and right, whatever became of later settles.
    durable: Position,
    /// The partitions whose holds a settle under way changes.
    holds_under_way: PartitionSet,
    /// When the next of the events that this node has put off comes due.
    next_due: Option<Instant>,
    /// A settle that stores a position is under way.
    storing_position: bool,
    wants_room: bool,
    idle_workers: usize,
    settle_batch: usize,
    unsettled_limit: usize,
}

#[derive(Debug)]
struct Entry {
    partition: Partition,
    epoch: Epoch,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// Written, and not known to be committed.
    Reserved { expires: Instant, passed: bool },
    /// In a queue or parked in a lane.
    Waiting,
    /// With a worker.
    Running,
    /// Among the outcomes, or in a settle under way.
    Unsettled,
}

/// What a confirmed write led to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Confirmed {
    pub(crate) enqueued: usize,
    pub(crate) dropped: usize,
    pub(crate) first_dropped: Option<EventId>,
}

/// What became of the rows of a read.
#[derive(Debug, Default)]
pub(crate) struct PlacedRows {
    pub(crate) ready: u64,
    pub(crate) broken: Vec<(Seq, String)>,
    pub(crate) signals: Signals,
}

/// How a delivery ended, for the table and for the key.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) change: Change,
    pub(crate) then: Then,
}

impl Flight {
    pub(crate) fn new(settings: &super::settings::Settings) -> Self {
        Self {
            owned: Owned::default(),
            queues: Queues::new(settings.hot_capacity, settings.cold_capacity),
            entries: FxHashMap::default(),
            tombstones: FxHashSet::default(),
            reading: false,
            missed: Vec::new(),
            suspects: FxHashSet::default(),
            lanes: Lanes::new(settings.lane_capacity, settings.cold_capacity),
            outcomes: Vec::new(),
            busy: Box::new([0; Partition::COUNT]),
            position: NOWHERE,
            stored_position: None,
            durable: NOWHERE,
            holds_under_way: PartitionSet::EMPTY,
            next_due: None,
            storing_position: false,
            wants_room: false,
            idle_workers: 0,
            settle_batch: settings.settle_batch,
            unsettled_limit: settings.unsettled_limit(),
        }
    }

    // ---- writer ----

    /// Reserves a number that was written and is not yet committed.
    pub(crate) fn reserve(&mut self, seq: Seq, partition: Partition, expires: Instant) -> Option<Epoch> {
        let epoch = self.owned.epoch(partition)?;
        self.entries.insert(
            seq,
            Entry {
                partition,
                epoch,
                state: State::Reserved { expires, passed: false },
            },
        );
        Some(epoch)
    }

    /// The transaction is committed: live reservations become hot jobs, whatever else is left to the reader.
    pub(crate) fn confirm(&mut self, jobs: Vec<Job>) -> (Confirmed, Signals) {
        let mut confirmed = Confirmed::default();
        let mut signals = Signals::default();
        for job in jobs {
            let (seq, partition, epoch) =
                (job.delivery.seq(), job.delivery.record().partition, job.delivery.fencing_token());
            let live = self.owned.epoch(partition) == Some(epoch)
                && self
                    .entries
                    .get(&seq)
                    .is_some_and(|entry| matches!(entry.state, State::Reserved { .. }));
            if !live {
                signals.reader = true;
                continue;
            }
            if let Err(job) = self.queues.offer_hot(job) {
                self.abandon(seq);
                confirmed.dropped += 1;
                confirmed.first_dropped.get_or_insert(job.delivery.event().id());
                signals.reader = true;
            } else {
                self.entries.insert(
                    seq,
                    Entry {
                        partition,
                        epoch,
                        state: State::Waiting,
                    },
                );
                confirmed.enqueued += 1;
            }
        }
        signals.workers = confirmed.enqueued.min(self.idle_workers);
        (confirmed, signals)
    }

    /// The transaction is rolled back: the row will never be.
    pub(crate) fn rolled_back(&mut self, seq: Seq) {
        if self
            .entries
            .get(&seq)
            .is_some_and(|entry| matches!(entry.state, State::Reserved { .. }))
        {
            self.entries.remove(&seq);
        }
    }

    /// Nobody will confirm this reservation: if the reader has passed the row, it must be looked up.
    pub(crate) fn abandon(&mut self, seq: Seq) {
        if let Some(Entry {
            state: State::Reserved { passed, .. },
            ..
        }) = self.entries.get(&seq)
        {
            if *passed {
                self.missed.push(seq);
            }
            self.entries.remove(&seq);
        }
    }

    // ---- reader ----

    /// A read begins. Reads don't overlap: one task does them all.
    pub(crate) fn begin_read(&mut self) {
        self.reading = true;
    }

    /// The read's rows are placed.
    pub(crate) fn end_read(&mut self) {
        self.reading = false;
        self.tombstones.clear();
    }

    /// The reader's word on a row.
    pub(crate) fn wants(&mut self, candidate: Candidate<'_>, now: Instant) -> bool {
        if let Some(entry) = self.entries.get_mut(&candidate.seq) {
            if let State::Reserved { passed, .. } = &mut entry.state {
                *passed = true;
            }
            return false;
        }
        if self.tombstones.contains(&candidate.seq) || !self.owned.is_active(candidate.partition) {
            return false;
        }
        candidate
            .key
            .is_none_or(|key| !self.lanes.pass_over(key, candidate.seq, now))
    }

    /// Brings rows that were read, in their order, into the queues and lanes. Those that can't be decoded
    /// become dead, and hold their key if `hold` says so.
    pub(crate) fn place(&mut self, rows: Vec<Row>, now: Instant, database_now: Timestamp, hold: bool) -> PlacedRows {
        let mut placed = PlacedRows::default();
        for row in rows {
            let (seq, partition) = (row.seq(), row.partition());
            let Some(epoch) = self.owned.active_epoch(partition) else {
                continue;
            };
            if self.entries.contains_key(&seq) || self.tombstones.contains(&seq) {
                continue;
            }
            let key = row.key().cloned();
            let record = match row {
                Row::Event(record) => record,
                Row::Broken { reason, .. } => {
                    if key
                        .as_ref()
                        .is_none_or(|key| self.lanes.place_broken(key, seq, partition, hold, now))
                    {
                        let error = Failure::Undecodable(reason).to_string();
                        placed.broken.push((seq, error.clone()));
                        let change = Change::Dead {
                            attempts: 0,
                            error,
                            hold,
                        };
                        self.entries.insert(
                            seq,
                            Entry {
                                partition,
                                epoch,
                                state: State::Unsettled,
                            },
                        );
                        self.busy[usize::from(partition.0)] += 1;
                        self.outcomes.push(Settlement {
                            seq,
                            partition,
                            epoch,
                            key,
                            change,
                        });
                        placed.signals.settler = true;
                    }
                    continue;
                }
            };
            let written = now.checked_sub(database_now.since(record.created_at)).unwrap_or(now);
            let job = Job {
                delivery: Delivery::new(record, epoch),
                written,
            };
            let lane = match &key {
                Some(key) => self.lanes.place(key, job, now),
                None => Placed::Ready(job),
            };
            match lane {
                Placed::Ready(job) => {
                    placed.ready += 1;
                    self.enqueue(job, &mut placed.signals);
                }
                Placed::Parked => {}
                Placed::LeftBeyond => continue,
            }
            self.entries.insert(
                seq,
                Entry {
                    partition,
                    epoch,
                    state: State::Waiting,
                },
            );
        }
        placed.signals.workers = placed.signals.workers.min(self.idle_workers);
        placed
    }

    /// Sets how far the reading has come.
    pub(crate) fn advance(&mut self, position: Position) {
        self.position = position;
    }

    pub(crate) fn position(&self) -> &Position {
        &self.position
    }

    /// Reservations that are over become lookups. Returns the lookups to do, and when the next one is over.
    pub(crate) fn lookups(&mut self, now: Instant, limit: usize) -> (Vec<Seq>, Option<Instant>) {
        let mut over = Vec::new();
        let mut next = None;
        for (seq, entry) in &self.entries {
            if let State::Reserved { expires, .. } = entry.state {
                if expires <= now {
                    over.push(*seq);
                } else {
                    next = Some(next.map_or(expires, |next: Instant| next.min(expires)));
                }
            }
        }
        for seq in over {
            self.abandon(seq);
        }
        let take = self.missed.len().min(limit);
        // They stay in `missed` until they are placed: the stored position must not pass them meanwhile.
        (self.missed[..take].to_vec(), next)
    }

    /// These lookups are done. The lease may have been lost meanwhile, and what was missed with it.
    pub(crate) fn looked_up(&mut self, seqs: &[Seq]) {
        self.missed.retain(|seq| !seqs.contains(seq));
    }

    pub(crate) fn lanes_to_fetch(&mut self, limit: usize) -> Vec<Fetch> {
        self.lanes.next_fetches(limit)
    }

    pub(crate) fn lane_fetched(&mut self, key: &Key, from: Option<Seq>, now: Instant) {
        self.lanes.fetched(key, from, now);
    }

    pub(crate) fn lane_fetch_failed(&mut self, key: Key) {
        self.lanes.fetch_failed(key);
    }

    pub(crate) fn tend_lane(&mut self, key: &Key) {
        self.lanes.tend(key);
    }

    /// An operator has freed these keys.
    pub(crate) fn freed(&mut self, holds: &[Hold], now: Instant) {
        for hold in holds {
            if self.owned.is_active(hold.partition) {
                self.lanes.recall_hold(hold, now);
            }
        }
    }

    /// How many rows the reader may take; with none, it is woken when there is room again.
    pub(crate) fn room(&mut self) -> usize {
        let room = self.queues.room();
        self.wants_room = room == 0;
        room
    }

    pub(crate) fn has_lanes_to_fetch(&self) -> bool {
        self.lanes.is_waiting()
    }

    // ---- workers ----

    /// The next job of a worker. Jobs of partitions that are gone are dropped on the way.
    pub(crate) fn draw(&mut self, now: Instant) -> (Option<Job>, Signals) {
        let mut signals = Signals::default();
        if self.outcomes.len() >= self.unsettled_limit || !self.owned.may_deliver(now) {
            return (None, signals);
        }
        let job = loop {
            let Some(job) = self.queues.draw() else { break None };
            if self.begin(&job) {
                break Some(job);
            }
        };
        if self.wants_room && self.queues.is_half_empty() {
            self.wants_room = false;
            signals.reader = true;
        }
        (job, signals)
    }

    /// The next suspect.
    pub(crate) fn draw_solo(&mut self, now: Instant) -> Option<Job> {
        if !self.owned.may_deliver(now) {
            return None;
        }
        loop {
            let job = self.queues.draw_solo()?;
            if self.begin(&job) {
                return Some(job);
            }
        }
    }

    fn begin(&mut self, job: &Job) -> bool {
        let (seq, partition, epoch) =
            (job.delivery.seq(), job.delivery.record().partition, job.delivery.fencing_token());
        let Some(entry) = self.entries.get_mut(&seq).filter(|entry| entry.epoch == epoch) else {
            return false;
        };
        if entry.state != State::Waiting || self.owned.active_epoch(partition) != Some(epoch) {
            return false;
        }
        entry.state = State::Running;
        self.busy[usize::from(partition.0)] += 1;
        true
    }

    /// A delivery has ended. `None` if the node has lost the partition meanwhile: the outcome is stale.
    pub(crate) fn answer(&mut self, delivery: &Delivery, end: End, now: Instant) -> Option<Signals> {
        let (seq, partition, epoch) = (delivery.seq(), delivery.record().partition, delivery.fencing_token());
        let entry = self.entries.get_mut(&seq).filter(|entry| entry.epoch == epoch)?;
        if entry.state != State::Running {
            return None;
        }
        entry.state = State::Unsettled;
        self.suspects.remove(&seq);
        let key = delivery.event().key();
        self.outcomes.push(Settlement {
            seq,
            partition,
            epoch,
            key: key.cloned(),
            change: end.change,
        });
        let mut signals = Signals {
            settler: self.outcomes.len() == 1,
            full_batch: self.outcomes.len() == self.settle_batch,
            ..Signals::default()
        };
        if let Some(key) = key {
            let finished = self.lanes.finish(key, seq, end.then, now);
            for spilled in finished.spilled {
                self.entries.remove(&spilled);
            }
            if let Some(next) = finished.next {
                self.enqueue(next, &mut signals);
            }
            signals.reader |= self.lanes.is_waiting();
        }
        signals.workers = signals.workers.min(self.idle_workers);
        Some(signals)
    }

    /// An event whose start could not be counted is a suspect still, when it is due again.
    pub(crate) fn suspect(&mut self, seq: Seq) {
        if self.entries.contains_key(&seq) {
            self.suspects.insert(seq);
        }
    }

    /// Whether an event is somewhere between its reading and the end of its settle.
    pub(crate) fn is_in_flight(&self, seq: Seq) -> bool {
        self.entries.contains_key(&seq)
    }

    /// A worker goes to sleep, or wakes.
    pub(crate) fn set_idle(&mut self, idle: bool) {
        if idle {
            self.idle_workers += 1;
        } else {
            self.idle_workers -= 1;
        }
    }

    pub(crate) fn has_idle_workers(&self) -> bool {
        self.idle_workers > self.queues.waiting()
    }

    fn enqueue(&mut self, job: Job, signals: &mut Signals) {
        if self.suspects.contains(&job.delivery.seq()) || job.delivery.record().starts > 0 {
            self.queues.push_solo(job);
            signals.solo = true;
        } else {
            self.queues.push_cold(job);
            signals.workers += 1;
        }
    }

    // ---- settler ----

    pub(crate) fn unsettled(&self) -> usize {
        self.outcomes.len()
    }

    pub(crate) fn has_hold_changes(&self) -> bool {
        self.lanes.has_changes()
    }

    /// Everything that waits to be settled, in one batch, with the position that is safe once it is durable.
    pub(crate) fn take_batch(&mut self, now: Instant) -> Batch {
        let mut outcomes = std::mem::take(&mut self.outcomes);
        outcomes.sort_unstable_by_key(|outcome| outcome.seq);
        let holds = self.lanes.hold_changes(now);
        let position = Some(self.safe_position())
            .filter(|position| !self.owned.is_taking() && *position != NOWHERE)
            .filter(|position| self.stored_position.as_ref() != Some(position));
        self.storing_position = position.is_some();
        self.holds_under_way = holds.iter().map(HoldChange::partition).collect();
        Batch { outcomes, holds, position }
    }

    /// Announces that partitions are about to be taken. Until they are known here, no settle may store a
    /// position, for it would not be theirs; `false` while one that does is still under way.
    pub(crate) fn begin_taking(&mut self) -> bool {
        self.owned.set_taking(true);
        !self.storing_position
    }

    /// The taking is over; what was taken goes to the reader.
    pub(crate) fn end_taking(&mut self, taken: Vec<Taken>) {
        self.owned.gain(taken);
        self.owned.set_taking(false);
        self.stored_position = None;
    }

    /// A batch is durable. Says whether the reader has something to wait for.
    pub(crate) fn settled(&mut self, batch: &Batch, now: Instant) -> bool {
        let mut put_off = false;
        for outcome in &batch.outcomes {
            if let Change::Retry { after, .. } = outcome.change {
                let due = now + after.min(FAR);
                self.next_due = Some(self.next_due.map_or(due, |next| next.min(due)));
                put_off = true;
            }
            let same = |entry: &Entry| entry.epoch == outcome.epoch && entry.state == State::Unsettled;
            if !self.entries.get(&outcome.seq).is_some_and(same) {
                continue;
            }
            self.entries.remove(&outcome.seq);
            let busy = &mut self.busy[usize::from(outcome.partition.0)];
            *busy = busy.saturating_sub(1);
            if self.reading {
                self.tombstones.insert(outcome.seq);
            }
        }
        if let Some(position) = &batch.position {
            self.stored_position = Some(position.clone());
            self.durable = position.clone();
        }
        self.storing_position = false;
        self.holds_under_way = PartitionSet::EMPTY;
        put_off
    }

    /// Something may have come due that this node did not put off itself.
    pub(crate) fn look_for_due(&mut self, now: Instant) {
        self.next_due = Some(now);
    }

    pub(crate) fn take_next_due(&mut self) -> Option<Instant> {
        self.next_due.take()
    }

    /// How far a new owner may begin: below everything that only this memory knows of. What is among the
    /// outcomes of a batch needs no memory once the batch is durable.
    pub(crate) fn safe_position(&self) -> Position {
        let waiting = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.state != State::Unsettled)
            .map(|(seq, _)| *seq);
        let lowest = waiting
            .chain(self.missed.iter().copied())
            .chain(self.lanes.lowest_uncovered())
            .min();
        let mut position = match lowest {
            Some(seq) => self.position.at_most(Seq(seq.0 - 1)),
            None => self.position.clone(),
        };
        // The position must hold for partitions that the reader does not know yet, too.
        for taken in self.owned.gained() {
            if taken.position.seq < position.seq {
                position = taken.position.clone();
            }
        }
        position
    }

    // ---- ownership ----

    /// The reader has recalled what it must know of new partitions: they are read and delivered from now on.
    pub(crate) fn activate(&mut self, taken: &[Taken], recall: &Recall, hold_failing: bool, now: Instant) {
        for part in taken {
            self.owned.activate(part.partition, part.epoch);
            for position in [&mut self.position, &mut self.durable] {
                if part.position.seq < position.seq {
                    *position = part.position.clone();
                }
            }
        }
        for hold in &recall.holds {
            self.lanes.recall_hold(hold, now);
        }
        if hold_failing {
            for (partition, key, seq) in &recall.failing {
                self.lanes.recall_failing(*partition, key, *seq);
            }
        }
        self.suspects.extend(&recall.suspects);
    }

    /// Whether nothing of a partition is running or waits to be settled.
    pub(crate) fn is_quiet(&self, partition: Partition) -> bool {
        self.busy[usize::from(partition.0)] == 0
            && !self.holds_under_way.contains(partition)
            && !self.lanes.changes_holds_of(partition)
    }

    /// Forgets partitions that are given up, and tells what their next owner must know.
    pub(crate) fn give_up(&mut self, partitions: PartitionSet, suspects: u32) -> (Vec<Released>, Position) {
        // What is not settled, or whose hold is not written, is found again only from the durable position.
        let quiet = partitions.iter().all(|partition| self.is_quiet(partition));
        let position = if quiet { self.safe_position() } else { self.durable.clone() };
        let position = if position == NOWHERE { Position::START } else { position };
        let inherits = if self.suspects.is_empty() { 0 } else { suspects };
        let released = partitions
            .iter()
            .map(|partition| Released {
                partition,
                suspects: inherits,
            })
            .collect::<Vec<_>>();
        self.entries.retain(|_, entry| !partitions.contains(entry.partition));
        self.lanes.retain(|partition| !partitions.contains(partition));
        self.outcomes.retain(|outcome| !partitions.contains(outcome.partition));
        for partition in partitions.iter() {
            self.owned.drop(partition);
            self.busy[usize::from(partition.0)] = 0;
        }
        (released, position)
    }

    /// The lease is lost: everything in flight belongs to others now. Returns the outcomes that became stale.
    pub(crate) fn lose_everything(&mut self) -> usize {
        self.owned.lose();
        self.queues.clear();
        self.entries.clear();
        self.missed.clear();
        self.suspects.clear();
        self.lanes.retain(|_| false);
        self.busy.fill(0);
        self.stored_position = None;
        self.position = NOWHERE;
        self.durable = NOWHERE;
        self.storing_position = false;
        self.holds_under_way = PartitionSet::EMPTY;
        let stale = self.outcomes.len();
        self.outcomes.clear();
        stale
    }

    /// Interrupts what a worker did not finish: no attempt counts.
    pub(crate) fn interrupted(&mut self, delivery: &Delivery, started: bool) {
        let (seq, epoch) = (delivery.seq(), delivery.fencing_token());
        let Some(entry) = self.entries.get(&seq).filter(|entry| entry.epoch == epoch) else {
            return;
        };
        if entry.state != State::Running {
            return;
        }
        let partition = entry.partition;
        if started {
            // It was counted as a suspect's start, and must not look like a crash.
            self.entries.insert(
                seq,
                Entry {
                    partition,
                    epoch,
                    state: State::Unsettled,
                },
            );
            let key = delivery.event().key().cloned();
            self.outcomes.push(Settlement {
                seq,
                partition,
                epoch,
                key,
                change: Change::Interrupted,
            });
        } else {
            self.busy[usize::from(partition.0)] -= 1;
            self.entries.insert(
                seq,
                Entry {
                    partition,
                    epoch,
                    state: State::Waiting,
                },
            );
        }
    }
}

//! The reader's side: which rows are wanted, and where they go.

use tokio::time::Instant;

use super::{Entry, Fetch, Flight, Job, Signals, State, lanes::Placed};
use crate::{
    domain::{Delivery, Epoch, Failure, Key, Partition, Seq, Timestamp},
    port::{Candidate, Change, Hold, Position, Row, Settlement},
};

/// What became of the rows of a read.
#[derive(Debug, Default)]
pub(crate) struct PlacedRows {
    pub(crate) ready: u64,
    pub(crate) broken: Vec<(Seq, String)>,
    pub(crate) signals: Signals,
}

impl Flight {
    /// A read begins. Reads don't overlap: one task does them all, and the scout's questions bring no rows.
    pub(crate) fn begin_read(&mut self) {
        self.reading = Some(self.owned.epochs());
    }

    /// The same for a read of what is due.
    pub(crate) fn begin_read_due(&mut self) {
        self.begin_read();
        self.lanes.set_unread(Some(Seq(self.position.seq.0.saturating_add(1))));
    }

    /// The read's rows are placed.
    pub(crate) fn end_read(&mut self) {
        self.reading = None;
        self.lanes.set_unread(None);
        self.tombstones.clear();
        self.cleared.clear();
    }

    /// The reader's word on a row.
    pub(crate) fn wants(&mut self, candidate: Candidate<'_>, now: Instant) -> bool {
        if self.entries.contains_key(&candidate.seq) || self.reservations.pass_over(candidate.seq) {
            return false;
        }
        if self.tombstones.contains(&candidate.seq) || !self.owned.is_active(candidate.partition) {
            return false;
        }
        candidate.key.is_none_or(|key| !self.lanes.pass_over(key, candidate.seq, now))
    }

    /// Brings rows that were read, in their order, into the queues and lanes. Those that can't be decoded
    /// become dead, and hold their key if `hold` says so.
    pub(crate) fn place(&mut self, rows: Vec<Row>, now: Instant, database_now: Timestamp, hold: bool) -> PlacedRows {
        let mut placed = PlacedRows::default();
        for row in rows {
            let (seq, partition) = (row.seq(), row.partition());
            let Some(epoch) = self.may_place(seq, partition) else { continue };
            self.keyed.take(seq);
            let key = row.key().cloned();
            let record = match row {
                Row::Event(record) => record,
                Row::Broken { reason, .. } => {
                    if key.as_ref().is_none_or(|key| self.lanes.place_broken(key, seq, partition, hold, now)) {
                        let error = Failure::Undecodable(reason).to_string();
                        placed.broken.push((seq, error.clone()));
                        let change = Change::Dead { attempts: 0, error, progress: None, hold };
                        self.entries.insert(seq, Entry { partition, epoch, state: State::Unsettled });
                        self.busy[usize::from(partition.0)] += 1;
                        self.outcomes.push(Settlement { seq, partition, epoch, key, change });
                        placed.signals.settler = true;
                    }
                    continue;
                }
            };
            let written = now.checked_sub(database_now.since(record.created_at)).unwrap_or(now);
            let job = Job { delivery: Delivery::new(record, epoch), written };
            let lane = match &key {
                Some(key) => self.lanes.place(key, job, now),
                None => Placed::Ready(job),
            };
            match lane {
                Placed::Ready(job) => {
                    placed.ready += 1;
                    if let Some(job) = self.keyed.keep_back(job) {
                        self.enqueue(job, &mut placed.signals);
                    }
                }
                Placed::Parked => {}
                Placed::LeftBeyond => continue,
            }
            self.entries.insert(seq, Entry { partition, epoch, state: State::Waiting });
        }
        placed.signals.workers = placed.signals.workers.min(self.idle_workers);
        placed
    }

    /// The epoch under which a row may be placed. Not if the partition has changed hands since the read began:
    /// others may have delivered the row meanwhile.
    fn may_place(&self, seq: Seq, partition: Partition) -> Option<Epoch> {
        let known =
            self.entries.contains_key(&seq) || self.tombstones.contains(&seq) || self.reservations.contains(seq);
        self.reads_under(partition).filter(|_| !known)
    }

    /// The epoch of a partition that is read and delivered, now as when the read under way began.
    fn reads_under(&self, partition: Partition) -> Option<Epoch> {
        let epoch = self.owned.active_epoch(partition)?;
        let began_under = self.reading.as_ref()?.of(partition);
        (began_under == Some(epoch)).then_some(epoch)
    }

    /// Sets how far the reading has come.
    pub(crate) fn advance(&mut self, position: Position) {
        self.keyed.pass(position.mark);
        self.position = position;
    }

    pub(crate) fn position(&self) -> &Position {
        &self.position
    }

    pub(crate) fn lanes_to_fetch(&mut self, limit: usize) -> Vec<Fetch> {
        self.lanes.next_fetches(limit)
    }

    /// Brings the followers of a lane that were fetched to it; what lies `beyond` them is fetched later. Nothing
    /// changes if the partition is being given up, or is another's: the followers still lie beyond then, and keep the
    /// mark that is handed on below them.
    pub(crate) fn place_lane(
        &mut self,
        fetch: &Fetch,
        beyond: Option<Seq>,
        rows: Vec<Row>,
        now: Instant,
        database_now: Timestamp,
        hold: bool,
    ) -> PlacedRows {
        if self.reads_under(fetch.partition).is_none() {
            self.lanes.fetch_put_off(&fetch.key);
            return PlacedRows::default();
        }
        if !self.lanes.is_beyond(fetch) {
            // A failed head has sent followers back meanwhile, which come before these: they are fetched first.
            self.lanes.fetch_put_off(&fetch.key);
            self.lanes.tend(&fetch.key);
            return PlacedRows::default();
        }
        self.lanes.fetched(&fetch.key, beyond, now);
        let placed = self.place(rows, now, database_now, hold);
        self.lanes.tend(&fetch.key);
        placed
    }

    pub(crate) fn lane_fetch_failed(&mut self, key: Key) {
        self.lanes.fetch_failed(key);
    }

    /// An operator has freed these keys; or this node has held them itself, which it knows.
    pub(crate) fn freed(&mut self, holds: &[Hold], now: Instant) {
        for hold in holds {
            // What the read still saw may be gone, or going: it covers nothing any more.
            let gone = self.cleared.contains(&hold.key) || self.lanes.is_clearing(&hold.key);
            // Or the key's head has died since, and its own hold takes the place of this one: the table does not show it
            // before that is settled, nor does a read that began before.
            let is_older = |head| self.entries.contains_key(&head) || self.tombstones.contains(&head);
            let replaced = self.lanes.dead_head(&hold.key).is_some_and(is_older);
            if !gone && !replaced && self.reads_under(hold.partition).is_some() {
                self.lanes.recall_hold(hold, now);
            }
        }
    }

    /// How many rows the reader may take; with too few to be worth a read, none, and it is woken when there is
    /// room again.
    pub(crate) fn room(&mut self) -> usize {
        let room = self.queues.room().saturating_sub(self.behind());
        self.wants_room = room < self.enough_room;
        if self.wants_room { 0 } else { room }
    }

    /// Whether the reader, which found no room, should be woken.
    pub(crate) fn has_room_again(&mut self) -> bool {
        let again = self.wants_room && self.queues.is_half_empty(self.behind());
        self.wants_room &= !again;
        again
    }

    /// The followers in lanes, as far as they take up room. As long as workers have enough to do they do: to read on would only
    /// fill the lanes, and what finds no place there is read once more, key by key. If a worker waits for work, or has hot events
    /// alone to choose from, they don't: others than these keys must come to it.
    fn behind(&self) -> usize {
        if self.has_idle_workers() || self.queues.is_cold_empty() { 0 } else { self.lanes.parked() }
    }

    pub(crate) fn blocked_keys(&self) -> usize {
        self.lanes.blocked()
    }

    pub(crate) fn has_lanes_to_fetch(&self) -> bool {
        self.lanes.is_waiting()
    }
}

//! What this node has in flight: the memory that stands where other outboxes have claims.
//!
//! One lock guards it all, because its parts must agree at every moment: the partitions that are owned, the
//! entries of events between their reading (or reservation) and their settling, the lanes, the queues, and
//! the outcomes that wait to be settled. Nothing here does I/O; whoever changes something gets [`Signals`]
//! that tell whom to wake.
//!
//! The struct is here; what each caller does with it is in a file of its own: the writer in `reserve` and `keyed`, the reader
//! in `place`, the workers in `work` and `in_tx`, the settler in `settle`, the ownership in `hand_over`. `lanes`, `owned`
//! and `queues` are its parts.
//!
//! Three races end here (see `docs/book/src/guarantees.md`):
//! - A read begins, a settle removes row 42, and the read's rows arrive with 42 in them. Numbers that are
//!   settled while a read is under way stay as **tombstones** until that read is processed.
//! - A row is visible before its writer has said that it is committed. The writer **reserves** the number
//!   when it gets it, which is before the commit; the reader passes reserved rows over and notes that it did,
//!   so that a reservation which is never confirmed is looked up by its number.
//! - A read sees that a key overflows, the key's head dies, and the answer arrives: it shows the hold that an operator would
//!   leave who frees the key. As long as the head's end is not settled, or was settled while the read was under way, that
//!   hold is older than the head's.

mod hand_over;
mod in_tx;
mod keyed;
mod lanes;
mod owned;
mod place;
mod queues;
mod reserve;
mod settle;
#[cfg(test)]
mod tests;
mod work;

use rustc_hash::{FxHashMap, FxHashSet};
use tokio::time::Instant;

use self::{
    keyed::Keyed,
    lanes::Lanes,
    owned::{Epochs, Owned},
    queues::Queues,
    reserve::Reservations,
};
pub(crate) use self::{
    keyed::{Ask, Before, OfKey},
    lanes::{Fetch, Then},
    place::PlacedRows,
    queues::Job,
    reserve::Confirmed,
    work::End,
};
use super::settings::{OnDeadHead, Settings};
use crate::{
    domain::{Epoch, Key, Partition, PartitionSet, Seq},
    port::{Position, Settlement},
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

impl Signals {
    /// Whom another change wakes as well.
    pub(crate) fn join(&mut self, other: Self) {
        self.workers += other.workers;
        self.solo |= other.solo;
        self.reader |= other.reader;
        self.settler |= other.settler;
        self.full_batch |= other.full_batch;
    }
}

/// The mark of a node that owns nothing yet: above that of every partition it may take.
const NOWHERE: Seq = Seq(i64::MAX);

#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) owned: Owned,
    pub(crate) queues: Queues,
    entries: FxHashMap<Seq, Entry>,
    reservations: Reservations,
    keyed: Keyed,
    /// Numbers that were settled while a read was under way, and keys whose hold was removed.
    tombstones: FxHashSet<Seq>,
    cleared: FxHashSet<Key>,
    /// The read under way: the epochs under which it began.
    reading: Option<Epochs>,
    suspects: FxHashSet<Seq>,
    /// Partitions that this node has begun to give up, and where their next owner must begin.
    kept_back: FxHashMap<Partition, Seq>,
    /// The epochs under which this process owned partitions when it lost its lease, and knew of no suspect in them.
    former: Box<[Option<Epoch>; Partition::COUNT]>,
    lanes: Lanes,
    outcomes: Vec<Settlement>,
    /// Events started and not settled, by partition: a partition is given up when it has none.
    busy: Box<[u32; Partition::COUNT]>,
    position: Position,
    stored_mark: Option<Seq>,
    /// A mark that is right for the next owner, whatever became of settles that are not known to be durable.
    durable: Seq,
    /// The partitions whose holds a settle under way changes.
    holds_under_way: PartitionSet,
    /// When the next of the events that this node has put off comes due.
    next_due: Option<Instant>,
    /// A settle that stores a mark is under way.
    storing_mark: bool,
    wants_room: bool,
    /// With less room than this, a read is not worth its round trip.
    enough_room: usize,
    idle_workers: usize,
    /// A worker has had nothing to do since the last look at the load.
    paused: bool,
    settle_batch: usize,
    unsettled_limit: usize,
    on_dead_head: OnDeadHead,
}

#[derive(Debug)]
struct Entry {
    partition: Partition,
    epoch: Epoch,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In a queue or parked in a lane.
    Waiting,
    /// With a worker.
    Running,
    /// Among the outcomes, or in a settle under way.
    Unsettled,
}

impl Flight {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            owned: Owned::default(),
            queues: Queues::new(settings.hot_capacity, settings.cold_capacity),
            entries: FxHashMap::default(),
            reservations: Reservations::default(),
            keyed: Keyed::new(settings),
            tombstones: FxHashSet::default(),
            cleared: FxHashSet::default(),
            reading: None,
            suspects: FxHashSet::default(),
            kept_back: FxHashMap::default(),
            former: Box::new([None; Partition::COUNT]),
            lanes: Lanes::new(settings.lane_capacity, settings.cold_capacity),
            outcomes: Vec::new(),
            busy: Box::new([0; Partition::COUNT]),
            position: Position::at(NOWHERE),
            stored_mark: None,
            durable: NOWHERE,
            holds_under_way: PartitionSet::EMPTY,
            next_due: None,
            storing_mark: false,
            wants_room: false,
            enough_room: settings.page_size.min(settings.cold_capacity / 2).max(1),
            idle_workers: 0,
            paused: false,
            settle_batch: settings.settle_batch,
            unsettled_limit: settings.unsettled_limit(),
            on_dead_head: settings.on_dead_head,
        }
    }

    /// Whether an event that was read under an epoch is somewhere between its reading and the end of its settle.
    pub(crate) fn is_in_flight(&self, seq: Seq, epoch: Epoch) -> bool {
        self.entries.get(&seq).is_some_and(|entry| entry.epoch == epoch)
    }

    /// Puts a job where a worker finds it.
    fn enqueue(&mut self, job: Job, signals: &mut Signals) {
        if self.suspects.contains(&job.delivery.seq()) || job.delivery.record().starts > 0 {
            self.queues.push_solo(job);
            signals.solo = true;
        } else {
            self.queues.push_cold(job);
            signals.workers += 1;
        }
    }
}

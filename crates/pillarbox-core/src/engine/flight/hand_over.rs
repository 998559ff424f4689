//! The ownership's side: partitions that come and go.

use tokio::time::Instant;

use super::{Flight, NOWHERE};
use crate::{
    domain::{Partition, PartitionSet},
    port::{Position, Recall, Released, Taken},
};

impl Flight {
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
        let released =
            partitions.iter().map(|partition| Released { partition, suspects: inherits }).collect::<Vec<_>>();
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
        self.reservations.clear();
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
}

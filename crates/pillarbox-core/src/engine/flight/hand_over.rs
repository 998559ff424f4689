//! The ownership's side: partitions that come and go.

use tokio::time::Instant;

use super::{Flight, NOWHERE};
use crate::{
    domain::{Partition, PartitionSet, Seq},
    port::{Position, Recall, Released, Taken},
};

impl Flight {
    /// Announces that partitions are about to be taken. Until they are known here, no settle may store a
    /// mark, for it would not be theirs; `false` while one that does is still under way.
    pub(crate) fn begin_taking(&mut self) -> bool {
        self.owned.set_taking(true);
        !self.storing_mark
    }

    /// The taking is over; what was taken goes to the reader.
    pub(crate) fn end_taking(&mut self, taken: Vec<Taken>) {
        self.owned.gain(taken);
        self.owned.set_taking(false);
        self.stored_mark = None;
    }

    /// The reader has recalled what it must know of new partitions: they are read and delivered from now on.
    pub(crate) fn activate(&mut self, taken: &[Taken], recall: &Recall, hold_failing: bool, now: Instant) {
        for part in taken {
            self.owned.activate(part.partition, part.epoch);
            self.kept_back.remove(&part.partition);
            self.position.lower(part.mark);
            self.durable = self.durable.min(part.mark);
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

    /// Starts nothing more in a partition. The reader goes on without it, so what lies above the present position
    /// is for the next owner to read.
    pub(crate) fn leave(&mut self, partition: Partition) {
        if self.owned.is_active(partition) {
            self.owned.leave(partition);
            self.kept_back.insert(partition, self.position.mark);
        }
    }

    /// The partitions that were given up are no longer this node's in the database either.
    pub(crate) fn handed_over(&mut self, mut is_mine: impl FnMut(Partition) -> bool) {
        self.kept_back.retain(|partition, _| is_mine(*partition));
    }

    /// Whether nothing of a partition is running or waits to be settled.
    pub(crate) fn is_quiet(&self, partition: Partition) -> bool {
        self.busy[usize::from(partition.0)] == 0
            && !self.holds_under_way.contains(partition)
            && !self.lanes.changes_holds_of(partition)
    }

    /// Forgets partitions that are given up, and tells what their next owner must know.
    pub(crate) fn give_up(&mut self, partitions: PartitionSet, suspects: u32) -> (Vec<Released>, Seq) {
        // What is not settled, or whose hold is not written, is found again only from the durable mark.
        let quiet = partitions.iter().all(|partition| self.is_quiet(partition));
        let mark = if quiet { self.safe_mark() } else { self.durable };
        // It must hold for what was taken and never read, too.
        let mark = self.owned.gained().iter().map(|taken| taken.mark).fold(mark, Seq::min);
        let mark = if mark == NOWHERE { Seq(0) } else { mark };
        let inherits = if self.suspects.is_empty() { 0 } else { suspects };
        let released =
            partitions.iter().map(|partition| Released { partition, suspects: inherits }).collect::<Vec<_>>();
        self.entries.retain(|_, entry| !partitions.contains(entry.partition));
        self.lanes.retain(|partition| !partitions.contains(partition));
        self.outcomes.retain(|outcome| !partitions.contains(outcome.partition));
        for partition in partitions.iter() {
            self.owned.drop(partition);
            // Until the release is durable, a crash hands it on with the node's own mark.
            self.kept_back.insert(partition, mark);
            self.busy[usize::from(partition.0)] = 0;
        }
        (released, mark)
    }

    /// The lease is lost: everything in flight belongs to others now. Returns the outcomes that became stale.
    pub(crate) fn lose_everything(&mut self) -> usize {
        self.owned.lose();
        self.queues.clear();
        self.entries.clear();
        self.reservations.clear();
        self.suspects.clear();
        self.kept_back.clear();
        self.lanes.retain(|_| false);
        self.busy.fill(0);
        self.stored_mark = None;
        self.position = Position::at(NOWHERE);
        self.durable = NOWHERE;
        self.storing_mark = false;
        self.holds_under_way = PartitionSet::EMPTY;
        let stale = self.outcomes.len();
        self.outcomes.clear();
        stale
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{domain::Epoch, engine::settings::Settings};

    /// A node with all partitions that has read up to 10, is leaving partition 7, and has read on to 20.
    fn leaving() -> Flight {
        let mut flight = Flight::new(&Settings::default());
        let taken = |partition| Taken { partition, epoch: Epoch(1), mark: Seq(0), suspects: 0 };
        let taken: Vec<_> = Partition::all().map(taken).collect();
        flight.end_taking(taken.clone());
        flight.activate(&taken, &Recall::default(), true, Instant::now());
        flight.advance(Position::at(Seq(10)));
        flight.leave(Partition(7));
        flight.advance(Position::at(Seq(20)));
        flight
    }

    fn only(partition: Partition) -> PartitionSet {
        std::iter::once(partition).collect()
    }

    #[test]
    fn a_leaving_partition_begins_where_its_reading_ended() {
        let mut flight = leaving();
        let (_, mark) = flight.give_up(only(Partition(7)), 0);
        assert_eq!(mark, Seq(10));
    }

    #[test]
    fn a_crash_before_the_release_is_durable_hands_it_on_from_there_as_well() {
        let mut flight = leaving();
        assert_eq!(flight.safe_mark(), Seq(10));
        flight.give_up(only(Partition(7)), 0);
        assert_eq!(flight.safe_mark(), Seq(10));
        flight.handed_over(|partition| partition != Partition(7));
        assert_eq!(flight.safe_mark(), Seq(20));
    }
}

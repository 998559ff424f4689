//! The ownership's side: partitions that come and go.

use tokio::time::Instant;

use super::{Entry, Flight, NOWHERE, State};
use crate::{
    domain::{Partition, PartitionSet, Seq},
    engine::settings::OnDeadHead,
    port::{Change, HoldKind, Position, Recall, Released, Settlement, Taken},
};

impl Flight {
    /// Announces that partitions are about to be taken. Until they are known here, no settle may store a
    /// mark, for it would not be theirs; `false` while one that does is still under way.
    pub(crate) fn begin_taking(&mut self) -> bool {
        self.owned.set_taking(true);
        !self.storing_mark
    }

    /// The taking is over; what was taken goes to the reader.
    ///
    /// What this process itself owned last comes back without suspects: it is alive, so nothing that it ran has killed
    /// it. The epoch tells: one for the end of its former lease, one for this taking, and none for anybody between.
    pub(crate) fn end_taking(&mut self, mut taken: Vec<Taken>) {
        for part in &mut taken {
            let former = self.former[usize::from(part.partition.0)].take();
            if former.is_some_and(|former| part.epoch.0 == former.0 + 2) {
                part.suspects = 0;
            }
        }
        self.owned.gain(taken);
        self.owned.set_taking(false);
        self.stored_mark = None;
    }

    /// The reader has recalled what it must know of new partitions: they are read and delivered from now on. What was recalled
    /// of others is left alone: those were lost meanwhile, and whoever owns them may have changed it by now. It would meet the
    /// partition when it comes back, and hold a key for a head that is gone.
    pub(crate) fn activate(&mut self, taken: &[Taken], recall: &Recall, hold_failing: bool, now: Instant) {
        let these: PartitionSet = taken.iter().map(|part| part.partition).collect();
        for part in taken {
            self.owned.activate(part.partition, part.epoch);
            self.kept_back.remove(&part.partition);
            self.position.lower(part.mark);
            self.durable = self.durable.min(part.mark);
        }
        for hold in recall.holds.iter().filter(|hold| these.contains(hold.partition)) {
            if hold.kind == HoldKind::DeadHead && self.on_dead_head == OnDeadHead::GoOn {
                self.lanes.go_on(hold, now);
            } else {
                self.lanes.recall_hold(hold, now);
            }
        }
        if hold_failing {
            for (partition, key, seq) in recall.failing.iter().filter(|(partition, ..)| these.contains(*partition)) {
                self.lanes.recall_failing(*partition, key, *seq);
            }
        }
        if taken.iter().any(|part| part.suspects > 0) {
            self.suspects.extend(&recall.suspects);
        }
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
            && !self.outcomes.iter().any(|outcome| outcome.partition == partition)
            && !self.holds_under_way.contains(partition)
            && !self.lanes.changes_holds_of(partition)
    }

    /// Interrupts what still runs in a partition that is given up, without counting an attempt; says whether
    /// anything did. Its workers drop it when they are told, and an answer that comes all the same is stale.
    pub(crate) fn evict(&mut self, partition: Partition) -> bool {
        let of_it = |(_, entry): &(&Seq, &mut Entry)| entry.partition == partition && entry.state == State::Running;
        let mut evicted = false;
        for (seq, entry) in self.entries.iter_mut().filter(of_it) {
            entry.state = State::Waiting;
            self.busy[usize::from(partition.0)] -= 1;
            // A suspect's start must not look like a crash.
            let (seq, epoch, change) = (*seq, entry.epoch, Change::Interrupted);
            self.outcomes.push(Settlement { seq, partition, epoch, key: None, change });
            evicted = true;
        }
        evicted
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
        self.keyed.forget(&partitions);
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
        let clean = self.suspects.is_empty();
        for (partition, epoch) in self.owned.in_hand() {
            self.former[usize::from(partition.0)] = clean.then_some(epoch);
        }
        for taken in self.owned.gained() {
            self.former[usize::from(taken.partition.0)] = (taken.suspects == 0).then_some(taken.epoch);
        }
        self.owned.lose();
        self.queues.clear();
        self.entries.clear();
        self.reservations.clear();
        self.keyed.clear();
        self.suspects.clear();
        self.kept_back.clear();
        self.lanes.clear();
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
    use crate::{
        domain::{Epoch, Key},
        engine::settings::Settings,
        port::{Candidate, Hold},
    };

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
    fn what_a_process_had_last_comes_back_without_suspects_and_nothing_else_does() {
        let taken =
            |number, epoch| Taken { partition: Partition(number), epoch: Epoch(epoch), mark: Seq(0), suspects: 9 };
        let suspects = |flight: &Flight| flight.owned.gained().iter().map(|taken| taken.suspects).collect::<Vec<_>>();
        let mut flight = leaving();
        flight.lose_everything();
        // Its own again; taken and released by another meanwhile; taken and lost by another meanwhile.
        flight.end_taking(vec![taken(1, 3), taken(2, 4), taken(3, 5)]);
        assert_eq!(suspects(&flight), [0, 9, 9]);
        // With suspects of another node's not yet dealt with.
        let mut flight = leaving();
        flight.suspects.insert(Seq(12));
        flight.lose_everything();
        flight.end_taking(vec![taken(1, 3)]);
        assert_eq!(suspects(&flight), [9]);
        // And with suspects that the reader has not recalled yet.
        flight.lose_everything();
        flight.end_taking(vec![taken(1, 5)]);
        assert_eq!(suspects(&flight), [9]);
    }

    #[test]
    fn what_was_recalled_of_a_partition_that_is_lost_meanwhile_is_forgotten() {
        let (partition, key) = (Partition(7), Key::from("k"));
        let taken = |epoch| [Taken { partition, epoch: Epoch(epoch), mark: Seq(0), suspects: 9 }];
        let failing = |seq| Recall { failing: vec![(partition, key.clone(), Seq(seq))], ..Recall::default() };
        let mut flight = Flight::new(&Settings::default());
        flight.end_taking(taken(1).to_vec());
        flight.lose_everything();
        // The answer to the question of before: 11 fails, and may be delivered by another by now.
        let late = Recall { suspects: vec![Seq(11)], ..failing(11) };
        flight.activate(&[], &late, true, Instant::now());
        flight.end_taking(taken(4).to_vec());
        flight.activate(&taken(4), &failing(14), true, Instant::now());
        let head = Candidate { seq: Seq(14), partition, key: Some("k") };
        assert!(flight.wants(head, Instant::now()), "14 is the head now");
        assert!(flight.suspects.is_empty());
    }

    #[test]
    fn the_head_of_a_key_that_went_on_by_itself_frees_it_until_the_table_shows_that() {
        let (partition, key) = (Partition(7), Key::from("k"));
        let taken = [Taken { partition, epoch: Epoch(1), mark: Seq(0), suspects: 0 }];
        let hold = Hold { partition, key: key.clone(), kind: HoldKind::DeadHead, from: Seq(5) };
        let mut flight = Flight::new(&Settings { on_dead_head: OnDeadHead::GoOn, ..Settings::default() });
        flight.end_taking(taken.to_vec());
        flight.activate(&taken, &Recall { holds: vec![hold], ..Recall::default() }, true, Instant::now());
        assert!(flight.lanes.freed_by(&key, Seq(5)).is_some(), "the table shows the hold of the dead head");
        let batch = flight.take_batch(Instant::now());
        assert_eq!(batch.holds.len(), 2);
        assert!(flight.lanes.freed_by(&key, Seq(5)).is_some(), "it is not known to be durable");
        flight.settled(&batch, Instant::now());
        assert!(flight.lanes.freed_by(&key, Seq(5)).is_none());
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

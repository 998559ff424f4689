//! The settler's side: what leaves for the table, and how far a new owner may begin.

use tokio::time::{Duration, Instant};

use super::{Entry, Flight, NOWHERE, State};
use crate::{
    domain::{PartitionSet, Seq},
    port::{Batch, Change, HoldChange, Position},
};

/// Farther than any wait that matters, and near enough not to overflow an instant.
pub(super) const FAR: Duration = Duration::from_hours(1);

impl Flight {
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
            if self.reading.is_some() {
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
        let waiting = self.entries.iter().filter(|(_, entry)| entry.state != State::Unsettled).map(|(seq, _)| *seq);
        let lowest = waiting.chain(self.reservations.lowest()).chain(self.lanes.lowest_uncovered()).min();
        let mut position = match lowest {
            Some(seq) => self.position.at_most(Seq(seq.0 - 1)),
            None => self.position.clone(),
        };
        // The position must hold for partitions that the reader does not know yet, too.
        let gained = self.owned.gained().iter().map(|taken| &taken.position);
        // And for those that it reads no more, and that are still this node's in the database.
        for bound in gained.chain(self.kept_back.values()) {
            if bound.seq < position.seq {
                position = bound.clone();
            }
        }
        position
    }
}

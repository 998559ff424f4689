//! The settler's side: what leaves for the table, and how far a new owner may begin.

use std::collections::hash_map::Entry;

use tokio::time::{Duration, Instant};

use super::{Flight, NOWHERE, State};
use crate::{
    domain::{PartitionSet, Seq},
    port::{Batch, Change, HoldChange},
};

/// So many numbers read past are worth a settle of their own.
const FAR_AHEAD: i64 = 1_000;

/// Farther than any wait that matters, and near enough not to overflow an instant.
pub(super) const FAR: Duration = Duration::from_hours(1);

impl Flight {
    pub(crate) fn unsettled(&self) -> usize {
        self.outcomes.len()
    }

    pub(crate) fn has_hold_changes(&self) -> bool {
        self.lanes.has_changes()
    }

    /// Whether a next owner would have much to read again: the stored mark lies far behind, or keys overflow that no hold
    /// covers, and keep it there.
    pub(crate) fn is_far_ahead(&self, now: Instant) -> bool {
        if self.owned.is_taking() {
            return false;
        }
        let mark = self.safe_mark();
        let stored = self.stored_mark.unwrap_or(self.durable);
        let far = mark != NOWHERE && stored != NOWHERE && mark.0 >= stored.0.saturating_add(FAR_AHEAD);
        far || self.lanes.wants_hold(now)
    }

    /// Everything that waits to be settled, in one batch, with the mark that is safe once it is durable.
    pub(crate) fn take_batch(&mut self, now: Instant) -> Batch {
        let mut outcomes = std::mem::take(&mut self.outcomes);
        outcomes.sort_unstable_by_key(|outcome| outcome.seq);
        let holds = self.lanes.hold_changes(now);
        let mark = Some(self.safe_mark())
            .filter(|mark| !self.owned.is_taking() && *mark != NOWHERE && self.stored_mark != Some(*mark));
        self.storing_mark = mark.is_some();
        // Whether or not this settle is ever known to be durable, its holds may be gone with it, and rows that
        // they covered lie above its mark.
        self.durable = mark.map_or(self.durable, |mark| self.durable.min(mark));
        self.holds_under_way = holds.iter().map(HoldChange::partition).collect();
        Batch { outcomes, holds, mark }
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
            let Entry::Occupied(found) = self.entries.entry(outcome.seq) else { continue };
            if found.get().epoch != outcome.epoch || found.get().state != State::Unsettled {
                continue;
            }
            found.remove();
            let busy = &mut self.busy[usize::from(outcome.partition.0)];
            *busy = busy.saturating_sub(1);
            if self.reading.is_some() {
                self.tombstones.insert(outcome.seq);
            }
        }
        for change in &batch.holds {
            if let HoldChange::Clear { key, .. } = change {
                self.lanes.cleared(key);
                if self.reading.is_some() {
                    self.cleared.insert(key.clone());
                }
            }
        }
        if let Some(mark) = batch.mark {
            self.stored_mark = Some(mark);
            self.durable = mark;
        }
        self.storing_mark = false;
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
    /// outcomes of a batch needs no memory once the batch is durable, and what a hold covers is found by it.
    pub(crate) fn safe_mark(&self) -> Seq {
        let covered = self.lanes.covered();
        let waiting = self.entries.iter().filter(|(_, entry)| entry.state != State::Unsettled).map(|(seq, _)| *seq);
        let waiting = waiting.filter(|seq| covered.is_empty() || !covered.contains(seq));
        let known = waiting.chain(self.reservations.lowest()).chain(self.lanes.lowest_uncovered());
        let below = known.map(|seq| Seq(seq.0 - 1));
        // It must hold for partitions that the reader does not know yet, too.
        let gained = self.owned.gained().iter().map(|taken| taken.mark);
        // And for those that it reads no more, and that are still this node's in the database.
        let kept_back = self.kept_back.values().copied();
        below.chain(gained).chain(kept_back).fold(self.position.mark, Seq::min)
    }
}

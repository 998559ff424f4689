//! Settling: what the owner writes, behind the fence.

use pillarbox_core::{
    domain::{Key, Lease, Partition, Seq, Status, Timestamp},
    port::{Batch, Change, HoldChange, HoldKind, Settled, Settlement},
};

use super::{MemoryStore, tables::Tables};

/// What a settle looks at before it writes. The store looks at all of it; only mutants leave something out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guards {
    /// The node's lease is in force.
    pub(crate) lease: bool,
    /// The partition is the node's, under the outcome's epoch.
    pub(crate) epoch: bool,
}

impl Guards {
    pub(super) const ALL: Self = Self { lease: true, epoch: true };
}

impl MemoryStore {
    /// A settle that does without some of its guards.
    pub(crate) async fn settle_guarded(&self, lease: &Lease, batch: &Batch, guards: Guards) -> Settled {
        self.run(|tables, now| tables.settle(lease, batch, guards, now)).await
    }

    /// What a settle would find now: nothing if the lease is not in force, else what is current of the batch.
    pub(crate) async fn look_at_fence(&self, lease: &Lease, batch: &Batch) -> Option<Batch> {
        let look = self.run(|tables, now| {
            tables.fence(lease, now)?;
            let mut current = batch.clone();
            current.outcomes.retain(|outcome| tables.is_current(lease, outcome));
            Some(current)
        });
        look.await
    }
}

impl Tables {
    pub(super) fn start(&mut self, lease: &Lease, seq: Seq, now: Timestamp) -> Option<u32> {
        self.fence(lease, now)?;
        self.row(seq).filter(|row| row.status.is_pending())?;
        self.update(seq, |row| row.starts += 1);
        self.row(seq).map(|row| row.starts)
    }

    pub(super) fn settle(&mut self, lease: &Lease, batch: &Batch, guards: Guards, now: Timestamp) -> Settled {
        match self.fence(lease, now) {
            Some(node) => node.mark = batch.mark.or(node.mark),
            None if guards.lease => return Settled::Fenced,
            None => {}
        }
        let mut stale = 0;
        for outcome in &batch.outcomes {
            if !guards.epoch || self.is_current(lease, outcome) {
                self.apply(outcome, now);
            } else {
                stale += 1;
            }
        }
        for hold in &batch.holds {
            self.change_hold(hold);
        }
        Settled::Applied { stale }
    }

    /// What a settle would do, without doing it.
    pub(super) fn would_settle(&mut self, lease: &Lease, batch: &Batch, now: Timestamp) -> Settled {
        if self.fence(lease, now).is_none() {
            return Settled::Fenced;
        }
        Settled::Applied { stale: batch.outcomes.iter().filter(|outcome| !self.is_current(lease, outcome)).count() }
    }

    /// Whether the outcome's partition is the node's, under the outcome's epoch.
    pub(super) fn is_current(&mut self, lease: &Lease, outcome: &Settlement) -> bool {
        let owned = self.partition(outcome.partition);
        owned.epoch == outcome.epoch && owned.owner.as_ref() == Some(&lease.node)
    }

    /// Writes one outcome, if the row is there and pending.
    fn apply(&mut self, outcome: &Settlement, now: Timestamp) {
        let seq = outcome.seq;
        let Some(row) = self.row(seq).filter(|row| row.status.is_pending()) else {
            return;
        };
        let (partition, key) = (row.partition, row.key().cloned());
        match &outcome.change {
            Change::Done => {
                self.update(seq, |row| {
                    row.status = Status::Done;
                    row.done_at = Some(now);
                    row.starts = 0;
                });
            }
            Change::Delete => {
                self.remove(seq);
            }
            Change::Retry { attempts, after, error, progress } => {
                self.update(seq, |row| {
                    row.status = Status::Retry;
                    row.attempts = *attempts;
                    row.starts = 0;
                    row.available_at = Some(now.saturating_add(*after));
                    if error.is_some() {
                        row.last_error.clone_from(error);
                    }
                    if progress.is_some() {
                        row.progress.clone_from(progress);
                    }
                });
            }
            Change::Dead { attempts, error, progress, hold } => {
                self.update(seq, |row| {
                    row.status = Status::Dead;
                    row.attempts = *attempts;
                    row.starts = 0;
                    row.done_at = Some(now);
                    row.last_error = Some(error.clone());
                    if progress.is_some() {
                        row.progress.clone_from(progress);
                    }
                });
                if let (true, Some(key)) = (*hold, key) {
                    self.hold_by_head(partition, key, seq);
                }
            }
            Change::Interrupted => {
                self.update(seq, |row| row.starts = 0);
            }
        }
    }

    /// Holds a key because of its dead head. An earlier head that is still DEAD goes on holding it; one that
    /// was replayed and has ended well no longer can, since no operator could free the key by it.
    fn hold_by_head(&mut self, partition: Partition, key: Key, seq: Seq) {
        let name = (partition, key);
        if let Some((HoldKind::DeadHead, head)) = self.holds.get(&name) {
            let still_dead = self.row(*head).is_some_and(|row| row.status == Status::Dead);
            if *head < seq && still_dead {
                return;
            }
        }
        self.holds.insert(name, (HoldKind::DeadHead, seq));
    }

    fn change_hold(&mut self, change: &HoldChange) {
        match change {
            HoldChange::Set(hold) => {
                let name = (hold.partition, hold.key.clone());
                if !matches!(self.holds.get(&name), Some((HoldKind::DeadHead, _))) {
                    self.holds.insert(name, (hold.kind, hold.from));
                }
            }
            HoldChange::Clear { partition, key } => {
                self.holds.remove(&(*partition, key.clone()));
            }
        }
    }
}

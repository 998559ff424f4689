//! Settling: what the owner writes, behind the fence.

use pillarbox_core::{
    domain::{Key, Lease, Partition, Seq, Status, Timestamp},
    port::{Batch, Change, HoldChange, HoldKind, Settled, Settlement},
};

use super::tables::Tables;

impl Tables {
    pub(super) fn start(&mut self, lease: &Lease, seq: Seq, now: Timestamp) -> Option<u32> {
        self.fence(lease, now)?;
        self.row(seq).filter(|row| row.status.is_pending())?;
        self.update(seq, |row| row.starts += 1);
        self.row(seq).map(|row| row.starts)
    }

    pub(super) fn settle(&mut self, lease: &Lease, batch: &Batch, now: Timestamp) -> Settled {
        let Some(node) = self.fence(lease, now) else {
            return Settled::Fenced;
        };
        if batch.mark.is_some() {
            node.mark = batch.mark;
        }
        let mut stale = 0;
        for outcome in &batch.outcomes {
            let owned = self.partition(outcome.partition);
            if owned.epoch == outcome.epoch && owned.owner.as_ref() == Some(&lease.node) {
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
            Change::Dead { attempts, error, hold } => {
                self.update(seq, |row| {
                    row.status = Status::Dead;
                    row.attempts = *attempts;
                    row.starts = 0;
                    row.done_at = Some(now);
                    row.last_error = Some(error.clone());
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

//! Settling: what the owner writes, behind the fence.

use std::collections::BTreeSet;

use pillarbox_core::{
    domain::{Epoch, Key, Lease, NodeId, Partition, Seq, Status, Timestamp},
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

/// Is told whose outcomes change rows, and under which epoch, by the tables themselves.
pub(super) type Watch = Box<dyn Fn(&NodeId, Partition, Epoch) + Send>;

impl MemoryStore {
    /// Tells of every outcome that changes a row, in the moment when it does, whoever has let it through.
    pub(crate) fn watch_settles(&self, watch: impl Fn(&NodeId, Partition, Epoch) + Send + 'static) {
        self.database.tables.lock().watch = Some(Box::new(watch));
    }

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
        let mut changed = BTreeSet::new();
        for outcome in &batch.outcomes {
            if guards.epoch && !self.is_current(lease, outcome) {
                stale += 1;
            } else if self.apply(outcome, now) {
                changed.insert((outcome.partition, outcome.epoch));
            }
        }
        if let Some(watch) = &self.watch {
            changed.into_iter().for_each(|(partition, epoch)| watch(&lease.node, partition, epoch));
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

    /// Writes one outcome, if the row is there and pending; `false` if not.
    fn apply(&mut self, outcome: &Settlement, now: Timestamp) -> bool {
        let seq = outcome.seq;
        let Some(row) = self.row(seq).filter(|row| row.status.is_pending()) else {
            return false;
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
        true
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

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use parking_lot::Mutex;
    use pillarbox_core::{
        Event,
        domain::PartitionSet,
        port::{Joining, NewRow, OwnStore as _, ReadStore as _, TransactStore as _, WriteStore as _},
    };

    use super::*;

    #[tokio::test]
    async fn every_outcome_that_changes_a_row_is_told_and_no_other() {
        let (store, told) = (MemoryStore::new(), Arc::new(Mutex::new(Vec::new())));
        let watch = told.clone();
        store.watch_settles(move |node, partition, epoch| watch.lock().push((node.to_string(), partition, epoch)));
        let event = Event::builder("Happened").json(&1).build().unwrap();
        let mut tx = store.begin().await.unwrap();
        let seq = store.insert(&mut tx, &[NewRow { event, partition: Partition(0) }]).await.unwrap()[0];
        store.commit(tx).await.unwrap();
        let joining =
            Joining { node: NodeId::new("x"), ttl: Duration::from_hours(1), routes: Vec::new(), in_flight: 1 };
        let former = store.join(&joining).await.unwrap();
        let epoch = store.take(&former, PartitionSet::ALL).await.unwrap().unwrap()[0].epoch;
        store.join(&joining).await.unwrap();

        let outcome = Settlement { seq, partition: Partition(0), epoch, key: None, change: Change::Done };
        let batch = Batch { outcomes: vec![outcome], holds: Vec::new(), mark: None };
        assert_eq!(store.settle(&former, &batch).await.unwrap(), Settled::Fenced);
        assert_eq!(*told.lock(), []);
        // Without the guards it takes effect, once.
        for _ in 0..2 {
            store.settle_guarded(&former, &batch, Guards { lease: false, epoch: false }).await;
            assert_eq!(*told.lock(), [("x".to_owned(), Partition(0), epoch)]);
        }
    }
}

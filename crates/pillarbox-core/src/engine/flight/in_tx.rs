//! The side of the workers that settle in a transaction of their own.
//!
//! An event that is settled there is with its worker until the commit is known to be durable: only then is it forgotten,
//! and only then does its key go on. Until then it keeps the mark that is handed on below it.

use tokio::time::Instant;

use super::{Flight, Signals, Then};
use crate::{
    domain::Delivery,
    port::{Batch, Change, Settlement},
};

impl Flight {
    /// The settle of deliveries that have succeeded, to go with their handlers' work. `None` while the settler may still
    /// change a hold that this would remove: it is under way, and which of the two comes first is not known.
    pub(crate) fn batch_in_tx(&self, done: &[&Delivery], change: &Change) -> Option<Batch> {
        let mut batch = Batch::default();
        for delivery in done {
            let (seq, partition) = (delivery.seq(), delivery.record().partition);
            let key = delivery.event().key().cloned();
            if let Some(changes) = key.as_ref().and_then(|key| self.lanes.freed_by(key, seq)) {
                if self.holds_under_way.contains(partition) {
                    return None;
                }
                batch.holds.extend(changes);
            }
            let epoch = delivery.fencing_token();
            batch.outcomes.push(Settlement { seq, partition, epoch, key, change: change.clone() });
        }
        batch.outcomes.sort_unstable_by_key(|outcome| outcome.seq);
        Some(batch)
    }

    /// A delivery that succeeded is settled for good. `None` if the node has lost the partition meanwhile: that is the next
    /// owner's to know, who finds it in the table.
    pub(crate) fn settled_in_tx(&mut self, delivery: &Delivery, now: Instant) -> Option<Signals> {
        if !self.is_running(delivery) {
            return None;
        }
        let (seq, partition) = (delivery.seq(), delivery.record().partition);
        self.entries.remove(&seq);
        self.suspects.remove(&seq);
        self.busy[usize::from(partition.0)] -= 1;
        if self.reading.is_some() {
            self.tombstones.insert(seq);
        }
        let mut signals = Signals::default();
        self.finish(delivery, Then::Next, now, &mut signals);
        // What a key's next hold needs is written by the settler.
        signals.settler |= self.lanes.has_changes();
        Some(signals)
    }
}

//! Writes down what the proof must know of a store: which partitions were taken, and which outcomes took effect.

use std::{
    collections::BTreeSet,
    fmt,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use pillarbox_core::{
    domain::{Epoch, Lease, NodeId, Partition, PartitionSet},
    port::{Batch, Joining, OwnStore, ReadStore, Renewal, Settled, Taken},
};

use super::{Layer, layer::Answer};

/// What a witness has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Witnessed {
    /// A partition was taken, and its epoch is this from now on.
    Took(Partition, Epoch),
    /// Outcomes of a partition took effect under this epoch; the call began at this time of the witness's clock.
    Settled(Partition, Epoch, u128),
    /// The lease was renewed, for the whole of its time; the call began at this time of the witness's clock.
    Renewed(u128),
    /// The lease is no longer in force, or the node has given it up and joins anew.
    Lapsed,
    /// The lease of this other node had lapsed: the node itself may not have said so.
    Expelled(NodeId),
}

/// The layer that writes down; see the module.
pub struct Witness<P> {
    clock: fn() -> u128,
    pen: P,
    joined: AtomicBool,
}

impl<P: Fn(Witnessed)> Witness<P> {
    /// Tells `pen` what it sees. `clock` gives microseconds, by the clock of the ledgers.
    pub fn new(clock: fn() -> u128, pen: P) -> Self {
        Self { clock, pen, joined: AtomicBool::new(false) }
    }

    fn seen<T>(&self, answer: Option<T>) -> Option<T> {
        if answer.is_none() {
            (self.pen)(Witnessed::Lapsed);
        }
        answer
    }
}

impl<S: ReadStore + OwnStore, P: Fn(Witnessed) + Send + Sync + 'static> Layer<S> for Witness<P> {
    fn join<'a>(&'a self, store: &'a S, joining: &'a Joining) -> Answer<'a, Lease> {
        Box::pin(async move {
            if self.joined.load(Ordering::Relaxed) {
                (self.pen)(Witnessed::Lapsed);
            }
            let lease = store.join(joining).await?;
            self.joined.store(true, Ordering::Relaxed);
            Ok(lease)
        })
    }

    fn renew<'a>(&'a self, store: &'a S, lease: &'a Lease, ttl: Duration) -> Answer<'a, Option<Renewal>> {
        Box::pin(async move {
            let begun = (self.clock)();
            let renewal = self.seen(store.renew(lease, ttl).await?);
            if renewal.is_some() {
                (self.pen)(Witnessed::Renewed(begun));
            }
            Ok(renewal)
        })
    }

    fn expel<'a>(&'a self, store: &'a S, lease: &'a Lease) -> Answer<'a, Option<Vec<NodeId>>> {
        Box::pin(async move {
            let expelled = self.seen(store.expel(lease).await?);
            expelled.iter().flatten().for_each(|node| (self.pen)(Witnessed::Expelled(node.clone())));
            Ok(expelled)
        })
    }

    fn take<'a>(&'a self, store: &'a S, lease: &'a Lease, wanted: PartitionSet) -> Answer<'a, Option<Vec<Taken>>> {
        Box::pin(async move {
            let taken = self.seen(store.take(lease, wanted).await?);
            for taken in taken.iter().flatten() {
                (self.pen)(Witnessed::Took(taken.partition, taken.epoch));
            }
            Ok(taken)
        })
    }

    fn settle<'a>(&'a self, store: &'a S, lease: &'a Lease, batch: &'a Batch) -> Answer<'a, Settled> {
        Box::pin(async move {
            let begun = (self.clock)();
            let settled = store.settle(lease, batch).await?;
            match settled {
                Settled::Applied { stale: 0 } => {
                    let under: BTreeSet<_> =
                        batch.outcomes.iter().map(|outcome| (outcome.partition, outcome.epoch)).collect();
                    under.into_iter().for_each(|(partition, epoch)| {
                        (self.pen)(Witnessed::Settled(partition, epoch, begun));
                    });
                }
                // Some took effect, and nobody says which.
                Settled::Applied { .. } => {}
                Settled::Fenced => (self.pen)(Witnessed::Lapsed),
            }
            Ok(settled)
        })
    }
}

impl<P> fmt::Debug for Witness<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Witness").finish_non_exhaustive()
    }
}

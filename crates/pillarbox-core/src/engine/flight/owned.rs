//! The partitions this node owns, and until when.

use tokio::time::Instant;

use crate::domain::{Epoch, Lease, Partition, PartitionSet};
use crate::port::Taken;

/// Where a partition stands with this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Hand {
    /// Not this node's.
    #[default]
    None,
    /// Read and delivered.
    Active(Epoch),
    /// About to be given up: nothing new is started.
    Leaving(Epoch),
}

/// The lease, its deadline on this process's own clock, and the partitions.
#[derive(Debug)]
pub(crate) struct Owned {
    lease: Option<Lease>,
    deadline: Option<Instant>,
    hands: Box<[Hand; Partition::COUNT]>,
    active: PartitionSet,
    /// Taken, and not yet known to the reader.
    gained: Vec<Taken>,
    /// Partitions are being taken: the database may already show some that this memory does not.
    taking: bool,
    /// Nothing new is started: the outbox shuts down.
    closed: bool,
}

/// The partitions of a moment, each with its epoch.
#[derive(Debug)]
pub(crate) struct Epochs(Box<[Hand; Partition::COUNT]>);

impl Epochs {
    pub(crate) fn of(&self, partition: Partition) -> Option<Epoch> {
        self.0[usize::from(partition.0)].active()
    }
}

impl Hand {
    fn active(self) -> Option<Epoch> {
        match self {
            Self::Active(epoch) => Some(epoch),
            Self::None | Self::Leaving(_) => None,
        }
    }
}

impl Default for Owned {
    fn default() -> Self {
        Self {
            lease: None,
            deadline: None,
            hands: Box::new([Hand::None; Partition::COUNT]),
            active: PartitionSet::EMPTY,
            gained: Vec::new(),
            taking: false,
            closed: false,
        }
    }
}

impl Owned {
    /// The lease is in force until `deadline`, counted from before the renewal was sent.
    pub(crate) fn renewed(&mut self, lease: &Lease, deadline: Instant) {
        if self.lease.as_ref() != Some(lease) {
            self.lease = Some(lease.clone());
        }
        self.deadline = Some(deadline);
    }

    pub(crate) fn lose(&mut self) {
        let closed = self.closed;
        *self = Self { closed, ..Self::default() };
    }

    /// Nothing new is started from now on.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    pub(crate) fn set_taking(&mut self, taking: bool) {
        self.taking = taking;
    }

    pub(crate) fn is_taking(&self) -> bool {
        self.taking
    }

    pub(crate) fn gain(&mut self, taken: Vec<Taken>) {
        self.gained.extend(taken);
    }

    pub(crate) fn gained(&self) -> &[Taken] {
        &self.gained
    }

    pub(crate) fn activate(&mut self, partition: Partition, epoch: Epoch) {
        self.gained.retain(|taken| taken.partition != partition);
        self.hands[usize::from(partition.0)] = Hand::Active(epoch);
        self.active.insert(partition);
    }

    /// Starts nothing more in a partition; those not yet active are kept as they are.
    pub(crate) fn leave(&mut self, partition: Partition) {
        let hand = &mut self.hands[usize::from(partition.0)];
        if let Hand::Active(epoch) = *hand {
            *hand = Hand::Leaving(epoch);
            self.active.remove(partition);
        }
    }

    pub(crate) fn drop(&mut self, partition: Partition) {
        self.hands[usize::from(partition.0)] = Hand::None;
        self.active.remove(partition);
        self.gained.retain(|taken| taken.partition != partition);
    }

    pub(crate) fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// The lease with its deadline.
    pub(crate) fn held(&self) -> Option<(Lease, Instant)> {
        self.lease.clone().zip(self.deadline)
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether a delivery may start now.
    pub(crate) fn may_deliver(&self, now: Instant) -> bool {
        !self.closed && self.deadline.is_some_and(|deadline| now < deadline)
    }

    pub(crate) fn is_active(&self, partition: Partition) -> bool {
        self.active.contains(partition)
    }

    pub(crate) fn is_leaving(&self, partition: Partition) -> bool {
        matches!(self.hands[usize::from(partition.0)], Hand::Leaving(_))
    }

    pub(crate) fn active(&self) -> PartitionSet {
        self.active
    }

    pub(crate) fn active_epoch(&self, partition: Partition) -> Option<Epoch> {
        self.hands[usize::from(partition.0)].active()
    }

    /// The epochs of the active partitions, as they are now.
    pub(crate) fn epochs(&self) -> Epochs {
        Epochs(self.hands.clone())
    }

    /// The epoch under which a write may reserve.
    pub(crate) fn epoch(&self, partition: Partition) -> Option<Epoch> {
        if self.closed { None } else { self.active_epoch(partition) }
    }

    /// Every partition that is read or about to be given up, with its epoch.
    pub(crate) fn in_hand(&self) -> impl Iterator<Item = (Partition, Epoch)> {
        Partition::all().filter_map(|partition| match self.hands[usize::from(partition.0)] {
            Hand::Active(epoch) | Hand::Leaving(epoch) => Some((partition, epoch)),
            Hand::None => None,
        })
    }

    /// Every partition this node knows to be its own.
    pub(crate) fn known(&self) -> PartitionSet {
        let in_hand = Partition::all().filter(|p| self.hands[usize::from(p.0)] != Hand::None);
        in_hand.chain(self.gained.iter().map(|taken| taken.partition)).collect()
    }

    /// How many partitions this node has, active or not.
    pub(crate) fn len(&self) -> usize {
        self.hands.iter().filter(|hand| **hand != Hand::None).count() + self.gained.len()
    }
}

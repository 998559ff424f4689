//! Owning partitions: the node's lease, and who has what.
//!
//! The lease is the node's, and each partition names its owner. All times are the database's. A node that
//! lets its lease lapse is expelled by another: first its lease goes (waiting for a settle under way), then
//! its partitions become free, with a raised epoch.

use std::time::Duration;

use super::{BoxFuture, StoreError};
use crate::domain::{Epoch, Lease, NodeId, Partition, PartitionSet, Seq};

/// What a node tells about itself when it joins.
#[derive(Clone, Debug)]
pub struct Joining {
    /// Its name.
    pub node: NodeId,
    /// How long its lease lasts without renewal.
    pub ttl: Duration,
    /// The routes it can deliver, in the form of `Route`'s display.
    pub routes: Vec<String>,
    /// How many events it may have in flight at once: after an unclean end, so many of its oldest and
    /// newest are suspects.
    pub in_flight: u32,
}

/// A node as the database shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// Its name.
    pub node: NodeId,
    /// Whether its lease is in force; if not, it can be expelled.
    pub live: bool,
    /// What it published: its routes, and notes about itself, which [`Standing`](crate::domain::Standing) reads.
    pub routes: Vec<String>,
}

/// What a renewal saw.
#[derive(Clone, Debug)]
pub struct Renewal {
    /// Every node, this one included.
    pub nodes: Vec<NodeView>,
    /// The owner of each partition.
    pub owners: Box<[Option<NodeId>; Partition::COUNT]>,
}

/// A partition that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Which.
    pub partition: Partition,
    /// Its epoch from now on.
    pub epoch: Epoch,
    /// Where its reading goes on: nothing at or below is waiting, but for what `ReadStore::recall` and
    /// `ReadStore::due` find.
    pub mark: Seq,
    /// How many of its oldest and newest events are suspects, because the last owner ended uncleanly; 0
    /// after a clean release.
    pub suspects: u32,
}

/// A partition that is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// Which.
    pub partition: Partition,
    /// How many suspects its next owner inherits.
    pub suspects: u32,
}

/// The ownership port. Every call but `join` answers `None` when the lease is no longer in force: lapsed,
/// expelled, or of another incarnation. The call has then changed nothing.
///
/// Where a crash of the database undoes what nodes have seen, so that numbers come again, no lease outlives it: every call
/// but `join` then fails with the kind [`Rewound`](super::StoreErrorKind::Rewound), and so do the reads of
/// [`ReadStore`](super::ReadStore), until the node has joined anew.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store of an outbox",
    note = "open one by its URL, as in `SqliteStore::open(\"shop.db\")`, `PostgresStore::open(url)` or `AnyStore::open(url)`",
    note = "or on a pool of your own: `PostgresStore::from_pool(pool)`"
)]
pub trait OwnStore: Send + Sync {
    /// Enters a node. A node of the same name that is already there is replaced as if it had been expelled:
    /// its incarnation ends and its partitions become free, with an epoch raised by one.
    fn join<'a>(&'a self, joining: &'a Joining) -> BoxFuture<'a, Result<Lease, StoreError>>;

    /// Extends the lease to now and `ttl`, by the database's clock. A lapsed lease is not revived.
    fn renew<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> BoxFuture<'a, Result<Option<Renewal>, StoreError>>;

    /// Publishes what others see of the node, in place of the routes with which it joined.
    fn publish<'a>(&'a self, lease: &'a Lease, routes: &'a [String]) -> BoxFuture<'a, Result<Option<()>, StoreError>>;

    /// Expels every node whose lease has lapsed, by the database's clock: ends its incarnation, then frees
    /// its partitions with an epoch raised by one, its last mark and its number of suspects. Returns whom.
    fn expel<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<Option<Vec<NodeId>>, StoreError>>;

    /// Takes those of the partitions that are free, or this node's already (the answer of an earlier call may
    /// have been lost), raises their epochs by one, and leaves the others. In the same transaction the node's
    /// stored mark is lowered to the lowest of theirs: it must hold for all partitions of the node.
    fn take<'a>(
        &'a self,
        lease: &'a Lease,
        partitions: PartitionSet,
    ) -> BoxFuture<'a, Result<Option<Vec<Taken>>, StoreError>>;

    /// Gives up partitions; those that are not this node's are left alone. `mark` is where their
    /// reading goes on. Their epochs stay, until somebody takes them.
    fn release<'a>(
        &'a self,
        lease: &'a Lease,
        partitions: &'a [Released],
        mark: Seq,
    ) -> BoxFuture<'a, Result<Option<()>, StoreError>>;

    /// Ends the lease cleanly. What the node still owns becomes free as in `release`, with no suspects.
    fn leave<'a>(&'a self, lease: &'a Lease, mark: Option<Seq>) -> BoxFuture<'a, Result<Option<()>, StoreError>>;
}

//! Who delivers: nodes, their leases and the epochs of their partitions.

use std::{fmt, sync::Arc};

/// The name of a node: one running outbox with handlers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(Arc<str>);

impl NodeId {
    /// A node of this name.
    pub fn new(name: impl AsRef<str>) -> Self {
        Self(Arc::from(name.as_ref()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Tells the lives of a node of one name apart; raised by the database at every join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub i64);

/// Tells the ownerships of a partition apart; raised whenever the partition changes hands. Handlers get it
/// as a fencing token: of two effects on one key, the one with the higher epoch is the later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub i64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The right of a node to own partitions, as long as the database has not expelled it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// Whose lease it is.
    pub node: NodeId,
    /// In which of its lives.
    pub incarnation: Incarnation,
}

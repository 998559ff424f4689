//! Owning partitions.

use std::{array, time::Duration};

use pillarbox_core::{
    domain::{Incarnation, Lease, NodeId, Partition, PartitionSet, Seq, Timestamp},
    port::{BoxFuture, Fleet, Joining, NodeStatus, NodeView, OwnStore, Released, Renewal, StoreError, Taken},
};

use super::{MemoryStore, tables::Tables};

/// A row of the table of nodes.
pub(super) struct Node {
    incarnation: Incarnation,
    started_at: Timestamp,
    until: Timestamp,
    routes: Vec<String>,
    in_flight: u32,
    // How far it has come, by its last settle.
    pub(super) mark: Option<Seq>,
}

impl Node {
    pub(super) fn is_live(&self, now: Timestamp) -> bool {
        now < self.until
    }
}

impl Tables {
    /// The fence: the node's row if the lease is in force.
    pub(super) fn fence(&mut self, lease: &Lease, now: Timestamp) -> Option<&mut Node> {
        self.nodes.get_mut(&lease.node).filter(|node| node.incarnation == lease.incarnation && node.is_live(now))
    }

    /// Ends the life of a node and frees what it owned; an unclean end raises epochs and leaves suspects.
    fn end(&mut self, name: &NodeId, clean: bool) {
        let Some(node) = self.nodes.remove(name) else {
            return;
        };
        for owned in self.partitions.iter_mut().filter(|p| p.owner.as_ref() == Some(name)) {
            owned.owner = None;
            if let Some(mark) = node.mark {
                owned.mark = mark;
            }
            if clean {
                owned.suspects = 0;
            } else {
                owned.suspects = node.in_flight;
                owned.epoch.0 += 1;
            }
        }
    }

    fn join(&mut self, joining: &Joining, now: Timestamp) -> Lease {
        self.end(&joining.node, false);
        self.incarnations += 1;
        let incarnation = Incarnation(self.incarnations);
        let node = Node {
            incarnation,
            started_at: now,
            until: now.saturating_add(joining.ttl),
            routes: joining.routes.clone(),
            in_flight: joining.in_flight,
            mark: None,
        };
        self.nodes.insert(joining.node.clone(), node);
        Lease { node: joining.node.clone(), incarnation }
    }

    fn renew(&mut self, lease: &Lease, ttl: Duration, now: Timestamp) -> Option<Renewal> {
        self.fence(lease, now)?.until = now.saturating_add(ttl);
        let view = |(name, node): (&NodeId, &Node)| NodeView {
            node: name.clone(),
            live: node.is_live(now),
            routes: node.routes.clone(),
        };
        Some(Renewal {
            nodes: self.nodes.iter().map(view).collect(),
            owners: Box::new(array::from_fn(|number| self.partitions[number].owner.clone())),
        })
    }

    fn publish(&mut self, lease: &Lease, routes: &[String], now: Timestamp) -> Option<()> {
        self.fence(lease, now)?.routes = routes.to_vec();
        Some(())
    }

    pub(super) fn fleet(&self, now: Timestamp) -> Fleet {
        let owned_by = |owner: Option<&NodeId>| {
            Partition::all().filter(|number| self.partitions[usize::from(number.0)].owner.as_ref() == owner).collect()
        };
        let view = |(name, node): (&NodeId, &Node)| NodeStatus {
            node: name.clone(),
            incarnation: node.incarnation,
            started_at: node.started_at,
            until: node.until,
            routes: node.routes.clone(),
            mark: node.mark,
            partitions: owned_by(Some(name)),
        };
        Fleet { nodes: self.nodes.iter().map(view).collect(), free: owned_by(None), now }
    }

    fn expel(&mut self, lease: &Lease, now: Timestamp) -> Option<Vec<NodeId>> {
        self.fence(lease, now)?;
        let lapsed = self.nodes.iter().filter(|(_, node)| !node.is_live(now));
        let lapsed: Vec<NodeId> = lapsed.map(|(name, _)| name.clone()).collect();
        for name in &lapsed {
            self.end(name, false);
        }
        Some(lapsed)
    }

    fn take(&mut self, lease: &Lease, wanted: PartitionSet, now: Timestamp) -> Option<Vec<Taken>> {
        self.fence(lease, now)?;
        let mut taken = Vec::new();
        for partition in wanted.iter() {
            let owned = self.partition(partition);
            if owned.owner.as_ref().is_some_and(|owner| *owner != lease.node) {
                continue;
            }
            owned.owner = Some(lease.node.clone());
            owned.epoch.0 += 1;
            taken.push(Taken { partition, epoch: owned.epoch, mark: owned.mark, suspects: owned.suspects });
        }
        // Should the node die before its next settle, what it took must not inherit the mark that it had
        // reached in other partitions.
        let lowest = taken.iter().map(|taken| taken.mark).min();
        let kept = &mut self.fence(lease, now)?.mark;
        if let (Some(lowest), Some(mark)) = (lowest, kept.as_mut()) {
            *mark = lowest.min(*mark);
        }
        Some(taken)
    }

    fn release(&mut self, lease: &Lease, partitions: &[Released], mark: Seq, now: Timestamp) -> Option<()> {
        self.fence(lease, now)?;
        for released in partitions {
            let owned = self.partition(released.partition);
            if owned.owner.as_ref() == Some(&lease.node) {
                owned.owner = None;
                owned.mark = mark;
                owned.suspects = released.suspects;
            }
        }
        Some(())
    }

    fn leave(&mut self, lease: &Lease, mark: Option<Seq>, now: Timestamp) -> Option<()> {
        let node = self.fence(lease, now)?;
        node.mark = mark.or(node.mark);
        self.end(&lease.node, true);
        Some(())
    }
}

impl OwnStore for MemoryStore {
    fn join<'a>(&'a self, joining: &'a Joining) -> BoxFuture<'a, Result<Lease, StoreError>> {
        Box::pin(async move { Ok(self.run(|tables, now| tables.join(joining, now)).await) })
    }

    fn renew<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> BoxFuture<'a, Result<Option<Renewal>, StoreError>> {
        Box::pin(async move { Ok(self.run(|tables, now| tables.renew(lease, ttl, now)).await) })
    }

    fn publish<'a>(&'a self, lease: &'a Lease, routes: &'a [String]) -> BoxFuture<'a, Result<Option<()>, StoreError>> {
        Box::pin(async move { Ok(self.run(|tables, now| tables.publish(lease, routes, now)).await) })
    }

    fn expel<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<Option<Vec<NodeId>>, StoreError>> {
        Box::pin(async move { Ok(self.run(|tables, now| tables.expel(lease, now)).await) })
    }

    fn take<'a>(
        &'a self,
        lease: &'a Lease,
        partitions: PartitionSet,
    ) -> BoxFuture<'a, Result<Option<Vec<Taken>>, StoreError>> {
        Box::pin(async move { Ok(self.run(|tables, now| tables.take(lease, partitions, now)).await) })
    }

    fn release<'a>(
        &'a self,
        lease: &'a Lease,
        partitions: &'a [Released],
        mark: Seq,
    ) -> BoxFuture<'a, Result<Option<()>, StoreError>> {
        Box::pin(async move { Ok(self.run(|tables, now| tables.release(lease, partitions, mark, now)).await) })
    }

    fn leave<'a>(&'a self, lease: &'a Lease, mark: Option<Seq>) -> BoxFuture<'a, Result<Option<()>, StoreError>> {
        Box::pin(async move { Ok(self.run(|tables, now| tables.leave(lease, mark, now)).await) })
    }
}

//! Who should own which partition.

use super::{NodeId, Partition, PartitionSet};

/// What a node should do about its partitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Free ones to take.
    pub take: PartitionSet,
    /// Owned ones to give up, once their deliveries have settled.
    pub release: PartitionSet,
}

/// Even shares: of `n` live nodes each gets 256 / n partitions, and the first few by name one more.
///
/// Every node computes its own share from what the database shows, and takes only what is free: a partition
/// of a live node is given up by that node alone. Nodes that look at different moments may want the same
/// free partition; the database lets one of them have it.
pub fn share_out(me: &NodeId, live: &[NodeId], owners: &[Option<NodeId>; Partition::COUNT]) -> Share {
    let mut nodes: Vec<&NodeId> = live.iter().collect();
    nodes.sort_unstable();
    nodes.dedup();
    let Ok(rank) = nodes.binary_search(&me) else {
        return Share::default();
    };
    let target = Partition::COUNT / nodes.len() + usize::from(rank < Partition::COUNT % nodes.len());

    let mine: Vec<Partition> = Partition::all().filter(|p| owners[usize::from(p.0)].as_ref() == Some(me)).collect();
    let free = Partition::all().filter(|p| owners[usize::from(p.0)].is_none());
    Share {
        // Nodes start at different places, so that two that join at once seldom want the same.
        take: rotate(free.collect(), rank, nodes.len()).into_iter().take(target.saturating_sub(mine.len())).collect(),
        release: mine.into_iter().skip(target).collect(),
    }
}

fn rotate(mut partitions: Vec<Partition>, rank: usize, nodes: usize) -> Vec<Partition> {
    let start = partitions.len() * rank / nodes;
    partitions.rotate_left(start);
    partitions
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(n: usize) -> NodeId {
        NodeId::new(format!("node-{n:03}"))
    }

    /// Lets every node act in turn until nobody wants anything.
    fn settle(live: &[NodeId], owners: &mut [Option<NodeId>; Partition::COUNT]) -> usize {
        for round in 0.. {
            let mut changed = false;
            for me in live {
                let share = share_out(me, live, owners);
                for p in share.release.iter() {
                    owners[usize::from(p.0)] = None;
                }
                for p in share.take.iter() {
                    assert_eq!(owners[usize::from(p.0)], None, "taken from a live node");
                    owners[usize::from(p.0)] = Some(me.clone());
                }
                changed |= share != Share::default();
            }
            if !changed {
                return round;
            }
        }
        unreachable!("rounds never end")
    }

    proptest! {
        #[test]
        fn shares_become_even_with_no_orphan(
            live in 1..=60_usize,
            start in proptest::collection::vec(proptest::option::of(0..60_usize), Partition::COUNT),
        ) {
            let nodes: Vec<NodeId> = (0..live).map(node).collect();
            // Partitions of nodes that are gone have been set free by the expulsion.
            let mut owners: [Option<NodeId>; Partition::COUNT] =
                std::array::from_fn(|n| start[n].filter(|owner| *owner < live).map(node));
            let rounds = settle(&nodes, &mut owners);
            prop_assert!(rounds <= 3, "{} rounds", rounds);
            let counts: Vec<usize> =
                nodes.iter().map(|n| owners.iter().filter(|o| o.as_ref() == Some(n)).count()).collect();
            prop_assert_eq!(counts.iter().sum::<usize>(), Partition::COUNT);
            prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
        }
    }

    #[test]
    fn a_node_that_is_not_live_wants_nothing() {
        let owners = std::array::from_fn(|_| None);
        assert_eq!(share_out(&node(1), &[node(2)], &owners), Share::default());
    }
}

//! Who should own which partition.

mod load;
#[cfg(test)]
mod simulation;

use std::collections::BTreeMap;

pub use load::{Load, Scales, Standing};

use super::{NodeId, Partition, PartitionSet};

/// The owner of each partition.
pub type Owners = [Option<NodeId>; Partition::COUNT];

/// A live node, and how much of the whole it wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharer {
    /// Its name.
    pub node: NodeId,
    /// Its weight against the others'; 0 wants nothing, because the node is about to leave.
    pub weight: u8,
}

impl Sharer {
    /// A node that wants as much as any other.
    pub fn new(node: NodeId) -> Self {
        Self { node, weight: Standing::FULL }
    }
}

/// What a node should do about its partitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Free ones to take.
    pub take: PartitionSet,
    /// Owned ones to give up, once their deliveries have settled.
    pub release: PartitionSet,
    /// Those that another node, alive or dead, has still to give up.
    pub expect: PartitionSet,
}

/// Who should own what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    nodes: Vec<NodeId>,
    owners: Box<Owners>,
}

/// Shares the partitions out by weight, within one of what is due to each node; with equal weights, evenly within
/// one.
///
/// The answer depends on nothing but the nodes and the owners, so it is the same on every node that sees the same,
/// whatever the order in which it sees them. No partition is without an owner while a node wants any, and as few
/// as possible change hands: a node gives up only what is above its due, and where some get one more than others,
/// these are nodes that have it already.
///
/// A plan is acted upon in parts: each node takes at once what is free of its share, and what belongs to a live node
/// is given up by that node alone. Nodes that look at different moments may want the same free partition; the
/// database lets one of them have it.
pub fn share_out(live: &[Sharer], owners: &Owners) -> Plan {
    let weights: BTreeMap<&NodeId, u8> = live.iter().map(|sharer| (&sharer.node, sharer.weight)).collect();
    let nodes: Vec<NodeId> = weights.keys().map(|node| (*node).clone()).collect();
    let mut plan = Plan { nodes, owners: Box::new([const { None }; Partition::COUNT]) };
    let mut due = dues(&weights, owners);

    let (mut free, mut surplus) = (Vec::new(), Vec::new());
    for (place, owner) in owners.iter().enumerate() {
        match owner {
            None => free.push(place),
            Some(owner) => match due.get_mut(owner) {
                Some(open) if *open > 0 => {
                    *open -= 1;
                    plan.owners[place] = Some(owner.clone());
                }
                _ => surplus.push(place),
            },
        }
    }
    // In turns, and first what is free: whoever lacks something gets a part of it now.
    let mut open = free.into_iter().chain(surplus).peekable();
    due.retain(|_, open| *open > 0);
    while open.peek().is_some() && !due.is_empty() {
        for ((node, left), place) in due.iter_mut().zip(&mut open) {
            plan.owners[place] = Some((*node).clone());
            *left -= 1;
        }
        due.retain(|_, left| *left > 0);
    }
    plan
}

impl Plan {
    /// Who should own a partition; nobody if no node wants any.
    pub fn owner(&self, partition: Partition) -> Option<&NodeId> {
        self.owners[usize::from(partition.0)].as_ref()
    }

    /// What a node should do now, with the owners being what they are. A node that is not live does nothing.
    pub fn share_of(&self, me: &NodeId, owners: &Owners) -> Share {
        let mut share = Share::default();
        if !self.nodes.contains(me) {
            return share;
        }
        for partition in Partition::all() {
            let planned = self.owner(partition) == Some(me);
            match &owners[usize::from(partition.0)] {
                None if planned => share.take.insert(partition),
                Some(owner) if owner == me && !planned => share.release.insert(partition),
                Some(owner) if owner != me && planned => share.expect.insert(partition),
                _ => false,
            };
        }
        share
    }
}

/// How many partitions are due to each node that wants any: by the largest remainder, where a node that has more than
/// the whole part already comes first.
fn dues<'a>(weights: &BTreeMap<&'a NodeId, u8>, owners: &Owners) -> BTreeMap<&'a NodeId, usize> {
    let total: usize = weights.values().map(|weight| usize::from(*weight)).sum();
    let mut has: BTreeMap<&NodeId, usize> = BTreeMap::new();
    for owner in owners.iter().flatten() {
        *has.entry(owner).or_default() += 1;
    }
    let mut due = BTreeMap::new();
    let mut order = Vec::new();
    for (node, weight) in weights.iter().filter(|(_, weight)| **weight > 0) {
        let part = Partition::COUNT * usize::from(*weight);
        let (whole, rest) = (part / total, part % total);
        due.insert(*node, whole);
        order.push((has.get(node).is_some_and(|has| *has > whole), rest, *node));
    }
    // Stable, so that the first by name comes first among equals.
    order.sort_by_key(|(has_more, rest, _)| std::cmp::Reverse((*has_more, *rest)));
    let left = Partition::COUNT - due.values().sum::<usize>();
    for (_, _, node) in order.into_iter().take(left) {
        due.entry(node).and_modify(|due| *due += 1);
    }
    due
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(super) fn node(n: usize) -> NodeId {
        NodeId::new(format!("node-{n:03}"))
    }

    fn even(nodes: impl IntoIterator<Item = usize>) -> Vec<Sharer> {
        nodes.into_iter().map(|n| Sharer::new(node(n))).collect()
    }

    fn owners(of: &[Option<usize>]) -> Owners {
        std::array::from_fn(|n| of[n].map(node))
    }

    fn counts(live: &[Sharer], owners: impl Fn(Partition) -> Option<NodeId>) -> Vec<usize> {
        let has = |node: &NodeId| Partition::all().filter(|p| owners(*p).as_ref() == Some(node)).count();
        live.iter().map(|sharer| has(&sharer.node)).collect()
    }

    /// Owners among more nodes than are live, and free partitions.
    fn any_owners() -> impl Strategy<Value = Vec<Option<usize>>> {
        proptest::collection::vec(proptest::option::of(0..220_usize), Partition::COUNT)
    }

    proptest! {
        #[test]
        fn shares_are_even_within_one_and_nothing_is_left_out(live in 1..=200_usize, of in any_owners()) {
            let (live, owners) = (even(0..live), owners(&of));
            let plan = share_out(&live, &owners);
            let counts = counts(&live, |p| plan.owner(p).cloned());
            prop_assert_eq!(counts.iter().sum::<usize>(), Partition::COUNT, "no orphan");
            prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{:?}", counts);
        }

        #[test]
        fn as_few_as_possible_change_hands(live in 1..=200_usize, of in any_owners()) {
            let (live, owners) = (even(0..live), owners(&of));
            let plan = share_out(&live, &owners);
            let moved = Partition::all()
                .filter(|p| {
                    let owner = owners[usize::from(p.0)].as_ref();
                    owner.is_some_and(|owner| live.iter().any(|s| s.node == *owner) && plan.owner(*p) != Some(owner))
                })
                .count();
            // Whatever is above the whole part must move, but for one each of those that may have one more.
            let (whole, more) = (Partition::COUNT / live.len(), Partition::COUNT % live.len());
            let had = counts(&live, |p| owners[usize::from(p.0)].clone());
            let above: usize = had.iter().map(|had| had.saturating_sub(whole)).sum();
            let keep_one = had.iter().filter(|had| **had > whole).count().min(more);
            prop_assert_eq!(moved, above - keep_one);
        }

        #[test]
        fn every_node_computes_the_same(live in 1..=200_usize, of in any_owners(), seed in any::<u64>()) {
            let (mut seen, owners) = (even(0..live), owners(&of));
            let plan = share_out(&seen, &owners);
            fastrand::Rng::with_seed(seed).shuffle(&mut seen);
            seen.push(seen[0].clone());
            prop_assert_eq!(share_out(&seen, &owners), plan);
        }

        #[test]
        fn shares_of_one_plan_fit_together_and_what_is_free_is_taken(live in 1..=60_usize, of in any_owners()) {
            let (live, mut owners) = (even(0..live), owners(&of));
            let plan = share_out(&live, &owners);
            let mut taken = PartitionSet::EMPTY;
            for sharer in &live {
                let share = plan.share_of(&sharer.node, &owners);
                for partition in share.take.iter() {
                    prop_assert!(taken.insert(partition), "wanted twice");
                    prop_assert_eq!(&owners[usize::from(partition.0)], &None, "taken from another");
                }
            }
            let free: PartitionSet = Partition::all().filter(|p| owners[usize::from(p.0)].is_none()).collect();
            prop_assert_eq!(taken, free, "what is free is taken at once");
            // Acted upon in full, it is what everybody wants.
            for partition in Partition::all() {
                owners[usize::from(partition.0)] = plan.owner(partition).cloned();
            }
            let again = share_out(&live, &owners);
            for sharer in &live {
                prop_assert_eq!(again.share_of(&sharer.node, &owners), Share::default());
            }
        }

        #[test]
        fn weighted_shares_are_within_one_of_what_is_due(
            weights in proptest::collection::vec(0..=Standing::FULL, 1..60),
            of in any_owners(),
        ) {
            let live: Vec<Sharer> =
                weights.iter().enumerate().map(|(n, weight)| Sharer { node: node(n), weight: *weight }).collect();
            let owners = owners(&of);
            let plan = share_out(&live, &owners);
            let total: usize = weights.iter().map(|weight| usize::from(*weight)).sum();
            let counts = counts(&live, |p| plan.owner(p).cloned());
            prop_assert_eq!(counts.iter().sum::<usize>(), if total == 0 { 0 } else { Partition::COUNT });
            for (count, weight) in counts.iter().zip(&weights) {
                let part = Partition::COUNT * usize::from(*weight);
                let whole = part.checked_div(total).unwrap_or(0);
                prop_assert!((whole..=whole + usize::from(*weight > 0)).contains(count), "{} of {}", count, whole);
            }
        }
    }

    #[test]
    fn a_node_that_is_not_live_wants_nothing() {
        let owners = owners(&[Some(1); Partition::COUNT]);
        assert_eq!(share_out(&even([2]), &owners).share_of(&node(1), &owners), Share::default());
    }

    #[test]
    fn a_node_that_leaves_gives_up_everything_and_the_others_expect_it() {
        let owners = owners(&[Some(1); Partition::COUNT]);
        let mut live = even([1, 2, 3]);
        live[0].weight = 0;
        let plan = share_out(&live, &owners);
        assert_eq!(plan.share_of(&node(1), &owners).release, PartitionSet::ALL);
        for other in [2, 3] {
            assert_eq!(plan.share_of(&node(other), &owners).expect.len(), 128);
        }
    }
}

//! Owning partitions.

use std::time::Duration;

use pillarbox_core::{
    domain::{NodeId, Partition, PartitionSet, Seq},
    port::{Batch, OwnStore, PurgeRequest, PurgeScope, Purged, Released, Settled, Taken, UpkeepStore},
};

use super::{
    Backend,
    scene::{LONG, Owner, Scene},
};

/// How long the leases last that a case lets lapse.
const SHORT: Duration = Duration::from_secs(4);
const LAPSE: Duration = Duration::from_secs(5);

fn some(numbers: impl IntoIterator<Item = u8>) -> PartitionSet {
    numbers.into_iter().map(Partition).collect()
}

/// A mark is of a number that was given out: a store may set one back that lies above them all.
async fn with_a_hundred_numbers<B: Backend>() -> Scene<B> {
    let scene = Scene::<B>::new().await;
    assert!(scene.write_to(Partition(0), 100).await.last() >= Some(&Seq(100)));
    scene
}

async fn settle_mark<B: Backend>(scene: &Scene<B>, owner: &Owner, mark: Seq) {
    let batch = Batch { mark: Some(mark), ..Batch::default() };
    assert_eq!(scene.settle_batch(owner, &batch).await, Settled::Applied { stale: 0 });
}

/// D7, O5.
pub async fn a_renewal_shows_every_node_and_owner<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let a = scene.owner_of("a", LONG, some([0, 1, 2])).await;
    let b = scene.owner_of("b", LONG, some([2, 255])).await;
    let renewal = scene.store().renew(&a.lease, LONG).await.expect("renew");
    let mut renewal = renewal.expect("the lease is in force");
    renewal.nodes.sort_by(|a, b| a.node.cmp(&b.node));
    let nodes: Vec<_> = renewal.nodes.iter().map(|view| (view.node.as_str(), view.live)).collect();
    assert_eq!(nodes, [("a", true), ("b", true)]);
    assert_eq!(renewal.nodes[1].routes, ["(\"Order\", \"b\")"]);
    let of = |node: &NodeId| -> PartitionSet {
        let owned = |partition: &Partition| renewal.owners[usize::from(partition.0)].as_ref() == Some(node);
        Partition::all().filter(owned).collect()
    };
    assert_eq!(of(&a.lease.node), some([0, 1, 2]));
    assert_eq!(of(&b.lease.node), some([255]), "what has an owner is not taken");
    assert_eq!(renewal.owners.iter().flatten().count(), 4);
}

/// O7.
pub async fn a_renewal_extends_the_lease<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let lease = scene.join_for("a", SHORT).await;
    for _ in 0..3 {
        scene.backend.pass(SHORT / 2).await;
        assert!(scene.store().renew(&lease, SHORT).await.expect("renew").is_some());
    }
    scene.backend.pass(SHORT / 2).await;
    let other = scene.join("b").await;
    assert!(scene.expel(&other).await.is_empty());
}

/// D7, O5.
pub async fn what_a_node_publishes_is_seen_by_others<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let (a, b) = (scene.join_for("a", SHORT).await, scene.join("b").await);
    let text = ["(\"Order\", \"Placed\")".to_owned(), "@weight=0".to_owned(), "it's \\ \"quoted\" ☂".to_owned()];
    for published in [&text[..], &text[..1], &text[..1], &[]] {
        let answer = scene.store().publish(&a, published).await.expect("publish");
        assert_eq!(answer, Some(()), "also when nothing changes");
        let view = scene.store().renew(&b, LONG).await.expect("renew").expect("a live lease");
        let seen = |name: &str| view.nodes.iter().find(|view| view.node.as_str() == name).expect("it is there").clone();
        assert_eq!(seen("a").routes, published);
        assert_eq!(seen("b").routes, ["(\"Order\", \"b\")"], "the other's are its own");
    }
    scene.backend.pass(LAPSE).await;
    assert_eq!(scene.store().publish(&a, &text).await.expect("publish"), None);
    scene.expel(&b).await;
    assert_eq!(scene.store().publish(&a, &text).await.expect("publish"), None);
}

/// O6: a node that was paused past its lease.
pub async fn a_lapsed_lease_is_not_revived_and_its_node_can_do_nothing<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner_of("a", SHORT, some([1])).await;
    scene.backend.pass(LAPSE).await;
    let (store, lease) = (scene.store(), &owner.lease);
    assert!(store.renew(lease, LONG).await.expect("renew").is_none());
    assert!(store.expel(lease).await.expect("expel").is_none());
    assert!(store.take(lease, PartitionSet::ALL).await.expect("take").is_none());
    let released = [Released { partition: Partition(1), suspects: 0 }];
    assert!(store.release(lease, &released, Seq(99)).await.expect("release").is_none());
    assert!(store.leave(lease, Some(Seq(99))).await.expect("leave").is_none());
    let request =
        PurgeRequest { scope: PurgeScope::ByAge(Duration::ZERO), batch: 10, cursor: None, lease: Some(lease) };
    assert_eq!(store.purge(request).await.expect("purge"), Purged::Fenced);

    let watcher = scene.join("b").await;
    let view = store.renew(&watcher, LONG).await.expect("renew").expect("a live lease");
    let node = view.nodes.iter().find(|view| view.node == lease.node).expect("the node is still there");
    assert!(!node.live);
    assert_eq!(view.owners[1].as_ref(), Some(&lease.node), "what it owned is its own until it is expelled");
    assert!(view.owners[2].is_none(), "it has taken nothing more");
    assert!(scene.take(&watcher, some([1])).await.is_empty());
    assert_eq!(scene.expel(&watcher).await, std::slice::from_ref(&lease.node));
    let taken = scene.take(&watcher, some([1])).await;
    assert_eq!(taken[0].mark, Seq(0), "the refused calls have moved nothing");
}

/// P2, P3.
pub async fn only_lapsed_nodes_are_expelled<B: Backend>() {
    let scene = Scene::<B>::new().await;
    scene.owner_of("long", LONG, some([1])).await;
    scene.owner_of("short", SHORT, some([2])).await;
    let judge = scene.join("judge").await;
    assert!(scene.expel(&judge).await.is_empty());
    scene.backend.pass(LAPSE).await;
    assert_eq!(scene.expel(&judge).await, [NodeId::new("short")]);
    assert!(scene.expel(&judge).await.is_empty(), "only once");
    let taken = scene.take(&judge, some([1, 2])).await;
    assert_eq!(taken.iter().map(|taken| taken.partition).collect::<PartitionSet>(), some([2]));
}

/// P7, D13.
pub async fn the_partitions_of_an_expelled_node_are_taken_with_a_raised_epoch_and_suspects<B: Backend>() {
    let scene = with_a_hundred_numbers::<B>().await;
    let old = scene.owner_of("old", SHORT, some([1, 2])).await;
    assert!(old.taken.iter().all(|taken| taken.suspects == 0));
    settle_mark(&scene, &old, Seq(77)).await;
    scene.backend.pass(LAPSE).await;
    let lease = scene.join("new").await;
    scene.expel(&lease).await;
    for taken in scene.take(&lease, some([1, 2, 3])).await {
        if taken.partition == Partition(3) {
            assert_eq!((taken.suspects, taken.mark), (0, Seq(0)));
        } else {
            assert_eq!(taken.epoch.0, old.epoch(taken.partition).0 + 2, "one for the end, one for the taking");
            assert_eq!(taken.suspects, 2, "as many as the node could have in flight");
            assert_eq!(taken.mark, Seq(77));
        }
    }
}

/// O9: what a node took last may lie far behind what it had before, and it may die before it settles.
pub async fn a_partition_taken_late_does_not_inherit_the_mark_of_its_dead_owner<B: Backend>() {
    let scene = with_a_hundred_numbers::<B>().await;
    let mut old = scene.owner_of("old", SHORT, some([1])).await;
    settle_mark(&scene, &old, Seq(100)).await;
    old.taken.extend(scene.take(&old.lease, some([2])).await);
    assert_eq!(old.taken(Partition(2)).mark, Seq(0));
    scene.backend.pass(LAPSE).await;
    let lease = scene.join("new").await;
    scene.expel(&lease).await;
    let taken = scene.take(&lease, some([2])).await;
    assert_eq!(taken[0].mark, Seq(0), "rows of this partition up to 100 would be lost");
}

/// O7, D12.
pub async fn a_released_partition_is_free_at_once_with_its_mark_and_suspects<B: Backend>() {
    let scene = with_a_hundred_numbers::<B>().await;
    let old = scene.owner_of("old", LONG, some([1, 2])).await;
    let next = scene.owner_of("next", LONG, some([3])).await;
    let released =
        [(1, 0), (2, 5), (3, 9), (4, 9)].map(|(number, suspects)| Released { partition: Partition(number), suspects });
    let release = scene.store().release(&old.lease, &released, Seq(42)).await;
    release.expect("release").expect("the lease is in force");
    let taken = scene.take(&next.lease, some([1, 2, 4])).await;
    let view = |taken: &Taken| (taken.partition.0, taken.mark, taken.suspects);
    let taken_view: Vec<_> = taken.iter().map(view).collect();
    let expected = [(1, Seq(42), 0), (2, Seq(42), 5), (4, Seq(0), 0)];
    assert_eq!(taken_view, expected, "what was not its own is left alone");
    assert_eq!(taken[0].epoch.0, old.epoch(Partition(1)).0 + 1, "one for the taking");
}

/// O7, D12.
pub async fn a_node_that_leaves_hands_over_without_suspects<B: Backend>() {
    let scene = with_a_hundred_numbers::<B>().await;
    let next = scene.join("next").await;
    for (name, mark, expected) in [("a", Some(Seq(9)), Seq(9)), ("b", None, Seq(7))] {
        let node = scene.owner_of(name, LONG, some([1, 2])).await;
        assert_eq!(node.taken.len(), 2);
        settle_mark(&scene, &node, Seq(7)).await;
        let leave = scene.store().leave(&node.lease, mark).await;
        leave.expect("leave").expect("the lease is in force");
        assert!(scene.store().renew(&node.lease, LONG).await.expect("renew").is_none());
        let taken = scene.take(&next, some([1, 2])).await;
        assert_eq!(taken.len(), 2);
        for taken in taken {
            assert_eq!(taken.epoch.0, node.epoch(taken.partition).0 + 1, "one for the taking");
            assert_eq!((taken.mark, taken.suspects), (expected, 0));
        }
        let released = [1, 2].map(|number| Released { partition: Partition(number), suspects: 0 });
        let release = scene.store().release(&next, &released, Seq(0)).await;
        release.expect("release").expect("the lease is in force");
    }
    let view = scene.store().renew(&next, LONG).await.expect("renew").expect("a live lease");
    assert_eq!(view.nodes.len(), 1);
}

/// P9: a process started twice under one name, or again after a crash.
pub async fn a_node_of_the_same_name_replaces_the_former<B: Backend>() {
    let scene = with_a_hundred_numbers::<B>().await;
    let old = scene.owner_of("twin", LONG, some([1, 2])).await;
    settle_mark(&scene, &old, Seq(5)).await;
    let new = scene.owner_of("twin", LONG, some([1])).await;
    assert!(new.lease.incarnation > old.lease.incarnation);
    assert!(scene.store().renew(&old.lease, LONG).await.expect("renew").is_none());
    assert_eq!(new.taken.len(), 1, "its partitions became free");
    let taken = &new.taken[0];
    assert_eq!(taken.epoch.0, old.epoch(Partition(1)).0 + 2, "one for the end, one for the taking");
    assert_eq!((taken.mark, taken.suspects), (Seq(5), 2));
    let renewal = scene.store().renew(&new.lease, LONG).await.expect("renew");
    let owners = renewal.expect("the lease is in force").owners;
    assert_eq!(owners.iter().flatten().count(), 1);
}

/// P9: also when the former life was ended long ago.
pub async fn a_later_life_has_a_higher_incarnation<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let first = scene.join("a").await;
    scene.store().leave(&first, None).await.expect("leave").expect("the lease is in force");
    let second = scene.join("a").await;
    assert!(second.incarnation > first.incarnation);
    assert!(scene.store().renew(&first, LONG).await.expect("renew").is_none());
}

/// O6.
pub async fn every_take_raises_the_epoch<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let lease = scene.join("a").await;
    let mut last = None;
    for _ in 0..3 {
        let taken = scene.take(&lease, some([9])).await;
        assert!(last.is_none_or(|last| taken[0].epoch > last));
        // The answer may have been lost: what is its own already is given again.
        let again = scene.take(&lease, some([9])).await;
        assert!(again[0].epoch > taken[0].epoch);
        last = Some(again[0].epoch);
        let released = [Released { partition: Partition(9), suspects: 0 }];
        let release = scene.store().release(&lease, &released, Seq(0)).await;
        release.expect("release").expect("the lease is in force");
    }
}

/// P2, O5.
pub async fn nodes_that_take_at_once_get_disjoint_partitions<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let other = scene.backend.second_handle().await;
    let (a, b) = (scene.join("a").await, scene.join("b").await);
    let (mine, theirs) = tokio::join!(scene.store().take(&a, PartitionSet::ALL), other.take(&b, PartitionSet::ALL),);
    let set = |taken: Option<Vec<Taken>>| -> Vec<Partition> {
        let taken = taken.expect("the lease is in force");
        taken.into_iter().map(|taken| taken.partition).collect()
    };
    let mut all = set(mine.expect("take"));
    all.extend(set(theirs.expect("take")));
    all.sort_unstable();
    assert_eq!(all, Partition::all().collect::<Vec<_>>());
}

/// P7: several may notice at once that a node has died.
pub async fn a_node_is_expelled_by_one_of_those_that_try<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let other = scene.backend.second_handle().await;
    let old = scene.owner_of("old", SHORT, some([1])).await;
    let (a, b) = (scene.join("a").await, scene.join("b").await);
    scene.backend.pass(LAPSE).await;
    let (first, second) = tokio::join!(scene.store().expel(&a), other.expel(&b));
    let mut expelled = first.expect("expel").expect("a live lease");
    expelled.extend(second.expect("expel").expect("a live lease"));
    assert_eq!(expelled, [old.lease.node]);
    assert_eq!(scene.take(&a, some([1])).await.len(), 1);
}

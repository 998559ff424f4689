//! Held keys.

use std::time::Duration;

use pillarbox_core::{
    domain::{Key, Seq, Status},
    port::{AdminStore, Batch, Change, Hold, HoldChange, HoldKind, Settled},
};

use super::{
    Backend,
    scene::{Scene, dead, keyed, operator, partition_of, retry},
};

fn overflow(key: &str, from: Seq) -> Hold {
    Hold { partition: partition_of(key), key: Key::from(key), kind: HoldKind::Overflow, from }
}

fn dead_head(key: &str, from: Seq) -> Hold {
    Hold { kind: HoldKind::DeadHead, ..overflow(key, from) }
}

fn clear(key: &str) -> HoldChange {
    HoldChange::Clear { partition: partition_of(key), key: Key::from(key) }
}

/// O3.
pub async fn a_dead_head_holds_its_key_if_it_shall<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let written = scene.write([keyed("a"), keyed("b"), keyed("a")]).await;
    scene.settle_one(&owner, written[0], dead(true)).await;
    scene.settle_one(&owner, written[1], dead(false)).await;
    assert_eq!(scene.holds(&owner).await, [dead_head("a", written[0])]);
    assert!(scene.found(written[0]).await.holds_key);
    assert!(!scene.found(written[1]).await.holds_key);
    assert!(!scene.found(written[2]).await.holds_key, "a follower holds nothing");
    assert_eq!(scene.lane("a", written[0]).await, [written[2]]);
}

/// D6 of the design.
pub async fn a_hold_is_entered_replaced_and_cleared<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let set = |key, from| HoldChange::Set(overflow(key, Seq(from)));
    scene.change_holds(&owner, vec![set("a", 5), set("b", 6)]).await;
    let mut holds = scene.holds(&owner).await;
    holds.sort_by_key(|hold| hold.from);
    assert_eq!(holds, [overflow("a", Seq(5)), overflow("b", Seq(6))]);
    scene.change_holds(&owner, vec![set("a", 9)]).await;
    scene.change_holds(&owner, vec![clear("b"), clear("nobody")]).await;
    assert_eq!(scene.holds(&owner).await, [overflow("a", Seq(9))], "a key has at most one hold");
}

/// The contract of `Batch`.
pub async fn changes_to_holds_are_applied_in_order<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let set = |key, from| HoldChange::Set(overflow(key, Seq(from)));
    let changes = vec![set("a", 1), clear("a"), set("a", 2), set("b", 3), clear("b"), set("a", 4)];
    scene.change_holds(&owner, changes).await;
    assert_eq!(scene.holds(&owner).await, [overflow("a", Seq(4))]);
}

/// The contract of `HoldChange::Set`.
pub async fn an_overflow_never_replaces_a_dead_head<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let written = scene.write([keyed("a"), keyed("a")]).await;
    scene.settle_one(&owner, written[0], dead(true)).await;
    let set = HoldChange::Set(overflow("a", written[1]));
    scene.change_holds(&owner, vec![set.clone()]).await;
    assert_eq!(scene.holds(&owner).await, [dead_head("a", written[0])]);
    scene.change_holds(&owner, vec![clear("a"), set]).await;
    assert_eq!(scene.holds(&owner).await, [overflow("a", written[1])], "once cleared, it can");
}

/// O3: the head of an overflowing key may die.
pub async fn a_dead_head_replaces_an_overflow<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let written = scene.write([keyed("a"), keyed("a")]).await;
    scene.change_holds(&owner, vec![HoldChange::Set(overflow("a", written[0]))]).await;
    scene.settle_one(&owner, written[0], dead(true)).await;
    assert_eq!(scene.holds(&owner).await, [dead_head("a", written[0])]);
}

/// The contract of `Batch`: holds come after the outcomes.
pub async fn a_clear_in_the_same_batch_undoes_the_hold_of_a_dead_head<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let seq = scene.write_one(keyed("a")).await;
    let batch =
        Batch { outcomes: vec![scene.outcome(&owner, seq, dead(true)).await], holds: vec![clear("a")], mark: None };
    assert_eq!(scene.settle_batch(&owner, &batch).await, Settled::Applied { stale: 0 });
    assert!(scene.holds(&owner).await.is_empty());
}

/// U4, O3.
pub async fn a_replayed_head_holds_its_key_until_the_owner_clears_it<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let written = scene.write([keyed("a"), keyed("a")]).await;
    scene.settle_one(&owner, written[0], dead(true)).await;
    scene.store().replay(&written[..1], &operator()).await.expect("replay");
    assert_eq!(scene.holds(&owner).await, [dead_head("a", written[0])]);
    assert_eq!(scene.lane("a", written[0]).await, written, "the head is pending again");
    scene.settle_one(&owner, written[0], retry(Duration::ZERO)).await;
    assert_eq!(scene.holds(&owner).await, [dead_head("a", written[0])]);
    let batch = Batch {
        outcomes: vec![scene.outcome(&owner, written[0], Change::Done).await],
        holds: vec![clear("a")],
        mark: None,
    };
    scene.settle_batch(&owner, &batch).await;
    assert!(scene.holds(&owner).await.is_empty());
}

/// O3: an operator frees a key by its dead head, so the hold must name the one that is dead.
pub async fn the_next_head_that_dies_takes_the_hold_over<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let written = scene.write([keyed("a"), keyed("a"), keyed("a")]).await;
    scene.settle_one(&owner, written[0], dead(true)).await;
    scene.store().replay(&written[..1], &operator()).await.expect("replay");
    scene.settle_one(&owner, written[0], Change::Done).await;
    scene.settle_one(&owner, written[1], dead(true)).await;
    assert!(scene.found(written[1]).await.holds_key);
    assert_eq!(scene.holds(&owner).await, [dead_head("a", written[1])]);
    let skipped = scene.store().skip(&written, &operator()).await.expect("skip");
    assert_eq!(skipped, [written[1]]);
    assert_eq!(scene.found(written[1]).await.status, Status::Dead);
}

/// O4: keys are compared to the byte.
pub async fn keys_that_look_alike_are_held_apart<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let alike = ["key", "Key", "key ", "ké", "ke\u{301}"];
    let written = scene.write(alike.map(keyed)).await;
    scene.settle_one(&owner, written[0], dead(true)).await;
    assert_eq!(scene.holds(&owner).await, [dead_head("key", written[0])]);
    for (key, seq) in alike.iter().zip(&written).skip(1) {
        assert_eq!(scene.lane(key, Seq(0)).await, [*seq]);
    }
}

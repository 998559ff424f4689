//! The fence: who lost his lease writes nothing.

use std::time::Duration;

use pillarbox_core::{
    domain::{PartitionSet, Seq},
    port::{Batch, Change, Hold, HoldChange, HoldKind, ReadStore, Settled},
};

use super::{
    Backend,
    scene::{Owner, Scene, dead, keyed, partition_of, retry},
};

/// P4, O6.
pub async fn nothing_is_written_once_the_lease_has_lapsed<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = lapsing(&scene).await;
    let attempt = Attempt::prepare(&scene, &owner).await;
    scene.backend.pass(Duration::from_secs(5)).await;
    attempt.is_fenced(&scene, &owner).await;
}

/// P4, O6.
pub async fn nothing_is_written_once_the_node_was_expelled<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = lapsing(&scene).await;
    let attempt = Attempt::prepare(&scene, &owner).await;
    scene.backend.pass(Duration::from_secs(5)).await;
    let other = scene.join("other").await;
    assert_eq!(scene.expel(&other).await, std::slice::from_ref(&owner.lease.node));
    attempt.is_fenced(&scene, &owner).await;
}

/// P4, P9: a process started twice under one name.
pub async fn nothing_is_written_by_a_former_life_of_the_node<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let attempt = Attempt::prepare(&scene, &owner).await;
    scene.join(owner.lease.node.as_str()).await;
    attempt.is_fenced(&scene, &owner).await;
}

async fn lapsing<B: Backend>(scene: &Scene<B>) -> Owner {
    scene.owner_of("lapsing", Duration::from_secs(4), PartitionSet::ALL).await
}

/// A batch with something of everything, and how things stood before it.
struct Attempt {
    batch: Batch,
    written: Vec<Seq>,
}

impl Attempt {
    async fn prepare<B: Backend>(scene: &Scene<B>, owner: &Owner) -> Self {
        let written = scene.write((0..5).map(|n| keyed(&format!("k{n}")))).await;
        let changes = [Change::Done, Change::Delete, retry(Duration::ZERO), dead(true), Change::Interrupted];
        let mut outcomes = Vec::new();
        for (seq, change) in written.iter().zip(changes) {
            outcomes.push(scene.outcome(owner, *seq, change).await);
        }
        let hold = Hold { partition: partition_of("k4"), key: "k4".into(), kind: HoldKind::Overflow, from: written[4] };
        let batch = Batch { outcomes, holds: vec![HoldChange::Set(hold)], mark: Some(written[4]) };
        Self { batch, written }
    }

    async fn is_fenced<B: Backend>(&self, scene: &Scene<B>, owner: &Owner) {
        assert_eq!(scene.settle_batch(owner, &self.batch).await, Settled::Fenced);
        let start = scene.store().start(&owner.lease, self.written[0]).await.expect("start");
        assert_eq!(start, None);
        assert_eq!(scene.fresh().await, self.written, "every row is as it was");
        for seq in &self.written {
            assert_eq!(scene.record(*seq).await.starts, 0);
        }
        let watcher = scene.join("watcher").await;
        scene.expel(&watcher).await;
        let taken = scene.take(&watcher, PartitionSet::ALL).await;
        let recall = scene.store().recall(&taken).await.expect("recall");
        assert!(recall.holds.is_empty(), "a fenced settle held a key");
        for taken in taken {
            assert!(taken.mark < self.written[0], "a fenced settle moved the mark");
        }
    }
}

//! Migrations, purging and wake-ups.

use std::time::Duration;

use futures_util::FutureExt;
use pillarbox_core::{
    domain::{Partition, PartitionSet, Seq},
    port::{
        AdminStore, Change, OwnStore, PurgeRequest, PurgeScope, Purged, Released, StoreError, UpkeepStore, WakeStore,
    },
};

use super::{
    Backend,
    scene::{LONG, Scene, dead, event, events, keyed, operator, retry},
};

const SECOND: Duration = Duration::from_secs(1);

fn finished(done: Duration, dead: Option<Duration>) -> PurgeScope {
    PurgeScope::Finished { done, dead }
}

/// Runs a purge to its end; gives the sizes of its batches.
async fn purge<B: Backend>(scene: &Scene<B>, scope: PurgeScope, batch: u32) -> Vec<u64> {
    let mut sizes = Vec::new();
    let mut cursor = None;
    for _ in 0..100 {
        let request = PurgeRequest { scope, batch, cursor, lease: None };
        match scene.store().purge(request).await.expect("purge") {
            Purged::Removed { rows, next } => {
                sizes.push(rows);
                cursor = next;
            }
            Purged::Fenced => panic!("fenced without a lease"),
        }
        if cursor.is_none() {
            return sizes;
        }
    }
    panic!("the purge comes to no end: {sizes:?}");
}

async fn left<B: Backend>(scene: &Scene<B>) -> Vec<Seq> {
    scene.all().await.into_iter().map(|found| found.seq).collect()
}

/// S3.
pub async fn migrating_twice_and_at_once_is_harmless<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let other = scene.backend.second_handle().await;
    let seq = scene.write_one(event()).await;
    let both = tokio::join!(scene.store().migrate(), other.migrate());
    let checked: Result<(), StoreError> = both.0.and(both.1);
    checked.expect("migrate");
    scene.store().check().await.expect("check");
    other.check().await.expect("check");
    assert_eq!(scene.fresh().await, [seq]);
}

/// U1.
pub async fn a_purge_removes_what_was_finished_long_enough_ago<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let written = scene.write(events(6)).await;
    scene.settle_one(&owner, written[0], Change::Done).await;
    scene.settle_one(&owner, written[1], dead(false)).await;
    scene.settle_one(&owner, written[2], retry(Duration::ZERO)).await;
    scene.backend.pass(SECOND * 6).await;
    scene.settle_one(&owner, written[3], Change::Done).await;
    scene.settle_one(&owner, written[4], dead(false)).await;

    assert_eq!(purge(&scene, finished(LONG, Some(LONG)), 100).await.iter().sum::<u64>(), 0);
    purge(&scene, finished(SECOND * 5, None), 100).await;
    assert_eq!(left(&scene).await, written[1..], "DEAD ones have a retention of their own");
    purge(&scene, finished(SECOND * 5, Some(SECOND * 5)), 100).await;
    assert_eq!(left(&scene).await, written[2..], "age counts from the end, not from the insert");
    scene.backend.pass(SECOND * 6).await;
    purge(&scene, finished(SECOND * 5, Some(SECOND * 5)), 100).await;
    assert_eq!(left(&scene).await, [written[2], written[5]], "pending rows stay, whatever their age");
}

/// U1.
pub async fn a_purge_goes_in_batches_to_its_end<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let written = scene.write(events(25)).await;
    let mut outcomes = Vec::new();
    for (at, seq) in written.iter().enumerate() {
        if at % 5 != 4 {
            outcomes.push(scene.outcome(&owner, *seq, Change::Done).await);
        }
    }
    scene.settle(&owner, outcomes).await;
    scene.backend.pass(SECOND * 2).await;
    let sizes = purge(&scene, finished(SECOND, None), 3).await;
    assert!(sizes.iter().all(|size| *size <= 3), "{sizes:?}");
    assert_eq!(sizes.iter().sum::<u64>(), 20);
    assert_eq!(left(&scene).await.len(), 5);
    assert_eq!(scene.fresh().await.len(), 5);
}

/// U1, O3.
pub async fn a_dead_head_that_holds_its_key_is_not_purged<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let written = scene.write([keyed("a"), keyed("b"), keyed("a")]).await;
    scene.settle_one(&owner, written[0], dead(true)).await;
    scene.settle_one(&owner, written[1], dead(false)).await;
    scene.backend.pass(SECOND * 2).await;
    let scope = finished(SECOND, Some(SECOND));
    purge(&scene, scope, 100).await;
    assert_eq!(left(&scene).await, [written[0], written[2]]);
    scene.store().skip(&written[..1], &operator()).await.expect("skip");
    purge(&scene, scope, 100).await;
    assert_eq!(left(&scene).await, [written[2]], "once the key is free, it goes");
}

/// U2.
pub async fn a_purge_by_age_removes_rows_of_every_status<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let written = scene.write(events(4)).await;
    scene.settle_one(&owner, written[0], Change::Done).await;
    scene.settle_one(&owner, written[1], dead(false)).await;
    scene.settle_one(&owner, written[2], retry(LONG)).await;
    scene.backend.pass(SECOND * 6).await;
    let young = scene.write_one(event()).await;
    let sizes = purge(&scene, PurgeScope::ByAge(SECOND * 5), 3).await;
    assert!(sizes.iter().all(|size| *size <= 3), "{sizes:?}");
    assert_eq!(left(&scene).await, [young]);
}

/// U1: by one node at a time, and by none whose time is over.
pub async fn a_purge_needs_the_lease_it_names<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let seq = scene.write_one(event()).await;
    scene.settle_one(&owner, seq, Change::Done).await;
    scene.backend.pass(SECOND * 2).await;
    let purge = async |lease| {
        let request = PurgeRequest { scope: finished(SECOND, None), batch: 10, cursor: None, lease: Some(lease) };
        scene.store().purge(request).await.expect("purge")
    };
    let twin = scene.join("owner").await;
    assert_eq!(purge(&owner.lease).await, Purged::Fenced);
    assert_eq!(left(&scene).await, [seq]);
    assert!(matches!(purge(&twin).await, Purged::Removed { rows: 1, .. }));
}

/// P8: hints may get lost, but they must not fail, and waiting for news may be given up at any time.
pub async fn hints_are_taken_and_a_wait_for_news_can_be_dropped<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let other = scene.backend.second_handle().await;
    for _ in 0..3 {
        if let Some(news) = other.news().now_or_never() {
            news.expect("news");
        }
        scene.store().hint(PartitionSet::ALL).await.expect("hint");
        scene.store().hint(PartitionSet::EMPTY).await.expect("hint");
    }
    let seq = scene.write_one(event()).await;
    assert_eq!(scene.fresh().await, [seq]);
}

/// O7: whoever waits for partitions hears of it when a node joins, and when one releases something.
pub async fn a_change_among_the_nodes_is_news_to_the_others<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let other = scene.backend.second_handle().await;
    let released = |n: u8| Released { partition: Partition(n), suspects: 0 };
    // When the wait has begun is not known, so it happens until it is heard.
    let joins = async {
        for n in 0.. {
            scene.join(&format!("newcomer-{n}")).await;
            scene.store().hint_fleet().await.expect("hint");
            tokio::time::sleep(SECOND / 5).await;
        }
    };
    assert_heard(&other, joins).await;
    let releases = async {
        for n in 0..=u8::MAX {
            scene.store().release(&owner.lease, &[released(n)], Seq(0)).await.expect("release").expect("the lease");
            scene.store().hint_fleet().await.expect("hint");
            tokio::time::sleep(SECOND / 5).await;
        }
    };
    assert_heard(&other, releases).await;
}

async fn assert_heard(store: &impl WakeStore, changes: impl Future<Output = ()>) {
    // Where one connection hears both, this is what listens on it.
    let listen = async { while store.news().await.is_ok() {} };
    let heard = async {
        tokio::select! {
            news = store.fleet_news() => news.expect("news"),
            () = listen => panic!("no news"),
            () = changes => panic!("everything has changed, and nobody has heard of it"),
        }
    };
    tokio::time::timeout(SECOND * 20, heard).await.expect("to be heard");
}

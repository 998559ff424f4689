//! Decision 4: numbers become visible out of order.

use pillarbox_core::port::TransactStore;
use pillarbox_testkit::{Call, probe::Which};

use super::{Stage, event, keyed, write};

/// P1: a lower number that commits late is delivered, whether or not a successor follows, with and without a key.
#[tokio::test(start_paused = true)]
async fn a_late_commit_of_a_lower_number_is_delivered() {
    for late in [event(), keyed("k")] {
        let stage = Stage::new();
        let outbox = stage.single().start().await.unwrap();
        let mut tx = outbox.store().begin().await.unwrap();
        let receipt = outbox.write(&mut tx, late).await.unwrap();
        let mut ids = receipt.ids().to_vec();
        // Dropped: nobody tells the node of the commit.
        drop(receipt);
        ids.extend(write(&outbox, [event(), keyed("other")]).await);
        stage.probe.wait_for(2).await;
        stage.read_through().await;
        outbox.store().commit(tx).await.unwrap();
        stage.probe.wait_for(3).await;
        outbox.shutdown().await;
        stage.probe.assert_each_once(&ids);
    }
}

/// P1: also by the next owner, which begins where the last one stopped.
#[tokio::test(start_paused = true)]
async fn a_number_that_commits_after_a_restart_is_delivered() {
    let stage = Stage::new();
    let outbox = stage.single().start().await.unwrap();
    let mut tx = outbox.store().begin().await.unwrap();
    let receipt = outbox.write(&mut tx, keyed("k")).await.unwrap();
    let mut ids = receipt.ids().to_vec();
    drop(receipt);
    ids.extend(write(&outbox, (0..20).map(|_| event())).await);
    stage.probe.wait_for(20).await;
    stage.read_through().await;
    outbox.shutdown().await;
    let outbox = stage.single().start().await.unwrap();
    stage.read_through().await;
    stage.store.commit(tx).await.unwrap();
    stage.probe.wait_for(21).await;
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
}

/// O8: T1 holds k's lock and writes 1; an unrelated 2 is read; T1 commits, and T2, which waited, writes k/3. Their
/// order is 1, 3, whether one read finds both or each finds one.
#[tokio::test(start_paused = true)]
async fn transactions_that_serialise_on_their_aggregate_keep_their_order() {
    for in_one_read in [true, false] {
        let stage = Stage::new();
        let outbox = stage.single().start().await.unwrap();
        let mut first = outbox.store().begin().await.unwrap();
        let receipt = outbox.write(&mut first, keyed("k")).await.unwrap();
        let mut ids = receipt.ids().to_vec();
        ids.extend(write(&outbox, [event(), keyed("unrelated")]).await);
        stage.probe.wait_for(2).await;
        stage.read_through().await;
        let reader = in_one_read.then(|| stage.faults().stop_before(Call::Page));
        if let Some(reader) = &reader {
            reader.reached().await;
        }
        outbox.store().commit(first).await.unwrap();
        receipt.confirm();
        ids.extend(write(&outbox, [keyed("k")]).await);
        if let Some(reader) = &reader {
            reader.open();
        }
        stage.probe.wait_for(4).await;
        outbox.shutdown().await;
        stage.probe.assert_each_once(&ids);
        stage.probe.assert_in_order_per_key();
        stage.probe.assert_no_overlap();
    }
}

/// O8: a lower number that commits late goes to its place among those of its key that wait.
#[tokio::test(start_paused = true)]
async fn a_late_commit_goes_before_the_higher_numbers_that_wait() {
    let stage = Stage::new();
    let outbox = stage.single().start().await.unwrap();
    let head = stage.probe.stop(Which::any(), 1);
    write(&outbox, [keyed("k")]).await;
    head.reached().await;
    let mut tx = outbox.store().begin().await.unwrap();
    let receipt = outbox.write(&mut tx, keyed("k")).await.unwrap();
    write(&outbox, [keyed("k"), keyed("k")]).await;
    stage.read_through().await;
    outbox.store().commit(tx).await.unwrap();
    receipt.confirm();
    stage.read_through().await;
    head.open();
    stage.probe.wait_for(4).await;
    outbox.shutdown().await;
    stage.probe.assert_in_order_per_key();
}

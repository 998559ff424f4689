//! The engine on this store: the events of a key, one after another.

use std::time::Duration;

use pillarbox_core::{
    HandlerError, Outbox, RetryPolicy,
    domain::Status,
    engine::OnDeadHead,
    port::{Actor, Query},
};

use super::{
    Backend,
    stage::{Stage, event, keyed, write},
};
use crate::probe::Which;

/// O1, O8: the events of a key run one after another in the order of their writing, keys side by side.
pub async fn keys_run_side_by_side_and_each_in_order<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let outbox = stage.single().await.start().await.expect("start");
    let gate = stage.probe.stop(Which::of_key("slow"), 1);
    let of = |n: usize| keyed(["slow", "a", "b"][n % 3]);
    let first = write(&outbox, (0..30).map(of)).await;
    let second = write(&outbox, (0..30).map(of)).await;
    stage.probe.wait_for(40).await;
    assert_eq!(stage.probe.log().seqs_of_key("slow").len(), 1, "its first event still runs");
    gate.open();
    stage.probe.wait_for(60).await;
    outbox.shutdown().await;
    stage.probe.assert_each_once(&[first, second].concat());
    stage.probe.assert_in_order_per_key();
    stage.probe.assert_no_overlap();
}

/// O2: a failed event holds back its key's later ones, and no other key.
pub async fn a_failed_event_holds_back_its_key_alone<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let outbox = stage.single().await.start().await.expect("start");
    stage.probe.fail(Which::of_key("k"), 2);
    let ids = write(&outbox, [keyed("k"), keyed("k"), keyed("free"), event()]).await;
    stage.probe.wait_for(4).await;
    outbox.shutdown().await;
    let of_key: Vec<_> = stage.probe.log().ids().into_iter().filter(|id| *id == ids[0] || *id == ids[1]).collect();
    assert_eq!(of_key, [ids[0], ids[0], ids[0], ids[1]]);
    stage.until_count(Status::Done, 4).await;
}

/// O2: without `stop_on_first_failure` the later ones go on meanwhile.
pub async fn later_events_go_on_where_failures_do_not_stop_them<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let slow = RetryPolicy::fixed(Duration::from_millis(200)).jitter(0.0);
    let outbox = stage.single().await.retry(slow).stop_on_first_failure(false).start().await.expect("start");
    stage.probe.fail(Which::of_key("k"), 1);
    let ids = write(&outbox, [keyed("k"), keyed("k"), keyed("k")]).await;
    stage.probe.wait_for(3).await;
    outbox.shutdown().await;
    assert_eq!(stage.probe.log().ids(), [ids[0], ids[1], ids[2], ids[0]]);
}

/// O3: a dead head holds its key, also over a restart, until it is replayed; then all follow in order.
pub async fn a_dead_head_holds_its_key_until_it_is_replayed<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let outbox = stage.single().await.start().await.expect("start");
    stage.probe.answer(Which::of_key("k"), 1, Err(HandlerError::msg("no").permanent()));
    let ids = write(&outbox, [keyed("k"), keyed("k"), keyed("k"), keyed("other")]).await;
    stage.until_count(Status::Dead, 1).await;
    stage.until_count(Status::Done, 1).await;
    outbox.shutdown().await;

    let outbox = stage.single().await.start().await.expect("start");
    let later = write(&outbox, [keyed("k"), keyed("other")]).await;
    stage.probe.wait_for(2).await;
    assert_eq!(stage.probe.log().seqs_of_key("k").len(), 1, "the key is held");
    let dead = outbox.dead();
    let found = dead.list(&Query::default(), None, 5).await.expect("list").events;
    assert!(found[0].holds_key);
    dead.replay(ids[0], &Actor::new("ada")).await.expect("replay");
    stage.probe.wait_for(6).await;
    outbox.shutdown().await;
    let of_key: Vec<_> = stage.probe.log().ids().into_iter().filter(|id| *id != ids[3] && *id != later[1]).collect();
    assert_eq!(of_key, [ids[0], ids[0], ids[1], ids[2], later[0]]);
    stage.until_count(Status::Done, 6).await;
}

/// O3: skipping or discarding a dead head frees its key, in order.
pub async fn skipping_or_discarding_a_dead_head_frees_its_key<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let outbox = stage.single().await.start().await.expect("start");
    for key in ["skipped", "discarded"] {
        stage.probe.answer(Which::of_key(key), 1, Err(HandlerError::msg("no").permanent()));
    }
    let of = |n: usize| keyed(["skipped", "discarded"][n % 2]);
    let ids = write(&outbox, (0..6).map(of)).await;
    stage.until_count(Status::Dead, 2).await;
    let (dead, ada) = (outbox.dead(), Actor::new("ada"));
    dead.skip(ids[0], &ada).await.expect("skip");
    dead.discard(ids[1], &ada).await.expect("discard");
    stage.probe.wait_for(4).await;
    stage.until_count(Status::Done, 4).await;
    let again = dead.skip(ids[0], &ada).await.expect_err("it holds nothing any more").to_string();
    assert!(again.contains("holds no key"), "{again}");
    outbox.shutdown().await;
    stage.probe.assert_in_order_per_key();
    assert_eq!(stage.row(ids[0]).await.expect("kept").status, Status::Dead);
    assert_eq!(stage.row(ids[1]).await, None);
}

/// O3: with `GoOn` a dead head holds nothing.
pub async fn a_key_goes_on_past_its_dead_head_if_so_set<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let outbox = stage.single().await.on_dead_head(OnDeadHead::GoOn).start().await.expect("start");
    stage.probe.answer(Which::of_key("k"), 1, Err(HandlerError::msg("no").permanent()));
    let ids = write(&outbox, [keyed("k"), keyed("k")]).await;
    stage.probe.wait_for(1).await;
    outbox.shutdown().await;
    assert_eq!(stage.probe.log().ids(), ids);
    assert_eq!(stage.row(ids[0]).await.expect("kept").status, Status::Dead);
}

/// O3: a key that was held goes on with a node that waits for no dead head, and nothing holds it any more.
pub async fn a_held_key_goes_on_with_a_node_that_waits_for_no_dead_head<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let outbox = stage.single().await.start().await.expect("start");
    stage.probe.answer(Which::of_key("k"), 1, Err(HandlerError::msg("no").permanent()));
    let mut ids = write(&outbox, (0..3).map(|_| keyed("k"))).await;
    stage.until_count(Status::Dead, 1).await;
    outbox.shutdown().await;
    assert_eq!(stage.probe.log().begun(), 1, "the others wait");
    let outbox = stage.single().await.on_dead_head(OnDeadHead::GoOn).start().await.expect("start");
    stage.until_count(Status::Done, 2).await;
    outbox.shutdown().await;
    let outbox = stage.single().await.start().await.expect("start");
    ids.extend(write(&outbox, [keyed("k")]).await);
    stage.until_count(Status::Done, 3).await;
    let free = outbox.dead().skip(ids[0], &Actor::new("ada")).await.expect_err("it holds nothing").to_string();
    assert!(free.contains("holds no key"), "{free}");
    outbox.shutdown().await;
    assert_eq!(stage.probe.log().ids(), ids);
}

/// O9, decision 6: a failing head holds its key also for the next owner, and its followers are found again.
pub async fn a_failing_head_holds_its_key_over_a_restart<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let slow = RetryPolicy::fixed(Duration::from_millis(400)).jitter(0.0);
    let outbox = stage.single().await.retry(slow.clone()).start().await.expect("start");
    stage.probe.fail(Which::of_key("k"), 1);
    let ids = write(&outbox, (0..5).map(|_| keyed("k"))).await;
    stage.until_count(Status::Retry, 1).await;
    outbox.shutdown().await;
    let outbox = stage.single().await.retry(slow).start().await.expect("start");
    stage.probe.wait_for(5).await;
    outbox.shutdown().await;
    assert_eq!(stage.probe.log().ids(), [ids[0], ids[0], ids[1], ids[2], ids[3], ids[4]]);
}

/// Decision 6: one key with far more waiting events than memory holds, running or held, neither starves other
/// keys nor loses or reorders its own, also over a restart.
pub async fn a_key_with_a_long_queue_starves_nobody_and_keeps_its_order<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let writer = Outbox::writer_only(stage.backend.second_handle().await).start().await.expect("start");
    let mut ids = write(&writer, (0..300).map(|_| keyed("long"))).await;
    ids.extend(write(&writer, (0..20).map(|n| keyed(&format!("short-{n}")))).await);
    let gate = stage.probe.stop(Which::of_key("long"), 1);
    let small = |builder: pillarbox_core::engine::Builder<B::Store, _>| {
        builder.lane_capacity(4).cold_capacity(32).page_size(16)
    };
    let outbox = small(stage.single().await).start().await.expect("start");
    gate.reached().await;
    stage.probe.wait_for(20).await;
    // Long enough in this state for a hold to be written.
    stage.backend.pass(Duration::from_millis(600)).await;
    ids.extend(write(&outbox, [keyed("short-1")]).await);
    stage.probe.wait_for(21).await;
    gate.open();
    stage.probe.wait_for(100).await;
    outbox.shutdown().await;
    let outbox = small(stage.single().await).start().await.expect("start");
    stage.probe.wait_for(321).await;
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
    stage.probe.assert_in_order_per_key();
    stage.probe.assert_no_overlap();
    stage.until_count(Status::Done, 321).await;
}

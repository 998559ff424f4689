//! O5, O6, O7: partitions from hand to hand, in virtual time, with the default times, and with what only a script can
//! bring about.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use pillarbox_core::{
    Delivery, Event, Metadata, OutboxEvent as _,
    domain::{Answer, Epoch, Key, NodeId, Outcome, Partition, PartitionSet, Standing, Status},
    engine::{Handler, Work},
    port::{AdminStore, BoxFuture, Joining, OwnStore},
};
use pillarbox_macros::OutboxEvent;
use pillarbox_testkit::{Call, probe::Which};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{DOWN, Sore, Stage, Store, UNKNOWN, event, keyed, pass, until, write};

const SECOND: Duration = Duration::from_secs(1);

#[derive(Debug, Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, key = key)]
struct Shipped {
    key: String,
}

/// All calls of a process hang from now on, as if it were paused or gone.
fn silence(stage: &Stage) {
    for call in Call::ALL {
        (0..500).for_each(|_| stage.faults().hang(call));
    }
}

async fn weight(stage: &Stage, node: &str) -> u8 {
    let fleet = stage.store.inner().fleet().await.unwrap();
    let node = fleet.nodes.iter().find(|view| view.node.as_str() == node).unwrap();
    Standing::read(&node.routes).weight
}

/// O7: with all times at their defaults, nobody waits for a heartbeat after a clean stop.
#[tokio::test(start_paused = true)]
async fn a_clean_stop_hands_over_in_a_moment() {
    let stage = Stage::new();
    let one = stage.node().start().await.unwrap();
    let two = stage.another_process().node().start().await.unwrap();
    until("even shares", || (one.partitions_owned(), two.partitions_owned()) == (128, 128)).await;
    pass(Duration::from_millis(300)).await;
    let ids = stage.write_cold((0..20).map(|n| keyed(&format!("k{n}")))).await;
    let begun = Instant::now();
    one.shutdown().await;
    until("the whole", || two.partitions_owned() == 256).await;
    assert!(begun.elapsed() <= Duration::from_millis(200), "{:?}", begun.elapsed());
    stage.probe.wait_for(20).await;
    two.shutdown().await;
    stage.probe.assert_each_once(&ids);
}

/// O7: without hints, as on databases that have none, it takes a glance.
#[tokio::test(start_paused = true)]
async fn without_hints_a_clean_stop_hands_over_within_a_second() {
    let stage = Stage::new();
    let deaf = stage.another_process();
    stage.faults().fail(Call::HintFleet, usize::MAX, DOWN);
    let one = stage.node().start().await.unwrap();
    let two = deaf.node().start().await.unwrap();
    until("even shares", || (one.partitions_owned(), two.partitions_owned()) == (128, 128)).await;
    let begun = Instant::now();
    one.shutdown().await;
    until("the whole", || two.partitions_owned() == 256).await;
    assert!(begun.elapsed() <= Duration::from_millis(1_100), "{:?}", begun.elapsed());
    two.shutdown().await;
}

/// O5, O7: a joining node has its share at the next rebalance, and not a heartbeat later.
#[tokio::test(start_paused = true)]
async fn a_joining_node_has_its_share_at_the_next_rebalance() {
    let stage = Stage::new();
    let one = stage.node().start().await.unwrap();
    pass(Duration::from_secs(57)).await;
    let joined = Instant::now();
    let two = stage.another_process().node().start().await.unwrap();
    until("even shares", || (one.partitions_owned(), two.partitions_owned()) == (128, 128)).await;
    assert!(joined.elapsed() <= Duration::from_millis(11_100), "{:?}", joined.elapsed());
    tokio::join!(one.shutdown(), two.shutdown());
}

/// O5: what is free is taken in part, as it becomes free, while a dead node still has the rest.
#[tokio::test(start_paused = true)]
async fn what_is_free_is_taken_at_once_and_in_part() {
    let stage = Stage::new();
    let joining = Joining { node: NodeId::new("ghost"), ttl: 30 * SECOND, routes: Vec::new(), in_flight: 1 };
    let lease = stage.store.inner().join(&joining).await.unwrap();
    let half: PartitionSet = PartitionSet::ALL.iter().filter(|partition| partition.0 % 4 == 0).collect();
    stage.store.inner().take(&lease, half).await.unwrap().unwrap();
    let outbox = stage.node().start().await.unwrap();
    assert_eq!(outbox.partitions_owned(), 128, "its share of what was free");
    until("the rest", || outbox.partitions_owned() == 256).await;
    outbox.shutdown().await;
}

/// O5: a node that stands still, and is not yet taken for dead, does not keep from the others what is free.
#[tokio::test(start_paused = true)]
async fn what_a_node_that_stands_still_leaves_lying_is_taken_by_others() {
    let stage = Stage::new();
    let still = stage.another_process();
    let one = stage.node().start().await.unwrap();
    let two = stage.another_process().node().start().await.unwrap();
    let three = still.node().start().await.unwrap();
    until("thirds", || [&one, &two, &three].iter().all(|node| (85..=86).contains(&node.partitions_owned()))).await;
    silence(&still);
    pass(SECOND).await;
    two.shutdown().await;
    let stopped = Instant::now();
    until("what both have left", || one.partitions_owned() >= 256 - 86).await;
    assert!(stopped.elapsed() <= 12 * SECOND, "{:?}", stopped.elapsed());
    // And it keeps them while the other stands still: giving them back would only leave them lying again.
    let least = std::cell::Cell::new(usize::MAX);
    until("the whole", || {
        least.set(least.get().min(one.partitions_owned()));
        one.partitions_owned() == 256
    })
    .await;
    assert!(least.get() >= 256 - 86, "{}", least.get());
    one.shutdown().await;
    std::mem::forget(three);
}

/// O6: what only this process has owned comes back to it without suspects, and is delivered side by side.
#[tokio::test(start_paused = true)]
async fn a_process_that_lost_its_lease_and_lives_comes_back_without_suspects() {
    let stage = Stage::new();
    let outbox = stage.single().start().await.unwrap();
    let running = stage.probe.stop(Which::any(), 3);
    let ids = write(&outbox, (0..40).map(|n| if n % 2 == 0 { keyed(&format!("k{}", n % 6)) } else { event() })).await;
    running.reached_by(3).await;
    // It loses its lease, and what it runs is dropped.
    stage.faults().fail(Call::Renew, 40, DOWN);
    until("another lease", || stage.faults().calls(Call::Join) == 2).await;
    stage.until_count(Status::Done, 40).await;
    assert_eq!(stage.faults().calls(Call::Start), 0, "nothing is a suspect");
    outbox.shutdown().await;
    stage.probe.assert_in_order_per_key();
    assert!(ids.iter().all(|id| stage.probe.log().is_done(*id)));
}

/// D13: a takeover by another process goes through suspects, and what comes back from there is as it says.
#[tokio::test(start_paused = true)]
async fn what_another_process_takes_over_has_suspects_all_the_same() {
    let stage = Stage::new();
    let other = stage.another_process();
    let outbox = stage.node().start().await.unwrap();
    let running = stage.probe.stop(Which::any(), 6);
    write(&outbox, (0..6).map(|_| event())).await;
    running.reached_by(6).await;
    stage.faults().fail(Call::Renew, 100, DOWN);
    stage.faults().fail(Call::Join, 100, DOWN);
    pass(SECOND).await;
    let taker = other.node().start().await.unwrap();
    stage.until_count(Status::Done, 6).await;
    assert_eq!(other.faults().calls(Call::Start), 6, "each was started alone");
    tokio::join!(outbox.shutdown(), taker.shutdown());
}

/// D13: suspects that a process has inherited are suspects still when it has lost its lease in between.
#[tokio::test(start_paused = true)]
async fn inherited_suspects_stay_suspects() {
    let stage = Stage::new();
    stage.write_cold((0..6).map(|_| event())).await;
    let joining = Joining { node: NodeId::new("ghost"), ttl: SECOND, routes: Vec::new(), in_flight: 20 };
    let lease = stage.store.inner().join(&joining).await.unwrap();
    stage.store.inner().take(&lease, PartitionSet::ALL).await.unwrap().unwrap();
    let first = stage.probe.stop(Which::any(), 1);
    let outbox = stage.single().start().await.unwrap();
    first.reached().await;
    stage.faults().fail(Call::Renew, 40, DOWN);
    until("another lease", || stage.faults().calls(Call::Join) == 2).await;
    stage.until_count(Status::Done, 6).await;
    assert_eq!(stage.faults().calls(Call::Start), 7, "all six alone, and the first one again");
    outbox.shutdown().await;
}

/// O7: the process dies at each step of a hand-over; what it had is delivered once its lease has lapsed, if not before.
#[tokio::test(start_paused = true)]
async fn a_process_that_dies_between_two_steps_of_a_hand_over_loses_nothing() {
    let steps = [Call::Publish, Call::HintFleet, Call::Renew, Call::Settle, Call::Release, Call::Leave];
    for (step, done) in steps.into_iter().flat_map(|step| [(step, false), (step, true)]) {
        let stage = Stage::new();
        let dying = stage.another_process();
        let one = dying.node().start().await.unwrap();
        let two = stage.node().start().await.unwrap();
        until("even shares", || (one.partitions_owned(), two.partitions_owned()) == (128, 128)).await;
        let gate = stage.probe.stop(Which::of_key("k1"), 1);
        let mut ids = stage.write_cold((0..40).map(|n| keyed(&format!("k{}", n % 20)))).await;
        gate.reached().await;
        // At this step, before or after it is in effect, and at every later one: nothing is heard of it any more.
        if done {
            dying.faults().lose(step, 1, UNKNOWN);
        }
        (0..500).for_each(|_| dying.faults().hang(step));
        let stopping = tokio::spawn(async move { one.shutdown().await });
        pass(SECOND / 2).await;
        gate.open();
        pass(SECOND / 2).await;
        silence(&dying);
        stopping.abort();
        ids.extend(stage.write_cold((0..20).map(|n| keyed(&format!("k{n}")))).await);
        let all = ids.clone();
        stage.probe.wait_until(move |log| all.iter().all(|id| log.is_done(*id))).await;
        until("the whole", || two.partitions_owned() == 256).await;
        two.shutdown().await;
        stage.probe.assert_in_order_per_key();
        for id in ids {
            let row = stage.row(id).await;
            assert_eq!((row.status, row.attempts), (Status::Done, 0), "{step:?} {done}");
        }
    }
}

/// D12, D13: a release that fails while the node leaves is sent again, with the suspects that it had.
#[tokio::test(start_paused = true)]
async fn a_release_that_fails_while_the_node_leaves_is_sent_again_with_its_suspects() {
    let stage = Stage::new();
    stage.write_cold((0..6).map(|_| event())).await;
    let joining = Joining { node: NodeId::new("ghost"), ttl: SECOND, routes: Vec::new(), in_flight: 20 };
    let lease = stage.store.inner().join(&joining).await.unwrap();
    stage.store.inner().take(&lease, PartitionSet::ALL).await.unwrap().unwrap();
    let first = stage.probe.stop(Which::any(), 1);
    let outbox = stage.single().start().await.unwrap();
    first.reached().await;
    stage.faults().fail(Call::Release, 1, DOWN);
    let stopping = tokio::spawn(async move { outbox.shutdown().await });
    pass(SECOND).await;
    first.open();
    stopping.await.unwrap();
    let next = stage.another_process();
    let outbox = next.single().start().await.unwrap();
    stage.until_count(Status::Done, 6).await;
    assert_eq!(next.faults().calls(Call::Start), 5, "what was left of them");
    outbox.shutdown().await;
}

/// Decision on keyless events: a node that stays saturated while another idles has fewer partitions after a while, and
/// then the shares are at rest.
#[tokio::test(start_paused = true)]
async fn a_node_that_stays_saturated_while_another_idles_gives_partitions_away() {
    let stage = Stage::new();
    let slow = |_| async { tokio::time::sleep(Duration::from_millis(100)).await };
    let fast = |_| async {};
    let slow = stage.node().route("Work", slow).workers(2).node_name("slow").start().await.unwrap();
    let fast = stage.another_process().node().route("Work", fast).node_name("fast").start().await.unwrap();
    until("even shares", || (slow.partitions_owned(), fast.partitions_owned()) == (128, 128)).await;
    let (begun, mut given) = (Instant::now(), None);
    let mut owned = Vec::new();
    // 40 a second, of which the slow one can do 20 at the most, and wants half.
    let writer = pillarbox_core::Outbox::writer_only(stage.another_process().store).start().await.unwrap();
    let work = || Event::builder("Work").json(&1);
    write(&writer, (0..600).map(|_| work())).await;
    for _ in 0..600 {
        write(&writer, (0..50).map(|_| work())).await;
        pass(SECOND).await;
        owned.push(slow.partitions_owned());
        if slow.partitions_owned() < 128 {
            given.get_or_insert(begun.elapsed());
        }
    }
    let given = given.expect("it gives partitions away");
    assert!((30 * SECOND..=90 * SECOND).contains(&given), "after {given:?}");
    assert_eq!(slow.partitions_owned() + fast.partitions_owned(), 256);
    let weight = weight(&stage, "slow").await;
    assert!((1..16).contains(&weight), "{weight}");
    let mut turns = 0;
    for pair in owned.windows(2) {
        turns += u32::from(pair[1] > pair[0]);
    }
    assert!(turns <= 2, "to and fro: {owned:?}");
    tokio::join!(slow.shutdown(), fast.shutdown());
}

/// D7: an idle node that has not the saturated one's routes is of no help to it.
#[tokio::test(start_paused = true)]
async fn a_saturated_node_gives_nothing_to_one_that_lacks_its_routes() {
    let stage = Stage::new();
    let slow = |_| async { tokio::time::sleep(Duration::from_millis(100)).await };
    let able = stage.node().route("Work", slow).workers(2).node_name("able").start().await.unwrap();
    let idle = stage.another_process().node().node_name("idle").start().await.unwrap();
    until("even shares", || (able.partitions_owned(), idle.partitions_owned()) == (128, 128)).await;
    // The lower half stays with who was there first.
    let stays = |key: &String| Partition::of_key(&Key::from(key.as_str())).0 < 128;
    let keys = (0..9_000).map(|n| format!("k{n}")).filter(stays);
    let work = |key: String| Event::builder("Work").key(key).json(&1);
    let writer = pillarbox_core::Outbox::writer_only(stage.another_process().store).start().await.unwrap();
    write(&writer, keys.map(work)).await;
    pass(Duration::from_mins(1)).await;
    let fleet = stage.store.inner().fleet().await.unwrap();
    let other = fleet.nodes.iter().find(|view| view.node.as_str() == "idle").unwrap();
    assert!(Standing::read(&other.routes).idle);
    assert_eq!(weight(&stage, "able").await, Standing::FULL);
    tokio::join!(able.shutdown(), idle.shutdown());
}

/// Takes several at once, and the first time it does not come back.
struct HangsOnce(Arc<AtomicUsize>);

impl Handler for HangsOnce {
    fn handle(&self, _: Delivery) -> BoxFuture<'_, Answer> {
        Box::pin(async { Ok(Outcome::Done) })
    }

    fn at_once(&self) -> usize {
        100
    }

    fn handle_all(&self, deliveries: Vec<Delivery>) -> BoxFuture<'_, Vec<Answer>> {
        let first = self.0.fetch_add(1, Ordering::AcqRel) == 0;
        Box::pin(async move {
            if first {
                std::future::pending::<()>().await;
            }
            deliveries.iter().map(|_| Ok(Outcome::Done)).collect()
        })
    }
}

/// O7, H8: of a batch that outlasts the graceful time, what is handed over is the other node's, and the rest waits again.
#[tokio::test(start_paused = true)]
async fn a_batch_that_outlasts_the_graceful_time_does_not_keep_its_partitions() {
    let stage = Stage::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let node = |stage: &Stage| {
        let endless = stage.node().handler_timeout(Duration::MAX).workers(1);
        endless.route("Together", HangsOnce(calls.clone()))
    };
    let ids = stage.write_cold((0..40).map(|n| Event::builder("Together").key(format!("k{n}")).json(&n))).await;
    let one = node(&stage).start().await.unwrap();
    until("the batch", || calls.load(Ordering::Acquire) == 1).await;
    let two = node(&stage.another_process()).start().await.unwrap();
    until("even shares", || (one.partitions_owned(), two.partitions_owned()) == (128, 128)).await;
    stage.until_count(Status::Done, 40).await;
    assert_eq!(stage.faults().calls(Call::Join), 1, "the lease was kept");
    tokio::join!(one.shutdown(), two.shutdown());
    for id in ids {
        assert_eq!(stage.row(id).await.attempts, 0);
    }
}

/// O7, H9: a transactional handler that panics when it is cut off at a hand-over costs its node nothing more.
#[tokio::test(start_paused = true)]
async fn a_transactional_handler_that_panics_at_a_hand_over_costs_no_lease() {
    let stage = Stage::new();
    let runs = Arc::new(AtomicUsize::new(0));
    let node = |stage: &Stage| {
        let runs = runs.clone();
        let handler = move |_: Work<Store>, _: Shipped, _: Metadata| {
            let first = runs.fetch_add(1, Ordering::AcqRel) == 0;
            async move {
                if first {
                    let _sore = Sore;
                    std::future::pending::<()>().await;
                }
            }
        };
        stage.node().handler_timeout(Duration::MAX).workers(1).handle_in_tx(handler)
    };
    let one = node(&stage).start().await.unwrap();
    // The upper half goes to who comes later.
    let keys = (0..).map(|n| format!("k{n}"));
    let key = keys.into_iter().find(|key| Partition::of_key(&Key::from(key.as_str())).0 >= 128).unwrap();
    let ids = write(&one, [Shipped { key }.to_event()]).await;
    until("the work", || runs.load(Ordering::Acquire) == 1).await;
    let two = node(&stage.another_process()).start().await.unwrap();
    until("even shares", || (one.partitions_owned(), two.partitions_owned()) == (128, 128)).await;
    stage.until_count(Status::Done, 1).await;
    assert_eq!(stage.faults().calls(Call::Join), 1, "the lease was kept");
    assert_eq!(stage.row(ids[0]).await.attempts, 0);
    tokio::join!(one.shutdown(), two.shutdown());
}

/// O6: of two deliveries of one event, the later has the higher token.
#[tokio::test(start_paused = true)]
async fn the_token_of_a_delivery_rises_when_its_node_comes_back() {
    let stage = Stage::new();
    let outbox = stage.single().start().await.unwrap();
    let running = stage.probe.stop(Which::any(), 1);
    write(&outbox, [event()]).await;
    running.reached().await;
    stage.faults().fail(Call::Renew, 40, DOWN);
    stage.until_count(Status::Done, 1).await;
    outbox.shutdown().await;
    let epochs: Vec<Epoch> = stage.probe.log().deliveries().iter().map(|delivery| delivery.epoch).collect();
    assert_eq!(epochs.len(), 2);
    assert!(epochs[0] < epochs[1], "{epochs:?}");
}

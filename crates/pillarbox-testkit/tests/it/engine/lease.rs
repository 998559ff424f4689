//! O7: takeover and hand-over with the default times, in virtual time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

use parking_lot::Mutex;
use pillarbox_core::{
    Delivery, Event, Outbox, RetryPolicy,
    domain::{Lease, NodeId, PartitionSet, Status},
    port::{
        AdminStore as _, Batch, BoxFuture, Joining, OwnStore, ReadStore, Renewal, Settled, StoreError, StoreErrorKind,
    },
};
use pillarbox_testkit::{
    Call, Gate, MemoryStore,
    probe::Which,
    proof::{Layer, Layered},
};
use tokio::time::Instant;

use super::{DOWN, Stage, event, keyed, pass, until, write};

const SECOND: Duration = Duration::from_secs(1);

/// A node that is in the table and does nothing: as if its process were gone.
async fn ghost(stage: &Stage) {
    let joining = Joining { node: NodeId::new("ghost"), ttl: 30 * SECOND, routes: Vec::new(), in_flight: 1 };
    let lease = stage.store.inner().join(&joining).await.unwrap();
    stage.store.inner().take(&lease, PartitionSet::ALL).await.unwrap().unwrap();
}

/// One writes at a time, as on SQLite, and a settle takes a while.
struct InTurn {
    turn: tokio::sync::Mutex<()>,
    settles: Arc<AtomicBool>,
    renewed: Mutex<mpsc::Sender<()>>,
}

impl<S: ReadStore + OwnStore> Layer<S> for InTurn {
    fn renew<'a>(
        &'a self,
        store: &'a S,
        lease: &'a Lease,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Option<Renewal>, StoreError>> {
        Box::pin(async move {
            let _turn = self.turn.lock().await;
            let renewed = store.renew(lease, ttl).await;
            let _ = self.renewed.lock().send(());
            renewed
        })
    }

    fn settle<'a>(
        &'a self,
        store: &'a S,
        lease: &'a Lease,
        batch: &'a Batch,
    ) -> BoxFuture<'a, Result<Settled, StoreError>> {
        Box::pin(async move {
            let _turn = self.turn.lock().await;
            self.settles.store(true, Ordering::Release);
            pass(Duration::from_millis(50)).await;
            store.settle(lease, batch).await
        })
    }
}

/// O6: a handler that blocks its runtime stops no settle in its midst, which has what a renewal waits for.
#[tokio::test]
async fn a_settle_under_way_goes_on_while_a_handler_blocks_its_runtime() {
    let store = MemoryStore::new();
    let (renewed, renewals) = mpsc::channel();
    let settles = Arc::new(AtomicBool::new(false));
    let layer = InTurn { turn: tokio::sync::Mutex::default(), settles: settles.clone(), renewed: Mutex::new(renewed) };
    let renewals = Arc::new(Mutex::new(renewals));
    let blocks = move |_: Delivery| {
        let (settles, renewals) = (settles.clone(), renewals.clone());
        async move {
            while !settles.load(Ordering::Acquire) {
                tokio::task::yield_now().await;
            }
            let renewals = renewals.lock();
            renewals.try_iter().for_each(drop);
            // For twice as long as the lease.
            (0..40).try_for_each(|_| renewals.recv_timeout(10 * SECOND))
        }
    };
    let outbox = Outbox::multi_node(Layered::new(store.another_process(), layer))
        .route("Quick", |_: Delivery| async {})
        .route("Blocks", blocks)
        .retry(RetryPolicy::never())
        .heartbeat(Duration::from_millis(50))
        .stale_after(SECOND)
        .start()
        .await
        .unwrap();
    let joined = store.fleet().await.unwrap().nodes[0].incarnation;
    let mut tx = outbox.begin().await.unwrap();
    tx.write_all(["Blocks", "Quick", "Quick"].map(|of| Event::builder(of).json(&1))).await.unwrap();
    tx.commit().await.unwrap();
    while store.stats().await.unwrap().pending() > 0 {
        pass(Duration::from_millis(5)).await;
    }
    assert_eq!(store.stats().await.unwrap().count(Status::Done), 3);
    assert_eq!(store.fleet().await.unwrap().nodes[0].incarnation, joined, "the lease was kept");
    outbox.shutdown().await;
}

/// Its memory is void with the server's crash, and nobody has ended its lease: it does not stand back.
#[tokio::test(start_paused = true)]
async fn a_node_whose_database_was_rewound_joins_anew_at_once() {
    for call in [Call::Page, Call::Due, Call::Settle, Call::Renew] {
        let stage = Stage::new();
        let outbox = stage.node().start().await.unwrap();
        stage.faults().fail(call, 1, StoreErrorKind::Rewound);
        let rewound = Instant::now();
        let ids = write(&outbox, [event(), keyed("k")]).await;
        until("a second join", || stage.faults().calls(Call::Join) == 2).await;
        until("the partitions", || outbox.partitions_owned() == 256).await;
        assert!(rewound.elapsed() <= 6 * SECOND, "{call:?}: a heartbeat at the most, and not {:?}", rewound.elapsed());
        let more = write(&outbox, [event(), keyed("k")]).await;
        let all: Vec<_> = ids.into_iter().chain(more).collect();
        stage.probe.wait_until(|log| all.iter().all(|id| log.is_done(*id))).await;
        outbox.shutdown().await;
        assert_eq!(stage.faults().calls(Call::Join), 2, "{call:?}");
    }
}

/// A database that says so again and again is not joined, and nothing is delivered anew, as fast as it answers.
#[tokio::test(start_paused = true)]
async fn a_node_whose_database_is_rewound_again_and_again_waits_longer_and_longer() {
    for call in [Call::Settle, Call::Renew] {
        let stage = Stage::new();
        let outbox = stage.node().start().await.unwrap();
        stage.faults().fail(call, usize::MAX, StoreErrorKind::Rewound);
        let ids = write(&outbox, [event(), keyed("k")]).await;
        pass(Duration::from_mins(1)).await;
        let joins = stage.faults().calls(Call::Join);
        assert!((5..=30).contains(&joins), "{call:?}: {joins} in a minute");
        stage.faults().clear();
        stage.until_count(Status::Done, 2).await;
        outbox.shutdown().await;
        assert!(ids.iter().all(|id| stage.probe.log().is_done(*id)));
    }
}

/// O7: the lease is renewed every 5 s.
#[tokio::test(start_paused = true)]
async fn the_lease_is_renewed_every_five_seconds() {
    let stage = Stage::new();
    let outbox = stage.node().start().await.unwrap();
    let before = stage.faults().calls(Call::Renew);
    pass(Duration::from_mins(10)).await;
    let renewals = stage.faults().calls(Call::Renew) - before;
    assert!((115..=125).contains(&renewals), "{renewals} renewals in ten minutes");
    assert_eq!(stage.faults().calls(Call::Expel), 0, "alone, there is nobody to expel");
    outbox.shutdown().await;
}

/// O7, P2, P7: a node that stops renewing is replaced after 30 s, and not before.
#[tokio::test(start_paused = true)]
async fn a_dead_node_is_replaced_after_thirty_seconds_and_a_glance() {
    let stage = Stage::new();
    ghost(&stage).await;
    let died = Instant::now();
    let outbox = stage.node().start().await.unwrap();
    let ids = write(&outbox, [event(), keyed("k")]).await;
    stage.probe.wait_for(2).await;
    let after = died.elapsed();
    assert!(after >= 30 * SECOND && after <= 32 * SECOND, "delivered after {after:?}");
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
}

/// O7: a joining node has its share after one rebalance, which comes every 10 s.
#[tokio::test(start_paused = true)]
async fn a_joining_node_has_its_share_within_ten_seconds_and_a_heartbeat() {
    let stage = Stage::new();
    let one = stage.node().start().await.unwrap();
    pass(Duration::from_mins(1)).await;
    let joined = Instant::now();
    let two = stage.another_process().node().start().await.unwrap();
    until("even shares", || one.partitions_owned() == 128 && two.partitions_owned() == 128).await;
    assert!(joined.elapsed() <= 20 * SECOND, "{:?}", joined.elapsed());
    tokio::join!(one.shutdown(), two.shutdown());
}

/// O7, D12: a clean stop hands over at the other's next renewal, without waiting for a lease.
#[tokio::test(start_paused = true)]
async fn a_clean_stop_hands_over_within_a_heartbeat() {
    let stage = Stage::new();
    let one = stage.node().start().await.unwrap();
    let two = stage.another_process().node().start().await.unwrap();
    until("even shares", || one.partitions_owned() == 128).await;
    one.shutdown().await;
    let stopped = Instant::now();
    let ids = stage.write_cold((0..20).map(|n| keyed(&format!("k{n}")))).await;
    stage.probe.wait_for(20).await;
    assert!(stopped.elapsed() <= 6 * SECOND, "{:?}", stopped.elapsed());
    two.shutdown().await;
    stage.probe.assert_each_once(&ids);
}

/// O5: of three nodes one dies, and the other two share what it had.
#[tokio::test(start_paused = true)]
async fn what_a_dead_node_had_is_shared_out_among_the_living() {
    let stage = Stage::new();
    let third = stage.another_process();
    let one = stage.node().start().await.unwrap();
    let two = stage.another_process().node().start().await.unwrap();
    let three = third.node().start().await.unwrap();
    let shares = |a: &Outbox<_>, b: &Outbox<_>| (a.partitions_owned(), b.partitions_owned());
    until("thirds", || (85..=86).contains(&one.partitions_owned()) && (85..=86).contains(&three.partitions_owned()))
        .await;
    for call in Call::ALL {
        (0..50).for_each(|_| third.faults().hang(call));
    }
    let died = Instant::now();
    until("halves", || shares(&one, &two) == (128, 128)).await;
    assert!(died.elapsed() <= 60 * SECOND, "{:?}", died.elapsed());
    let ids = stage.write_cold((0..20).map(|n| keyed(&format!("k{n}")))).await;
    stage.until_count(Status::Done, 20).await;
    tokio::join!(one.shutdown(), two.shutdown());
    stage.probe.assert_each_once(&ids);
    std::mem::forget(three);
}

/// O9, decision 6: a key with more waiting events than memory holds keeps its order when its node dies, also what
/// was in memory against what was not.
#[tokio::test(start_paused = true)]
async fn a_key_with_a_long_queue_keeps_its_order_when_its_node_dies() {
    let stage = Stage::new();
    let ids = stage.write_cold((0..10).map(|_| keyed("k"))).await;
    let first = stage.probe.stop(Which::any(), 1);
    let one = stage.node().lane_capacity(2).start().await.unwrap();
    first.reached().await;
    // Long enough for a hold to be written, with the next settle.
    pass(SECOND).await;
    let second = stage.probe.stop(Which::any(), 1);
    first.open();
    second.reached().await;
    stage.until_count(Status::Done, 1).await;
    for call in Call::ALL {
        (0..50).for_each(|_| stage.faults().hang(call));
    }
    let two = stage.another_process().node().lane_capacity(2).start().await.unwrap();
    stage.until_count(Status::Done, 10).await;
    two.shutdown().await;
    stage.probe.assert_in_order_per_key();
    assert!(ids.iter().all(|id| stage.probe.log().is_done(*id)));
    std::mem::forget(one);
}

/// P2, decision 10: found by the simulation. The start of a suspect is counted, and before the answer comes the node has
/// lost its lease and has another: the suspect is delivered under that one, once, and those behind it follow.
#[tokio::test(start_paused = true)]
async fn a_suspect_whose_start_outlives_the_lease_is_delivered_under_the_next_one() {
    let stage = Stage::new();
    let ids = stage.write_cold([event(), event()]).await;
    ghost(&stage).await;
    let start = stage.faults().stop_after(Call::Start);
    let outbox = stage.node().start().await.unwrap();
    start.reached().await;
    let joined = stage.faults().calls(Call::Join);
    stage.faults().fail(Call::Renew, usize::MAX, DOWN);
    until("another lease", || stage.faults().calls(Call::Join) > joined).await;
    stage.faults().clear();
    stage.read_through().await;
    start.open();
    stage.probe.wait_for(2).await;
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
}

/// A look before the join sees nobody of those that start at the same time, so each looks again when it can be seen.
#[tokio::test(start_paused = true)]
async fn of_two_groups_that_start_in_the_same_moment_the_second_to_join_gives_up() {
    let stage = Stage::new();
    let other = stage.another_process();
    let joins = [&stage, &other].map(|stage| stage.faults().stop_before(Call::Join));
    let relay = tokio::spawn(stage.node().group("relay").node_name("relay-1").start());
    let service = tokio::spawn(other.node().start());
    for join in &joins {
        join.reached().await;
    }
    joins[0].open();
    let relay = relay.await.unwrap().unwrap();
    joins[1].open();
    let refusal = service.await.unwrap().expect_err("a refusal").to_string();
    assert!(refusal.contains("the node relay-1 delivers") && refusal.contains("another prefix"), "{refusal}");
    assert_eq!(stage.store.inner().fleet().await.unwrap().nodes.len(), 1, "it has left");
    write(&relay, [event()]).await;
    stage.probe.wait_for(1).await;
    relay.shutdown().await;
}

/// Both may be told; then nothing of them is left.
#[tokio::test(start_paused = true)]
async fn two_groups_that_see_each_other_at_their_start_both_give_up() {
    let stage = Stage::new();
    let processes = [stage.another_process(), stage.another_process()];
    let looks = processes.each_ref().map(|process| {
        process.faults().pass(Call::Fleet, 1);
        process.faults().stop_before(Call::Fleet)
    });
    let starting = ["one", "other"]
        .into_iter()
        .zip(&processes)
        .map(|(group, process)| tokio::spawn(process.node().group(group).start()));
    let starting: Vec<_> = starting.collect();
    for look in &looks {
        look.reached().await;
    }
    looks.iter().for_each(Gate::open);
    for start in starting {
        let refusal = start.await.unwrap().expect_err("a refusal").to_string();
        assert!(refusal.contains("as a o") && refusal.contains("another prefix"), "{refusal}");
    }
    let next = stage.node().group("one").start().await.unwrap();
    assert_eq!(next.partitions_owned(), 256, "free at once");
    next.shutdown().await;
}

/// A rolling deployment brings several nodes of one group at once.
#[tokio::test(start_paused = true)]
async fn nodes_of_one_group_start_in_the_same_moment() {
    let stage = Stage::new();
    let processes = [stage.another_process(), stage.another_process()];
    let joins = processes.each_ref().map(|process| process.faults().stop_before(Call::Join));
    let starting: Vec<_> =
        processes.iter().map(|process| tokio::spawn(process.node().group("relay").start())).collect();
    for join in &joins {
        join.reached().await;
    }
    joins.iter().for_each(Gate::open);
    for start in starting {
        start.await.unwrap().unwrap().shutdown().await;
    }
}

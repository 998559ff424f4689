//! The engine on this store: several nodes, and what happens when one goes.

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use pillarbox_core::{
    Delivery, HandlerError, Outbox,
    domain::{Epoch, Key, Lease, Partition, PartitionSet, Status, Timestamp},
    engine::Heartbeat,
    port::{AdminStore, Batch, BoxFuture, Clock, Fleet, Joining, OwnStore, ReadStore, Settled, StoreError},
};

use super::{
    Backend,
    stage::{ROUTE, Stage, event, keyed, quick, write},
};
use crate::{
    patience,
    probe::{End, Which},
    proof::{Layer, Layered},
};

async fn until(what: &str, mut check: impl FnMut() -> bool) {
    let wait = async {
        while !check() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(patience::within(patience::PATIENCE, wait).await.is_some(), "waited for {what}");
}

/// P2, P5, P9: a second node on the same database shares the partitions; nothing is lost, doubled or reordered.
pub async fn two_nodes_share_the_partitions_and_deliver_each_event_once<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let one = stage.node().await.start().await.expect("start");
    assert_eq!(one.partitions_owned(), 256);
    let two = stage.node().await.start().await.expect("start");
    let mut ids = Vec::new();
    for round in 0..40 {
        let of = |n: usize| if n.is_multiple_of(2) { keyed(&format!("k{}", n % 8)) } else { event() };
        ids.extend(write(if round % 2 == 0 { &one } else { &two }, (0..10).map(of)).await);
    }
    until("even shares", || one.partitions_owned() == 128 && two.partitions_owned() == 128).await;
    for _ in 0..20 {
        ids.extend(write(&one, (0..10).map(|n| if n % 2 == 0 { keyed(&format!("k{n}")) } else { event() })).await);
    }
    stage.probe.wait_for(ids.len()).await;
    tokio::join!(one.shutdown(), two.shutdown());
    stage.probe.assert_each_once(&ids);
    stage.probe.assert_in_order_per_key();
    stage.probe.assert_no_overlap();
    stage.until_count(Status::Done, ids.len() as u64).await;
}

/// P9: `single_node` started twice by mistake.
pub async fn a_single_node_started_twice_neither_loses_nor_doubles<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let one = stage.single().await.start().await.expect("start");
    let two = stage.single().await.start().await.expect("start");
    let mut ids = write(&one, (0..50).map(|_| event())).await;
    ids.extend(write(&two, (0..50).map(|n| keyed(&format!("k{}", n % 9)))).await);
    stage.probe.wait_for(100).await;
    tokio::join!(one.shutdown(), two.shutdown());
    stage.probe.assert_each_once(&ids);
    stage.probe.assert_in_order_per_key();
}

/// D12, O7: a clean stop hands the partitions over at once.
pub async fn a_clean_stop_hands_over_at_once<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let hour = Duration::from_hours(1);
    // No lease lapses within this case.
    let one = stage.node().await.stale_after(hour).start().await.expect("start");
    let two = stage.node().await.stale_after(hour).start().await.expect("start");
    one.shutdown().await;
    until("the whole", || two.partitions_owned() == 256).await;
    let ids = write(&two, (0..20).map(|_| event())).await;
    stage.probe.wait_for(20).await;
    two.shutdown().await;
    stage.probe.assert_each_once(&ids);
}

/// A key among those that a node with all partitions gives up first: the upper half.
fn upper_key() -> String {
    let upper = |key: &String| Partition::of_key(&Key::from(key.as_str())).0 >= 128;
    (0..100).map(|n| format!("upper-{n}")).find(upper).expect("half of the keys are")
}

/// The epochs of a key's deliveries, in their order.
fn epochs(stage: &Stage<impl Backend>, key: &str) -> Vec<Epoch> {
    let log = stage.probe.log();
    let of_key = log.deliveries().iter().filter(|delivery| delivery.key().is_some_and(|k| k.as_str() == key));
    of_key.map(|delivery| delivery.epoch).collect()
}

/// O7, D12, O9: one slow handler keeps back its own partition, and no other.
pub async fn a_clean_stop_hands_over_what_has_settled_while_a_handler_still_runs<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let hour = Duration::from_hours(1);
    // No lease lapses within this case, and nothing is dropped.
    let one = stage.node().await.stale_after(hour).drain_timeout(hour).start().await.expect("start");
    let gate = stage.probe.stop(Which::of_key("slow"), 1);
    let mut ids = write(&one, [keyed("slow"), keyed("slow")]).await;
    gate.reached().await;
    let two = stage.node().await.stale_after(hour).start().await.expect("start");
    let stopping = tokio::spawn({
        let one = one.clone();
        async move { one.shutdown().await }
    });
    until("all but one", || two.partitions_owned() == 255).await;
    let others = (0..20).map(|n| keyed(&format!("k{n}")));
    let slow = Partition::of_key(&Key::from("slow"));
    let others: Vec<_> =
        others.filter(|event| event.clone().build().expect("valid").key_partition() != Some(slow)).collect();
    let count = others.len();
    ids.extend(write(&two, others).await);
    stage.probe.wait_for(count).await;
    assert!(!stopping.is_finished(), "its handler still runs");
    gate.open();
    stopping.await.expect("a shutdown");
    until("the whole", || two.partitions_owned() == 256).await;
    stage.probe.wait_for(ids.len()).await;
    two.shutdown().await;
    stage.probe.assert_each_once(&ids);
    stage.probe.assert_in_order_per_key();
    let epochs = epochs(&stage, "slow");
    assert!(epochs[0] < epochs[1], "the fencing token rises from owner to owner: {epochs:?}");
}

/// O5, O7, O9: as soon as the running delivery of a partition has settled, the new owner goes on.
pub async fn a_rebalancing_hands_over_each_partition_when_it_has_settled<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let hour = Duration::from_hours(1);
    let key = upper_key();
    let one = stage.node().await.stale_after(hour).drain_timeout(hour).start().await.expect("start");
    let gate = stage.probe.stop(Which::of_key(&key), 1);
    let ids = write(&one, [keyed(&key), keyed(&key), keyed(&key)]).await;
    gate.reached().await;
    let two = stage.node().await.stale_after(hour).start().await.expect("start");
    until("all that has settled", || two.partitions_owned() == 127 && one.partitions_owned() == 128).await;
    assert_eq!(stage.probe.log().begun(), 1, "nothing more is started where something still runs");
    gate.open();
    stage.probe.wait_for(3).await;
    until("even shares", || two.partitions_owned() == 128).await;
    tokio::join!(one.shutdown(), two.shutdown());
    stage.probe.assert_each_once(&ids);
    stage.probe.assert_in_order_per_key();
    let epochs = epochs(&stage, &key);
    assert!(epochs[0] < epochs[1] && epochs[1] == epochs[2], "{epochs:?}");
}

/// O7, D12: what still runs when the graceful time is over is dropped, counts no attempt, and is delivered by the next
/// owner.
pub async fn a_handler_that_outlasts_the_graceful_time_does_not_keep_its_partition<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let hour = Duration::from_hours(1);
    let key = upper_key();
    let graceful = Duration::from_millis(200);
    let one = stage.node().await.stale_after(hour).drain_timeout(graceful).start().await.expect("start");
    let gate = stage.probe.stop(Which::of_key(&key), 1);
    let ids = write(&one, [keyed(&key), keyed(&key)]).await;
    gate.reached().await;
    let two = stage.node().await.stale_after(hour).start().await.expect("start");
    stage.probe.wait_for(2).await;
    until("even shares", || two.partitions_owned() == 128 && one.partitions_owned() == 128).await;
    stage.until_count(Status::Done, 2).await;
    gate.open();
    tokio::join!(one.shutdown(), two.shutdown());
    for id in ids {
        let row = stage.row(id).await.expect("kept");
        assert_eq!((row.status, row.attempts), (Status::Done, 0));
    }
    let log = stage.probe.log();
    assert_eq!(log.deliveries()[0].end, Some(End::Dropped));
    assert_eq!(log.begun(), 3, "one was interrupted");
    stage.probe.assert_no_overlap();
}

/// Shows when a settle is in its midst: it was polled, and polled again when answers of the database had come.
#[derive(Clone, Debug, Default)]
struct InTheMidst(Arc<AtomicU32>);

impl InTheMidst {
    /// The turn to write, a connection, the begin and the first statement are behind it by then, on every store.
    const POLLS: u32 = 4;

    fn of_a_settle(&self) -> bool {
        self.0.load(Ordering::Acquire) >= Self::POLLS
    }
}

impl<S: ReadStore + OwnStore> Layer<S> for InTheMidst {
    fn settle<'a>(
        &'a self,
        store: &'a S,
        lease: &'a Lease,
        batch: &'a Batch,
    ) -> BoxFuture<'a, Result<Settled, StoreError>> {
        let mut settle = store.settle(lease, batch);
        Box::pin(poll_fn(move |context| {
            self.0.fetch_add(1, Ordering::AcqRel);
            let polled = settle.as_mut().poll(context);
            if polled.is_ready() {
                self.0.store(0, Ordering::Release);
            }
            polled
        }))
    }
}

/// O6: the lease is renewed on a thread of its own, whatever the handlers do to theirs; also when a settle is under way, which
/// holds what a renewal needs.
pub async fn a_handler_that_blocks_does_not_starve_the_renewal<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = std::sync::Mutex::new(blocked);
    let lease = Duration::from_secs(2);
    let midst = InTheMidst::default();
    let outbox = Outbox::multi_node(Layered::new(stage.backend.second_handle().await, midst.clone()))
        .route(ROUTE, stage.probe.handler())
        .node_name("blocked")
        .heartbeat(Duration::from_millis(100))
        .stale_after(lease)
        .sample_every(Duration::from_hours(1))
        .settle_linger(Duration::ZERO);
    let blocked = Arc::new(blocked);
    let outbox = outbox.route("Blocks", move |_: Delivery| {
        let (midst, blocked) = (midst.clone(), blocked.clone());
        async move {
            // A store that settles without a wait has no midst.
            let begun = std::time::Instant::now();
            while !midst.of_a_settle() && begun.elapsed() < lease / 4 {
                tokio::task::yield_now().await;
            }
            let ended = blocked.lock().expect("one at a time").recv();
            ended.map_err(|error| HandlerError::msg(error.to_string()))
        }
    });
    let outbox = outbox.start().await.expect("start");
    let store = stage.backend.second_handle().await;
    // Everything of this runtime stands still, so somebody else has to look.
    let watcher = std::thread::spawn(move || {
        let watching = async {
            let found = |fleet: Fleet| {
                let node = fleet.nodes.into_iter().find(|node| node.node.as_str() == "blocked");
                (fleet.now, node.expect("it has joined"))
            };
            let (begun, first) = found(store.fleet().await.expect("fleet"));
            loop {
                let (now, node) = found(store.fleet().await.expect("fleet"));
                assert_eq!(node.incarnation, first.incarnation);
                assert!(node.is_live(now), "the lease has lapsed");
                if now.since(begun) > lease * 2 {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        super::run(watching);
        let _ = unblock.send(());
    });
    let quick = 200;
    let blocks = std::iter::once(pillarbox_core::Event::builder("Blocks").json(&1));
    let ids = write(&outbox, blocks.chain((0..quick).map(|_| event()))).await;
    stage.until_count(Status::Done, quick + 1).await;
    watcher.join().expect("the lease was kept");
    outbox.shutdown().await;
    assert_eq!(stage.row(ids[0]).await.expect("kept").attempts, 0);
    stage.probe.assert_each_once(&ids[1..]);
}

/// A node that is there in the table and does nothing: as if its process were gone.
async fn ghost<B: Backend>(stage: &Stage<B>, ttl: Duration, in_flight: u32) {
    let routes = vec![format!("(\"__GLOBAL__\", \"{ROUTE}\")")];
    let joining = Joining { node: pillarbox_core::domain::NodeId::new("ghost"), ttl, routes, in_flight };
    let lease = stage.backend.store().join(&joining).await.expect("join");
    let taken = stage.backend.store().take(&lease, PartitionSet::ALL).await.expect("take").expect("a lease");
    assert_eq!(taken.len(), 256);
}

/// P7, P2: what a dead node owned is delivered by another once its lease has lapsed, and not before.
pub async fn the_events_of_a_dead_node_are_delivered_when_its_lease_has_lapsed<B: Backend>() {
    let stage = Stage::<B>::new().await;
    ghost(&stage, Duration::from_millis(600), 2).await;
    let begun = std::time::Instant::now();
    let outbox = stage.node().await.start().await.expect("start");
    let ids = write(&outbox, (0..10).map(|n| if n % 2 == 0 { keyed("k") } else { event() })).await;
    assert_eq!(outbox.partitions_owned(), 0);
    stage.probe.wait_for(10).await;
    assert!(begun.elapsed() >= Duration::from_millis(500), "taken from a live node after {:?}", begun.elapsed());
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
    stage.probe.assert_in_order_per_key();
}

/// P3: the clock of a node's host decides nothing.
pub async fn a_node_whose_clock_is_an_hour_off_neither_steals_nor_stalls<B: Backend>() {
    #[derive(Debug)]
    struct Off(i64);
    impl Clock for Off {
        fn now(&self) -> Timestamp {
            let micros = pillarbox_core::port::SystemClock.now().as_micros();
            Timestamp::from_micros(micros + self.0 * 3_600_000_000)
        }
    }
    let stage = Stage::<B>::new().await;
    let ahead = stage.node().await.clock(Arc::new(Off(1))).start().await.expect("start");
    let behind = stage.node().await.clock(Arc::new(Off(-1))).start().await.expect("start");
    until("even shares", || ahead.partitions_owned() == 128 && behind.partitions_owned() == 128).await;
    let soon = Duration::from_millis(100);
    stage.probe.fail(Which::of_key("fails"), 1);
    let mut ids = write(&ahead, [event(), keyed("a"), event().deliver_after(soon), keyed("fails")]).await;
    ids.extend(write(&behind, [event(), keyed("a"), event().deliver_after(soon)]).await);
    stage.probe.wait_for(7).await;
    tokio::join!(ahead.shutdown(), behind.shutdown());
    assert_eq!(stage.probe.log().begun(), 8, "each once, and one retry");
}

/// P4, O6: a node that lost its lease settles nothing, and drops what it ran.
pub async fn a_node_that_lost_its_lease_settles_nothing<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let slow = Duration::from_hours(1);
    let outbox = stage.single().await.node_name("twin").lease(slow).start().await.expect("start");
    let gate = stage.probe.stop(Which::any(), 1);
    let ids = write(&outbox, [event()]).await;
    gate.reached().await;
    // A second life of the same name ends the first one's lease.
    let taken = stage.probe.stop(Which::any(), 1);
    let second = stage.single().await.node_name("twin").lease(slow).start().await.expect("start");
    taken.reached().await;
    gate.open();
    outbox.shutdown().await;
    let row = stage.row(ids[0]).await.expect("kept");
    assert_eq!(row.status, Status::New, "the late one settled it");
    let late = stage.probe.log().deliveries()[0].clone();
    taken.open();
    stage.until_count(Status::Done, 1).await;
    let log = stage.probe.log();
    assert!(log.deliveries()[1].epoch > late.epoch, "{log}");
    assert_eq!(second.partitions_owned(), 256, "the late one took nothing back");
    second.shutdown().await;
}

/// D7: while another live node has the route, an event without one is deferred and not dead.
pub async fn an_event_whose_route_only_another_node_has_is_deferred<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let grace = Duration::from_millis(50);
    let old = stage.node().await.route_grace(grace).start().await.expect("start");
    let new = stage.node().await.route_grace(grace).route("Novel", stage.probe.handler()).start().await.expect("start");
    // Both know of each other.
    until("even shares", || old.partitions_owned() == 128 && new.partitions_owned() == 128).await;
    let of = |n: usize| pillarbox_core::Event::builder("Novel").key(format!("k{n}")).json(&n);
    let ids = write(&new, (0..40).map(of)).await;
    let of_new = |log: &crate::probe::Log| log.done() > 0;
    stage.probe.wait_until(of_new).await;
    old.shutdown().await;
    stage.probe.wait_for(40).await;
    new.shutdown().await;
    for id in ids {
        assert_eq!(stage.row(id).await.expect("kept").status, Status::Done);
    }
}

/// D13, decision 10: an event that ends its process each time is dead after its last start, and its neighbours
/// are delivered.
pub async fn an_event_that_kills_its_process_is_dead_and_its_neighbours_are_not<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let writer = Outbox::writer_only(stage.backend.second_handle().await).start().await.expect("start");
    let ids = write(&writer, (0..9).map(|n| if n == 4 { keyed("poison") } else { event() })).await;
    ghost(&stage, Duration::from_millis(500), 20).await;
    // Each of these processes dies while it runs the poison: it is stopped there, and never seen again.
    for _ in 0..3 {
        let gate = stage.probe.stop(Which::of_key("poison"), 1);
        let store = stage.backend.second_handle().await;
        let victim = Outbox::single_node(store)
            .route(ROUTE, stage.probe.handler())
            .retry(quick())
            .lease(Duration::from_millis(600))
            .heartbeat_on(Heartbeat::SharedRuntime)
            .sample_every(Duration::from_hours(1));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let outbox = runtime.spawn(victim.start()).await.expect("start").expect("start");
        gate.reached().await;
        // kill -9: no task of it ever runs again.
        runtime.shutdown_background();
        std::mem::forget(outbox);
    }
    let outbox = stage.single().await.start().await.expect("start");
    stage.until_count(Status::Dead, 1).await;
    stage.until_count(Status::Done, 8).await;
    outbox.shutdown().await;
    let dead = stage.row(ids[4]).await.expect("kept");
    assert_eq!(dead.status, Status::Dead);
    assert!(dead.last_error.expect("an error").contains("started 3 times"));
}

//! Hot and cold queues, waking, and polling.

use std::time::Duration;

use pillarbox_core::domain::Status;
use pillarbox_testkit::{Call, probe::Which};
use tokio::time::Instant;

use super::{
    HOUR, Stage, event, keyed, pass,
    telemetry::{Meter, Tracer},
    write,
};

/// D2: with both queues full, a worker draws two hot events for one cold, and neither starves.
#[tokio::test(start_paused = true)]
async fn two_hot_events_are_delivered_for_one_cold() {
    let stage = Stage::new();
    let outbox = stage.single().workers(1).handler_timeout(HOUR).start().await.unwrap();
    let plug = stage.probe.stop(Which::any(), 1);
    write(&outbox, [event()]).await;
    plug.reached().await;
    let cold = stage.write_cold((0..12).map(|_| event())).await;
    stage.read_through().await;
    let hot = write(&outbox, (0..12).map(|_| event())).await;
    plug.open();
    stage.probe.wait_for(25).await;
    outbox.shutdown().await;
    let order: Vec<bool> = stage.probe.log().ids()[1..].iter().map(|id| hot.contains(id)).collect();
    for draws in order[..18].windows(3) {
        assert_eq!(draws.iter().filter(|hot| **hot).count(), 2, "hot: {order:?}");
    }
    assert!(stage.probe.log().ids().ends_with(&cold[6..]));
}

/// D3, M3: a full hot queue refuses nothing to the writer: a warning names the event, a counter counts it, its row is
/// NEW, and the reader delivers it.
#[tokio::test(start_paused = true)]
async fn a_full_hot_queue_leaves_the_event_to_the_reader() {
    let (stage, meter, tracer) = (Stage::new(), Meter::new(), Tracer::new());
    let outbox = stage.single().workers(1).hot_capacity(2).handler_timeout(HOUR).start().await.unwrap();
    let plug = stage.probe.stop(Which::any(), 1);
    let mut ids = write(&outbox, [event()]).await;
    plug.reached().await;
    let reader = stage.faults().stop_before(Call::Page);
    reader.reached().await;
    ids.extend(write(&outbox, [event(), event(), event(), event()]).await);
    assert_eq!(meter.count("pillarbox_hot_dropped_total"), 2);
    assert_eq!(meter.count("pillarbox_hot_enqueued_total"), 3);
    let told = tracer.that_say("hot queue is full");
    assert_eq!(told.len(), 1);
    assert_eq!((told[0].level, told[0].field("first_event_id")), (tracing::Level::WARN, ids[3].to_string()));
    assert_eq!(stage.count(Status::New).await, 5);
    plug.open();
    stage.probe.wait_for(3).await;
    reader.open();
    stage.probe.wait_for(5).await;
    assert_eq!(meter.count("pillarbox_cold_enqueued_total"), 2);
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
}

/// D4: the reader takes no more than the cold queue has room for, and loses nothing.
#[tokio::test(start_paused = true)]
async fn the_reader_takes_no_more_than_the_cold_queue_has_room_for() {
    let (stage, meter) = (Stage::new(), Meter::new());
    let builder = stage.single().workers(1).cold_capacity(4).page_size(3).handler_timeout(HOUR);
    let outbox = builder.start().await.unwrap();
    let plug = stage.probe.stop(Which::any(), 1);
    let mut ids = write(&outbox, [event()]).await;
    plug.reached().await;
    ids.extend(
        stage.write_cold((0..50).map(|n| if n % 2 == 0 { event() } else { keyed(&format!("k{}", n % 3)) })).await,
    );
    pass(Duration::from_mins(1)).await;
    // One page of 3; for the one place left, a read is not worth its round trip.
    assert_eq!(meter.count("pillarbox_cold_enqueued_total"), 3);
    plug.open();
    stage.probe.wait_for(51).await;
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
    stage.probe.assert_in_order_per_key();
}

/// A poller must not queue the same pending rows again while they wait or run.
#[tokio::test(start_paused = true)]
async fn rows_that_wait_or_run_are_not_queued_again_by_later_polls() {
    let (stage, meter) = (Stage::new(), Meter::new());
    let often = Duration::from_millis(5);
    let outbox = stage.single().workers(2).poll_interval(often, often).handler_timeout(HOUR).start().await.unwrap();
    let slow = stage.probe.stop(Which::any(), 2);
    let ids = stage.write_cold((0..20).map(|n| if n % 3 == 0 { keyed("k") } else { event() })).await;
    slow.reached_by(2).await;
    stage.calls(Call::Page, 1_000).await;
    slow.open();
    stage.probe.wait_for(20).await;
    stage.calls(Call::Page, 100).await;
    assert_eq!(meter.count("pillarbox_cold_enqueued_total") + 6, 20, "the followers of a key wait in its lane");
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
    stage.probe.assert_no_overlap();
}

/// D1: after the commit the event goes to a worker in memory: the reader stands still, and so does time.
#[tokio::test(start_paused = true)]
async fn the_hot_path_needs_no_read() {
    let stage = Stage::new();
    let outbox = stage.single().start().await.unwrap();
    let reader = stage.faults().stop_before(Call::Page);
    reader.reached().await;
    let begun = Instant::now();
    let ids = write(&outbox, [event(), event()]).await;
    stage.probe.wait_for(2).await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
    reader.open();
    stage.read_through().await;
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
}

/// A worker must not sleep between events: an idle one wakes at once, and ten thousand events, each written when the
/// one before is delivered, take no time.
#[tokio::test(start_paused = true)]
async fn ten_thousand_events_one_after_another_take_no_virtual_time() {
    let stage = Stage::new();
    let outbox = stage.single().workers(1).start().await.unwrap();
    pass(Duration::from_mins(10)).await;
    let begun = Instant::now();
    for n in 1..=10_000 {
        write(&outbox, [event()]).await;
        while stage.probe.done() < n {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(begun.elapsed(), Duration::ZERO);
    outbox.shutdown().await;
    assert_eq!(stage.probe.log().begun(), 10_000);
}

/// D15: a commit wakes the idle reader at once, in this process and in another.
#[tokio::test(start_paused = true)]
async fn a_commit_wakes_an_idle_reader_at_once() {
    let stage = Stage::new();
    let outbox = stage.single().poll_interval(HOUR, HOUR).start().await.unwrap();
    pass(Duration::from_mins(10)).await;
    let begun = Instant::now();
    write(&outbox, [keyed("k")]).await;
    stage.probe.wait_for(1).await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
    let writer = pillarbox_core::Outbox::writer_only(stage.another_process().store).start().await.unwrap();
    write(&writer, [keyed("k"), event()]).await;
    stage.probe.wait_for(3).await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
    writer.shutdown().await;
    outbox.shutdown().await;
}

/// D15: an idle reader backs off to its longest interval, with a jitter of a quarter.
#[tokio::test(start_paused = true)]
async fn an_idle_reader_backs_off_to_its_longest_interval() {
    let stage = Stage::new();
    let (shortest, longest) = (Duration::from_millis(20), Duration::from_secs(1));
    let outbox = stage.single().poll_interval(shortest, longest).start().await.unwrap();
    // It has backed off.
    pass(Duration::from_mins(1)).await;
    let before = [Call::Page, Call::Due].map(|call| stage.faults().calls(call));
    pass(HOUR).await;
    let after = [Call::Page, Call::Due].map(|call| stage.faults().calls(call));
    for (before, after) in before.into_iter().zip(after) {
        let reads = after - before;
        assert!((3_600..=4_800).contains(&reads), "{reads} reads in an hour");
    }
    outbox.shutdown().await;
}

/// D15: a full page is followed by the next at once.
#[tokio::test(start_paused = true)]
async fn a_full_page_is_followed_by_the_next_at_once() {
    let stage = Stage::new();
    let ids = stage.write_cold((0..1_000).map(|_| event())).await;
    let builder = stage.single().page_size(10).cold_capacity(50).settle_linger(Duration::ZERO);
    let outbox = builder.poll_interval(HOUR, HOUR).start().await.unwrap();
    let begun = Instant::now();
    stage.probe.wait_for(1_000).await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
}

/// A due time is known to the reader, also while other rows are found: it does not wait for the next poll.
#[tokio::test(start_paused = true)]
async fn events_that_come_due_one_after_another_do_not_wait_for_polls() {
    let stage = Stage::new();
    let outbox = stage.single().poll_interval(HOUR, HOUR).start().await.unwrap();
    let begun = Instant::now();
    let ids = write(&outbox, (1..=20).map(|n| event().deliver_after(Duration::from_secs(n)))).await;
    stage.probe.wait_for(20).await;
    assert!(begun.elapsed() <= Duration::from_millis(20_100), "{:?}", begun.elapsed());
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
    assert_eq!(stage.probe.log().ids(), ids);
}

/// D15: what another process replays or delays is found by polling, within the longest interval.
#[tokio::test(start_paused = true)]
async fn what_others_make_due_is_found_within_the_longest_interval() {
    let stage = Stage::new();
    let outbox = stage.single().retry(pillarbox_core::RetryPolicy::never()).start().await.unwrap();
    stage.probe.fail(Which::any(), 1);
    let ids = write(&outbox, [event()]).await;
    stage.until_count(Status::Dead, 1).await;
    pass(Duration::from_mins(1)).await;
    let replayed = Instant::now();
    // Past the outbox: nobody wakes the reader.
    let actor = pillarbox_core::port::Actor::new("ada");
    let seq = stage.row(ids[0]).await.seq;
    pillarbox_core::port::AdminStore::replay(stage.store.inner(), &[seq], &actor).await.unwrap();
    stage.probe.wait_for(1).await;
    assert!(replayed.elapsed() <= Duration::from_secs(1), "{:?}", replayed.elapsed());
    outbox.shutdown().await;
}

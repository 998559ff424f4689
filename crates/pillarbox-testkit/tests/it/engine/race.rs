//! Decision 5: the memory of what is in flight, and what happens beside it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicUsize, Ordering},
    },
    time::Duration,
};

use pillarbox_core::{
    Event, Outbox,
    domain::{Delivery, Status},
    engine::Receipt,
    port::{StoreErrorKind, TransactStore},
};
use pillarbox_testkit::{Call, MemoryStore, memory::MemoryTx, probe::Which};
use tokio::sync::Notify;

use super::{HOUR, ROUTE, Stage, Store, event, keyed, pass, until, write};

/// Commits events in a transaction of the caller's own, and has not confirmed them yet.
async fn committed(outbox: &Outbox<Store>, count: usize) -> Receipt {
    let mut tx = outbox.store().begin().await.unwrap();
    let receipt = outbox.write_all(&mut tx, (0..count).map(|_| event())).await.unwrap();
    outbox.store().commit(tx).await.unwrap();
    receipt
}

/// A number that stays uncommitted: reads begin below it, and see what is in flight above again and again.
async fn low_number(outbox: &Outbox<Store>) -> MemoryTx {
    let mut tx = outbox.store().begin().await.unwrap();
    drop(outbox.write(&mut tx, event()).await.unwrap());
    tx
}

/// Decision 5a: the read's snapshot has a row that is settled before the read's rows arrive.
#[tokio::test(start_paused = true)]
async fn a_read_that_overlaps_a_settle_delivers_nothing_twice() {
    for key in [false, true] {
        let stage = Stage::new();
        let outbox = stage.single().start().await.unwrap();
        let of = || if key { keyed("k") } else { event() };
        let _open = low_number(&outbox).await;
        let handler = stage.probe.stop(Which::any(), 1);
        let mut ids = write(&outbox, [of()]).await;
        handler.reached().await;
        let snapshot = stage.faults().stop_with_snapshot();
        snapshot.reached().await;
        handler.open();
        stage.until_count(Status::Done, 1).await;
        snapshot.open();
        stage.read_through().await;
        ids.extend(write(&outbox, [of()]).await);
        stage.probe.wait_for(2).await;
        outbox.shutdown().await;
        stage.probe.assert_each_once(&ids);
    }
}

/// Decision 5a: also when several settles go through meanwhile, and some of the rows are still running.
#[tokio::test(start_paused = true)]
async fn a_read_that_overlaps_many_settles_delivers_nothing_twice() {
    let stage = Stage::new();
    let outbox = stage.single().workers(4).settle_batch(1).start().await.unwrap();
    let _open = low_number(&outbox).await;
    let last = stage.probe.stop(Which::of_key("last"), 1);
    let first = stage.probe.stop(Which::any(), 3);
    let ids = write(&outbox, [event(), event(), event(), keyed("last")]).await;
    first.reached_by(3).await;
    last.reached().await;
    let snapshot = stage.faults().stop_with_snapshot();
    snapshot.reached().await;
    first.open();
    stage.until_count(Status::Done, 3).await;
    snapshot.open();
    stage.read_through().await;
    last.open();
    stage.probe.wait_for(4).await;
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
}

/// Decision 5b: the reader sees the row between its commit and the confirm, and leaves it to the hot path.
#[tokio::test(start_paused = true)]
async fn a_row_seen_between_its_commit_and_the_confirm_is_delivered_once_and_hot() {
    let stage = Stage::new();
    let outbox = stage.single().reservation_ttl(HOUR).start().await.unwrap();
    let receipt = committed(&outbox, 3).await;
    let ids = receipt.ids().to_vec();
    stage.read_through().await;
    assert_eq!(stage.probe.log().begun(), 0, "it is the writer's still");
    let reader = stage.faults().stop_before(Call::Page);
    reader.reached().await;
    receipt.confirm();
    stage.probe.wait_for(3).await;
    reader.open();
    stage.read_through().await;
    assert_eq!(stage.faults().calls(Call::Rows), 0, "nothing was looked up");
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
}

/// Decision 5b: a reservation that nobody confirms is over after its time, and the row that the reader has passed
/// is looked up by its number; a confirm that comes later changes nothing.
#[tokio::test(start_paused = true)]
async fn a_reservation_that_is_over_leaves_the_row_to_the_reader() {
    let stage = Stage::new();
    let ttl = Duration::from_secs(5);
    let outbox = stage.single().reservation_ttl(ttl).start().await.unwrap();
    let begun = tokio::time::Instant::now();
    let receipt = committed(&outbox, 2).await;
    let ids = receipt.ids().to_vec();
    stage.read_through().await;
    stage.probe.wait_for(2).await;
    assert_eq!(begun.elapsed().as_millis(), ttl.as_millis(), "the reader knows when it is over");
    assert_eq!(stage.faults().calls(Call::Rows), 1);
    receipt.confirm();
    stage.read_through().await;
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
}

/// Decision 5b: the reader saw a row whose receipt is then dropped.
#[tokio::test(start_paused = true)]
async fn a_receipt_that_is_dropped_leaves_the_row_to_the_reader_at_once() {
    let stage = Stage::new();
    let outbox = stage.single().reservation_ttl(HOUR).start().await.unwrap();
    let receipt = committed(&outbox, 1).await;
    let ids = receipt.ids().to_vec();
    stage.read_through().await;
    let dropped = tokio::time::Instant::now();
    drop(receipt);
    stage.probe.wait_for(1).await;
    assert_eq!(dropped.elapsed(), Duration::ZERO);
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
}

/// Decision 5b: a rollback ends the reservation, and the number holds back nothing.
#[tokio::test(start_paused = true)]
async fn a_rolled_back_number_is_never_looked_for() {
    let stage = Stage::new();
    let outbox = stage.single().reservation_ttl(Duration::from_secs(5)).start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.write_all([event(), event()]).await.unwrap();
    stage.read_through().await;
    tx.rollback().await.unwrap();
    let ids = write(&outbox, [event()]).await;
    stage.probe.wait_for(1).await;
    pass(Duration::from_mins(1)).await;
    assert_eq!(stage.faults().calls(Call::Rows), 0);
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
}

/// D3, decision 5b: the hot queue is full at the confirm, and the reader has already passed the row.
#[tokio::test(start_paused = true)]
async fn a_row_that_the_reader_passed_and_the_hot_queue_refuses_is_looked_up() {
    let stage = Stage::new();
    let outbox = stage.single().workers(1).hot_capacity(1).reservation_ttl(HOUR).start().await.unwrap();
    let handler = stage.probe.stop(Which::any(), 1);
    let mut ids = write(&outbox, [event()]).await;
    handler.reached().await;
    let receipt = committed(&outbox, 3).await;
    ids.extend_from_slice(receipt.ids());
    stage.read_through().await;
    receipt.confirm();
    stage.calls(Call::Rows, 1).await;
    handler.open();
    stage.probe.wait_for(4).await;
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
}

/// Decision 5b, P5: a confirm for a partition that has changed hands meanwhile only wakes the reader.
#[tokio::test(start_paused = true)]
async fn a_confirm_after_the_partition_was_given_up_delivers_nothing_here() {
    let stage = Stage::new();
    let one = stage.node().reservation_ttl(HOUR).start().await.unwrap();
    let receipt = committed(&one, 100).await;
    let ids = receipt.ids().to_vec();
    let two = stage.another_process().node().start().await.unwrap();
    until("even shares", || one.partitions_owned() == 128 && two.partitions_owned() == 128).await;
    stage.read_through().await;
    pass(Duration::from_secs(5)).await;
    let moved = stage.probe.log().begun();
    assert!((1..100).contains(&moved), "{moved} have moved to the other node");
    receipt.confirm();
    stage.probe.wait_for(100).await;
    stage.read_through().await;
    tokio::join!(one.shutdown(), two.shutdown());
    stage.probe.assert_each_once(&ids);
}

/// Decision 5b: the node lost its lease and has all partitions again, under new epochs.
#[tokio::test(start_paused = true)]
async fn a_confirm_from_before_the_lease_was_lost_only_wakes_the_reader() {
    let stage = Stage::new();
    let outbox = stage.single().reservation_ttl(HOUR).start().await.unwrap();
    let receipt = committed(&outbox, 5).await;
    let ids = receipt.ids().to_vec();
    stage.faults().fail(Call::Renew, 200, super::DOWN);
    until("the loss", || outbox.partitions_owned() == 0).await;
    stage.faults().clear();
    until("a new lease", || outbox.partitions_owned() == 256).await;
    stage.probe.wait_for(5).await;
    receipt.confirm();
    stage.read_through().await;
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
}

/// A row is looked up by its number while the lease is lost: the reader lives on.
#[tokio::test(start_paused = true)]
async fn a_lookup_that_overlaps_the_loss_of_the_lease_does_not_stop_the_reader() {
    let stage = Stage::new();
    let outbox = stage.single().reservation_ttl(HOUR).start().await.unwrap();
    let receipt = committed(&outbox, 2).await;
    let mut ids = receipt.ids().to_vec();
    stage.read_through().await;
    let lookup = stage.faults().stop_after(Call::Rows);
    drop(receipt);
    lookup.reached().await;
    stage.faults().fail(Call::Renew, 200, super::DOWN);
    until("the loss", || outbox.partitions_owned() == 0).await;
    stage.faults().clear();
    lookup.open();
    until("a new lease", || outbox.partitions_owned() == 256).await;
    ids.extend(stage.write_cold([event(), keyed("k")]).await);
    stage.probe.wait_for(4).await;
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
}

/// D5: 100,000 events under load, hot and cold, with and without keys: exactly 100,000 deliveries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_events_are_a_hundred_thousand_deliveries() {
    const WRITERS: usize = 4;
    const BATCHES: usize = 250;
    const BATCH: usize = 100;
    const ALL: usize = WRITERS * BATCHES * BATCH;

    let store = MemoryStore::new();
    let times: Arc<Vec<AtomicU8>> = Arc::new((0..ALL).map(|_| AtomicU8::new(0)).collect());
    let (total, bell) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let handler = {
        let (times, total, bell) = (times.clone(), total.clone(), bell.clone());
        move |delivery: Delivery| {
            let number: usize = delivery.event().payload().as_text().unwrap().parse().unwrap();
            times[number].fetch_add(1, Ordering::Relaxed);
            if total.fetch_add(1, Ordering::Relaxed) + 1 == ALL {
                bell.notify_one();
            }
            std::future::ready(())
        }
    };
    let outbox = Outbox::single_node(store.clone()).route(ROUTE, handler).lease(Duration::from_mins(1));
    let outbox = outbox.start().await.unwrap();
    let cold = Outbox::writer_only(store.another_process()).start().await.unwrap();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let outbox = if writer % 2 == 0 { outbox.clone() } else { cold.clone() };
            tokio::spawn(async move {
                for batch in 0..BATCHES {
                    let first = (writer * BATCHES + batch) * BATCH;
                    let mut tx = outbox.begin().await.unwrap();
                    let of = |n: usize| {
                        let event = Event::builder(ROUTE).json(&n);
                        if n.is_multiple_of(5) { event.key(format!("k{}", n % 500)) } else { event }
                    };
                    tx.write_all((first..first + BATCH).map(of)).await.unwrap();
                    tx.commit().await.unwrap();
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let all = tokio::time::timeout(Duration::from_mins(1), bell.notified()).await;
    assert!(all.is_ok(), "{} deliveries", total.load(Ordering::Relaxed));
    // What is settled is not delivered again: wait for the last settle, and for reads after it.
    while outbox.stats().await.unwrap().pending() > 0 {
        tokio::task::yield_now().await;
    }
    outbox.shutdown().await;
    let wrong = times.iter().filter(|times| times.load(Ordering::Relaxed) != 1).count();
    assert_eq!((wrong, total.load(Ordering::Relaxed)), (0, ALL));
}

/// Inserts an event with a key into a transaction of the caller's own, and waits until it was asked for what comes before
/// it.
async fn expected(stage: &Stage, outbox: &Outbox<Store>, key: &str) -> (MemoryTx, Receipt) {
    stage.read_through().await;
    let mut tx = outbox.store().begin().await.unwrap();
    let asked = stage.faults().calls(Call::Lane);
    let receipt = outbox.write(&mut tx, keyed(key)).await.unwrap();
    until("the question", || stage.faults().calls(Call::Lane) > asked).await;
    pass(Duration::from_millis(1)).await;
    (tx, receipt)
}

/// O1, P5: what comes before an event with a key is read while its transaction is open: it is delivered without another
/// read, and no page shows it a second time.
#[tokio::test(start_paused = true)]
async fn an_event_with_a_key_needs_no_read_after_its_commit() {
    let stage = Stage::new();
    let outbox = stage.single().start().await.unwrap();
    let (tx, receipt) = expected(&stage, &outbox, "k").await;
    let ids = receipt.ids().to_vec();
    let reader = stage.faults().stop_before(Call::Page);
    outbox.store().commit(tx).await.unwrap();
    receipt.confirm();
    stage.probe.wait_for(1).await;
    reader.open();
    stage.read_through().await;
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
}

/// O1: when the commit is faster than that, the event waits for the answer, and for nothing else.
#[tokio::test(start_paused = true)]
async fn an_event_with_a_key_that_is_committed_first_waits_for_the_answer() {
    let stage = Stage::new();
    let outbox = stage.single().start().await.unwrap();
    stage.read_through().await;
    let mut tx = outbox.store().begin().await.unwrap();
    let question = stage.faults().stop_before(Call::Lane);
    let receipt = outbox.write(&mut tx, keyed("k")).await.unwrap();
    let ids = receipt.ids().to_vec();
    question.reached().await;
    outbox.store().commit(tx).await.unwrap();
    receipt.confirm();
    pass(Duration::from_millis(1)).await;
    assert_eq!(stage.probe.log().begun(), 0, "what comes before it is not known yet");
    let reader = stage.faults().stop_before(Call::Page);
    question.open();
    stage.probe.wait_for(1).await;
    reader.open();
    stage.read_through().await;
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
}

/// O1: the question waits for no read of the reader's, which may be in the middle of a page, or of what is due, when the
/// event is written. The event is delivered meanwhile, and once.
#[tokio::test(start_paused = true)]
async fn an_event_with_a_key_waits_for_no_read_that_is_under_way() {
    for call in [Call::Page, Call::Due] {
        let stage = Stage::new();
        let outbox = stage.single().start().await.unwrap();
        stage.read_through().await;
        let reader = stage.faults().stop_before(call);
        reader.reached().await;
        let mut tx = outbox.store().begin().await.unwrap();
        let receipt = outbox.write(&mut tx, keyed("k")).await.unwrap();
        let ids = receipt.ids().to_vec();
        outbox.store().commit(tx).await.unwrap();
        receipt.confirm();
        stage.probe.wait_for(1).await;
        reader.open();
        stage.read_through().await;
        outbox.shutdown().await;
        stage.probe.assert_each_once(&ids);
    }
}

/// O1: the one before is with its handler, or has ended and is not settled: the table shows it still. The next of its key
/// follows without a page.
#[tokio::test(start_paused = true)]
async fn an_event_with_a_key_that_follows_closely_needs_no_page() {
    let stage = Stage::new();
    let outbox = stage.single().start().await.unwrap();
    let settle = stage.faults().stop_before(Call::Settle);
    let handler = stage.probe.stop(Which::of_key("k"), 1);
    let (tx, receipt) = expected(&stage, &outbox, "k").await;
    let mut ids = receipt.ids().to_vec();
    outbox.store().commit(tx).await.unwrap();
    receipt.confirm();
    handler.reached().await;
    let reader = stage.faults().stop_before(Call::Page);
    reader.reached().await;
    for first_runs in [true, false] {
        let mut tx = outbox.store().begin().await.unwrap();
        let receipt = outbox.write(&mut tx, keyed("k")).await.unwrap();
        ids.extend_from_slice(receipt.ids());
        outbox.store().commit(tx).await.unwrap();
        receipt.confirm();
        if first_runs {
            pass(Duration::from_millis(1)).await;
            assert_eq!(stage.probe.log().begun(), 1, "one after another");
            handler.open();
        }
        stage.probe.wait_for(ids.len()).await;
    }
    settle.open();
    reader.open();
    stage.read_through().await;
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
    stage.probe.assert_in_order_per_key();
}

/// O1: several events take a page instead, and when the commit is faster they wait for that, and for nothing else.
#[tokio::test(start_paused = true)]
async fn events_with_keys_that_are_committed_first_wait_for_the_page() {
    let stage = Stage::new();
    let outbox = stage.single().start().await.unwrap();
    stage.read_through().await;
    let asked = stage.faults().calls(Call::Lane);
    let mut tx = outbox.store().begin().await.unwrap();
    let snapshot = stage.faults().stop_with_snapshot();
    let receipt = outbox.write_all(&mut tx, [keyed("k"), keyed("l"), keyed("m")]).await.unwrap();
    let ids = receipt.ids().to_vec();
    snapshot.reached().await;
    assert_eq!(stage.faults().calls(Call::Lane), asked);
    outbox.store().commit(tx).await.unwrap();
    receipt.confirm();
    pass(Duration::from_millis(1)).await;
    assert_eq!(stage.probe.log().begun(), 0, "what comes before them is not known yet");
    let reader = stage.faults().stop_before(Call::Page);
    snapshot.open();
    stage.probe.wait_for(3).await;
    reader.open();
    stage.read_through().await;
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
}

/// O1: a question that fails leaves the event to a page.
#[tokio::test(start_paused = true)]
async fn an_event_with_a_key_is_delivered_though_nobody_can_tell_what_comes_before_it() {
    let stage = Stage::new();
    let outbox = stage.single().start().await.unwrap();
    stage.faults().fail(Call::Lane, 1, StoreErrorKind::Unavailable);
    let (tx, receipt) = expected(&stage, &outbox, "k").await;
    let ids = receipt.ids().to_vec();
    outbox.store().commit(tx).await.unwrap();
    receipt.confirm();
    stage.probe.wait_for(1).await;
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
}

/// O1: what another process wrote of the key, and nobody here has read, is found by that question and comes first.
#[tokio::test(start_paused = true)]
async fn an_event_with_a_key_comes_after_what_was_found_to_come_before_it() {
    let stage = Stage::new();
    let outbox = stage.single().start().await.unwrap();
    stage.read_through().await;
    let first = stage.probe.stop(Which::of_key("k"), 1);
    let other = Outbox::writer_only(stage.another_process().store).start().await.unwrap();
    let mut theirs = other.store().begin().await.unwrap();
    // Nobody is told of the commit.
    let earlier = other.write(&mut theirs, keyed("k")).await.unwrap().ids()[0];
    other.store().commit(theirs).await.unwrap();
    let question = stage.faults().stop_before(Call::Lane);
    let mut tx = outbox.store().begin().await.unwrap();
    let receipt = outbox.write(&mut tx, keyed("k")).await.unwrap();
    let ids = [earlier, receipt.ids()[0]];
    question.reached().await;
    outbox.store().commit(tx).await.unwrap();
    receipt.confirm();
    pass(Duration::from_millis(1)).await;
    assert_eq!(stage.probe.log().begun(), 0, "what comes before it is not known yet");
    question.open();
    first.reached().await;
    pass(Duration::from_millis(1)).await;
    assert_eq!(stage.probe.log().begun(), 1);
    first.open();
    stage.probe.wait_for(2).await;
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
    stage.probe.assert_in_order_per_key();
}

/// O1: the same with a page that is under way.
#[tokio::test(start_paused = true)]
async fn an_event_with_a_key_comes_after_what_another_process_wrote_before() {
    let stage = Stage::new();
    let outbox = stage.single().start().await.unwrap();
    stage.read_through().await;
    let first = stage.probe.stop(Which::of_key("k"), 1);
    let reader = stage.faults().stop_before(Call::Page);
    reader.reached().await;
    let earlier = stage.write_cold([keyed("k")]).await[0];
    let mut tx = outbox.store().begin().await.unwrap();
    let receipt = outbox.write(&mut tx, keyed("k")).await.unwrap();
    outbox.store().commit(tx).await.unwrap();
    let ids = [earlier, receipt.ids()[0]];
    receipt.confirm();
    pass(Duration::from_millis(1)).await;
    assert_eq!(stage.probe.log().begun(), 0, "what comes before it is not known yet");
    reader.open();
    first.reached().await;
    assert_eq!(stage.probe.log().begun(), 1);
    first.open();
    stage.probe.wait_for(2).await;
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
    stage.probe.assert_in_order_per_key();
}

/// O1: a page shows the event before its writer has said that it is committed, and with it the next of its key. Neither is
/// delivered until the writer has told, or has gone, or its time is over; and then in their order.
#[tokio::test(start_paused = true)]
async fn an_event_with_a_key_that_is_seen_early_keeps_its_place_and_waits_for_its_writer() {
    enum End {
        Confirm,
        Drop,
        Time,
    }
    for end in [End::Confirm, End::Drop, End::Time] {
        let stage = Stage::new();
        let ttl = if matches!(end, End::Time) { Duration::from_secs(5) } else { HOUR };
        let outbox = stage.single().reservation_ttl(ttl).start().await.unwrap();
        stage.read_through().await;
        let reader = stage.faults().stop_before(Call::Page);
        reader.reached().await;
        let begun = tokio::time::Instant::now();
        let mut tx = outbox.store().begin().await.unwrap();
        let receipt = outbox.write(&mut tx, keyed("k")).await.unwrap();
        outbox.store().commit(tx).await.unwrap();
        let ids = [receipt.ids()[0], stage.write_cold([keyed("k")]).await[0]];
        reader.open();
        stage.read_through().await;
        assert_eq!(stage.probe.log().begun(), 0, "the writer has not told");
        match end {
            End::Confirm => receipt.confirm(),
            End::Drop => drop(receipt),
            End::Time => {
                stage.probe.wait_for(2).await;
                assert!(begun.elapsed() >= ttl);
                receipt.confirm();
            }
        }
        stage.probe.wait_for(2).await;
        outbox.shutdown().await;
        stage.probe.assert_each_once(&ids);
        stage.probe.assert_in_order_per_key();
    }
}

/// O1, O8: of a transaction whose first receipt was dropped, the second event of the key does not overtake the first.
#[tokio::test(start_paused = true)]
async fn an_event_whose_receipt_was_dropped_is_not_overtaken_by_the_next_of_its_transaction() {
    let stage = Stage::new();
    let outbox = stage.single().start().await.unwrap();
    let (mut tx, first) = expected(&stage, &outbox, "k").await;
    let mut ids = first.ids().to_vec();
    drop(first);
    let second = outbox.write(&mut tx, keyed("k")).await.unwrap();
    ids.extend_from_slice(second.ids());
    stage.read_through().await;
    let reader = stage.faults().stop_before(Call::Page);
    outbox.store().commit(tx).await.unwrap();
    second.confirm();
    reader.reached().await;
    assert_eq!(stage.probe.log().begun(), 0, "the second went ahead");
    reader.open();
    stage.probe.wait_for(2).await;
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
    stage.probe.assert_in_order_per_key();
}

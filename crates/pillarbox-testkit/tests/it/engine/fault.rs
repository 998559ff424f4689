//! D11: the database fails, and neither events nor attempts are lost by it.

use std::time::Duration;

use pillarbox_core::domain::{Key, Outcome, Partition, Status};
use pillarbox_testkit::{
    Call,
    probe::{End, Which},
};

use super::{DOWN, HOUR, Stage, UNKNOWN, event, keyed, pass, until, write};

/// D11: settling is tried again until it succeeds, and the handler is not run again for it.
#[tokio::test(start_paused = true)]
async fn a_settle_that_fails_is_tried_again_and_the_handler_is_not() {
    let stage = Stage::new();
    let outbox = stage.node().start().await.unwrap();
    stage.faults().fail(Call::Settle, 7, DOWN);
    let ids = write(&outbox, [event(), keyed("k"), keyed("k")]).await;
    stage.until_count(Status::Done, 3).await;
    stage.read_through().await;
    assert!(stage.faults().calls(Call::Settle) >= 8);
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
    for id in ids {
        assert_eq!((stage.row(id).await.attempts, stage.row(id).await.last_error), (0, None));
    }
}

/// D11: the settle is in effect and its answer is lost: the same batch again changes nothing twice.
#[tokio::test(start_paused = true)]
async fn a_settle_whose_answer_is_lost_changes_nothing_twice() {
    let stage = Stage::new();
    let outbox = stage.node().start().await.unwrap();
    stage.faults().lose(Call::Settle, 3, UNKNOWN);
    stage.probe.fail(Which::of_key("fails"), 1);
    let ids = write(&outbox, [event(), keyed("k"), keyed("fails")]).await;
    stage.until_count(Status::Done, 3).await;
    outbox.shutdown().await;
    let log = stage.probe.log();
    assert_eq!(ids.iter().map(|id| log.times(*id)).collect::<Vec<_>>(), [1, 1, 2]);
    let attempts = [stage.row(ids[0]).await.attempts, stage.row(ids[2]).await.attempts];
    assert_eq!(attempts, [0, 1], "only the handler's failure counts");
}

/// D11: a settle that hangs is given up with the lease; the events are delivered again, and this time settled.
#[tokio::test(start_paused = true)]
async fn a_settle_that_hangs_is_given_up_with_the_lease() {
    let stage = Stage::new();
    let outbox = stage.single().start().await.unwrap();
    stage.faults().hang(Call::Settle);
    let ids = write(&outbox, [event(), keyed("k")]).await;
    stage.probe.wait_for(2).await;
    stage.calls(Call::Settle, 0).await;
    stage.faults().fail(Call::Renew, 100, DOWN);
    until("the loss", || outbox.partitions_owned() == 0).await;
    stage.faults().clear();
    stage.until_count(Status::Done, 2).await;
    outbox.shutdown().await;
    for id in ids {
        assert_eq!((stage.probe.log().times(id), stage.row(id).await.attempts), (2, 0));
    }
}

/// A settle that answers when the lease is long lost and the node has a new one: the new one is not harmed.
#[tokio::test(start_paused = true)]
async fn a_settle_that_answers_after_a_new_lease_harms_nothing() {
    for applied in [false, true] {
        let stage = Stage::new();
        let outbox = stage.single().start().await.unwrap();
        let settle =
            if applied { stage.faults().stop_after(Call::Settle) } else { stage.faults().stop_before(Call::Settle) };
        let ids = write(&outbox, [event()]).await;
        settle.reached().await;
        stage.faults().fail(Call::Renew, 100, DOWN);
        until("the loss", || outbox.partitions_owned() == 0).await;
        stage.faults().clear();
        until("a new lease", || outbox.partitions_owned() == 256).await;
        let running = stage.probe.stop(Which::of_key("runs"), 1);
        write(&outbox, [keyed("runs")]).await;
        running.reached().await;
        settle.open();
        pass(Duration::from_secs(1)).await;
        assert_eq!(outbox.partitions_owned(), 256);
        running.open();
        stage.until_count(Status::Done, 2).await;
        assert!(stage.probe.log().deliveries().iter().all(|delivered| delivered.end == Some(End::Done)));
        assert_eq!(stage.probe.log().times(ids[0]), if applied { 1 } else { 2 });
        outbox.shutdown().await;
    }
}

/// D11: the database is away for less than the lease: everything once. For longer: everything, and no attempt.
#[tokio::test(start_paused = true)]
async fn a_database_that_goes_down_and_comes_back_loses_nothing() {
    for (away, exactly_once) in [(Duration::from_secs(10), true), (Duration::from_mins(2), false)] {
        let stage = Stage::new();
        let outbox = stage.node().start().await.unwrap();
        let slow = stage.probe.stop(Which::of_key("slow"), 1);
        let of = |n: usize| if n.is_multiple_of(2) { event() } else { keyed(["slow", "a", "b"][n % 3]) };
        let mut ids = write(&outbox, (0..40).map(of)).await;
        slow.reached().await;
        stage.faults().go_down();
        assert!(outbox.begin().await.is_err());
        pass(away / 2).await;
        slow.open();
        pass(away / 2).await;
        stage.faults().clear();
        ids.extend(stage.write_cold((0..40).map(of)).await);
        stage.until_count(Status::Done, 80).await;
        outbox.shutdown().await;
        stage.probe.assert_in_order_per_key();
        if exactly_once {
            stage.probe.assert_each_once(&ids);
        }
        for id in ids {
            assert_eq!(stage.row(id).await.attempts, 0);
        }
    }
}

/// Reads that fail are tried again, and nothing is lost by it.
#[tokio::test(start_paused = true)]
async fn reads_that_fail_are_tried_again_and_lose_nothing() {
    for call in [Call::Page, Call::Due, Call::Lane, Call::Rows, Call::Recall] {
        let stage = Stage::new();
        let ttl = Duration::from_millis(100);
        let outbox = stage.single().lane_capacity(2).reservation_ttl(ttl).start().await.unwrap();
        // The partitions are recalled after the loss of a lease.
        stage.faults().fail(call, 3, DOWN);
        stage.faults().fail(Call::Renew, 100, DOWN);
        until("the loss", || outbox.partitions_owned() == 0).await;
        let mut ids = stage.write_cold((0..30).map(|_| keyed("long"))).await;
        while stage.faults().calls(Call::Join) < 2 {
            pass(Duration::from_millis(10)).await;
        }
        // `clear` would forget the reads as well: let the failing renewals run out instead.
        until("a new lease", || outbox.partitions_owned() == 256).await;
        // One that the reader passes and nobody confirms, one that is late, one that fails.
        stage.probe.fail(Which::of_key("fails"), 1);
        let mut tx = pillarbox_core::port::TransactStore::begin(outbox.store()).await.unwrap();
        let receipt = outbox.write(&mut tx, event()).await.unwrap();
        pillarbox_core::port::TransactStore::commit(outbox.store(), tx).await.unwrap();
        ids.extend_from_slice(receipt.ids());
        ids.extend(write(&outbox, [event().deliver_after(Duration::from_secs(3)), keyed("fails"), event()]).await);
        stage.until_count(Status::Done, 34).await;
        assert!(stage.faults().calls(call) >= 4, "{call:?} was called {} times", stage.faults().calls(call));
        drop(receipt);
        outbox.shutdown().await;
        let log = stage.probe.log();
        assert_eq!(log.begun(), 35, "{call:?}: each once, and one retry\n{log}");
        stage.probe.assert_in_order_per_key();
    }
}

/// O6: renewals fail until the lease is over by the node's own clock: what runs is dropped, and delivered later.
#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_renew_drops_what_runs_and_comes_back() {
    let stage = Stage::new();
    let outbox = stage.node().handler_timeout(HOUR).start().await.unwrap();
    let handler = stage.probe.stop(Which::any(), 2);
    let ids = write(&outbox, [event(), keyed("k"), keyed("k")]).await;
    handler.reached_by(2).await;
    let begun = tokio::time::Instant::now();
    stage.faults().fail(Call::Renew, usize::MAX, DOWN);
    stage.probe.wait_until(|log| log.running() == 0).await;
    let lease = begun.elapsed().as_secs();
    assert!((25..=30).contains(&lease), "the lease ended after {lease} s");
    assert!(stage.probe.log().deliveries().iter().all(|delivered| delivered.end == Some(End::Dropped)));
    stage.faults().clear();
    stage.until_count(Status::Done, 3).await;
    outbox.shutdown().await;
    for id in &ids {
        assert_eq!(stage.row(*id).await.attempts, 0);
    }
    stage.probe.assert_in_order_per_key();
}

/// Decision 4: a reader whose lease is lost in the middle of its pass has no position any more. It reads no page from
/// nowhere, and begins again with what it must know of the partitions.
#[tokio::test(start_paused = true)]
async fn a_reader_that_loses_the_lease_in_the_middle_of_a_pass_reads_no_page_from_nowhere() {
    let stage = Stage::new();
    let outbox = stage.single().start().await.unwrap();
    let mut ids = write(&outbox, [event(), keyed("k")]).await;
    stage.until_count(Status::Done, 2).await;
    let pass = stage.faults().stop_after(Call::Due);
    pass.reached().await;
    stage.faults().fail(Call::Renew, 100, DOWN);
    until("the loss", || outbox.partitions_owned() == 0).await;
    ids.extend(stage.write_cold([event(), keyed("k")]).await);
    let takes = stage.faults().calls(Call::Take);
    stage.faults().clear();
    until("a new lease", || stage.faults().calls(Call::Take) > takes).await;
    // One task takes and renews: the take is over.
    stage.calls(Call::Renew, 1).await;
    let pages = stage.faults().calls(Call::Page);
    let recall = stage.faults().stop_before(Call::Recall);
    pass.open();
    recall.reached().await;
    assert_eq!(stage.faults().calls(Call::Page), pages, "a page was read in between");
    recall.open();
    stage.until_count(Status::Done, 4).await;
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
    stage.probe.assert_in_order_per_key();
}

/// A renewal that hangs must not outlive the lease unnoticed.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_does_not_outlive_the_lease() {
    let stage = Stage::new();
    let outbox = stage.node().handler_timeout(HOUR).start().await.unwrap();
    let handler = stage.probe.stop(Which::any(), 1);
    let ids = write(&outbox, [event()]).await;
    handler.reached().await;
    stage.faults().hang(Call::Renew);
    stage.probe.wait_until(|log| log.running() == 0).await;
    stage.until_count(Status::Done, 1).await;
    outbox.shutdown().await;
    assert_eq!(stage.probe.log().times(ids[0]), 2);
    assert_eq!(stage.row(ids[0]).await.attempts, 0);
}

/// A take is in effect and its answer is lost: the node finds its own partitions and takes them again.
#[tokio::test(start_paused = true)]
async fn a_take_whose_answer_is_lost_is_taken_again() {
    let stage = Stage::new();
    let other = stage.another_process();
    let one = stage.node().start().await.unwrap();
    let two = other.node().start().await.unwrap();
    until("even shares", || one.partitions_owned() == 128 && two.partitions_owned() == 128).await;
    let ids = stage.write_cold((0..50).map(|n| keyed(&format!("k{n}")))).await;
    stage.probe.wait_for(50).await;
    stage.faults().lose(Call::Take, 2, UNKNOWN);
    two.shutdown().await;
    let later = stage.write_cold((0..50).map(|n| keyed(&format!("k{n}")))).await;
    until("the whole", || one.partitions_owned() == 256).await;
    stage.until_count(Status::Done, 100).await;
    one.shutdown().await;
    stage.probe.assert_each_once(&[ids, later].concat());
    stage.probe.assert_in_order_per_key();
}

/// A release that fails: whoever reads the partitions next begins below everything that was waiting here.
#[tokio::test(start_paused = true)]
async fn a_release_that_fails_forgets_nothing_that_was_waiting() {
    for lost in [false, true] {
        let stage = Stage::new();
        let one = stage.node().workers(1).handler_timeout(HOUR).start().await.unwrap();
        // The upper half of the partitions goes to the second node. What waits lies there alone, behind a worker
        // that is busy with a later event of the lower half.
        let reader = stage.faults().stop_before(Call::Page);
        reader.reached().await;
        let mut keys = (0..).map(|n| format!("k{n}"));
        let upper = keys.find(|key| Partition::of_key(&Key::from(key.as_str())).0 >= 128).unwrap();
        let mut ids = stage.write_cold((0..5).map(|_| keyed(&upper))).await;
        let plug = stage.probe.stop(Which::is(|delivery| delivery.record().partition.0 < 128), 1);
        while plug.arrivals() == 0 {
            ids.extend(write(&one, [event()]).await);
            stage.probe.wait_until(|log| log.begun() + 5 == ids.len()).await;
        }
        stage.until_count(Status::Done, ids.len() as u64 - 6).await;
        reader.open();
        stage.read_through().await;
        if lost {
            stage.faults().lose(Call::Release, 2, UNKNOWN);
        } else {
            stage.faults().fail(Call::Release, 2, DOWN);
        }
        let two = stage.another_process().node().start().await.unwrap();
        until("even shares", || one.partitions_owned() == 128 && two.partitions_owned() == 128).await;
        plug.open();
        stage.until_count(Status::Done, ids.len() as u64).await;
        tokio::join!(one.shutdown(), two.shutdown());
        stage.probe.assert_each_once(&ids);
        stage.probe.assert_in_order_per_key();
    }
}

/// P2, P7: the process stops between the handler and the settle: another node delivers after the lease.
#[tokio::test(start_paused = true)]
async fn what_a_node_delivered_and_never_settled_is_delivered_by_the_next_after_the_lease() {
    let stage = Stage::new();
    let one = stage.node().start().await.unwrap();
    let begun = tokio::time::Instant::now();
    for call in Call::ALL {
        if !matches!(call, Call::Begin | Call::Insert | Call::Commit) {
            (0..9).for_each(|_| stage.faults().hang(call));
        }
    }
    let ids = write(&one, [event(), keyed("k"), event()]).await;
    // The reader hangs: only the hot path delivers.
    stage.probe.wait_for(2).await;
    let two = stage.another_process().node().start().await.unwrap();
    stage.until_count(Status::Done, 3).await;
    assert!(begun.elapsed() >= Duration::from_secs(30), "taken from a live node");
    assert!(begun.elapsed() <= Duration::from_secs(37), "after the lease and a glance, not {:?}", begun.elapsed());
    let log = stage.probe.log();
    assert_eq!(ids.iter().map(|id| log.times(*id)).collect::<Vec<_>>(), [2, 1, 2]);
    for id in ids {
        assert_eq!(stage.row(id).await.attempts, 0);
    }
    two.shutdown().await;
    std::mem::forget(one);
}

/// Decision 10: a suspect whose start can't be counted is put off, and no attempt counts.
#[tokio::test(start_paused = true)]
async fn a_suspect_whose_start_cannot_be_counted_is_put_off() {
    let stage = Stage::new();
    let one = stage.single().node_name("twin").lease(HOUR).start().await.unwrap();
    let handler = stage.probe.stop(Which::any(), 2);
    let ids = write(&one, [event(), keyed("k")]).await;
    handler.reached_by(2).await;
    // A second life of the same name: as if the first process had died.
    let again = stage.another_process();
    again.faults().fail(Call::Start, 3, DOWN);
    let two = again.single().node_name("twin").lease(HOUR).start().await.unwrap();
    stage.until_count(Status::Done, 2).await;
    assert!(again.faults().calls(Call::Start) >= 5);
    two.shutdown().await;
    handler.open();
    one.shutdown().await;
    for id in ids {
        assert_eq!(stage.row(id).await.attempts, 0);
    }
}

/// Decision 10: the next suspect starts when the outcome of the one before is durable.
#[tokio::test(start_paused = true)]
async fn suspects_start_one_by_one_each_after_the_settle_of_the_one_before() {
    let stage = Stage::new();
    let one = stage.single().node_name("twin").lease(HOUR).start().await.unwrap();
    let handler = stage.probe.stop(Which::any(), 3);
    write(&one, [event(), event(), event()]).await;
    handler.reached_by(3).await;
    let again = stage.another_process();
    let settle = again.faults().stop_before(Call::Settle);
    let two = again.single().node_name("twin").lease(HOUR).start().await.unwrap();
    settle.reached().await;
    pass(Duration::from_secs(1)).await;
    assert_eq!(again.faults().calls(Call::Start), 1, "the second waits for the first one's settle");
    settle.open();
    stage.until_count(Status::Done, 3).await;
    assert_eq!(again.faults().calls(Call::Start), 3);
    two.shutdown().await;
    handler.open();
    one.shutdown().await;
}

/// D9 beside D11: a deferral whose settle fails is still a deferral.
#[tokio::test(start_paused = true)]
async fn a_deferral_survives_a_failing_settle() {
    let stage = Stage::new();
    let outbox = stage.single().start().await.unwrap();
    stage.faults().fail(Call::Settle, 2, DOWN);
    stage.probe.answer(Which::any(), 1, Ok(Outcome::RetryAfter(Duration::from_secs(5))));
    let ids = write(&outbox, [keyed("k"), keyed("k")]).await;
    stage.until_count(Status::Done, 2).await;
    outbox.shutdown().await;
    assert_eq!(stage.probe.log().ids(), [ids[0], ids[0], ids[1]]);
    assert_eq!(stage.row(ids[0]).await.attempts, 0);
}

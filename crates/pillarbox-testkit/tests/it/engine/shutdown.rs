//! D12, B2: stopping, also while the database fails.

use std::time::Duration;

use pillarbox_core::{
    Outbox,
    domain::{Key, Partition, Status},
    engine::PurgeOptions,
};
use pillarbox_testkit::{
    Call,
    probe::{End, Which},
};

use super::{DOWN, Stage, event, keyed, pass, until, write};

/// B2: purge and reader stop first, the lease and the measuring go on while handlers finish, and then nothing does.
#[tokio::test(start_paused = true)]
async fn parts_stop_in_their_order_and_stopping_twice_is_fine() {
    let stage = Stage::new();
    let second = Duration::from_secs(1);
    let purge = PurgeOptions { every: second, ..PurgeOptions::default() };
    let outbox = stage.single().purge(purge).sample_every(second).start().await.unwrap();
    let handler = stage.probe.stop(Which::any(), 1);
    let ids = write(&outbox, [event()]).await;
    handler.reached().await;
    let closing = tokio::spawn({
        let outbox = outbox.clone();
        async move { outbox.shutdown().await }
    });
    pass(Duration::from_millis(100)).await;
    let counts = || [Call::Purge, Call::Page, Call::Settle].map(|call| stage.faults().calls(call));
    let before = counts();
    let (renewed, measured) = (stage.faults().calls(Call::Renew), stage.faults().calls(Call::Stats));
    pass(Duration::from_secs(5)).await;
    assert_eq!(counts(), before, "no purge, no read and nothing to settle");
    assert!(stage.faults().calls(Call::Renew) >= renewed + 4, "the lease is kept");
    assert!(stage.faults().calls(Call::Stats) >= measured + 4, "the measuring goes on");
    let later = write(&outbox, [event()]).await;
    handler.open();
    closing.await.unwrap();
    assert_eq!(stage.row(ids[0]).await.status, Status::Done, "settled before the end");
    assert_eq!(stage.row(later[0]).await.status, Status::New, "nothing new was started");
    let at_end = Call::ALL.map(|call| stage.faults().calls(call));
    tokio::join!(outbox.shutdown(), outbox.shutdown());
    pass(Duration::from_mins(1)).await;
    assert_eq!(Call::ALL.map(|call| stage.faults().calls(call)), at_end, "nothing runs any more");
    let next = stage.another_process().single().start().await.unwrap();
    assert_eq!(next.partitions_owned(), 256, "free at once");
    stage.probe.wait_for(2).await;
    next.shutdown().await;
}

/// D12, O7: a graceful time may be for ever: then handlers are waited for, in a rebalancing and in a shutdown.
#[tokio::test(start_paused = true)]
async fn a_graceful_time_without_an_end_is_waited_for() {
    let stage = Stage::new();
    let of_upper = |key: &String| Partition::of_key(&Key::from(key.as_str())).0 >= 128;
    let key = (0..100).map(|n| format!("k{n}")).find(of_upper).unwrap();
    let endless = stage.node().drain_timeout(Duration::MAX).handler_timeout(Duration::MAX);
    let one = endless.start().await.unwrap();
    let handler = stage.probe.stop(Which::any(), 1);
    let ids = write(&one, [keyed(&key)]).await;
    handler.reached().await;
    let two = stage.another_process().node().start().await.unwrap();
    until("all but one", || two.partitions_owned() == 127).await;
    let closing = tokio::spawn(async move { one.shutdown().await });
    until("the rest", || two.partitions_owned() == 255).await;
    pass(Duration::from_mins(5)).await;
    assert!(!closing.is_finished());
    handler.open();
    closing.await.unwrap();
    assert_eq!((stage.row(ids[0]).await.status, stage.probe.log().begun()), (Status::Done, 1));
    until("the whole", || two.partitions_owned() == 256).await;
    two.shutdown().await;
}

/// D12: a handler that does not finish in time is dropped, and no attempt counts; the call returns.
#[tokio::test(start_paused = true)]
async fn a_handler_that_outlasts_the_drain_is_dropped_and_counts_no_attempt() {
    let stage = Stage::new();
    let drain = Duration::from_secs(3);
    let outbox = stage.single().drain_timeout(drain).start().await.unwrap();
    let handler = stage.probe.stop(Which::of_key("hangs"), 1);
    let ids = write(&outbox, [keyed("hangs"), keyed("hangs"), event()]).await;
    handler.reached().await;
    stage.probe.wait_for(1).await;
    let begun = tokio::time::Instant::now();
    outbox.shutdown().await;
    assert!(begun.elapsed() >= drain && begun.elapsed() < drain * 2, "{:?}", begun.elapsed());
    assert_eq!(stage.probe.log().deliveries().iter().filter(|d| d.end == Some(End::Dropped)).count(), 1);
    let row = stage.row(ids[0]).await;
    assert_eq!((row.status, row.attempts), (Status::New, 0));
    let next = stage.single().start().await.unwrap();
    stage.until_count(Status::Done, 3).await;
    next.shutdown().await;
    stage.probe.assert_in_order_per_key();
}

/// D11, D12: what could not be settled at the end is found by the next node, hot or cold, with a key or without, and
/// also what came after it and was settled before.
#[tokio::test(start_paused = true)]
async fn what_a_stopping_node_could_not_settle_is_found_by_the_next() {
    for (call, times) in [(Call::Settle, usize::MAX), (Call::Release, usize::MAX), (Call::Leave, usize::MAX)] {
        let stage = Stage::new();
        let outbox = stage.node().drain_timeout(Duration::from_secs(1)).start().await.unwrap();
        let first = stage.probe.stop(Which::of_key("first"), 1);
        let mut ids = write(&outbox, [keyed("first"), keyed("first"), event()]).await;
        first.reached().await;
        stage.until_count(Status::Done, 1).await;
        stage.read_through().await;
        stage.faults().fail(call, times, DOWN);
        ids.extend(write(&outbox, [event(), keyed("k"), keyed("k")]).await);
        ids.extend(stage.write_cold([event(), keyed("k")]).await);
        stage.probe.wait_for(6).await;
        first.open();
        stage.probe.wait_for(7).await;
        let begun = tokio::time::Instant::now();
        outbox.shutdown().await;
        assert!(begun.elapsed() < Duration::from_secs(15), "{call:?}: the call took {:?}", begun.elapsed());
        let next = stage.another_process().node().start().await.unwrap();
        stage.until_count(Status::Done, 8).await;
        until("the whole", || next.partitions_owned() == 256).await;
        next.shutdown().await;
        for id in ids {
            let row = stage.row(id).await;
            assert_eq!((row.status, row.attempts), (Status::Done, 0), "{call:?}");
        }
        stage.probe.assert_in_order_per_key();
    }
}

/// D11, D12: the last settle is in effect, and only its answer is lost.
#[tokio::test(start_paused = true)]
async fn a_last_settle_whose_answer_is_lost_is_sent_again() {
    let stage = Stage::new();
    let outbox = stage.single().settle_linger(Duration::from_secs(1)).start().await.unwrap();
    stage.faults().lose(Call::Settle, 1, super::UNKNOWN);
    let ids = write(&outbox, [event(), keyed("k")]).await;
    stage.probe.wait_for(2).await;
    outbox.shutdown().await;
    assert_eq!(stage.count(Status::Done).await, 2);
    stage.probe.assert_each_once(&ids);
}

/// P8: a process that writes and ends at once is heard of, also while an earlier hint of its is under way.
#[tokio::test(start_paused = true)]
async fn hints_that_wait_at_the_stop_are_sent() {
    let stage = Stage::new();
    let writer = Outbox::writer_only(stage.store.clone()).start().await.unwrap();
    let first = stage.faults().stop_before(Call::Hint);
    write(&writer, [event()]).await;
    first.reached().await;
    write(&writer, [event()]).await;
    tokio::join!(writer.shutdown(), async { first.open() });
    assert_eq!(stage.faults().calls(Call::Hint), 2, "the second event was not told of");
}

/// P8: many commits are one hint, and not a statement each.
#[tokio::test(start_paused = true)]
async fn hints_of_commits_that_follow_each_other_closely_are_coalesced() {
    let stage = Stage::new();
    let writer = Outbox::writer_only(stage.store.clone()).start().await.unwrap();
    for _ in 0..100 {
        write(&writer, [event()]).await;
        pass(Duration::from_millis(1)).await;
    }
    let hints = stage.faults().calls(Call::Hint);
    assert!((10..=21).contains(&hints), "{hints} hints in a tenth of a second");
    writer.shutdown().await;
}

/// O7: without a word about it, handlers have fifteen seconds.
#[tokio::test(start_paused = true)]
async fn the_graceful_time_is_fifteen_seconds_by_default() {
    let stage = Stage::new();
    let outbox = stage.node().start().await.unwrap();
    let handler = stage.probe.stop(Which::any(), 1);
    write(&outbox, [event()]).await;
    handler.reached().await;
    let begun = tokio::time::Instant::now();
    outbox.shutdown().await;
    let took = begun.elapsed();
    assert!(Duration::from_secs(15) <= took && took < Duration::from_secs(16), "{took:?}");
    assert_eq!(stage.probe.log().deliveries()[0].end, Some(End::Dropped));
}

/// D12: the database hangs at the end: the call returns all the same.
#[tokio::test(start_paused = true)]
async fn stopping_returns_also_when_the_database_does_not_answer() {
    let stage = Stage::new();
    let outbox = stage.single().drain_timeout(Duration::from_secs(1)).start().await.unwrap();
    for call in Call::ALL {
        (0..9).for_each(|_| stage.faults().hang(call));
    }
    let begun = tokio::time::Instant::now();
    outbox.shutdown().await;
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

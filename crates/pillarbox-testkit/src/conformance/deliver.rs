//! The engine on this store: what is committed is delivered, and what becomes of it.

use std::time::Duration;

use pillarbox_core::{
    HandlerError, RetryPolicy,
    domain::{Payload, Seq, Status},
    engine::{HandlerExt, OnSuccess, PurgeOptions},
    port::{Actor, AdminStore, PurgeScope, Query},
};

use super::{
    Backend,
    stage::{ROUTE, Stage, event, keyed, quick, write},
};
use crate::probe::Which;

/// W1, D1, D8: a commit is delivered once and its row is DONE; a rollback leaves nothing to deliver.
pub async fn what_is_committed_is_delivered_and_what_is_rolled_back_is_not<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let outbox = stage.single().await.start().await.expect("start");
    let mut gone = outbox.begin().await.expect("begin");
    gone.write(event()).await.expect("write");
    gone.rollback().await.expect("rollback");
    let mut dropped = outbox.begin().await.expect("begin");
    dropped.write(event()).await.expect("write");
    drop(dropped);
    let ids = write(&outbox, [event(), keyed("k"), keyed("k")]).await;
    stage.probe.wait_for(3).await;
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
    let stats = outbox.stats().await.expect("stats");
    assert_eq!((stats.count(Status::Done), stats.pending()), (3, 0));
}

/// W6: in a transaction of one's own, confirmed, forgotten and rolled back.
pub async fn a_receipt_that_is_forgotten_costs_latency_only<B: Backend>() {
    use pillarbox_core::port::TransactStore;

    let stage = Stage::<B>::new().await;
    let ttl = Duration::from_millis(50);
    let outbox = stage.single().await.reservation_ttl(ttl).start().await.expect("start");
    let store = outbox.store();
    let mut ids = Vec::new();
    for confirmed in [true, false] {
        let mut tx = store.begin().await.expect("begin");
        let receipt = outbox.write(&mut tx, event()).await.expect("write");
        ids.extend_from_slice(receipt.ids());
        store.commit(tx).await.expect("commit");
        if confirmed {
            receipt.confirm();
        } else {
            // Not even dropped: as if the task that has it hung.
            std::mem::forget(receipt);
        }
    }
    let mut tx = store.begin().await.expect("begin");
    let receipt = outbox.write(&mut tx, event()).await.expect("write");
    store.rollback(tx).await.expect("rollback");
    receipt.rolled_back();
    stage.probe.wait_for(2).await;
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
}

/// D8, R1: a failure is tried again, and the last attempt is the last; the error is kept.
pub async fn a_failing_event_is_tried_again_until_it_succeeds_or_is_dead<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let outbox = stage.single().await.start().await.expect("start");
    let words = "x".repeat(5_000);
    stage.probe.fail(Which::of_key("twice"), 2);
    stage.probe.answer(Which::of_key("ever"), 99, Err(HandlerError::msg(&words)));
    let ids = write(&outbox, [keyed("twice"), keyed("ever")]).await;
    stage.until_count(Status::Dead, 1).await;
    stage.until_count(Status::Done, 1).await;
    outbox.shutdown().await;
    let log = stage.probe.log();
    assert_eq!((log.times(ids[0]), log.times(ids[1])), (3, 3));
    let dead = stage.row(ids[1]).await.expect("the dead event is kept");
    assert_eq!((dead.status, dead.attempts), (Status::Dead, 3));
    assert_eq!(dead.last_error.expect("its error is kept"), "x".repeat(4_000));
}

/// D9: "retry after" as an answer counts no attempt, as an error it does.
pub async fn a_deferral_counts_no_attempt_and_a_failure_with_a_delay_does<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let outbox = stage.single().await.start().await.expect("start");
    let wait = Duration::from_millis(1);
    stage.probe.defer(Which::of_key("defers"), 5, wait);
    stage.probe.answer(Which::of_key("fails"), 5, Err(HandlerError::msg("later").retry_after(wait)));
    let ids = write(&outbox, [keyed("defers"), keyed("fails")]).await;
    stage.until_count(Status::Done, 1).await;
    stage.until_count(Status::Dead, 1).await;
    outbox.shutdown().await;
    let log = stage.probe.log();
    assert_eq!((log.times(ids[0]), log.times(ids[1])), (6, 3));
    assert_eq!(stage.row(ids[0]).await.expect("kept").attempts, 0);
}

/// D10: a panic and a hanging handler are failures, and the worker lives on.
pub async fn panics_and_hanging_handlers_are_failures_and_the_workers_live_on<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let hang = |_| async { std::future::pending::<()>().await };
    let outbox = stage
        .single()
        .await
        .workers(1)
        .route("Hangs", hang.with_timeout(Duration::from_millis(20)))
        .start()
        .await
        .expect("start");
    stage.probe.panic(Which::of_key("panics"), 99);
    let hanging = pillarbox_core::Event::builder("Hangs").json(&1);
    let ids = write(&outbox, [keyed("panics"), hanging, event()]).await;
    stage.until_count(Status::Dead, 2).await;
    stage.until_count(Status::Done, 1).await;
    outbox.shutdown().await;
    for (id, words) in [(ids[0], "a scripted panic"), (ids[1], "cut off after 20ms")] {
        let dead = stage.row(id).await.expect("kept");
        assert_eq!(dead.attempts, 3);
        assert!(dead.last_error.as_deref().expect("an error").contains(words), "{:?}", dead.last_error);
    }
}

/// R3: the handler's policy goes before the outbox's.
pub async fn a_handlers_own_policy_goes_first<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let fails = |_| async { Err::<(), _>(HandlerError::msg("no")) };
    let outbox = stage
        .single()
        .await
        .route("Own", fails.with_retry(RetryPolicy::never()))
        .route("Builders", fails)
        .start()
        .await
        .expect("start");
    let of = |event_type: &str| pillarbox_core::Event::builder(event_type).json(&1);
    let ids = write(&outbox, [of("Own"), of("Builders")]).await;
    stage.until_count(Status::Dead, 2).await;
    outbox.shutdown().await;
    assert_eq!(stage.row(ids[0]).await.expect("kept").attempts, 1);
    assert_eq!(stage.row(ids[1]).await.expect("kept").attempts, 3);
}

/// D7: without a route an event is dead at once, and the reason names the route.
pub async fn an_event_without_a_route_is_dead_at_once<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let outbox = stage.single().await.start().await.expect("start");
    let stranger = pillarbox_core::Event::builder("Unheard").aggregate_type("Of").json(&1);
    let ids = write(&outbox, [stranger]).await;
    stage.until_count(Status::Dead, 1).await;
    outbox.shutdown().await;
    let dead = stage.row(ids[0]).await.expect("kept");
    assert_eq!(dead.attempts, 0);
    assert!(dead.last_error.expect("an error").contains("(\"Of\", \"Unheard\")"));
}

/// W9: a delayed event is delivered when it is due, and not before; with a key it holds back nothing.
pub async fn a_delayed_event_is_delivered_when_due_and_holds_back_nothing<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let outbox = stage.single().await.start().await.expect("start");
    let begun = std::time::Instant::now();
    let delay = Duration::from_millis(300);
    let ids = write(&outbox, [keyed("k").deliver_after(delay), keyed("k"), event().deliver_after(delay)]).await;
    stage.probe.wait_for(1).await;
    assert_eq!(stage.probe.log().ids(), [ids[1]]);
    stage.probe.wait_for(3).await;
    assert!(begun.elapsed() >= delay, "delivered after {:?}", begun.elapsed());
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
}

/// A retry that is due in 10 ms does not wait for the next poll: the reader knows the next due time.
pub async fn a_retry_does_not_wait_for_the_next_poll<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let hour = Duration::from_hours(1);
    let outbox = stage.single().await.poll_interval(hour, hour).start().await.expect("start");
    stage.probe.fail(Which::any(), 2);
    let ids = write(&outbox, [event()]).await;
    stage.probe.wait_for(1).await;
    assert_eq!(stage.probe.log().times(ids[0]), 3);
    outbox.shutdown().await;
}

/// E3, E5: hot and cold delivery hand out the same bytes, headers and tenant.
pub async fn hot_and_cold_delivery_hand_out_the_same_bytes<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let odd = "{ \"b\":1,\n\t\"a\" : [2.50, \"\\u00e9\u{e9}\"] }";
    let full = || event().header("source", "web \u{e9}\n").tenant("acme");
    let make = || {
        let text = full().payload(Payload::json_text(odd).expect("JSON"));
        [text, full().payload(Payload::bytes("a/b", vec![0, 255, 10]))]
    };
    // Nobody delivers yet: these are read from the table.
    let writer = pillarbox_core::Outbox::writer_only(stage.backend.second_handle().await);
    let writer = writer.start().await.expect("start");
    let cold = write(&writer, make()).await;
    let outbox = stage.single().await.start().await.expect("start");
    stage.probe.wait_for(2).await;
    let hot = write(&outbox, make()).await;
    stage.probe.wait_for(4).await;
    outbox.shutdown().await;
    let log = stage.probe.log();
    for (cold, hot) in cold.iter().zip(&hot) {
        let (cold, hot) = (log.event(*cold), log.event(*hot));
        assert_eq!(cold.payload(), hot.payload());
        for event in [cold, hot] {
            assert_eq!((event.headers().get("source"), event.tenant_id()), (Some("web \u{e9}\n"), Some("acme")));
        }
    }
    assert_eq!(log.event(hot[0]).payload().as_text(), Some(odd));
}

/// P6: a row that can't be decoded is dead with the reason, and those around it are delivered.
pub async fn a_broken_row_is_dead_and_its_neighbours_are_delivered<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let writer = pillarbox_core::Outbox::writer_only(stage.backend.second_handle().await);
    let writer = writer.start().await.expect("start");
    let ids = write(&writer, [event(), event(), event(), keyed("k"), keyed("k"), keyed("other")]).await;
    let seqs: Vec<Seq> = {
        let listing = stage.backend.store().list(&Query::default(), Seq(0), 10).await.expect("list");
        listing.events.iter().map(|found| found.seq).collect()
    };
    stage.backend.break_row(seqs[1]).await;
    stage.backend.break_row(seqs[3]).await;
    let outbox = stage.single().await.start().await.expect("start");
    stage.probe.wait_for(3).await;
    stage.until_count(Status::Dead, 2).await;
    outbox.shutdown().await;
    // The broken head of `k` holds its key, as any dead head does.
    stage.probe.assert_each_once(&[ids[0], ids[2], ids[5]]);
    let dead = Query { statuses: vec![Status::Dead], ..Query::default() };
    let dead = stage.backend.store().list(&dead, Seq(0), 10).await.expect("list").events;
    assert!(dead.iter().all(|found| found.last_error.as_deref().is_some_and(|e| e.contains("can't be read"))));
}

/// U2: delete on success leaves no row.
pub async fn delete_on_success_leaves_no_row<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let outbox = stage.single().await.on_success(OnSuccess::Delete).start().await.expect("start");
    write(&outbox, (0..20).map(|n| if n % 2 == 0 { event() } else { keyed("k") })).await;
    stage.probe.wait_for(20).await;
    outbox.shutdown().await;
    assert_eq!(stage.backend.store().count(&Query::default()).await.expect("count"), 0);
}

/// U1: the purge removes what is finished, on its schedule, and nothing that is live.
pub async fn the_purge_removes_finished_rows_on_schedule<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let scope = PurgeScope::Finished { done: Duration::ZERO, dead: None };
    let every = Duration::from_millis(20);
    let purge = PurgeOptions { scope, batch: 3, every, ..PurgeOptions::default() };
    let outbox = stage.single().await.purge(purge).start().await.expect("start");
    stage.probe.answer(Which::of_key("dies"), 1, Err(HandlerError::msg("no").permanent()));
    let mut events: Vec<_> = (0..10).map(|_| event()).collect();
    events.push(keyed("dies"));
    events.push(event().deliver_after(Duration::from_hours(1)));
    write(&outbox, events).await;
    stage.probe.wait_for(10).await;
    stage.until_count(Status::Dead, 1).await;
    stage.until_count(Status::Done, 0).await;
    outbox.shutdown().await;
    assert_eq!(stage.backend.store().count(&Query::default()).await.expect("count"), 2);
}

/// U2: a purge by age, in a process that only writes, removes rows that nobody delivered.
pub async fn a_purge_by_age_needs_no_delivery<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let writer = pillarbox_core::Outbox::writer_only(stage.backend.second_handle().await)
        .purge_by_age(Duration::ZERO)
        .purge_schedule(Duration::from_millis(20), 2)
        .start()
        .await
        .expect("start");
    write(&writer, (0..7).map(|_| event())).await;
    stage.until_count(Status::New, 0).await;
    writer.shutdown().await;
}

/// U3, U4: dead events are listed, counted, replayed, replayed in bulk and discarded, by their ids.
pub async fn dead_events_are_replayed_and_discarded<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let outbox = stage.single().await.retry(RetryPolicy::never()).start().await.expect("start");
    stage.probe.fail(Which::any(), 4);
    let ids = write(&outbox, (0..4).map(|_| event())).await;
    stage.until_count(Status::Dead, 4).await;
    let (dead, ada, all) = (outbox.dead(), Actor::new("ada").because("mended"), Query::default());
    assert_eq!(dead.count(&all).await.expect("count"), 4);
    let first = dead.list(&all, None, 3).await.expect("list");
    assert_eq!(first.events.len(), 3);
    assert_eq!(dead.list(&all, first.next, 3).await.expect("list").events.len(), 1);

    dead.discard(ids[3], &ada).await.expect("discard");
    dead.replay(ids[0], &ada).await.expect("replay");
    stage.probe.wait_for(1).await;
    stage.until_count(Status::Done, 1).await;
    let refused = dead.replay(ids[0], &ada).await.expect_err("it is done").to_string();
    assert!(refused.contains("DONE"), "{refused}");
    let unknown = dead.replay(pillarbox_core::new_id(), &ada).await.expect_err("no such event").to_string();
    assert!(unknown.contains("no event"), "{unknown}");
    let rate = std::num::NonZeroU32::new(1_000);
    assert_eq!(dead.replay_all(&all, rate, &ada).await.expect("replay all"), 2);
    stage.probe.wait_for(3).await;
    stage.until_count(Status::Done, 3).await;
    outbox.shutdown().await;
    let row = stage.row(ids[0]).await.expect("kept");
    assert_eq!((row.attempts, row.last_error), (0, None));
}

/// U4: a replay survives a restart, and two at once deliver once.
pub async fn a_replay_survives_a_restart_and_is_delivered_once<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let outbox = stage.single().await.retry(RetryPolicy::never()).start().await.expect("start");
    stage.probe.fail(Which::any(), 1);
    let ids = write(&outbox, [keyed("k"), keyed("k")]).await;
    stage.until_count(Status::Dead, 1).await;
    outbox.shutdown().await;
    let dead = outbox.dead();
    let ada = Actor::new("ada");
    let (one, other) = tokio::join!(dead.replay(ids[0], &ada), dead.replay(ids[0], &ada));
    assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
    let outbox = stage.single().await.start().await.expect("start");
    stage.probe.wait_for(2).await;
    outbox.shutdown().await;
    assert_eq!(stage.probe.log().ids(), [ids[0], ids[0], ids[1]]);
}

/// D12: a shutdown starts nothing new, drops what hangs, counts no attempt, and frees the partitions.
pub async fn a_shutdown_drops_what_hangs_and_counts_no_attempt<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let drain = Duration::from_millis(50);
    let outbox = stage.single().await.workers(2).drain_timeout(drain).start().await.expect("start");
    let gate = stage.probe.stop(Which::any(), 2);
    let ids = write(&outbox, (0..6).map(|_| event())).await;
    gate.reached_by(2).await;
    outbox.shutdown().await;
    outbox.shutdown().await;
    for id in &ids {
        let row = stage.row(*id).await.expect("still there");
        assert_eq!((row.status, row.attempts), (Status::New, 0));
    }
    gate.open();
    // The next one owns everything at once, long before a lease could lapse.
    let next = stage.single().await.start().await.expect("start");
    assert_eq!(next.partitions_owned(), 256);
    stage.probe.wait_until(|log| ids.iter().all(|id| log.is_done(*id))).await;
    next.shutdown().await;
}

/// D12: what runs is finished within the drain timeout, and settled.
pub async fn a_shutdown_lets_running_handlers_finish<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let outbox = stage.single().await.start().await.expect("start");
    let gate = stage.probe.stop(Which::any(), 1);
    let ids = write(&outbox, [event()]).await;
    gate.reached().await;
    let closing = tokio::spawn({
        let outbox = outbox.clone();
        async move { outbox.shutdown().await }
    });
    gate.open();
    closing.await.expect("shutdown");
    assert_eq!(stage.row(ids[0]).await.expect("kept").status, Status::Done);
}

/// D15: several pages follow each other at once, and none waits for the poll interval.
pub async fn a_backlog_is_read_page_after_page<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let writer = pillarbox_core::Outbox::writer_only(stage.backend.second_handle().await);
    let writer = writer.start().await.expect("start");
    let ids = write(&writer, (0..500).map(|n| if n % 3 == 0 { keyed(&format!("k{}", n % 7)) } else { event() })).await;
    let hour = Duration::from_hours(1);
    let outbox = stage
        .single()
        .await
        .page_size(10)
        .cold_capacity(16)
        .lane_capacity(4)
        .poll_interval(hour, hour)
        .start()
        .await
        .expect("start");
    stage.probe.wait_for(500).await;
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
    stage.probe.assert_in_order_per_key();
}

/// B1: an ordered outbox refuses events without a key, or gives them one.
pub async fn an_ordered_outbox_wants_keys<B: Backend>() {
    use pillarbox_core::{Outbox, engine::WriteError};

    let stage = Stage::<B>::new().await;
    let strict =
        Outbox::ordered(stage.backend.second_handle().await).route(ROUTE, stage.probe.handler()).retry(quick());
    let strict = strict.start().await.expect("start");
    let mut tx = strict.begin().await.expect("begin");
    let refused = tx.write(event()).await;
    assert!(matches!(refused, Err(WriteError::NoKey(_))), "{refused:?}");
    drop(tx);
    strict.shutdown().await;

    let kind = Outbox::ordered(stage.backend.second_handle().await)
        .default_key("all")
        .route(ROUTE, stage.probe.handler())
        .start()
        .await
        .expect("start");
    write(&kind, (0..5).map(|_| event())).await;
    stage.probe.wait_for(5).await;
    kind.shutdown().await;
    stage.probe.assert_in_order_per_key();
    stage.probe.assert_no_overlap();
    assert_eq!(stage.probe.log().seqs_of_key("all").len(), 5);
}

/// D5: without a fault every event is delivered exactly once, hot and cold path together, under load.
pub async fn each_of_many_events_is_delivered_exactly_once<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let outbox = stage.single().await.hot_capacity(64).cold_capacity(256).page_size(100).start().await.expect("start");
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let outbox = outbox.clone();
            tokio::spawn(async move {
                let mut ids = Vec::new();
                for batch in 0..100 {
                    let of =
                        |n: usize| if n.is_multiple_of(4) { keyed(&format!("{writer}-{}", n % 5)) } else { event() };
                    ids.extend(write(&outbox, (0..=(batch % 10)).map(of)).await);
                }
                ids
            })
        })
        .collect();
    let mut ids = Vec::new();
    for writer in writers {
        ids.extend(writer.await.expect("writer"));
    }
    stage.probe.wait_for(ids.len()).await;
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
    stage.probe.assert_in_order_per_key();
    stage.probe.assert_no_overlap();
    stage.until_count(Status::Done, ids.len() as u64).await;
}

/// W10: of events with one dedup key the first is kept, in a batch, in a transaction and over transactions.
pub async fn a_second_event_with_a_dedup_key_is_told_apart_and_not_delivered<B: Backend>() {
    use pillarbox_core::engine::Duplicate;

    let stage = Stage::<B>::new().await;
    let outbox = stage.single().await.start().await.expect("start");
    let window = Duration::from_hours(1);
    let built = |key: &str| event().dedup(key, window).build().expect("the event is valid");
    let (first, second, third, other) = (built("a"), built("a"), built("a"), built("b"));

    let mut tx = outbox.begin().await.expect("begin");
    let ids = tx.write_all([&first, &second, &other]).await.expect("write");
    assert_eq!(ids, [first.id(), first.id(), other.id()], "the ids of the events that are kept");
    assert_eq!(tx.duplicates(), [Duplicate { event: second.id(), kept: first.id() }]);
    assert_eq!(tx.write(&third).await.expect("write"), first.id());
    assert_eq!(tx.duplicates().len(), 2);
    tx.commit().await.expect("commit");

    let mut tx = outbox.begin().await.expect("begin");
    assert_eq!(tx.write(&first).await.expect("write"), first.id(), "the same event once more is a duplicate as well");
    assert_eq!(tx.duplicates(), [Duplicate { event: first.id(), kept: first.id() }]);
    let plain = tx.write(event()).await.expect("write");
    tx.commit().await.expect("commit");

    let ids = [first.id(), other.id(), plain];
    stage.probe.wait_for(ids.len()).await;
    stage.until_count(Status::Done, 3).await;
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
}

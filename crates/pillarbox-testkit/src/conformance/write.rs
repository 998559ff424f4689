//! Writing.

use std::time::Duration;

use futures_util::future::join_all;
use pillarbox_core::{
    Event, EventId,
    domain::{Headers, Partition, Payload, Seq, Status, Timestamp, limit},
    new_id,
    port::{AdminStore, NewKey, NewRow, Position, Query, Row, TransactStore, WriteStore},
};

use super::{
    Backend,
    scene::{Scene, build, event, events, new_row},
};

/// W1.
pub async fn an_event_is_seen_by_others_once_its_transaction_has_committed<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let other = scene.backend.second_handle().await;
    let seen = async || count(&other).await;

    let mut tx = scene.store().begin().await.expect("begin");
    let rows = [new_row(build(event()))];
    let seqs = scene.store().insert(&mut tx, &rows).await.expect("insert");
    assert_eq!(seen().await, 0);
    scene.store().commit(tx).await.expect("commit");
    assert_eq!(seen().await, 1);

    let found = scene.found(seqs[0]).await;
    assert_eq!((found.status, found.attempts), (Status::New, 0));
    assert_eq!((found.available_at, found.done_at, found.last_error), (None, None, None));
    assert!(!found.holds_key);
}

/// W1.
pub async fn a_rolled_back_transaction_leaves_no_row<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let rows = [new_row(build(event()))];
    let mut tx = scene.store().begin().await.expect("begin");
    scene.store().insert(&mut tx, &rows).await.expect("insert");
    scene.store().rollback(tx).await.expect("rollback");
    let mut tx = scene.store().begin().await.expect("begin");
    scene.store().insert(&mut tx, &rows).await.expect("insert");
    drop(tx);

    let seq = scene.write_one(event()).await;
    assert_eq!(scene.fresh().await, [seq]);
    assert_eq!(count(scene.store()).await, 1);
}

/// W3, O8.
pub async fn the_numbers_of_a_batch_rise_in_the_order_of_its_rows<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let rows: Vec<NewRow> = events(5_000).into_iter().map(|event| new_row(build(event))).collect();
    let seqs = scene.write_rows(&rows).await;
    assert!(seqs[0] > Seq(0));
    assert!(seqs.is_sorted_by(|a, b| a < b));

    let page = scene.page(&Position::START).await;
    let read: Vec<_> = page.rows.iter().map(|row| (row.seq(), id(row))).collect();
    let written: Vec<_> = seqs.into_iter().zip(rows.iter().map(|row| row.event.id())).collect();
    assert_eq!(read, written);
}

/// O8.
pub async fn numbers_rise_within_a_transaction_and_from_one_to_the_next<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let mut all = Vec::new();
    for _ in 0..3 {
        let mut tx = scene.store().begin().await.expect("begin");
        for size in [1, 3, 2] {
            let rows: Vec<NewRow> = events(size).into_iter().map(|event| new_row(build(event))).collect();
            all.extend(scene.store().insert(&mut tx, &rows).await.expect("insert"));
        }
        scene.store().commit(tx).await.expect("commit");
    }
    assert!(all.is_sorted_by(|a, b| a < b), "{all:?}");
    assert_eq!(scene.fresh().await, all);
}

/// The contract of `insert`.
pub async fn an_empty_batch_touches_nothing<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let mut tx = scene.store().begin().await.expect("begin");
    let seqs = scene.store().insert(&mut tx, &[]).await.expect("insert");
    assert_eq!(seqs, []);
    scene.store().commit(tx).await.expect("commit");
    assert_eq!(count(scene.store()).await, 0);
}

/// E1, E5.
pub async fn every_field_comes_back_as_it_was_written<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let headers: Headers = [
        ("source", "web"),
        ("empty", ""),
        ("Ünïcode ✓", "🦀 \"quoted\" \\ \n\t{}"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ]
    .into_iter()
    .collect();
    let full = event()
        .aggregate("Order", "order-7")
        .tenant("acme")
        .key("order-7")
        .headers(headers)
        .occurred_at(Timestamp::from_micros(1_794_731_400_250_001));
    let bare = event().occurred_at(Timestamp::from_micros(-1));
    for builder in [full, bare] {
        let written = build(builder);
        let row = NewRow { event: written.clone(), partition: Partition(255) };
        let seq = scene.write_rows(&[row]).await[0];
        let record = scene.record(seq).await;
        assert_eq!(record.event, written);
        assert_eq!(record.event.headers(), written.headers());
        assert_eq!((record.seq, record.partition), (seq, Partition(255)));
        assert_eq!((record.attempts, record.starts, record.progress), (0, 0, None));
    }
    let page = scene.page(&Position::START).await;
    assert!(page.rows.iter().all(|row| row.partition() == Partition(255)));
}

/// E3.
pub async fn payloads_come_back_byte_for_byte<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let json = |text: &str| Payload::json_text(text).expect("JSON");
    let payloads = [
        json("{ \"b\" : 1,\r\n\t \"a\":2.50, \"a\": 1e3 }  "),
        json("\"\\u0000 \\ud83e\\udd80 ünïcode 🦀\""),
        json("null"),
        Payload::bytes("application/octet-stream", Vec::new()),
        Payload::bytes("application/octet-stream", (0..=255).collect::<Vec<u8>>()),
        Payload::bytes("application/x-protobuf", vec![0, 0, 0]),
        // Text by its looks, and still bytes.
        Payload::bytes("application/json", "{\"a\":1}"),
        Payload::bytes("text/plain; charset=utf-8", "it's; drop table outbox_event; --"),
    ];
    let builders = payloads.iter().map(|payload| event().payload(payload.clone()));
    let seqs = scene.write(builders.collect::<Vec<_>>()).await;
    let page = scene.page(&Position::START).await;
    let read: Vec<Payload> = page.rows.iter().map(|row| record(row).payload().clone()).collect();
    assert_eq!(read, payloads);
    for (seq, payload) in seqs.into_iter().zip(&payloads) {
        assert_eq!(scene.record(seq).await.event.payload(), payload);
    }
}

/// E3, E6.
pub async fn the_largest_event_passes<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let name = "n".repeat(limit::NAME);
    let wide = "é".repeat(limit::NAME / 2);
    let text = format!("\"{}\"", "x".repeat(limit::PAYLOAD - 2));
    let largest = build(
        Event::builder(name.as_str())
            .aggregate(wide.as_str(), name.as_str())
            .tenant(wide.as_str())
            .key("🦀".repeat(limit::KEY / 4))
            .header("h", "v".repeat(limit::HEADERS - 8))
            .json_text(text),
    );
    let bytes = vec![0xff; limit::PAYLOAD];
    let rows = [largest, build(Event::builder("Big").bytes(name, bytes))].map(new_row);
    scene.write_rows(&rows).await;
    let page = scene.page(&Position::START).await;
    for (row, written) in page.rows.iter().zip(&rows) {
        assert!(*record(row) == written.event, "{:?} came back as {:?}", written.event, row.seq());
    }
    assert_eq!(page.rows.len(), 2);
}

/// S5.
pub async fn hostile_text_is_kept_as_text<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let hostile = "'; delete from outbox_event; -- \" ` \\ %_ ${x} ? :1 $1";
    let written = build(
        Event::builder(hostile)
            .aggregate(hostile, hostile)
            .tenant(hostile)
            .key(hostile)
            .header(hostile, hostile)
            .json(hostile),
    );
    let seq = scene.write_rows(&[new_row(written.clone())]).await[0];
    assert_eq!(scene.record(seq).await.event, written);
    assert_eq!(scene.lane(hostile, Seq(0)).await, [seq]);
}

/// W9.
pub async fn a_delayed_event_is_read_once_it_is_due<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let at = scene.now().await.saturating_add(Duration::from_secs(5));
    let by_time = build(event().available_at(at).key("k"));
    let by_span = build(event().deliver_after(Duration::from_secs(6)));
    let delayed = scene.write_rows(&[new_row(by_time.clone()), new_row(by_span)]).await;
    let prompt = scene.write_one(event()).await;

    assert_eq!(scene.fresh().await, [prompt], "a page has no rows with a due time");
    let due = scene.due().await;
    assert!(due.rows.is_empty());
    assert!(due.next.is_some_and(|next| next > Duration::ZERO && next <= Duration::from_secs(5)), "{:?}", due.next);
    assert_eq!(scene.found(delayed[0]).await.status, Status::New);

    scene.backend.pass(Duration::from_secs(7)).await;
    let due = scene.due().await;
    let read: Vec<Seq> = due.rows.iter().map(Row::seq).collect();
    assert_eq!(read, delayed, "the oldest due time first");
    assert_eq!(due.next, None);
    assert_eq!(record(&due.rows[0]).id(), by_time.id());
    assert_eq!(scene.fresh().await, [prompt]);
}

/// P1.
pub async fn an_event_due_exactly_now_is_due<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let now = scene.now().await;
    let seq = scene.write_one(event().available_at(now)).await;
    assert_eq!(scene.due_seqs().await, [seq]);
    let seq = scene.write_one(event().deliver_after(Duration::ZERO)).await;
    assert!(scene.due_seqs().await.contains(&seq));
}

/// The farthest times are times too.
pub async fn an_event_may_be_delayed_beyond_all_times<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let seq = scene.write_one(event().deliver_after(Duration::from_hours(24 * 365 * 1_000))).await;
    let due = scene.due().await;
    assert!(due.rows.is_empty());
    assert!(due.next.is_some_and(|next| next > Duration::from_hours(24 * 365 * 999)));
    assert!(scene.fresh().await.is_empty());
    assert_eq!(scene.found(seq).await.status, Status::New);
}

fn record(row: &Row) -> &Event {
    match row {
        Row::Event(record) => &record.event,
        Row::Broken { reason, .. } => panic!("the row is broken: {reason}"),
    }
}

fn id(row: &Row) -> EventId {
    record(row).id()
}

async fn count(store: &impl AdminStore) -> u64 {
    store.count(&Query::default()).await.expect("count")
}

/// W10.
pub async fn a_dedup_key_stands_for_its_window<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let (first, second, other) = (new_id(), new_id(), new_id());
    let window = Duration::from_mins(1);
    assert_eq!(enter(&scene, &[("a", first), ("A", other), ("a ", other)], window).await, [None, None, None]);
    let asked = [("b 🚀", second), ("a", second), ("it's; \"b\"", second)];
    assert_eq!(enter(&scene, &asked, window).await, [None, Some(first), None], "in the order of the keys");
    assert_eq!(enter(&scene, &[("b 🚲", first), ("b 🚀", first)], window).await, [None, Some(second)]);
    assert_eq!(enter(&scene, &[("a", first)], window).await, [Some(first)], "the same event is no exception");

    scene.backend.pass(window + Duration::from_secs(1)).await;
    let third = new_id();
    assert_eq!(enter(&scene, &[("a", third)], window).await, [None], "its window is over");
    assert_eq!(enter(&scene, &[("a", first)], window).await, [Some(third)], "and a new one has begun");
    assert!(enter(&scene, &[], window).await.is_empty());
}

/// W10, W1.
pub async fn a_rollback_frees_the_dedup_keys_it_had_entered<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let (first, second) = (new_id(), new_id());
    let window = Duration::from_mins(1);
    let key = |id| [NewKey { key: "a", window, id }];
    let mut tx = scene.store().begin().await.expect("begin");
    assert_eq!(scene.store().enter_keys(&mut tx, &key(first)).await.expect("enter"), [None]);
    assert_eq!(scene.store().enter_keys(&mut tx, &key(second)).await.expect("enter"), [Some(first)]);
    scene.store().rollback(tx).await.expect("rollback");
    assert_eq!(enter(&scene, &[("a", second)], window).await, [None]);
}

/// W10.
pub async fn of_racing_writers_of_a_dedup_key_one_enters_it<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let window = Duration::from_mins(1);
    let ids: Vec<EventId> = (0..8).map(|_| new_id()).collect();
    let answers = join_all(ids.iter().map(async |id| (*id, enter(&scene, &[("a", *id)], window).await[0]))).await;
    let winners: Vec<EventId> = answers.iter().filter(|(_, kept)| kept.is_none()).map(|(id, _)| *id).collect();
    assert_eq!(winners.len(), 1, "{answers:?}");
    assert!(answers.iter().all(|(_, kept)| kept.is_none_or(|kept| kept == winners[0])), "{answers:?}");
}

/// Enters keys in a transaction of their own.
async fn enter<B: Backend>(scene: &Scene<B>, keys: &[(&str, EventId)], window: Duration) -> Vec<Option<EventId>> {
    let keys: Vec<NewKey<'_>> = keys.iter().map(|(key, id)| NewKey { key, window, id: *id }).collect();
    let mut tx = scene.store().begin().await.expect("begin");
    let answers = scene.store().enter_keys(&mut tx, &keys).await.expect("enter");
    scene.store().commit(tx).await.expect("commit");
    answers
}

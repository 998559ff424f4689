//! The loop without a fault, and its settings.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use parking_lot::Mutex;
use pillarbox_core::{
    Delivery, HandlerError, HandlerExt as _, RetryPolicy,
    domain::{CircuitPolicy, Timestamp},
    engine::Work,
    port::{
        Actor, BoxFuture, Deed, DeedPlace, DeedQuery, DeedStore, Gives, InboxStore, InboxUpkeep, Incoming, Letter,
        LetterId, LetterPlace, LetterQuery, LetterStatus, LetterStore, Received, SinkError, Source, StoreError, Ticket,
    },
};
use pillarbox_inbox::{Consumer, DeadLetters, Guard, Inbox, MemoryGuard, MemoryLetters, OnUnknown, Parked, metric};
use pillarbox_sqlite::{SqliteInbox, SqliteStore};
use pillarbox_testkit::{ManualClock, MemoryBroker};
use tokio::sync::watch;

use crate::support::{Gate, OrderPlaced, Seen, Shop, TOPIC, acknowledged, letters, message, place, retry, until};

#[tokio::test]
async fn messages_are_handled_once_and_acknowledged() {
    let (broker, queue) = place();
    let seen = Seen::new();
    let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone())
        .guard(Guard::new(MemoryGuard::new()))
        .handle(seen.handler())
        .start()
        .await
        .unwrap();
    for number in 0..100 {
        broker.publish(message(number, None));
    }
    let twice = message(100, None);
    broker.publish(twice.clone());
    broker.publish(twice);
    acknowledged(&broker, "billing", 102).await;
    let mut numbers = seen.numbers();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..=100).collect::<Vec<_>>());
    assert_eq!(consumer.held(), 0);
    consumer.shutdown().await;
    assert_eq!(queue.pending().await.unwrap(), 0);
}

#[tokio::test]
async fn two_consumers_of_one_message_do_not_suppress_each_other() {
    let (broker, queue) = place();
    let guard = Guard::new(MemoryGuard::new());
    let both = [Seen::new(), Seen::new()];
    let mut running = Vec::new();
    for (name, seen) in ["billing", "shipping"].into_iter().zip(&both) {
        let consumer = Consumer::builder(name, broker.source(TOPIC, name), queue.clone());
        running.push(consumer.guard(guard.clone()).handle(seen.handler()).start().await.unwrap());
    }
    broker.publish(message(7, None));
    for seen in &both {
        assert_eq!(seen.calls(1).await, [7]);
    }
}

#[tokio::test]
async fn a_key_goes_in_order_and_keys_go_side_by_side() {
    let (broker, queue) = place();
    let order: Arc<Mutex<BTreeMap<String, Vec<u32>>>> = Arc::default();
    let gate = Gate::new();
    let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue)
        .without_guard()
        .workers(4)
        .route("OrderPlaced", {
            let (order, gate) = (order.clone(), gate.clone());
            move |delivery: Delivery| {
                let (order, gate) = (order.clone(), gate.clone());
                async move {
                    let key = delivery.event().key().unwrap().to_string();
                    let number =
                        delivery.event().payload().to::<serde_json::Value>().unwrap()["number"].as_u64().unwrap();
                    if key == "slow" && number == 0 {
                        gate.pass().await;
                    }
                    order.lock().entry(key).or_default().push(u32::try_from(number).unwrap());
                }
            }
        })
        .start()
        .await
        .unwrap();
    for number in 0..30 {
        for key in ["slow", "a", "b"] {
            broker.publish(message(number, Some(key)));
        }
    }
    acknowledged(&broker, "billing", 60).await;
    assert!(!order.lock().contains_key("slow"), "its head waits");
    gate.open();
    acknowledged(&broker, "billing", 90).await;
    for (key, numbers) in &*order.lock() {
        assert_eq!(*numbers, (0..30).collect::<Vec<_>>(), "{key}");
    }
    consumer.shutdown().await;
}

#[tokio::test]
async fn what_fails_for_good_is_parked_with_everything_and_its_key_goes_on() {
    let (broker, queue) = place();
    let seen = Seen::new();
    seen.fail([1]);
    let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone())
        .guard(Guard::new(MemoryGuard::new()))
        .retry(retry())
        .handle(seen.handler())
        .start()
        .await
        .unwrap();
    let mut dying = message(1, Some("order-1"));
    dying.headers = vec![("saga-id".into(), "s-1".into()), ("correlation-id".into(), "c-1".into())];
    broker.publish(dying.clone());
    broker.publish(message(2, Some("order-1")));
    acknowledged(&broker, "billing", 2).await;
    assert_eq!(seen.numbers(), [1, 1, 1, 2], "three attempts, and then the next of the key");
    let [letter] = &letters(&queue, 1).await[..] else { panic!("one letter") };
    assert_eq!(letter.consumer, "billing");
    assert_eq!(letter.event_id, dying.attribute("id").unwrap());
    assert_eq!((&*letter.event_type, &*letter.topic), ("OrderPlaced", TOPIC));
    assert_eq!((&letter.payload, &letter.headers), (&dying.payload, &dying.headers));
    assert_eq!(letter.reason, "the card of order 1 was declined");
    assert_eq!((letter.attempts, letter.replays, letter.status), (3, 0, LetterStatus::Pending));
    assert_eq!(letter.source.as_deref(), Some("/orders"));
    assert_eq!((letter.saga_id.as_deref(), letter.correlation_id.as_deref()), (Some("s-1"), Some("c-1")));
    consumer.shutdown().await;
}

#[tokio::test]
async fn a_message_that_can_not_be_read_is_parked_at_once_and_others_go_on() {
    let (broker, queue) = place();
    let seen = Seen::new();
    let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone())
        .without_guard()
        .handle(seen.handler())
        .start()
        .await
        .unwrap();
    let mut wrong = message(1, None);
    wrong.payload = Bytes::from_static(b"{\"number\": \"one\"}");
    let mut broken = message(2, None);
    broken.content_type = "application/cloudevents+json".into();
    broken.payload = Bytes::from_static(b"\xff{");
    let mut nobodys = message(3, None);
    nobodys.attributes[2].1 = "OrderForgotten".into();
    for message in [wrong, broken, nobodys, message(4, None)] {
        broker.publish(message);
    }
    acknowledged(&broker, "billing", 4).await;
    assert_eq!(seen.numbers(), [4]);
    let letters = letters(&queue, 3).await;
    for words in ["the payload can't be read", "the CloudEvent is not JSON", "no handler is registered"] {
        assert!(
            letters.iter().any(|letter| letter.reason.contains(words) && letter.attempts == 0),
            "{words}: {letters:?}"
        );
    }
    consumer.shutdown().await;
}

#[tokio::test]
async fn unknown_types_are_skipped_if_told_so() {
    let (broker, queue) = place();
    let seen = Seen::new();
    let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone())
        .without_guard()
        .on_unknown(OnUnknown::Skip)
        .handle(seen.handler())
        .start()
        .await
        .unwrap();
    let mut nobodys = message(3, None);
    nobodys.attributes[2].1 = "OrderForgotten".into();
    broker.publish(nobodys);
    acknowledged(&broker, "billing", 1).await;
    assert_eq!(queue.pending().await.unwrap(), 0);
    consumer.shutdown().await;
}

#[tokio::test]
async fn a_destination_that_is_down_uses_up_no_attempts() {
    let (broker, queue) = place();
    let seen = Arc::new(Mutex::new((0, true)));
    let handler = {
        let seen = seen.clone();
        move |_: Delivery| {
            let mut seen = seen.lock();
            seen.0 += 1;
            let down = seen.1;
            std::future::ready(if down { Err(HandlerError::msg("refused").unavailable()) } else { Ok(()) })
        }
    };
    let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone())
        .without_guard()
        .retry(RetryPolicy::fixed(Duration::from_millis(1)).max_attempts(2))
        .circuit(CircuitPolicy { shortest: Duration::from_millis(5), ..CircuitPolicy::default() })
        .route("OrderPlaced", handler.with_destination("bank"))
        .start()
        .await
        .unwrap();
    broker.publish(message(1, None));
    until("many refusals", || async { seen.lock().0 > 8 }).await;
    seen.lock().1 = false;
    acknowledged(&broker, "billing", 1).await;
    assert_eq!(queue.pending().await.unwrap(), 0);
    consumer.shutdown().await;
}

#[tokio::test]
async fn a_shutdown_lets_handlers_finish_and_gives_back_the_rest() {
    let (broker, queue) = place();
    let (gate, seen) = (Gate::new(), Seen::new());
    let guard = Guard::new(MemoryGuard::new());
    let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone())
        .guard(guard.clone())
        .workers(1)
        .route("OrderPlaced", {
            let gate = gate.clone();
            move |_: Delivery| {
                let gate = gate.clone();
                async move { gate.pass().await }
            }
        })
        .start()
        .await
        .unwrap();
    for number in 0..3 {
        broker.publish(message(number, None));
    }
    gate.reached(1).await;
    let ((), ()) = tokio::join!(consumer.shutdown(), async { gate.open() });
    assert_eq!(broker.acknowledged(TOPIC, "billing"), 1, "what ran is finished, and nothing else was begun");
    // The others come again at once, to whoever is there.
    let next = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue);
    let next = next.guard(guard).handle(seen.handler()).start().await.unwrap();
    seen.calls(2).await;
    acknowledged(&broker, "billing", 3).await;
    next.shutdown().await;
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_ever_and_marks_are_taken_off() {
    let (broker, queue) = place();
    let gate = Gate::new();
    let guard = Guard::new(MemoryGuard::new());
    let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone())
        .guard(guard.clone())
        .drain_timeout(Duration::from_millis(10))
        .route("OrderPlaced", {
            let gate = gate.clone();
            move |_: Delivery| {
                let gate = gate.clone();
                async move { gate.pass().await }
            }
        })
        .start()
        .await
        .unwrap();
    broker.publish(message(1, None));
    gate.reached(1).await;
    consumer.shutdown().await;
    assert_eq!(broker.acknowledged(TOPIC, "billing"), 0);
    let seen = Seen::new();
    let next = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue);
    let next = next.guard(guard).handle(seen.handler()).start().await.unwrap();
    assert_eq!(seen.calls(1).await, [1], "no mark is left of what was dropped");
    next.shutdown().await;
}

#[tokio::test]
async fn no_more_is_held_than_was_allowed() {
    let (broker, queue) = place();
    let gate = Gate::new();
    for number in 0..50 {
        broker.publish(message(number, None));
    }
    let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue)
        .without_guard()
        .prefetch(10)
        .workers(2)
        .route("OrderPlaced", {
            let gate = gate.clone();
            move |_: Delivery| {
                let gate = gate.clone();
                async move { gate.pass().await }
            }
        })
        .start()
        .await
        .unwrap();
    gate.reached(2).await;
    until("ten are held", || async { consumer.held() == 10 }).await;
    gate.open();
    acknowledged(&broker, "billing", 50).await;
    consumer.shutdown().await;
}

/// Each of its lives ends when it comes to order 5; the broker counts a delivery of all that it held.
#[tokio::test]
async fn a_message_that_ends_its_process_again_and_again_is_parked_and_its_neighbours_are_not() {
    let (broker, queue) = place();
    for number in 0..10 {
        broker.publish(message(number, Some(&format!("k{}", number % 3))));
    }
    let handled: Arc<Mutex<Vec<u64>>> = Arc::default();
    let mut lives = 0;
    while broker.acknowledged(TOPIC, "billing") < 10 {
        lives += 1;
        assert!(lives < 20, "it goes on for ever: {:?}", handled.lock());
        let poisoned = Gate::new();
        let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone())
            .without_guard()
            .workers(4)
            .max_deliveries(3)
            .route("OrderPlaced", {
                let (handled, poisoned) = (handled.clone(), poisoned.clone());
                move |delivery: Delivery| {
                    let (handled, poisoned) = (handled.clone(), poisoned.clone());
                    async move {
                        let order = delivery.event().payload().to::<serde_json::Value>().unwrap();
                        let number = order["number"].as_u64().unwrap();
                        if number == 5 {
                            poisoned.pass().await;
                        }
                        handled.lock().push(number);
                    }
                }
            })
            .start()
            .await
            .unwrap();
        tokio::select! {
            () = poisoned.reached(1) => {}
            () = until("all", || async { broker.acknowledged(TOPIC, "billing") == 10 }) => {}
        }
        drop(consumer);
        broker.reconnect(TOPIC, "billing");
    }
    let mut handled = handled.lock().clone();
    handled.sort_unstable();
    handled.dedup();
    assert_eq!(handled, [0, 1, 2, 3, 4, 6, 7, 8, 9]);
    let pending = LetterQuery { status: Some(LetterStatus::Pending), ..LetterQuery::default() };
    let [letter] = &queue.list(&pending, None, 10).await.unwrap()[..] else { panic!("one alone") };
    assert_eq!(letter.payload, "{\"number\": 5}");
    assert!(letter.reason.contains("when it ran alone"), "{}", letter.reason);
    queue.discard(&letter.id, &Actor::new("ada")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_message_that_was_held_too_often_is_done_and_its_letter_closed() {
    let (broker, queue) = place();
    let seen = Seen::new();
    seen.fail([1]);
    broker.publish(message(1, None));
    // Three lives that end before the handler is called.
    for _ in 0..3 {
        use pillarbox_core::port::Source as _;
        assert_eq!(broker.source(TOPIC, "billing").receive(1).await.unwrap().len(), 1);
        broker.reconnect(TOPIC, "billing");
    }
    let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone())
        .guard(Guard::new(MemoryGuard::new()))
        .retry(RetryPolicy::fixed(Duration::from_secs(5)).jitter(0.0).max_attempts(3))
        .max_deliveries(3)
        .handle(seen.handler())
        .start()
        .await
        .unwrap();
    seen.calls(1).await;
    seen.fail([]);
    acknowledged(&broker, "billing", 1).await;
    assert_eq!(seen.numbers(), [1, 1]);
    consumer.shutdown().await;
    let [letter] = &letters(&queue, 1).await[..] else { panic!("one letter") };
    assert_eq!((letter.status, &letter.claim, letter.history.len()), (LetterStatus::Discarded, &None, 1));
    assert_eq!(letter.history[0].who, "billing");
}

#[tokio::test]
async fn a_handler_that_takes_too_long_is_cut_off_and_tried_again() {
    let (broker, queue) = place();
    let gate = Gate::new();
    let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone())
        .without_guard()
        .retry(RetryPolicy::fixed(Duration::from_millis(1)).max_attempts(2))
        .handler_timeout(Duration::from_millis(10))
        .route("OrderPlaced", {
            let gate = gate.clone();
            move |_: Delivery| {
                let gate = gate.clone();
                async move { gate.pass().await }
            }
        })
        .start()
        .await
        .unwrap();
    broker.publish(message(1, None));
    let letter = letters(&queue, 1).await.remove(0);
    assert_eq!((&*letter.reason, letter.attempts), ("the handler was cut off after 10ms", 2));
    gate.reached(2).await;
    acknowledged(&broker, "billing", 1).await;
    consumer.shutdown().await;
}

#[tokio::test]
async fn what_a_consumer_does_is_counted() {
    let (broker, queue) = place();
    let seen = Seen::new();
    seen.fail([1]);
    let twice = message(2, Some("k"));
    let mut nobodys = message(3, Some("k"));
    nobodys.attributes[2].1 = "OrderForgotten".into();
    for message in [message(1, Some("k")), twice.clone(), twice, nobodys] {
        broker.publish(message);
    }
    let recorder = DebuggingRecorder::new();
    let shown = recorder.snapshotter();
    let builder = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone())
        .guard(Guard::new(MemoryGuard::new()))
        .retry(retry())
        .on_unknown(OnUnknown::Skip)
        .metrics_prefix("shop")
        .handle(seen.handler());
    // For its tasks, too, which run on this thread.
    let recording = metrics::set_default_local_recorder(&recorder);
    let consumer = builder.start().await.unwrap();
    acknowledged(&broker, "billing", 4).await;
    consumer.shutdown().await;
    drop(recording);
    let values: BTreeMap<_, _> = shown
        .snapshot()
        .into_vec()
        .into_iter()
        .filter(|(key, ..)| key.key().labels().any(|label| (label.key(), label.value()) == ("consumer", "billing")))
        .map(|(key, _, _, value)| (key.key().name().to_owned(), value))
        .collect();
    let value = |name: &str| &values[&format!("shop_{name}")];
    for (name, count) in [
        (metric::RECEIVED, 4),
        (metric::HANDLED, 1),
        (metric::DUPLICATES, 1),
        (metric::SKIPPED, 1),
        (metric::FAILED, 3),
        (metric::DEFERRED, 0),
        (metric::PARKED, 1),
        (metric::ERRORS, 0),
    ] {
        assert_eq!(*value(name), DebugValue::Counter(count), "{name}");
    }
    // It is looked at when the consumer starts, before anything is acknowledged.
    assert_eq!(*value(metric::LAG), DebugValue::Gauge(4.0.into()));
    assert_eq!(*value(metric::HELD), DebugValue::Gauge(0.0.into()));
    let DebugValue::Histogram(times) = value(metric::HANDLER_TIME) else { panic!("times") };
    assert_eq!(times.len(), 4, "one for each call");
}

/// A source that tells of its lag what it is told to.
struct Telling {
    inner: Box<dyn Source>,
    lag: Arc<Mutex<Result<Option<u64>, SinkError>>>,
}

impl Source for Telling {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn gives(&self) -> Gives {
        self.inner.gives()
    }

    fn receive(&self, most: usize) -> BoxFuture<'_, Result<Vec<Received>, SinkError>> {
        self.inner.receive(most)
    }

    fn acknowledge<'a>(&'a self, tickets: &'a [Ticket]) -> BoxFuture<'a, Vec<Result<(), SinkError>>> {
        self.inner.acknowledge(tickets)
    }

    fn give_back<'a>(&'a self, tickets: &'a [Ticket]) -> BoxFuture<'a, ()> {
        self.inner.give_back(tickets)
    }

    fn lag(&self) -> BoxFuture<'_, Result<Option<u64>, SinkError>> {
        Box::pin(async { self.lag.lock().clone() })
    }

    fn check(&self) -> BoxFuture<'_, Result<(), SinkError>> {
        self.inner.check()
    }
}

#[tokio::test(start_paused = true)]
async fn a_lag_that_nobody_knows_is_not_shown() {
    let (broker, queue) = place();
    let recorder = DebuggingRecorder::new();
    let shown = recorder.snapshotter();
    let recording = metrics::set_default_local_recorder(&recorder);
    let lag = Arc::new(Mutex::new(Ok(None)));
    let source = Telling { inner: Box::new(broker.source(TOPIC, "billing")), lag: lag.clone() };
    let consumer = Consumer::builder("billing", source, queue);
    let consumer = consumer.without_guard().handle(Seen::new().handler()).start().await.unwrap();
    let mut seen = Vec::new();
    for told in [Ok(None), Ok(Some(7)), Err(SinkError::unavailable("it is away")), Ok(Some(9))] {
        *lag.lock() = told;
        tokio::time::sleep(Duration::from_secs(11)).await;
        let values = shown.snapshot().into_vec();
        let value = values.into_iter().find(|(key, ..)| key.key().name().ends_with(metric::LAG));
        seen.push(value.map(|(.., value)| match value {
            DebugValue::Gauge(value) => value.0,
            other => panic!("{other:?}"),
        }));
    }
    assert_eq!((seen[0], seen[1], seen[3]), (None, Some(7.0), Some(9.0)));
    assert!(seen[2].unwrap().is_nan(), "the last value would be a lie: {seen:?}");
    consumer.shutdown().await;
    drop(recording);
}

/// Letters that stand still when they are to be purged, and count how often.
#[derive(Clone)]
struct Standing {
    inner: MemoryLetters,
    gate: Gate,
}

impl DeedStore for Standing {
    fn deeds<'a>(
        &'a self,
        query: &'a DeedQuery,
        after: Option<&'a DeedPlace>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<Deed>, StoreError>> {
        self.inner.deeds(query, after, limit)
    }
}

impl LetterStore for Standing {
    fn insert<'a>(&'a self, letter: &'a Letter) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.inner.insert(letter)
    }

    fn replace<'a>(&'a self, letter: &'a Letter) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.inner.replace(letter)
    }

    fn find<'a>(&'a self, id: &'a LetterId) -> BoxFuture<'a, Result<Option<Letter>, StoreError>> {
        self.inner.find(id)
    }

    fn list<'a>(
        &'a self,
        query: &'a LetterQuery,
        after: Option<&'a LetterPlace>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<Letter>, StoreError>> {
        self.inner.list(query, after, limit)
    }

    fn count<'a>(&'a self, query: &'a LetterQuery) -> BoxFuture<'a, Result<u64, StoreError>> {
        self.inner.count(query)
    }

    fn purge(&self, finished_before: Timestamp, most: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            self.gate.pass().await;
            self.inner.purge(finished_before, most).await
        })
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp, StoreError>> {
        self.inner.now()
    }
}

/// Some stores read all letters for it.
#[tokio::test(start_paused = true)]
async fn letters_are_purged_once_an_hour_and_a_shutdown_does_not_wait_for_it() {
    let (broker, gate) = (MemoryBroker::new(), Gate::new());
    let letters = Standing { inner: MemoryLetters::new(), gate: gate.clone() };
    let start = || {
        let queue = DeadLetters::new(letters.clone());
        let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue);
        consumer.guard(Guard::new(MemoryGuard::new())).handle(Seen::new().handler()).start()
    };
    let first = start().await.unwrap();
    gate.reached(1).await;
    let begun = tokio::time::Instant::now();
    first.shutdown().await;
    assert!(begun.elapsed() < Duration::from_secs(1), "it stood still: {:?}", begun.elapsed());
    gate.open();
    let second = start().await.unwrap();
    tokio::time::sleep(Duration::from_mins(150)).await;
    second.shutdown().await;
    assert_eq!(gate.count(), 1 + 3, "after a minute, and each hour from then on");
}

/// What has its time over goes without anybody's doing.
#[tokio::test]
async fn a_consumer_makes_room_by_itself() {
    let clock = Arc::new(ManualClock::new());
    let (broker, shop) = (MemoryBroker::new(), Shop::new().await);
    let queue = DeadLetters::new(MemoryLetters::with_clock(clock.clone()));
    let (dead, marks) = (message(1, None), MemoryGuard::with_clock(clock.clone()));
    let parked = Parked { consumer: "billing", message: &dead, reason: "no", attempts: 3 };
    let letter = queue.park(&parked).await.unwrap();
    queue.discard(&letter, &Actor::new("ada")).await.unwrap();
    let guard = Guard::new(marks.clone());
    assert!(guard.try_process("billing", "m-1").await.unwrap());
    clock.advance(Duration::from_hours(8 * 24));
    let inbox = Rotated { inner: shop.inbox(), count: watch::Sender::new(0) };
    let mut rotated = inbox.count.subscribe();
    let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone())
        .inbox(Inbox::new(inbox), &shop.outbox)
        .guard(guard)
        .upkeep_every(Duration::from_millis(10))
        .handle_in_tx(|_: Work<SqliteStore>, _: OrderPlaced| async {})
        .start()
        .await
        .unwrap();
    until("the letter is gone", || async { queue.find(&letter).await.unwrap().is_none() }).await;
    until("the mark is gone", || async { format!("{marks:?}").contains("marks: 0") }).await;
    rotated.wait_for(|count| *count > 1).await.unwrap();
    consumer.shutdown().await;
}

/// An inbox that counts how often it was to make room.
struct Rotated {
    inner: SqliteInbox,
    count: watch::Sender<u32>,
}

impl<Tx: ?Sized> InboxStore<Tx> for Rotated
where
    SqliteInbox: InboxStore<Tx>,
{
    fn enter<'a>(
        &'a self,
        tx: &'a mut Tx,
        consumer: &'a str,
        messages: &'a [&'a str],
    ) -> BoxFuture<'a, Result<Vec<bool>, StoreError>> {
        self.inner.enter(tx, consumer, messages)
    }
}

impl InboxUpkeep for Rotated {
    fn migrate(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.migrate()
    }

    fn agree(&self, window: Duration) -> BoxFuture<'_, Result<Duration, StoreError>> {
        self.inner.agree(window)
    }

    fn rotate(&self) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.count.send_modify(|count| *count += 1);
        self.inner.rotate()
    }
}

#[tokio::test]
async fn settings_that_make_no_sense_are_refused_with_the_reason() {
    let (broker, queue) = place();
    let builder = || Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone());
    let handler = Seen::new().handler();
    for (builder, words) in [
        (builder().handle(handler.clone()), "need a guard"),
        (builder().without_guard(), "handlers can't be used"),
        (builder().without_guard().workers(0).handle(handler.clone()), "workers is 0"),
        (builder().without_guard().prefetch(0).handle(handler.clone()), "prefetch is 0"),
        (
            Consumer::builder("", broker.source(TOPIC, ""), queue.clone()).without_guard().handle(handler.clone()),
            "name",
        ),
    ] {
        let error = builder.start().await.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let nobody = Incoming::default();
    assert_eq!(nobody.header("x"), None);
}

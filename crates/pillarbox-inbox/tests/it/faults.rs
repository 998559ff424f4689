//! What is left when something ends in the middle.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use pillarbox_core::{
    RetryPolicy,
    domain::{Timestamp, bucket::SLOTS},
    engine::Work,
    port::{
        BoxFuture, Deed, DeedPlace, DeedQuery, DeedStore, GuardStore, Letter, LetterId, LetterPlace, LetterQuery,
        LetterStore, StoreError, StoreErrorKind,
    },
};
use pillarbox_inbox::{Consumer, DeadLetters, Guard, Inbox, MemoryGuard, MemoryLetters};
use pillarbox_sqlite::SqliteStore;

use crate::support::{OrderPlaced, Seen, Shop, TOPIC, acknowledged, charge, letters, message, place, retry, until};

#[tokio::test]
async fn a_crash_between_work_and_acknowledgement_leaves_the_effect_once() {
    let (broker, queue) = place();
    let shop = Shop::new().await;
    let start = || async {
        Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone())
            .inbox(Inbox::new(shop.inbox()), &shop.outbox)
            .handle_in_tx(|mut work: Work<SqliteStore>, placed: OrderPlaced| async move {
                charge(&mut work, placed.number).await
            })
            .start()
            .await
            .unwrap()
    };
    broker.lose_acknowledgements(true);
    let first = start().await;
    for number in 0..10 {
        broker.publish(message(number, None));
    }
    until("the work is done", || async { shop.charges().await.len() == 10 }).await;
    drop(first);
    assert_eq!(broker.acknowledged(TOPIC, "billing"), 0);
    broker.lose_acknowledgements(false);
    broker.reconnect(TOPIC, "billing");
    let second = start().await;
    acknowledged(&broker, "billing", 10).await;
    assert_eq!(shop.charges().await.len(), 10, "each once");
    second.shutdown().await;
}

#[tokio::test]
async fn a_crash_between_mark_and_work_costs_a_guarded_message_and_no_inboxed_one() {
    let (broker, queue) = place();
    // With a guard: the mark of the dead stands, and the message is dropped. It is documented.
    let (guard, dead) = (Guard::new(MemoryGuard::new()), message(1, None));
    let id = dead.attribute("id").unwrap().to_owned();
    assert!(guard.try_process("billing", &id).await.unwrap(), "and here it died");
    broker.publish(dead.clone());
    let seen = Seen::new();
    let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone());
    let consumer = consumer.guard(guard).handle(seen.handler()).start().await.unwrap();
    acknowledged(&broker, "billing", 1).await;
    assert_eq!(seen.numbers(), [0; 0]);
    consumer.shutdown().await;
    // With the inbox: the entry died with the work.
    let shop = Shop::new().await;
    let inbox = Inbox::new(shop.inbox()).start().await.unwrap();
    let mut tx = shop.store.pool().begin().await.unwrap();
    assert!(inbox.enter(&mut tx, "billing", &id).await.unwrap());
    drop(tx);
    let consumer = Consumer::builder("billing", broker.source(TOPIC, "again"), queue)
        .inbox(inbox, &shop.outbox)
        .handle_in_tx(|mut work: Work<SqliteStore>, placed: OrderPlaced| async move {
            charge(&mut work, placed.number).await
        })
        .start()
        .await
        .unwrap();
    acknowledged(&broker, "again", 1).await;
    assert_eq!(shop.charges().await, [1]);
    consumer.shutdown().await;
}

#[tokio::test]
async fn a_crash_while_a_message_waits_for_its_next_attempt_begins_anew() {
    let (broker, queue) = place();
    let (shop, seen) = (Shop::new().await, Seen::new());
    seen.fail([1]);
    let start = |policy| {
        let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone())
            .inbox(Inbox::new(shop.inbox()), &shop.outbox)
            .retry(policy)
            .workers(1);
        let handler = seen.handler();
        let consumer = consumer.handle_in_tx(move |mut work: Work<SqliteStore>, placed: OrderPlaced, meta| {
            let handler = handler.clone();
            async move {
                charge(&mut work, placed.number).await?;
                handler(placed, meta).await
            }
        });
        async move { consumer.start().await.unwrap() }
    };
    let first = start(RetryPolicy::fixed(Duration::from_hours(1)).jitter(0.0).max_attempts(3)).await;
    broker.publish(message(1, Some("k")));
    seen.calls(1).await;
    // The one worker has come to this: the other waits for its hour.
    broker.publish(message(2, None));
    acknowledged(&broker, "billing", 1).await;
    assert_eq!((shop.charges().await, seen.numbers(), first.held()), (vec![2], vec![1, 2], 1));
    drop(first);
    broker.reconnect(TOPIC, "billing");
    let second = start(retry()).await;
    let letter = letters(&queue, 1).await.remove(0);
    assert_eq!((letter.attempts, seen.numbers()), (3, vec![1, 2, 1, 1, 1]), "counted from the start");
    acknowledged(&broker, "billing", 2).await;
    assert_eq!(shop.charges().await, [2], "nothing of what failed");
    second.shutdown().await;
}

#[tokio::test]
async fn a_broker_that_goes_and_comes_back_loses_nothing() {
    let (broker, queue) = place();
    let seen = Seen::new();
    let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue)
        .guard(Guard::new(MemoryGuard::new()))
        .handle(seen.handler())
        .start()
        .await
        .unwrap();
    broker.publish(message(1, None));
    acknowledged(&broker, "billing", 1).await;
    broker.set_down(true);
    broker.publish(message(2, None));
    broker.reconnect(TOPIC, "billing");
    broker.set_down(false);
    acknowledged(&broker, "billing", 2).await;
    assert_eq!(seen.numbers(), [1, 2]);
    consumer.shutdown().await;
}

#[tokio::test]
async fn acknowledgements_that_are_lost_bring_messages_that_are_known() {
    let (broker, queue) = place();
    let seen = Seen::new();
    let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue)
        .guard(Guard::new(MemoryGuard::new()))
        .handle(seen.handler())
        .start()
        .await
        .unwrap();
    broker.lose_acknowledgements(true);
    broker.publish(message(1, Some("k")));
    seen.calls(1).await;
    until("the acknowledgement is lost", || async { consumer.held() == 0 }).await;
    broker.lose_acknowledgements(false);
    broker.reconnect(TOPIC, "billing");
    acknowledged(&broker, "billing", 1).await;
    assert_eq!(seen.numbers(), [1]);
    consumer.shutdown().await;
}

/// A queue whose database may be down.
#[derive(Clone)]
struct Down {
    inner: MemoryLetters,
    away: Arc<AtomicBool>,
    kind: StoreErrorKind,
}

impl Down {
    fn new(kind: StoreErrorKind) -> Self {
        Self { inner: MemoryLetters::new(), away: Arc::new(AtomicBool::new(true)), kind }
    }

    fn check(&self) -> Result<(), StoreError> {
        if self.away.load(Ordering::SeqCst) {
            return Err(StoreError::new(self.kind, "the queue's database takes nothing"));
        }
        Ok(())
    }
}

impl DeedStore for Down {
    fn deeds<'a>(
        &'a self,
        query: &'a DeedQuery,
        after: Option<&'a DeedPlace>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<Deed>, StoreError>> {
        self.inner.deeds(query, after, limit)
    }
}

impl LetterStore for Down {
    fn insert<'a>(&'a self, letter: &'a Letter) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            self.check()?;
            self.inner.insert(letter).await
        })
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
        self.inner.purge(finished_before, most)
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp, StoreError>> {
        self.inner.now()
    }
}

#[tokio::test]
async fn a_dead_letter_queue_that_is_down_keeps_the_message_unacknowledged() {
    let (broker, _) = place();
    let store = Down::new(StoreErrorKind::Unavailable);
    let queue = DeadLetters::new(store.clone());
    let seen = Seen::new();
    seen.fail([1]);
    let start = || async {
        Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone())
            .guard(Guard::new(MemoryGuard::new()))
            .retry(retry())
            .handle(seen.handler())
            .start()
            .await
            .unwrap()
    };
    let consumer = start().await;
    broker.publish(message(1, Some("k")));
    broker.publish(message(2, None));
    seen.calls(4).await;
    acknowledged(&broker, "billing", 1).await;
    assert_eq!(consumer.held(), 1, "it waits for its place in the queue");
    // Its process ends: the broker has it still.
    consumer.shutdown().await;
    assert_eq!(broker.acknowledged(TOPIC, "billing"), 1);
    let consumer = start().await;
    seen.calls(7).await;
    store.away.store(false, Ordering::SeqCst);
    assert_eq!(letters(&queue, 1).await[0].attempts, 3);
    acknowledged(&broker, "billing", 2).await;
    consumer.shutdown().await;
}

/// What the guard is for is the middle of the work alone.
#[tokio::test]
async fn a_crash_while_a_guarded_message_waits_for_its_next_attempt_loses_nothing() {
    let (broker, queue) = place();
    let (guard, seen) = (Guard::new(MemoryGuard::new()), Seen::new());
    seen.fail([1]);
    let start = |policy| {
        let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone());
        consumer.guard(guard.clone()).retry(policy).workers(1).handle(seen.handler()).start()
    };
    let hourly = RetryPolicy::fixed(Duration::from_hours(1)).jitter(0.0).max_attempts(3);
    let first = start(hourly).await.unwrap();
    broker.publish(message(1, Some("k")));
    seen.calls(1).await;
    // The one worker has come to this: the other waits for its hour.
    broker.publish(message(2, None));
    acknowledged(&broker, "billing", 1).await;
    drop(first);
    broker.reconnect(TOPIC, "billing");
    let second = start(retry()).await.unwrap();
    assert_eq!(letters(&queue, 1).await[0].attempts, 3, "counted from the start");
    acknowledged(&broker, "billing", 2).await;
    assert_eq!(seen.numbers(), [1, 2, 1, 1, 1]);
    second.shutdown().await;
}

#[tokio::test]
async fn a_crash_while_the_dead_letter_queue_is_down_loses_no_guarded_message() {
    let (broker, _) = place();
    let store = Down::new(StoreErrorKind::Unavailable);
    let (queue, guard, seen) = (DeadLetters::new(store.clone()), Guard::new(MemoryGuard::new()), Seen::new());
    seen.fail([1]);
    let start = || {
        let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone());
        consumer.guard(guard.clone()).retry(RetryPolicy::never()).workers(1).handle(seen.handler()).start()
    };
    let first = start().await.unwrap();
    broker.publish(message(1, Some("k")));
    seen.calls(1).await;
    broker.publish(message(2, None));
    acknowledged(&broker, "billing", 1).await;
    assert_eq!(first.held(), 1, "it waits for its place in the queue");
    drop(first);
    broker.reconnect(TOPIC, "billing");
    store.away.store(false, Ordering::SeqCst);
    let second = start().await.unwrap();
    letters(&queue, 1).await;
    acknowledged(&broker, "billing", 2).await;
    assert_eq!(seen.numbers(), [1, 2, 1]);
    second.shutdown().await;
}

/// Another delivery has done the work while this one waited.
#[tokio::test(start_paused = true)]
async fn what_was_done_elsewhere_during_the_wait_is_known() {
    let (broker, queue) = place();
    let (guard, seen) = (Guard::new(MemoryGuard::new()), Seen::new());
    seen.fail([1]);
    let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone())
        .guard(guard.clone())
        .retry(RetryPolicy::fixed(Duration::from_secs(5)).jitter(0.0).max_attempts(3))
        .handle(seen.handler())
        .start()
        .await
        .unwrap();
    let waiting = message(1, None);
    let id = waiting.attribute("id").unwrap().to_owned();
    broker.publish(waiting);
    seen.calls(1).await;
    until("the mark is off", || async { guard.try_process("billing", &id).await.unwrap() }).await;
    acknowledged(&broker, "billing", 1).await;
    assert_eq!((seen.numbers(), queue.pending().await.unwrap()), (vec![1], 0));
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_letter_that_the_queue_refuses_is_held_and_its_key_goes_on() {
    let (broker, _) = place();
    let store = Down::new(StoreErrorKind::Rejected);
    let (queue, seen) = (DeadLetters::new(store.clone()), Seen::new());
    seen.fail([1]);
    let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone())
        .guard(Guard::new(MemoryGuard::new()))
        .retry(RetryPolicy::never())
        .handle(seen.handler())
        .start()
        .await
        .unwrap();
    for number in 1..=3 {
        broker.publish(message(number, Some("k")));
    }
    acknowledged(&broker, "billing", 2).await;
    assert_eq!((seen.numbers(), consumer.held()), (vec![1, 2, 3], 1));
    // Somebody lets it take more.
    store.away.store(false, Ordering::SeqCst);
    letters(&queue, 1).await;
    acknowledged(&broker, "billing", 3).await;
    assert_eq!(seen.numbers(), [1, 2, 3], "it was not tried again");
    consumer.shutdown().await;
}

/// That the inbox forgets no sooner, and then whole buckets, is in its exam; what follows from it is here.
#[tokio::test]
async fn a_redelivery_after_the_window_is_done_again() {
    let (broker, queue) = place();
    let shop = Shop::new().await;
    let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue)
        .inbox(Inbox::new(shop.inbox()), &shop.outbox)
        .handle_in_tx(|mut work: Work<SqliteStore>, placed: OrderPlaced| async move {
            charge(&mut work, placed.number).await
        })
        .start()
        .await
        .unwrap();
    let same = message(1, None);
    for count in 1..=2 {
        broker.publish(same.clone());
        acknowledged(&broker, "billing", count).await;
    }
    assert_eq!(shop.charges().await, [1]);
    for slot in 0..SLOTS {
        let empty = sqlx::AssertSqlSafe(format!("delete from inbox_seen_{slot}"));
        sqlx::query(empty).execute(shop.store.pool()).await.unwrap();
    }
    broker.publish(same);
    acknowledged(&broker, "billing", 3).await;
    assert_eq!(shop.charges().await, [1, 1], "nobody knows it any more");
    consumer.shutdown().await;
}

/// A guard whose database stores what it is told, and whose answer gets lost once.
struct Mute {
    inner: MemoryGuard,
    loses: AtomicBool,
}

impl GuardStore for Mute {
    fn take<'a>(
        &'a self,
        consumer: &'a str,
        messages: &'a [&'a str],
        by: &'a str,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Vec<bool>, StoreError>> {
        Box::pin(async move {
            let taken = self.inner.take(consumer, messages, by, ttl).await;
            if self.loses.swap(false, Ordering::SeqCst) {
                return Err(StoreError::new(StoreErrorKind::OutcomeUnknown, "the connection broke"));
            }
            taken
        })
    }

    fn release<'a>(
        &'a self,
        consumer: &'a str,
        messages: &'a [&'a str],
        by: &'a str,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.inner.release(consumer, messages, by)
    }

    fn purge(&self, most: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        self.inner.purge(most)
    }
}

#[tokio::test]
async fn a_mark_whose_answer_is_lost_does_not_cost_its_message() {
    let (broker, queue) = place();
    let seen = Seen::new();
    let mute = Mute { inner: MemoryGuard::new(), loses: AtomicBool::new(true) };
    let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue)
        .guard(Guard::new(mute))
        .handle(seen.handler())
        .start()
        .await
        .unwrap();
    broker.publish(message(1, None));
    acknowledged(&broker, "billing", 1).await;
    assert_eq!(seen.numbers(), [1]);
    consumer.shutdown().await;
}

#[tokio::test]
async fn a_crash_between_the_dead_letter_queue_and_the_acknowledgement_leaves_one_letter() {
    let (broker, queue) = place();
    let seen = Seen::new();
    seen.fail([1]);
    let start = || async {
        let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone());
        let guard = Guard::new(MemoryGuard::new());
        consumer.guard(guard).retry(retry()).handle(seen.handler()).start().await.unwrap()
    };
    broker.lose_acknowledgements(true);
    let first = start().await;
    broker.publish(message(1, None));
    letters(&queue, 1).await;
    drop(first);
    broker.lose_acknowledgements(false);
    broker.reconnect(TOPIC, "billing");
    let second = start().await;
    acknowledged(&broker, "billing", 1).await;
    assert_eq!(seen.numbers(), [1; 6], "another round of attempts");
    assert_eq!(letters(&queue, 1).await.len(), 1);
    second.shutdown().await;
}

#[tokio::test]
async fn a_message_whose_id_is_too_long_holds_up_nobody() {
    let (broker, queue) = place();
    let shop = Shop::new().await;
    let mut long = message(1, None);
    long.attributes[1].1 = "x".repeat(5_000);
    for message in [message(0, None), long, message(2, None)] {
        broker.publish(message);
    }
    let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue)
        .inbox(Inbox::new(shop.inbox()), &shop.outbox)
        .handle_in_tx(|mut work: Work<SqliteStore>, placed: OrderPlaced| async move {
            charge(&mut work, placed.number).await
        })
        .start()
        .await
        .unwrap();
    acknowledged(&broker, "billing", 3).await;
    let mut charges = shop.charges().await;
    charges.sort_unstable();
    assert_eq!(charges, [0, 1, 2]);
    consumer.shutdown().await;
}

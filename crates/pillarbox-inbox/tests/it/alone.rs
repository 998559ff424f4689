//! A message that runs alone, when its process ends after the run.

use std::sync::Arc;

use pillarbox_core::{
    domain::Timestamp,
    engine::Work,
    port::{
        Actor, BoxFuture, Deed, DeedPlace, DeedQuery, DeedStore, Letter, LetterId, LetterPlace, LetterQuery,
        LetterStatus, LetterStore, Source as _, StoreError,
    },
};
use pillarbox_inbox::{Consumer, DeadLetters, Guard, Inbox, MemoryGuard, MemoryLetters};
use pillarbox_sqlite::SqliteStore;
use pillarbox_testkit::MemoryBroker;

use crate::support::{Gate, OrderPlaced, Seen, Shop, TOPIC, acknowledged, charge, letters, message, place, until};

/// A queue in which no letter is changed while its gate is shut.
struct Stopped {
    inner: MemoryLetters,
    gate: Gate,
}

impl DeedStore for Stopped {
    fn deeds<'a>(
        &'a self,
        query: &'a DeedQuery,
        after: Option<&'a DeedPlace>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<Deed>, StoreError>> {
        self.inner.deeds(query, after, limit)
    }
}

impl LetterStore for Stopped {
    fn insert<'a>(&'a self, letter: &'a Letter) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.inner.insert(letter)
    }

    fn replace<'a>(&'a self, letter: &'a Letter) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            self.gate.pass().await;
            self.inner.replace(letter).await
        })
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

/// Lives that end before the handler is called: more than `max_deliveries` of these tests.
async fn delivered_too_often(broker: &MemoryBroker) {
    for _ in 0..3 {
        assert_eq!(broker.source(TOPIC, "billing").receive(1).await.unwrap().len(), 1);
        broker.reconnect(TOPIC, "billing");
    }
}

#[tokio::test]
async fn a_death_between_the_end_of_the_run_and_the_letters_closing_leaves_a_letter_and_the_work_once() {
    let broker = MemoryBroker::new();
    let (store, gate, shop) = (MemoryLetters::new(), Gate::new(), Shop::new().await);
    let queue = DeadLetters::new(store.clone()).sink(Arc::new(broker.clone()));
    let start = |queue| {
        let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue)
            .inbox(Inbox::new(shop.inbox()), &shop.outbox)
            .max_deliveries(3)
            .handle_in_tx(|mut work: Work<SqliteStore>, placed: OrderPlaced| async move {
                charge(&mut work, placed.number).await
            });
        async move { consumer.start().await.unwrap() }
    };
    broker.publish(message(1, Some("k")));
    delivered_too_often(&broker).await;
    broker.lose_acknowledgements(true);
    let first = start(DeadLetters::new(Stopped { inner: store, gate: gate.clone() })).await;
    gate.reached(1).await;
    assert_eq!(shop.charges().await, [1], "the work is durable when the letter is to be closed");
    drop(first);
    broker.lose_acknowledgements(false);
    broker.reconnect(TOPIC, "billing");
    let second = start(queue.clone()).await;
    acknowledged(&broker, "billing", 1).await;
    let [letter] = &letters(&queue, 1).await[..] else { panic!("one letter") };
    assert_eq!((letter.status, shop.charges().await), (LetterStatus::Pending, vec![1]));
    assert!(letter.reason.contains("when it ran alone"), "{}", letter.reason);
    queue.replay(&letter.id, &Actor::new("ada")).await.unwrap();
    acknowledged(&broker, "billing", 2).await;
    assert_eq!((shop.charges().await, queue.pending().await.unwrap()), (vec![1], 0), "the replay is known");
    second.shutdown().await;
}

#[tokio::test]
async fn a_death_between_the_letters_closing_and_the_acknowledgement_leaves_it_closed_and_the_work_once() {
    let (broker, queue) = place();
    let (guard, seen) = (Guard::new(MemoryGuard::new()), Seen::new());
    let closed = || async {
        let found = queue.list(&LetterQuery::default(), None, 10).await.unwrap();
        found.len() == 1 && found[0].status == LetterStatus::Discarded
    };
    let start = || {
        let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone());
        consumer.guard(guard.clone()).max_deliveries(3).handle(seen.handler()).start()
    };
    broker.publish(message(1, Some("k")));
    delivered_too_often(&broker).await;
    broker.lose_acknowledgements(true);
    let first = start().await.unwrap();
    until("the letter is closed", closed).await;
    drop(first);
    assert_eq!((broker.acknowledged(TOPIC, "billing"), seen.numbers()), (0, vec![1]));
    broker.lose_acknowledgements(false);
    broker.reconnect(TOPIC, "billing");
    let second = start().await.unwrap();
    acknowledged(&broker, "billing", 1).await;
    until("the letter is closed again", closed).await;
    assert_eq!(seen.numbers(), [1], "the guard knows it");
    second.shutdown().await;
}

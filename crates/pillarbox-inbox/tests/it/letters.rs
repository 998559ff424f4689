//! Dead letters, and what people do about them.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use pillarbox_core::{
    HandlerError,
    engine::{Metadata, Work},
    port::{
        Abilities, Actor, BoxFuture, DeedQuery, Incoming, LetterQuery, LetterStatus, Message, Sent, Sink, SinkError,
    },
};
use pillarbox_inbox::{
    Consumer, DeadLetterSettings, DeadLetters, Error, Guard, Inbox, MemoryGuard, MemoryLetters, Parked, REPLAY_FOR,
    REPLAY_NUMBER, REPLAY_OF,
};
use pillarbox_sqlite::SqliteStore;
use pillarbox_testkit::{ManualClock, MemoryBroker};

use crate::support::{
    Gate, OrderPlaced, Seen, Shop, TOPIC, acknowledged, charge, letters, message, place, retry, until,
};

fn ada() -> Actor {
    Actor::new("ada").because("the bank is back")
}

async fn parked(queue: &DeadLetters, number: u32) -> pillarbox_core::port::LetterId {
    let message = message(number, Some("k"));
    queue.park(&Parked { consumer: "billing", message: &message, reason: "no", attempts: 3 }).await.unwrap()
}

#[tokio::test]
async fn a_replay_passes_the_guard_and_is_handled() {
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
    let others = Seen::new();
    let shipping = Consumer::builder("shipping", broker.source(TOPIC, "shipping"), queue.clone());
    let shipping = shipping.without_guard().handle(others.handler()).start().await.unwrap();
    broker.publish(message(1, Some("k")));
    let letter = letters(&queue, 1).await.remove(0);
    seen.fail([]);
    queue.replay(&letter.id, &ada()).await.unwrap();
    assert_eq!(seen.calls(4).await, [1; 4]);
    acknowledged(&broker, "billing", 2).await;
    acknowledged(&broker, "shipping", 2).await;
    assert_eq!(others.numbers(), [1], "a replay is for the consumer that gave the message up");
    let letter = queue.find(&letter.id).await.unwrap().unwrap();
    assert_eq!((letter.status, letter.replays), (LetterStatus::Replayed, 1));
    assert_eq!((&*letter.history[0].who, letter.history[0].why.as_deref()), ("ada", Some("the bank is back")));
    let error = queue.replay(&letter.id, &ada()).await.unwrap_err();
    assert!(matches!(error, Error::NotPending { status: LetterStatus::Replayed, .. }), "{error}");
    consumer.shutdown().await;
    shipping.shutdown().await;
}

#[tokio::test]
async fn a_replay_passes_the_inbox_and_its_work_is_done_once() {
    let (broker, queue) = place();
    let shop = Shop::new().await;
    let seen = Seen::new();
    seen.fail([1]);
    let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone())
        .inbox(Inbox::new(shop.inbox()), &shop.outbox)
        .retry(retry())
        .handle_in_tx({
            let handler = seen.handler();
            move |mut work: Work<SqliteStore>, placed: OrderPlaced, meta| {
                let handler = handler.clone();
                async move {
                    charge(&mut work, placed.number).await?;
                    handler(placed, meta).await
                }
            }
        })
        .start()
        .await
        .unwrap();
    broker.publish(message(1, None));
    let letter = letters(&queue, 1).await.remove(0);
    assert_eq!(shop.charges().await, [0; 0]);
    seen.fail([]);
    queue.replay(&letter.id, &ada()).await.unwrap();
    acknowledged(&broker, "billing", 2).await;
    assert_eq!(shop.charges().await, [1]);
    // Replayed by a queue that knows nothing of the first: the inbox does.
    let again = broker.sent(TOPIC).pop().unwrap();
    broker.publish(again);
    acknowledged(&broker, "billing", 3).await;
    assert_eq!(shop.charges().await, [1]);
    consumer.shutdown().await;
}

/// The letter is there, its acknowledgement was lost, and the next delivery did the work.
#[tokio::test]
async fn a_replay_of_what_another_delivery_has_done_is_known_to_the_guard() {
    let (broker, queue) = place();
    let (guard, seen) = (Guard::new(MemoryGuard::new()), Seen::new());
    seen.fail([1]);
    let start = || {
        let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone());
        consumer.guard(guard.clone()).retry(retry()).handle(seen.handler()).start()
    };
    broker.lose_acknowledgements(true);
    let first = start().await.unwrap();
    broker.publish(message(1, None));
    let letter = letters(&queue, 1).await.remove(0);
    drop(first);
    broker.lose_acknowledgements(false);
    broker.reconnect(TOPIC, "billing");
    seen.fail([]);
    let second = start().await.unwrap();
    acknowledged(&broker, "billing", 1).await;
    assert_eq!(seen.numbers(), [1; 4]);
    queue.replay(&letter.id, &ada()).await.unwrap();
    acknowledged(&broker, "billing", 2).await;
    assert_eq!(seen.numbers(), [1; 4], "what is done is known");
    second.shutdown().await;
}

#[tokio::test]
async fn of_concurrent_replays_one_publishes() {
    let (broker, queue) = place();
    let id = parked(&queue, 1).await;
    let calls: Vec<_> = (0..16)
        .map(|_| {
            let (queue, id) = (queue.clone(), id.clone());
            tokio::spawn(async move { queue.replay(&id, &ada()).await })
        })
        .collect();
    let mut sent = 0;
    for call in calls {
        match call.await.unwrap() {
            Ok(()) => sent += 1,
            Err(Error::Busy(_) | Error::NotPending { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!((sent, broker.sent(TOPIC).len()), (1, 1));
}

#[tokio::test]
async fn while_the_handler_still_fails_the_count_survives_and_the_limit_holds() {
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
    broker.publish(message(1, None));
    let id = letters(&queue, 1).await.remove(0).id;
    for replay in 1..=3_usize {
        queue.replay(&id, &ada()).await.unwrap();
        seen.calls(3 * (replay + 1)).await;
        until("it came back", || async {
            let letter = queue.find(&id).await.unwrap().unwrap();
            letter.status == LetterStatus::Pending && letter.replays as usize == replay
        })
        .await;
    }
    let error = queue.replay(&id, &ada()).await.unwrap_err();
    assert!(matches!(error, Error::TooManyReplays { replays: 3, .. }), "{error}");
    // An edit is no way out: at most 3 replays is at most 3.
    queue.edit(&id, "{\"number\": 2}", &ada()).await.unwrap();
    let error = queue.replay(&id, &ada()).await.unwrap_err().to_string();
    assert!(error.contains("write the event anew") && error.contains("an edit does not change that"), "{error}");
    let all = letters(&queue, 1).await;
    assert_eq!(all.len(), 1, "it is one letter");
    assert_eq!(all[0].history.len(), 4);
    queue.discard(&id, &ada()).await.unwrap();
    consumer.shutdown().await;
}

#[tokio::test]
async fn a_broker_that_is_down_leaves_the_letter_as_it_was() {
    let (broker, queue) = place();
    let id = parked(&queue, 1).await;
    broker.set_down(true);
    let error = queue.replay(&id, &ada()).await.unwrap_err();
    assert!(matches!(error, Error::Broker(_)), "{error}");
    let letter = queue.find(&id).await.unwrap().unwrap();
    assert_eq!((letter.status, letter.replays, &letter.claim), (LetterStatus::Pending, 0, &None));
    broker.set_down(false);
    queue.replay(&id, &ada()).await.unwrap();
    assert_eq!(broker.sent(TOPIC).len(), 1);
}

#[tokio::test]
async fn a_replay_whose_process_died_can_be_done_again_after_a_minute() {
    let clock = Arc::new(ManualClock::new());
    let broker = MemoryBroker::new();
    let store = MemoryLetters::with_clock(clock.clone());
    let queue = DeadLetters::new(store.clone()).sink(Arc::new(broker.clone()));
    let id = parked(&queue, 1).await;
    // What a process leaves that dies between its claim and the broker's word.
    let mut claimed = queue.find(&id).await.unwrap().unwrap();
    claimed.version += 1;
    let until = pillarbox_core::port::Clock::now(&*clock).saturating_add(Duration::from_mins(1));
    claimed.claim = Some(pillarbox_core::port::Claim { by: "the dead".into(), until });
    assert!(pillarbox_core::port::LetterStore::replace(&store, &claimed).await.unwrap());
    assert!(matches!(queue.replay(&id, &ada()).await.unwrap_err(), Error::Busy(_)));
    assert!(matches!(queue.discard(&id, &ada()).await.unwrap_err(), Error::Busy(_)));
    clock.advance(Duration::from_mins(1));
    queue.replay(&id, &ada()).await.unwrap();
    assert_eq!(broker.sent(TOPIC).len(), 1);
}

/// A sink whose sender stands still when the broker has said its word.
#[derive(Clone)]
struct Standing {
    broker: MemoryBroker,
    gate: Gate,
}

impl Sink for Standing {
    fn abilities(&self) -> Abilities {
        self.broker.abilities()
    }

    fn send<'a>(&'a self, batch: &'a [Message]) -> BoxFuture<'a, Vec<Sent>> {
        Box::pin(async move {
            let answers = self.broker.send(batch).await;
            self.gate.pass().await;
            answers
        })
    }

    fn check(&self) -> BoxFuture<'_, Sent> {
        self.broker.check()
    }
}

#[tokio::test]
async fn a_replay_that_dies_after_the_brokers_word_is_sent_again_and_done_once() {
    let clock = Arc::new(ManualClock::new());
    let (broker, shop) = (MemoryBroker::new(), Shop::new().await);
    let store = MemoryLetters::with_clock(clock.clone());
    let gate = Gate::new();
    let dying = DeadLetters::new(store.clone()).sink(Arc::new(Standing { broker: broker.clone(), gate: gate.clone() }));
    let id = parked(&dying, 1).await;
    // A process of its own, so to say.
    let process = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    process.spawn({
        let (dying, id) = (dying.clone(), id.clone());
        async move { dying.replay(&id, &ada()).await }
    });
    gate.reached(1).await;
    tokio::task::spawn_blocking(|| drop(process)).await.unwrap();
    let queue = DeadLetters::new(store).sink(Arc::new(broker.clone()));
    let letter = queue.find(&id).await.unwrap().unwrap();
    assert_eq!((letter.status, letter.replays), (LetterStatus::Pending, 0), "it knows nothing of it");
    assert!(matches!(queue.replay(&id, &ada()).await.unwrap_err(), Error::Busy(_)));
    clock.advance(Duration::from_mins(1));
    queue.replay(&id, &ada()).await.unwrap();
    assert_eq!(broker.sent(TOPIC).len(), 2);
    let letter = queue.find(&id).await.unwrap().unwrap();
    assert_eq!((letter.status, letter.replays), (LetterStatus::Replayed, 1));
    // With the inbox and with a guard.
    let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone())
        .inbox(Inbox::new(shop.inbox()), &shop.outbox)
        .handle_in_tx(|mut work: Work<SqliteStore>, placed: OrderPlaced| async move {
            charge(&mut work, placed.number).await
        })
        .start()
        .await
        .unwrap();
    acknowledged(&broker, "billing", 2).await;
    assert_eq!(shop.charges().await, [1]);
    consumer.shutdown().await;
    let seen = Seen::new();
    let guarded = Consumer::builder("billing", broker.source(TOPIC, "guarded"), queue);
    let guarded = guarded.guard(Guard::new(MemoryGuard::new())).handle(seen.handler()).start().await.unwrap();
    acknowledged(&broker, "guarded", 2).await;
    assert_eq!(seen.numbers(), [1]);
    guarded.shutdown().await;
}

/// I6, I7: a request whose client is gone, say.
#[tokio::test]
async fn a_replay_whose_caller_leaves_comes_to_its_end() {
    let (broker, gate) = (MemoryBroker::new(), Gate::new());
    let sink = Standing { broker: broker.clone(), gate: gate.clone() };
    let queue = DeadLetters::new(MemoryLetters::new()).sink(Arc::new(sink));
    let id = parked(&queue, 1).await;
    let ada = ada();
    tokio::select! {
        _ = queue.replay(&id, &ada) => panic!("the gate is closed"),
        () = gate.reached(1) => {}
    }
    assert!(matches!(queue.replay(&id, &ada).await.unwrap_err(), Error::Busy(_)), "it is under way");
    gate.open();
    until("it is told", || async { queue.find(&id).await.unwrap().unwrap().status == LetterStatus::Replayed }).await;
    let letter = queue.find(&id).await.unwrap().unwrap();
    assert_eq!((letter.replays, &letter.claim, letter.history.len()), (1, &None, 1));
    assert_eq!((&*letter.history[0].what, &*letter.history[0].who), ("replay", "ada"));
    assert!(matches!(queue.replay(&id, &ada).await.unwrap_err(), Error::NotPending { .. }));
    assert_eq!(broker.sent(TOPIC).len(), 1);
}

/// I6: a document that can't be read, or has no id, is known by the id that the broker gave it, and that is another one each time.
#[tokio::test]
async fn a_message_without_an_id_that_can_be_read_is_one_letter_however_often_it_is_replayed() {
    for payload in ["{broken", "{\"specversion\": \"1.0\", \"type\": \"OrderPlaced\", \"data\": {\"number\": \"one\"}}"]
    {
        let (broker, queue) = place();
        let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone());
        let consumer = consumer.guard(Guard::new(MemoryGuard::new())).retry(retry());
        let consumer = consumer.handle(Seen::new().handler()).start().await.unwrap();
        let content_type = "application/cloudevents+json".into();
        broker.publish(Incoming { content_type, attributes: Vec::new(), payload: payload.into(), ..message(1, None) });
        let id = letters(&queue, 1).await.remove(0).id;
        for replay in 1..=3 {
            queue.replay(&id, &ada()).await.unwrap();
            until("it came back", || async {
                let letter = queue.find(&id).await.unwrap().unwrap();
                letter.status == LetterStatus::Pending && letter.replays == replay
            })
            .await;
        }
        let error = queue.replay(&id, &ada()).await.unwrap_err();
        assert!(matches!(error, Error::TooManyReplays { replays: 3, .. }), "{error}");
        let all = letters(&queue, 1).await;
        assert_eq!((all.len(), all[0].headers.len()), (1, 0), "what is of the replay is not the letter's");
        consumer.shutdown().await;
    }
}

/// I6: what is said of a replay is not said of what its handler passes on.
#[tokio::test]
async fn what_the_handler_of_a_replay_passes_on_is_for_everybody() {
    let (broker, queue) = place();
    let seen = Seen::new();
    seen.fail([1]);
    let passing = {
        let (broker, handler) = (broker.clone(), seen.handler());
        move |placed: OrderPlaced, meta: Metadata| {
            let (broker, handler) = (broker.clone(), handler.clone());
            async move {
                let of_meta = meta.headers().iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
                let headers: Vec<_> = of_meta.collect();
                handler(placed, meta).await?;
                for number in [7, 8] {
                    broker.publish(Incoming {
                        topic: "mails".into(),
                        headers: headers.clone(),
                        ..message(number, None)
                    });
                }
                Ok::<_, HandlerError>(())
            }
        }
    };
    let billing = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone());
    let billing = billing.guard(Guard::new(MemoryGuard::new())).retry(retry()).handle(passing).start().await.unwrap();
    let others = Seen::new();
    let mailing = Consumer::builder("mailing", broker.source("mails", "mailing"), queue.clone());
    let mailing = mailing.guard(Guard::new(MemoryGuard::new())).handle(others.handler()).start().await.unwrap();
    broker.publish(Incoming { headers: vec![("tenant".into(), "acme".into())], ..message(1, None) });
    let letter = letters(&queue, 1).await.remove(0);
    seen.fail([]);
    queue.replay(&letter.id, &ada()).await.unwrap();
    let mut numbers = others.calls(2).await;
    numbers.sort_unstable();
    assert_eq!(numbers, [7, 8]);
    assert_eq!(broker.sent("mails")[0].headers, [("tenant".to_owned(), "acme".to_owned())]);
    billing.shutdown().await;
    mailing.shutdown().await;
}

/// I6: the consumer is faster than who has sent it, and takes the claim away.
#[tokio::test]
async fn a_replay_that_is_back_before_it_is_told_counts_once_and_within_the_limit() {
    let (broker, store, gate) = (MemoryBroker::new(), MemoryLetters::new(), Gate::new());
    let queue = DeadLetters::new(store.clone()).sink(Arc::new(broker.clone())).most_replays(2);
    let id = parked(&queue, 1).await;
    let park_again = async || {
        let message = broker.sent(TOPIC).pop().unwrap();
        let parked = Parked { consumer: "billing", message: &message, reason: "still", attempts: 1 };
        assert_eq!(queue.park(&parked).await.unwrap(), id);
    };
    queue.replay(&id, &ada()).await.unwrap();
    park_again().await;
    let slow = Standing { broker: broker.clone(), gate: gate.clone() };
    let slow = DeadLetters::new(store).sink(Arc::new(slow)).most_replays(2);
    let replay = tokio::spawn({
        let id = id.clone();
        async move { slow.replay(&id, &ada()).await }
    });
    gate.reached(1).await;
    park_again().await;
    let letter = queue.find(&id).await.unwrap().unwrap();
    assert_eq!((letter.status, letter.replays, &letter.claim), (LetterStatus::Pending, 2, &None));
    let error = queue.replay(&id, &ada()).await.unwrap_err();
    assert!(matches!(error, Error::TooManyReplays { replays: 2, .. }), "{error}");
    gate.open();
    replay.await.unwrap().unwrap();
    let letter = queue.find(&id).await.unwrap().unwrap();
    assert_eq!((letter.status, letter.replays, letter.history.len()), (LetterStatus::Pending, 2, 2));
    assert_eq!(broker.sent(TOPIC).len(), 2);
}

/// I6: anybody may write a header.
#[tokio::test]
async fn a_message_counts_itself_as_one_replay_at_most() {
    let (_broker, queue) = place();
    let id = parked(&queue, 1).await;
    let stored = queue.find(&id).await.unwrap().unwrap();
    for (consumer, number, counted) in
        [("shipping", "1", 0), ("billing", "many", 0), ("billing", "4294967295", 1), ("billing", "1", 1)]
    {
        let headers = [(REPLAY_FOR, consumer), (REPLAY_NUMBER, number), (REPLAY_OF, &*stored.event_id)];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let message = Incoming { headers, ..message(1, None) };
        let parked = Parked { consumer: "billing", message: &message, reason: "no", attempts: 1 };
        assert_eq!(queue.park(&parked).await.unwrap(), id);
        assert_eq!(queue.find(&id).await.unwrap().unwrap().replays, counted, "{consumer} {number}");
    }
}

/// U3: what a person has put in is for the message of before; another of its name has its own payload.
#[tokio::test]
async fn an_edit_gives_way_to_a_message_that_is_another() {
    let (_broker, queue) = place();
    let message = message(1, None);
    let parked = Parked { consumer: "billing", message: &message, reason: "no", attempts: 3 };
    let id = queue.park(&parked).await.unwrap();
    queue.edit(&id, "{\"number\": 2}", &ada()).await.unwrap();
    queue.edit(&id, "{\"number\": 3}", &ada()).await.unwrap();
    for (comes, stays) in [(1, 3), (2, 3), (3, 3), (4, 4)] {
        let message = Incoming { payload: format!("{{\"number\": {comes}}}").into(), ..message.clone() };
        queue.park(&Parked { message: &message, ..parked }).await.unwrap();
        let letter = queue.find(&id).await.unwrap().unwrap();
        assert_eq!((letter.payload, letter.history.len()), (format!("{{\"number\": {stays}}}").into(), 2));
    }
}

/// U3: the message was parked, its acknowledgement was lost, and somebody edited the letter before it came again.
#[tokio::test]
async fn an_edit_outlasts_the_messages_coming_again() {
    let (broker, queue) = place();
    let message = message(1, None);
    let parked = Parked { consumer: "billing", message: &message, reason: "no", attempts: 3 };
    let id = queue.park(&parked).await.unwrap();
    queue.edit(&id, "{\"number\": 2}", &ada()).await.unwrap();
    assert_eq!(queue.park(&Parked { reason: "still no", ..parked }).await.unwrap(), id);
    let letter = queue.find(&id).await.unwrap().unwrap();
    assert_eq!((&*letter.reason, letter.payload), ("still no", "{\"number\": 2}".into()));
    queue.replay(&id, &ada()).await.unwrap();
    assert_eq!(broker.sent(TOPIC)[0].payload, "{\"number\": 2}");
}

/// A sink that fails when it is let.
#[derive(Clone)]
struct Failing(Gate);

impl Sink for Failing {
    fn abilities(&self) -> Abilities {
        MemoryBroker::new().abilities()
    }

    fn send<'a>(&'a self, batch: &'a [Message]) -> BoxFuture<'a, Vec<Sent>> {
        Box::pin(async move {
            self.0.pass().await;
            batch.iter().map(|_| Err(SinkError::failed("no"))).collect()
        })
    }

    fn check(&self) -> BoxFuture<'_, Sent> {
        Box::pin(async { Ok(()) })
    }
}

#[tokio::test]
async fn a_late_failure_does_not_drop_the_claim_of_another() {
    let clock = Arc::new(ManualClock::new());
    let store = MemoryLetters::with_clock(clock.clone());
    let gates = [Gate::new(), Gate::new()];
    let queues = gates.clone().map(|gate| DeadLetters::new(store.clone()).sink(Arc::new(Failing(gate))));
    let id = parked(&queues[0], 1).await;
    let mut replays = Vec::new();
    for (queue, gate) in queues.iter().zip(&gates) {
        let (queue, id) = (queue.clone(), id.clone());
        replays.push(tokio::spawn(async move { queue.replay(&id, &ada()).await }));
        gate.reached(1).await;
        clock.advance(Duration::from_mins(1));
    }
    let claim = queues[0].find(&id).await.unwrap().unwrap().claim;
    gates[0].open();
    assert!(matches!(replays.remove(0).await.unwrap().unwrap_err(), Error::Broker(_)));
    assert_eq!(queues[0].find(&id).await.unwrap().unwrap().claim, claim, "it is the second's");
    gates[1].open();
    assert!(matches!(replays.remove(0).await.unwrap().unwrap_err(), Error::Broker(_)));
    assert_eq!(queues[0].find(&id).await.unwrap().unwrap().claim, None, "its own it drops");
}

#[tokio::test(start_paused = true)]
async fn a_broker_without_a_word_is_given_up_before_the_claim_is() {
    let gate = Gate::new();
    let broker = MemoryBroker::new();
    let sink = Standing { broker: broker.clone(), gate: gate.clone() };
    let queue = DeadLetters::new(MemoryLetters::new()).sink(Arc::new(sink));
    let id = parked(&queue, 1).await;
    let begun = tokio::time::Instant::now();
    let error = queue.replay(&id, &ada()).await.unwrap_err().to_string();
    assert!(error.contains("no word within 45s") && error.contains("not known"), "{error}");
    assert!(begun.elapsed() < Duration::from_mins(1));
    assert_eq!(broker.sent(TOPIC).len(), 1, "it has it");
    assert!(matches!(queue.replay(&id, &ada()).await.unwrap_err(), Error::Busy(_)), "the claim stands");
}

#[tokio::test(start_paused = true)]
async fn many_are_replayed_at_their_rate() {
    let (broker, queue) = place();
    for number in 0..5 {
        parked(&queue, number).await;
    }
    let begun = tokio::time::Instant::now();
    let mut at = Vec::new();
    let told = |_: &_, _: Result<(), &Error>| at.push(begun.elapsed().as_millis());
    assert_eq!(queue.replay_all(&LetterQuery::default(), NonZeroU32::new(2), &ada(), told).await.unwrap(), 5);
    assert_eq!(broker.sent(TOPIC).len(), 5);
    for (number, at) in at.into_iter().enumerate() {
        let due = 500 * number as u128;
        assert!((due..due + 50).contains(&at), "{number} at {at} ms");
    }
}

#[tokio::test]
async fn only_pending_letters_can_be_acted_upon() {
    let (_, queue) = place();
    let id = parked(&queue, 1).await;
    queue.discard(&id, &ada()).await.unwrap();
    for error in [
        queue.discard(&id, &ada()).await.unwrap_err(),
        queue.replay(&id, &ada()).await.unwrap_err(),
        queue.edit(&id, "{}", &ada()).await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::NotPending { status: LetterStatus::Discarded, .. }), "{error}");
    }
    let nobody = pillarbox_inbox::id_of("x", "y");
    assert!(matches!(queue.replay(&nobody, &ada()).await.unwrap_err(), Error::NotFound(_)));
    let without = DeadLetters::new(MemoryLetters::new());
    assert!(matches!(without.replay(&nobody, &ada()).await.unwrap_err(), Error::NoSink));
}

#[tokio::test]
async fn a_payload_can_be_edited_before_the_replay() {
    let (broker, queue) = place();
    let id = parked(&queue, 1).await;
    let error = queue.edit(&id, "{", &ada()).await.unwrap_err();
    assert!(error.to_string().contains("not JSON"), "{error}");
    queue.edit(&id, "{\"number\": 2}", &ada()).await.unwrap();
    queue.replay(&id, &ada()).await.unwrap();
    assert_eq!(broker.sent(TOPIC)[0].payload, "{\"number\": 2}");
    let letter = queue.find(&id).await.unwrap().unwrap();
    assert_eq!(letter.history.iter().map(|action| &*action.what).collect::<Vec<_>>(), ["edit", "replay"]);
}

#[tokio::test]
async fn many_are_replayed_oldest_first_and_their_keys_go_along() {
    let (broker, queue) = place();
    for number in 0..5 {
        parked(&queue, number).await;
    }
    let mut told = 0;
    let rate = NonZeroU32::new(1_000);
    let told_of = |_: &_, answer: Result<(), &Error>| told += usize::from(answer.is_ok());
    let sent = queue.replay_all(&LetterQuery::default(), rate, &ada(), told_of).await.unwrap();
    assert_eq!(sent, 5);
    assert_eq!(told, 5);
    let payloads: Vec<_> = broker.sent(TOPIC).into_iter().map(|message| (message.payload, message.key)).collect();
    let expected: Vec<_> =
        (0..5).map(|number| message(number, Some("k"))).map(|message| (message.payload, message.key)).collect();
    assert_eq!(payloads, expected);
}

#[tokio::test]
async fn finished_letters_are_kept_for_a_week_and_pending_ones_for_ever() {
    let clock = Arc::new(ManualClock::new());
    let queue = DeadLetters::new(MemoryLetters::with_clock(clock.clone()));
    let (done, pending) = (parked(&queue, 1).await, parked(&queue, 2).await);
    queue.discard(&done, &ada()).await.unwrap();
    clock.advance(Duration::from_hours(7 * 24));
    assert_eq!(queue.purge().await.unwrap(), 0);
    clock.advance(Duration::from_secs(1));
    assert_eq!(queue.purge().await.unwrap(), 1);
    clock.advance(Duration::from_hours(24 * 365));
    assert_eq!(queue.purge().await.unwrap(), 0);
    assert!(queue.find(&pending).await.unwrap().is_some());
}

/// U3, A3: what an edit has replaced is not lost, and who did it is listed.
#[tokio::test]
async fn an_edit_keeps_what_it_has_replaced() {
    let (_, queue) = place();
    let id = parked(&queue, 1).await;
    let before = queue.find(&id).await.unwrap().unwrap().payload;
    queue.edit(&id, &b"{\"a\": 1}"[..], &ada()).await.unwrap();
    queue.edit(&id, &b"{\"a\": 2}"[..], &Actor::new("bob")).await.unwrap();
    let deeds = queue.deeds(&DeedQuery::default(), None, 10).await.unwrap();
    let told: Vec<_> = deeds.iter().map(|deed| (&*deed.action.who, deed.action.before.clone().unwrap())).collect();
    assert_eq!(told, [("bob", (&b"{\"a\": 1}"[..]).into()), ("ada", before)]);
    let of_bob = DeedQuery { who: Some("bob".into()), ..DeedQuery::default() };
    assert_eq!(queue.deeds(&of_bob, None, 10).await.unwrap(), deeds[..1]);
}

/// M4: the switch of the queue.
#[tokio::test]
async fn a_queue_that_is_switched_off_keeps_nothing_and_holds_up_nobody() {
    let (broker, queue) = place();
    let off = queue.clone().settings(&DeadLetterSettings { enabled: false, ..DeadLetterSettings::default() });
    let seen = Seen::new();
    seen.fail([1]);
    let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), off)
        .without_guard()
        .retry(retry())
        .handle(seen.handler())
        .start()
        .await
        .unwrap();
    broker.publish(message(1, Some("k")));
    broker.publish(message(2, Some("k")));
    acknowledged(&broker, "billing", 2).await;
    assert_eq!(queue.pending().await.unwrap(), 0);
    consumer.shutdown().await;
}

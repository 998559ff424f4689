//! Handlers that work in a transaction, with the inbox.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use pillarbox_core::{
    Event, HandlerError, RetryPolicy,
    domain::CircuitPolicy,
    engine::{Work, in_tx},
};
use pillarbox_inbox::{Consumer, Error, Inbox};
use pillarbox_macros::OutboxEvent;
use pillarbox_sqlite::SqliteStore;
use serde::{Deserialize, Serialize};

use crate::support::{OrderPlaced, Shop, TOPIC, acknowledged, charge, letters, message, place, retry, until};

#[tokio::test]
async fn many_messages_share_a_transaction_and_each_is_done_once() {
    let (broker, queue) = place();
    let shop = Shop::new().await;
    let messages: Vec<_> = (0..200).map(|number| message(number, Some(&format!("k{}", number % 7)))).collect();
    // Each of them comes twice.
    messages.iter().chain(&messages).for_each(|message| broker.publish(message.clone()));
    let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue)
        .inbox(Inbox::new(shop.inbox()), &shop.outbox)
        .handle_in_tx(|mut work: Work<SqliteStore>, placed: OrderPlaced| async move {
            charge(&mut work, placed.number).await?;
            work.write(Event::builder("OrderCharged").json(&placed.number)).await?;
            Ok::<_, HandlerError>(())
        })
        .start()
        .await
        .unwrap();
    acknowledged(&broker, "billing", 400).await;
    let charges = shop.charges().await;
    for key in 0..7 {
        let of_key: Vec<_> = charges.iter().filter(|number| *number % 7 == key).copied().collect();
        assert_eq!(of_key, (0..200).filter(|number| number % 7 == key).collect::<Vec<_>>(), "each key in order");
    }
    let written: i64 =
        sqlx::query_scalar("select count(*) from outbox_event").fetch_one(shop.store.pool()).await.unwrap();
    assert_eq!(written, 200, "what a handler writes commits with its work");
    consumer.shutdown().await;
}

#[tokio::test]
async fn one_that_fails_leaves_nothing_and_takes_no_other_with_it() {
    let (broker, queue) = place();
    let shop = Shop::new().await;
    for number in 0..20 {
        broker.publish(message(number, None));
    }
    let calls: Arc<Mutex<Vec<u32>>> = Arc::default();
    let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone())
        .inbox(Inbox::new(shop.inbox()), &shop.outbox)
        .retry(retry())
        .workers(1)
        .handle_in_tx({
            let calls = calls.clone();
            move |mut work: Work<SqliteStore>, placed: OrderPlaced| {
                let calls = calls.clone();
                async move {
                    calls.lock().push(placed.number);
                    charge(&mut work, placed.number).await?;
                    if placed.number == 7 { Err(HandlerError::msg("declined")) } else { Ok(()) }
                }
            }
        })
        .start()
        .await
        .unwrap();
    acknowledged(&broker, "billing", 20).await;
    let mut charges = shop.charges().await;
    charges.sort_unstable();
    assert_eq!(charges, (0..20).filter(|number| *number != 7).collect::<Vec<_>>());
    let letters = letters(&queue, 1).await;
    assert_eq!((&*letters[0].reason, letters[0].attempts), ("declined", 3));
    assert!(calls.lock().iter().filter(|number| **number == 7).count() >= 3);
    consumer.shutdown().await;
}

#[tokio::test]
async fn a_constraint_a_panic_and_a_swallowed_error_are_failures_of_their_own_message() {
    let (broker, queue) = place();
    let shop = Shop::new().await;
    for number in [1, 2_000, 2, 13, 3] {
        broker.publish(message(number, None));
    }
    let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone())
        .inbox(Inbox::new(shop.inbox()), &shop.outbox)
        .retry(RetryPolicy::never())
        .handle_in_tx(|mut work: Work<SqliteStore>, placed: OrderPlaced| async move {
            assert_ne!(placed.number, 13, "unlucky");
            charge(&mut work, placed.number).await
        })
        .start()
        .await
        .unwrap();
    acknowledged(&broker, "billing", 5).await;
    let mut charges = shop.charges().await;
    charges.sort_unstable();
    assert_eq!(charges, [1, 2, 3]);
    let reasons: Vec<_> = letters(&queue, 2).await.into_iter().map(|letter| letter.reason).collect();
    assert!(reasons.iter().any(|reason| reason.contains("CHECK constraint")), "{reasons:?}");
    assert!(reasons.iter().any(|reason| reason.contains("unlucky")), "{reasons:?}");
    consumer.shutdown().await;
}

#[tokio::test]
async fn what_a_fallback_took_is_known_when_it_comes_again() {
    let (broker, queue) = place();
    let shop = Shop::new().await;
    let calls: Arc<Mutex<Vec<&str>>> = Arc::default();
    let (handled, fell) = (calls.clone(), calls.clone());
    let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone())
        .inbox(Inbox::new(shop.inbox()), &shop.outbox)
        .retry(RetryPolicy::never())
        .handle_in_tx(move |mut work: Work<SqliteStore>, placed: OrderPlaced| {
            let calls = handled.clone();
            async move {
                calls.lock().push("handler");
                charge(&mut work, placed.number).await?;
                Err::<(), _>(HandlerError::msg("declined"))
            }
        })
        .fallback(move |_: OrderPlaced| {
            fell.lock().push("fallback");
            std::future::ready(())
        })
        .start()
        .await
        .unwrap();
    let twice = message(1, None);
    broker.publish(twice.clone());
    acknowledged(&broker, "billing", 1).await;
    broker.publish(twice);
    acknowledged(&broker, "billing", 2).await;
    assert_eq!(*calls.lock(), ["handler", "fallback"]);
    assert_eq!((shop.charges().await, queue.pending().await.unwrap()), (vec![], 0));
    consumer.shutdown().await;
}

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core)]
struct OrderShipped {
    number: u32,
}

#[tokio::test]
async fn a_destination_of_a_transactional_handler_that_is_down_uses_up_no_attempts_and_others_go_on() {
    let (broker, queue) = place();
    let shop = Shop::new().await;
    let calls = Arc::new(Mutex::new((0, true)));
    let bank = calls.clone();
    let pay = move |mut work: Work<SqliteStore>, placed: OrderPlaced| {
        let bank = bank.clone();
        async move {
            charge(&mut work, placed.number).await?;
            let (calls, is_down) = &mut *bank.lock();
            *calls += 1;
            if *is_down { Err(HandlerError::msg("no route to host").unavailable()) } else { Ok(()) }
        }
    };
    let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone())
        .inbox(Inbox::new(shop.inbox()), &shop.outbox)
        .retry(RetryPolicy::fixed(Duration::from_millis(1)).max_attempts(2))
        .circuit(CircuitPolicy {
            failures: 3,
            shortest: Duration::from_millis(50),
            longest: Duration::from_millis(100),
        })
        .handle_in_tx(in_tx(pay).id("pay").destination("bank"))
        .handle_in_tx(|mut work: Work<SqliteStore>, shipped: OrderShipped| async move {
            charge(&mut work, shipped.number).await
        })
        .start()
        .await
        .unwrap();
    (0..40).for_each(|number| broker.publish(message(number, Some(&format!("k{}", number % 8)))));
    until("its circuit is open", || async { calls.lock().0 > 3 }).await;
    for number in 100..120 {
        let mut shipped = message(number, None);
        shipped.attributes[2].1 = "OrderShipped".into();
        broker.publish(shipped);
    }
    acknowledged(&broker, "billing", 20).await;
    let asked = calls.lock().0;
    until("some probes", || async { calls.lock().0 > asked + 3 }).await;
    let asked = calls.lock().0;
    assert!(asked < 40, "{asked} calls to what is down");
    let mut charges = shop.charges().await;
    charges.sort_unstable();
    assert_eq!(charges, (100..120).collect::<Vec<_>>(), "nothing of what waits");
    assert_eq!((consumer.held(), broker.acknowledged(TOPIC, "billing")), (40, 20));
    calls.lock().1 = false;
    acknowledged(&broker, "billing", 60).await;
    let charges = shop.charges().await;
    for key in 0..8 {
        let of_key: Vec<_> = charges.iter().filter(|number| **number < 100 && *number % 8 == key).copied().collect();
        assert_eq!(of_key, (0..40).filter(|number| number % 8 == key).collect::<Vec<_>>(), "each once, in order");
    }
    assert_eq!(letters(&queue, 0).await.len(), 0, "nothing was given up");
    consumer.shutdown().await;
}

#[tokio::test]
async fn a_window_shorter_than_the_retries_is_refused_with_the_arithmetic() {
    let (broker, queue) = place();
    let shop = Shop::new().await;
    let builder = || {
        Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone())
            .inbox(Inbox::new(shop.inbox()).window(Duration::from_hours(2)), &shop.outbox)
            .handle_in_tx(|_: Work<SqliteStore>, _: OrderPlaced| async {})
    };
    let hourly = RetryPolicy::fixed(Duration::from_hours(1)).jitter(0.0).max_attempts(5);
    let error = builder().retry(hourly).start().await.unwrap_err();
    assert!(matches!(error, Error::Window { .. }));
    let words = error.to_string();
    // 5 attempts of 30 s, 4 pauses of 1 h, 1 h under way.
    for part in ["7200s", "18150s", "5 attempts", "150s", "14400s", "3600s"] {
        assert!(words.contains(part), "{part}: {words}");
    }
    builder().start().await.unwrap().shutdown().await;
    let longer = Inbox::new(shop.inbox()).window(Duration::from_hours(48)).start().await.unwrap_err().to_string();
    assert!(longer.contains("7200s") && longer.contains("172800s") && longer.contains("prefix"), "{longer}");
}

#[tokio::test]
async fn by_hand_in_a_transaction_of_ones_own() {
    let shop = Shop::new().await;
    let inbox = Inbox::new(shop.inbox()).start().await.unwrap();
    for (expected, commits) in [(true, false), (true, true), (false, true)] {
        let mut tx = shop.store.pool().begin().await.unwrap();
        assert_eq!(inbox.enter(&mut tx, "billing", "m-1").await.unwrap(), expected);
        if commits {
            tx.commit().await.unwrap();
        }
    }
    let mut tx = shop.store.pool().begin().await.unwrap();
    assert!(inbox.clone().enabled(false).enter(&mut tx, "billing", "m-1").await.unwrap());
}

//! What users test their handlers with.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use parking_lot::Mutex;
use pillarbox_core::{
    Delivery, Event, Metadata, Outbox, OutboxEvent as _, Outcome, RetryPolicy,
    domain::{Epoch, Status},
    engine::{Batched, Builder, EventInTx, OutboxError, Work, batch, handler, in_tx, mode},
    port::{Actor, Query, Store, TransactStore},
};
use pillarbox_macros::OutboxEvent;
use pillarbox_testkit::{
    MemoryStore,
    testing::{self, OutboxExt as _, TestOutbox, assert_not_written, assert_written},
};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, aggregate = "Order", key = order_id)]
#[serde(rename_all = "camelCase")]
struct OrderPlaced {
    order_id: String,
    total_cents: i64,
    note: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, aggregate = "Order", key = order_id)]
struct OrderShipped {
    order_id: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core)]
enum Payment {
    Taken { cents: u32 },
    Refused { why: String },
}

const HOUR: Duration = Duration::from_hours(1);

fn placed(order: &str) -> OrderPlaced {
    OrderPlaced { order_id: order.into(), total_cents: 4_200, note: None }
}

/// As code under test is: generic over the store, and without a word about tests.
async fn place<S: TransactStore>(outbox: &Outbox<S>, orders: &[&str]) {
    let mut tx = outbox.begin().await.unwrap();
    for order in orders {
        tx.write(&placed(order)).await.unwrap();
    }
    tx.commit().await.unwrap();
}

/// What handlers have seen.
#[derive(Clone, Debug, Default)]
struct Seen(Arc<Mutex<Vec<(String, u32, Epoch)>>>);

impl Seen {
    fn handler(
        &self,
        answer: fn(&Metadata) -> Result<(), String>,
    ) -> impl Fn(OrderPlaced, Metadata) -> std::future::Ready<Result<(), String>> + Send + Sync + 'static {
        let seen = self.clone();
        move |placed: OrderPlaced, meta: Metadata| {
            seen.0.lock().push((placed.order_id, meta.attempt(), meta.fencing_token()));
            std::future::ready(answer(&meta))
        }
    }

    fn orders(&self) -> Vec<String> {
        self.0.lock().iter().map(|(order, ..)| order.clone()).collect()
    }

    fn attempts(&self) -> Vec<u32> {
        self.0.lock().iter().map(|(_, attempt, _)| *attempt).collect()
    }
}

async fn outbox(answer: fn(&Metadata) -> Result<(), String>) -> (TestOutbox, Seen) {
    let seen = Seen::default();
    (testing::outbox().handle(seen.handler(answer)).start().await.unwrap(), seen)
}

#[tokio::test(start_paused = true)]
async fn nothing_is_delivered_until_it_is_drained() {
    let (outbox, seen) = outbox(|_| Ok(())).await;
    place(&outbox, &["1", "2", "1"]).await;
    tokio::time::sleep(HOUR).await;
    assert_eq!(seen.orders(), Vec::<String>::new());
    let report = outbox.drain().await.unwrap();
    let ids: Vec<_> = report.delivered.iter().map(Event::id).collect();
    assert_eq!((ids.len(), report.failed.len(), report.dead.len()), (3, 0, 0));
    assert_eq!(seen.orders().len(), 3);
    assert_eq!(outbox.stats().await.unwrap().count(Status::Done), 3);
    assert!(outbox.drain().await.unwrap().delivered.is_empty());
}

#[tokio::test]
async fn a_drain_retries_without_waiting_until_events_are_done_or_dead() {
    let seen = Seen::default();
    let third_time = |meta: &Metadata| if meta.attempt() < 3 { Err(format!("no {}", meta.attempt())) } else { Ok(()) };
    let outbox =
        testing::outbox().handle(seen.handler(third_time)).retry(RetryPolicy::fixed(HOUR)).start().await.unwrap();
    place(&outbox, &["1"]).await;
    let report = tokio::time::timeout(HOUR / 2, outbox.drain()).await.unwrap().unwrap();
    assert_eq!(seen.attempts(), [1, 2, 3]);
    assert_eq!(report.delivered.len(), 1);
    let failed: Vec<_> = report.failed.iter().map(|run| (run.attempt, run.error.as_str())).collect();
    assert_eq!(failed, [(1, "no 1"), (2, "no 2")]);
}

#[tokio::test]
async fn a_failed_event_holds_back_its_key_in_a_drain_too() {
    let (outbox, seen) = outbox(|meta| if meta.is_retry() { Ok(()) } else { Err("not yet".into()) }).await;
    place(&outbox, &["1", "1", "1"]).await;
    assert_eq!(outbox.drain().await.unwrap().delivered.len(), 3);
    assert_eq!(seen.attempts(), [1, 2, 1, 2, 1, 2]);
}

#[tokio::test]
async fn what_is_dead_is_reported_once_with_its_last_error() {
    let seen = Seen::default();
    let hopeless = handler(seen.handler(|_| Err("hopeless".into()))).retry(RetryPolicy::fixed(HOUR).max_attempts(2));
    let outbox = testing::outbox().handle(hopeless).start().await.unwrap();
    place(&outbox, &["1"]).await;
    let report = outbox.drain().await.unwrap();
    assert_eq!((report.delivered.len(), report.failed.len(), report.dead.len()), (0, 2, 1));
    assert_eq!((report.dead[0].attempts, report.dead[0].error.as_str()), (2, "hopeless"));
    // It holds its key: what comes behind it waits, and a drain does not wait for it.
    place(&outbox, &["1", "2"]).await;
    let report = outbox.drain().await.unwrap();
    assert_eq!(report.dead.len(), 1);
    assert_eq!(seen.orders(), ["1", "1", "2", "2"]);
    outbox.dead().replay_all(&Query::default(), None, &Actor::new("a test")).await.unwrap();
    assert_eq!(outbox.drain().await.unwrap().failed.len(), 4);
}

#[tokio::test]
async fn an_event_without_a_handler_is_dead_and_an_outbox_without_any_writes() {
    let outbox = testing::outbox().start().await.unwrap();
    place(&outbox, &["1"]).await;
    assert_written!(outbox, OrderPlaced { order_id: "1", .. });
    let report = outbox.drain().await.unwrap();
    assert_eq!(report.dead.len(), 1);
    assert!(report.dead[0].error.contains("OrderPlaced"), "{:?}", report.dead);
}

#[tokio::test]
async fn what_handlers_write_is_delivered_by_the_same_drain() {
    let shipped = Arc::new(AtomicUsize::new(0));
    let (later, count) = (Arc::new(Mutex::new(None::<Outbox<MemoryStore>>)), shipped.clone());
    let of_handler = later.clone();
    let outbox = testing::outbox()
        .handle(move |placed: OrderPlaced| {
            let outbox = of_handler.lock().clone().unwrap();
            async move {
                let mut tx = outbox.begin().await.unwrap();
                tx.write(&OrderShipped { order_id: placed.order_id }).await.unwrap();
                tx.commit().await.unwrap();
            }
        })
        .handle(move |_: OrderShipped| {
            count.fetch_add(1, Ordering::Relaxed);
            async {}
        })
        .start()
        .await
        .unwrap();
    *later.lock() = Some(outbox.clone());
    place(&outbox, &["1", "2"]).await;
    assert_eq!(outbox.drain().await.unwrap().delivered.len(), 4);
    assert_eq!(shipped.load(Ordering::Relaxed), 2);
    assert_written!(outbox, OrderShipped { .. }, times = 2);
}

#[tokio::test]
async fn a_delay_lasts_until_the_clock_is_moved() {
    let (outbox, seen) = outbox(|_| Ok(())).await;
    let mut tx = outbox.begin().await.unwrap();
    tx.write(placed("1").to_event().deliver_after(HOUR)).await.unwrap();
    tx.commit().await.unwrap();
    assert!(outbox.drain().await.unwrap().delivered.is_empty());
    outbox.advance(Duration::from_mins(59));
    assert!(outbox.drain().await.unwrap().delivered.is_empty());
    outbox.advance(Duration::from_mins(1));
    assert_eq!(outbox.drain().await.unwrap().delivered.len(), 1);
    assert_eq!(seen.orders(), ["1"]);
}

#[tokio::test]
async fn a_step_is_one_attempt() {
    let (outbox, seen) = outbox(|meta| if meta.is_retry() { Ok(()) } else { Err("not yet".into()) }).await;
    place(&outbox, &["1"]).await;
    assert_eq!(outbox.step().await.unwrap().failed.len(), 1);
    assert!(outbox.step().await.unwrap().delivered.is_empty(), "it is not due");
    outbox.advance(Duration::from_mins(1));
    assert_eq!(outbox.step().await.unwrap().delivered.len(), 1);
    assert_eq!(seen.attempts(), [1, 2]);
}

#[tokio::test]
async fn handlers_that_wait_run_side_by_side() {
    let barrier = Arc::new(tokio::sync::Barrier::new(3));
    let meet = barrier.clone();
    let outbox = testing::outbox()
        .handle(move |_: OrderPlaced| {
            let meet = meet.clone();
            async move {
                meet.wait().await;
            }
        })
        .start()
        .await
        .unwrap();
    place(&outbox, &["1", "2", "3"]).await;
    assert_eq!(outbox.drain().await.unwrap().delivered.len(), 3);
}

#[tokio::test]
async fn what_is_put_off_for_ever_is_an_error_that_names_it() {
    let outbox = testing::outbox()
        .handle(|_: OrderPlaced| async { Outcome::RetryAfter(Duration::from_secs(5)) })
        .start()
        .await
        .unwrap();
    place(&outbox, &["1"]).await;
    let error = format!("{:?}", outbox.drain().await.unwrap_err());
    assert!(error.starts_with("an event was delivered 300 times in one drain\n  OrderPlaced "), "{error}");
    assert!(error.contains("with key \"1\": RETRY, no failed attempts"), "{error}");
}

#[tokio::test]
async fn handlers_are_registered_as_the_application_does_it() {
    fn register<S: Store, M: mode::Delivers>(outbox: Builder<S, M>) -> Builder<S, M> {
        outbox.handle(|_: OrderPlaced| async {}).handle_every(|_: Delivery| async {})
    }
    let outbox = testing::outbox().with(register).start().await.unwrap();
    place(&outbox, &["1"]).await;
    assert_eq!(outbox.drain().await.unwrap().delivered.len(), 1);
    outbox.shutdown().await;
    let error = format!("{:?}", outbox.drain().await.unwrap_err());
    assert!(error.contains("shut down"), "{error}");
}

#[tokio::test]
async fn a_crash_loses_the_outcome_and_the_event_comes_again() {
    let (outbox, seen) = outbox(|_| Ok(())).await;
    outbox.crash_after_handler();
    assert!(!outbox.drain().await.unwrap().crashed, "no handler has run");
    place(&outbox, &["1", "2"]).await;
    let report = outbox.drain().await.unwrap();
    assert_eq!((report.crashed, report.delivered.len(), report.lost.len()), (true, 0, 2));
    assert_eq!(outbox.stats().await.unwrap().count(Status::New), 2);
    let report = outbox.drain().await.unwrap();
    assert_eq!((report.crashed, report.delivered.len(), report.lost.len()), (false, 2, 0));
    assert_eq!(seen.attempts(), [1, 1, 1, 1], "a crash is no failed attempt");
    let tokens: Vec<_> = seen.0.lock().iter().filter(|(order, ..)| order == "1").map(|(.., token)| *token).collect();
    assert!(tokens[0] < tokens[1], "its partition has changed hands: {tokens:?}");
}

#[tokio::test]
async fn another_outbox_on_the_store_takes_over_after_a_crash() {
    let (outbox, seen) = outbox(|_| Ok(())).await;
    place(&outbox, &["1"]).await;
    outbox.crash_after_handler();
    assert!(outbox.drain().await.unwrap().crashed);
    let next = testing::outbox_on(outbox.store().clone()).handle(seen.handler(|_| Ok(()))).start().await.unwrap();
    assert_eq!(next.drain().await.unwrap().delivered.len(), 1);
    assert_eq!(seen.orders(), ["1", "1"]);
    // And back: they take turns.
    place(&next, &["2"]).await;
    assert_eq!(outbox.drain().await.unwrap().delivered.len(), 1);
}

#[tokio::test]
async fn a_crash_keeps_the_attempts_that_had_failed_before() {
    let (outbox, seen) = outbox(|meta| if meta.is_retry() { Ok(()) } else { Err("not yet".into()) }).await;
    place(&outbox, &["1"]).await;
    outbox.step().await.unwrap();
    outbox.crash_after_handler();
    assert!(outbox.drain().await.unwrap().crashed);
    assert_eq!(outbox.drain().await.unwrap().delivered.len(), 1);
    assert_eq!(seen.attempts(), [1, 2, 2]);
}

#[tokio::test]
async fn an_event_whose_process_dies_of_it_again_and_again_is_dead() {
    let (outbox, seen) = outbox(|_| Ok(())).await;
    place(&outbox, &["1"]).await;
    // The first time it is nobody's suspect; then three starts are counted.
    for _ in 0..4 {
        outbox.crash_after_handler();
        assert!(outbox.drain().await.unwrap().crashed);
    }
    let report = outbox.drain().await.unwrap();
    assert_eq!((report.crashed, report.delivered.len(), report.dead.len()), (false, 0, 1));
    assert_eq!(seen.attempts(), [1, 1, 1, 1]);
}

#[tokio::test]
async fn a_drain_that_is_dropped_is_a_crash() {
    let (begun, seen) = (Arc::new(tokio::sync::Notify::new()), Seen::default());
    let (told, hangs) = (begun.clone(), Arc::new(AtomicUsize::new(1)));
    let then = seen.handler(|_| Ok(()));
    let outbox = testing::outbox()
        .handle(move |placed: OrderPlaced, meta: Metadata| {
            let answer = then(placed, meta);
            let hang = hangs.swap(0, Ordering::Relaxed) == 1;
            told.notify_one();
            async move {
                if hang {
                    std::future::pending::<()>().await;
                }
                answer.await
            }
        })
        .start()
        .await
        .unwrap();
    place(&outbox, &["1"]).await;
    tokio::select! {
        _ = outbox.drain() => panic!("it hangs"),
        () = begun.notified() => {}
    }
    assert_eq!(outbox.drain().await.unwrap().delivered.len(), 1);
    assert_eq!(seen.orders(), ["1", "1"]);
}

#[tokio::test]
async fn twice_runs_every_event_twice_in_a_row() {
    let seen = Seen::default();
    let outbox = testing::outbox().handle(seen.handler(|_| Ok(()))).twice().start().await.unwrap();
    place(&outbox, &["1", "2", "1", "3"]).await;
    let report = outbox.drain().await.unwrap();
    assert_eq!((report.delivered.len(), report.lost.len()), (4, 4));
    assert_eq!(seen.orders(), ["1", "1", "2", "2", "1", "1", "3", "3"]);
    assert_eq!(outbox.stats().await.unwrap().count(Status::Done), 4);
}

#[tokio::test]
async fn twice_runs_what_a_handler_writes_twice_as_well() {
    let (seen, later) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(None::<Outbox<MemoryStore>>)));
    let (of_orders, of_payments, writes) = (seen.clone(), seen.clone(), later.clone());
    let outbox = testing::outbox()
        .handle(move |placed: OrderPlaced| {
            of_orders.lock().push(placed.order_id);
            let outbox = writes.lock().clone().unwrap();
            async move {
                let mut tx = outbox.begin().await.unwrap();
                // Without a key it goes to the workers as soon as it is committed.
                tx.write(&Payment::Taken { cents: 7 }).await.unwrap();
                tx.commit().await.unwrap();
            }
        })
        .handle(move |_: Payment, meta: Metadata| {
            of_payments.lock().push(meta.id().to_string());
            async {}
        })
        .twice()
        .start()
        .await
        .unwrap();
    *later.lock() = Some(outbox.clone());
    place(&outbox, &["1"]).await;
    let report = outbox.drain().await.unwrap();
    let payments: Vec<_> = report.delivered[1..].iter().map(|event| event.id().to_string()).collect();
    let [first, second] = &payments[..] else { panic!("{payments:?}") };
    let one = String::from("1");
    assert_eq!(*seen.lock(), [&one, &one, first, first, second, second].map(Clone::clone));
}

#[tokio::test]
async fn twice_runs_failures_twice_too_and_counts_each_attempt_once() {
    let seen = Seen::default();
    let flaky = seen.handler(|meta| if meta.is_retry() { Ok(()) } else { Err("not yet".into()) });
    let outbox = testing::outbox().handle(flaky).twice().start().await.unwrap();
    place(&outbox, &["1", "2"]).await;
    let report = outbox.drain().await.unwrap();
    assert_eq!((report.delivered.len(), report.failed.len()), (2, 2));
    let of = |wanted: &str| {
        let seen = seen.0.lock();
        seen.iter().filter(|(order, ..)| order == wanted).map(|(_, attempt, _)| *attempt).collect::<Vec<_>>()
    };
    assert_eq!((of("1"), of("2")), (vec![1, 1, 2, 2], vec![1, 1, 2, 2]));
}

#[tokio::test]
async fn a_handler_that_is_not_idempotent_is_found_and_both_states_are_shown() {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let (mails, snapshot) = (sent.clone(), sent.clone());
    let outbox = testing::outbox()
        .handle(move |placed: OrderPlaced| {
            mails.lock().push(placed.order_id);
            async {}
        })
        .twice_comparing(move || std::future::ready(snapshot.lock().clone()))
        .start()
        .await
        .unwrap();
    place(&outbox, &["1"]).await;
    let error = format!("{:?}", outbox.drain().await.unwrap_err());
    let (head, states) = error.split_once('\n').unwrap();
    assert!(head.starts_with("a second run of its handlers has changed the state, for OrderPlaced "), "{error}");
    let wanted = "after the first run: [\n    \"1\",\n]\nafter the second run: [\n    \"1\",\n    \"1\",\n]";
    assert_eq!(states, wanted);
}

#[tokio::test]
async fn a_handler_that_is_idempotent_passes_also_behind_events_that_change_the_state() {
    let shipped = Arc::new(Mutex::new(std::collections::BTreeSet::new()));
    let (effect, snapshot) = (shipped.clone(), shipped.clone());
    let outbox = testing::outbox()
        .handle(move |placed: OrderPlaced| {
            effect.lock().insert(placed.order_id);
            async {}
        })
        .twice_comparing(move || {
            let snapshot = snapshot.clone();
            async move { snapshot.lock().clone() }
        })
        .start()
        .await
        .unwrap();
    place(&outbox, &["1", "2", "3", "2"]).await;
    assert_eq!(outbox.drain().await.unwrap().delivered.len(), 4);
    assert_eq!(shipped.lock().len(), 3);
}

/// The text with which an assertion fails.
async fn failure(assertion: impl Future<Output = ()>) -> String {
    let panic = AssertUnwindSafe(assertion).catch_unwind().await.expect_err("it must fail");
    *panic.downcast::<String>().expect("a text")
}

#[tokio::test]
async fn assertions_pass_by_the_fields_that_are_named() {
    let outbox = testing::outbox().start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.write(&OrderPlaced { note: Some("a gift".into()), ..placed("7") }).await.unwrap();
    tx.write(&Payment::Taken { cents: 7 }).await.unwrap();
    tx.commit().await.unwrap();
    let order_id = String::from("7");
    assert_written!(outbox, OrderPlaced { order_id: "7", .. });
    assert_written!(outbox, OrderPlaced { order_id, .. });
    assert_written!(outbox, OrderPlaced { order_id: order_id.clone(), total_cents: 4_200_u16 });
    assert_written!(outbox, OrderPlaced { note: Some("a gift") }, times = 1);
    assert_written!(outbox, OrderPlaced { .. }, times = 1,);
    assert_written!(outbox, Payment::Taken { cents: 3 + 4 },);
    assert_not_written!(outbox, Payment::Refused { .. });
    assert_not_written!(outbox, OrderPlaced { order_id: "8", .. });
    assert_not_written!(outbox, OrderShipped);
    assert_eq!(outbox.written::<OrderPlaced>().await.unwrap().len(), 1);
}

#[tokio::test]
async fn assertions_see_what_is_committed_whatever_became_of_it() {
    let (outbox, _) = outbox(|_| Ok(())).await;
    let mut tx = outbox.begin().await.unwrap();
    tx.write(&placed("1")).await.unwrap();
    assert_not_written!(outbox, OrderPlaced);
    tx.rollback().await.unwrap();
    assert_not_written!(outbox, OrderPlaced);
    place(&outbox, &["1"]).await;
    assert_written!(outbox, OrderPlaced { order_id: "1" }, times = 1);
    outbox.drain().await.unwrap();
    assert_written!(outbox, OrderPlaced { order_id: "1" }, times = 1);
}

#[tokio::test]
async fn an_assertion_that_fails_shows_what_was_written_instead() {
    let outbox = testing::outbox().start().await.unwrap();
    let text = failure(async { assert_written!(outbox, OrderPlaced { order_id: "7", .. }) }).await;
    assert_eq!(
        text,
        "assert_written: no such event was written\n  asked for: OrderPlaced { order_id: \"7\", .. }\n  \
         written: nothing, in transactions that are committed"
    );

    let mut tx = outbox.begin().await.unwrap();
    tx.write(&OrderShipped { order_id: "7".into() }).await.unwrap();
    tx.write(&OrderShipped { order_id: "8".into() }).await.unwrap();
    tx.write(&Payment::Refused { why: "empty".into() }).await.unwrap();
    tx.commit().await.unwrap();
    let text = failure(async { assert_written!(outbox, OrderPlaced { .. }) }).await;
    assert_eq!(
        text,
        "assert_written: no such event was written\n  asked for: OrderPlaced { .. }\n  \
         written: none of this type, but 2 of OrderShipped, 1 of Refused"
    );
    let text = failure(async { assert_written!(outbox, Payment::Taken { cents: 7 }) }).await;
    assert_eq!(
        text,
        "assert_written: no such event was written\n  asked for: Payment::Taken { cents: 7, .. }\n  \
         written of this type:\n    Refused {\"Refused\":{\"why\":\"empty\"}}"
    );

    place(&outbox, &["8", "7"]).await;
    let wanted = OrderPlaced { total_cents: 1, ..placed("7") };
    let text = failure(async {
        assert_written!(outbox, OrderPlaced { order_id: "7", total_cents: wanted.total_cents });
    });
    assert_eq!(
        text.await,
        "assert_written: no such event was written\n  \
         asked for: OrderPlaced { order_id: \"7\", total_cents: 1, .. }\n  written of this type:\n    \
         OrderPlaced {\"orderId\":\"8\",\"totalCents\":4200,\"note\":null}\n      \
         order_id is \"8\", and not \"7\"\n      total_cents is 4200, and not 1\n    \
         OrderPlaced {\"orderId\":\"7\",\"totalCents\":4200,\"note\":null}\n      total_cents is 4200, and not 1"
    );
}

#[tokio::test]
async fn an_assertion_that_counts_says_how_many_there_are() {
    let outbox = testing::outbox().start().await.unwrap();
    place(&outbox, &["7", "8"]).await;
    let text = failure(async { assert_written!(outbox, OrderPlaced { order_id: "7", .. }, times = 2) }).await;
    assert_eq!(
        text,
        "assert_written: written 1 times, and not 2\n  asked for: OrderPlaced { order_id: \"7\", .. }\n  \
         written of this type:\n    \
         OrderPlaced {\"orderId\":\"7\",\"totalCents\":4200,\"note\":null}  <- as asked for\n    \
         OrderPlaced {\"orderId\":\"8\",\"totalCents\":4200,\"note\":null}\n      order_id is \"8\", and not \"7\""
    );
    let text = failure(async { assert_not_written!(outbox, OrderPlaced) }).await;
    assert!(
        text.starts_with("assert_not_written: written 2 times, and not wanted\n  asked for: OrderPlaced { .. }\n"),
        "{text}"
    );
    let text = failure(async { assert_not_written!(outbox, OrderPlaced { order_id: "8" }) }).await;
    assert!(text.starts_with("assert_not_written: written 1 times, and not wanted\n"), "{text}");
}

#[tokio::test]
async fn a_payload_that_can_not_be_read_is_no_match_and_is_shown() {
    let outbox = testing::outbox().start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.write(Event::builder("OrderShipped").aggregate("Order", "7").json(&7)).await.unwrap();
    tx.commit().await.unwrap();
    let text = failure(async { assert_written!(outbox, OrderShipped { .. }) }).await;
    assert!(text.contains("\n    OrderShipped 7\n      it can't be read: "), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_running_outbox_is_waited_for() {
    let seen = Seen::default();
    let handler = seen.handler(|meta| if meta.is_retry() { Ok(()) } else { Err("not yet".into()) });
    let outbox = Outbox::single_node(MemoryStore::virtual_time())
        .handle(handler)
        .heartbeat_on(pillarbox_core::engine::Heartbeat::SharedRuntime)
        .start()
        .await
        .unwrap();
    place(&outbox, &["1", "2"]).await;
    let mut tx = outbox.begin().await.unwrap();
    tx.write(placed("3").to_event().deliver_after(HOUR)).await.unwrap();
    tx.commit().await.unwrap();
    outbox.drain_within(Duration::from_secs(30)).await.unwrap();
    let mut orders = seen.orders();
    orders.sort();
    assert_eq!(orders, ["1", "1", "2", "2"], "and not the one that is not due");
    assert_written!(outbox, OrderPlaced { .. }, times = 3);
    outbox.shutdown().await;
}

#[tokio::test]
async fn what_a_running_outbox_does_not_deliver_in_time_is_named() {
    let seen = Seen::default();
    let outbox = Outbox::single_node(MemoryStore::new())
        .handle(seen.handler(|_| Err("the carrier is closed".into())))
        .retry(RetryPolicy::fixed(HOUR))
        .start()
        .await
        .unwrap();
    place(&outbox, &["1"]).await;
    while outbox.stats().await.unwrap().count(Status::Retry) == 0 {
        tokio::task::yield_now().await;
    }
    let error = outbox.drain_within(Duration::from_millis(20)).await.unwrap_err().to_string();
    assert!(error.starts_with("not everything was delivered within 20ms\n  OrderPlaced "), "{error}");
    assert!(error.contains("with key \"1\": RETRY, 1 failed attempt, due in "), "{error}");
    assert!(error.ends_with("last error: the carrier is closed"), "{error}");
    outbox.shutdown().await;
}

#[tokio::test]
async fn a_dead_head_and_what_it_holds_are_not_waited_for() {
    let outbox = Outbox::single_node(MemoryStore::new())
        .handle(|_: OrderPlaced| async { Err::<(), _>("no") })
        .retry(RetryPolicy::never())
        .start()
        .await
        .unwrap();
    place(&outbox, &["1", "1"]).await;
    outbox.drain_within(Duration::from_secs(30)).await.unwrap();
    let stats = outbox.stats().await.unwrap();
    assert_eq!((stats.count(Status::Dead), stats.count(Status::New)), (1, 1));
    outbox.shutdown().await;
}

#[tokio::test]
async fn a_running_outbox_on_the_same_store_is_not_disturbed() {
    let store = MemoryStore::new();
    let running = Outbox::single_node(store.another_process()).handle(|_: OrderPlaced| async {}).start().await.unwrap();
    let outbox = testing::outbox_on(store).handle(|_: OrderPlaced| async {}).start().await.unwrap();
    let error = outbox.drain().await.unwrap_err();
    assert!(matches!(error, testing::DrainError::Outbox(OutboxError::Setting(_))), "{error:?}");
    running.shutdown().await;
    place(&outbox, &["1"]).await;
    assert_eq!(outbox.drain().await.unwrap().delivered.len(), 1);
}

/// The crash table: until the settle, nothing is known of what handlers and fallbacks have done; after it, what has
/// succeeded is not run again.
#[tokio::test]
async fn a_crash_before_the_settle_runs_handlers_and_fallback_again_and_one_after_it_only_the_rest() {
    let said = Arc::new(Mutex::new(Vec::new()));
    let say = |name: &'static str, answer: fn(&Metadata) -> Result<(), &'static str>| {
        let said = said.clone();
        move |_: OrderPlaced, meta: Metadata| {
            said.lock().push(name);
            std::future::ready(answer(&meta))
        }
    };
    let take = || std::mem::take(&mut *said.lock());
    let asked = said.clone();
    let ask = move |_: OrderPlaced| {
        asked.lock().push("ask");
        std::future::ready(())
    };
    let outbox = testing::outbox()
        .handle(handler(say("ship", |_| Ok(()))).id("ship"))
        .handle(handler(say("mail", |_| Err("no address"))).id("mail").retry(RetryPolicy::never()).fallback(ask))
        .start()
        .await
        .unwrap();
    place(&outbox, &["1"]).await;
    outbox.crash_after_handler();
    assert!(outbox.drain().await.unwrap().crashed);
    assert_eq!(take(), ["ship", "mail", "ask"]);
    assert_eq!(outbox.drain().await.unwrap().delivered.len(), 1);
    assert_eq!(take(), ["ship", "mail", "ask"], "none of it was settled");

    let fails_once: fn(&Metadata) -> _ = |meta| if meta.is_retry() { Ok(()) } else { Err("busy") };
    let outbox = testing::outbox()
        .handle(handler(say("ship", |_| Ok(()))).id("ship"))
        .handle(handler(say("mail", fails_once)).id("mail"))
        .start()
        .await
        .unwrap();
    place(&outbox, &["2"]).await;
    outbox.step().await.unwrap();
    assert_eq!(take(), ["ship", "mail"]);
    outbox.crash_after_handler();
    assert!(outbox.drain().await.unwrap().crashed);
    assert_eq!(outbox.drain().await.unwrap().delivered.len(), 1);
    assert_eq!(take(), ["mail", "mail"], "that ship has had its part is in the row");
}

/// A transactional handler of the store in memory that notes the order, and counts its runs.
fn notes(runs: &Arc<AtomicUsize>) -> impl EventInTx<MemoryStore, (OrderPlaced,)> + use<> {
    let runs = runs.clone();
    move |mut work: Work<MemoryStore>, placed: OrderPlaced| {
        runs.fetch_add(1, Ordering::Relaxed);
        async move {
            work.put("notes", &*placed.order_id);
            work.write(&OrderShipped { order_id: placed.order_id }).await.map(drop)
        }
    }
}

#[tokio::test]
async fn a_crash_rolls_the_work_of_a_transactional_handler_back_and_the_next_drain_does_it() {
    let (runs, store) = (Arc::default(), MemoryStore::new());
    let outbox = testing::outbox_on(store.clone()).handle_in_tx(notes(&runs)).handle(|_: OrderShipped| async {});
    let outbox = outbox.start().await.unwrap();
    place(&outbox, &["1"]).await;
    outbox.crash_after_handler();
    let report = outbox.drain().await.unwrap();
    assert!(report.crashed && report.delivered.is_empty() && report.lost.len() == 1);
    assert_eq!((store.table("notes").len(), runs.load(Ordering::Relaxed)), (0, 1));
    assert_not_written!(outbox, OrderShipped);
    assert_eq!(outbox.drain().await.unwrap().delivered.len(), 2);
    assert_eq!((store.table("notes").len(), runs.load(Ordering::Relaxed)), (1, 2));
    assert_written!(outbox, OrderShipped { order_id: "1" });
}

#[tokio::test]
async fn a_transactional_handler_that_is_run_twice_has_its_effect_once() {
    let (runs, store) = (Arc::<AtomicUsize>::default(), MemoryStore::new());
    let (seen, looked) = (store.clone(), runs.clone());
    let builder = || testing::outbox_on(store.clone()).handle_in_tx(notes(&runs)).handle(|_: OrderShipped| async {});
    let outbox = builder().twice_comparing(move || std::future::ready(seen.table("notes"))).start().await.unwrap();
    place(&outbox, &["1"]).await;
    assert_eq!(outbox.drain().await.unwrap().delivered.len(), 2);
    assert_eq!((store.table("notes").len(), runs.load(Ordering::Relaxed)), (1, 3));
    // What it does outside of its transaction is seen.
    let counting = builder().twice_comparing(move || std::future::ready(looked.load(Ordering::Relaxed)));
    let counting = counting.start().await.unwrap();
    place(&counting, &["2"]).await;
    assert!(matches!(counting.drain().await, Err(testing::DrainError::NotIdempotent { .. })));
}

#[tokio::test]
async fn a_drain_runs_batch_handlers() {
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let noted = sizes.clone();
    let index = move |batch: Vec<Batched<OrderPlaced>>| {
        noted.lock().push(batch.len());
        async {}
    };
    let outbox = testing::outbox().handle_batch(10, index).start().await.unwrap();
    place(&outbox, &["1", "2", "3"]).await;
    assert_eq!(outbox.drain().await.unwrap().delivered.len(), 3);
    assert_eq!(*sizes.lock(), [3]);
}

#[tokio::test]
async fn a_handler_that_keeps_its_work_has_failed() {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keeps = kept.clone();
    let keep = move |work: Work<MemoryStore>, _: OrderPlaced| {
        keeps.lock().push(work);
        async {}
    };
    let outbox = testing::outbox().handle_in_tx(in_tx(keep).retry(RetryPolicy::never())).start().await.unwrap();
    place(&outbox, &["1"]).await;
    let report = outbox.drain().await.unwrap();
    assert!(report.dead[0].error.contains("has kept its `Work`"), "{:?}", report.dead);
    assert_eq!(kept.lock().len(), 1);
}

#[tokio::test]
async fn a_transactional_or_batch_handler_is_alone_on_its_route() {
    let runs = Arc::default();
    let tx = || testing::outbox().handle_in_tx(in_tx(notes(&runs)).id("notes"));
    let many = || batch(10, |_: Vec<Batched<OrderPlaced>>| async {}).id("many");
    let one = || handler(|_: OrderPlaced| async {}).id("one");
    for refused in [
        tx().handle(one()),
        testing::outbox().handle(one()).handle_in_tx(in_tx(notes(&runs)).id("notes")),
        tx().handle_in_tx(in_tx(notes(&runs)).id("again")),
        tx().with(|engine| engine.handle_every(|_: Delivery| async {})),
        testing::outbox().handle(many()).handle(one()),
        tx().handle(many()),
    ] {
        let error = refused.start().await.unwrap_err();
        assert!(matches!(error, OutboxError::NotAlone { .. }), "{error:?}");
        assert!(error.to_string().contains("into one handler"), "{error}");
    }
    tx().handle(|_: OrderShipped| async {}).start().await.unwrap();
}

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use pillarbox_core::{
    HandlerError, Metadata, Outbox, OutboxEvent,
    domain::{CircuitPolicy, Status},
    engine::{Failed, HandlerSet as _, IntoHandlers as _},
};
use pillarbox_macros::{OutboxEvent, handlers};
use pillarbox_testkit::MemoryStore;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core)]
struct Placed {
    number: u32,
}

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core)]
struct Paid {
    number: u32,
}

#[derive(Debug, thiserror::Error)]
#[error("closed")]
struct Closed;

#[derive(Default)]
struct Shop {
    said: Mutex<Vec<String>>,
}

impl Shop {
    fn say(&self, words: impl Into<String>) {
        self.said.lock().unwrap().push(words.into());
    }

    fn said(&self) -> Vec<String> {
        let mut said = self.said.lock().unwrap().clone();
        said.sort();
        said
    }
}

#[handlers(crate = pillarbox_core)]
#[allow(clippy::unused_async, reason = "handlers are async, whether they wait or not")]
impl Shop {
    #[handler]
    #[retry(fixed = "1ms", max_attempts = 3, jitter = 0, never_on(Closed))]
    async fn ship(&self, placed: Placed, metadata: Metadata) -> Result<(), Closed> {
        self.say(format!("ship {} by {}", placed.number, metadata.handler_id()));
        Err(Closed)
    }

    #[handler(id = "mail", timeout = "50ms")]
    #[retry(exponential = "1ms", multiplier = 3, max_delay = "2s", max_attempts = 2)]
    async fn mail(&self, placed: Placed) -> Result<(), Closed> {
        self.say(format!("mail {}", placed.number));
        std::future::pending().await
    }

    #[handler]
    async fn book(&self, paid: Paid) {
        self.say(format!("book {}", paid.number));
    }

    #[fallback]
    async fn ask(&self, placed: Placed, failed: Failed) {
        self.say(format!("ask about {} after {} of {}", placed.number, failed.failures(), failed.handler_id()));
    }

    #[fallback(of = mail)]
    async fn call(&self, placed: Placed) {
        self.say(format!("call about {}", placed.number));
    }

    /// Not a handler.
    #[allow(dead_code, reason = "it shows that others stay as they are")]
    async fn other(&self) {
        self.say("never");
    }
}

#[tokio::test]
async fn methods_are_handlers_with_their_retries_and_fallbacks() {
    let shop = Arc::new(Shop::default());
    let outbox = Outbox::single_node(MemoryStore::new()).handlers(shop.clone()).start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.write(&Placed { number: 7 }).await.unwrap();
    tx.write(&Paid { number: 8 }).await.unwrap();
    tx.commit().await.unwrap();
    while outbox.stats().await.unwrap().count(Status::Done) < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    outbox.shutdown().await;
    let by = concat!(module_path!(), "::Shop::ship");
    // What never succeeds is not tried again; what hangs is cut off and tried twice.
    let said = [
        format!("ask about 7 after 1 of {by}"),
        "book 8".to_owned(),
        "call about 7".to_owned(),
        "mail 7".to_owned(),
        "mail 7".to_owned(),
        format!("ship 7 by {by}"),
    ];
    assert_eq!(shop.said(), said);
}

#[test]
fn a_set_of_handlers_may_be_shared_or_given_away() {
    assert_eq!(format!("{:?}", Shop::handlers(Arc::default())), format!("{:?}", Shop::default().into_handlers()));
    assert_eq!(Placed::routes().len(), 1);
}

/// R5.
#[tokio::test]
async fn a_second_fallback_of_a_type_and_one_for_nobody_are_errors_at_the_start() {
    let outbox = || Outbox::single_node(MemoryStore::new()).handle(|_: Paid| async {}).fallback(|_: Paid| async {});
    outbox().start().await.unwrap().shutdown().await;
    let twice = outbox().fallback(|_: Paid, _: Failed| async {}).start().await.unwrap_err().to_string();
    assert!(twice.contains("two fallbacks") && twice.contains("Paid"), "{twice}");
    let lone = outbox().fallback(|_: Placed| async {}).start().await.unwrap_err().to_string();
    assert!(lone.contains("no handler takes") && lone.contains("Placed"), "{lone}");
}

/// Its first fifteen calls find nobody.
#[derive(Default)]
struct Carrier {
    calls: Mutex<u32>,
}

#[handlers(crate = pillarbox_core)]
#[allow(clippy::unused_async, reason = "handlers are async, whether they wait or not")]
impl Carrier {
    #[handler(destination = "carrier")]
    #[retry(fixed = "1ms", max_attempts = 2)]
    async fn ship(&self, _paid: Paid) -> Result<(), HandlerError> {
        let mut calls = self.calls.lock().unwrap();
        *calls += 1;
        if *calls > 15 { Ok(()) } else { Err(HandlerError::msg("nobody answers").unavailable()) }
    }
}

/// D14.
#[tokio::test]
async fn a_method_whose_destination_is_down_uses_up_no_attempts() {
    let store = MemoryStore::new();
    let span = Duration::from_millis(1);
    let circuit = CircuitPolicy { failures: 3, shortest: span, longest: span };
    let outbox = Outbox::single_node(store).circuit(circuit).handlers(Carrier::default()).start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.write(&Paid { number: 8 }).await.unwrap();
    tx.commit().await.unwrap();
    while outbox.stats().await.unwrap().count(Status::Done) < 1 {
        assert_eq!(outbox.stats().await.unwrap().count(Status::Dead), 0);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    outbox.shutdown().await;
}

static COUNTED: Mutex<Vec<String>> = Mutex::new(Vec::new());

#[allow(clippy::unused_async, reason = "handlers are async, whether they wait or not")]
async fn count<E: OutboxEvent>(event: E, metadata: Metadata) {
    drop(event);
    COUNTED.lock().unwrap().push(format!("{} by {}", metadata.event_type(), metadata.handler_id()));
}

/// H1: one function, a handler of each type that it is made for, under names of their own.
#[tokio::test]
async fn a_generic_function_is_a_handler_of_each_type_it_is_made_for() {
    let outbox = Outbox::single_node(MemoryStore::new()).handle(count::<Placed>).handle(count::<Paid>);
    let outbox = outbox.start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.write(&Placed { number: 7 }).await.unwrap();
    tx.write(&Paid { number: 8 }).await.unwrap();
    tx.commit().await.unwrap();
    while outbox.stats().await.unwrap().count(Status::Done) < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    outbox.shutdown().await;
    let mut counted = COUNTED.lock().unwrap().clone();
    counted.sort();
    assert!(counted[0].starts_with("Paid by Paid") && counted[1].starts_with("Placed by Placed"), "{counted:?}");
    assert_eq!(counted.len(), 2);
}

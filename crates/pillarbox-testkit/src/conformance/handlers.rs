//! Handlers over types, several of one event, fallbacks, and what reaches them.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use pillarbox_core::{
    HandlerError, Metadata, Outbox, OutboxEvent as _, RetryPolicy,
    domain::{CircuitPolicy, Former, Status},
    engine::{Builder, Context, Failed, HandlerExt as _, handler, mode},
    port::{Actor, AdminStore as _},
};
use pillarbox_macros::OutboxEvent;
use serde::{Deserialize, Serialize};

use super::{
    Backend,
    stage::{Stage, quick, write},
};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, OutboxEvent)]
#[outbox(
    crate = pillarbox_core,
    aggregate = "Order",
    aggregate_id = order,
    key = order,
    tenant = shop,
    context(channel = channel())
)]
struct Placed {
    order: String,
    shop: Option<String>,
}

impl Placed {
    fn channel(&self) -> &'static str {
        if self.order.is_empty() { "none" } else { "web" }
    }
}

fn placed(order: &str) -> Placed {
    Placed { order: order.into(), shop: Some("north".into()) }
}

/// What handlers have said, in order.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<String>>>);

impl Said {
    fn say(&self, words: impl Into<String>) {
        self.0.lock().push(words.into());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }

    /// A handler that says its name, and fails as often as told.
    fn handler(&self, name: &'static str, fails: usize) -> impl Fn(Placed) -> Answer + Send + Sync + 'static {
        let (said, left) = (self.clone(), Arc::new(Mutex::new(fails)));
        move |_: Placed| {
            said.say(name);
            let mut left = left.lock();
            let fails = *left > 0;
            *left -= usize::from(fails);
            std::future::ready(if fails { Err(HandlerError::msg(format!("{name} failed"))) } else { Ok(()) })
        }
    }
}

type Answer = std::future::Ready<Result<(), HandlerError>>;

async fn outbox<B: Backend>(stage: &Stage<B>) -> Builder<B::Store, mode::SingleNode> {
    Outbox::single_node(stage.backend.second_handle().await).retry(quick()).sample_every(Duration::from_hours(1))
}

/// H2, H5, C2: what the type says about the event reaches the handler, with the event itself.
pub async fn a_typed_handler_is_given_its_event_and_all_that_is_known_of_it<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let (said, seen) = (Said::default(), Arc::new(Mutex::new(Vec::new())));
    let heard = (said.clone(), seen.clone());
    let on_placed = move |placed: Placed, metadata: Metadata| {
        let (said, seen) = heard.clone();
        async move {
            said.say(format!("{placed:?}"));
            seen.lock().push(metadata.clone());
            if metadata.is_retry() { Ok(()) } else { Err("not at the first attempt") }
        }
    };
    let outbox = outbox(&stage).await.handle(handler(on_placed).id("ship")).start().await.expect("start");
    let mut tx = outbox.begin().await.expect("begin");
    let id = tx.write(&placed("7")).await.expect("write");
    tx.commit().await.expect("commit");
    stage.until_count(Status::Done, 1).await;
    outbox.shutdown().await;
    assert_eq!(said.take(), [format!("{:?}", placed("7")), format!("{:?}", placed("7"))]);
    let seen = seen.lock();
    for (metadata, attempt) in seen.iter().zip(1..) {
        assert_eq!((metadata.id(), metadata.attempt(), metadata.is_retry()), (id, attempt, attempt > 1));
        assert_eq!(metadata.key().map(|key| key.as_str().to_owned()), Some("7".to_owned()));
        assert_eq!((metadata.event_type().as_str(), metadata.aggregate_type().as_str()), ("Placed", "Order"));
        assert_eq!((metadata.aggregate_id(), metadata.tenant_id()), (Some("7"), Some("north")));
        assert_eq!((metadata.context("channel"), metadata.handler_id()), (Some("web"), "ship"));
        assert!(metadata.fencing_token().0 > 0);
    }
}

/// H3: several handlers of a type, then those of every event, in the order of their registration.
pub async fn handlers_of_the_type_run_first_and_each_as_registered<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let said = Said::default();
    let every = said.clone();
    let outbox = outbox(&stage)
        .await
        .handle_every(move |delivery: pillarbox_core::Delivery| {
            every.say(format!("audit {}", delivery.event().event_type()));
            async {}
        })
        .handle(handler(said.handler("ship", 0)).id("ship"))
        .handle(handler(said.handler("mail", 0)).id("mail"))
        .start()
        .await
        .expect("start");
    write(&outbox, [placed("7").to_event()]).await;
    stage.until_count(Status::Done, 1).await;
    write(&outbox, [super::stage::event()]).await;
    stage.until_count(Status::Done, 2).await;
    outbox.shutdown().await;
    assert_eq!(said.take(), ["ship", "mail", "audit Placed", "audit Happened"]);
}

/// H4: what has succeeded is not run again, at the next attempt or in the next process.
pub async fn a_retry_runs_only_the_handlers_that_have_not_succeeded<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let said = Said::default();
    let start = async |fails: usize, retry: RetryPolicy| {
        let builder = outbox(&stage).await.retry(retry);
        let ship = handler(said.handler("ship", fails)).id("ship");
        let builder = builder.handle(ship).handle(handler(said.handler("mail", 0)).id("mail"));
        builder.start().await.expect("start")
    };
    let once = start(1, quick()).await;
    write(&once, [placed("7").to_event()]).await;
    stage.until_count(Status::Done, 1).await;
    once.shutdown().await;
    assert_eq!(said.take(), ["ship", "mail", "ship"]);

    // The first process waits for long before its next attempt, and ends.
    let slow = RetryPolicy::fixed(Duration::from_millis(300)).jitter(0.0);
    let first = start(99, slow).await;
    write(&first, [placed("8").to_event()]).await;
    stage.until_count(Status::Retry, 1).await;
    first.shutdown().await;
    assert_eq!(said.take(), ["ship", "mail"]);
    let second = start(0, quick()).await;
    stage.until_count(Status::Done, 2).await;
    second.shutdown().await;
    assert_eq!(said.take(), ["ship"]);
}

/// H4, U4: a replay gives those another chance that have failed for good, and runs no other again.
pub async fn a_replay_runs_only_the_handlers_that_have_not_succeeded<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let said = Said::default();
    let outbox = outbox(&stage)
        .await
        .handle(handler(said.handler("ship", 1)).id("ship").retry(RetryPolicy::never()))
        .handle(handler(said.handler("mail", 1)).id("mail"))
        .start()
        .await
        .expect("start");
    let ids = write(&outbox, [placed("7").to_event()]).await;
    stage.until_count(Status::Dead, 1).await;
    // That which may be tried again is; that which may not is not.
    assert_eq!(said.take(), ["ship", "mail", "mail"]);
    let dead = stage.row(ids[0]).await.expect("it is kept");
    assert!(dead.last_error.as_deref().unwrap_or_default().contains("ship failed"), "{dead:?}");
    let replayed = stage.backend.store().replay(&[dead.seq], &Actor::new("test")).await.expect("replay");
    assert_eq!(replayed, [dead.seq]);
    stage.until_count(Status::Done, 1).await;
    outbox.shutdown().await;
    assert_eq!(said.take(), ["ship"]);
}

/// R4, C1, C2: after the last attempt the fallback runs once, and knows what has failed.
pub async fn a_fallback_runs_once_and_its_success_is_the_end<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let said = Said::default();
    let of_type = said.clone();
    let outbox = outbox(&stage)
        .await
        .context(|| Ok(Context::from_iter([("user", "ann"), ("channel", "is the event's own")])))
        .handle(handler(said.handler("ship", 99)).id("ship"))
        .fallback(move |placed: Placed, failed: Failed| {
            let words =
                [failed.handler_id(), &placed.order, &failed.error(), failed.context("user").unwrap_or("nobody")];
            of_type.say(format!("{} after {} of {:?}", words.join("; "), failed.failures(), failed.context("channel")));
            assert_eq!(failed.key().map(pillarbox_core::domain::Key::as_str), Some("7"));
            async {}
        })
        .start()
        .await
        .expect("start");
    let mut tx = outbox.begin().await.expect("begin");
    tx.write(&placed("7")).await.expect("write");
    tx.commit().await.expect("commit");
    stage.until_count(Status::Done, 1).await;
    outbox.shutdown().await;
    let said = said.take();
    assert_eq!(said[..3], ["ship", "ship", "ship"]);
    assert_eq!(said[3..], ["ship; 7; ship failed; ann after 3 of Some(\"web\")"]);
}

/// R4: an error that no other attempt can mend goes to the fallback at once; if that fails too, both errors are kept.
pub async fn a_fallback_that_fails_leaves_the_event_dead_with_both_errors<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let said = Said::default();
    let heard = said.clone();
    let refuse = move |_: Placed| {
        heard.say("ship");
        async { Err::<(), _>(HandlerError::msg("no such address").permanent()) }
    };
    let ship = handler(refuse).id("ship").fallback(|_: Placed| async { Err::<(), _>("the desk is closed") });
    let outbox = outbox(&stage).await.handle(ship).start().await.expect("start");
    let ids = write(&outbox, [placed("7").to_event()]).await;
    stage.until_count(Status::Dead, 1).await;
    outbox.shutdown().await;
    assert_eq!(said.take(), ["ship"]);
    let error = stage.row(ids[0]).await.expect("it is kept").last_error.expect("its errors are kept");
    assert!(error.contains("no such address") && error.contains("the desk is closed"), "{error}");
}

/// C4: a payload that is no such type is dead with the reason, at once, and blocks nobody.
pub async fn a_payload_that_can_not_be_read_is_dead_and_blocks_nobody<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let said = Said::default();
    let outbox = outbox(&stage).await.handle(handler(said.handler("ship", 0)).id("ship")).start().await.expect("start");
    let unread = pillarbox_core::Event::builder("Placed")
        .aggregate_type("Order")
        .json(&std::collections::BTreeMap::from([("number", 7)]));
    let foreign = pillarbox_core::Event::builder("Placed").aggregate_type("Order").bytes("text/csv", "7,north");
    let ids = write(&outbox, [unread, foreign, placed("7").to_event()]).await;
    stage.until_count(Status::Dead, 2).await;
    stage.until_count(Status::Done, 1).await;
    outbox.shutdown().await;
    assert_eq!(said.take(), ["ship"]);
    for (id, word) in ids.iter().zip(["order", "text/csv"]) {
        let dead = stage.row(*id).await.expect("it is kept");
        assert_eq!(dead.attempts, 0);
        assert!(dead.last_error.as_deref().unwrap_or_default().contains(word), "{dead:?}");
    }
}

/// What [`Priced`] was before it had a currency.
#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, type = "Priced")]
struct PricedBefore {
    cents: i64,
}

#[derive(Debug, Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, version = 2, upcast = Priced::from_former)]
struct Priced {
    cents: i64,
    currency: String,
}

impl Priced {
    fn from_former(former: Former<'_>) -> Result<Self, pillarbox_core::domain::CodecError> {
        assert_eq!(former.version(), 1);
        let PricedBefore { cents } = former.to()?;
        Ok(Self { cents, currency: "EUR".into() })
    }
}

/// C4: what was written with an older schema is read as the newer type; what is newer than the type is not guessed at.
pub async fn an_older_schema_is_read_as_the_newer_type<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let said = Said::default();
    let heard = said.clone();
    let on_priced = move |priced: Priced| {
        heard.say(format!("{} {}", priced.cents, priced.currency));
        async {}
    };
    let outbox = outbox(&stage).await.handle(on_priced).start().await.expect("start");
    let newer = Priced { cents: 3, currency: "USD".into() }.to_event().header("schema-version", "3");
    let ids = write(
        &outbox,
        [PricedBefore { cents: 1 }.to_event(), Priced { cents: 2, currency: "USD".into() }.to_event(), newer],
    )
    .await;
    stage.until_count(Status::Done, 2).await;
    stage.until_count(Status::Dead, 1).await;
    outbox.shutdown().await;
    let mut said = said.take();
    said.sort();
    assert_eq!(said, ["1 EUR", "2 USD"]);
    let error = stage.row(ids[2]).await.expect("it is kept").last_error.unwrap_or_default();
    assert!(error.contains("version 3"), "{error}");
}

/// H1, H4: raw handlers have ids, fallbacks and policies of their own, as typed ones have.
pub async fn a_raw_handler_has_a_fallback_and_an_id_of_its_own<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let said = Said::default();
    let (failing, caught) = (said.clone(), said.clone());
    let raw = move |delivery: pillarbox_core::Delivery| {
        failing.say(delivery.handler_id());
        async { Err::<(), _>("down") }
    };
    let raw = raw.with_id("raw").with_retry(RetryPolicy::never()).with_fallback(
        move |delivery: pillarbox_core::Delivery, failed: Failed| {
            caught.say(format!("{}: {}", delivery.handler_id(), failed.error()));
            async {}
        },
    );
    let outbox = outbox(&stage).await.route("Happened", raw).start().await.expect("start");
    write(&outbox, [super::stage::event()]).await;
    stage.until_count(Status::Done, 1).await;
    outbox.shutdown().await;
    assert_eq!(said.take(), ["raw", "raw: down"]);
}

/// D14: a destination that is down uses up no attempts and kills nothing; others go on, and when it is back, so do its
/// events, each key in order.
pub async fn a_destination_that_is_down_uses_up_no_attempts<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let (said, down) = (Said::default(), Arc::new(Mutex::new(true)));
    let (calls, state) = (said.clone(), down.clone());
    let ship = move |placed: Placed| {
        calls.say(&*placed.order);
        let down = *state.lock();
        async move { if down { Err(HandlerError::msg("no route to host").unavailable()) } else { Ok(()) } }
    };
    let circuit =
        CircuitPolicy { failures: 2, shortest: Duration::from_millis(50), longest: Duration::from_millis(100) };
    let outbox = outbox(&stage)
        .await
        .circuit(circuit)
        .retry(RetryPolicy::fixed(Duration::from_millis(1)).max_attempts(2))
        .handle(handler(ship).id("ship").destination("carrier"))
        .route("Happened", stage.probe.handler())
        .start()
        .await
        .expect("start");
    let ids = write(&outbox, (0..20).map(|order| placed(&format!("{:02}", order % 5)).to_event())).await;
    write(&outbox, [super::stage::event()]).await;
    stage.probe.wait_for(1).await;
    // Far longer than two attempts would take.
    tokio::time::sleep(Duration::from_millis(400)).await;
    let stats = outbox.stats().await.expect("stats");
    assert_eq!((stats.count(Status::Dead), stats.pending()), (0, 20));
    let calls = said.take().len();
    assert!(calls < 20, "{calls} calls to what is down");
    *down.lock() = false;
    stage.until_count(Status::Done, 21).await;
    outbox.shutdown().await;
    assert_eq!(said.take().len(), 20, "each once");
    for id in ids {
        assert_eq!(stage.row(id).await.expect("it is kept").attempts, 0);
    }
}

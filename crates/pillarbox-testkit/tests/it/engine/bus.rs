//! H7: the bus in the process.

use std::{error::Error, sync::Arc};

use parking_lot::Mutex;
use pillarbox_core::{
    Outbox,
    domain::Status,
    engine::{Bus, BusEvent, PublishError, Transaction, WriteError},
};
use pillarbox_macros::OutboxEvent;
use pillarbox_testkit::{
    Call, MemoryStore,
    testing::{self, assert_not_written, assert_written},
};
use serde::{Deserialize, Serialize};

use super::{DOWN, Stage, Store, UNKNOWN, telemetry::Tracer};

#[derive(Clone, Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, key = order)]
struct Placed {
    order: u32,
}

/// Not an event of the outbox.
#[derive(Clone)]
struct Loaded(&'static str);

impl BusEvent for Loaded {}

type Heard = Arc<Mutex<Vec<String>>>;

async fn open() -> Outbox<MemoryStore> {
    testing::outbox().start().await.unwrap().clone()
}

fn hears(heard: &Heard, what: &'static str) -> impl Fn(&str) + Clone + Send + Sync + 'static {
    let heard = heard.clone();
    move |words| heard.lock().push(format!("{what}: {words}"))
}

/// H7: both kinds of listeners hear both kinds of events, and only an event of the outbox is stored.
#[tokio::test]
async fn an_outbox_event_is_stored_and_heard_and_another_is_only_heard() {
    let heard = Heard::default();
    let (placed, loaded) = (hears(&heard, "placed"), hears(&heard, "loaded"));
    let (then_placed, then_loaded) = (hears(&heard, "then placed"), hears(&heard, "then loaded"));
    let bus = Bus::new()
        .after_commit(move |event: Placed| {
            then_placed(&event.order.to_string());
            async {}
        })
        .in_transaction(move |event: &Placed, tx: &mut Transaction<MemoryStore>| {
            placed(&event.order.to_string());
            tx.put("orders", event.order.to_string());
            Box::pin(async { Ok::<_, WriteError>(()) })
        })
        .in_transaction(move |event: &Loaded, _: &mut Transaction<MemoryStore>| {
            loaded(event.0);
            Box::pin(async { Ok::<_, WriteError>(()) })
        })
        .after_commit(move |event: Loaded| {
            then_loaded(event.0);
            async {}
        });
    let outbox = open().await;
    let mut tx = outbox.begin().await.unwrap();
    assert!(bus.publish(&mut tx, &Placed { order: 7 }).await.unwrap().is_some());
    assert!(bus.publish(&mut tx, &Loaded("prices")).await.unwrap().is_none());
    assert_eq!(*heard.lock(), ["placed: 7", "loaded: prices"]);
    tx.commit().await.unwrap();
    assert_eq!(heard.lock()[2..], ["then placed: 7", "then loaded: prices"]);
    assert_written!(outbox, Placed { order: 7 }, times = 1);
    assert_eq!(outbox.stats().await.unwrap().count(Status::New), 1);
    assert_eq!(outbox.store().table("orders"), ["7"], "a listener writes in the transaction");
}

/// H7: listeners of outbox events can be switched off; those of others can't.
#[tokio::test]
async fn a_bus_that_only_stores_tells_nobody_of_outbox_events() {
    let heard = Heard::default();
    let (placed, loaded) = (hears(&heard, "placed"), hears(&heard, "loaded"));
    let bus = Bus::<MemoryStore>::new()
        .after_commit(move |_: Placed| {
            placed("");
            async {}
        })
        .after_commit(move |event: Loaded| {
            loaded(event.0);
            async {}
        })
        .only_store(true);
    let outbox = open().await;
    let mut tx = outbox.begin().await.unwrap();
    bus.publish(&mut tx, &Placed { order: 7 }).await.unwrap();
    bus.publish(&mut tx, &Loaded("prices")).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(*heard.lock(), ["loaded: prices"]);
    assert_written!(outbox, Placed { order: 7 });
}

/// H7: an error in the transaction reaches the publisher, with its cause, and stops the listeners behind it.
#[tokio::test]
async fn a_listener_in_the_transaction_can_refuse_the_event() {
    let heard = Heard::default();
    let (never, nor) = (hears(&heard, "never"), hears(&heard, "nor"));
    let bus = Bus::new()
        .after_commit(move |_: Placed| {
            nor("");
            async {}
        })
        .in_transaction(|_: &Placed, _: &mut Transaction<MemoryStore>| Box::pin(async { Err("sold out") }))
        .in_transaction(move |_: &Placed, _: &mut Transaction<MemoryStore>| {
            never("");
            Box::pin(async { Ok::<_, WriteError>(()) })
        });
    let outbox = open().await;
    let mut tx = outbox.begin().await.unwrap();
    let error = bus.publish(&mut tx, &Placed { order: 7 }).await.unwrap_err();
    assert!(matches!(&error, PublishError::Listener { name, .. } if name.contains("refuse_the_event")), "{error:?}");
    assert_eq!(error.source().unwrap().to_string(), "sold out");
    drop(tx);
    assert_not_written!(outbox, Placed);

    // A publisher that commits all the same has the event, and its listeners have not heard of it.
    let mut tx = outbox.begin().await.unwrap();
    bus.publish(&mut tx, &Placed { order: 8 }).await.unwrap_err();
    tx.commit().await.unwrap();
    assert_written!(outbox, Placed { order: 8 });
    assert_eq!(*heard.lock(), Vec::<String>::new());
}

/// H7: after a commit nothing can be refused any more: errors and panics are logged, and the others are called.
#[tokio::test]
async fn errors_and_panics_after_the_commit_are_only_logged() {
    let (heard, tracer) = (Heard::default(), Tracer::new());
    let last = hears(&heard, "last");
    let bus = Bus::<MemoryStore>::new()
        .after_commit(|_: Placed| async { Err::<(), _>("the mail server is down") })
        .after_commit(|_: Placed| -> std::future::Ready<()> { panic!("before its first await") })
        .after_commit(|placed: Placed| async move { assert_eq!(placed.order, 0, "in its midst") })
        .after_commit(move |_: Placed| {
            last("");
            async {}
        });
    let outbox = open().await;
    let mut tx = outbox.begin().await.unwrap();
    bus.publish(&mut tx, &Placed { order: 7 }).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(*heard.lock(), ["last: "]);
    assert_eq!(tracer.that_say("a listener failed after the commit").len(), 1);
    assert_eq!(tracer.that_say("after a commit panicked").len(), 2);
}

/// H7: nobody hears of what did not happen, or may not have.
#[tokio::test(start_paused = true)]
async fn no_listener_runs_after_a_rollback_or_an_unknown_commit() {
    let (heard, stage) = (Heard::default(), Stage::new());
    let then = hears(&heard, "then");
    let bus = Bus::<Store>::new().after_commit(move |event: Placed| {
        then(&event.order.to_string());
        async {}
    });
    let outbox = stage.single().start().await.unwrap();
    let open = async |order| {
        let mut tx = outbox.begin().await.unwrap();
        bus.publish(&mut tx, &Placed { order }).await.unwrap();
        tx
    };
    drop(open(1).await);
    open(2).await.rollback().await.unwrap();
    stage.faults().fail(Call::Commit, 1, DOWN);
    open(3).await.commit().await.unwrap_err();
    stage.faults().lose(Call::Commit, 1, UNKNOWN);
    assert!(open(4).await.commit().await.unwrap_err().is_outcome_unknown());
    assert_eq!(*heard.lock(), Vec::<String>::new());
    open(5).await.commit().await.unwrap();
    assert_eq!(*heard.lock(), ["then: 5"]);
    outbox.shutdown().await;
}

/// H7: what can't be stored is not told either.
#[tokio::test(start_paused = true)]
async fn an_event_that_is_not_stored_is_not_heard() {
    let (heard, stage) = (Heard::default(), Stage::new());
    let placed = hears(&heard, "placed");
    let bus = Bus::<Store>::new().in_transaction(move |_: &Placed, _: &mut Transaction<Store>| {
        placed("");
        Box::pin(async { Ok::<_, WriteError>(()) })
    });
    let outbox = stage.single().start().await.unwrap();
    stage.faults().fail(Call::Insert, 1, DOWN);
    let mut tx = outbox.begin().await.unwrap();
    let error = bus.publish(&mut tx, &Placed { order: 7 }).await.unwrap_err();
    assert!(matches!(error, PublishError::Write(WriteError::Store(_))), "{error:?}");
    assert_eq!(*heard.lock(), Vec::<String>::new());
    outbox.shutdown().await;
}

/// H7: a clone has the listeners of the bus it was made of, and its own.
#[tokio::test]
async fn a_listener_that_is_added_to_a_clone_is_the_clones() {
    let heard = Heard::default();
    let (one, two) = (hears(&heard, "one"), hears(&heard, "two"));
    let first = Bus::<MemoryStore>::new().after_commit(move |event: Loaded| {
        one(event.0);
        async {}
    });
    let second = first.clone().after_commit(move |event: Loaded| {
        two(event.0);
        async {}
    });
    let outbox = open().await;
    for (bus, what) in [(&first, "a"), (&second, "b")] {
        let mut tx = outbox.begin().await.unwrap();
        bus.publish(&mut tx, &Loaded(what)).await.unwrap();
        tx.commit().await.unwrap();
    }
    assert_eq!(*heard.lock(), ["one: a", "one: b", "two: b"]);
}

//! Batch handlers: many events at once, and an answer for each.

use std::{collections::HashSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use pillarbox_core::{
    Event, HandlerError, Outbox, OutboxEvent as _, Outcome, RetryPolicy,
    domain::{CircuitPolicy, Status},
    engine::{Answers, Batched, Builder, batch, mode},
};
use pillarbox_macros::OutboxEvent;
use serde::{Deserialize, Serialize};

use super::{
    Backend,
    stage::{Stage, quick, write},
};

#[derive(Clone, Debug, Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, key = key)]
struct Ordered {
    key: String,
    name: String,
}

fn ordered(key: &str, name: &str) -> pillarbox_core::domain::EventBuilder {
    Ordered { key: key.into(), name: name.into() }.to_event()
}

/// The batches that a handler was given, each by the keys and names of its events.
#[derive(Clone, Default)]
struct Batches(Arc<Mutex<Vec<Vec<Named>>>>);

type Named = (String, String);

impl Batches {
    fn note(&self, batch: &[Batched<Ordered>]) {
        self.0.lock().push(batch.iter().map(|one| (one.event.key.clone(), one.event.name.clone())).collect());
    }

    fn all(&self) -> Vec<Named> {
        self.0.lock().iter().flatten().cloned().collect()
    }
}

/// A process with one worker, so that what waits comes together.
async fn process<B: Backend>(stage: &Stage<B>) -> Builder<B::Store, mode::SingleNode> {
    let builder = Outbox::single_node(stage.backend.second_handle().await).retry(quick()).workers(1);
    builder.sample_every(Duration::from_hours(1))
}

/// H8: each event has its own answer.
pub async fn a_batch_is_answered_for_event_by_event<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let batches = Batches::default();
    let seen = batches.clone();
    let index = move |batch: Vec<Batched<Ordered>>| {
        seen.note(&batch);
        async move {
            let answer = |one: &Batched<Ordered>| match (&*one.event.name, one.metadata.attempt()) {
                ("fails once", 1) => Err(HandlerError::msg("once")),
                ("never" | "caught", _) => Err(HandlerError::msg("not at all").permanent()),
                _ => Ok(Outcome::Done),
            };
            batch.iter().map(answer).collect::<Vec<_>>()
        }
    };
    let index = batch(10, index)
        .id("index")
        .fallback(|ordered: Ordered| async move { if ordered.name == "caught" { Ok(()) } else { Err("nor here") } });
    let outbox = process(&stage).await.handle(index).start().await.expect("start");
    let names = ["well", "fails once", "never", "caught", "also well"];
    let ids = write(&outbox, names.map(|name| ordered(name, name))).await;
    stage.until_count(Status::Done, 4).await;
    stage.until_count(Status::Dead, 1).await;
    outbox.shutdown().await;
    let all = batches.all();
    let runs = |name: &str| all.iter().filter(|(_, of)| of == name).count();
    assert_eq!(names.map(runs), [1, 2, 1, 1, 1]);
    assert!(batches.0.lock().iter().any(|batch| batch.len() > 1), "{all:?}");
    for (id, failures) in ids.iter().zip([0, 1, 1, 0, 0]) {
        let row = stage.row(*id).await.expect("it is kept");
        assert_eq!(row.attempts, failures, "{row:?}");
    }
}

/// H8, O1: never two events of one key at once, and each key in order; no more than asked for.
pub async fn a_batch_never_has_two_events_of_a_key<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let batches = Batches::default();
    let seen = batches.clone();
    let index = move |batch: Vec<Batched<Ordered>>| {
        seen.note(&batch);
        async {}
    };
    let outbox = process(&stage).await.workers(3).handle_batch(4, index).start().await.expect("start");
    let keys = ["a", "b", "c", "d", "e", "f", "g"];
    let all = (0..6).flat_map(|n| keys.map(|key| ordered(key, &n.to_string())));
    write(&outbox, all.collect::<Vec<_>>()).await;
    stage.until_count(Status::Done, 42).await;
    outbox.shutdown().await;
    for batch in &*batches.0.lock() {
        let distinct: HashSet<_> = batch.iter().map(|(key, _)| key).collect();
        assert!(distinct.len() == batch.len() && batch.len() <= 4, "{batch:?}");
    }
    let all = batches.all();
    for key in keys {
        let of_key: Vec<_> = all.iter().filter(|(of, _)| of == key).map(|(_, name)| &**name).collect();
        assert_eq!(of_key, ["0", "1", "2", "3", "4", "5"], "of {key}");
    }
}

/// H8, D10: what can't be told apart fails all of the batch, with clear words.
pub async fn a_panic_a_timeout_or_a_wrong_number_of_answers_fails_the_whole_batch<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let index = |batch: Vec<Batched<Ordered>>| async move {
        match &*batch[0].event.name {
            "panics" => panic!("boom"),
            "hangs" => std::future::pending().await,
            "refuses" => Err("not today"),
            _ => Ok(vec![(); batch.len() + 1]),
        }
    };
    let index = batch(10, index).timeout(Duration::from_millis(200)).retry(RetryPolicy::never());
    let outbox = process(&stage).await.handle(index).start().await.expect("start");
    let mut dead = 0;
    for (name, words) in
        [("panics", "boom"), ("hangs", "cut off"), ("refuses", "not today"), ("talks", "answer for each")]
    {
        let ids = write(&outbox, (0..3).map(|n| ordered(&format!("{name}{n}"), name))).await;
        dead += 3;
        stage.until_count(Status::Dead, dead).await;
        for id in ids {
            let row = stage.row(id).await.expect("it is kept");
            assert!(row.last_error.as_deref().unwrap_or_default().contains(words), "{row:?}");
            assert_eq!(row.attempts, 1);
        }
    }
    outbox.shutdown().await;
}

/// H8, C4: what can't be read goes dead alone, and never comes to the handler.
pub async fn a_payload_that_can_not_be_read_never_comes_to_a_batch<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let batches = Batches::default();
    let seen = batches.clone();
    let index = move |batch: Vec<Batched<Ordered>>| {
        seen.note(&batch);
        async { Answers::All(Ok(Outcome::Done)) }
    };
    let outbox = process(&stage).await.handle_batch(10, index).start().await.expect("start");
    let unread = |key: &str| Event::builder("Ordered").key(key).json(&7);
    let ids = write(&outbox, [unread("x"), ordered("a", "a"), unread("y"), ordered("b", "b")]).await;
    stage.until_count(Status::Dead, 2).await;
    stage.until_count(Status::Done, 2).await;
    // A batch of them alone is no call.
    write(&outbox, [unread("z")]).await;
    stage.until_count(Status::Dead, 3).await;
    outbox.shutdown().await;
    let mut names: Vec<_> = batches.all().into_iter().map(|(_, name)| name).collect();
    names.sort();
    assert_eq!(names, ["a", "b"]);
    assert!(batches.0.lock().iter().all(|batch| !batch.is_empty()));
    assert_eq!(stage.row(ids[0]).await.map(|row| row.attempts), Some(0));
}

/// H8, D14: a batch's destination that is down uses up no attempts; who was answered has his answer.
pub async fn a_batchs_destination_that_is_down_uses_up_no_attempts<B: Backend>() {
    let stage = Stage::<B>::new().await;
    let (batches, down) = (Batches::default(), Arc::new(Mutex::new(true)));
    let (seen, state) = (batches.clone(), down.clone());
    let index = move |batch: Vec<Batched<Ordered>>| {
        seen.note(&batch);
        let down = *state.lock();
        async move { if down { Err(HandlerError::msg("no route to host").unavailable()) } else { Ok(()) } }
    };
    let circuit =
        CircuitPolicy { failures: 2, shortest: Duration::from_millis(50), longest: Duration::from_millis(100) };
    let outbox =
        process(&stage).await.circuit(circuit).retry(RetryPolicy::fixed(Duration::from_millis(1)).max_attempts(2));
    let outbox = outbox.handle(batch(5, index).destination("search")).start().await.expect("start");
    let ids = write(&outbox, (0..10).map(|n| ordered(&n.to_string(), "x"))).await;
    // Far longer than two attempts would take.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(outbox.stats().await.expect("stats").pending(), 10);
    *down.lock() = false;
    stage.until_count(Status::Done, 10).await;
    outbox.shutdown().await;
    for id in ids {
        assert_eq!(stage.row(id).await.expect("it is kept").attempts, 0);
    }
}

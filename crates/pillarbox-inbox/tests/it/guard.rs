//! The guard.

use std::{sync::Arc, time::Duration};

use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use pillarbox_inbox::{Consumer, Error, Guard, Guarded, MemoryGuard};
use pillarbox_nats::{Bucket, Options};
use pillarbox_testkit::ManualClock;

use crate::support::{Seen, TOPIC, place};

#[tokio::test]
async fn hits_and_misses_are_counted() {
    let recorder = DebuggingRecorder::new();
    let shown = recorder.snapshotter();
    let guard = metrics::with_local_recorder(&recorder, || Guard::new(MemoryGuard::new()));
    for message in ["a", "b", "a", "a"] {
        guard.try_process("billing", message).await.unwrap();
    }
    let counted: Vec<_> = shown
        .snapshot()
        .into_vec()
        .into_iter()
        .map(|(key, _, _, value)| (key.key().name().to_owned(), value))
        .collect();
    for (name, value) in [("pillarbox_guard_hits_total", 2), ("pillarbox_guard_misses_total", 2)] {
        assert!(counted.contains(&(name.to_owned(), DebugValue::Counter(value))), "{counted:?}");
    }
}

#[tokio::test]
async fn a_mark_stands_for_an_hour_unless_told_otherwise() {
    let clock = Arc::new(ManualClock::new());
    let guard = Guard::new(MemoryGuard::with_clock(clock.clone()));
    assert!(guard.try_process("billing", "m").await.unwrap());
    clock.advance(Duration::from_mins(59));
    assert!(!guard.try_process("billing", "m").await.unwrap());
    clock.advance(Duration::from_mins(1));
    assert!(guard.try_process("billing", "m").await.unwrap());
    let guard = guard.ttl(Duration::from_secs(1));
    clock.advance(Duration::from_hours(1));
    assert!(guard.try_process("billing", "m").await.unwrap());
    clock.advance(Duration::from_secs(1));
    assert!(guard.try_process("billing", "m").await.unwrap());
}

#[tokio::test]
async fn work_that_fails_leaves_no_mark_and_work_that_succeeds_does() {
    let guard = Guard::new(MemoryGuard::new());
    let failed = guard.run("billing", "m", async { Err::<(), _>("no") }).await.unwrap();
    assert_eq!(failed, Err("no"));
    assert_eq!(guard.run("billing", "m", async { Ok::<_, ()>(7) }).await.unwrap(), Ok(Guarded::Done(7)));
    assert_eq!(guard.run("billing", "m", async { Ok::<_, ()>(8) }).await.unwrap(), Ok(Guarded::Already));
}

#[tokio::test]
async fn a_late_failure_does_not_free_what_another_has_marked_since() {
    let clock = Arc::new(ManualClock::new());
    let guard = Guard::new(MemoryGuard::with_clock(clock.clone()));
    let late = guard.run("billing", "m", async {
        clock.advance(Duration::from_hours(2));
        assert!(guard.try_process("billing", "m").await.unwrap());
        Err::<(), _>("late")
    });
    assert_eq!(late.await.unwrap(), Err("late"));
    assert!(!guard.try_process("billing", "m").await.unwrap());
}

#[tokio::test]
async fn names_that_can_not_be_stored_are_refused() {
    let guard = Guard::new(MemoryGuard::new());
    let long = "x".repeat(201);
    for (consumer, message) in [("", "m"), ("c", ""), (&*long, "m"), ("c", &*long)] {
        let error = guard.try_process(consumer, message).await.unwrap_err();
        assert!(matches!(error, Error::Name { .. }) && error.to_string().contains("1 to 200"), "{error}");
    }
}

#[tokio::test]
async fn a_guard_that_is_switched_off_lets_everything_pass() {
    let guard = Guard::new(MemoryGuard::new()).enabled(false);
    for _ in 0..2 {
        assert!(guard.try_process("billing", "m").await.unwrap());
    }
}

/// I3: what would keep every message waiting is told at the start.
#[tokio::test]
async fn a_guard_that_asks_for_a_time_its_store_does_not_have_is_refused_at_the_start() {
    let (broker, queue) = place();
    let bucket = || Options::new("nats://localhost").guard(Bucket::named("marks"), Duration::from_mins(5)).unwrap();
    let start = |guard: Guard| {
        let consumer = Consumer::builder("billing", broker.source(TOPIC, "billing"), queue.clone());
        consumer.guard(guard).handle(Seen::new().handler()).start()
    };
    let guard = Guard::new(bucket());
    let error = start(guard.clone()).await.unwrap_err().to_string();
    assert!(error.contains("ttl is 3600s") && error.contains("keeps marks for 300s"), "{error}");
    for good in [guard.clone().ttl(Duration::from_mins(5)), guard.enabled(false), Guard::new(MemoryGuard::new())] {
        start(good).await.unwrap().shutdown().await;
    }
}

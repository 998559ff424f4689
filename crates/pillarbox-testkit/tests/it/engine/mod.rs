//! The engine with scripted faults, on the store in memory. What holds on every store without a fault is in the
//! conformance suite; here are the races and the failures that only a script can bring about.

mod bus;
mod fault;
mod hand_over;
mod hooks;
mod interceptors;
mod late_commit;
mod lease;
mod panics;
mod queues;
mod race;
mod settings;
mod shutdown;
mod telemetry;

use std::time::Duration;

use pillarbox_core::{
    Event, Outbox, RetryPolicy,
    domain::{EventBuilder, EventId, Seq, Status},
    engine::{Builder, Heartbeat, mode},
    port::{AdminStore, Found, Query, StoreErrorKind},
};
use pillarbox_testkit::{Call, Faults, Faulty, MemoryStore, Probe};

const ROUTE: &str = "Happened";
const HOUR: Duration = Duration::from_hours(1);
const DOWN: StoreErrorKind = StoreErrorKind::Unavailable;
const UNKNOWN: StoreErrorKind = StoreErrorKind::OutcomeUnknown;

type Store = Faulty<MemoryStore>;

/// A database, its script, and a probe as the handler of every outbox on it.
struct Stage {
    store: Store,
    probe: Probe,
}

impl Stage {
    /// By tokio's timers, which most tests pause: then a second passes as fast as nobody has anything to do.
    fn new() -> Self {
        Self { store: Faulty::new(MemoryStore::virtual_time()), probe: Probe::new() }
    }

    /// The same database and probe in another process, with a script of its own.
    fn another_process(&self) -> Self {
        Self { store: Faulty::new(self.store.inner().another_process()), probe: self.probe.clone() }
    }

    fn faults(&self) -> &Faults {
        self.store.faults()
    }

    fn single(&self) -> Builder<Store, mode::SingleNode> {
        Outbox::single_node(self.store.clone())
            .route(ROUTE, self.probe.handler())
            .retry(quick())
            .heartbeat_on(Heartbeat::SharedRuntime)
            .sample_every(HOUR)
    }

    fn node(&self) -> Builder<Store, mode::MultiNode> {
        Outbox::multi_node(self.store.clone())
            .route(ROUTE, self.probe.handler())
            .retry(quick())
            .heartbeat_on(Heartbeat::SharedRuntime)
            .sample_every(HOUR)
    }

    /// Writes through a process that delivers nothing: its events are found by reading.
    async fn write_cold(&self, events: impl IntoIterator<Item = EventBuilder>) -> Vec<EventId> {
        let writer = Outbox::writer_only(self.another_process().store).start().await.unwrap();
        write(&writer, events).await
    }

    async fn row(&self, id: EventId) -> Found {
        let query = Query { id: Some(id), ..Query::default() };
        let mut rows = self.store.inner().list(&query, Seq(0), 2).await.unwrap().events;
        assert_eq!(rows.len(), 1, "rows of {id}");
        rows.remove(0)
    }

    async fn count(&self, status: Status) -> u64 {
        self.store.inner().stats().await.unwrap().count(status)
    }

    async fn until_count(&self, status: Status, count: u64) {
        for _ in 0..PATIENCE {
            if self.count(status).await == count {
                return;
            }
            pass(GLANCE).await;
        }
        panic!("waited for {count} rows in {status}, and there are {}", self.count(status).await);
    }

    /// Waits until so many more calls have begun.
    async fn calls(&self, call: Call, more: u64) {
        let wanted = self.faults().calls(call) + more;
        until(&format!("{more} more of {call:?}"), || self.faults().calls(call) >= wanted).await;
    }

    /// Waits until the reader has seen everything that is committed now.
    async fn read_through(&self) {
        // The page under way may have begun before.
        self.calls(Call::Page, 3).await;
    }
}

/// Panics when it is dropped.
struct Sore;

impl Drop for Sore {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "dropped");
    }
}

/// How often tests look, in virtual time, and how often before they give up: far longer than any lease.
const GLANCE: Duration = Duration::from_millis(20);
const PATIENCE: usize = 30_000;

async fn until(what: &str, mut check: impl FnMut() -> bool) {
    for _ in 0..PATIENCE {
        if check() {
            return;
        }
        pass(GLANCE).await;
    }
    panic!("waited for {what}");
}

/// Lets virtual time pass; whatever is due meanwhile happens.
async fn pass(span: Duration) {
    tokio::time::sleep(span).await;
}

fn event() -> EventBuilder {
    Event::builder(ROUTE).json(&1)
}

fn keyed(key: &str) -> EventBuilder {
    event().key(key)
}

fn quick() -> RetryPolicy {
    RetryPolicy::fixed(Duration::from_millis(10)).jitter(0.0).max_attempts(3)
}

async fn write(outbox: &Outbox<Store>, events: impl IntoIterator<Item = EventBuilder>) -> Vec<EventId> {
    let mut tx = outbox.begin().await.unwrap();
    let ids = tx.write_all(events).await.unwrap();
    tx.commit().await.unwrap();
    ids
}

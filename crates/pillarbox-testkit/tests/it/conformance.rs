//! The store in memory passes the exam.

use std::{sync::Arc, time::Duration};

use pillarbox_core::domain::Seq;
use pillarbox_testkit::{
    ManualClock, MemoryConnection, MemoryStore,
    conformance::{Backend, Executed},
};

/// For the cases about the store: time passes when they say so.
struct Memory {
    store: MemoryStore,
    clock: Arc<ManualClock>,
}

impl Backend for Memory {
    type Store = MemoryStore;

    async fn fresh() -> Self {
        let clock = Arc::new(ManualClock::new());
        let store = MemoryStore::with_clock(Arc::clone(&clock));
        Self { store, clock }
    }

    fn store(&self) -> &MemoryStore {
        &self.store
    }

    async fn second_handle(&self) -> MemoryStore {
        self.store.another_process()
    }

    async fn break_row(&self, seq: Seq) {
        assert!(self.store.break_row(seq));
    }

    async fn pass(&self, span: Duration) {
        self.clock.advance(span);
    }

    async fn add_work(connection: &mut MemoryConnection, value: String) -> Executed {
        connection.put("work", value);
        Ok(())
    }

    async fn work(&self) -> Vec<String> {
        let mut work = self.store.table("work");
        work.sort();
        work
    }
}

/// For the cases about the engine, whose loops run in real time.
struct InRealTime(MemoryStore);

impl Backend for InRealTime {
    type Store = MemoryStore;

    async fn fresh() -> Self {
        Self(MemoryStore::new())
    }

    fn store(&self) -> &MemoryStore {
        &self.0
    }

    async fn second_handle(&self) -> MemoryStore {
        self.0.another_process()
    }

    async fn break_row(&self, seq: Seq) {
        assert!(self.0.break_row(seq));
    }

    async fn pass(&self, span: Duration) {
        tokio::time::sleep(span).await;
    }

    async fn add_work(connection: &mut MemoryConnection, value: String) -> Executed {
        connection.put("work", value);
        Ok(())
    }

    async fn work(&self) -> Vec<String> {
        let mut work = self.0.table("work");
        work.sort();
        work
    }
}

pillarbox_testkit::conformance!(@store Memory);
pillarbox_testkit::conformance!(@engine InRealTime);

//! The stage of an engine case: outboxes on handles of their own, with a probe as their handler.

use std::time::Duration;

use pillarbox_core::{
    Event, Outbox, RetryPolicy,
    domain::{EventBuilder, EventId, Seq, Status},
    engine::{Builder, mode},
    port::{AdminStore, Found, Query, Store, TransactStore},
};

use super::Backend;
use crate::{Probe, patience};

/// The route of the events that cases write.
pub(super) const ROUTE: &str = "Happened";

pub(super) struct Stage<B: Backend> {
    pub(super) backend: B,
    pub(super) probe: Probe,
}

impl<B: Backend> Stage<B> {
    pub(super) async fn new() -> Self {
        Self { backend: B::fresh().await, probe: Probe::new() }
    }

    /// An outbox as one process would have it.
    pub(super) async fn single(&self) -> Builder<B::Store, mode::SingleNode> {
        Outbox::single_node(self.backend.second_handle().await)
            .route(ROUTE, self.probe.handler())
            .retry(quick())
            .sample_every(Duration::from_hours(1))
    }

    /// One of several nodes, with times that suit a test.
    pub(super) async fn node(&self) -> Builder<B::Store, mode::MultiNode> {
        Outbox::multi_node(self.backend.second_handle().await)
            .route(ROUTE, self.probe.handler())
            .retry(quick())
            .heartbeat(Duration::from_millis(100))
            .rebalance_every(Duration::from_millis(100))
            .stale_after(Duration::from_secs(2))
            .sample_every(Duration::from_hours(1))
    }

    /// The event of an id, as the table has it.
    pub(super) async fn row(&self, id: EventId) -> Option<Found> {
        let query = Query { id: Some(id), ..Query::default() };
        let mut listing = self.backend.store().list(&query, Seq(0), 2).await.expect("list");
        assert!(listing.events.len() < 2, "one id has two rows");
        listing.events.pop()
    }

    /// Waits until the table has as many rows in a status as said.
    pub(super) async fn until_count(&self, status: Status, count: u64) {
        let mut last = 0;
        let wait = async {
            loop {
                last = self.backend.store().stats().await.expect("stats").count(status);
                if last == count {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let came = patience::within(patience::PATIENCE, wait).await.is_some();
        assert!(came, "waited for {count} rows in {status}, and there were {last}");
    }
}

pub(super) fn event() -> EventBuilder {
    Event::builder(ROUTE).json(&1)
}

pub(super) fn keyed(key: &str) -> EventBuilder {
    event().key(key)
}

pub(super) fn quick() -> RetryPolicy {
    RetryPolicy::fixed(Duration::from_millis(10)).jitter(0.0).max_attempts(3)
}

/// Writes events in one transaction.
pub(super) async fn write<S: Store + TransactStore>(
    outbox: &Outbox<S>,
    events: impl IntoIterator<Item = EventBuilder>,
) -> Vec<EventId> {
    let mut tx = outbox.begin().await.expect("begin");
    let ids = tx.write_all(events).await.expect("write");
    tx.commit().await.expect("commit");
    ids
}

//! A service with an outbox, whose spans go to a collector.

use pillarbox_core::{
    Event, Outbox,
    engine::{Builder, mode::SingleNode},
    port::TransactStore,
};
use pillarbox_opentelemetry::{OpenTelemetry, Telemetry};
use pillarbox_testkit::MemoryStore;
use tracing::{Instrument as _, info_span, subscriber::DefaultGuard};
use tracing_subscriber::prelude::*;

use crate::collector::Collector;

/// Everything of it runs on the test's own thread, so that a subscriber of that thread sees it, and tests don't see each
/// other.
pub(crate) struct Shop {
    pub(crate) collector: Collector,
    pub(crate) telemetry: Telemetry,
    _subscriber: DefaultGuard,
}

impl Shop {
    pub(crate) fn new() -> Self {
        let collector = Collector::start();
        let telemetry = Telemetry::to(collector.endpoint()).service("shop").start().expect("telemetry");
        Self::of(collector, telemetry)
    }

    pub(crate) fn of(collector: Collector, telemetry: Telemetry) -> Self {
        let subscriber = tracing_subscriber::registry().with(telemetry.layer());
        Self { collector, telemetry, _subscriber: subscriber.set_default() }
    }

    /// An outbox that carries traces.
    pub(crate) fn builder() -> Builder<MemoryStore, SingleNode> {
        Outbox::single_node(MemoryStore::new()).tracer(OpenTelemetry::new())
    }

    /// Ends both, in this order.
    pub(crate) async fn close(&self, outbox: Outbox<MemoryStore>) {
        outbox.shutdown().await;
        self.telemetry.shutdown().await;
    }
}

pub(crate) fn placed() -> Event {
    Event::builder("OrderPlaced").json(&7).build().expect("an event")
}

/// Writes an event in a request.
pub(crate) async fn request<S: TransactStore>(outbox: &Outbox<S>, event: Event) {
    write(outbox, event).instrument(info_span!("request")).await;
}

pub(crate) async fn write<S: TransactStore>(outbox: &Outbox<S>, event: Event) {
    let mut tx = outbox.begin().await.expect("a transaction");
    tx.write(event).await.expect("to write");
    tx.commit().await.expect("to commit");
}

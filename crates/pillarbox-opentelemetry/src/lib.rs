//! OpenTelemetry for the outbox: one trace from the request through the table to the consumer, and metrics.
//!
//! Three parts, each of use without the others:
//!
//! | part | what it does |
//! |---|---|
//! | [`OpenTelemetry`] | given to [`Builder::tracer`](pillarbox_core::engine::Builder::tracer), it stores the trace of who writes an event in the event's headers, as W3C's `traceparent` and `tracestate`, and restores it around the handler and in a relay's messages |
//! | [`consumer_span`] | the span of who takes such a message from a broker |
//! | [`Telemetry`] | sends spans and metrics to a collector, by OTLP over HTTP, for programs that have no exporter yet |
//!
//! ```no_run
//! # use pillarbox_core::{Outbox, port::Store};
//! use pillarbox_opentelemetry::{OpenTelemetry, Telemetry};
//! use tracing_subscriber::prelude::*;
//!
//! # async fn on(store: impl Store) -> Result<(), Box<dyn std::error::Error>> {
//! let telemetry = Telemetry::to("http://localhost:4318").service("shop").start()?;
//! tracing_subscriber::registry().with(telemetry.layer()).init();
//! telemetry.install_metrics()?;
//!
//! let outbox = Outbox::single_node(store)
//!     .tracer(OpenTelemetry::new())
//! #   .handle_every(|_: pillarbox_core::Delivery| async {})
//!     // and handlers
//!     .start()
//!     .await?;
//! // ...
//! outbox.shutdown().await;
//! telemetry.shutdown().await;
//! # Ok(()) }
//! ```
//!
//! Programs with an exporter of their own need only the first: any subscriber with a layer of `tracing-opentelemetry` will do.

mod client;
mod telemetry;
mod tracer;

pub use telemetry::{Telemetry, TelemetryBuilder, TelemetryError};
pub use tracer::{OpenTelemetry, consumer_span};

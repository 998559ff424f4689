//! What a relay says of itself, on standard error and to a collector.

use std::io::{IsTerminal as _, stderr};

use pillarbox::opentelemetry::Telemetry;
use pillarbox_relay::config::{Log, LogFormat};
use tracing_subscriber::{EnvFilter, Layer, fmt, prelude::*};

use crate::error::Error;

/// Makes this process speak. The filter is the log's alone: spans are chosen by the telemetry.
pub(super) fn start(log: &Log, telemetry: Option<&Telemetry>) -> Result<(), Error> {
    let filter = std::env::var("RUST_LOG").ok().filter(|filter| !filter.is_empty());
    let filter = filter.as_deref().unwrap_or(&log.filter);
    let filter = EnvFilter::try_new(filter)
        .map_err(|error| Error::new(format!("log.filter: {filter:?} can't be read")).caused_by(error))?;
    let lines = fmt::layer().with_writer(stderr);
    let lines = match log.format {
        LogFormat::Text => lines.with_ansi(stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    tracing_subscriber::registry().with(telemetry.map(Telemetry::layer)).with(lines.with_filter(filter)).init();
    Ok(())
}

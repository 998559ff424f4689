//! What a handler needs and may be down: a broker, a service.

use std::{sync::Arc, time::Duration};

use metrics::Gauge;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    domain::{Circuit, Failure, Gate, Outcome},
    engine::settings::Settings,
    observe,
};

/// A destination that handlers share, with its circuit.
#[derive(Debug)]
pub(crate) struct Destination {
    name: Arc<str>,
    begun: Instant,
    circuit: Mutex<Circuit>,
    open: Gauge,
}

impl Destination {
    pub(super) fn new(name: Arc<str>, settings: &Settings) -> Self {
        let open = observe::circuit_open(&settings.metrics_prefix, &name);
        Self { name, begun: Instant::now(), circuit: Mutex::new(Circuit::new(settings.circuit)), open }
    }

    /// Asks to pass: a ticket to give back with the result, or how long to wait.
    pub(crate) fn enter(&self) -> Result<Ticket<'_>, Duration> {
        match self.circuit.lock().gate(self.begun.elapsed()) {
            Gate::Pass => Ok(Ticket { of: self, probes: false }),
            Gate::Probe => Ok(Ticket { of: self, probes: true }),
            Gate::Wait(span) => Err(span),
        }
    }
}

/// One delivery on its way to a destination.
#[derive(Debug)]
pub(crate) struct Ticket<'a> {
    of: &'a Destination,
    probes: bool,
}

impl Ticket<'_> {
    /// Tells how it went. How long to put the event off, if the destination is down.
    pub(crate) fn end(mut self, result: &Result<Outcome, Failure>) -> Option<Duration> {
        self.probes = false;
        let Destination { name, begun, circuit, open } = self.of;
        let mut circuit = circuit.lock();
        let Some(failure) = result.as_ref().err().filter(|failure| failure.is_unavailable()) else {
            if circuit.answered() {
                open.set(0.0);
                tracing::info!(destination = %name, "the destination answers again: its circuit is closed");
            }
            return None;
        };
        let was_open = circuit.is_open();
        let span = circuit.unavailable(begun.elapsed());
        if let (Some(span), false) = (span, was_open) {
            open.set(1.0);
            tracing::warn!(destination = %name, ?span, error = %failure, "the destination is down: its circuit is open, and its events wait without using up attempts");
        }
        span
    }
}

/// A probe that was dropped on its way leaves its turn to the next.
impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if self.probes {
            self.of.circuit.lock().gave_up(self.of.begun.elapsed());
        }
    }
}

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
    door: Mutex<Door>,
    open: Gauge,
}

/// Times are since the destination's beginning.
#[derive(Debug)]
struct Door {
    circuit: Circuit,
    /// When the destination wants to be asked again. It counts while the circuit is open.
    not_before: Duration,
}

impl Destination {
    pub(super) fn new(name: Arc<str>, settings: &Settings) -> Self {
        let open = observe::circuit_open(&settings.metrics_prefix, &name);
        let door = Door { circuit: Circuit::new(settings.circuit), not_before: Duration::ZERO };
        Self { name, begun: Instant::now(), door: Mutex::new(door), open }
    }

    /// How long whoever wants to pass now has to wait, if at all. Takes nobody's turn.
    pub(crate) fn wait(&self) -> Option<Duration> {
        self.door.lock().wait(self.begun.elapsed())
    }

    /// Asks to pass: a ticket to give back with the result, or how long to wait.
    pub(crate) fn enter(&self) -> Result<Ticket<'_>, Duration> {
        let mut door = self.door.lock();
        let now = self.begun.elapsed();
        if let Some(span) = door.wait(now) {
            return Err(span);
        }
        match door.circuit.gate(now) {
            Gate::Pass => Ok(Ticket { of: self, probes: false }),
            Gate::Probe => Ok(Ticket { of: self, probes: true }),
            Gate::Wait(span) => Err(span),
        }
    }
}

impl Door {
    fn wait(&self, now: Duration) -> Option<Duration> {
        if self.circuit.is_open() && now < self.not_before {
            return Some(self.not_before.saturating_sub(now));
        }
        self.circuit.wait(now)
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
        let failure = result.as_ref().err();
        // Nobody has asked it. A probe leaves its turn to the next.
        if failure.is_some_and(Failure::is_unsent) {
            return None;
        }
        let is_probe = std::mem::take(&mut self.probes);
        let Destination { name, begun, door, open } = self.of;
        let Door { circuit, not_before } = &mut *door.lock();
        let Some(failure) = failure.filter(|failure| failure.is_unavailable()) else {
            let was_open = circuit.is_open();
            if circuit.answered(is_probe) {
                // Whatever it has asked for, it answers: the wish would count again as soon as the circuit opened for another
                // reason.
                *not_before = Duration::ZERO;
                if was_open {
                    open.set(0.0);
                    tracing::info!(destination = %name, "the destination answers again: its circuit is closed");
                }
            }
            return None;
        };
        let (was_open, now) = (circuit.is_open(), begun.elapsed());
        let wish = failure.wish();
        *not_before = (*not_before).max(now.saturating_add(wish));
        let patience = not_before.saturating_sub(now);
        let span = circuit.unavailable(now, is_probe).map(|span| span.max(patience));
        if let (Some(span), false) = (span, was_open) {
            open.set(1.0);
            tracing::warn!(destination = %name, ?span, error = %failure, "the destination is down: its circuit is open, and its events wait without using up attempts");
        }
        // Not open yet: the others may try, and this one comes when it was told to.
        span.or((!wish.is_zero()).then_some(wish))
    }
}

/// A probe that was dropped on its way leaves its turn to the next.
impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if self.probes {
            self.of.door.lock().circuit.gave_up(self.of.begun.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{CircuitPolicy, HandlerError};

    fn destination() -> Destination {
        let second = Duration::from_secs(1);
        let circuit = CircuitPolicy { failures: 2, shortest: second, longest: second };
        Destination::new("broker".into(), &Settings { circuit, ..Settings::default() })
    }

    fn down() -> Result<Outcome, Failure> {
        Err(HandlerError::msg("nobody answers").unavailable().into())
    }

    fn unsent() -> Result<Outcome, Failure> {
        Err(HandlerError::msg("too large").permanent().unsent().into())
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_not_sent_neither_opens_nor_closes_a_circuit() {
        let destination = destination();
        let enter = || destination.enter().expect("to pass");
        assert_eq!(enter().end(&down()), None);
        for _ in 0..3 {
            assert_eq!(enter().end(&unsent()), None);
        }
        assert!(enter().end(&down()).is_some(), "the second in a row");
        assert!(destination.enter().is_err());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(enter().end(&unsent()), None);
        let probe = enter();
        assert!(destination.enter().is_err(), "it is open still");
        assert_eq!(probe.end(&Ok(Outcome::Done)), None);
        assert!(destination.enter().is_ok() && destination.enter().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_destination_is_left_alone_for_as_long_as_it_asks_within_reason() {
        for (wish, after) in [(10, 10), (86_400, 3_600)] {
            let destination = destination();
            let busy = HandlerError::msg("503").unavailable_for(Duration::from_secs(wish));
            let after = Duration::from_secs(after);
            for _ in 0..2 {
                let put_off = destination.enter().expect("to pass").end(&Err(busy.clone().into()));
                assert_eq!(put_off, Some(after));
            }
            assert_eq!((destination.wait(), destination.enter().expect_err("a wait")), (Some(after), after));
            tokio::time::advance(after).await;
            assert!(destination.enter().is_ok());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_under_way_when_a_circuit_opened_leaves_it_as_it_is() {
        let destination = destination();
        let enter = || destination.enter().expect("to pass");
        let under_way = [enter(), enter(), enter(), enter(), enter()];
        let [first, second, late, later, last] = under_way;
        let busy: Result<Outcome, Failure> =
            Err(HandlerError::msg("429").unavailable_for(Duration::from_mins(1)).into());
        first.end(&busy);
        assert_eq!(second.end(&busy), Some(Duration::from_mins(1)));
        assert_eq!(late.end(&Ok(Outcome::Done)), None);
        assert_eq!(destination.wait(), Some(Duration::from_mins(1)), "it asked to be left alone");
        tokio::time::advance(Duration::from_mins(1)).await;
        let probe = enter();
        assert_eq!(later.end(&Ok(Outcome::Done)), None);
        assert!(last.end(&down()).is_some());
        assert!(destination.enter().is_err(), "the probe is under way");
        assert_eq!(probe.end(&Ok(Outcome::Done)), None);
        assert!(destination.enter().is_ok() && destination.enter().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_destination_that_answers_is_taken_by_no_earlier_word() {
        let destination = destination();
        let enter = || destination.enter().expect("to pass");
        let hour = Duration::from_hours(1);
        let busy = || Err(HandlerError::msg("429").unavailable_for(hour).into());
        assert_eq!(enter().end(&busy()), Some(hour));
        assert_eq!(enter().end(&Ok(Outcome::Done)), None);
        // Once by an answer while it was closed, and once by the probe's.
        for _ in 0..2 {
            enter().end(&down());
            assert_eq!(enter().end(&down()), Some(Duration::from_secs(1)));
            tokio::time::advance(Duration::from_secs(1)).await;
            let probe = enter();
            assert_eq!(probe.end(&busy()), Some(hour));
            tokio::time::advance(hour).await;
            assert_eq!(enter().end(&Ok(Outcome::Done)), None);
        }
    }
}

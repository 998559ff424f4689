//! Whether a destination is worth a try: a broker, a service, whatever a handler needs and may not answer.
//!
//! Closed, everything passes. When it has been unavailable several times in a row, it opens: nothing is tried for a while,
//! and events are put off without using up an attempt. After that one of them is the probe; if it comes through, the circuit
//! is closed, and if not, it is open for longer.

use std::time::Duration;

/// When a circuit opens, and for how long.
///
/// ```
/// use std::time::Duration;
/// use pillarbox_core::domain::CircuitPolicy;
///
/// // A destination that is often away for a moment, and seldom for long.
/// let policy = CircuitPolicy { failures: 20, longest: Duration::from_secs(10), ..CircuitPolicy::default() };
/// assert!(policy.validate().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CircuitPolicy {
    /// How often in a row the destination is unavailable before the circuit opens. Default: 5.
    pub failures: u32,
    /// How long it is open the first time; twice as long each further time. Default: 1 s.
    pub shortest: Duration,
    /// How long it is open at the most. Default: 1 min.
    pub longest: Duration,
}

impl Default for CircuitPolicy {
    fn default() -> Self {
        Self { failures: 5, shortest: Duration::from_secs(1), longest: Duration::from_mins(1) }
    }
}

impl CircuitPolicy {
    /// Says what is wrong with the policy, if anything is.
    pub fn validate(&self) -> Result<(), String> {
        if self.failures == 0 {
            return Err("failures is 0: the least after which a circuit opens is 1".into());
        }
        if self.shortest.is_zero() {
            return Err("shortest is no time at all: an open circuit needs a while".into());
        }
        if self.longest < self.shortest {
            return Err(format!("longest is {:?}, and less than shortest, {:?}", self.longest, self.shortest));
        }
        Ok(())
    }
}

/// The circuit of one destination. Times are since any fixed point.
#[derive(Clone, Debug)]
pub struct Circuit {
    policy: CircuitPolicy,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Unavailable so often in a row.
    Closed { failures: u32 },
    /// For the how many-th time in a row.
    Open { until: Duration, times: u32 },
    /// One is on its way to find out.
    Probing { times: u32 },
}

/// What a circuit says to whoever wants to pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Go on.
    Pass,
    /// Go on, and tell how it went: all others wait for it.
    Probe,
    /// Not before this time has passed.
    Wait(Duration),
}

impl Circuit {
    /// A closed one.
    pub fn new(policy: CircuitPolicy) -> Self {
        Self { policy, state: State::Closed { failures: 0 } }
    }

    /// Whether it is not closed.
    pub fn is_open(&self) -> bool {
        !matches!(self.state, State::Closed { .. })
    }

    /// How long whoever asks now has to wait, if at all. Nobody is the probe by this.
    pub fn wait(&self, now: Duration) -> Option<Duration> {
        match self.state {
            State::Closed { .. } => None,
            State::Open { until, .. } => (now < until).then(|| until.saturating_sub(now)),
            // The probe decides soon; if it does not come back, `gave_up` tells.
            State::Probing { .. } => Some(self.policy.shortest),
        }
    }

    /// Asks to pass.
    pub fn gate(&mut self, now: Duration) -> Gate {
        if let Some(span) = self.wait(now) {
            return Gate::Wait(span);
        }
        match self.state {
            State::Closed { .. } => Gate::Pass,
            State::Open { times, .. } | State::Probing { times } => {
                self.state = State::Probing { times };
                Gate::Probe
            }
        }
    }

    /// The destination has answered; `true` if that says how it is now. Of an open circuit only its probe knows: an answer
    /// to what had passed before says how the destination was then.
    pub fn answered(&mut self, is_probe: bool) -> bool {
        let counts = is_probe || !self.is_open();
        if counts {
            self.state = State::Closed { failures: 0 };
        }
        counts
    }

    /// The destination was unavailable. How long it is open, if it is now.
    pub fn unavailable(&mut self, now: Duration, is_probe: bool) -> Option<Duration> {
        let times = match self.state {
            State::Closed { failures } if failures + 1 < self.policy.failures => {
                self.state = State::Closed { failures: failures + 1 };
                return None;
            }
            State::Closed { .. } => 1,
            State::Probing { times } if is_probe => times.saturating_add(1),
            // Those that had passed before it opened change nothing.
            State::Open { .. } | State::Probing { .. } => return Some(self.wait(now).unwrap_or_default()),
        };
        let factor = 2_u32.saturating_pow(times - 1);
        let span = self.policy.shortest.saturating_mul(factor).min(self.policy.longest);
        self.state = State::Open { until: now.saturating_add(span), times };
        Some(span)
    }

    /// A probe was dropped on its way: the next one may try.
    pub fn gave_up(&mut self, now: Duration) {
        if let State::Probing { times } = self.state {
            self.state = State::Open { until: now, times };
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn circuit() -> Circuit {
        Circuit::new(CircuitPolicy { failures: 2, shortest: SECOND, longest: SECOND * 3 })
    }

    #[test]
    fn it_opens_after_failures_in_a_row_and_closes_by_a_probe() {
        let mut circuit = circuit();
        assert_eq!(circuit.unavailable(SECOND, false), None);
        assert!(!circuit.is_open());
        assert!(circuit.answered(false));
        assert_eq!(circuit.unavailable(SECOND, false), None, "not in a row");
        assert_eq!(circuit.unavailable(SECOND, false), Some(SECOND));
        assert_eq!((circuit.wait(SECOND), circuit.gate(SECOND)), (Some(SECOND), Gate::Wait(SECOND)));
        assert_eq!(circuit.wait(SECOND * 2), None, "who only looks is not the probe");
        assert_eq!(circuit.gate(SECOND * 2), Gate::Probe);
        assert_eq!(circuit.gate(SECOND * 2), Gate::Wait(SECOND), "one probe at a time");
        assert_eq!(circuit.wait(SECOND * 2), Some(SECOND));
        assert!(circuit.answered(true));
        assert_eq!(circuit.gate(SECOND * 2), Gate::Pass);
    }

    #[test]
    fn it_is_open_twice_as_long_each_time_up_to_the_longest() {
        let mut circuit = circuit();
        circuit.unavailable(Duration::ZERO, false);
        let mut now = Duration::ZERO;
        // The first opens it, and each of the others is a probe.
        for span in [SECOND, SECOND * 2, SECOND * 3, SECOND * 3] {
            assert_eq!(circuit.unavailable(now, true), Some(span));
            now += span;
            assert_eq!(circuit.gate(now), Gate::Probe);
        }
        circuit.gave_up(now);
        assert_eq!(circuit.gate(now), Gate::Probe, "a probe that is dropped leaves its turn to the next");
    }

    #[test]
    fn those_that_had_passed_before_it_opened_neither_prolong_nor_close_it() {
        let mut circuit = circuit();
        circuit.unavailable(Duration::ZERO, false);
        circuit.unavailable(Duration::ZERO, false);
        assert_eq!(circuit.unavailable(SECOND / 2, false), Some(SECOND / 2));
        assert!(!circuit.answered(false));
        assert_eq!(circuit.wait(SECOND / 2), Some(SECOND / 2));
        assert_eq!(circuit.gate(SECOND), Gate::Probe);
        assert_eq!(circuit.unavailable(SECOND, false), Some(SECOND), "the probe decides");
        assert!(!circuit.answered(false));
        assert_eq!(circuit.gate(SECOND), Gate::Wait(SECOND), "one probe at a time");
        assert_eq!(circuit.unavailable(SECOND, true), Some(SECOND * 2));
    }

    proptest! {
        /// Whatever happens, somebody may try within the longest time, unless a probe is on its way.
        #[test]
        fn it_never_stays_shut(steps in proptest::collection::vec((0..6_u8, 0..5_000_u64), 0..60)) {
            let mut circuit = circuit();
            let mut now = Duration::ZERO;
            let mut probing = false;
            for (step, millis) in steps {
                now += Duration::from_millis(millis);
                match step {
                    0 => probing |= circuit.gate(now) == Gate::Probe,
                    // Of those that passed earlier, any number may be under way still.
                    1 => { circuit.answered(false); }
                    2 => { circuit.unavailable(now, false); }
                    3 if probing => { circuit.answered(true); probing = false; }
                    4 if probing => { circuit.unavailable(now, true); probing = false; }
                    5 if probing => { circuit.gave_up(now); probing = false; }
                    _ => {}
                }
            }
            if !probing {
                prop_assert!(!matches!(circuit.gate(now + SECOND * 3), Gate::Wait(_)));
            }
        }
    }
}

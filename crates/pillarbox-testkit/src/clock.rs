//! Clocks that tests steer.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::{Duration, SystemTime},
};

use pillarbox_core::{domain::Timestamp, port::Clock};
use tokio::time::Instant;

/// A clock that stands still until it is moved.
///
/// ```
/// use std::time::Duration;
/// use pillarbox_core::port::Clock;
/// use pillarbox_testkit::ManualClock;
///
/// let clock = ManualClock::new();
/// let before = clock.now();
/// clock.advance(Duration::from_secs(5));
/// assert_eq!(clock.now().since(before), Duration::from_secs(5));
/// ```
#[derive(Debug)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// A clock that shows the first second of 2026.
    pub fn new() -> Self {
        Self::at(Timestamp::from_micros(1_767_225_600_000_000))
    }

    /// A clock that shows this time.
    pub fn at(time: Timestamp) -> Self {
        Self(AtomicI64::new(time.as_micros()))
    }

    /// Moves it on.
    pub fn advance(&self, span: Duration) {
        let span = Timestamp::default().saturating_add(span).as_micros();
        self.0.fetch_add(span, Ordering::SeqCst);
    }

    /// Sets it, also back: the clocks of databases do go back.
    pub fn set(&self, time: Timestamp) {
        self.0.store(time.as_micros(), Ordering::SeqCst);
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
}

/// The time of tokio's timers: real, or virtual where a test has paused it.
#[derive(Debug)]
pub(crate) struct TimerClock {
    began: Timestamp,
    since: Instant,
}

impl TimerClock {
    /// A clock that shows the host's time now, and from then on goes as tokio's timers do.
    pub(crate) fn new() -> Self {
        Self { began: SystemTime::now().into(), since: Instant::now() }
    }
}

impl Clock for TimerClock {
    fn now(&self) -> Timestamp {
        self.began.saturating_add(self.since.elapsed())
    }
}

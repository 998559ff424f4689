//! The host's clock.

use std::{fmt::Debug, time::SystemTime};

use crate::domain::Timestamp;

/// Tells the host's time. It fills in `occurred_at` and nothing else: leases, due times and staleness use
/// the database's clock, because hosts differ.
pub trait Clock: Debug + Send + Sync {
    /// The time now.
    fn now(&self) -> Timestamp;
}

/// The operating system's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        SystemTime::now().into()
    }
}

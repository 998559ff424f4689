//! When each of many events came, noted in one process and told to another: the clock is the machine's.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::SystemTime,
};

use tokio::sync::Notify;

use crate::Result;

/// Nanoseconds by the clock that all processes of the machine have.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// The moment of each event, by its number from 0 on; the first one counts.
#[derive(Debug)]
pub(crate) struct Moments {
    at: Vec<AtomicU64>,
    missing: AtomicUsize,
    all: Notify,
}

impl Moments {
    pub(crate) fn new(events: usize) -> Self {
        Self {
            at: (0..events).map(|_| AtomicU64::new(0)).collect(),
            missing: AtomicUsize::new(events),
            all: Notify::new(),
        }
    }

    pub(crate) fn note(&self, number: usize, now: u64) {
        if let Some(at) = self.at.get(number)
            && at.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            && self.missing.fetch_sub(1, Ordering::AcqRel) == 1
        {
            self.all.notify_one();
        }
    }

    pub(crate) fn missing(&self) -> usize {
        self.missing.load(Ordering::Acquire)
    }

    /// Waits until none is missing; for one who waits.
    pub(crate) async fn all(&self) {
        self.all.notified().await;
    }

    /// As a line for another process.
    pub(crate) fn line(&self) -> String {
        let at: Vec<String> = self.at.iter().map(|at| at.load(Ordering::Relaxed).to_string()).collect();
        at.join(" ")
    }

    /// What another process has told.
    pub(crate) fn read(line: &str) -> Result<Vec<u64>> {
        line.split(' ').map(|number| Ok(number.parse()?)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_moment_of_each_event_is_told_when_all_have_one() {
        let moments = Moments::new(3);
        for (number, now) in [(2, 20), (0, 30), (2, 40), (7, 50)] {
            moments.note(number, now);
        }
        let early = tokio::time::timeout(std::time::Duration::from_millis(1), moments.all()).await;
        assert!(early.is_err(), "event 1 is missing");
        moments.note(1, 60);
        moments.all().await;
        assert_eq!(Moments::read(&moments.line()).unwrap(), [30, 60, 20]);
    }
}

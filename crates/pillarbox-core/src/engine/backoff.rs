//! Waiting longer and longer, with jitter.

use tokio::time::Duration;

/// Doubles from a shortest to a longest wait. Each wait is jittered by up to a quarter, so that nodes which
/// began together don't stay together.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(min: Duration, max: Duration) -> Self {
        Self { min, max, next: min }
    }

    /// The next wait; the one after it is twice as long, up to the longest.
    pub(crate) fn next(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(self.max);
        wait.mul_f64(0.75 + 0.25 * fastrand::f64())
    }

    /// Begins with the shortest wait again.
    pub(crate) fn reset(&mut self) {
        self.next = self.min;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_never_exceed_it() {
        let millis = Duration::from_millis;
        let mut backoff = Backoff::new(millis(10), millis(100));
        for full in [10, 20, 40, 80, 100, 100] {
            let wait = backoff.next();
            assert!(wait <= millis(full) && wait >= millis(full).mul_f64(0.75), "{wait:?} of {full} ms");
        }
        backoff.reset();
        assert!(backoff.next() <= millis(10));
    }
}

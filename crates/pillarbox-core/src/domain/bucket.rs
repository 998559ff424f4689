//! Buckets of time, in which an inbox keeps what it has seen.
//!
//! Time is cut into spans as long as the window, and each has a number. The ids of a span go into one of [`SLOTS`] tables, the
//! slot of its number. When a slot comes round again everything in it is older than the window, and was emptied as a whole:
//! nothing is deleted row by row.
//!
//! ```text
//!             <- the window ->
//!   emptied   looked up       written
//!   [   2   ] [     0       ] [  1      <- slots, the last one is now
//! ```
//!
//! More and shorter buckets would forget sooner after the window is over, and every message would be looked up in more tables.
//! So up to two windows of ids are kept, and each costs one lookup.

use std::time::Duration;

use super::Timestamp;

/// How many tables there are: one that is written, one that is looked up, and one that is emptied for the next span.
pub const SLOTS: usize = 3;

/// How time is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buckets {
    micros: i64,
}

/// The least window: a bucket must outlast every transaction.
pub const LEAST_WINDOW: Duration = Duration::from_mins(6);

impl Buckets {
    /// Buckets that remember at least this long; none if it is less than [`LEAST_WINDOW`].
    pub fn of_window(window: Duration) -> Option<Self> {
        let micros = i64::try_from(window.as_nanos().div_ceil(1_000)).ok()?;
        (window >= LEAST_WINDOW).then_some(Self { micros })
    }

    /// Buckets of this length, as they stand in a table.
    pub fn of_micros(micros: i64) -> Option<Self> {
        (micros > 0).then_some(Self { micros })
    }

    /// The length of a bucket, as it stands in a table.
    pub fn micros(self) -> i64 {
        self.micros
    }

    /// How long everything is remembered at least.
    pub fn window(self) -> Duration {
        Duration::from_micros(self.micros.unsigned_abs())
    }

    /// The number of the bucket of a time.
    pub fn number(self, now: Timestamp) -> i64 {
        now.as_micros().div_euclid(self.micros)
    }

    /// Whether a transaction that has entered something in the bucket before may still be open: for [`Self::longest`] of
    /// time. What is entered then is entered in both, so that the two meet.
    pub fn overlaps(self, now: Timestamp) -> bool {
        now.as_micros().rem_euclid(self.micros) < i64::try_from(self.longest().as_micros()).unwrap_or(i64::MAX)
    }

    /// How long a transaction may be open that has entered something: ten minutes, or half a bucket if that is less.
    pub fn longest(self) -> Duration {
        Duration::from_micros(self.micros.unsigned_abs() / 2).min(Duration::from_mins(10))
    }

    /// Whether it is time to empty the slot of the next bucket: a quarter of an hour or of the bucket away from either end of
    /// this one, so that a slow statement does not meet those who write.
    pub fn is_time_to_empty(self, now: Timestamp) -> bool {
        const AWAY: i64 = 15 * 60 * 1_000_000;
        let away = (self.micros / 4).min(AWAY);
        (away..self.micros - away).contains(&now.as_micros().rem_euclid(self.micros))
    }
}

/// The slot of a bucket.
pub fn slot(bucket: i64) -> usize {
    usize::try_from(bucket.rem_euclid(i64::try_from(SLOTS).unwrap_or(i64::MAX))).unwrap_or(0)
}

/// The slot of the bucket before: the other one in which an id may stand that is written to this one. The third is being
/// emptied.
pub fn before(written: usize) -> usize {
    (written + SLOTS - 1) % SLOTS
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_window_has_a_least_and_is_rounded_up() {
        assert_eq!(Buckets::of_window(Duration::from_secs(359)), None);
        assert_eq!(Buckets::of_window(LEAST_WINDOW).map(Buckets::window), Some(LEAST_WINDOW));
        let odd = Duration::from_hours(24) + Duration::from_nanos(1);
        assert!(Buckets::of_window(odd).is_some_and(|buckets| buckets.window() >= odd));
        assert_eq!(Buckets::of_micros(0), None);
    }

    proptest! {
        /// What was entered is looked up, or written again, throughout the window.
        #[test]
        fn whatever_was_entered_within_the_window_is_looked_up(
            window in 360_u64..10_000_000, entered in 0_i64..4_000_000_000_000_000, later in 0.0..=1.0_f64,
        ) {
            let buckets = Buckets::of_window(Duration::from_secs(window)).unwrap();
            let entered = Timestamp::from_micros(entered);
            let again = entered.saturating_add(Duration::from_secs(window).mul_f64(later));
            let (then, now) = (slot(buckets.number(entered)), slot(buckets.number(again)));
            prop_assert!(now == then || before(now) == then);
        }

        /// What is emptied is older than the window, and nobody looks into it.
        #[test]
        fn what_is_emptied_is_older_than_the_window(
            window in 360_u64..10_000_000, now in 4_000_000_000_000_000_i64..8_000_000_000_000_000, back in 0_i64..100,
        ) {
            let buckets = Buckets::of_window(Duration::from_secs(window)).unwrap();
            let current = buckets.number(Timestamp::from_micros(now));
            let emptied = slot(current + 1);
            prop_assert!(slot(current) != emptied && before(slot(current)) != emptied);
            let entered = current - back;
            if slot(entered) == emptied {
                let youngest = Timestamp::from_micros((entered + 1) * buckets.micros() - 1);
                prop_assert!(Timestamp::from_micros(now).since(youngest) >= Duration::from_secs(window));
            }
        }

        #[test]
        fn it_is_never_time_to_empty_near_a_change(micros in 4_i64..100_000_000_000, now in 0_i64..4_000_000_000_000_000) {
            let buckets = Buckets::of_micros(micros).unwrap();
            let now = Timestamp::from_micros(now);
            let away = Duration::from_micros((micros / 4).unsigned_abs()).min(Duration::from_mins(15));
            if buckets.is_time_to_empty(now) {
                prop_assert_eq!(buckets.number(now.saturating_sub(away)), buckets.number(now));
                prop_assert_eq!(buckets.number(now.saturating_add(away)), buckets.number(now));
            }
        }

        /// Also by a process that runs for some hours of the day.
        #[test]
        fn half_of_every_bucket_is_time_to_empty(micros in 4_i64..100_000_000_000, bucket in 0_i64..1_000) {
            let buckets = Buckets::of_micros(micros).unwrap();
            for part in [micros / 4, micros / 2, micros - micros / 4 - 1] {
                prop_assert!(buckets.is_time_to_empty(Timestamp::from_micros(bucket * micros + part)));
            }
        }
    }
}

//! Buckets of time, in which an inbox keeps what it has seen.
//!
//! Time is cut into spans of one length, and each has a number. The ids of a span go into one of [`SLOTS`] tables, the slot of
//! its number. When a slot comes round again everything in it is older than the window, and was emptied as a whole: nothing is
//! deleted row by row.
//!
//! ```text
//!            <--------------- the window --------------->
//!   emptied  looked up                                    written
//!   [  2  ]  [  3  ] [  4  ] [  5  ] [  6  ] [  7  ] [  0  ] [  1  ]   <- slots, the last one is now
//! ```

use std::time::Duration;

use super::Timestamp;

/// How many tables there are: one that is written, six that are looked up, and one that is emptied for the next span.
pub const SLOTS: usize = 8;

/// How a window is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buckets {
    micros: i64,
}

/// The least window: a bucket must outlast every transaction.
pub const LEAST_WINDOW: Duration = Duration::from_mins(6);

impl Buckets {
    /// Buckets that remember at least this long; none if it is less than [`LEAST_WINDOW`].
    pub fn of_window(window: Duration) -> Option<Self> {
        let spans = SLOTS as u128 - 2;
        let micros = i64::try_from(window.as_micros().div_ceil(spans)).ok()?;
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
        Duration::from_micros(self.micros.unsigned_abs().saturating_mul(SLOTS as u64 - 2))
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

    /// Whether it is time to empty the slot of the next bucket: in the middle of this one, far from either end, so that a
    /// slow statement does not meet those who write.
    pub fn is_time_to_empty(self, now: Timestamp) -> bool {
        let within = now.as_micros().rem_euclid(self.micros);
        (self.micros / 4..self.micros / 4 * 3).contains(&within)
    }
}

/// The slot of a bucket.
pub fn slot(bucket: i64) -> usize {
    usize::try_from(bucket.rem_euclid(i64::try_from(SLOTS).unwrap_or(i64::MAX))).unwrap_or(0)
}

/// The slots in which an id may stand that is written to this one: all but itself and the next, which is being emptied.
pub fn others(written: usize) -> impl Iterator<Item = usize> {
    (2..SLOTS).map(move |ahead| (written + ahead) % SLOTS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_window_has_a_least_and_is_rounded_up() {
        assert_eq!(Buckets::of_window(Duration::from_secs(359)), None);
        assert_eq!(Buckets::of_window(LEAST_WINDOW).map(Buckets::window), Some(LEAST_WINDOW));
        let odd = Duration::from_hours(24) + Duration::from_micros(1);
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
            prop_assert!(now == then || others(now).any(|other| other == then));
        }

        /// What is emptied is older than the window, and nobody looks into it.
        #[test]
        fn what_is_emptied_is_older_than_the_window(
            window in 360_u64..10_000_000, now in 4_000_000_000_000_000_i64..8_000_000_000_000_000, back in 0_i64..100,
        ) {
            let buckets = Buckets::of_window(Duration::from_secs(window)).unwrap();
            let current = buckets.number(Timestamp::from_micros(now));
            let emptied = slot(current + 1);
            prop_assert!(slot(current) != emptied && others(slot(current)).all(|other| other != emptied));
            let entered = current - back;
            if slot(entered) == emptied {
                let youngest = Timestamp::from_micros((entered + 1) * buckets.micros() - 1);
                prop_assert!(Timestamp::from_micros(now).since(youngest) >= Duration::from_secs(window));
            }
        }

        #[test]
        fn it_is_never_time_to_empty_near_a_change(micros in 4_i64..1_000_000, now in any::<i32>()) {
            let buckets = Buckets::of_micros(micros).unwrap();
            let now = Timestamp::from_micros(now.into());
            if buckets.is_time_to_empty(now) {
                let quarter = Duration::from_micros((micros / 4).unsigned_abs());
                prop_assert_eq!(buckets.number(now.saturating_sub(quarter)), buckets.number(now));
                prop_assert_eq!(buckets.number(now.saturating_add(quarter)), buckets.number(now));
            }
        }
    }
}

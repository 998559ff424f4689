//! Whether a batch of messages is worth the try that it lies clear of the bucket before.
//!
//! Ids that ascend with time do, but for what comes again; others never do. So a try that fails is followed by a pause, which
//! doubles as long as tries fail. The same holds of a read that saves time if it succeeds.

use std::sync::{Mutex, PoisonError};

/// For all consumers of an inbox. A mistake costs time, and nothing else.
#[derive(Debug, Default)]
pub(crate) struct Ahead(Mutex<Tries>);

#[derive(Debug, Default)]
struct Tries {
    /// The pause after the last try, in batches.
    pause: u32,
    /// What is left of it.
    left: u32,
}

/// The longest pause: of ids that never ascend one batch in this many is tried in vain.
const LONGEST: u32 = 63;

impl Ahead {
    /// Whether to try it with this batch.
    pub(super) fn is_worth_a_try(&self) -> bool {
        let mut tries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rested = tries.left == 0;
        tries.left = tries.left.saturating_sub(1);
        rested
    }

    /// What came of a try.
    pub(super) fn was_tried(&self, clear: bool) {
        let mut tries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tries.pause = if clear { 0 } else { (tries.pause * 2 + 1).min(LONGEST) };
        tries.left = tries.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many batches go by until one is tried.
    fn pause(ahead: &Ahead) -> usize {
        (0..=LONGEST).take_while(|_| !ahead.is_worth_a_try()).count()
    }

    #[test]
    fn a_pause_doubles_while_tries_fail_and_one_that_does_not_ends_it() {
        let ahead = Ahead::default();
        assert_eq!(pause(&ahead), 0);
        let pauses = [1, 3, 7, 15, 31, 63, 63].map(|_| {
            ahead.was_tried(false);
            pause(&ahead)
        });
        assert_eq!(pauses, [1, 3, 7, 15, 31, 63, 63]);
        ahead.was_tried(true);
        assert_eq!([pause(&ahead), pause(&ahead)], [0, 0]);
        ahead.was_tried(false);
        assert_eq!(pause(&ahead), 1);
    }
}

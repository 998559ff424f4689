//! What a process recalls of the bucket before the present one, so as not to look every message up in it.
//!
//! When nothing is entered in a bucket any more, what it has is read once, into a [`Bloom`] filter for each consumer. A message
//! that the filter does not know was never entered there; one that it may know is looked up. To read costs less than so many
//! lookups, so it is worth it only where messages are looked up: it waits for [`ENOUGH`] of them.

mod bloom;

use std::{collections::HashMap, sync::Arc, time::Duration};

pub use self::bloom::Bloom;
use super::Timestamp;

/// How many messages of a consumer are looked up in a bucket before it is read for him: some that come again are no reason.
pub const ENOUGH: usize = 200;

/// Of how many consumers a bucket is recalled. The messages of others are looked up.
pub const CONSUMERS: usize = 16;

/// The bucket before one bucket, by consumer.
#[derive(Debug, Default)]
pub struct Recollection {
    /// The one that follows it.
    bucket: i64,
    consumers: HashMap<Box<[u8]>, State>,
}

/// What is known of a consumer's messages.
#[derive(Debug)]
enum State {
    /// So many were looked up.
    Asked(usize),
    /// Somebody reads them. If that fails, this is the pause.
    Reading(Duration),
    /// That has failed, and the pause lasts until then.
    Failed(Timestamp, Duration),
    Read(Arc<Bloom>),
    TooMany,
}

/// The pause after the first failure. Each doubles it, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// What is recalled of a consumer's messages.
#[derive(Debug)]
pub enum Recalled {
    /// What this does not have is not in the bucket before.
    Known(Arc<Bloom>),
    /// Nothing, so they are looked up.
    Unknown,
    /// The same, and the caller has them read, and tells what came of it by [`Recollection::was_read`].
    Unread,
}

/// What came of a reading.
#[derive(Debug)]
pub enum Reading {
    /// Everything that the consumer has entered in the bucket before.
    Whole(Bloom),
    /// More than [`Bloom::MOST`].
    TooMany,
    /// It failed, or was not to be done now.
    Failed,
}

impl Recollection {
    /// What is recalled of the bucket before this one, for so many messages of a consumer. A former bucket is forgotten.
    pub fn recall(&mut self, bucket: i64, consumer: &[u8], messages: usize, now: Timestamp) -> Recalled {
        if self.bucket != bucket {
            *self = Self { bucket, consumers: HashMap::new() };
        }
        let Some(state) = self.consumers.get_mut(consumer) else {
            if self.consumers.len() < CONSUMERS {
                self.consumers.insert(consumer.into(), State::Asked(messages));
            }
            return Recalled::Unknown;
        };
        match state {
            State::Read(bloom) => Recalled::Known(Arc::clone(bloom)),
            State::Asked(asked) if *asked < ENOUGH => {
                *asked += messages;
                Recalled::Unknown
            }
            State::Asked(_) => {
                *state = State::Reading(FIRST_PAUSE);
                Recalled::Unread
            }
            State::Failed(until, pause) if now >= *until => {
                *state = State::Reading((*pause * 2).min(LONGEST_PAUSE));
                Recalled::Unread
            }
            State::Failed(..) | State::Reading(_) | State::TooMany => Recalled::Unknown,
        }
    }

    /// What came of the reading that was asked for. If the bucket has turned meanwhile, that is of no use.
    pub fn was_read(&mut self, bucket: i64, consumer: &[u8], reading: Reading, now: Timestamp) {
        let state = self.consumers.get_mut(consumer).filter(|_| self.bucket == bucket);
        let Some((state, pause)) = state.and_then(|state| match *state {
            State::Reading(pause) => Some((state, pause)),
            _ => None,
        }) else {
            return;
        };
        *state = match reading {
            Reading::Whole(bloom) => State::Read(Arc::new(bloom)),
            Reading::TooMany => State::TooMany,
            Reading::Failed => State::Failed(now.saturating_add(pause), pause),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BILLING: &[u8] = b"billing";

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn whole(id: &str) -> Reading {
        let mut bloom = Bloom::new();
        bloom.insert(id.as_bytes());
        Reading::Whole(bloom.shrunk())
    }

    /// One of which a reading is asked for, at second 0 of bucket 7.
    fn asked() -> Recollection {
        let mut recollection = Recollection::default();
        recollection.recall(7, BILLING, ENOUGH, at(0));
        assert!(matches!(recollection.recall(7, BILLING, 1, at(0)), Recalled::Unread));
        recollection
    }

    fn known(recollection: &mut Recollection, bucket: i64, consumer: &[u8]) -> Option<Arc<Bloom>> {
        match recollection.recall(bucket, consumer, 1, at(0)) {
            Recalled::Known(bloom) => Some(bloom),
            Recalled::Unknown | Recalled::Unread => None,
        }
    }

    #[test]
    fn a_reading_is_asked_for_once_and_after_enough_lookups() {
        let mut recollection = Recollection::default();
        for n in 0..ENOUGH {
            assert!(matches!(recollection.recall(7, BILLING, 1, at(0)), Recalled::Unknown), "{n}");
        }
        assert!(matches!(recollection.recall(7, BILLING, 1, at(0)), Recalled::Unread));
        for _ in 0..ENOUGH * 2 {
            assert!(matches!(recollection.recall(7, BILLING, 1, at(1_000)), Recalled::Unknown), "it is under way");
        }
    }

    #[test]
    fn what_was_read_is_recalled_of_this_consumer() {
        let mut recollection = asked();
        recollection.was_read(7, BILLING, whole("m-1"), at(1));
        let bloom = known(&mut recollection, 7, BILLING).unwrap();
        assert!(bloom.may_have(b"m-1") && !bloom.may_have(b"m-2"));
        assert!(known(&mut recollection, 7, b"shipping").is_none());
    }

    #[test]
    fn a_former_bucket_is_forgotten() {
        for other in [6, 8, 10] {
            let mut recollection = asked();
            recollection.was_read(7, BILLING, whole("m-1"), at(1));
            assert!(known(&mut recollection, other, BILLING).is_none(), "{other}");
            assert!(known(&mut recollection, 7, BILLING).is_none(), "and does not come back");
        }
    }

    #[test]
    fn a_reading_that_ends_after_the_turn_is_of_no_use() {
        let mut recollection = asked();
        recollection.recall(8, BILLING, ENOUGH, at(1));
        recollection.was_read(7, BILLING, whole("m-1"), at(2));
        assert!(known(&mut recollection, 8, BILLING).is_none(), "asked for by now");
        recollection.was_read(7, BILLING, whole("m-1"), at(2));
        assert!(known(&mut recollection, 8, BILLING).is_none());
    }

    #[test]
    fn after_a_failure_there_is_a_pause_which_doubles_up_to_a_minute() {
        let mut recollection = asked();
        let mut now = 0;
        for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
            recollection.was_read(7, BILLING, Reading::Failed, at(now));
            assert!(matches!(recollection.recall(7, BILLING, 500, at(now + pause - 1)), Recalled::Unknown), "{pause}");
            now += pause;
            assert!(matches!(recollection.recall(7, BILLING, 1, at(now)), Recalled::Unread), "{pause}");
        }
        recollection.was_read(7, BILLING, whole("m-1"), at(now));
        assert!(known(&mut recollection, 7, BILLING).is_some());
    }

    #[test]
    fn of_too_many_messages_and_of_too_many_consumers_nothing_is_recalled() {
        let mut recollection = asked();
        recollection.was_read(7, BILLING, Reading::TooMany, at(0));
        let others: Vec<String> = (0..CONSUMERS).map(|n| format!("c-{n}")).collect();
        for _ in 0..3 {
            assert!(matches!(recollection.recall(7, BILLING, ENOUGH, at(1_000)), Recalled::Unknown));
        }
        let mut unread = || {
            let mut recall = |name: &&String| recollection.recall(7, name.as_bytes(), ENOUGH, at(0));
            others.iter().filter(|name| matches!(recall(name), Recalled::Unread)).count()
        };
        assert_eq!([unread(), unread(), unread()], [0, CONSUMERS - 1, 0]);
    }
}

//! What lies above everything in the bucket before was never entered there, and needs no look.
//!
//! Ids that ascend with time do, as those of events. So a process keeps the highest message of each consumer in the bucket
//! before. It is read once a bucket, when nobody enters anything there any more. The read is a dirty one: it meets what a
//! transaction has entered that is open for longer than it may be, and waits for nobody.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

/// The highest messages in the bucket before one bucket.
#[derive(Debug, Default)]
pub(crate) struct Highest(Mutex<Of>);

#[derive(Debug, Default)]
struct Of {
    /// The one before which they stand.
    bucket: i64,
    /// By consumer; none where it has entered nothing.
    messages: HashMap<Box<[u8]>, Option<Vec<u8>>>,
}

/// Of how many consumers they are kept. Who has more has them read again.
const CONSUMERS: usize = 1_000;

impl Highest {
    /// Whether this message of a consumer lies above those of the bucket before this one; `None` if that was not read.
    pub(super) fn is_below(&self, bucket: i64, consumer: &[u8], message: &[u8]) -> Option<bool> {
        let mut of = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if bucket < of.bucket {
            // The clock was set back: to what was read, more is entered.
            *of = Of::default();
        }
        let highest = of.messages.get(consumer).filter(|_| of.bucket == bucket)?;
        Some(highest.as_deref().is_none_or(|highest| highest < message))
    }

    /// What was read.
    pub(super) fn is(&self, bucket: i64, consumer: &[u8], highest: Option<Vec<u8>>) {
        let mut of = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if of.bucket != bucket || of.messages.len() >= CONSUMERS {
            of.messages.clear();
        }
        of.bucket = bucket;
        of.messages.insert(consumer.into(), highest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_above_the_highest_are_told_from_others() {
        let highest = Highest::default();
        assert_eq!(highest.is_below(0, b"c", b"m"), None, "not read");
        highest.is(7, b"c", Some(b"m-2".into()));
        highest.is(7, b"d", None);
        for (message, above) in
            [("m-1", false), ("m-2", false), ("m-20", true), ("n", true), ("", false), ("\u{e4}", true)]
        {
            assert_eq!(highest.is_below(7, b"c", message.as_bytes()), Some(above), "{message}");
            assert_eq!(highest.is_below(7, b"d", message.as_bytes()), Some(true), "{message}");
        }
        assert_eq!(highest.is_below(7, b"e", b"m"), None, "another consumer");
    }

    #[test]
    fn of_another_bucket_nothing_is_known() {
        let highest = Highest::default();
        for other in [8, 10, 6] {
            highest.is(7, b"c", None);
            assert_eq!(highest.is_below(other, b"c", b"m"), None, "{other}");
        }
        assert_eq!(highest.is_below(7, b"c", b"m"), None, "the clock was set back");
        highest.is(8, b"d", None);
        assert_eq!((highest.is_below(8, b"c", b"m"), highest.is_below(7, b"c", b"m")), (None, None), "left behind");
    }

    #[test]
    fn it_does_not_grow_without_end() {
        let highest = Highest::default();
        for n in 0..CONSUMERS * 3 {
            highest.is(7, n.to_string().as_bytes(), None);
        }
        let kept = (0..CONSUMERS * 3).filter(|n| highest.is_below(7, n.to_string().as_bytes(), b"m").is_some());
        assert!((1..=CONSUMERS).contains(&kept.count()));
    }
}

//! How far a group is in each partition, by what was acknowledged in any order.
//!
//! Kafka keeps one number a partition: everything before it is done. So it is moved over what was acknowledged as far as nothing
//! is missing, and what was acknowledged beyond is remembered here only.

use std::collections::{BTreeMap, HashMap};

/// A partition of a topic.
pub(crate) type Partition = (String, i32);

/// Where a record stands to those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    /// Beyond them.
    Next,
    /// Not beyond them: its partition begins anew here.
    Back,
}

/// The partitions that are this consumer's.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    partitions: HashMap<Partition, Place>,
}

#[derive(Debug, Default)]
struct Place {
    // Whether each of those is done that were received, and that the place is not beyond.
    received: BTreeMap<i64, bool>,
    // The first that is not done, if it is known.
    next: Option<i64>,
    // The last that Kafka gave.
    last: Option<i64>,
    // What Kafka has said that it knows.
    committed: Option<i64>,
}

impl Progress {
    /// Kafka gave a record. Within an assignment it gives them in ascending order, so one that is not beyond the last is of another log
    /// under the same name: the topic was created anew, or cut off and written again. What was done of the old one says nothing of it.
    pub(crate) fn receive(&mut self, partition: &Partition, offset: i64) -> Came {
        let place = self.partitions.entry(partition.clone()).or_default();
        let came = if place.last.is_some_and(|last| offset <= last) { Came::Back } else { Came::Next };
        if came == Came::Back {
            *place = Place::default();
        }
        place.next.get_or_insert(offset);
        place.last = Some(offset);
        place.received.insert(offset, false);
        came
    }

    /// Whether a record was received and is not done.
    pub(crate) fn is_open(&self, partition: &Partition, offset: i64) -> bool {
        self.partitions.get(partition).and_then(|place| place.received.get(&offset)) == Some(&false)
    }

    /// A record is done. `false` if it is not this consumer's any more.
    pub(crate) fn done(&mut self, partition: &Partition, offset: i64) -> bool {
        let Some(place) = self.partitions.get_mut(partition) else { return false };
        let Some(is_done) = place.received.get_mut(&offset) else {
            // Done before, and perhaps not committed yet.
            return place.next.is_some_and(|next| offset < next);
        };
        *is_done = true;
        while let Some(first) = place.received.first_entry().filter(|first| *first.get()) {
            place.next = Some(first.key() + 1);
            first.remove();
        }
        true
    }

    /// What Kafka is to be told of a partition, if it does not know.
    pub(crate) fn to_commit(&self, partition: &Partition) -> Option<i64> {
        let place = self.partitions.get(partition)?;
        // What was never moved needs no commit.
        place.next.filter(|at| place.committed.is_none_or(|committed| committed < *at))
    }

    /// Kafka has said that it knows.
    pub(crate) fn committed(&mut self, partition: &Partition, at: i64) {
        if let Some(place) = self.partitions.get_mut(partition) {
            // What lies beyond is the answer to a commit of before its log began anew.
            if place.next.is_some_and(|next| at <= next) {
                place.committed = place.committed.max(Some(at));
            }
        }
    }

    /// The partition goes to another consumer, or is to be read from where it was committed.
    pub(crate) fn revoke(&mut self, partition: &Partition) {
        self.partitions.remove(partition);
    }

    pub(crate) fn clear(&mut self) {
        self.partitions.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_nothing_is_missing_before_is_committed() {
        let mut progress = Progress::default();
        let (a, b) = (("t".to_owned(), 0), ("t".to_owned(), 1));
        // Transactions leave holes.
        for offset in [5, 6, 9, 10] {
            assert_eq!(progress.receive(&a, offset), Came::Next);
        }
        assert_eq!(progress.receive(&b, 0), Came::Next);
        assert!(progress.done(&a, 9) && progress.done(&a, 6));
        assert_eq!(progress.to_commit(&a), Some(5), "no harm: it is where it began");
        progress.committed(&a, 5);
        assert_eq!(progress.to_commit(&a), None);
        assert!(progress.done(&a, 5));
        assert_eq!(progress.to_commit(&a), Some(10));
        progress.committed(&a, 10);
        assert!(progress.done(&a, 10));
        assert_eq!((progress.to_commit(&a), progress.to_commit(&b)), (Some(11), Some(0)));
    }

    #[test]
    fn what_is_done_is_not_given_again() {
        let mut progress = Progress::default();
        let a = ("t".to_owned(), 0);
        (1..=3).for_each(|offset| assert_eq!(progress.receive(&a, offset), Came::Next));
        assert!(progress.done(&a, 1) && progress.done(&a, 3));
        let open = [1, 2, 3, 9].map(|offset| progress.is_open(&a, offset));
        assert_eq!(open, [false, true, false, false]);
        assert!(progress.done(&a, 1), "twice is no harm");
        assert!(!progress.done(&a, 9), "nobody has received it");
    }

    #[test]
    fn offsets_that_go_back_are_of_another_log_and_are_given() {
        let mut progress = Progress::default();
        let a = ("t".to_owned(), 0);
        (5..=7).for_each(|offset| assert_eq!(progress.receive(&a, offset), Came::Next));
        assert!(progress.done(&a, 5) && progress.done(&a, 6));
        assert_eq!(progress.to_commit(&a), Some(7));
        // The topic is deleted and created anew while that is under way.
        assert_eq!(progress.receive(&a, 0), Came::Back);
        progress.committed(&a, 7);
        assert_eq!(progress.receive(&a, 1), Came::Next);
        assert!(!progress.done(&a, 6) && !progress.done(&a, 7), "of the old one");
        assert_eq!(progress.to_commit(&a), Some(0), "the group has to go back, or what comes up to 7 is lost");
        assert!(progress.done(&a, 0) && progress.done(&a, 1));
        assert_eq!(progress.to_commit(&a), Some(2));
        // Cut off, and written again from there.
        assert_eq!(progress.receive(&a, 1), Came::Back);
        assert!(progress.is_open(&a, 1));
    }

    #[test]
    fn what_comes_again_after_a_rebalance_is_given_again() {
        let mut progress = Progress::default();
        let a = ("t".to_owned(), 0);
        (5..=7).for_each(|offset| assert_eq!(progress.receive(&a, offset), Came::Next));
        assert!(progress.done(&a, 5) && progress.done(&a, 7));
        progress.revoke(&a);
        // From where it was committed.
        (6..=7).for_each(|offset| assert_eq!(progress.receive(&a, offset), Came::Next));
        assert!(progress.done(&a, 6) && progress.done(&a, 7));
        assert_eq!(progress.to_commit(&a), Some(8));
    }

    #[test]
    fn a_partition_that_has_gone_is_nobodys_business() {
        let mut progress = Progress::default();
        let a = ("t".to_owned(), 0);
        assert_eq!(progress.receive(&a, 7), Came::Next);
        progress.revoke(&a);
        assert!(!progress.done(&a, 7));
        assert_eq!(progress.to_commit(&a), None);
        progress.committed(&a, 9);
        assert_eq!(progress.receive(&a, 7), Came::Next, "it begins anew");
        progress.clear();
        assert!(!progress.done(&a, 7));
    }
}

//! One key's lane, and what of it a hold covers.

use std::collections::VecDeque;

use tokio::time::{Duration, Instant};

use crate::{
    domain::{Key, Partition, Seq},
    engine::flight::queues::Job,
    port::{Hold, HoldChange, HoldKind},
};

/// How long followers may lie beyond before a hold is written for them: most lanes catch up sooner.
const HOLD_AFTER: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Lane {
    pub(super) partition: Partition,
    pub(super) state: State,
    pub(super) parked: VecDeque<Job>,
    pub(super) beyond: Option<Beyond>,
    /// The hold that the table has, or gets with the next settle, and from which number on it covers.
    pub(super) hold: Option<(HoldKind, Seq)>,
    /// Whether it stands in `dry`, or is being fetched.
    pub(super) fetching: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Busy(Seq),
    Failing(Seq),
    Dead(Seq),
    Vacant,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Beyond {
    pub(super) from: Seq,
    pub(super) since: Instant,
}

impl Lane {
    pub(super) fn new(partition: Partition, state: State) -> Self {
        Self { partition, state, parked: VecDeque::new(), beyond: None, hold: None, fetching: false }
    }

    /// Whether followers should be fetched: some lie beyond, few are parked, and there is `room` to park more. A lane
    /// that has nothing to do needs none: what is fetched is delivered.
    pub(super) fn is_dry(&self, capacity: usize, room: bool) -> bool {
        let takes = match self.state {
            State::Busy(_) => room,
            State::Vacant => true,
            State::Failing(_) | State::Dead(_) => false,
        };
        takes && self.beyond.is_some() && self.parked.len() * 4 <= capacity
    }

    /// A dead head's hold stays as it is; what came late below it keeps the position back instead.
    pub(super) fn wants_hold(&self, beyond: Beyond, now: Instant) -> bool {
        now >= beyond.since + HOLD_AFTER && !self.is_held_as(HoldKind::DeadHead)
    }

    pub(super) fn is_held_as(&self, kind: HoldKind) -> bool {
        self.hold.is_some_and(|(held, _)| held == kind)
    }

    /// Whether a hold finds what lies beyond.
    pub(super) fn is_covered(&self) -> bool {
        match (self.beyond, self.hold) {
            (None, _) => true,
            (Some(beyond), Some((_, from))) => from <= beyond.from,
            (Some(_), None) => false,
        }
    }

    /// What is in memory, and not below the hold.
    pub(super) fn covered(&self) -> impl Iterator<Item = Seq> {
        let head = match self.state {
            State::Busy(seq) => Some(seq),
            State::Failing(_) | State::Dead(_) | State::Vacant => None,
        };
        let parked = self.parked.iter().map(|job| job.delivery.seq());
        head.into_iter().chain(parked).filter(|seq| self.hold.is_some_and(|(_, from)| from <= *seq))
    }

    /// Covers what lies beyond by a hold. It begins with the head, not with what lies beyond: to a next owner the
    /// hold is where the key goes on, and what is in memory now must not come after what is not.
    pub(super) fn cover(&mut self, key: &Key, beyond: Seq) -> HoldChange {
        let head = match self.state {
            State::Busy(seq) | State::Failing(seq) | State::Dead(seq) => Some(seq),
            State::Vacant => None,
        };
        let parked = self.parked.front().map(|job| job.delivery.seq());
        let from = [head, parked].into_iter().flatten().fold(beyond, Seq::min);
        self.hold = Some((HoldKind::Overflow, from));
        HoldChange::Set(Hold { partition: self.partition, key: key.clone(), kind: HoldKind::Overflow, from })
    }
}

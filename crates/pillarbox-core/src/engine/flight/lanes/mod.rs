//! Lanes: the events of one key, one after another.
//!
//! A lane exists while its key has something going on: an event queued or running (**busy**), a failed head
//! that is due later (**failing**), a dead head that an operator must deal with (**dead**), or followers in
//! the table that must be fetched (**vacant**). A few followers are parked in memory; the rest stay in the
//! table, **beyond** a number, and are fetched by key when the lane runs dry.
//!
//! Rows beyond are no longer found by the reader's position once it has passed them. What finds them after
//! a crash is a hold, written in the same settle that lets the stored position pass.

mod lane;

use std::collections::VecDeque;

use rustc_hash::{FxHashMap, FxHashSet};
use tokio::time::Instant;

use self::lane::{Beyond, Lane, State};
use super::queues::Job;
use crate::{
    domain::{Key, Partition, Seq},
    port::{Hold, HoldChange, HoldKind},
};

#[derive(Debug)]
pub(crate) struct Lanes {
    by_key: FxHashMap<Key, Lane>,
    parked: usize,
    lane_capacity: usize,
    capacity: usize,
    /// Lanes whose followers should be fetched.
    dry: VecDeque<Key>,
    /// Lanes with followers beyond that no hold covers.
    uncovered: FxHashSet<Key>,
    /// Lanes that have a hold for followers beyond: it finds what they have in memory, too.
    overflowing: FxHashSet<Key>,
    changes: Vec<HoldChange>,
    /// Keys whose hold is removed by a settle that is not known to be durable: the table may still show it.
    clearing: FxHashMap<Key, Partition>,
    /// While what is due is read: the first number that no page has come to.
    unread: Option<Seq>,
}

/// What became of a follower.
#[derive(Debug)]
pub(crate) enum Placed {
    /// It is the head: deliver it.
    Ready(Job),
    /// It waits in memory.
    Parked,
    /// It stays in the table, and is fetched when its turn comes.
    LeftBeyond,
}

/// What the head's end means for its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// The next one follows.
    Next,
    /// The head is tried again later, and the key waits for it.
    Fail,
    /// The head is dead, and the key waits for an operator.
    Hold,
}

/// What follows the end of a head.
#[derive(Debug, Default)]
pub(crate) struct Finished {
    /// The next event of the key, to be delivered now.
    pub(crate) next: Option<Job>,
    /// Followers that left memory.
    pub(crate) spilled: Vec<Seq>,
}

/// A lane to fetch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fetch {
    pub(crate) key: Key,
    pub(crate) partition: Partition,
    pub(crate) from: Seq,
}

impl Lanes {
    pub(crate) fn new(lane_capacity: usize, capacity: usize) -> Self {
        Self {
            by_key: FxHashMap::default(),
            parked: 0,
            lane_capacity,
            capacity,
            dry: VecDeque::new(),
            uncovered: FxHashSet::default(),
            overflowing: FxHashSet::default(),
            changes: Vec::new(),
            clearing: FxHashMap::default(),
            unread: None,
        }
    }

    /// Whether a row can be left in the table without being read: its lane has no place for it now.
    pub(crate) fn pass_over(&mut self, key: &str, seq: Seq, now: Instant) -> bool {
        let Some((key, lane)) = self.by_key.get_key_value(key) else {
            return false;
        };
        let waits = match lane.state {
            State::Busy(_) | State::Vacant => lane.beyond.is_some_and(|beyond| seq >= beyond.from),
            State::Failing(head) | State::Dead(head) => seq != head,
        };
        if waits {
            let key = key.clone();
            self.leave_beyond(&key, seq, now);
        }
        waits
    }

    /// Brings a row that was read to its lane.
    pub(crate) fn place(&mut self, key: &Key, job: Job, now: Instant) -> Placed {
        let seq = job.delivery.seq();
        let Some(lane) = self.by_key.get_mut(key) else {
            let partition = job.delivery.record().partition;
            self.by_key.insert(key.clone(), Lane::new(partition, State::Busy(seq)));
            return Placed::Ready(job);
        };
        match lane.state {
            State::Failing(head) | State::Dead(head) if head == seq => {
                lane.state = State::Busy(seq);
                Placed::Ready(job)
            }
            State::Failing(_) | State::Dead(_) => self.leave_beyond(key, seq, now),
            _ if lane.beyond.is_some_and(|beyond| seq >= beyond.from) => self.leave_beyond(key, seq, now),
            State::Vacant => {
                lane.state = State::Busy(seq);
                Placed::Ready(job)
            }
            State::Busy(_) if lane.parked.len() < self.lane_capacity && self.parked < self.capacity => {
                // Nearly always at the end; a late commit of a lower number goes to its place.
                let at = lane.parked.partition_point(|waiting| waiting.delivery.seq() < seq);
                lane.parked.insert(at, job);
                self.parked += 1;
                Placed::Parked
            }
            State::Busy(_) => self.leave_beyond(key, seq, now),
        }
    }

    /// Brings a row that can't be decoded to its lane. `true` when it is its turn: it goes DEAD now, and
    /// holds the key if `hold` is set.
    pub(crate) fn place_broken(&mut self, key: &Key, seq: Seq, partition: Partition, hold: bool, now: Instant) -> bool {
        let turn = match self.by_key.get(key) {
            None => true,
            Some(lane) => match lane.state {
                State::Vacant => lane.beyond.is_none_or(|beyond| seq < beyond.from),
                State::Failing(head) | State::Dead(head) => head == seq,
                State::Busy(_) => false,
            },
        };
        if !turn {
            self.leave_beyond(key, seq, now);
            return false;
        }
        let lane = self.by_key.entry(key.clone()).or_insert_with(|| Lane::new(partition, State::Vacant));
        lane.state = State::Busy(seq);
        self.finish(key, seq, if hold { Then::Hold } else { Then::Next }, now);
        true
    }

    /// The head of a lane has ended.
    pub(crate) fn finish(&mut self, key: &Key, seq: Seq, then: Then, now: Instant) -> Finished {
        let Some(lane) = self.by_key.get_mut(key).filter(|lane| lane.state == State::Busy(seq)) else {
            return Finished::default();
        };
        match then {
            Then::Next => {
                if lane.is_held_as(HoldKind::DeadHead) {
                    // The head that held the key is settled: what follows it, in memory or beyond, needs a hold of
                    // the other kind.
                    self.changes.push(HoldChange::Clear { partition: lane.partition, key: key.clone() });
                    self.clearing.insert(key.clone(), lane.partition);
                    lane.hold = None;
                    let parked = lane.parked.front().map(|job| job.delivery.seq());
                    if let Some(follower) = parked.or(lane.beyond.map(|beyond| beyond.from)) {
                        self.changes.push(lane.cover(key, follower));
                        self.uncovered.remove(key);
                        self.overflowing.insert(key.clone());
                    }
                }
                let next = lane.parked.pop_front();
                lane.state = next.as_ref().map_or(State::Vacant, |job| State::Busy(job.delivery.seq()));
                self.parked -= usize::from(next.is_some());
                self.tend(key);
                Finished { next, spilled: Vec::new() }
            }
            Then::Fail | Then::Hold => {
                lane.state = if then == Then::Fail { State::Failing(seq) } else { State::Dead(seq) };
                if then == Then::Hold {
                    // Written with the settle that makes the head DEAD, unless the same settle then clears
                    // the hold of the head before it.
                    lane.hold = Some((HoldKind::DeadHead, seq));
                    self.overflowing.remove(key);
                    let clears = |change: &HoldChange| matches!(change, HoldChange::Clear { key: of, .. } if of == key);
                    if self.changes.iter().any(clears) {
                        let hold =
                            Hold { partition: lane.partition, key: key.clone(), kind: HoldKind::DeadHead, from: seq };
                        self.changes.push(HoldChange::Set(hold));
                    }
                }
                let spilled: Vec<Seq> = lane.parked.drain(..).map(|job| job.delivery.seq()).collect();
                self.parked -= spilled.len();
                if let Some(first) = spilled.first() {
                    self.leave_beyond(key, *first, now);
                }
                if self.by_key.get(key).is_some_and(Lane::is_covered) {
                    self.uncovered.remove(key);
                }
                Finished { next: None, spilled }
            }
        }
    }

    /// What must change with the success of a head that was dead and replayed, and holds its key: once it is done, its hold
    /// could be removed by nobody. The followers are found from the head on, until the settler writes what is right. A key
    /// that went on by itself is still held in the table, until that settle.
    pub(crate) fn freed_by(&self, key: &Key, seq: Seq) -> Option<[HoldChange; 2]> {
        let lane = self.by_key.get(key)?;
        let went_on = lane.is_held_as(HoldKind::Overflow) && self.is_clearing(key);
        if !went_on && !lane.is_held_as(HoldKind::DeadHead) {
            return None;
        }
        let (partition, from) = (lane.partition, Seq(seq.0 + 1));
        let follow = Hold { partition, key: key.clone(), kind: HoldKind::Overflow, from };
        Some([HoldChange::Clear { partition, key: key.clone() }, HoldChange::Set(follow)])
    }

    /// The next lanes to fetch.
    pub(crate) fn next_fetches(&mut self, limit: usize) -> Vec<Fetch> {
        let mut fetches = Vec::new();
        while fetches.len() < limit {
            let Some(key) = self.dry.pop_front() else { break };
            let Some(lane) = self.by_key.get_mut(&key) else {
                continue;
            };
            match lane.beyond {
                Some(beyond) if lane.is_dry(self.lane_capacity, self.parked < self.capacity) => {
                    fetches.push(Fetch { key, partition: lane.partition, from: beyond.from });
                }
                _ => lane.fetching = false,
            }
        }
        fetches
    }

    /// A lane's followers are about to be placed: what lies beyond begins at `from` now, or nothing does.
    pub(crate) fn fetched(&mut self, key: &Key, from: Option<Seq>, now: Instant) {
        let Some(lane) = self.by_key.get_mut(key) else { return };
        lane.fetching = false;
        // A lane that is fetched again and again has lain beyond since the first time.
        let since = lane.beyond.map_or(now, |beyond| beyond.since);
        lane.beyond = from.map(|from| Beyond { from, since });
        if from.is_none() {
            self.uncovered.remove(key);
        }
    }

    /// Whether what lies beyond begins where it did when the fetch began.
    pub(crate) fn is_beyond(&self, fetch: &Fetch) -> bool {
        let beyond = self.by_key.get(&fetch.key).and_then(|lane| lane.beyond);
        beyond.is_some_and(|beyond| beyond.from == fetch.from)
    }

    /// What was fetched can't be placed: it lies beyond, as before.
    pub(crate) fn fetch_put_off(&mut self, key: &Key) {
        if let Some(lane) = self.by_key.get_mut(key) {
            lane.fetching = false;
        }
    }

    /// A fetch failed; it is tried again.
    pub(crate) fn fetch_failed(&mut self, key: Key) {
        self.dry.push_back(key);
    }

    /// Looks whether a lane should be fetched, or is over.
    pub(crate) fn tend(&mut self, key: &Key) {
        let Some(lane) = self.by_key.get_mut(key) else { return };
        // Not before the last of its events is answered: the stored position may be above those in memory, because
        // the hold covered them, and a settle that removes the hold can't always store a lower one.
        if lane.beyond.is_none() && lane.state == State::Vacant && lane.is_held_as(HoldKind::Overflow) {
            self.changes.push(HoldChange::Clear { partition: lane.partition, key: key.clone() });
            self.clearing.insert(key.clone(), lane.partition);
            lane.hold = None;
            self.overflowing.remove(key);
        }
        if lane.is_dry(self.lane_capacity, self.parked < self.capacity) {
            if !lane.fetching {
                lane.fetching = true;
                self.dry.push_back(key.clone());
            }
        } else if lane.state == State::Vacant && lane.beyond.is_none() {
            self.by_key.remove(key);
        }
    }

    /// A hold that the table has for a key: at a takeover, or freed by an operator.
    pub(crate) fn recall_hold(&mut self, hold: &Hold, now: Instant) {
        let lane = self.by_key.entry(hold.key.clone()).or_insert_with(|| Lane::new(hold.partition, State::Vacant));
        match hold.kind {
            HoldKind::DeadHead => {
                lane.state = State::Dead(hold.from);
                lane.beyond = Some(Beyond { from: Seq(hold.from.0 + 1), since: now });
            }
            HoldKind::Overflow => {
                if lane.is_held_as(HoldKind::Overflow) {
                    return;
                }
                if matches!(lane.state, State::Dead(_)) {
                    lane.state = State::Vacant;
                }
                let from = lane.beyond.map_or(hold.from, |beyond| beyond.from.min(hold.from));
                lane.beyond = Some(Beyond { from, since: now });
            }
        }
        lane.hold = Some((hold.kind, hold.from));
        if lane.is_covered() {
            self.uncovered.remove(&hold.key);
        }
        match hold.kind {
            HoldKind::Overflow => self.overflowing.insert(hold.key.clone()),
            HoldKind::DeadHead => self.overflowing.remove(&hold.key),
        };
        self.tend(&hold.key);
    }

    /// The hold of a dead head, at a takeover, where keys don't wait for such: the key goes on. What follows is found from the
    /// head on, which may have been replayed; and the table gets a hold that says so.
    pub(crate) fn go_on(&mut self, hold: &Hold, now: Instant) {
        let follow = Hold { kind: HoldKind::Overflow, ..hold.clone() };
        self.changes.push(HoldChange::Clear { partition: hold.partition, key: hold.key.clone() });
        self.clearing.insert(hold.key.clone(), hold.partition);
        self.changes.push(HoldChange::Set(follow.clone()));
        self.recall_hold(&follow, now);
    }

    /// Whether a hold that the table shows is on its way out.
    pub(crate) fn is_clearing(&self, key: &Key) -> bool {
        self.clearing.contains_key(key)
    }

    /// The dead event that a key waits behind.
    pub(crate) fn dead_head(&self, key: &Key) -> Option<Seq> {
        match self.by_key.get(key)?.state {
            State::Dead(head) => Some(head),
            State::Busy(_) | State::Failing(_) | State::Vacant => None,
        }
    }

    /// A settle that removed the hold of a key is durable.
    pub(crate) fn cleared(&mut self, key: &Key) {
        let again = |change: &HoldChange| matches!(change, HoldChange::Clear { key: of, .. } if of == key);
        if !self.changes.iter().any(again) {
            self.clearing.remove(key);
        }
    }

    /// A failed event that the table has for a key, at a takeover.
    pub(crate) fn recall_failing(&mut self, partition: Partition, key: &Key, seq: Seq) {
        let lane = self.by_key.entry(key.clone()).or_insert_with(|| Lane::new(partition, State::Failing(seq)));
        match lane.state {
            State::Failing(head) => lane.state = State::Failing(head.min(seq)),
            State::Vacant => lane.state = State::Failing(seq),
            // A dead head that was replayed and failed again: it is the head all the same.
            State::Dead(head) if head == seq => lane.state = State::Failing(seq),
            State::Dead(_) | State::Busy(_) => {}
        }
    }

    /// Takes the changes for the next settle; lanes that lie beyond for long get a hold in it.
    pub(crate) fn hold_changes(&mut self, now: Instant) -> Vec<HoldChange> {
        let lanes = &mut self.by_key;
        let (changes, overflowing) = (&mut self.changes, &mut self.overflowing);
        self.uncovered.retain(|key| {
            let Some(lane) = lanes.get_mut(key) else { return false };
            let Some(beyond) = lane.beyond else { return false };
            if !lane.wants_hold(beyond, now) {
                return true;
            }
            changes.push(lane.cover(key, beyond.from));
            overflowing.insert(key.clone());
            false
        });
        std::mem::take(changes)
    }

    /// Whether the next settle would write a hold for followers that have lain beyond for long.
    pub(crate) fn wants_hold(&self, now: Instant) -> bool {
        let lanes = self.uncovered.iter().filter_map(|key| self.by_key.get(key));
        lanes.into_iter().any(|lane| lane.beyond.is_some_and(|beyond| lane.wants_hold(beyond, now)))
    }

    /// The lowest number that only this memory knows to be beyond.
    pub(crate) fn lowest_uncovered(&self) -> Option<Seq> {
        self.uncovered.iter().filter_map(|key| self.by_key.get(key)?.beyond).map(|beyond| beyond.from).min()
    }

    /// What is in memory, and is found by a hold as well: the table has that hold, or gets it with the next settle.
    pub(crate) fn covered(&self) -> FxHashSet<Seq> {
        let lanes = self.overflowing.iter().filter_map(|key| self.by_key.get(key));
        lanes.flat_map(Lane::covered).collect()
    }

    /// Whether a change to the holds of a partition waits for a settle.
    pub(crate) fn changes_holds_of(&self, partition: Partition) -> bool {
        self.changes.iter().any(|change| change.partition() == partition)
    }

    /// How many followers wait in memory.
    pub(crate) fn parked(&self) -> usize {
        self.parked
    }

    /// How many keys wait behind a failed or dead event.
    pub(crate) fn blocked(&self) -> usize {
        let blocked = |lane: &&Lane| matches!(lane.state, State::Failing(_) | State::Dead(_));
        self.by_key.values().filter(blocked).count()
    }

    /// Whether lanes wait for their hold, so that a settle should come even without outcomes.
    pub(crate) fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Forgets everything. Nothing is counted on the way: after a panic in its midst, nothing here need agree.
    pub(crate) fn clear(&mut self) {
        *self = Self { unread: self.unread, ..Self::new(self.lane_capacity, self.capacity) };
    }

    /// Forgets the lanes of partitions that are no longer owned.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(Partition) -> bool) {
        let parked = &mut self.parked;
        let (uncovered, overflowing) = (&mut self.uncovered, &mut self.overflowing);
        self.by_key.retain(|key, lane| {
            let kept = keep(lane.partition);
            if !kept {
                *parked -= lane.parked.len();
                uncovered.remove(key);
                overflowing.remove(key);
            }
            kept
        });
        self.changes.retain(|change| keep(change.partition()));
        self.clearing.retain(|_, partition| keep(*partition));
        self.dry.retain(|key| self.by_key.contains_key(key));
    }

    /// The counters agree with what they count.
    #[cfg(test)]
    pub(super) fn check(&self) {
        assert_eq!(self.parked, self.by_key.values().map(|lane| lane.parked.len()).sum::<usize>());
        for (key, lane) in &self.by_key {
            assert!(lane.parked.len() <= self.lane_capacity, "{key}: {} are parked", lane.parked.len());
            assert!(lane.parked.is_empty() || matches!(lane.state, State::Busy(_)), "{key}: parked behind nobody");
            // Below a dead head there is nothing, unless it came late, and then it is among the uncovered.
            let found = lane.is_covered() || lane.is_held_as(HoldKind::DeadHead) || self.uncovered.contains(key);
            assert!(found, "{key}: what lies beyond is forgotten");
            assert_eq!(lane.is_held_as(HoldKind::Overflow), self.overflowing.contains(key), "{key}: {:?}", lane.hold);
            let seqs: Vec<Seq> = lane.parked.iter().map(|job| job.delivery.seq()).collect();
            assert!(seqs.is_sorted(), "{key}: {seqs:?}");
        }
    }

    pub(crate) fn is_waiting(&self) -> bool {
        !self.dry.is_empty()
    }

    /// What is due may be far ahead of the pages: others of its key lie between, and are fetched with it, in order.
    pub(crate) fn set_unread(&mut self, unread: Option<Seq>) {
        self.unread = unread;
    }

    fn leave_beyond(&mut self, key: &Key, seq: Seq, now: Instant) -> Placed {
        let seq = self.unread.map_or(seq, |unread| unread.min(seq));
        if let Some(lane) = self.by_key.get_mut(key) {
            match &mut lane.beyond {
                Some(beyond) => beyond.from = beyond.from.min(seq),
                None => lane.beyond = Some(Beyond { from: seq, since: now }),
            }
            if !lane.is_covered() {
                self.uncovered.insert(key.clone());
            }
            if lane.is_dry(self.lane_capacity, self.parked < self.capacity) && !lane.fetching {
                lane.fetching = true;
                self.dry.push_back(key.clone());
            }
        }
        Placed::LeftBeyond
    }
}

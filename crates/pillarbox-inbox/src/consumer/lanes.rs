//! The consumer's memory: which messages it holds, and which of them may run.
//!
//! Messages of one key stand in one lane, in the order in which they came, and run one after another. A message without a key
//! has a lane by its own id, so that a second delivery of it waits for the first. What has failed goes back to the front of its
//! lane, and the lane waits with it; other lanes go on.
//!
//! A suspect runs alone: nothing is begun until all that runs has ended, and nothing beside it.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use pillarbox_core::{
    domain::{Delivery, Key},
    port::{Incoming, Ticket},
};
use tokio::time::Instant;

/// A message that the consumer holds.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) ticket: Ticket,
    pub(super) message: Incoming,
    /// What it is known by when it comes again.
    pub(super) id: Arc<str>,
    pub(super) next: Next,
    /// How often it was delivered before, if that is more often than may be: it may be what ends the process, and runs alone.
    pub(super) suspect: Option<u32>,
    /// Whether the guard has its mark, made for this job.
    pub(super) marked: Marked,
    /// Whose mark it is: of this job alone, so that what is taken off is no other delivery's. Empty where nobody asks.
    pub(super) by: Box<str>,
    /// How often the consumer's own database has failed it in a row.
    pub(super) setbacks: u32,
}

/// Whether the guard has a mark of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Marked {
    #[default]
    No,
    /// It was asked for one, and its answer is not known.
    Perhaps,
    Yes,
}

/// What is to be done with a message.
#[derive(Debug)]
pub(super) enum Next {
    /// Call its handlers.
    Handle(Delivery),
    /// The same, in a transaction.
    Work(Delivery),
    /// Enter it in the inbox: its fallback has dealt with it.
    Enter,
    /// Put it into the dead letter queue.
    Park { reason: String, attempts: u32 },
}

impl Next {
    fn works(&self) -> bool {
        matches!(self, Self::Work(_))
    }
}

/// The lane of a key, or of a message without one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum LaneKey {
    Key(Key),
    Alone(Arc<str>),
}

/// Jobs of one lane that run now, in order.
#[derive(Debug)]
pub(super) struct Drawn {
    pub(super) lane: LaneKey,
    pub(super) jobs: VecDeque<Job>,
}

#[derive(Debug, Default)]
struct Lane {
    jobs: VecDeque<Job>,
    standing: Standing,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Standing {
    #[default]
    Idle,
    Ready,
    Running,
    /// Until then.
    Waiting(Instant),
}

#[derive(Debug, Default)]
pub(super) struct Lanes {
    of_key: HashMap<LaneKey, Lane>,
    ready: VecDeque<LaneKey>,
    /// Those of the ready lanes whose next message is a suspect.
    suspects: VecDeque<LaneKey>,
    /// How many lanes run.
    running: usize,
    /// Whether what runs is a suspect.
    is_alone: bool,
    later: BinaryHeap<Reverse<(Instant, LaneKey)>>,
    /// Of everything that was received and not acknowledged or given back.
    tickets: HashSet<Ticket>,
}

impl Lanes {
    /// Messages have come, and are added once they are read.
    pub(super) fn expect(&mut self, tickets: impl Iterator<Item = Ticket>) {
        self.tickets.extend(tickets);
    }

    /// Takes a message on that was expected.
    pub(super) fn add(&mut self, key: LaneKey, job: Job) {
        let lane = self.of_key.entry(key.clone()).or_default();
        // Most lanes have one, and a queue would begin with room for four.
        lane.jobs.reserve_exact(1);
        lane.jobs.push_back(job);
        if lane.standing == Standing::Idle {
            self.line_up(key);
        }
    }

    /// Puts a message into a lane of its own until a time, where it keeps no other waiting.
    pub(super) fn set_aside(&mut self, job: Job, at: Instant) {
        let key = LaneKey::Alone(job.id.clone());
        let lane = self.of_key.entry(key.clone()).or_default();
        lane.jobs.push_back(job);
        if lane.standing == Standing::Idle {
            lane.standing = Standing::Waiting(at);
            self.later.push(Reverse((at, key)));
        }
    }

    /// What runs next: one message, or up to `most` of them that work in a transaction together. Of one lane they come in
    /// order, and no id comes twice.
    pub(super) fn draw(&mut self, most: usize, now: Instant) -> Vec<Drawn> {
        self.wake(now);
        if self.is_alone || !self.suspects.is_empty() {
            return self.draw_suspect().into_iter().collect();
        }
        let mut drawn: Vec<Drawn> = Vec::new();
        let most = most.max(1);
        // With room from the beginning: it would grow under the lock.
        let mut ids: HashSet<Arc<str>> = HashSet::with_capacity(most.min(self.tickets.len()));
        let mut looked_at = self.ready.len();
        while ids.len() < most && looked_at > 0 {
            looked_at -= 1;
            let Some(key) = self.ready.pop_front() else { break };
            let Some(lane) = self.of_key.get_mut(&key) else { continue };
            let works = lane.jobs.front().is_some_and(|job| job.next.works());
            if !drawn.is_empty() && !works {
                // It runs alone, by another worker.
                self.ready.push_back(key);
                continue;
            }
            let mut count = 0;
            for job in &lane.jobs {
                let fits = count == 0 || works && job.next.works() && job.suspect.is_none();
                if !fits || ids.len() >= most || !ids.insert(job.id.clone()) {
                    break;
                }
                count += 1;
            }
            let all = count == lane.jobs.len();
            let jobs = if all { std::mem::take(&mut lane.jobs) } else { lane.jobs.drain(..count).collect() };
            if jobs.is_empty() {
                self.ready.push_back(key);
                continue;
            }
            lane.standing = Standing::Running;
            self.running += 1;
            drawn.push(Drawn { lane: key, jobs });
            if !works {
                break;
            }
        }
        drawn
    }

    /// The next suspect, once nothing else runs.
    fn draw_suspect(&mut self) -> Option<Drawn> {
        if self.running > 0 {
            return None;
        }
        let key = self.suspects.pop_front()?;
        let lane = self.of_key.get_mut(&key)?;
        let jobs: VecDeque<_> = lane.jobs.pop_front().into_iter().collect();
        lane.standing = Standing::Running;
        (self.running, self.is_alone) = (1, true);
        Some(Drawn { lane: key, jobs })
    }

    /// What ran in a lane has ended; these come again, in their order, at a time or at once.
    pub(super) fn end(&mut self, key: &LaneKey, mut again: VecDeque<Job>, at: Option<Instant>) {
        self.running = self.running.saturating_sub(1);
        // If it was, nothing else ran.
        self.is_alone = false;
        let Some(lane) = self.of_key.get_mut(key) else { return };
        while let Some(job) = again.pop_back() {
            lane.jobs.push_front(job);
        }
        match (lane.jobs.is_empty(), at) {
            (true, _) => {
                self.of_key.remove(key);
            }
            (false, Some(at)) => {
                lane.standing = Standing::Waiting(at);
                self.later.push(Reverse((at, key.clone())));
            }
            (false, None) => self.line_up(key.clone()),
        }
    }

    /// A lane may run.
    fn line_up(&mut self, key: LaneKey) {
        let Some(lane) = self.of_key.get_mut(&key) else { return };
        lane.standing = Standing::Ready;
        let is_suspect = lane.jobs.front().is_some_and(|job| job.suspect.is_some());
        if is_suspect { &mut self.suspects } else { &mut self.ready }.push_back(key);
    }

    /// Lanes whose time has come are ready.
    fn wake(&mut self, now: Instant) {
        while self.later.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            let Some(Reverse((at, key))) = self.later.pop() else { break };
            if self.of_key.get(&key).is_some_and(|lane| lane.standing == Standing::Waiting(at)) {
                self.line_up(key);
            }
        }
    }

    /// When the next lane is ready that is not yet.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.later.peek().map(|Reverse((at, _))| *at)
    }

    pub(super) fn is_ready(&self) -> bool {
        !self.ready.is_empty() || !self.suspects.is_empty()
    }

    /// Messages are acknowledged, or on their way to that.
    pub(super) fn forget(&mut self, tickets: &[Ticket]) {
        for ticket in tickets {
            self.tickets.remove(ticket);
        }
    }

    /// How many messages are held.
    pub(super) fn held(&self) -> usize {
        self.tickets.len()
    }

    /// All that are held, for [`Source::hold`](pillarbox_core::port::Source::hold).
    pub(super) fn tickets(&self) -> Vec<Ticket> {
        self.tickets.iter().copied().collect()
    }

    /// Everything that waits, at the end.
    pub(super) fn drain(&mut self) -> Vec<Job> {
        self.ready.clear();
        self.suspects.clear();
        self.later.clear();
        self.of_key.drain().flat_map(|(_, lane)| lane.jobs).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pillarbox_core::{
        Event,
        domain::{Epoch, Partition, Record, Seq, Timestamp},
    };
    use proptest::prelude::*;

    use super::*;

    fn job(number: u64, works: bool) -> Job {
        let event = Event::builder("e").json(&number).build().unwrap();
        let record = Record {
            seq: Seq(0),
            partition: Partition(0),
            event,
            attempts: 0,
            starts: 0,
            progress: None,
            created_at: Timestamp::from_micros(0),
        };
        let delivery = Delivery::new(record, Epoch(0));
        Job {
            ticket: Ticket(number),
            message: Incoming::default(),
            id: number.to_string().into(),
            next: if works { Next::Work(delivery) } else { Next::Handle(delivery) },
            suspect: None,
            marked: Marked::No,
            by: "".into(),
            setbacks: 0,
        }
    }

    fn key(name: &str) -> LaneKey {
        LaneKey::Key(name.into())
    }

    fn numbers(drawn: &[Drawn]) -> Vec<Vec<u64>> {
        drawn.iter().map(|drawn| drawn.jobs.iter().map(|job| job.ticket.0).collect()).collect()
    }

    #[test]
    fn messages_of_a_key_run_one_after_another_and_others_beside_them() {
        let now = Instant::now();
        let mut lanes = Lanes::default();
        for (number, name) in [(1, "a"), (2, "a"), (3, "b")] {
            lanes.add(key(name), job(number, false));
        }
        let first = lanes.draw(10, now);
        assert_eq!(numbers(&first), [[1]]);
        assert_eq!(numbers(&lanes.draw(10, now)), [[3]]);
        assert!(lanes.draw(10, now).is_empty(), "the second of its key waits");
        lanes.end(&key("a"), VecDeque::new(), None);
        assert_eq!(numbers(&lanes.draw(10, now)), [[2]]);
    }

    #[test]
    fn those_that_work_in_a_transaction_are_drawn_together() {
        let now = Instant::now();
        let mut lanes = Lanes::default();
        for (number, name, works) in [(1, "a", true), (2, "a", true), (3, "b", false), (4, "c", true), (5, "a", true)] {
            lanes.add(key(name), job(number, works));
        }
        assert_eq!(numbers(&lanes.draw(4, now)), [vec![1, 2, 5], vec![4]]);
        assert_eq!(numbers(&lanes.draw(4, now)), [[3]]);
    }

    #[test]
    fn a_second_delivery_of_a_message_waits_for_the_first() {
        let now = Instant::now();
        let mut lanes = Lanes::default();
        for ticket in [1, 2] {
            lanes.add(key("a"), Job { id: "same".into(), ..job(ticket, true) });
        }
        assert_eq!(numbers(&lanes.draw(10, now)), [[1]]);
        lanes.end(&key("a"), VecDeque::new(), None);
        assert_eq!(numbers(&lanes.draw(10, now)), [[2]]);
    }

    #[test]
    fn what_failed_comes_first_and_its_lane_waits() {
        let now = Instant::now();
        let mut lanes = Lanes::default();
        for number in 1..=3 {
            lanes.add(key("a"), job(number, true));
        }
        lanes.add(key("b"), job(9, false));
        let mut drawn = lanes.draw(2, now);
        assert_eq!(numbers(&drawn), [[1, 2]]);
        let at = now + Duration::from_secs(5);
        lanes.end(&key("a"), std::mem::take(&mut drawn[0].jobs), Some(at));
        assert_eq!(lanes.next_at(), Some(at));
        assert_eq!(numbers(&lanes.draw(9, now)), [[9]]);
        assert!(lanes.draw(9, now).is_empty());
        assert_eq!(numbers(&lanes.draw(9, at)), [[1, 2, 3]]);
    }

    #[test]
    fn a_suspect_runs_when_nothing_else_does_and_nothing_beside_it() {
        let now = Instant::now();
        let mut lanes = Lanes::default();
        let suspect = |number| Job { suspect: Some(20), ..job(number, true) };
        lanes.add(key("a"), job(1, true));
        lanes.add(key("a"), suspect(2));
        lanes.add(key("a"), job(3, true));
        assert_eq!(numbers(&lanes.draw(10, now)), [[1]], "not with a suspect");
        lanes.add(key("b"), job(4, true));
        assert_eq!(numbers(&lanes.draw(10, now)), [[4]], "the suspect is not the next of its lane yet");
        lanes.end(&key("a"), VecDeque::new(), None);
        lanes.add(key("c"), job(5, true));
        assert!(lanes.draw(10, now).is_empty(), "4 runs yet, and 5 waits for the suspect");
        lanes.end(&key("b"), VecDeque::new(), None);
        let mut alone = lanes.draw(10, now);
        assert_eq!(numbers(&alone), [[2]]);
        assert!(lanes.draw(10, now).is_empty());
        let at = now + Duration::from_secs(5);
        lanes.end(&key("a"), std::mem::take(&mut alone[0].jobs), Some(at));
        assert_eq!(numbers(&lanes.draw(10, now)), [[5]], "others go on while it waits");
        lanes.end(&key("c"), VecDeque::new(), None);
        assert_eq!(numbers(&lanes.draw(10, at)), [[2]]);
        lanes.end(&key("a"), VecDeque::new(), None);
        assert_eq!(numbers(&lanes.draw(10, at)), [[3]]);
    }

    #[test]
    fn what_is_set_aside_keeps_no_other_of_its_key_waiting() {
        let now = Instant::now();
        let mut lanes = Lanes::default();
        (1..=2).for_each(|number| lanes.add(key("a"), job(number, false)));
        let mut drawn = lanes.draw(10, now);
        let at = now + Duration::from_secs(5);
        lanes.set_aside(drawn[0].jobs.pop_front().unwrap(), at);
        lanes.end(&key("a"), VecDeque::new(), None);
        assert_eq!(numbers(&lanes.draw(10, now)), [[2]]);
        assert!(lanes.draw(10, now).is_empty());
        assert_eq!(numbers(&lanes.draw(10, at)), [[1]]);
    }

    proptest! {
        /// Whatever is drawn, put back and ended: each key in order, each message once at a time, and none is forgotten.
        #[test]
        fn every_message_runs_to_its_end_in_the_order_of_its_key(
            keys in proptest::collection::vec((0..4_u8, any::<bool>(), proptest::bool::weighted(0.1)), 1..40),
            most in 1..6_usize,
            fates in proptest::collection::vec(0..4_u8, 0..200),
        ) {
            let mut now = Instant::now();
            let mut lanes = Lanes::default();
            for (number, (lane, works, is_suspect)) in (0..).zip(&keys) {
                let suspect = is_suspect.then_some(20);
                lanes.add(key(&lane.to_string()), Job { suspect, ..job(number, *works) });
            }
            let mut fates = fates.into_iter();
            let mut ended: Vec<u64> = Vec::new();
            let mut rounds = 0;
            while ended.len() < keys.len() {
                rounds += 1;
                prop_assert!(rounds < 10_000, "stuck");
                now += Duration::from_secs(1);
                let drawn = lanes.draw(most, now);
                prop_assert!(drawn.iter().map(|drawn| drawn.jobs.len()).sum::<usize>() <= most.max(1));
                let jobs = || drawn.iter().flat_map(|drawn| &drawn.jobs);
                prop_assert!(jobs().all(|job| job.suspect.is_none()) || jobs().count() == 1, "a suspect is alone");
                for Drawn { lane, mut jobs } in drawn {
                    match fates.next() {
                        Some(0) => lanes.end(&lane, jobs, None),
                        Some(1) => lanes.end(&lane, jobs, Some(now + Duration::from_secs(3))),
                        Some(2) => {
                            ended.extend(jobs.pop_front().map(|job| job.ticket.0));
                            lanes.end(&lane, jobs, None);
                        }
                        _ => {
                            ended.extend(jobs.drain(..).map(|job| job.ticket.0));
                            lanes.end(&lane, VecDeque::new(), None);
                        }
                    }
                }
            }
            for lane in 0..4_u8 {
                let of_lane: Vec<_> = ended.iter().filter(|number| keys[usize::try_from(**number).unwrap()].0 == lane).collect();
                prop_assert!(of_lane.is_sorted(), "{ended:?}");
            }
        }
    }
}

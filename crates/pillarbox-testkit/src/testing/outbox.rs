//! The outbox of a test.

use std::{
    collections::{BTreeSet, HashMap},
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use pillarbox_core::{
    EventId, Outbox, Outcome,
    domain::{Seq, Status, Timestamp},
    engine::ByHand,
    port::{Found, Query, Store},
};
use tokio::sync::Mutex;

use super::{
    recorder::{Recorder, Run},
    report::{DrainError, Drained, all, describe, in_status, name},
    twice::Twice,
};
use crate::{ManualClock, MemoryStore, patience::PATIENCE};

/// An event that is delivered so often in one drain would be for ever; and where there are so many deliveries, handlers
/// write events that make them write events.
const TOO_OFTEN: usize = 300;
const TOO_MANY: usize = 100_000;

/// An outbox that delivers when it is told to. It is an [`Outbox`] in everything else: pass `&outbox` to the code under
/// test, or a clone of it. Made by [`outbox`](super::outbox()) and [`outbox_on`](super::outbox_on).
#[derive(Debug)]
pub struct TestOutbox<S = MemoryStore> {
    outbox: Outbox<S>,
    hand: Mutex<Hand>,
    recorder: Recorder,
    clock: Option<Arc<ManualClock>>,
    twice: Option<Twice>,
    crash: AtomicBool,
}

#[derive(Debug)]
struct Hand {
    engine: ByHand,
    /// It was stopped halfway: whatever it remembers is not to be relied on.
    torn: bool,
}

/// How far a run goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    Everything,
    Once,
}

/// How one turn from joining to leaving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Idle,
    Worked,
    Crashed,
}

impl<S: Store> TestOutbox<S> {
    pub(super) fn new(
        outbox: Outbox<S>,
        engine: ByHand,
        recorder: Recorder,
        clock: Option<Arc<ManualClock>>,
        twice: Option<Twice>,
    ) -> Self {
        let hand = Mutex::new(Hand { engine, torn: false });
        Self { outbox, hand, recorder, clock, twice, crash: AtomicBool::new(false) }
    }

    /// Runs the handlers until nothing is due any more: also for the events that they write themselves, and again for
    /// those that failed, until they are done or dead. The clock of an outbox in memory is moved on to each next attempt;
    /// on another store the time is waited for, half a minute at the most.
    ///
    /// What stays behind are events with a delay of their own that is not over, and those behind a dead one of their key.
    ///
    /// Handlers that wait run side by side, as many as the outbox has workers, in the task that calls this. A drain that
    /// is dropped before it ends is a crash.
    pub async fn drain(&self) -> Result<Drained, DrainError> {
        self.run(Extent::Everything).await
    }

    /// Delivers what is due now, each event once, and moves no clock: to look at what is between two attempts. Of the
    /// events of one key, as many are delivered as go well.
    pub async fn step(&self) -> Result<Drained, DrainError> {
        self.run(Extent::Once).await
    }

    /// Makes the next drain in which a handler runs end as if the process died before the outcome was stored. The next
    /// drain after that, of this outbox or of another on the same store, delivers the event again, as reality would: it
    /// is the same attempt, under a new fencing token, and a suspect. What a transactional handler did is rolled back.
    ///
    /// ```
    /// # use pillarbox_core::{Delivery, Event};
    /// # use pillarbox_testkit::testing;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let outbox = testing::outbox().route("Happened", |_: Delivery| async {}).start().await?;
    /// # let mut tx = outbox.begin().await?;
    /// # tx.write(Event::builder("Happened").json(&7)).await?;
    /// # tx.commit().await?;
    /// outbox.crash_after_handler();
    /// let report = outbox.drain().await?;
    /// assert!(report.crashed && report.delivered.is_empty());
    /// assert_eq!(outbox.drain().await?.delivered.len(), 1);
    /// # Ok(()) }
    /// ```
    pub fn crash_after_handler(&self) {
        self.crash.store(true, Ordering::Relaxed);
    }

    async fn run(&self, extent: Extent) -> Result<Drained, DrainError> {
        let mut hand = self.hand.lock().await;
        if std::mem::replace(&mut hand.torn, true) {
            hand.engine.crash();
            self.recorder.take();
        }
        let store = self.outbox.store();
        let buried: BTreeSet<Seq> = in_status(store, &[Status::Dead]).await?.iter().map(|found| found.seq).collect();
        let mut drain =
            Drain { report: Drained::default(), delivered: HashMap::new(), deliveries: 0, begun: Instant::now() };
        self.turns(&mut hand.engine, &mut drain, extent).await?;
        hand.torn = false;
        let mut dead = in_status(store, &[Status::Dead]).await?;
        dead.retain(|found| !buried.contains(&found.seq));
        drain.report.bury(dead);
        Ok(drain.report)
    }

    async fn turns(&self, engine: &mut ByHand, drain: &mut Drain, extent: Extent) -> Result<(), DrainError> {
        loop {
            match (self.turn(engine, drain, extent).await?, extent) {
                (Turn::Crashed, _) | (_, Extent::Once) => return Ok(()),
                (Turn::Worked, Extent::Everything) => {}
                (Turn::Idle, Extent::Everything) => match self.next_attempt().await? {
                    Some(due) => self.wait_until(due, drain).await?,
                    None => return Ok(()),
                },
            }
        }
    }

    /// From joining to leaving.
    async fn turn(&self, engine: &mut ByHand, drain: &mut Drain, extent: Extent) -> Result<Turn, DrainError> {
        let mut turn = Turn::Idle;
        engine.join().await?;
        loop {
            // What a crash follows is not committed either.
            engine.doom(self.twice.is_some() || self.crash.load(Ordering::Relaxed));
            let mut runs = self.work(engine).await?;
            if !runs.is_empty() && self.crash.swap(false, Ordering::Relaxed) {
                drain.report.lose(&runs);
                drain.report.crashed = true;
                engine.crash();
                return Ok(Turn::Crashed);
            }
            if let (Some(twice), false) = (&self.twice, runs.is_empty()) {
                drain.report.lose(&runs);
                runs = self.again(engine, twice, runs).await?;
            }
            // What transactional handlers did is settled already.
            let worked = engine.settle().await > 0 || !runs.is_empty();
            let too_often = drain.count(&runs);
            drain.report.add(runs);
            if worked {
                turn = Turn::Worked;
            }
            if let Some((id, why)) = too_often {
                let found = all(self.outbox.store(), &Query { id: Some(id), ..Query::default() }).await?;
                return Err(self.stuck(why, found).await);
            }
            // With what a handler has just written in memory, the first run would be of another event than the second,
            // which begins with what is in the table.
            if !worked || extent == Extent::Once || self.twice.is_some() {
                engine.leave().await;
                return Ok(turn);
            }
        }
    }

    async fn work(&self, engine: &mut ByHand) -> Result<Vec<Run>, DrainError> {
        engine.read().await?;
        match self.twice {
            None => engine.work().await,
            Some(_) => engine.work_until(self.recorder.halt()).await,
        }
        Ok(self.recorder.take())
    }

    /// Loses the outcome of the first run, and gives that of the second.
    async fn again(&self, engine: &mut ByHand, twice: &Twice, first: Vec<Run>) -> Result<Vec<Run>, DrainError> {
        twice.first().await;
        // A transactional handler's work was rolled back, and is again: what the two runs have left elsewhere is compared.
        let transactional = engine.has_rolled_back();
        engine.crash();
        engine.join().await?;
        engine.doom(transactional);
        let mut second = self.work(engine).await?;
        let difference = twice.difference().await;
        if engine.has_rolled_back() {
            engine.crash();
            engine.join().await?;
            engine.doom(false);
            second = self.work(engine).await?;
        }
        let done = |runs: &[Run]| match runs {
            [Run { delivery, result: Ok(Outcome::Done) }] => Some(delivery.event().clone()),
            _ => None,
        };
        match (done(&first), done(&second), difference) {
            (Some(event), Some(same), Some((first, second))) if event.id() == same.id() => {
                Err(DrainError::NotIdempotent { event: name(&event), first, second })
            }
            _ => Ok(second),
        }
    }

    /// When the next event is due that has failed or was put off.
    async fn next_attempt(&self) -> Result<Option<Timestamp>, DrainError> {
        let store = self.outbox.store();
        let waiting = in_status(store, &[Status::Retry]).await?;
        let now = store.stats().await?.now;
        Ok(waiting.iter().filter_map(|found| found.available_at).filter(|due| *due > now).min())
    }

    async fn wait_until(&self, due: Timestamp, drain: &Drain) -> Result<(), DrainError> {
        if let Some(clock) = &self.clock {
            clock.set(due);
            return Ok(());
        }
        let store = self.outbox.store();
        let wait = due.since(store.stats().await?.now);
        if drain.begun.elapsed() + wait > PATIENCE {
            let waiting = in_status(store, &[Status::Retry]).await?;
            let why = format!("the drain would take longer than {PATIENCE:?}: a shorter retry policy helps");
            return Err(self.stuck(why, waiting).await);
        }
        tokio::time::sleep(wait).await;
        Ok(())
    }

    async fn stuck(&self, why: String, events: Vec<Found>) -> DrainError {
        let now = self.outbox.store().stats().await.map(|stats| stats.now).unwrap_or_default();
        DrainError::Stuck { why, events: events.iter().map(|found| describe(found, now)).collect() }
    }
}

impl TestOutbox<MemoryStore> {
    /// Moves the clock on: what was written with a delay comes due, and the next drain delivers it.
    pub fn advance(&self, span: Duration) {
        if let Some(clock) = &self.clock {
            clock.advance(span);
        }
    }
}

/// A drain under way.
struct Drain {
    report: Drained,
    delivered: HashMap<EventId, usize>,
    deliveries: usize,
    begun: Instant,
}

impl Drain {
    /// Counts the deliveries; says which was one too many, and why.
    fn count(&mut self, runs: &[Run]) -> Option<(EventId, String)> {
        let mut last = None;
        for run in runs {
            let id = run.delivery.event().id();
            let times = self.delivered.entry(id).or_default();
            *times += 1;
            if *times >= TOO_OFTEN {
                return Some((id, format!("an event was delivered {TOO_OFTEN} times in one drain")));
            }
            last = Some(id);
        }
        self.deliveries += runs.len();
        let why = || format!("there were {TOO_MANY} deliveries in one drain, and it did not end; the last one was");
        last.filter(|_| self.deliveries >= TOO_MANY).map(|id| (id, why()))
    }
}

impl<S> Deref for TestOutbox<S> {
    type Target = Outbox<S>;

    fn deref(&self) -> &Outbox<S> {
        &self.outbox
    }
}

//! One message from its lane to its end.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use pillarbox_core::{
    domain::{Delivery, Record, Verdict},
    engine::Takes,
    port::StoreErrorKind,
};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{
    OnUnknown, Shared,
    in_tx::Ended,
    lanes::{Drawn, Job, LaneKey, Marked, Next},
};
use crate::{Error, Parked, letters::REPLAY_FOR};

/// A transaction that takes longer than this is too large.
const LONGEST: Duration = Duration::from_millis(250);

/// When a dead letter queue that refuses a message is asked again: somebody has to change it first.
const ASIDE: Duration = Duration::from_mins(1);

pub(super) struct Worker {
    shared: Arc<Shared>,
    /// How many messages a transaction takes: fewer when it took too long.
    size: AtomicUsize,
}

/// What becomes of a job for now.
enum Fate {
    /// It is dealt with.
    Over,
    /// It comes again.
    Again(Job, Duration),
    /// The same, and its key does not wait for it.
    Aside(Job, Duration),
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let size = AtomicUsize::new(shared.settings.messages_per_transaction);
        Self { shared, size }
    }

    /// Until `stop`; what runs then is finished, unless `abort` comes first.
    pub(super) async fn run(self, stop: CancellationToken, abort: CancellationToken) {
        while let Some(drawn) = self.next(&stop).await {
            self.run_drawn(drawn, &abort).await;
        }
    }

    async fn next(&self, stop: &CancellationToken) -> Option<Vec<Drawn>> {
        loop {
            if stop.is_cancelled() {
                return None;
            }
            let next_at = {
                let mut lanes = self.shared.lanes.lock();
                let drawn = lanes.draw(self.size.load(Ordering::Relaxed), Instant::now());
                if !drawn.is_empty() {
                    if lanes.is_ready() {
                        self.shared.work.notify_one();
                    }
                    return Some(drawn);
                }
                lanes.next_at()
            };
            let due = async {
                match next_at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return None,
                () = self.shared.work.notified() => {}
                () = due => {}
            }
        }
    }

    async fn run_drawn(&self, mut drawn: Vec<Drawn>, abort: &CancellationToken) {
        let calls = &self.shared.calls;
        let waits = |job: &Job| matches!(&job.next, Next::Work(delivery) if calls.wait(delivery.event()).is_some());
        // Together with others they would only undo what these did.
        let waiting: Vec<_> = drawn.extract_if(.., |drawn| drawn.jobs.iter().any(waits)).collect();
        let works = drawn.iter().flat_map(|drawn| &drawn.jobs).all(|job| matches!(job.next, Next::Work(_)));
        let count: usize = drawn.iter().map(|drawn| drawn.jobs.len()).sum();
        if works && count > 1 && self.run_together(&mut drawn, abort).await {
            drawn.clear();
        }
        for drawn in drawn.into_iter().chain(waiting) {
            self.run_lane(drawn, abort).await;
        }
    }

    /// All in one transaction. `false` if one of them failed, and each has to go alone.
    async fn run_together(&self, drawn: &mut Vec<Drawn>, abort: &CancellationToken) -> bool {
        let shared = &self.shared;
        let Some(desk) = &shared.desk else { return false };
        let begun = Instant::now();
        let ended = {
            let messages: Vec<(&str, &Delivery)> = drawn
                .iter()
                .flat_map(|drawn| &drawn.jobs)
                .filter_map(|job| match &job.next {
                    Next::Work(delivery) => Some((&*job.id, delivery)),
                    Next::Handle(_) | Next::Enter | Next::Park { .. } => None,
                })
                .collect();
            let foreign = |job: &Job| for_another(job, &shared.name);
            if drawn.iter().flat_map(|drawn| &drawn.jobs).any(foreign) {
                return false;
            }
            tokio::select! {
                biased;
                ended = desk.run(&shared.calls, &shared.name, &messages) => ended,
                () = abort.cancelled() => {
                    // Dropped, and rolled back by that.
                    for Drawn { lane, jobs } in drawn.drain(..) {
                        shared.lanes.lock().end(&lane, jobs, None);
                    }
                    return true;
                }
            }
        };
        self.measure_size(begun.elapsed());
        match ended {
            Ended::Committed { known } => {
                let count: usize = drawn.iter().map(|drawn| drawn.jobs.len()).sum();
                shared.meters.handled.increment(count as u64 - known);
                shared.meters.duplicates.increment(known);
                shared
                    .meters
                    .handler_time
                    .record(begun.elapsed().as_secs_f64() / f64::from(u32::try_from(count).unwrap_or(1)));
                let tickets = drawn.iter().flat_map(|drawn| drawn.jobs.iter().map(|job| job.ticket));
                shared.dealt_with.lock().extend(tickets);
                shared.done.notify_one();
                let mut lanes = shared.lanes.lock();
                drawn.iter().for_each(|drawn| lanes.end(&drawn.lane, VecDeque::new(), None));
                let is_more = lanes.is_ready();
                // The messages are dropped by the caller, when others have the lock.
                drop(lanes);
                if is_more {
                    shared.work.notify_one();
                }
                true
            }
            Ended::Failed(_) => false,
            Ended::Database(error) => {
                shared.meters.errors.increment(1);
                tracing::warn!(consumer = %shared.name, error = &error as &dyn std::error::Error, "the consumer's database failed: the messages are tried again, and no attempt is counted");
                for Drawn { lane, mut jobs } in drawn.drain(..) {
                    let pause = jobs.front_mut().map_or(Duration::ZERO, setback);
                    shared.lanes.lock().end(&lane, jobs, Some(Instant::now() + pause));
                }
                shared.work.notify_one();
                true
            }
        }
    }

    fn measure_size(&self, took: Duration) {
        let size = self.size.load(Ordering::Relaxed);
        let next = if took > LONGEST { size / 2 } else { size + size / 8 + 1 };
        self.size.store(next.clamp(1, self.shared.settings.messages_per_transaction), Ordering::Relaxed);
    }

    /// The jobs of one lane, one after another, until one of them has to come again.
    async fn run_lane(&self, drawn: Drawn, abort: &CancellationToken) {
        let Drawn { lane, mut jobs } = drawn;
        let shared = &self.shared;
        while let Some(job) = jobs.pop_front() {
            match self.run_one(job, abort).await {
                Fate::Over => {}
                Fate::Aside(job, after) if !matches!(lane, LaneKey::Alone(_)) => {
                    shared.lanes.lock().set_aside(job, Instant::now() + after);
                    shared.work.notify_one();
                }
                Fate::Again(job, after) | Fate::Aside(job, after) => {
                    jobs.push_front(job);
                    let at = (!after.is_zero()).then(|| Instant::now() + after);
                    shared.lanes.lock().end(&lane, jobs, at);
                    // Somebody has to wait for its time.
                    shared.work.notify_one();
                    return;
                }
            }
        }
        let mut lanes = shared.lanes.lock();
        lanes.end(&lane, VecDeque::new(), None);
        if lanes.is_ready() {
            shared.work.notify_one();
        }
    }

    async fn run_one(&self, job: Job, abort: &CancellationToken) -> Fate {
        let shared = &self.shared;
        if for_another(&job, &shared.name) || self.is_skipped(&job) {
            shared.meters.skipped.increment(1);
            return self.over(&job);
        }
        if abort.is_cancelled() {
            return Fate::Again(job, Duration::ZERO);
        }
        match job.suspect {
            Some(earlier) => self.run_suspect(job, earlier, abort).await,
            None => self.attempt(job, abort).await,
        }
    }

    /// A message that may be what ends the process. It runs alone, and a letter says so first: the next process does not begin it again.
    async fn run_suspect(&self, mut job: Job, earlier: u32, abort: &CancellationToken) -> Fate {
        let shared = &self.shared;
        let reason =
            format!("it was delivered {earlier} times, and when it ran alone its consumer ended before it did");
        let parked = Parked { consumer: &shared.name, message: &job.message, reason: &reason, attempts: 0 };
        let letter = match shared.letters.begin_alone(&parked, &job.by).await {
            Ok(Some(letter)) => letter,
            Ok(None) => {
                job.suspect = None;
                job.next = Next::Park { reason, attempts: 0 };
                return self.park(job).await;
            }
            Err(error) => return self.not_parked(job, &reason, &error),
        };
        tracing::warn!(consumer = %shared.name, id = &*job.id, earlier, "the message was delivered too often: it runs alone");
        let by = job.by.clone();
        let fate = self.attempt(job, abort).await;
        if let Err(error) = shared.letters.end_alone(&letter, &by, &shared.name).await {
            shared.meters.errors.increment(1);
            tracing::warn!(consumer = %shared.name, %letter, error = &error as &dyn std::error::Error, "the letter of a message that ran alone, and did no harm, could not be closed: discard it");
        }
        fate
    }

    async fn attempt(&self, mut job: Job, abort: &CancellationToken) -> Fate {
        let shared = &self.shared;
        let begun = Instant::now();
        let verdict = match &job.next {
            Next::Park { .. } => return self.park(job).await,
            Next::Enter => return self.enter(job).await,
            Next::Work(delivery) => match self.work(&job.id, delivery, abort).await {
                // The work is rolled back, and the fallback has taken the message.
                Ok(Some(Verdict::Done)) => {
                    shared.meters.handler_time.record(begun.elapsed().as_secs_f64());
                    (job.next, job.suspect, job.setbacks) = (Next::Enter, None, 0);
                    return self.enter(job).await;
                }
                Ok(Some(verdict)) => verdict,
                Ok(None) => return Fate::Again(job, Duration::ZERO),
                Err(Ended::Committed { known: 1.. }) => return self.known(&job),
                Err(Ended::Committed { known: 0 }) => Verdict::Done,
                Err(Ended::Failed(_) | Ended::Database(_)) => {
                    let pause = setback(&mut job);
                    return Fate::Again(job, pause);
                }
            },
            Next::Handle(_) => {
                if let Some(fate) = self.pass_guard(&mut job).await {
                    return match fate {
                        Passed::Known => self.known(&job),
                        Passed::Not => {
                            let pause = setback(&mut job);
                            Fate::Again(job, pause)
                        }
                    };
                }
                let Next::Handle(delivery) = &mut job.next else { return Fate::Again(job, Duration::ZERO) };
                let called = tokio::select! {
                    biased;
                    called = shared.calls.call(delivery) => Some(called),
                    () = abort.cancelled() => None,
                };
                let Some(called) = called else { return Fate::Again(job, Duration::ZERO) };
                if called.progress.is_some() {
                    *delivery = with(delivery, |record| record.progress = called.progress);
                }
                called.verdict
            }
        };
        shared.meters.handler_time.record(begun.elapsed().as_secs_f64());
        job.setbacks = 0;
        self.conclude(job, verdict).await
    }

    async fn conclude(&self, mut job: Job, verdict: Verdict) -> Fate {
        let shared = &self.shared;
        match verdict {
            Verdict::Done => {
                shared.meters.handled.increment(1);
                self.over(&job)
            }
            Verdict::Retry { attempts, after, error } => {
                shared.meters.failed.increment(1);
                tracing::warn!(consumer = %shared.name, id = &*job.id, attempts, ?after, error, "the message failed and is tried again");
                if let Next::Handle(delivery) | Next::Work(delivery) = &mut job.next {
                    *delivery = with(delivery, |record| record.attempts = attempts);
                }
                self.unmark(&mut job).await;
                Fate::Again(job, after.max(Duration::from_millis(1)))
            }
            Verdict::Defer { after } => {
                shared.meters.deferred.increment(1);
                self.unmark(&mut job).await;
                Fate::Again(job, after.max(Duration::from_millis(1)))
            }
            Verdict::Dead { attempts, error } => {
                shared.meters.failed.increment(1);
                (job.next, job.suspect) = (Next::Park { reason: error, attempts }, None);
                self.park(job).await
            }
        }
    }

    /// Into the inbox, what a fallback has dealt with: the next delivery is known then.
    async fn enter(&self, mut job: Job) -> Fate {
        let shared = &self.shared;
        let Some(desk) = &shared.desk else { return self.over(&job) };
        if let Err(error) = desk.enter(&shared.name, &job.id).await {
            shared.meters.errors.increment(1);
            if !is_refused(&error) {
                tracing::warn!(consumer = %shared.name, id = &*job.id, error = &error as &dyn std::error::Error, "a message that its fallback took can't be entered in the inbox: it is held, and tried again");
                let pause = setback(&mut job);
                return Fate::Again(job, pause);
            }
            tracing::error!(consumer = %shared.name, id = &*job.id, error = &error as &dyn std::error::Error, "a message that its fallback took can't be entered in the inbox: if it comes again, it is taken for new");
        }
        shared.meters.handled.increment(1);
        self.over(&job)
    }

    /// One message in a transaction of its own: a verdict, none if it was cut off, or how the transaction ended otherwise.
    async fn work(&self, id: &str, delivery: &Delivery, abort: &CancellationToken) -> Result<Option<Verdict>, Ended> {
        let shared = &self.shared;
        let Some(desk) = &shared.desk else { return Ok(Some(shared.calls.call(delivery).await.verdict)) };
        if let Some(after) = shared.calls.wait(delivery.event()) {
            return Ok(Some(Verdict::Defer { after }));
        }
        let messages = [(id, delivery)];
        let ended = tokio::select! {
            biased;
            ended = desk.run(&shared.calls, &shared.name, &messages) => ended,
            () = abort.cancelled() => return Ok(None),
        };
        match ended {
            Ended::Failed(worked) => Ok(Some(shared.calls.judge_work(delivery, worked).await)),
            Ended::Database(error) => {
                shared.meters.errors.increment(1);
                tracing::warn!(consumer = %shared.name, id, error = &error as &dyn std::error::Error, "the consumer's database failed: the message is tried again, and no attempt is counted");
                Err(Ended::Database(error))
            }
            committed @ Ended::Committed { .. } => Err(committed),
        }
    }

    /// Marks a message, unless it is marked for this very job.
    async fn pass_guard(&self, job: &mut Job) -> Option<Passed> {
        let shared = &self.shared;
        let guard = shared.guard.as_ref().filter(|_| job.marked != Marked::Yes)?;
        let asked = async {
            if job.marked == Marked::Perhaps {
                // Its own mark would be taken for another's, and the message dropped.
                guard.release_by(&shared.name, &job.id, &job.by).await?;
            }
            // A replay has no mark of its own: what another delivery has done since is known, and what was given up has none.
            guard.take_by(&shared.name, &job.id, &job.by).await
        };
        match asked.await {
            Ok(true) => {
                job.marked = Marked::Yes;
                None
            }
            Ok(false) => {
                job.marked = Marked::No;
                Some(Passed::Known)
            }
            Err(error) => {
                job.marked = Marked::Perhaps;
                shared.meters.errors.increment(1);
                tracing::warn!(consumer = %shared.name, id = &*job.id, error = &error as &dyn std::error::Error, "the guard can't be asked: the message waits");
                // It may come to be marked after this, so it is asked again.
                let _ = guard.release_by(&shared.name, &job.id, &job.by).await;
                Some(Passed::Not)
            }
        }
    }

    /// Takes the mark off, as no work is under way: if the process dies now, the next delivery is the first. `false` if it may stand.
    async fn unmark(&self, job: &mut Job) -> bool {
        let shared = &self.shared;
        let Some(guard) = shared.guard.as_ref().filter(|_| job.marked != Marked::No) else { return true };
        match guard.release_by(&shared.name, &job.id, &job.by).await {
            Ok(()) => {
                job.marked = Marked::No;
                true
            }
            Err(error) => {
                job.marked = Marked::Perhaps;
                shared.meters.errors.increment(1);
                tracing::warn!(consumer = %shared.name, id = &*job.id, error = &error as &dyn std::error::Error, "the mark of a message that waits could not be taken off; it is tried again when the wait is over");
                false
            }
        }
    }

    /// Into the dead letter queue. As long as that fails the message is held, and is not acknowledged.
    async fn park(&self, mut job: Job) -> Fate {
        let shared = &self.shared;
        // Before the letter is there: a replay of it would be taken for known.
        if !self.unmark(&mut job).await {
            let pause = setback(&mut job);
            return Fate::Again(job, pause);
        }
        let Next::Park { reason, attempts } = &job.next else { return Fate::Again(job, Duration::ZERO) };
        let parked = Parked { consumer: &shared.name, message: &job.message, reason, attempts: *attempts };
        match shared.letters.park(&parked).await {
            Ok(letter) => {
                shared.meters.parked.increment(1);
                tracing::error!(consumer = %shared.name, id = &*job.id, %letter, attempts, reason, "the message was given up: it is in the dead letter queue");
                self.over(&job)
            }
            Err(error) => {
                let reason = reason.clone();
                self.not_parked(job, &reason, &error)
            }
        }
    }

    /// The dead letter queue has not taken a message: it is held, and is not acknowledged.
    fn not_parked(&self, mut job: Job, reason: &str, error: &Error) -> Fate {
        let shared = &self.shared;
        shared.meters.errors.increment(1);
        if is_refused(error) {
            tracing::error!(consumer = %shared.name, id = &*job.id, error = error as &dyn std::error::Error, reason, bytes = job.message.payload.len(), "the dead letter queue refuses a message: it is held and not acknowledged, its key goes on without it, and the queue is asked every minute. If the letter is too large, let the queue take larger values (on NATS by max_payload), or use one in an SQL database");
            return Fate::Aside(job, ASIDE);
        }
        tracing::error!(consumer = %shared.name, id = &*job.id, error = error as &dyn std::error::Error, reason, "a message can't be put into the dead letter queue: it is held, and tried again");
        let pause = setback(&mut job);
        Fate::Again(job, pause)
    }

    fn is_skipped(&self, job: &Job) -> bool {
        let Next::Handle(delivery) = &job.next else { return false };
        self.shared.settings.on_unknown == OnUnknown::Skip && self.shared.calls.takes(delivery.event()) == Takes::Nobody
    }

    fn known(&self, job: &Job) -> Fate {
        self.shared.meters.duplicates.increment(1);
        tracing::debug!(consumer = %self.shared.name, id = &*job.id, "the message is known already");
        self.over(job)
    }

    /// It is dealt with, and that is durable.
    fn over(&self, job: &Job) -> Fate {
        self.shared.dealt_with.lock().push(job.ticket);
        self.shared.done.notify_one();
        Fate::Over
    }
}

enum Passed {
    Known,
    Not,
}

/// How long to wait after a failure that is not the message's.
fn setback(job: &mut Job) -> Duration {
    job.setbacks = job.setbacks.saturating_add(1);
    Duration::from_millis(50).saturating_mul(1 << job.setbacks.min(9)).min(Duration::from_secs(10))
}

/// Whether asking again changes nothing, unless somebody changes the database.
fn is_refused(error: &Error) -> bool {
    matches!(error, Error::Name { .. } | Error::Unreadable { .. })
        || matches!(error, Error::Store(error) if error.kind() == StoreErrorKind::Rejected)
}

/// A replay is for the consumer that gave the message up.
fn for_another(job: &Job, consumer: &str) -> bool {
    job.message.header(REPLAY_FOR).is_some_and(|whose| whose != consumer)
}

fn with(delivery: &Delivery, change: impl FnOnce(&mut Record)) -> Delivery {
    let mut record = delivery.record().clone();
    change(&mut record);
    Delivery::new(record, delivery.fencing_token())
}

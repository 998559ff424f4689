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
};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{
    OnUnknown, Shared,
    in_tx::Ended,
    lanes::{Drawn, Job, Marked, Next},
};
use crate::{
    Parked,
    letters::{REPLAY_FOR, REPLAY_NUMBER},
};

/// A transaction that takes longer than this is too large.
const LONGEST: Duration = Duration::from_millis(250);

pub(super) struct Worker {
    shared: Arc<Shared>,
    /// How many messages a transaction takes: fewer when it took too long.
    size: AtomicUsize,
}

/// What becomes of a job for now.
#[expect(clippy::large_enum_variant, reason = "it is looked at where it is made, and never kept")]
enum Fate {
    /// It is dealt with.
    Over,
    /// It comes again.
    Again(Job, Duration),
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
        let works = drawn.iter().flat_map(|drawn| &drawn.jobs).all(|job| matches!(job.next, Next::Work(_)));
        let count: usize = drawn.iter().map(|drawn| drawn.jobs.len()).sum();
        if works && count > 1 && self.run_together(&mut drawn, abort).await {
            return;
        }
        for drawn in drawn {
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
                    Next::Handle(_) | Next::Park { .. } => None,
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
                Fate::Again(job, after) => {
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

    async fn run_one(&self, mut job: Job, abort: &CancellationToken) -> Fate {
        let shared = &self.shared;
        if for_another(&job, &shared.name) || self.is_skipped(&job) {
            shared.meters.skipped.increment(1);
            return self.over(&job);
        }
        if abort.is_cancelled() {
            return Fate::Again(job, Duration::ZERO);
        }
        let begun = Instant::now();
        let verdict = match &job.next {
            Next::Park { .. } => return self.park(job).await,
            Next::Work(delivery) => match self.work(&job.id, delivery, abort).await {
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
                Fate::Again(job, after.max(Duration::from_millis(1)))
            }
            Verdict::Defer { after } => {
                shared.meters.deferred.increment(1);
                Fate::Again(job, after.max(Duration::from_millis(1)))
            }
            Verdict::Dead { attempts, error } => {
                shared.meters.failed.increment(1);
                job.next = Next::Park { reason: error, attempts };
                self.park(job).await
            }
        }
    }

    /// One message in a transaction of its own: a verdict, none if it was cut off, or how the transaction ended otherwise.
    async fn work(&self, id: &str, delivery: &Delivery, abort: &CancellationToken) -> Result<Option<Verdict>, Ended> {
        let shared = &self.shared;
        let Some(desk) = &shared.desk else { return Ok(Some(shared.calls.call(delivery).await.verdict)) };
        let messages = [(id, delivery)];
        let ended = tokio::select! {
            biased;
            ended = desk.run(&shared.calls, &shared.name, &messages) => ended,
            () = abort.cancelled() => return Ok(None),
        };
        match ended {
            Ended::Failed(result) => Ok(Some(shared.calls.judge_work(delivery, result).await)),
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
        let name = mark(job);
        let asked = async {
            if job.marked == Marked::Perhaps {
                // Its own mark would be taken for another's, and the message dropped.
                guard.release_by(&shared.name, &name, &job.by).await?;
            }
            guard.take_by(&shared.name, &name, &job.by).await
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
                Some(Passed::Not)
            }
        }
    }

    /// Into the dead letter queue. As long as that fails the message is held, and is not acknowledged.
    async fn park(&self, mut job: Job) -> Fate {
        let shared = &self.shared;
        let Next::Park { reason, attempts } = &job.next else { return Fate::Again(job, Duration::ZERO) };
        let parked = Parked { consumer: &shared.name, message: &job.message, reason, attempts: *attempts };
        match shared.letters.park(&parked).await {
            Ok(letter) => {
                shared.meters.parked.increment(1);
                tracing::error!(consumer = %shared.name, id = &*job.id, %letter, attempts, reason, "the message was given up: it is in the dead letter queue");
                if let Some(guard) = shared.guard.as_ref().filter(|_| job.marked != Marked::No)
                    && let Err(error) = guard.release_by(&shared.name, &mark(&job), &job.by).await
                {
                    // No harm: a replay has a mark of its own.
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        id = &*job.id,
                        "a mark could not be taken off"
                    );
                }
                self.over(&job)
            }
            Err(error) => {
                shared.meters.errors.increment(1);
                tracing::error!(consumer = %shared.name, id = &*job.id, error = &error as &dyn std::error::Error, reason, "a message can't be put into the dead letter queue: it is held, and tried again");
                let pause = setback(&mut job);
                Fate::Again(job, pause)
            }
        }
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

/// What a job's mark goes by: each replay has its own, so that none is taken for what was there before it.
pub(super) fn mark(job: &Job) -> String {
    match job.message.header(REPLAY_NUMBER) {
        Some(number) => format!("{}#{number}", job.id),
        None => job.id.to_string(),
    }
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

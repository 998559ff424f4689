//! The workers: each draws a job, runs its handler, and leaves the outcome to the settler.
//!
//! A worker never waits for the database on its way (suspects apart), and never sleeps while a queue has
//! something for it. When the process dies:
//! - before the handler runs: the event is delivered by the next owner;
//! - while it runs, or before its outcome is durable: the event is delivered again. If it was the event that
//!   killed the process, the next owner finds it among its suspects, starts it alone and counted, and makes
//!   it DEAD when it has killed often enough.

use std::{
    any::Any,
    panic::AssertUnwindSafe,
    sync::{Arc, atomic::Ordering},
};

use futures_util::FutureExt;
use tokio::time::{Duration, Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::{
    flight::{End, Job, Then},
    handler::Handler,
    settings::{OnDeadHead, OnSuccess},
    shared::Shared,
};
use crate::{
    domain::{Delivery, Epoch, Failure, Outcome, RetryPolicy, Seq, Verdict, decide},
    port::Change,
};

/// How a delivery ended, as interceptors are told.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// What the handler (or what stood in its way) answered.
    pub result: Result<Outcome, Failure>,
    /// How long the handler took.
    pub elapsed: Duration,
}

/// Which queue a worker serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Serves {
    /// Hot and cold.
    Queues,
    /// Suspects, one at a time.
    Suspects,
}

#[derive(Debug)]
pub(crate) struct Worker {
    shared: Arc<Shared>,
    serves: Serves,
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>, serves: Serves) -> Self {
        Self { shared, serves }
    }

    /// Delivers until `stop`; what runs then is finished, unless `abort` comes first.
    pub(crate) async fn run(self, stop: CancellationToken, abort: CancellationToken) {
        let mut session = self.shared.session();
        while let Some(job) = self.next(&stop).await {
            if session.is_cancelled() {
                let flight = self.shared.flight.lock();
                session = self.shared.session();
                if !flight.is_running(&job.delivery) {
                    // Drawn before the loss: the new session is not this job's.
                    continue;
                }
            }
            self.shared.running.fetch_add(1, Ordering::Relaxed);
            let (seq, epoch) = (job.delivery.seq(), job.delivery.fencing_token());
            self.deliver(job, &session, &abort).await;
            self.shared.running.fetch_sub(1, Ordering::Relaxed);
            if self.serves == Serves::Suspects {
                self.shared.full_batch.notify_one();
                self.until_settled(seq, epoch, &stop).await;
            }
        }
    }

    /// A suspect's outcome must be durable before the next one starts: if that one ends the process, the
    /// count of this one must have been cleared, or neighbours of a poison event would die with it. Under another
    /// epoch it is another delivery, which may be waiting for this very worker.
    async fn until_settled(&self, seq: Seq, epoch: Epoch, stop: &CancellationToken) {
        loop {
            let mut settled = std::pin::pin!(self.shared.settled.notified());
            settled.as_mut().enable();
            if !self.shared.flight.lock().is_in_flight(seq, epoch) {
                return;
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = settled => {}
            }
        }
    }

    async fn next(&self, stop: &CancellationToken) -> Option<Job> {
        loop {
            if stop.is_cancelled() {
                return None;
            }
            if let Some(job) = self.draw(false) {
                return Some(job);
            }
            let bell = match self.serves {
                Serves::Queues => &self.shared.work,
                Serves::Suspects => &self.shared.solo,
            };
            let mut rung = std::pin::pin!(bell.notified());
            // Listening before the second look: what comes in between rings the bell.
            rung.as_mut().enable();
            if let Some(job) = self.draw(true) {
                return Some(job);
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = rung => {}
            }
            if self.serves == Serves::Queues {
                self.shared.flight.lock().set_idle(false);
            }
        }
    }

    fn draw(&self, or_sleep: bool) -> Option<Job> {
        let now = Instant::now();
        let mut flight = self.shared.flight.lock();
        match self.serves {
            Serves::Suspects => flight.draw_solo(now),
            Serves::Queues => {
                let (job, signals) = flight.draw(now);
                if job.is_none() && or_sleep {
                    flight.set_idle(true);
                }
                drop(flight);
                self.shared.signal(signals);
                job
            }
        }
    }

    async fn deliver(&self, job: Job, session: &CancellationToken, abort: &CancellationToken) {
        let shared = &self.shared;
        let delivery = job.delivery;
        if self.serves == Serves::Suspects {
            let started = self.start_suspect(&delivery).await && !session.is_cancelled();
            // Its lease may have been lost while its start was counted, or its partition given up: it is another's now,
            // or this node's under a new epoch.
            if !started || !shared.flight.lock().is_running(&delivery) {
                return;
            }
        }
        let Some(handler) = shared.routes.find(delivery.event()) else {
            self.no_route(&delivery);
            return;
        };
        let begun = Instant::now();
        shared.meters.latency.record(begun.saturating_duration_since(job.written).as_secs_f64());
        let result = {
            let mut run = std::pin::pin!(self.run_handler(handler.as_ref(), &delivery));
            loop {
                let evicted = shared.evicted.notified();
                tokio::select! {
                    biased;
                    result = &mut run => break Some(result),
                    () = session.cancelled() => break None,
                    () = abort.cancelled() => break None,
                    () = evicted => if !shared.flight.lock().is_running(&delivery) {
                        break None;
                    },
                }
            }
        };
        let Some(result) = result else {
            let mut flight = shared.flight.lock();
            flight.interrupted(&delivery, self.serves == Serves::Suspects);
            return;
        };
        shared.meters.handler_time.record(begun.elapsed().as_secs_f64());
        let policy = handler.retry().unwrap_or(&shared.settings.retry);
        self.conclude(&delivery, result, policy);
    }

    /// Interceptors, the handler, its timeout and its panics: one result.
    async fn run_handler(&self, handler: &dyn Handler, delivery: &Delivery) -> Result<Outcome, Failure> {
        let limit = handler.timeout().unwrap_or(self.shared.settings.handler_timeout);
        if self.shared.interceptors.is_empty() {
            return guard(limit, || handler.handle(delivery.clone())).await;
        }
        let begun = Instant::now();
        let mut entered = 0;
        let mut refused = None;
        for interceptor in &self.shared.interceptors {
            entered += 1;
            if let Err(failure) = guard(limit, || interceptor.before(delivery)).await {
                refused = Some(failure);
                break;
            }
        }
        let result = match refused {
            Some(failure) => Err(failure),
            None => guard(limit, || handler.handle(delivery.clone())).await,
        };
        let report = Report { result, elapsed: begun.elapsed() };
        for interceptor in self.shared.interceptors[..entered].iter().rev() {
            if let Err(failure) = guard(limit, || interceptor.after(delivery, &report)).await {
                tracing::error!(event_id = %delivery.event().id(), error = %failure, "an interceptor failed after a delivery");
            }
        }
        report.result
    }

    /// Counts the start of a suspect before its effect; `false` when it must not run.
    async fn start_suspect(&self, delivery: &Delivery) -> bool {
        let shared = &self.shared;
        let limit = shared.settings.max_starts;
        if delivery.record().starts >= limit {
            self.conclude(delivery, Err(Failure::Lethal(delivery.record().starts)), &shared.settings.retry);
            return false;
        }
        let lease = shared.flight.lock().owned.lease().cloned();
        let started = match lease {
            Some(lease) => shared.store.start(&lease, delivery.seq()).await,
            None => Ok(None),
        };
        match started {
            Ok(Some(starts)) => {
                tracing::warn!(event_id = %delivery.event().id(), starts, "delivering a suspect: it may have been running when a node died");
                true
            }
            Ok(None) => {
                // Fenced, and then the settle will say so; or no longer pending, and its key goes on without it.
                self.end(delivery, End { change: Change::Interrupted, then: Then::Next });
                false
            }
            Err(error) => {
                shared.meters.loop_errors.increment(1);
                tracing::error!(event_id = %delivery.event().id(), error = &error as &dyn std::error::Error, "a suspect's start could not be counted; it is put off");
                self.put_back(delivery, Duration::from_secs(1));
                shared.flight.lock().suspect(delivery.seq());
                false
            }
        }
    }

    fn put_back(&self, delivery: &Delivery, after: Duration) {
        let change = Change::Retry { attempts: delivery.record().attempts, after, error: None, progress: None };
        self.end(delivery, End { change, then: self.then_after_failure() });
    }

    fn no_route(&self, delivery: &Delivery) {
        let shared = &self.shared;
        let route = delivery.event().route().to_string();
        if shared.peer_routes.lock().contains(&route) {
            let after = shared.settings.route_grace;
            tracing::warn!(event_id = %delivery.event().id(), route, ?after, "no handler here, but another live node has one: the event is deferred");
            shared.meters.deferred.increment(1);
            self.put_back(delivery, after);
        } else {
            self.conclude(delivery, Err(Failure::NoRoute(route)), &shared.settings.retry);
        }
    }

    /// From the result to the verdict, to the settler.
    fn conclude(&self, delivery: &Delivery, result: Result<Outcome, Failure>, policy: &RetryPolicy) {
        let settings = &self.shared.settings;
        let meters = &self.shared.meters;
        let id = delivery.event().id();
        let end = match decide(policy, delivery.record().attempts, result, fastrand::f64()) {
            Verdict::Done => {
                meters.delivered.increment(1);
                let change = match settings.on_success {
                    OnSuccess::Keep => Change::Done,
                    OnSuccess::Delete => Change::Delete,
                };
                End { change, then: Then::Next }
            }
            Verdict::Retry { attempts, after, error } => {
                meters.failed.increment(1);
                tracing::warn!(event_id = %id, attempts, ?after, error, "the delivery failed and is tried again");
                let change = Change::Retry { attempts, after, error: Some(error), progress: None };
                End { change, then: self.then_after_failure() }
            }
            Verdict::Defer { after } => {
                meters.deferred.increment(1);
                tracing::debug!(event_id = %id, ?after, "the delivery is deferred");
                let attempts = delivery.record().attempts;
                let change = Change::Retry { attempts, after, error: None, progress: None };
                End { change, then: self.then_after_failure() }
            }
            Verdict::Dead { attempts, error } => {
                meters.failed.increment(1);
                meters.dead.increment(1);
                tracing::error!(event_id = %id, event_type = %delivery.event().event_type(), attempts, error, "the event is dead");
                let hold = settings.on_dead_head == OnDeadHead::Hold;
                let change = Change::Dead { attempts, error, hold };
                End { change, then: if hold { Then::Hold } else { Then::Next } }
            }
        };
        self.end(delivery, end);
    }

    fn then_after_failure(&self) -> Then {
        if self.shared.settings.stop_on_first_failure { Then::Fail } else { Then::Next }
    }

    fn end(&self, delivery: &Delivery, end: End) {
        let signals = self.shared.flight.lock().answer(delivery, end, Instant::now());
        if let Some(signals) = signals {
            self.shared.signal(signals);
        } else {
            self.shared.meters.stale_settles.increment(1);
            tracing::warn!(event_id = %delivery.event().id(), "the outcome is stale: the partition is no longer this node's");
        }
    }
}

/// Runs user code: its errors, its panics (also while it makes its future) and its timeout are failures.
async fn guard<T, E, F>(limit: Duration, make: impl FnOnce() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, E>>,
    E: Into<crate::domain::HandlerError>,
{
    let guarded = AssertUnwindSafe(async { make().await }).catch_unwind();
    match timeout(limit, guarded).await {
        Ok(Ok(answer)) => answer.map_err(|error| Failure::Error(error.into())),
        Ok(Err(panic)) => Err(Failure::Panic(panic_text(&*panic))),
        Err(_) => Err(Failure::Timeout(limit)),
    }
}

/// The words of a panic.
pub(super) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a value that is not text").to_owned()
}

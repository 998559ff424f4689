//! The workers: each draws a job, runs its handler, and leaves the outcome to the settler. Handlers that take several
//! events are in `batch`, those that work in a transaction of the outbox's database in `in_tx`.
//!
//! A worker never waits for the database on its way (suspects apart), and never sleeps while a queue has
//! something for it. When the process dies:
//! - before the handler runs: the event is delivered by the next owner;
//! - while it runs, or before its outcome is durable: the event is delivered again, to each handler that the row does
//!   not know to have had its part; also when the process died in a fallback, which then runs a second time. If it was the event that
//!   killed the process, the next owner finds it among its suspects, starts it alone and counted, and makes
//!   it DEAD when it has killed often enough.

mod batch;
mod in_tx;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use tokio::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

use super::{
    calling::{Calling, Judged, caught, guard, panic_text, sound},
    flight::{End, Job, Signals, Then},
    handler::{Handler, Registered, Routes, Runs, Several},
    settings::{OnDeadHead, OnSuccess},
    shared::Shared,
    work::Desk,
};
use crate::{
    domain::{Delivery, Epoch, Failure, Outcome, Seq, Verdict, decide},
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

pub(crate) struct Worker {
    shared: Arc<Shared>,
    serves: Serves,
    /// Where its transactional handlers' transactions are begun, if it has such handlers.
    desk: Option<Arc<dyn Desk>>,
    /// Transactions are rolled back at their end, which is noted here: the process is about to die.
    doomed: Option<Arc<AtomicBool>>,
}

/// The handlers of one worker that are cut off: the lease is lost, or the outbox shuts down and waits no longer.
#[derive(Clone, Copy)]
struct Cut<'a> {
    session: &'a CancellationToken,
    abort: &'a CancellationToken,
}

impl Cut<'_> {
    fn is_off(self) -> bool {
        self.session.is_cancelled() || self.abort.is_cancelled()
    }

    async fn off(self) {
        tokio::select! {
            biased;
            () = self.session.cancelled() => {}
            () = self.abort.cancelled() => {}
        }
    }
}

/// Counts a delivery that is under way, however it ends.
struct Running<'a>(&'a AtomicUsize);

impl<'a> Running<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>, serves: Serves, desk: Option<Arc<dyn Desk>>) -> Self {
        Self { shared, serves, desk, doomed: None }
    }

    /// Commits no transaction: for tests in which the process dies before it could.
    pub(crate) fn doomed(mut self, rolled_back: Arc<AtomicBool>) -> Self {
        self.doomed = Some(rolled_back);
        self
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
            let (seq, epoch) = (job.delivery.seq(), job.delivery.fencing_token());
            let running = Running::begin(&self.shared.running);
            self.deliver(job, Cut { session: &session, abort: &abort }).await;
            drop(running);
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
                let (job, mut signals) = flight.draw(now);
                if job.is_none() && or_sleep {
                    flight.set_idle(true);
                    signals.reader |= flight.has_room_again();
                }
                drop(flight);
                self.shared.signal(signals);
                job
            }
        }
    }

    async fn deliver(&self, job: Job, cut: Cut<'_>) {
        let shared = &self.shared;
        if self.serves == Serves::Suspects {
            let started = self.start_suspect(&job.delivery).await && !cut.session.is_cancelled();
            // Its lease may have been lost while its start was counted, or its partition given up: it is another's now,
            // or this node's under a new epoch.
            if !started || !shared.flight.lock().is_running(&job.delivery) {
                return;
            }
        }
        let handlers = shared.routes.find(job.delivery.event());
        match handlers {
            [] => return self.no_route(&job.delivery),
            // In boxes: who has no such handlers need not keep room for them.
            [alone] => match &alone.runs {
                Runs::Each(handler) if takes_several(alone, &**handler, &job.delivery) => {
                    let several = Several(&**handler);
                    return Box::pin(self.deliver_batch(job, alone, alone.at_once(1), &several, cut)).await;
                }
                Runs::Each(_) => {}
                Runs::Batch { most, handler } => {
                    return Box::pin(self.deliver_batch(job, alone, *most, &**handler, cut)).await;
                }
                Runs::InTx(_) => return Box::pin(self.deliver_in_tx(job, cut)).await,
            },
            _ => {}
        }
        let begun = self.begins(&job);
        let delivery = job.delivery;
        // In a frame of its own: who is cut off is dropped at its end, and that is users' code as well.
        let judged = caught(async {
            tokio::select! {
                biased;
                judged = self.run_handlers(handlers, &delivery) => Some(judged),
                () = cut.off() => None,
                () = self.evicted(std::slice::from_ref(&delivery)) => None,
            }
        });
        let judged = match judged.await {
            Ok(Some(judged)) => judged,
            Err(panic) if !cut.is_off() && self.are_running(std::slice::from_ref(&delivery)) => {
                let failure = Err(Failure::Panic(panic_text(&*panic)));
                Judged::alone(self.calling().decide(&handlers[0], &delivery, &failure))
            }
            Ok(None) | Err(_) => return self.interrupted([&delivery]),
        };
        let ended = Instant::now();
        shared.meters.handler_time.record(ended.saturating_duration_since(begun).as_secs_f64());
        let end = self.end_of(&delivery, judged);
        self.end_all([(&delivery, end)], ended);
    }

    /// What is known when a handler begins.
    fn begins(&self, job: &Job) -> Instant {
        let begun = Instant::now();
        self.shared.meters.latency.record(begun.saturating_duration_since(job.written).as_secs_f64());
        begun
    }

    /// Comes back when one of these deliveries is taken from its worker, because its partition is given up.
    fn evicted<'a>(&'a self, deliveries: &'a [Delivery]) -> impl Future<Output = ()> + 'a {
        let mut told = self.shared.evicted.notified();
        async move {
            loop {
                told.await;
                // Listening before the look: what comes in between is heard.
                told = self.shared.evicted.notified();
                if !self.are_running(deliveries) {
                    return;
                }
            }
        }
    }

    fn are_running(&self, deliveries: &[Delivery]) -> bool {
        let flight = self.shared.flight.lock();
        deliveries.iter().all(|delivery| flight.is_running(delivery))
    }

    /// Deliveries that are dropped on their way: no attempt counts.
    fn interrupted<'a>(&self, deliveries: impl IntoIterator<Item = &'a Delivery>) {
        let mut flight = self.shared.flight.lock();
        for delivery in deliveries {
            flight.interrupted(delivery, self.serves == Serves::Suspects);
        }
    }

    /// A job, and what else waits that can be dealt with together with it.
    fn gather(&self, first: Job, most: usize, share: bool, takes: impl Fn(&Registered, &Delivery) -> bool) -> Vec<Job> {
        let mut jobs = vec![first];
        if self.serves == Serves::Suspects || most <= 1 {
            return jobs;
        }
        let routes = &self.shared.routes;
        let gathering = |job: &Job| routes.gathering(job.delivery.event());
        let takes = |job: &Job| gathering(job).is_some_and(|handler| takes(handler, &job.delivery));
        let (along, signals) = self.shared.flight.lock().draw_along(most - 1, share, Instant::now(), takes);
        self.shared.signal(signals);
        jobs.extend(along);
        jobs
    }

    /// The interceptors, and between them the handlers.
    async fn run_handlers(&self, handlers: &[Arc<Registered>], delivery: &Delivery) -> Judged {
        if self.shared.interceptors.is_empty() {
            return self.calling().run_all(handlers, delivery).await.0;
        }
        let limit = self.calling().limit(&handlers[0]);
        let begun = Instant::now();
        let (entered, refused) = self.before(delivery, limit).await;
        let (judged, result) = match refused {
            Some(failure) => {
                let result = Err(failure);
                (Judged::alone(self.calling().decide(&handlers[0], delivery, &result)), result)
            }
            None => self.calling().run_all(handlers, delivery).await,
        };
        self.after(delivery, entered, Report { result, elapsed: begun.elapsed() }, limit).await;
        judged
    }

    /// The interceptors before the handlers: how many were called, and why the last one refused.
    async fn before(&self, delivery: &Delivery, limit: Duration) -> (usize, Option<Failure>) {
        let mut entered = 0;
        for interceptor in &self.shared.interceptors {
            entered += 1;
            if let Err(failure) = guard(limit, || interceptor.before(delivery)).await {
                return (entered, Some(failure));
            }
        }
        (entered, None)
    }

    /// Those of them that were called, after the handlers.
    async fn after(&self, delivery: &Delivery, entered: usize, report: Report, limit: Duration) {
        for interceptor in self.shared.interceptors[..entered].iter().rev() {
            if let Err(failure) = guard(limit, || interceptor.after(delivery, &report)).await {
                tracing::error!(event_id = %delivery.event().id(), error = %failure, "an interceptor failed after a delivery");
            }
        }
    }

    fn calling(&self) -> Calling<'_> {
        self.shared.calling()
    }

    /// What stands in the way of every handler: no policy has a say.
    fn give_up(&self, delivery: &Delivery, failure: Failure) {
        let verdict = decide(&self.shared.settings.retry, delivery.record().attempts, &Err(failure), fastrand::f64());
        self.conclude(delivery, Judged::alone(verdict));
    }

    /// Counts the start of a suspect before its effect; `false` when it must not run.
    async fn start_suspect(&self, delivery: &Delivery) -> bool {
        let shared = &self.shared;
        let limit = shared.settings.max_starts;
        if delivery.record().starts >= limit {
            self.give_up(delivery, Failure::Lethal(delivery.record().starts));
            return false;
        }
        let lease = shared.flight.lock().owned.lease().cloned();
        let started = match lease {
            Some(lease) => {
                let (store, seq) = (shared.store.clone(), delivery.seq());
                shared.apart(async move { store.start(&lease, seq).await }).await
            }
            None => Ok(None),
        };
        match started {
            Ok(Some(starts)) => {
                let event_id = delivery.event().id();
                // The first time it is one of hundreds, of which the reader has told.
                if starts > 1 {
                    tracing::warn!(%event_id, starts, of = limit, "delivering a suspect once more: it has not come to an end before");
                } else {
                    tracing::debug!(%event_id, "delivering a suspect: it may have been running when a node died");
                }
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
        if Routes::are_among(&shared.peer_routes.lock(), &route) {
            let after = shared.settings.route_grace;
            tracing::warn!(event_id = %delivery.event().id(), route, ?after, "no handler here, but another live node has one: the event is deferred");
            shared.meters.deferred.increment(1);
            self.put_back(delivery, after);
        } else {
            self.give_up(delivery, Failure::NoRoute(route));
        }
    }

    /// From the verdict to the settler.
    fn conclude(&self, delivery: &Delivery, judged: Judged) {
        let end = self.end_of(delivery, judged);
        self.end(delivery, end);
    }

    /// What a verdict means for the table and for the key.
    fn end_of(&self, delivery: &Delivery, Judged { verdict, progress }: Judged) -> End {
        let settings = &self.shared.settings;
        let meters = &self.shared.meters;
        let id = delivery.event().id();
        match verdict {
            Verdict::Done => {
                meters.delivered.increment(1);
                End { change: self.success(), then: Then::Next }
            }
            Verdict::Retry { attempts, after, error } => {
                meters.failed.increment(1);
                tracing::warn!(event_id = %id, attempts, ?after, error, "the delivery failed and is tried again");
                let change = Change::Retry { attempts, after, error: Some(error), progress };
                End { change, then: self.then_after_failure() }
            }
            Verdict::Defer { after } => {
                meters.deferred.increment(1);
                tracing::debug!(event_id = %id, ?after, "the delivery is deferred");
                let attempts = delivery.record().attempts;
                let change = Change::Retry { attempts, after, error: None, progress };
                End { change, then: self.then_after_failure() }
            }
            Verdict::Dead { attempts, error } => {
                meters.failed.increment(1);
                meters.dead.increment(1);
                tracing::error!(event_id = %id, event_type = %delivery.event().event_type(), attempts, error, "the event is dead");
                let hold = settings.on_dead_head == OnDeadHead::Hold;
                let change = Change::Dead { attempts, error, progress, hold };
                End { change, then: if hold { Then::Hold } else { Then::Next } }
            }
        }
    }

    /// What a success writes.
    fn success(&self) -> Change {
        match self.shared.settings.on_success {
            OnSuccess::Keep => Change::Done,
            OnSuccess::Delete => Change::Delete,
        }
    }

    fn then_after_failure(&self) -> Then {
        if self.shared.settings.stop_on_first_failure { Then::Fail } else { Then::Next }
    }

    fn end(&self, delivery: &Delivery, end: End) {
        self.end_all([(delivery, end)], Instant::now());
    }

    /// The ends of several deliveries, behind one lock and with one ring of each bell.
    fn end_all<'a>(&self, ends: impl IntoIterator<Item = (&'a Delivery, End)>, now: Instant) {
        let mut signals = Signals::default();
        let mut stale = Vec::new();
        let mut flight = self.shared.flight.lock();
        for (delivery, end) in ends {
            match flight.answer(delivery, end, now) {
                Some(of_one) => signals.join(of_one),
                None => stale.push(delivery.event().id()),
            }
        }
        drop(flight);
        self.shared.signal(signals);
        for id in stale {
            self.shared.meters.stale_settles.increment(1);
            tracing::warn!(event_id = %id, "the outcome is stale: the partition is no longer this node's");
        }
    }
}

/// Whether a handler that is alone with an event takes others along. What it has achieved before is judged by itself.
fn takes_several(registered: &Registered, handler: &dyn Handler, delivery: &Delivery) -> bool {
    let takes = || sound(|| handler.takes(delivery.event())).unwrap_or(false);
    registered.at_once(1) > 1 && delivery.record().progress.is_none() && takes()
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("serves", &self.serves).finish_non_exhaustive()
    }
}

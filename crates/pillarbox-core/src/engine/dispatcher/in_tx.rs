//! Handlers that work in a transaction of the outbox's own database.
//!
//! A worker begins a transaction, and lends it to the handler of one event after another, each behind a savepoint. What
//! succeeded is settled in the same transaction, behind the fence, and committed with it. What failed is undone alone, and
//! its failure goes to the settler like any other, for there is no work that it must commit with. After a quarter of a
//! second the transaction ends, and what it has not come to waits for the next.
//!
//! The fence is the last step before the commit: the node's row is locked for two statements, not for as long as handlers
//! take, so that leases are renewed and other workers commit meanwhile. It is as safe there: whoever takes the node's
//! partitions away must first end its row, so either this lock finds the row and the work is committed before, or it does
//! not, and the work is rolled back.
//!
//! When the process dies:
//! - before the commit is sent: the database rolls back the work and the outcome of every event in the transaction. They are
//!   delivered again, as suspects; no attempt is counted;
//! - between the commit and its answer: the database has both or neither. The next owner reads the table;
//! - after the commit, before the next event of the key starts: nothing is repeated;
//! - after a failure was undone, before it is settled: it is delivered again; no attempt is counted.
//!
//! When only the answer to a commit is lost and the process lives on, the worker asks which of the events still wait, behind
//! the locks that the lost transaction holds on their rows as long as it lives. Those are delivered again.
//!
//! A panic or a timeout leaves the connection in the middle of something: the whole transaction is rolled back. It is the
//! failure of its event; the others begin again, and nothing is counted for them.

use std::{collections::VecDeque, panic::resume_unwind, sync::atomic::Ordering};

use tokio::time::{Duration, Instant, sleep};
use tracing::Span;

use super::{Cut, Report, Worker};
use crate::{
    domain::{Delivery, Failure, HandlerError, Outcome, Seq},
    engine::{
        backoff::Backoff,
        calling::{Judged, Told, caught, guard, panic_text},
        flight::Job,
        handler::{Progress, Registered, Runs, TxHandler},
        trace::{ended, inside},
        work::{Desk, Open},
    },
    port::{Settled, StoreError, StoreErrorKind},
};

/// How long a transaction takes on another event: its locks, and on SQLite everybody who writes, wait for its end.
const LONGEST: Duration = Duration::from_millis(250);

/// One event in a transaction.
struct Run<'a> {
    job: Job,
    of: &'a Registered,
    delivery: Delivery,
    elapsed: Duration,
    /// How many interceptors were called, and whether the last one refused.
    entered: usize,
    refused: bool,
    result: Result<Outcome, Failure>,
    told: Told,
    span: Span,
}

/// What a run leaves of its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// Its work is in it.
    Kept,
    /// It has left no trace in it.
    Undone,
    /// The transaction is fit for nothing any more.
    Void,
}

/// How a transaction ended.
#[derive(Debug)]
enum Ended {
    /// Everything in it is durable.
    Committed,
    /// Nothing in it is, and it is nobody's fault.
    RolledBack,
    /// The database failed, and nothing in it is durable.
    Failed(StoreError),
    /// The database refused to commit what the handlers did.
    Refused(StoreError),
    /// It is not known.
    Unknown(StoreError),
    /// The lease is lost.
    Fenced,
}

impl Worker {
    pub(super) async fn deliver_in_tx(&self, first: Job, cut: Cut<'_>) {
        let Some(desk) = &self.desk else { return self.interrupted([&first.delivery]) };
        let most = self.shared.settings.events_per_transaction;
        let jobs = self.gather(first, most, true, |other, _| matches!(other.runs, Runs::InTx(_)));
        let deliveries: Vec<_> = jobs.iter().map(|job| job.delivery.clone()).collect();
        // In a frame of its own: who is cut off is dropped at its end, and that is users' code as well.
        let worked = caught(async {
            tokio::select! {
                biased;
                () = self.work_through(&**desk, jobs.into()) => true,
                // The transaction is dropped, and that rolls it back.
                () = cut.off() => false,
            }
        });
        match worked.await {
            Ok(true) => {}
            Err(panic) if !cut.is_off() => resume_unwind(panic),
            Ok(false) | Err(_) => self.interrupted(&deliveries),
        }
    }

    /// Transactions until each event has ended, or is left to others.
    async fn work_through(&self, desk: &dyn Desk, mut waiting: VecDeque<Job>) {
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
        let mut alone = false;
        while !waiting.is_empty() {
            let open = match desk.begin().await {
                Ok(open) => open,
                Err(error) => {
                    self.store_failed(&error, waiting.len());
                    sleep(backoff.next()).await;
                    continue;
                }
            };
            let (open, mut done, failed) = self.run_in(open, &mut waiting, alone).await;
            let ended = match open {
                Some(open) => self.end_transaction(open, &mut done).await,
                None => Ended::RolledBack,
            };
            for run in failed {
                self.conclude_run(run).await;
            }
            match ended {
                Ended::Committed if !alone => {
                    // What there was no time for: others may come to it sooner.
                    return self.take_back(waiting);
                }
                Ended::Committed => backoff.reset(),
                Ended::Fenced => return,
                Ended::RolledBack => {
                    put_front(&mut waiting, done);
                    sleep(backoff.next()).await;
                }
                Ended::Failed(error) => {
                    self.store_failed(&error, done.len());
                    put_front(&mut waiting, done);
                    sleep(backoff.next()).await;
                }
                Ended::Refused(error) => match done.pop() {
                    // A constraint that is looked at when it commits: whose work it was is known if it was one's alone.
                    Some(mut run) if done.is_empty() => {
                        run.result = Err(HandlerError::from(error).into());
                        self.conclude_run(run).await;
                    }
                    last => {
                        alone = true;
                        done.extend(last);
                        put_front(&mut waiting, done);
                    }
                },
                Ended::Unknown(error) => {
                    self.store_failed(&error, done.len());
                    let seqs: Vec<_> = done.iter().map(|run| run.delivery.seq()).collect();
                    let unsettled = self.unsettled(desk, &seqs).await;
                    let (again, committed): (Vec<_>, Vec<_>) =
                        done.into_iter().partition(|run| unsettled.contains(&run.delivery.seq()));
                    for run in committed {
                        self.committed(run).await;
                    }
                    put_front(&mut waiting, again);
                }
            }
        }
    }

    /// Lends a transaction to the handlers of one event after another, until the time is over. What succeeded comes
    /// first, then what failed; without the transaction, nothing of what succeeded can be kept.
    async fn run_in<'a>(
        &'a self,
        mut open: Box<dyn Open>,
        waiting: &mut VecDeque<Job>,
        alone: bool,
    ) -> (Option<Box<dyn Open>>, Vec<Run<'a>>, Vec<Run<'a>>) {
        let begun = Instant::now();
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        while let Some(job) = waiting.pop_front() {
            let Some(of) = self.shared.routes.gathering(job.delivery.event()) else { continue };
            let Runs::InTx(handler) = &of.runs else { continue };
            if !self.shared.flight.lock().is_running(&job.delivery) {
                // Its partition was given up meanwhile.
                continue;
            }
            let (run, left) = self.run_one_in(&mut *open, of, &**handler, job).await;
            if let Some(run) = run {
                let into = if run.result == Ok(Outcome::Done) { &mut done } else { &mut failed };
                into.push(run);
            }
            if left == Left::Void {
                // Dropped, and rolled back by that: its connection may be in the middle of an answer.
                return (None, done, failed);
            }
            if alone || begun.elapsed() >= LONGEST {
                break;
            }
        }
        (Some(open), done, failed)
    }

    /// One handler in a transaction, between its interceptors; no run if its event was taken away meanwhile.
    async fn run_one_in<'a>(
        &'a self,
        open: &mut dyn Open,
        of: &'a Registered,
        handler: &dyn TxHandler,
        job: Job,
    ) -> (Option<Run<'a>>, Left) {
        let limit = self.calling().limit(of);
        let begun = self.begins(&job);
        let mut delivery = job.delivery.to(&of.id);
        let mut span = Span::none();
        let (entered, refused) = self.before(&delivery, limit).await;
        let had_its_part =
            |delivery: &Delivery| delivery.record().progress.is_some() && Progress::of(delivery.record()).has(&of.id);
        let shut = |after| (false, Ok(Outcome::RetryAfter(after)), Told::Nothing, Left::Undone);
        let (refused, result, told, left) = match refused {
            Some(failure) => (true, Err(failure), Told::Nothing, Left::Undone),
            // When it was one of several.
            None if had_its_part(&delivery) => (false, Ok(Outcome::Done), Told::Nothing, Left::Kept),
            None => 'called: {
                let ticket = match of.destination.as_ref().map(|destination| destination.enter()) {
                    Some(Err(after)) => break 'called shut(after),
                    Some(Ok(ticket)) => Some(ticket),
                    None => None,
                };
                let work = open.lend();
                span = self.shared.traces.delivery(&mut delivery, false);
                let handle = || inside(&span, || handler.handle(work, delivery.clone()));
                // In a frame of its own: who is cut off is dropped at its end, and that is users' code as well.
                let answered = caught(async {
                    tokio::select! {
                        biased;
                        answer = guard(limit, handle) => Some(answer),
                        () = self.evicted(std::slice::from_ref(&delivery)) => None,
                    }
                });
                let answer = match answered.await {
                    Ok(Some(answer)) => answer,
                    Err(panic) if self.are_running(std::slice::from_ref(&delivery)) => {
                        Err(Failure::Panic(panic_text(&*panic)))
                    }
                    Ok(None) | Err(_) => return (None, Left::Void),
                };
                let told = ticket.map_or(Told::Nothing, |ticket| Told::By(ticket.end(&answer)));
                let (result, left) = self.keep_or_undo(open, answer).await;
                ended(&span, &result);
                (false, result, told, left)
            }
        };
        let elapsed = begun.elapsed();
        (Some(Run { job, of, delivery, elapsed, entered, refused, result, told, span }), left)
    }

    /// What a handler's answer means for its work.
    async fn keep_or_undo(
        &self,
        open: &mut dyn Open,
        answer: Result<Outcome, Failure>,
    ) -> (Result<Outcome, Failure>, Left) {
        let came_back = open.take_back();
        let answer = match answer {
            Err(Failure::Panic(_) | Failure::Timeout(_)) => return (answer, Left::Void),
            _ if !came_back => {
                let error = "the handler has kept its `Work`, so nothing can be committed: drop it before returning";
                return (Err(HandlerError::msg(error).into()), Left::Void);
            }
            Ok(Outcome::Done) => match open.keep().await {
                Ok(()) => return (answer, Left::Kept),
                Err(error) if error.kind().is_transient() => {
                    self.store_failed(&error, 1);
                    return (answer, Left::Void);
                }
                // A statement failed, and the handler went on and said that all was well.
                Err(error) => Err(HandlerError::from(error).into()),
            },
            answer => answer,
        };
        match open.undo().await {
            Ok(()) => (answer, Left::Undone),
            Err(error) => {
                self.store_failed(&error, 1);
                (answer, Left::Void)
            }
        }
    }

    /// Settles what succeeded, behind the fence, and commits. What is durable is no longer in `done` then.
    async fn end_transaction(&self, mut open: Box<dyn Open>, done: &mut Vec<Run<'_>>) -> Ended {
        let shared = &self.shared;
        if done.is_empty() {
            open.rollback().await;
            return Ended::Committed;
        }
        let (lease, batch) = {
            let deliveries: Vec<_> = done.iter().map(|run| &run.delivery).collect();
            let flight = shared.flight.lock();
            (flight.owned.lease().cloned(), flight.batch_in_tx(&deliveries, &self.success()))
        };
        let Some(lease) = lease else { return Ended::Fenced };
        let Some(batch) = batch else { return Ended::RolledBack };
        match open.settle(&lease, &batch).await {
            Ok(Settled::Applied { stale: 0 }) => {}
            Ok(Settled::Applied { stale }) => {
                shared.meters.stale_settles.increment(stale as u64);
                open.rollback().await;
                return Ended::RolledBack;
            }
            Ok(Settled::Fenced) => {
                open.rollback().await;
                shared.meters.stale_settles.increment(done.len() as u64);
                shared.lose_lease(&lease, "the settle of a transactional handler was fenced");
                return Ended::Fenced;
            }
            Err(error) => {
                shared.notice(&lease, &error);
                return Ended::Failed(error);
            }
        }
        if let Some(rolled_back) = &self.doomed {
            open.rollback().await;
            rolled_back.store(true, Ordering::Relaxed);
            for run in done.drain(..) {
                self.report(run.of, &run.delivery, run.entered, run.elapsed, run.result).await;
            }
            return Ended::Committed;
        }
        match open.commit().await {
            Ok(()) => {}
            Err(error) if error.kind() == StoreErrorKind::OutcomeUnknown => return Ended::Unknown(error),
            Err(error) if error.kind().is_transient() => return Ended::Failed(error),
            Err(error) => return Ended::Refused(error),
        }
        for run in done.drain(..) {
            self.committed(run).await;
        }
        shared.own.notify_one();
        Ended::Committed
    }

    /// Which of the events a transaction of unknown outcome has not settled.
    async fn unsettled(&self, desk: &dyn Desk, seqs: &[Seq]) -> Vec<Seq> {
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
        loop {
            match desk.unsettled(seqs).await {
                Ok(unsettled) => return unsettled,
                Err(error) => {
                    self.store_failed(&error, seqs.len());
                    sleep(backoff.next()).await;
                }
            }
        }
    }

    /// A success is durable.
    async fn committed(&self, run: Run<'_>) {
        let meters = &self.shared.meters;
        meters.delivered.increment(1);
        meters.handler_time.record(run.elapsed.as_secs_f64());
        let signals = self.shared.flight.lock().settled_in_tx(&run.delivery, Instant::now());
        self.shared.signal(signals.unwrap_or_default());
        self.report(run.of, &run.delivery, run.entered, run.elapsed, run.result).await;
    }

    /// From what a handler answered that has left no trace to the settler.
    async fn conclude_run(&self, run: Run<'_>) {
        self.shared.meters.handler_time.record(run.elapsed.as_secs_f64());
        let (verdict, result) = if run.refused {
            (self.calling().decide(run.of, &run.delivery, &run.result), run.result)
        } else {
            self.calling().judge(run.of, run.delivery.clone(), run.result, run.told, &run.span).await
        };
        self.report(run.of, &run.delivery, run.entered, run.elapsed, result).await;
        self.conclude(&run.delivery, Judged::alone(verdict));
    }

    async fn report(
        &self,
        of: &Registered,
        delivery: &Delivery,
        entered: usize,
        elapsed: Duration,
        result: Result<Outcome, Failure>,
    ) {
        self.after(delivery, entered, Report { result, elapsed }, self.calling().limit(of)).await;
    }

    fn store_failed(&self, error: &StoreError, events: usize) {
        self.shared.meters.loop_errors.increment(1);
        let error = error as &dyn std::error::Error;
        tracing::error!(
            error,
            events,
            "the transaction of transactional handlers failed: their events are tried again"
        );
    }
}

/// Events that begin again come before those that have not begun.
fn put_front(waiting: &mut VecDeque<Job>, runs: Vec<Run<'_>>) {
    runs.into_iter().rev().for_each(|run| waiting.push_front(run.job));
}

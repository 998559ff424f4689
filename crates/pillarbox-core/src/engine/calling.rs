//! One handler and one event: the call, its timeout and its panics, and what follows from the answer.
//!
//! Workers of an outbox call in this way, and so do consumers of a broker. Nothing here knows where the event came from, or
//! writes anything down.

use std::{
    any::Any,
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::Arc,
    task::Poll,
};

use futures_util::FutureExt;
use tokio::time::{Duration, Instant, sleep_until};
use tracing::Span;

use super::{
    handler::{Failed, Progress, Registered, Runs},
    trace::{Traces, ended, inside},
};
use crate::domain::{Delivery, Failure, HandlerError, Outcome, RetryPolicy, Verdict, both, combine, decide};

/// What holds for handlers that don't say otherwise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calling<'a> {
    pub(crate) retry: &'a RetryPolicy,
    pub(crate) handler_timeout: Duration,
    pub(crate) traces: &'a Traces,
}

/// What becomes of an event, and what its row has to remember of its handlers.
#[derive(Debug)]
pub(crate) struct Judged {
    pub(crate) verdict: Verdict,
    pub(crate) progress: Option<Box<str>>,
}

impl Judged {
    pub(crate) fn alone(verdict: Verdict) -> Self {
        Self { verdict, progress: None }
    }
}

/// What the circuit of a handler's destination has to say to its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Told {
    /// There is none, or it has nothing to say.
    Nothing,
    /// How long to wait, if it is open now.
    By(Option<Duration>),
}

impl<'a> Calling<'a> {
    /// Every handler that has not had its part, one after another: the failure of one keeps none of the others back.
    pub(crate) async fn run_all(
        self,
        handlers: &[Arc<Registered>],
        delivery: &Delivery,
    ) -> (Judged, Result<Outcome, Failure>) {
        if let ([alone], None) = (handlers, &delivery.record().progress) {
            let (verdict, result) = self.run_one(alone, delivery).await;
            return (Judged::alone(verdict), result);
        }
        let mut progress = Progress::of(delivery.record());
        let attempts = delivery.record().attempts;
        let earlier = progress.errors().map(|error| Verdict::Dead { attempts, error: error.to_owned() });
        let mut verdicts: Vec<_> = earlier.collect();
        let mut outcome = Ok(Outcome::Done);
        for registered in handlers {
            if progress.has(&registered.id) {
                continue;
            }
            let (verdict, result) = self.run_one(registered, delivery).await;
            match &verdict {
                Verdict::Done => progress.succeeded(&registered.id),
                Verdict::Dead { error, .. } => progress.failed(&registered.id, error),
                Verdict::Retry { .. } | Verdict::Defer { .. } => {}
            }
            verdicts.push(verdict);
            if outcome == Ok(Outcome::Done) {
                outcome = result;
            }
        }
        (Judged { verdict: combine(verdicts), progress: progress.stored() }, outcome)
    }

    /// A handler, its timeout and its panics; and what follows from its answer.
    async fn run_one(self, registered: &Registered, delivery: &Delivery) -> (Verdict, Result<Outcome, Failure>) {
        let Runs::Each(handler) = &registered.runs else {
            // It is alone on its route, which the builder has checked, and then it is called in another way.
            let error = HandlerError::msg("the handler takes several events and is not alone").permanent();
            let delivery = delivery.to(&registered.id);
            return self.judge(registered, delivery, Err(error.into()), Told::Nothing, &Span::none()).await;
        };
        let takes = sound(|| handler.takes(delivery.event()));
        let mut delivery = delivery.to(&registered.id);
        match takes {
            Ok(true) => {}
            Ok(false) => return (Verdict::Done, Ok(Outcome::Done)),
            Err(panic) => return self.judge(registered, delivery, Err(panic), Told::Nothing, &Span::none()).await,
        }
        let ticket = match registered.destination.as_ref().map(|destination| destination.enter()) {
            Some(Err(after)) => return (Verdict::Defer { after }, Ok(Outcome::RetryAfter(after))),
            Some(Ok(ticket)) => Some(ticket),
            None => None,
        };
        let passes_on = sound(|| handler.passes_on()).unwrap_or(false);
        let span = self.traces.delivery(&mut delivery, passes_on);
        let result = guard(self.limit(registered), || inside(&span, || handler.handle(delivery.clone()))).await;
        ended(&span, &result);
        let told = ticket.map_or(Told::Nothing, |ticket| Told::By(ticket.end(&result)));
        self.judge(registered, delivery, result, told, &span).await
    }

    /// From what a handler answered to a verdict: by what its destination's circuit told, its policy, and its fallback, when that was its last attempt.
    pub(crate) async fn judge(
        self,
        registered: &Registered,
        delivery: Delivery,
        result: Result<Outcome, Failure>,
        told: Told,
        span: &Span,
    ) -> (Verdict, Result<Outcome, Failure>) {
        if let Told::By(down) = told {
            let says_so = matches!(&result, Err(Failure::Error(error)) if error.is_unavailable());
            // Not open yet: a short while, as after a first failure.
            let soon = || says_so.then(|| self.policy(registered).delay(1, fastrand::f64()));
            if let Some(after) = down.or_else(soon) {
                return (Verdict::Defer { after }, result);
            }
        }
        let verdict = self.decide(registered, &delivery, &result);
        match (verdict, result, &registered.fallback) {
            (Verdict::Dead { attempts, error }, Err(failure), Some(fallback)) if failure.counts() => {
                let failed = Failed::new(delivery.clone(), attempts, failure);
                let id = delivery.event().id();
                let handle = || inside(span, || fallback.handle(delivery, failed));
                let answer = guard(self.limit(registered), handle).await;
                let second = match answer {
                    Ok(Outcome::Done) => {
                        tracing::warn!(event_id = %id, handler = %registered.id, attempts, error, "the handler has failed for good, and its fallback took the event");
                        return (Verdict::Done, Ok(Outcome::Done));
                    }
                    Ok(_) => Failure::Error(HandlerError::msg("a fallback can't ask for another try")),
                    Err(failure) => failure,
                };
                let error = both(&error, &format!("then the fallback failed: {second}"));
                (Verdict::Dead { attempts, error }, Err(second))
            }
            (verdict, result, _) => (verdict, result),
        }
    }

    pub(crate) fn limit(self, registered: &Registered) -> Duration {
        registered.timeout.unwrap_or(self.handler_timeout)
    }

    pub(crate) fn decide(
        self,
        registered: &Registered,
        delivery: &Delivery,
        result: &Result<Outcome, Failure>,
    ) -> Verdict {
        let (attempts, random) = (delivery.record().attempts, fastrand::f64());
        let decided = sound(|| decide(self.policy(registered), attempts, result, random));
        decided.unwrap_or_else(|panic| {
            tracing::error!(event_id = %delivery.event().id(), handler = %registered.id, %panic, "the retry policy has panicked: the default policy decides in its place");
            match decide(&self.policy(registered).replaced(), attempts, result, random) {
                Verdict::Retry { attempts, after, error } => {
                    let error = both(&error, &format!("then the retry policy failed: {panic}"));
                    Verdict::Retry { attempts, after, error }
                }
                verdict => verdict,
            }
        })
    }

    pub(crate) fn policy(self, registered: &'a Registered) -> &'a RetryPolicy {
        registered.retry.as_ref().unwrap_or(self.retry)
    }
}

/// Calls user code that is no future: its panic is a failure.
pub(crate) fn sound<T>(call: impl FnOnce() -> T) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| Failure::Panic(panic_text(&*panic)))
}

/// Runs a future to its end or to its panic, also if what it holds panics when it is dropped at its end.
pub(crate) async fn caught<T>(future: impl Future<Output = T>) -> Result<T, Box<dyn Any + Send>> {
    // Held once, and not in one frame after another: every delivery goes through here.
    let mut slot = pin!(Some(future));
    let ended = poll_fn(|context| {
        let poll = || slot.as_mut().as_pin_mut().map_or(Poll::Pending, |future| future.poll(context));
        match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(polled) => polled.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    })
    .await;
    let dropped = catch_unwind(AssertUnwindSafe(|| slot.set(None)));
    ended.and_then(|ended| dropped.map(|()| ended))
}

/// Runs user code: its errors, its panics (also while it makes its future, and while that is dropped) and its timeout are
/// failures.
pub(crate) async fn guard<T, F>(limit: Duration, make: impl FnOnce() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, HandlerError>>,
{
    // Who is cut off by the timeout is dropped in here.
    let ended = AssertUnwindSafe(limited(limit, make)).catch_unwind().await;
    ended.unwrap_or_else(|panic| Err(Failure::Panic(panic_text(&*panic))))
}

async fn limited<T, F>(limit: Duration, make: impl FnOnce() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, HandlerError>>,
{
    // From before the first poll; one that nobody lives to see is none.
    let deadline = Instant::now().checked_add(limit);
    let mut guarded = pin!(AssertUnwindSafe(async { make().await }).catch_unwind());
    let mut timer = pin!(None);
    let ended = poll_fn(|context| {
        if let Poll::Ready(ended) = guarded.as_mut().poll(context) {
            return Poll::Ready(Ok(ended));
        }
        // Who has nothing to wait for needs no timer.
        if timer.is_none() {
            timer.set(deadline.map(sleep_until));
        }
        match timer.as_mut().as_pin_mut() {
            Some(timer) => timer.poll(context).map(|()| Err(Failure::Timeout(limit))),
            None => Poll::Pending,
        }
    });
    match ended.await? {
        Ok(answer) => answer.map_err(Failure::from),
        Err(panic) => Err(Failure::Panic(panic_text(&*panic))),
    }
}

/// The words of a panic.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a value that is not text").to_owned()
}

#[cfg(test)]
mod tests {
    use futures_util::poll;

    use super::*;

    /// A handler that makes way for others is not polled again before they have had their turn.
    #[tokio::test]
    async fn who_yields_is_left_alone_until_it_is_woken() {
        let mut yields = pin!(guard(Duration::from_secs(1), || async {
            tokio::task::yield_now().await;
            Ok(7)
        }));
        assert!(poll!(yields.as_mut()).is_pending());
        assert!(matches!(yields.await, Ok(7)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_limit_counts_from_the_beginning_and_may_be_endless() {
        let begun = Instant::now();
        let late = guard(Duration::from_secs(5), || async {
            std::future::pending::<()>().await;
            Ok(())
        });
        assert!(matches!(late.await, Err(Failure::Timeout(_))));
        assert_eq!(begun.elapsed(), Duration::from_secs(5));

        let patient = guard(Duration::MAX, || async {
            tokio::time::sleep(Duration::from_hours(24)).await;
            Ok(())
        });
        assert!(patient.await.is_ok());
    }
}

//! Handlers that take many events at once.
//!
//! A worker that has drawn an event of such a handler takes along what waits for the same handler, and waits for nothing.
//! Of a key only the first event waits, so a batch never has two of one. Each event is answered for, and settled, by
//! itself: when the process dies before, all of the batch are delivered again.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;
use tracing::{Instrument as _, Span};

use super::{Cut, Report, Worker, takes_several};
use crate::{
    domain::{Delivery, Failure, HandlerError, Outcome, Verdict},
    engine::{
        calling::{Judged, Told, caught, guard, panic_text, sound},
        flight::{Job, Signals},
        handler::{BatchHandler, Registered, Runs},
        trace::ended,
    },
};

impl Worker {
    pub(super) async fn deliver_batch(
        &self,
        first: Job,
        registered: &Registered,
        most: usize,
        handler: &dyn BatchHandler,
        cut: Cut<'_>,
    ) {
        let jobs = self.gather(first, most, false, |other, delivery| {
            let takes = match &other.runs {
                Runs::Each(handler) => takes_several(other, &**handler, delivery),
                Runs::Batch { .. } | Runs::InTx(_) => true,
            };
            takes && std::ptr::eq(other, registered)
        });
        let begun: Vec<_> = jobs.iter().map(|job| self.begins(job)).collect();
        let deliveries: Vec<_> = jobs.iter().map(|job| job.delivery.to(&registered.id)).collect();
        // In a frame of its own: who is cut off is dropped at its end, and that is users' code as well.
        let judged = caught(async {
            tokio::select! {
                biased;
                judged = self.run_batch(registered, handler, &deliveries) => Some(judged),
                () = cut.off() => None,
                () = self.evicted(&deliveries) => None,
            }
        });
        let judged = match judged.await {
            Ok(Some(judged)) => judged,
            _ if cut.is_off() => return self.interrupted(&deliveries),
            Err(panic) if self.are_running(&deliveries) => {
                let failure = Err(Failure::Panic(panic_text(&*panic)));
                deliveries.iter().map(|delivery| self.calling().decide(registered, delivery, &failure)).collect()
            }
            // One is another node's to deliver; the others wait again, here.
            Ok(None) | Err(_) => return self.take_back(jobs),
        };
        let now = Instant::now();
        let ends = deliveries.iter().zip(judged).zip(begun).map(|((delivery, verdict), begun)| {
            self.shared.meters.handler_time.record(now.saturating_duration_since(begun).as_secs_f64());
            (delivery, self.end_of(delivery, Judged::alone(verdict)))
        });
        self.end_all(ends.collect::<Vec<_>>(), Instant::now());
    }

    /// Puts jobs that ended in nothing back where workers find them.
    pub(super) fn take_back(&self, jobs: impl IntoIterator<Item = Job>) {
        let mut signals = Signals::default();
        let mut flight = self.shared.flight.lock();
        // Each goes to the front: the last one first.
        for job in jobs.into_iter().collect::<Vec<_>>().into_iter().rev() {
            flight.take_back(job, &mut signals);
        }
        drop(flight);
        self.shared.signal(signals);
    }

    /// The interceptors around each delivery, and between them the handler of all that pass.
    async fn run_batch(
        &self,
        registered: &Registered,
        handler: &dyn BatchHandler,
        deliveries: &[Delivery],
    ) -> Vec<Verdict> {
        let limit = self.calling().limit(registered);
        let begun = Instant::now();
        let before = join_all(deliveries.iter().map(|delivery| self.before(delivery, limit))).await;
        let passed: Vec<_> = before.iter().map(|(_, refused)| refused.is_none()).collect();
        let of_those = |passed: &[bool]| {
            deliveries.iter().zip(passed).filter(|(_, passed)| **passed).map(|(delivery, _)| delivery.clone()).collect()
        };
        let mut answers = self.call_batch(registered, handler, of_those(&passed)).await.into_iter();
        let mut verdicts = Vec::with_capacity(deliveries.len());
        for (delivery, (entered, refused)) in deliveries.iter().zip(before) {
            let (verdict, result) = match refused {
                Some(failure) => {
                    let result = Err(failure);
                    (self.calling().decide(registered, delivery, &result), result)
                }
                None => match answers.next() {
                    Some(Called { result, shut: Some(after), .. }) => (Verdict::Defer { after }, result),
                    Some(Called { result, told, span, .. }) => {
                        self.calling().judge(registered, delivery.clone(), result, told, &span).await
                    }
                    // As many as deliveries that passed.
                    None => break,
                },
            };
            self.after(delivery, entered, Report { result, elapsed: begun.elapsed() }, limit).await;
            verdicts.push(verdict);
        }
        verdicts
    }

    /// Calls the handler with what can be read, through the circuit of its destination.
    async fn call_batch(
        &self,
        registered: &Registered,
        handler: &dyn BatchHandler,
        mut deliveries: Vec<Delivery>,
    ) -> Vec<Called> {
        let ticket = match registered.destination.as_ref().map(|destination| destination.enter()) {
            Some(Err(after)) => {
                let shut = || Called { shut: Some(after), ..Called::of(Ok(Outcome::RetryAfter(after))) };
                return deliveries.iter().map(|_| shut()).collect();
            }
            Some(Ok(ticket)) => Some(ticket),
            None => None,
        };
        let passes_on = sound(|| handler.passes_on()).unwrap_or(false);
        let (span, each) = self.shared.traces.batch(&mut deliveries, passes_on);
        // Reading payloads is users' code as well.
        let read = || std::future::ready(Ok(span.in_scope(|| handler.handle(&deliveries))));
        let read = guard(self.calling().limit(registered), read).await;
        let (read, call) = match read {
            Ok(read) => read,
            Err(failure) => {
                return each.into_iter().map(|span| Called::of(Err(failure.clone())).in_span(span)).collect();
            }
        };
        let events = read.iter().filter(|read| read.is_ok()).count();
        let mut answers = Vec::new();
        if events > 0 {
            let call = || async { Ok(call.await.of(events)) }.instrument(span);
            answers = match guard(self.calling().limit(registered), call).await {
                Ok(answers) => answers.into_iter().map(|answer| answer.map_err(Failure::from)).collect(),
                Err(failure) => vec![Err(failure); events],
            };
        }
        // One call, one word on the destination: it answered if anybody got through to it.
        let got_through = |answer: &&Result<_, Failure>| {
            !answer.as_ref().is_err_and(|failure| failure.is_unavailable() || failure.is_unsent())
        };
        let is_down = |answer: &&Result<_, Failure>| answer.as_ref().is_err_and(Failure::is_unavailable);
        let patient = |answer: &&Result<_, Failure>| answer.as_ref().err().map(Failure::wish);
        let word = answers.iter().find(got_through);
        let word = word.or_else(|| answers.iter().filter(is_down).max_by_key(patient));
        let down = match (ticket, word.or(answers.first())) {
            (Some(ticket), Some(word)) => Some(ticket.end(word)),
            (Some(_), None) | (None, _) => None,
        };
        let mut answers = answers.into_iter();
        let called = |(read, span): (Result<(), HandlerError>, Span)| {
            if let Err(error) = read {
                return Called::of(Err(error.into())).in_span(span);
            }
            let result = answers.next().unwrap_or(Ok(Outcome::Done));
            // Who got an answer is judged by it, whatever the others were told.
            let told = match down {
                Some(down) if result.as_ref().is_err_and(Failure::is_unavailable) => Told::By(down),
                _ => Told::Nothing,
            };
            Called { told, ..Called::of(result).in_span(span) }
        };
        read.into_iter().zip(each).map(called).collect()
    }
}

/// What came of a delivery in a batch.
struct Called {
    result: Result<Outcome, Failure>,
    told: Told,
    /// Its destination was down before the call: how long to wait.
    shut: Option<Duration>,
    span: Span,
}

impl Called {
    fn of(result: Result<Outcome, Failure>) -> Self {
        Self { result, told: Told::Nothing, shut: None, span: Span::none() }
    }

    fn in_span(mut self, span: Span) -> Self {
        ended(&span, &self.result);
        self.span = span;
        self
    }
}

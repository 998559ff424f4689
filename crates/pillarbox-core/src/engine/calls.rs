//! Handlers outside of an outbox: those of a consumer of a broker's messages.
//!
//! What runs is what runs in an outbox: typed handlers, their timeouts and panics, the circuits of their destinations,
//! retry policies, fallbacks. What becomes of the message is the caller's affair.

use std::{fmt, time::Duration};

use tracing::Span;

use super::{
    calling::{Calling, Judged, Told, guard},
    error::OutboxError,
    handler::{
        EventFallback, Handler, Handlers, IntoHandlers, IntoInTx, IntoRegistration, Registered, Registration, Routes,
        RoutesBuilder, Runs, TxHandler,
    },
    settings::Settings,
    trace::{Traces, ended, inside},
    work::Working,
};
use crate::{
    domain::{
        CircuitPolicy, Codec, Codecs, Delivery, Event, Failure, HandlerError, Outcome, RetryPolicy, Route, Verdict,
        decide,
    },
    port::{SettleStore, Tracer},
};

/// Handlers, ready to be called.
pub struct Calls {
    routes: Routes,
    /// Whether any of them has a destination.
    reaches: bool,
    settings: Settings,
    traces: Traces,
}

/// Who takes an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// No handler.
    Nobody,
    /// Handlers that do what they do.
    Handlers,
    /// A handler that works in a transaction.
    InTx,
}

/// What became of a call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Called {
    /// What becomes of the event.
    pub verdict: Verdict,
    /// Which of several handlers have had their part, for [`Record::progress`](crate::domain::Record::progress) of the
    /// next delivery.
    pub progress: Option<Box<str>>,
}

/// What a transactional handler answered, and what the circuit of its destination has to say to that; or why there is no answer.
/// For [`Calls::judge_work`].
#[derive(Debug)]
pub struct Worked {
    result: Result<Outcome, Failure>,
    told: Told,
}

impl Worked {
    /// Whether the handler has succeeded.
    pub fn is_done(&self) -> bool {
        matches!(self.result, Ok(Outcome::Done))
    }
}

/// What the handler has nothing to do with, as when the database refuses to commit.
impl From<HandlerError> for Worked {
    fn from(error: HandlerError) -> Self {
        Self { result: Err(error.into()), told: Told::Nothing }
    }
}

/// How long an event may be on its way through its handlers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Horizon {
    /// How often it is tried.
    pub attempts: u32,
    /// How long all the attempts may take.
    pub handling: Duration,
    /// How long all the pauses between them may be.
    pub pauses: Duration,
}

impl Horizon {
    /// From the first attempt to the end of the last.
    pub fn total(&self) -> Duration {
        self.handling.saturating_add(self.pauses)
    }

    fn of(policy: &RetryPolicy, timeout: Duration) -> Self {
        // A policy without an end has no horizon: counting stops where nobody waits any more.
        const MOST: u32 = 100_000;
        let mut horizon = Self { attempts: 1, handling: timeout, pauses: Duration::ZERO };
        while !policy.is_exhausted(horizon.attempts) && horizon.attempts < MOST {
            horizon.pauses = horizon.pauses.saturating_add(policy.delay(horizon.attempts, 1.0));
            horizon.handling = horizon.handling.saturating_add(timeout);
            horizon.attempts += 1;
        }
        horizon
    }
}

impl Calls {
    /// Begins to gather handlers.
    pub fn builder() -> CallsBuilder {
        CallsBuilder {
            routes: RoutesBuilder::default(),
            codecs: Codecs::default(),
            settings: Settings::default(),
            traces: Traces::default(),
        }
    }

    /// Who takes an event.
    pub fn takes(&self, event: &Event) -> Takes {
        match self.routes.find(event) {
            [] => Takes::Nobody,
            [alone] if matches!(alone.runs, Runs::InTx(_)) => Takes::InTx,
            _ => Takes::Handlers,
        }
    }

    /// Whether there are handlers that work in a transaction, and others.
    pub fn kinds(&self) -> (bool, bool) {
        let is_in_tx = |handler: &&Registered| matches!(handler.runs, Runs::InTx(_));
        (self.routes.all().any(|handler| is_in_tx(&handler)), self.routes.all().any(|handler| !is_in_tx(&handler)))
    }

    /// The longest way that an event may have through its handlers.
    pub fn horizon(&self) -> Horizon {
        let horizons =
            self.routes.all().map(|handler| Horizon::of(self.calling().policy(handler), self.calling().limit(handler)));
        let longest = horizons.max_by_key(Horizon::total);
        longest.unwrap_or_else(|| Horizon::of(&self.settings.retry, self.settings.handler_timeout))
    }

    /// Calls the handlers of an event that have not had their part, one after another. Never panics, and takes no longer than
    /// they may. May be dropped at any await.
    pub async fn call(&self, delivery: &Delivery) -> Called {
        let handlers = self.routes.find(delivery.event());
        if handlers.is_empty() {
            let failure = Err(Failure::NoRoute(delivery.event().route().to_string()));
            let verdict = decide(&self.settings.retry, delivery.record().attempts, &failure, fastrand::f64());
            return Called { verdict, progress: None };
        }
        let (Judged { verdict, progress }, _) = self.calling().run_all(handlers, delivery).await;
        Called { verdict, progress }
    }

    /// How long the transactional handler of an event is not called, because the circuit of its destination is open. Asking takes
    /// nobody's turn: [`work`](Self::work) may find it open all the same.
    pub fn wait(&self, event: &Event) -> Option<Duration> {
        if !self.reaches {
            return None;
        }
        self.in_tx(event)?.0.destination.as_ref()?.wait()
    }

    /// Calls the transactional handler of an event in a transaction, unless the circuit of its destination is open, and says what
    /// it answered. Unless that is `Done`, what the handler did is in the transaction still, which must be rolled back. What
    /// becomes of the event is then for [`judge_work`](Self::judge_work) to say.
    pub async fn work<S>(&self, working: &mut Working<S>, delivery: &Delivery) -> Worked
    where
        S: SettleStore + 'static,
    {
        let Some((registered, handler)) = self.in_tx(delivery.event()) else {
            let result = Err(Failure::NoRoute(delivery.event().route().to_string()));
            return Worked { result, told: Told::Nothing };
        };
        let ticket = match registered.destination.as_ref().map(|destination| destination.enter()) {
            Some(Err(after)) => return Worked { result: Ok(Outcome::RetryAfter(after)), told: Told::Nothing },
            Some(Ok(ticket)) => Some(ticket),
            None => None,
        };
        let work = working.lend();
        let mut delivery = delivery.to(&registered.id);
        let span = self.traces.delivery(&mut delivery, false);
        let result = guard(self.calling().limit(registered), || inside(&span, || handler.handle(work, delivery))).await;
        ended(&span, &result);
        let told = ticket.map_or(Told::Nothing, |ticket| Told::By(ticket.end(&result)));
        if result.is_ok() && !working.take_back() {
            let words = "the handler has kept its `Work`, so nothing can be committed: drop it before returning";
            return HandlerError::msg(words).into();
        }
        Worked { result, told }
    }

    /// What becomes of an event whose transactional handler gave this answer, and whose work was rolled back. The fallback has
    /// its turn here, outside of any transaction.
    pub async fn judge_work(&self, delivery: &Delivery, worked: Worked) -> Verdict {
        let Worked { result, told } = worked;
        match self.in_tx(delivery.event()) {
            Some((registered, _)) => {
                let delivery = delivery.to(&registered.id);
                self.calling().judge(registered, delivery, result, told, &Span::current()).await.0
            }
            None => decide(&self.settings.retry, delivery.record().attempts, &result, fastrand::f64()),
        }
    }

    fn in_tx(&self, event: &Event) -> Option<(&Registered, &dyn TxHandler)> {
        match self.routes.find(event) {
            [alone] => match &alone.runs {
                Runs::InTx(handler) => Some((alone, &**handler)),
                Runs::Each(_) | Runs::Batch { .. } => None,
            },
            _ => None,
        }
    }

    fn calling(&self) -> Calling<'_> {
        let Settings { retry, handler_timeout, .. } = &self.settings;
        Calling { retry, handler_timeout: *handler_timeout, traces: &self.traces }
    }
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calls").field("routes", &self.routes).finish_non_exhaustive()
    }
}

/// Gathers the handlers of a consumer.
#[must_use = "handlers are called when they are built"]
pub struct CallsBuilder {
    routes: RoutesBuilder,
    codecs: Codecs,
    settings: Settings,
    traces: Traces,
}

impl CallsBuilder {
    /// See [`Builder::handle`](super::Builder::handle).
    pub fn handle<K>(mut self, handler: impl IntoRegistration<K>) -> Self {
        self.routes.add(handler.into_registration());
        self
    }

    /// See [`Builder::handle_in_tx`](super::Builder::handle_in_tx).
    pub fn handle_in_tx<S, K>(mut self, handler: impl IntoInTx<S, K>) -> Self {
        self.routes.add(handler.into_registration());
        self
    }

    /// See [`Builder::handlers`](super::Builder::handlers).
    pub fn handlers(mut self, handlers: impl IntoHandlers) -> Self {
        self.routes.extend(handlers.into_handlers());
        self
    }

    /// See [`Builder::route`](super::Builder::route).
    pub fn route(mut self, route: impl Into<Route>, handler: impl Handler) -> Self {
        self.routes.add(Registration::raw(route.into(), handler));
        self
    }

    /// See [`Builder::handle_every`](super::Builder::handle_every).
    pub fn handle_every(mut self, handler: impl Handler) -> Self {
        self.routes.add(Registration::every(handler));
        self
    }

    /// See [`Builder::fallback`](super::Builder::fallback).
    pub fn fallback<K: 'static>(mut self, fallback: impl EventFallback<K>) -> Self {
        self.routes.extend(Handlers::new().fallback(fallback));
        self
    }

    /// When failed messages are tried again, and how often, unless their handler says otherwise.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.settings.retry = policy;
        self
    }

    /// How long a handler may take, unless it says otherwise. Default: 30 s.
    pub fn handler_timeout(mut self, timeout: Duration) -> Self {
        self.settings.handler_timeout = timeout;
        self
    }

    /// When the circuit of a destination opens, and for how long.
    pub fn circuit(mut self, policy: CircuitPolicy) -> Self {
        self.settings.circuit = policy;
        self
    }

    /// Reads payloads of this format too. JSON is always read, and MessagePack where the feature is on.
    pub fn reads(mut self, codec: impl Codec) -> Self {
        self.codecs = self.codecs.and(codec);
        self
    }

    /// What the names of metrics begin with. Default: `pillarbox`.
    pub fn metrics_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.settings.metrics_prefix = prefix.into();
        self
    }

    /// Makes each call a part of the trace that its message belongs to. Default: none.
    pub fn tracer(mut self, tracer: impl Tracer) -> Self {
        self.traces = Traces::by(tracer);
        self
    }

    /// Checks everything.
    pub fn build(self) -> Result<Calls, OutboxError> {
        self.settings.validate()?;
        let routes = self.routes.build(&self.codecs, &self.settings)?;
        if let Some(handler) = routes.all().find(|handler| matches!(handler.runs, Runs::Batch { .. })) {
            return Err(OutboxError::setting(format!(
                "{:?} takes several events at once, and a consumer calls with one message at a time: register it with `handle`, or \
                 with `handle_in_tx`, whose transactions take many",
                handler.id
            )));
        }
        let reaches = routes.all().any(|handler| handler.destination.is_some());
        Ok(Calls { routes, reaches, settings: self.settings, traces: self.traces })
    }
}

impl fmt::Debug for CallsBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallsBuilder")
            .field("routes", &self.routes)
            .field("retry", &self.settings.retry)
            .field("circuit", &self.settings.circuit)
            .field("handler_timeout", &self.settings.handler_timeout)
            .field("metrics_prefix", &self.settings.metrics_prefix)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_horizon_adds_up_attempts_and_pauses() {
        let second = Duration::from_secs(1);
        let policy = RetryPolicy::fixed(second).jitter(0.0).max_attempts(4);
        let horizon = Horizon::of(&policy, second * 10);
        assert_eq!(horizon, Horizon { attempts: 4, handling: second * 40, pauses: second * 3 });
        assert_eq!(horizon.total(), second * 43);
        let jittered = Horizon::of(&RetryPolicy::fixed(second).jitter(0.5).max_attempts(2), second);
        assert_eq!(jittered.pauses, second * 3 / 2, "the longest that may be");
    }
}

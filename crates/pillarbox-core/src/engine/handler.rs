//! Handlers, and which event goes to which.

use std::{collections::BTreeMap, fmt, future::Future, sync::Arc, time::Duration};

use futures_util::FutureExt;

use super::error::OutboxError;
use crate::{
    domain::{AggregateType, Answer, Delivery, Event, EventType, IntoAnswer, RetryPolicy, Route},
    port::BoxFuture,
};

/// Takes deliveries of one route. Every async closure over a [`Delivery`] is one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler",
    note = "a handler is an async closure such as `|delivery: Delivery| async move {{ ... }}`, or a type that implements `Handler`"
)]
pub trait Handler: Send + Sync + 'static {
    /// Deals with one delivery. May be dropped at any await: when it takes too long, when the node loses
    /// its lease, and when the outbox is shut down.
    fn handle(&self, delivery: Delivery) -> BoxFuture<'_, Answer>;

    /// The retry policy for this handler's events, before the outbox's.
    fn retry(&self) -> Option<&RetryPolicy> {
        None
    }

    /// How long it may take, before the outbox's limit.
    fn timeout(&self) -> Option<Duration> {
        None
    }
}

impl<F, Fut> Handler for F
where
    F: Fn(Delivery) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoAnswer> + Send + 'static,
{
    fn handle(&self, delivery: Delivery) -> BoxFuture<'_, Answer> {
        Box::pin(self(delivery).map(IntoAnswer::into_answer))
    }
}

/// Gives a handler settings of its own.
pub trait HandlerExt: Handler + Sized {
    /// Retries by this policy, whatever the outbox's is.
    fn with_retry(self, policy: RetryPolicy) -> Configured<Self> {
        Configured { inner: self, retry: Some(policy), timeout: None }
    }

    /// May take this long, whatever the outbox allows.
    fn with_timeout(self, timeout: Duration) -> Configured<Self> {
        Configured { inner: self, retry: None, timeout: Some(timeout) }
    }
}

impl<H: Handler> HandlerExt for H {}

/// A handler with settings of its own.
#[derive(Debug)]
pub struct Configured<H> {
    inner: H,
    retry: Option<RetryPolicy>,
    timeout: Option<Duration>,
}

impl<H: Handler> Handler for Configured<H> {
    fn handle(&self, delivery: Delivery) -> BoxFuture<'_, Answer> {
        self.inner.handle(delivery)
    }

    fn retry(&self) -> Option<&RetryPolicy> {
        self.retry.as_ref().or_else(|| self.inner.retry())
    }

    fn timeout(&self) -> Option<Duration> {
        self.timeout.or_else(|| self.inner.timeout())
    }
}

/// The routing registry: exactly one handler a route.
#[derive(Clone, Default)]
pub(crate) struct Routes {
    // By event type first, then by aggregate type: lookups borrow both names.
    handlers: BTreeMap<EventType, BTreeMap<AggregateType, Arc<dyn Handler>>>,
    duplicate: Option<Route>,
}

impl Routes {
    /// Adds a handler; a route that has one already is remembered, and reported by `validate`.
    pub(crate) fn add(&mut self, route: Route, handler: Arc<dyn Handler>) {
        let of_type = self.handlers.entry(route.event.clone()).or_default();
        if of_type.insert(route.aggregate.clone(), handler).is_some() {
            self.duplicate.get_or_insert(route);
        }
    }

    pub(crate) fn validate(&self) -> Result<(), OutboxError> {
        if let Some(route) = &self.duplicate {
            return Err(OutboxError::DuplicateRoute(route.to_string()));
        }
        if self.handlers.is_empty() {
            return Err(OutboxError::NoHandler);
        }
        for (route, handler) in self.iter() {
            if let Some(policy) = handler.retry() {
                policy
                    .validate()
                    .map_err(|reason| OutboxError::setting(format!("retry policy of route {route}: {reason}")))?;
            }
        }
        Ok(())
    }

    pub(crate) fn find(&self, event: &Event) -> Option<&Arc<dyn Handler>> {
        self.handlers.get(event.event_type())?.get(event.aggregate_type())
    }

    /// The routes as nodes publish them.
    pub(crate) fn names(&self) -> Vec<String> {
        self.iter().map(|(route, _)| route.to_string()).collect()
    }

    fn iter(&self) -> impl Iterator<Item = (Route, &Arc<dyn Handler>)> {
        self.handlers.iter().flat_map(|(event, by_aggregate)| {
            by_aggregate.iter().map(move |(aggregate, handler)| {
                (Route { aggregate: aggregate.clone(), event: event.clone() }, handler)
            })
        })
    }
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noop() -> Arc<dyn Handler> {
        Arc::new(|_: Delivery| async {})
    }

    fn event(aggregate: &str, event_type: &str) -> Event {
        Event::builder(event_type).aggregate_type(aggregate).json(&1).build().unwrap()
    }

    #[test]
    fn an_event_finds_the_handler_of_its_own_route_alone() {
        let mut routes = Routes::default();
        routes.add(Route::new("a:b", "c"), noop());
        routes.add(Route::from("c"), noop());
        assert!(routes.find(&event("a:b", "c")).is_some());
        assert!(routes.find(&event("__GLOBAL__", "c")).is_some());
        assert!(routes.find(&event("a", "b:c")).is_none());
        assert_eq!(routes.names().len(), 2);
    }

    #[test]
    fn a_second_handler_of_a_route_is_an_error_that_names_it() {
        let mut routes = Routes::default();
        routes.add(Route::new("Order", "Placed"), noop());
        routes.add(Route::new("Order", "Placed"), noop());
        let error = routes.validate().unwrap_err().to_string();
        assert!(error.contains("(\"Order\", \"Placed\")"), "{error}");
    }

    #[test]
    fn no_handler_is_an_error_that_says_what_to_do() {
        let error = Routes::default().validate().unwrap_err().to_string();
        assert!(error.contains("writer_only"), "{error}");
    }

    #[test]
    fn a_handlers_bad_policy_is_refused_with_its_route() {
        let mut routes = Routes::default();
        let handler = (|_: Delivery| async {}).with_retry(RetryPolicy::never().max_attempts(0));
        routes.add(Route::from("Placed"), Arc::new(handler));
        assert!(routes.validate().unwrap_err().to_string().contains("Placed"));
    }
}

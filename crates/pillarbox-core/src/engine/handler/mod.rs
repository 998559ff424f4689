//! Handlers: what a user registers, and which event goes to which.
//!
//! | file | what it has |
//! |---|---|
//! | here | raw handlers, over a [`Delivery`] |
//! | `typed` | handlers over an event's type, and its [`Metadata`] |
//! | `batch` | handlers over many events at once |
//! | `in_tx` | handlers that work in a transaction of the outbox's database |
//! | `fallback` | what runs when a handler has failed for good |
//! | `registration` | a handler with its id and settings, as the builder is given it |
//! | `routes` | the handlers of each route, in order |
//! | `destination` | what a handler needs and may be down |
//! | `progress` | which of them have had their part |

mod batch;
mod destination;
mod fallback;
mod in_tx;
mod progress;
mod registration;
mod routes;
mod typed;

use std::{future::Future, sync::Arc, time::Duration};

pub use batch::{Answers, Batch, Batched, EventBatchHandler, IntoAnswers, batch};
pub(crate) use batch::{BatchHandler, Several};
pub use fallback::{EventFallback, Failed, Fallback};
use futures_util::{FutureExt, future::join_all};
pub(crate) use in_tx::TxHandler;
pub use in_tx::{EventInTx, InTx, IntoInTx, in_tx};
pub(crate) use progress::Progress;
pub use registration::{
    Configured, Each, HandlerSet, Handlers, IntoHandlers, IntoRegistration, Reaches, Registration, handler,
};
pub(crate) use routes::{Registered, Routes, RoutesBuilder, Runs};
pub use typed::{EventHandler, Handle, Metadata};

use crate::{
    domain::{Answer, Delivery, Event, IntoAnswer, RetryPolicy},
    port::BoxFuture,
};

/// Takes deliveries as they are. Every async closure over a [`Delivery`] is one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler of deliveries",
    note = "a raw handler is an async closure such as `|delivery: Delivery| async move {{ ... }}`, or a type that implements `Handler`",
    note = "a handler over an event's own type is registered by `.handle(...)`, without a route"
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

    /// Its name, where the path of its type should not be it. It stands in the table while an event has succeeded with
    /// some of its handlers: a handler of a new name is run again.
    fn id(&self) -> Option<&str> {
        None
    }

    /// What runs when it has failed for good.
    fn fallback(&self) -> Option<Arc<dyn Fallback>> {
        None
    }

    /// What it needs and may be down. Handlers that name the same share its circuit.
    fn destination(&self) -> Option<&str> {
        None
    }

    /// Whether an event concerns it at all. If not, it is not called, has had its part, and its circuit has no say. A panic
    /// is a failure with this event.
    fn takes(&self, event: &Event) -> bool {
        let _ = event;
        true
    }

    /// How many deliveries it takes at once, of events that no other handler takes. One that takes several is called by
    /// [`handle_all`](Self::handle_all) for them. Default: 1.
    fn at_once(&self) -> usize {
        1
    }

    /// Deals with several deliveries, no two of them of one key, and answers for each, in their order. Default: each by itself,
    /// side by side.
    fn handle_all(&self, deliveries: Vec<Delivery>) -> BoxFuture<'_, Vec<Answer>> {
        Box::pin(join_all(deliveries.into_iter().map(|delivery| self.handle(delivery))))
    }

    /// Whether it sends events on to others, as a relay's does. Its spans are a producer's then.
    fn passes_on(&self) -> bool {
        false
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

/// Gives a raw handler settings of its own.
pub trait HandlerExt: Handler + Sized {
    /// Retries by this policy, whatever the outbox's is.
    fn with_retry(self, policy: RetryPolicy) -> Set<Self> {
        Set { retry: Some(policy), ..Set::new(self) }
    }

    /// May take this long, whatever the outbox allows.
    fn with_timeout(self, timeout: Duration) -> Set<Self> {
        Set { timeout: Some(timeout), ..Set::new(self) }
    }

    /// Has this name.
    fn with_id(self, id: impl Into<String>) -> Set<Self> {
        Set { id: Some(id.into()), ..Set::new(self) }
    }

    /// Needs this, which may be down: see [`HandlerError::unavailable`](crate::HandlerError::unavailable).
    fn with_destination(self, name: impl Into<String>) -> Set<Self> {
        Set { destination: Some(name.into()), ..Set::new(self) }
    }

    /// Is followed by this when it has failed for good.
    fn with_fallback(self, fallback: impl Fallback) -> Set<Self> {
        Set { fallback: Some(Arc::new(fallback)), ..Set::new(self) }
    }
}

impl<H: Handler> HandlerExt for H {}

/// A raw handler with settings of its own.
pub struct Set<H> {
    inner: H,
    retry: Option<RetryPolicy>,
    timeout: Option<Duration>,
    id: Option<String>,
    fallback: Option<Arc<dyn Fallback>>,
    destination: Option<String>,
}

impl<H> Set<H> {
    fn new(inner: H) -> Self {
        Self { inner, retry: None, timeout: None, id: None, fallback: None, destination: None }
    }
}

impl<H: Handler> Handler for Set<H> {
    fn handle(&self, delivery: Delivery) -> BoxFuture<'_, Answer> {
        self.inner.handle(delivery)
    }

    fn retry(&self) -> Option<&RetryPolicy> {
        self.retry.as_ref().or_else(|| self.inner.retry())
    }

    fn timeout(&self) -> Option<Duration> {
        self.timeout.or_else(|| self.inner.timeout())
    }

    fn id(&self) -> Option<&str> {
        self.id.as_deref().or_else(|| self.inner.id())
    }

    fn fallback(&self) -> Option<Arc<dyn Fallback>> {
        self.fallback.clone().or_else(|| self.inner.fallback())
    }

    fn destination(&self) -> Option<&str> {
        self.destination.as_deref().or_else(|| self.inner.destination())
    }

    fn takes(&self, event: &Event) -> bool {
        self.inner.takes(event)
    }

    fn at_once(&self) -> usize {
        self.inner.at_once()
    }

    fn handle_all(&self, deliveries: Vec<Delivery>) -> BoxFuture<'_, Vec<Answer>> {
        self.inner.handle_all(deliveries)
    }

    fn passes_on(&self) -> bool {
        self.inner.passes_on()
    }
}

impl<H> std::fmt::Debug for Set<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Set").field("id", &self.id).field("retry", &self.retry).finish_non_exhaustive()
    }
}

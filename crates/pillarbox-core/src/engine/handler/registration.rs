//! A handler with its id and settings, as the builder is given it.

use std::{
    any::{TypeId, type_name},
    fmt,
    marker::PhantomData,
    sync::Arc,
    time::Duration,
};

use super::{
    Batch, EventFallback, EventHandler, Fallback, Handler, Runs,
    fallback::TypedFallback,
    typed::{Typed, path},
};
use crate::domain::{Codecs, OutboxEvent, RetryPolicy, Route};

/// A handler, ready to be registered: what `#[handlers]` makes of a method, and [`handler`] of a function.
pub struct Registration {
    pub(super) scope: Scope,
    pub(super) id: Arc<str>,
    pub(super) retry: Option<RetryPolicy>,
    pub(super) timeout: Option<Duration>,
    pub(super) fallback: Option<MakeFallback>,
    pub(super) destination: Option<Arc<str>>,
    pub(super) make: MakeHandler,
}

/// Which events a handler takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// The one raw handler of a route.
    Raw(Route),
    /// A handler over a type, which may have several routes and be one of several.
    Typed(TypeId, Vec<Route>),
    /// Everything.
    Every,
}

impl Scope {
    /// That of a handler over a type.
    pub(super) fn of<E: OutboxEvent>() -> Self {
        Self::Typed(TypeId::of::<E>(), E::routes())
    }

    fn routes(&self) -> &[Route] {
        match self {
            Self::Raw(route) => std::slice::from_ref(route),
            Self::Typed(_, routes) => routes,
            Self::Every => &[],
        }
    }
}

/// Makes a handler, once the outbox's codecs are known.
pub(super) type MakeHandler = Box<dyn FnOnce(&Codecs) -> Runs + Send>;

/// The same for a fallback.
pub(super) type MakeFallback = Box<dyn FnOnce(&Codecs) -> Arc<dyn Fallback> + Send>;

impl Registration {
    /// A raw handler of a route.
    pub(crate) fn raw(route: Route, handler: impl Handler) -> Self {
        let name = route.to_string();
        Self::of_raw(Scope::Raw(route), &name, handler)
    }

    /// A raw handler of every event.
    pub(crate) fn every(handler: impl Handler) -> Self {
        Self::of_raw(Scope::Every, "*", handler)
    }

    fn of_raw<H: Handler>(scope: Scope, name: &str, handler: H) -> Self {
        let id = handler.id().map_or_else(|| path::<H>(name), Into::into);
        let fallback = handler.fallback().map(|fallback| -> MakeFallback { Box::new(|_| fallback) });
        let (retry, timeout) = (handler.retry().cloned(), handler.timeout());
        let destination = handler.destination().map(Into::into);
        Self { scope, id, retry, timeout, fallback, destination, make: Box::new(|_| Runs::Each(Box::new(handler))) }
    }

    fn typed<M: 'static, H: EventHandler<M>>(handler: H) -> Self {
        Self::made::<H>(Scope::of::<H::Event>(), |codecs| {
            Runs::Each(Box::new(Typed { handler, codecs: codecs.clone(), marker: PhantomData::<fn() -> M> }))
        })
    }

    /// A handler of a scope without settings, made when the codecs are known.
    pub(super) fn made<H>(scope: Scope, make: impl FnOnce(&Codecs) -> Runs + Send + 'static) -> Self {
        let name = scope.routes().first().map_or_else(String::new, |route| route.event.to_string());
        Self {
            scope,
            id: path::<H>(&name),
            retry: None,
            timeout: None,
            fallback: None,
            destination: None,
            make: Box::new(make),
        }
    }

    /// Its name: by default the event's type and the path of the function.
    pub fn id(&self) -> &str {
        &self.id
    }
}

/// Handlers and fallbacks to be registered together: what `#[handlers]` makes of a type's methods.
#[derive(Default)]
#[must_use = "handlers do nothing until they are registered"]
pub struct Handlers {
    pub(super) registrations: Vec<Registration>,
    pub(super) fallbacks: Vec<(TypeId, &'static str, MakeFallback)>,
}

impl Handlers {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a handler.
    pub fn handler<M>(mut self, handler: impl IntoRegistration<M>) -> Self {
        self.registrations.push(handler.into_registration());
        self
    }

    /// Adds what runs when a handler of a type has failed for good, and has no fallback of its own.
    pub fn fallback<M: 'static, F: EventFallback<M>>(mut self, fallback: F) -> Self {
        self.fallbacks.push((TypeId::of::<F::Event>(), type_name::<F::Event>(), make_fallback(fallback)));
        self
    }
}

/// A type whose methods are handlers: `#[handlers]` implements it.
pub trait HandlerSet: Send + Sync + 'static {
    /// Its handlers, which share it.
    fn handlers(this: Arc<Self>) -> Handlers;
}

/// What `.handlers(...)` takes: a type with `#[handlers]`, also in an `Arc`, or [`Handlers`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no handlers",
    note = "put `#[handlers]` on an impl of it, and `#[handler]` on the methods that take events"
)]
pub trait IntoHandlers {
    /// The handlers.
    fn into_handlers(self) -> Handlers;
}

impl IntoHandlers for Handlers {
    fn into_handlers(self) -> Handlers {
        self
    }
}

impl<T: HandlerSet> IntoHandlers for Arc<T> {
    fn into_handlers(self) -> Handlers {
        T::handlers(self)
    }
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fallbacks = self.fallbacks.iter().map(|(_, name, _)| name).collect::<Vec<_>>();
        f.debug_struct("Handlers").field("handlers", &self.registrations).field("fallbacks", &fallbacks).finish()
    }
}

fn make_fallback<M: 'static, F: EventFallback<M>>(fallback: F) -> MakeFallback {
    Box::new(|codecs| Arc::new(TypedFallback { fallback, codecs: codecs.clone(), marker: PhantomData }))
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").field("id", &self.id).field("scope", &self.scope).finish_non_exhaustive()
    }
}

/// What `.handle(...)` takes: an [`EventHandler`], or one with settings of its own. `M` only tells these apart.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler of events",
    note = "a handler is an async fn or closure over a type that derives `OutboxEvent`: `|placed: OrderPlaced| async move {{ ... }}`, or `|placed: OrderPlaced, meta: Metadata| async move {{ ... }}`",
    note = "it returns nothing, an `Outcome`, or a `Result` of one of them with any error; its future must be `Send`",
    note = "a handler over raw deliveries is registered with its route: `.route(\"OrderPlaced\", |delivery: Delivery| ...)`"
)]
pub trait IntoRegistration<M> {
    /// Makes it ready to be registered.
    fn into_registration(self) -> Registration;
}

impl<M: 'static, H: EventHandler<M>> IntoRegistration<M> for H {
    fn into_registration(self) -> Registration {
        Registration::typed(self)
    }
}

/// Gives a handler settings of its own:
///
/// ```
/// # use std::time::Duration;
/// use pillarbox_core::{RetryPolicy, engine::handler};
/// # fn of<E: pillarbox_core::domain::OutboxEvent>() {
/// # async fn ship<E>(placed: E) {}
/// # let ship = ship::<E>;
/// let ship = handler(ship).id("ship").retry(RetryPolicy::fixed(Duration::from_secs(1)).max_attempts(3));
/// # }
/// ```
pub fn handler<M: 'static, H: EventHandler<M>>(handler: H) -> Configured<H::Event> {
    Configured::new(Registration::typed(handler))
}

/// A handler of events of type `E` with settings of its own. `K` tells its kind: one event at a time, [a
/// batch](super::batch()), or [in a transaction](super::in_tx()).
#[must_use = "a handler does nothing until it is registered"]
pub struct Configured<E, K = Each> {
    pub(super) registration: Registration,
    marker: PhantomData<fn() -> (E, K)>,
}

/// Tells a handler that takes one event at a time from others.
#[derive(Debug)]
pub enum Each {}

impl<E: OutboxEvent, K> Configured<E, K> {
    pub(super) fn new(registration: Registration) -> Self {
        Self { registration, marker: PhantomData }
    }

    /// Names it. The name stands in the table while an event has succeeded with some of its handlers: a handler of a
    /// new name is run again.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.registration.id = id.into().into();
        self
    }

    /// Retries by this policy, whatever the outbox's is.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.registration.retry = Some(policy);
        self
    }

    /// May take this long, whatever the outbox allows.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.registration.timeout = Some(timeout);
        self
    }

    /// Is followed by this when it has failed for good. It comes before the fallback that the outbox has for the type.
    pub fn fallback<N: 'static>(mut self, fallback: impl EventFallback<N, Event = E>) -> Self {
        self.registration.fallback = Some(make_fallback(fallback));
        self
    }

    /// Needs this, which may be down. An error that is [`unavailable`](crate::HandlerError::unavailable), and a timeout,
    /// say that it is: after some of them in a row its circuit opens, and events wait without using up attempts.
    ///
    /// A handler that works in a transaction keeps it open while it waits for an answer: give it a short
    /// [`timeout`](Self::timeout).
    pub fn destination(mut self, name: impl Into<String>) -> Self {
        self.registration.destination = Some(name.into().into());
        self
    }
}

/// Kinds of handlers that reach beyond the outbox's database, and that `.handle(...)` takes.
pub trait Reaches: sealed::Sealed {}
impl Reaches for Each {}
impl Reaches for Batch {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Each {}
    impl Sealed for super::Batch {}
}

/// Tells [`Configured`] from a handler itself.
#[derive(Debug)]
pub enum IsConfigured {}

impl<E: OutboxEvent, K: Reaches> IntoRegistration<IsConfigured> for Configured<E, K> {
    fn into_registration(self) -> Registration {
        self.registration
    }
}

/// What `#[handlers]` gives is registered as it is.
#[derive(Debug)]
pub enum IsRegistration {}

impl IntoRegistration<IsRegistration> for Registration {
    fn into_registration(self) -> Registration {
        self
    }
}

impl<E, K> fmt::Debug for Configured<E, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.registration.fmt(f)
    }
}

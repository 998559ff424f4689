//! Handlers over an event's own type.

use std::{future::Future, marker::PhantomData, sync::Arc};

use futures_util::FutureExt;

use super::Handler;
use crate::{
    domain::{
        AggregateType, Answer, Codecs, Delivery, Epoch, Event, EventId, EventType, HandlerError, Headers, IntoAnswer,
        Key, OutboxEvent, Timestamp,
    },
    port::BoxFuture,
};

/// What is known of a delivery beside the event. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metadata(Delivery);

impl Metadata {
    pub(crate) fn new(delivery: Delivery) -> Self {
        Self(delivery)
    }

    /// The event's identity; the same at every attempt.
    pub fn id(&self) -> EventId {
        self.event().id()
    }

    /// What happened.
    pub fn event_type(&self) -> &EventType {
        self.event().event_type()
    }

    /// The kind of thing it happened to.
    pub fn aggregate_type(&self) -> &AggregateType {
        self.event().aggregate_type()
    }

    /// The thing it happened to.
    pub fn aggregate_id(&self) -> Option<&str> {
        self.event().aggregate_id()
    }

    /// The tenant it belongs to.
    pub fn tenant_id(&self) -> Option<&str> {
        self.event().tenant_id()
    }

    /// The ordering key.
    pub fn key(&self) -> Option<&Key> {
        self.event().key()
    }

    /// Which attempt this is, from 1. Deferred and interrupted deliveries don't count.
    pub fn attempt(&self) -> u32 {
        self.0.attempt()
    }

    /// Whether an attempt has failed before.
    pub fn is_retry(&self) -> bool {
        self.0.is_retry()
    }

    /// What travels beside the payload.
    pub fn headers(&self) -> &Headers {
        self.event().headers()
    }

    /// An entry of the context that the event was written in.
    pub fn context(&self, name: &str) -> Option<&str> {
        self.headers().context(name)
    }

    /// The headers with which a request continues the trace of this delivery; see [`Delivery::trace`].
    pub fn trace(&self) -> Option<&Headers> {
        self.0.trace()
    }

    /// When it happened, by the writer's word.
    pub fn occurred_at(&self) -> Timestamp {
        self.event().occurred_at()
    }

    /// When its row was inserted, by the database's clock.
    pub fn created_at(&self) -> Timestamp {
        self.0.record().created_at
    }

    /// The name of the handler that runs.
    pub fn handler_id(&self) -> &str {
        self.0.handler_id()
    }

    /// Raised whenever the event's partition changes hands; see [`Delivery::fencing_token`].
    pub fn fencing_token(&self) -> Epoch {
        self.0.fencing_token()
    }

    /// The event as it was written.
    pub fn event(&self) -> &Event {
        self.0.event()
    }
}

/// A type that takes events of one type. Where closures and functions do, use them; where one type takes several kinds
/// of events, `#[handlers]` makes its methods handlers.
pub trait Handle: Send + Sync + 'static {
    /// The events that it takes.
    type Event: OutboxEvent;

    /// Deals with one of them. May be dropped at any await, as a raw [`Handler`] may.
    fn handle(&self, event: Self::Event, metadata: Metadata) -> impl Future<Output: IntoAnswer> + Send;
}

/// What can be given to `.handle(...)`: an async function or closure over an event, alone or with [`Metadata`], or a
/// type that implements [`Handle`]. `M` only tells these apart.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler of events",
    note = "a handler is an async fn or closure over a type that derives `OutboxEvent`: `|placed: OrderPlaced| async move {{ ... }}`, or `|placed: OrderPlaced, meta: Metadata| async move {{ ... }}`",
    note = "it returns nothing, an `Outcome`, or a `Result` of one of them with any error; its future must be `Send`",
    note = "a handler over raw deliveries is registered with its route: `.route(\"OrderPlaced\", |delivery: Delivery| ...)`"
)]
pub trait EventHandler<M>: Send + Sync + Sized + 'static {
    /// The events that it takes.
    type Event: OutboxEvent;

    /// Deals with one of them.
    fn call(&self, event: Self::Event, metadata: Metadata) -> impl Future<Output = Answer> + Send;
}

impl<F, Fut, E> EventHandler<(E,)> for F
where
    F: Fn(E) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoAnswer> + Send,
    E: OutboxEvent,
{
    type Event = E;

    fn call(&self, event: E, _metadata: Metadata) -> impl Future<Output = Answer> + Send {
        self(event).map(IntoAnswer::into_answer)
    }
}

impl<F, Fut, E> EventHandler<(E, Metadata)> for F
where
    F: Fn(E, Metadata) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoAnswer> + Send,
    E: OutboxEvent,
{
    type Event = E;

    fn call(&self, event: E, metadata: Metadata) -> impl Future<Output = Answer> + Send {
        self(event, metadata).map(IntoAnswer::into_answer)
    }
}

/// Tells types that implement [`Handle`] from functions.
#[derive(Debug)]
pub enum ByType {}

impl<H: Handle> EventHandler<ByType> for H {
    type Event = H::Event;

    fn call(&self, event: H::Event, metadata: Metadata) -> impl Future<Output = Answer> + Send {
        self.handle(event, metadata).map(IntoAnswer::into_answer)
    }
}

/// A handler of events as the raw handler that it is to the engine.
pub(super) struct Typed<H, M> {
    pub(super) handler: H,
    pub(super) codecs: Codecs,
    pub(super) marker: PhantomData<fn() -> M>,
}

impl<M: 'static, H: EventHandler<M>> Handler for Typed<H, M> {
    fn handle(&self, delivery: Delivery) -> BoxFuture<'_, Answer> {
        match H::Event::decode(delivery.event(), &self.codecs) {
            Ok(event) => Box::pin(self.handler.call(event, Metadata(delivery))),
            Err(error) => {
                let error = HandlerError::undecodable(error);
                Box::pin(async { Err(error) })
            }
        }
    }
}

/// What a handler is called unless it has a name.
pub(super) fn path<H>(of: &str) -> Arc<str> {
    format!("{of}@{}", std::any::type_name::<H>()).into()
}

//! What runs when a handler has failed for good.

use std::{future::Future, marker::PhantomData};

use futures_util::FutureExt;

use super::Metadata;
use crate::{
    domain::{Answer, Codecs, Delivery, Failure, HandlerError, IntoAnswer, Key, OutboxEvent, Timestamp},
    port::BoxFuture,
};

/// How a handler has failed for good: what its fallback is given.
#[derive(Clone, Debug)]
pub struct Failed {
    metadata: Metadata,
    failures: u32,
    failure: Failure,
}

impl Failed {
    pub(crate) fn new(delivery: Delivery, failures: u32, failure: Failure) -> Self {
        Self { metadata: Metadata::new(delivery), failures, failure }
    }

    /// The name of the handler.
    pub fn handler_id(&self) -> &str {
        self.metadata.handler_id()
    }

    /// The event's ordering key.
    pub fn key(&self) -> Option<&Key> {
        self.metadata.key()
    }

    /// When the event's row was inserted.
    pub fn created_at(&self) -> Timestamp {
        self.metadata.created_at()
    }

    /// How often the event has failed.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// The last failure.
    pub fn failure(&self) -> &Failure {
        &self.failure
    }

    /// The last failure in words.
    pub fn error(&self) -> String {
        self.failure.to_string()
    }

    /// An entry of the context that the event was written in.
    pub fn context(&self, name: &str) -> Option<&str> {
        self.metadata.context(name)
    }

    /// Everything else about the delivery.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// Takes what a raw handler could not. Every async closure over a [`Delivery`] and [`Failed`] is one.
///
/// It runs once, when the last attempt has failed, or an error says that no other can succeed. If it succeeds the event
/// is DONE; if not, it is DEAD with both errors. It can't ask for another try.
pub trait Fallback: Send + Sync + 'static {
    /// Deals with it.
    fn handle(&self, delivery: Delivery, failed: Failed) -> BoxFuture<'_, Answer>;
}

impl<F, Fut> Fallback for F
where
    F: Fn(Delivery, Failed) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoAnswer> + Send + 'static,
{
    fn handle(&self, delivery: Delivery, failed: Failed) -> BoxFuture<'_, Answer> {
        Box::pin(self(delivery, failed).map(IntoAnswer::into_answer))
    }
}

/// What can be given to `.fallback(...)`: an async function or closure over an event, alone or with [`Failed`]. `M` only
/// tells these apart.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a fallback",
    note = "a fallback is an async fn or closure over a type that derives `OutboxEvent`: `|placed: OrderPlaced, failed: Failed| async move {{ ... }}`"
)]
pub trait EventFallback<M>: Send + Sync + Sized + 'static {
    /// The events that it takes.
    type Event: OutboxEvent;

    /// Deals with one of them.
    fn call(&self, event: Self::Event, failed: Failed) -> impl Future<Output = Answer> + Send;
}

impl<F, Fut, E> EventFallback<(E,)> for F
where
    F: Fn(E) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoAnswer> + Send,
    E: OutboxEvent,
{
    type Event = E;

    fn call(&self, event: E, _failed: Failed) -> impl Future<Output = Answer> + Send {
        self(event).map(IntoAnswer::into_answer)
    }
}

impl<F, Fut, E> EventFallback<(E, Failed)> for F
where
    F: Fn(E, Failed) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoAnswer> + Send,
    E: OutboxEvent,
{
    type Event = E;

    fn call(&self, event: E, failed: Failed) -> impl Future<Output = Answer> + Send {
        self(event, failed).map(IntoAnswer::into_answer)
    }
}

/// A fallback over events as the raw one that it is to the engine.
pub(super) struct TypedFallback<F, M> {
    pub(super) fallback: F,
    pub(super) codecs: Codecs,
    pub(super) marker: PhantomData<fn() -> M>,
}

impl<M: 'static, F: EventFallback<M>> Fallback for TypedFallback<F, M> {
    fn handle(&self, delivery: Delivery, failed: Failed) -> BoxFuture<'_, Answer> {
        match F::Event::decode(delivery.event(), &self.codecs) {
            Ok(event) => Box::pin(self.fallback.call(event, failed)),
            Err(error) => {
                let error = HandlerError::undecodable(error);
                Box::pin(async { Err(error) })
            }
        }
    }
}

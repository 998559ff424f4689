//! Handlers that work in a transaction of the outbox's own database.

use std::{any::Any, future::Future, marker::PhantomData};

use futures_util::FutureExt;

use super::{Configured, Metadata, Registration, Runs, registration::Scope};
use crate::{
    domain::{Answer, Codecs, Delivery, HandlerError, IntoAnswer, OutboxEvent},
    engine::work::Work,
    port::{BoxFuture, SettleStore, TransactStore},
};

/// What can be given to `.handle_in_tx(...)`: an async function or closure over [`Work`] and an event, alone or with
/// [`Metadata`]. `M` only tells these apart.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a transactional handler for `{S}`",
    note = "a transactional handler is an async fn or closure over the transaction and a type that derives `OutboxEvent`: `|mut work: Work<{S}>, placed: OrderPlaced| async move {{ ... }}`, or with `meta: Metadata` as a third",
    note = "it returns nothing, an `Outcome`, or a `Result` of one of them with any error; its future must be `Send`"
)]
pub trait EventInTx<S: TransactStore, M>: Send + Sync + Sized + 'static {
    /// The events that it takes.
    type Event: OutboxEvent;

    /// Deals with one of them.
    fn call(&self, work: Work<S>, event: Self::Event, metadata: Metadata) -> impl Future<Output = Answer> + Send;
}

impl<S, F, Fut, E> EventInTx<S, (E,)> for F
where
    S: TransactStore,
    F: Fn(Work<S>, E) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoAnswer> + Send,
    E: OutboxEvent,
{
    type Event = E;

    fn call(&self, work: Work<S>, event: E, _metadata: Metadata) -> impl Future<Output = Answer> + Send {
        self(work, event).map(IntoAnswer::into_answer)
    }
}

impl<S, F, Fut, E> EventInTx<S, (E, Metadata)> for F
where
    S: TransactStore,
    F: Fn(Work<S>, E, Metadata) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoAnswer> + Send,
    E: OutboxEvent,
{
    type Event = E;

    fn call(&self, work: Work<S>, event: E, metadata: Metadata) -> impl Future<Output = Answer> + Send {
        self(work, event, metadata).map(IntoAnswer::into_answer)
    }
}

/// Tells a transactional handler of a store from others.
pub struct InTx<S>(PhantomData<fn() -> S>);

impl<S> std::fmt::Debug for InTx<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InTx")
    }
}

/// Gives a transactional handler settings of its own: `in_tx(project).id("orders by day")`. See
/// [`Builder::handle_in_tx`](crate::engine::Builder::handle_in_tx).
pub fn in_tx<S, M, H>(handler: H) -> Configured<H::Event, InTx<S>>
where
    S: SettleStore + 'static,
    M: 'static,
    H: EventInTx<S, M>,
{
    let scope = Scope::of::<H::Event>();
    Configured::new(Registration::made::<H>(scope, |codecs| {
        Runs::InTx(Box::new(OfEvent { handler, codecs: codecs.clone(), marker: PhantomData::<fn() -> (S, M)> }))
    }))
}

/// What `.handle_in_tx(...)` takes: an [`EventInTx`], or one with settings of its own. `M` only tells these apart.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a transactional handler for `{S}`",
    note = "a transactional handler is an async fn or closure over the transaction and a type that derives `OutboxEvent`: `|mut work: Work<{S}>, placed: OrderPlaced| async move {{ ... }}`, or with `meta: Metadata` as a third",
    note = "it returns nothing, an `Outcome`, or a `Result` of one of them with any error; its future must be `Send`"
)]
pub trait IntoInTx<S, M> {
    /// Makes it ready to be registered.
    fn into_registration(self) -> Registration;
}

impl<S: SettleStore + 'static, M: 'static, H: EventInTx<S, M>> IntoInTx<S, (M,)> for H {
    fn into_registration(self) -> Registration {
        in_tx(self).registration
    }
}

impl<S, E> IntoInTx<S, InTx<S>> for Configured<E, InTx<S>> {
    fn into_registration(self) -> Registration {
        self.registration
    }
}

/// A transactional handler as the engine calls it, which knows no store.
pub(crate) trait TxHandler: Send + Sync {
    /// Deals with one delivery in what an [`Open`](crate::engine::work::Open) lent.
    fn handle(&self, work: Box<dyn Any + Send>, delivery: Delivery) -> BoxFuture<'_, Answer>;
}

struct OfEvent<H, S, M> {
    handler: H,
    codecs: Codecs,
    marker: PhantomData<fn() -> (S, M)>,
}

impl<S, M, H> TxHandler for OfEvent<H, S, M>
where
    S: SettleStore + 'static,
    M: 'static,
    H: EventInTx<S, M>,
{
    fn handle(&self, work: Box<dyn Any + Send>, delivery: Delivery) -> BoxFuture<'_, Answer> {
        let Ok(work) = work.downcast::<Work<S>>() else {
            // The builder that took the handler has this very store.
            return Box::pin(async { Err(HandlerError::msg("the transaction is of another store").permanent()) });
        };
        match H::Event::decode(delivery.event(), &self.codecs) {
            Ok(event) => Box::pin(self.handler.call(*work, event, Metadata::new(delivery))),
            Err(error) => {
                let error = HandlerError::undecodable(error);
                Box::pin(async { Err(error) })
            }
        }
    }
}

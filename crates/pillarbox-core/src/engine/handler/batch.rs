//! Handlers that take many events at once.

use std::{future::Future, marker::PhantomData};

use super::{Configured, Handler, Metadata, Registration, Runs, registration::Scope};
use crate::{
    domain::{Answer, BoxError, Codecs, Delivery, HandlerError, IntoAnswer, OutboxEvent, Outcome},
    port::BoxFuture,
};

/// An event of a batch, with what is known of its delivery.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Batched<E> {
    /// The event.
    pub event: E,
    /// Everything else about the delivery.
    pub metadata: Metadata,
}

/// What a batch handler answers: for each event of its batch, or for all of them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Answers {
    /// For each event, in the order of the batch.
    Each(Vec<Answer>),
    /// The same for all.
    All(Answer),
}

impl Answers {
    /// For each of so many events; a wrong number is a failure of all.
    pub(crate) fn of(self, events: usize) -> Vec<Answer> {
        match self {
            Self::All(answer) => vec![answer; events],
            Self::Each(answers) if answers.len() == events => answers,
            Self::Each(answers) => {
                let error = HandlerError::msg(format!(
                    "the batch handler was given {events} events and gave {} answers: it must answer for each, in order",
                    answers.len()
                ));
                vec![Err(error); events]
            }
        }
    }
}

/// Anything a batch handler may return: nothing, an answer for each event in a `Vec`, or a `Result` of one of them with
/// any error, which is then the failure of all.
#[diagnostic::on_unimplemented(
    message = "a batch handler can't return `{Self}`",
    note = "return a `Vec` with an answer for each event: nothing, an `Outcome`, or a `Result` of one of them; or nothing, or a `Result`, for all of them"
)]
pub trait IntoAnswers {
    /// The answers it stands for.
    fn into_answers(self) -> Answers;
}

impl IntoAnswers for () {
    fn into_answers(self) -> Answers {
        Answers::All(Ok(Outcome::Done))
    }
}

impl IntoAnswers for Answers {
    fn into_answers(self) -> Answers {
        self
    }
}

impl<T: IntoAnswer> IntoAnswers for Vec<T> {
    fn into_answers(self) -> Answers {
        Answers::Each(self.into_iter().map(IntoAnswer::into_answer).collect())
    }
}

impl<A: IntoAnswers, E: Into<BoxError>> IntoAnswers for Result<A, E> {
    fn into_answers(self) -> Answers {
        match self {
            Ok(answers) => answers.into_answers(),
            Err(error) => Answers::All(Err::<(), _>(error).into_answer()),
        }
    }
}

/// What can be given to `.handle_batch(...)`: an async function or closure over a `Vec<Batched<E>>`. `M` only tells the
/// events apart.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a batch handler",
    note = "a batch handler is an async fn or closure over many events of a type that derives `OutboxEvent`: `|batch: Vec<Batched<OrderPlaced>>| async move {{ ... }}`",
    note = "it returns a `Vec` with an answer for each, or nothing or a `Result` for all of them; its future must be `Send`"
)]
pub trait EventBatchHandler<M>: Send + Sync + Sized + 'static {
    /// The events that it takes.
    type Event: OutboxEvent;

    /// Deals with them.
    fn call(&self, batch: Vec<Batched<Self::Event>>) -> impl Future<Output = Answers> + Send;
}

impl<F, Fut, E> EventBatchHandler<E> for F
where
    F: Fn(Vec<Batched<E>>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoAnswers> + Send,
    E: OutboxEvent,
{
    type Event = E;

    async fn call(&self, batch: Vec<Batched<E>>) -> Answers {
        self(batch).await.into_answers()
    }
}

/// Tells a batch handler from others.
#[derive(Debug)]
pub enum Batch {}

/// A handler that takes up to `most` events at once, with settings of its own: `batch(100, index).id("search")`. It is
/// registered by [`handle`](crate::engine::Builder::handle); see
/// [`handle_batch`](crate::engine::Builder::handle_batch).
pub fn batch<M: 'static, H: EventBatchHandler<M>>(most: usize, handler: H) -> Configured<H::Event, Batch> {
    let scope = Scope::of::<H::Event>();
    Configured::new(Registration::made::<H>(scope, move |codecs| {
        let handler = OfEvents { handler, codecs: codecs.clone(), marker: PhantomData::<fn() -> M> };
        Runs::Batch { most: most.max(1), handler: Box::new(handler) }
    }))
}

/// A batch handler as the engine calls it.
pub(crate) trait BatchHandler: Send + Sync {
    /// Reads the payloads of a batch. Says for each delivery whether it could be read, and calls the handler with those
    /// that could.
    fn handle<'a>(&'a self, deliveries: &[Delivery]) -> (Vec<Result<(), HandlerError>>, BoxFuture<'a, Answers>);

    /// See [`Handler::passes_on`].
    fn passes_on(&self) -> bool {
        false
    }
}

/// A raw handler that takes several deliveries.
pub(crate) struct Several<'h>(pub(crate) &'h dyn Handler);

impl BatchHandler for Several<'_> {
    fn handle<'a>(&'a self, deliveries: &[Delivery]) -> (Vec<Result<(), HandlerError>>, BoxFuture<'a, Answers>) {
        let answers = self.0.handle_all(deliveries.to_vec());
        (vec![Ok(()); deliveries.len()], Box::pin(async { Answers::Each(answers.await) }))
    }

    fn passes_on(&self) -> bool {
        self.0.passes_on()
    }
}

struct OfEvents<H, M> {
    handler: H,
    codecs: Codecs,
    marker: PhantomData<fn() -> M>,
}

impl<M: 'static, H: EventBatchHandler<M>> BatchHandler for OfEvents<H, M> {
    fn handle<'a>(&'a self, deliveries: &[Delivery]) -> (Vec<Result<(), HandlerError>>, BoxFuture<'a, Answers>) {
        let mut batch = Vec::with_capacity(deliveries.len());
        let read = |delivery: &Delivery| {
            let event = H::Event::decode(delivery.event(), &self.codecs).map_err(HandlerError::undecodable)?;
            batch.push(Batched { event, metadata: Metadata::new(delivery.clone()) });
            Ok(())
        };
        let read = deliveries.iter().map(read).collect();
        (read, Box::pin(async move { self.handler.call(batch).await }))
    }
}

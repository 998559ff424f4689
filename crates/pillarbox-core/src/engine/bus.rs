//! A bus in the process: one call stores an event for the outbox, and tells the listeners that are here.
//!
//! | listener | runs | its error |
//! |---|---|---|
//! | [`in_transaction`](Bus::in_transaction) | in the publisher's transaction, before `publish` comes back | makes `publish` fail |
//! | [`after_commit`](Bus::after_commit) | once the transaction has committed | is logged |
//!
//! Listeners have no promise of delivery: when the process dies between the commit and a listener, nobody calls it again.
//! What must happen is done by a handler of the outbox.

use std::{
    any::{Any, TypeId, type_name},
    collections::HashMap,
    fmt,
    future::Future,
    marker::PhantomData,
    sync::Arc,
};

use futures_util::TryFutureExt;

use super::{error::WriteError, transaction::Transaction};
use crate::{
    domain::{BoxError, Codecs, Event, EventError, EventId, HandlerError, IntoAnswer, OutboxEvent},
    port::{BoxFuture, TransactStore},
};

/// What can be published: every type that derives `OutboxEvent`, which is stored; and what is meant for listeners in
/// this process alone, which says so:
///
/// ```
/// use pillarbox_core::engine::BusEvent;
///
/// struct PriceListLoaded {
///     entries: usize,
/// }
///
/// impl BusEvent for PriceListLoaded {}
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be published",
    note = "derive `OutboxEvent`, and it is stored in the transaction and delivered by the outbox",
    note = "or write `impl BusEvent for {Self} {{}}`, and it goes to the listeners in this process alone"
)]
pub trait BusEvent: Send + Sync + 'static {
    /// The event of the outbox that it is, if it is one.
    #[doc(hidden)]
    fn outbox_event(&self, codecs: &Codecs) -> Option<Result<Event, EventError>> {
        let _ = codecs;
        None
    }
}

impl<E: OutboxEvent + Sync> BusEvent for E {
    fn outbox_event(&self, codecs: &Codecs) -> Option<Result<Event, EventError>> {
        Some(self.to_event_by(codecs).build())
    }
}

/// Publishes events: to the outbox, and to listeners in the process. Clones have the same listeners; one that is added
/// to a clone is that clone's.
///
/// ```
/// # use pillarbox_core::{engine::{Bus, BusEvent, PublishError, Transaction}, port::TransactStore};
/// #[derive(Clone)]
/// struct StockCounted {
///     article: u32,
/// }
/// impl BusEvent for StockCounted {}
///
/// # async fn example<S: TransactStore + 'static>(mut tx: Transaction<S>) -> Result<(), Box<dyn std::error::Error>> {
/// let bus = Bus::new()
///     .in_transaction(|counted: &StockCounted, _tx: &mut Transaction<S>| {
///         let article = counted.article;
///         Box::pin(async move { if article == 0 { Err("there is no article 0") } else { Ok(()) } })
///     })
///     .after_commit(|counted: StockCounted| async move { println!("{} is counted", counted.article) });
///
/// bus.publish(&mut tx, &StockCounted { article: 7 }).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
pub struct Bus<S> {
    listeners: Arc<HashMap<TypeId, Vec<Listener>>>,
    only_store: bool,
    store: PhantomData<fn() -> S>,
}

/// A listener of one type, as an [`InTransaction`] or an [`AfterCommit`] of that type.
#[derive(Clone)]
struct Listener {
    name: &'static str,
    call: Arc<dyn Any + Send + Sync>,
}

type Heard<'a, R> = BoxFuture<'a, Result<(), R>>;
type HearsInTransaction<S, E> = dyn for<'a> Fn(&'a E, &'a mut Transaction<S>) -> Heard<'a, BoxError> + Send + Sync;
type HearsAfterCommit<E> = dyn Fn(&E) -> Heard<'static, HandlerError> + Send + Sync;

struct InTransaction<S: TransactStore, E>(Box<HearsInTransaction<S, E>>);

struct AfterCommit<E>(Box<HearsAfterCommit<E>>);

impl<S: TransactStore + 'static> Bus<S> {
    /// A bus without listeners.
    pub fn new() -> Self {
        Self { listeners: Arc::default(), only_store: false, store: PhantomData }
    }

    /// Adds a listener that runs in the publisher's transaction, and may write in it. Those of one type run in the order
    /// in which they were added; at the first error the rest is not called, and `publish` fails. A panic is the
    /// publisher's.
    #[must_use]
    pub fn in_transaction<E, F, R>(self, listener: F) -> Self
    where
        E: BusEvent,
        F: for<'a> Fn(&'a E, &'a mut Transaction<S>) -> BoxFuture<'a, Result<(), R>> + Send + Sync + 'static,
        R: Into<BoxError> + 'static,
    {
        let call: Box<HearsInTransaction<S, E>> =
            Box::new(move |event, tx| Box::pin(listener(event, tx).map_err(Into::into)));
        self.add::<E, F>(InTransaction(call))
    }

    /// Adds a listener that runs once the publisher's transaction has committed, and never after a rollback. It is given
    /// a copy of the event. `commit` comes back when it is done: what takes long spawns a task. It returns what a handler
    /// may; its errors and panics are logged, and keep no other listener back.
    #[must_use]
    pub fn after_commit<E, F, Fut>(self, listener: F) -> Self
    where
        E: BusEvent + Clone,
        F: Fn(E) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoAnswer> + Send + 'static,
    {
        let listener = Arc::new(listener);
        let call: Box<HearsAfterCommit<E>> = Box::new(move |event: &E| {
            let (listener, event) = (listener.clone(), event.clone());
            // Called only when this is run: a closure may do its work before its first await.
            Box::pin(async move { listener(event).await.into_answer().map(drop) })
        });
        self.add::<E, F>(AfterCommit(call))
    }

    /// Whether events of the outbox are only stored, and no listener in this process hears of them. Default: they go to
    /// the listeners as well.
    #[must_use]
    pub fn only_store(mut self, only_store: bool) -> Self {
        self.only_store = only_store;
        self
    }

    /// Publishes an event in a transaction. An event of the outbox is stored first; its id comes back. Then the listeners
    /// are called, or kept for after the commit.
    ///
    /// After an error, roll back: something of the event may be in the transaction already.
    pub async fn publish<E: BusEvent>(
        &self,
        tx: &mut Transaction<S>,
        event: &E,
    ) -> Result<Option<EventId>, PublishError> {
        let id = match event.outbox_event(tx.codecs()) {
            Some(stored) => Some(tx.write(stored.map_err(WriteError::from)?).await?),
            None => None,
        };
        if id.is_some() && self.only_store {
            return Ok(id);
        }
        let Some(listeners) = self.listeners.get(&TypeId::of::<E>()) else { return Ok(id) };
        for Listener { name, call } in listeners {
            if let Some(InTransaction(call)) = call.downcast_ref::<InTransaction<S, E>>() {
                call(event, tx).await.map_err(|cause| PublishError::Listener { name, cause })?;
            }
        }
        for Listener { name, call } in listeners {
            if let Some(AfterCommit(call)) = call.downcast_ref::<AfterCommit<E>>() {
                let (name, run) = (*name, call(event));
                tx.after_commit(async move {
                    if let Err(error) = run.await {
                        tracing::error!(listener = name, %error, "a listener failed after the commit");
                    }
                });
            }
        }
        Ok(id)
    }

    fn add<E: 'static, F>(mut self, call: impl Any + Send + Sync) -> Self {
        let listener = Listener { name: type_name::<F>(), call: Arc::new(call) };
        Arc::make_mut(&mut self.listeners).entry(TypeId::of::<E>()).or_default().push(listener);
        self
    }
}

impl<S: TransactStore + 'static> Default for Bus<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> Clone for Bus<S> {
    fn clone(&self) -> Self {
        Self { listeners: self.listeners.clone(), only_store: self.only_store, store: PhantomData }
    }
}

impl<S> fmt::Debug for Bus<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.listeners.values().flatten().map(|listener| listener.name).collect();
        f.debug_struct("Bus").field("listeners", &names).field("only_store", &self.only_store).finish()
    }
}

/// Why an event was not published.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// It could not be stored.
    #[error("the event could not be stored")]
    Write(#[from] WriteError),
    /// A listener in the transaction refused it.
    #[error("the listener {name} refused the event: roll the transaction back")]
    Listener {
        /// Which one.
        name: &'static str,
        /// What it said.
        #[source]
        cause: BoxError,
    },
}

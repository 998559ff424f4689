//! What can go wrong at the surface.

use crate::{
    domain::EventError,
    port::{StoreError, StoreErrorKind},
};

/// Why an outbox could not start, or an operator's call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutboxError {
    /// A setting is out of its range.
    #[error("{0}")]
    Setting(String),
    /// There is nothing to deliver to.
    #[error(
        "the outbox has no handler: register one with `handle` or `route`, or use `Outbox::writer_only` for a process that only writes"
    )]
    NoHandler,
    /// Two handlers claim one route.
    #[error("two handlers are registered for the route {0}: a route has exactly one")]
    DuplicateRoute(String),
    /// Two handlers have one name.
    #[error(
        "two handlers are called {0:?}: name one of them, with `handler(...).id(\"...\")` or, on a raw handler, `with_id`"
    )]
    DuplicateHandler(String),
    /// Two fallbacks for one type.
    #[error("two fallbacks are registered for {0}: a type has one; a handler may have one of its own")]
    DuplicateFallback(&'static str),
    /// A fallback for what nobody takes.
    #[error("a fallback is registered for {0}, and no handler takes that type: register one with `handle`")]
    LoneFallback(&'static str),
    /// A handler of several events at once is not the only one of its events.
    #[error(
        "{handler:?} is a transactional or a batch handler and must be the only one of its events, but there is also {}: \
         put them into one handler, or let it write an event of another type for the others, with `Work::write`",
        others.join(", ")
    )]
    NotAlone {
        /// Its id.
        handler: String,
        /// The ids of the others.
        others: Vec<String>,
    },
    /// Nodes with other handlers deliver the events of this table.
    #[error(
        "the node {node} delivers the events of this outbox already, {theirs}, and this process is {ours}: one outbox table has one \
         group of consumers, or each would take events that are the other's. Give one of them an outbox of its own, by \
         another prefix; or let the service send to the broker itself, with a `pillarbox_relay::Outlet` among its handlers"
    )]
    OtherGroup {
        /// A node that is there.
        node: String,
        /// In which group it is.
        theirs: String,
        /// In which group this process is.
        ours: String,
    },
    /// A thread for the lease could not be started.
    #[error("the thread that renews the lease could not be started: {0}")]
    Thread(String),
    /// The store failed.
    #[error("the outbox's database failed")]
    Store(#[from] StoreError),
    /// There is no such event.
    #[error("there is no event {0}")]
    NotFound(String),
    /// The event is not in the state that the action needs.
    #[error("event {id} is {status}, and only DEAD events can be {action}")]
    NotDead {
        /// Which event.
        id: String,
        /// Where it stands.
        status: String,
        /// What was asked.
        action: &'static str,
    },
    /// The payload for an event is not one that an event may have.
    #[error("event {id} can't be given this payload: {why}")]
    Payload {
        /// Which event.
        id: String,
        /// What is wrong with it.
        why: EventError,
    },
    /// The dead event does not hold its key.
    #[error("event {0} holds no key: there is nothing to skip")]
    HoldsNothing(String),
}

impl OutboxError {
    pub(crate) fn setting(reason: impl Into<String>) -> Self {
        Self::Setting(reason.into())
    }
}

/// Why an event was not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The event is not valid.
    #[error("the event can't be written")]
    Event(#[from] EventError),
    /// `ordered` takes only events with a key.
    #[error(
        "event {0} has no key, and this outbox is `ordered`: give it one with `key`, or set `default_key` on the builder"
    )]
    NoKey(String),
    /// A hook refused the batch.
    #[error("a writer hook refused the batch: {0}")]
    Hook(String),
    /// The database failed. The transaction must be rolled back, which dropping it does.
    #[error("the database failed")]
    Store(#[from] StoreError),
}

impl WriteError {
    /// Whether the transaction may be in effect all the same: the connection broke during its commit. The
    /// event is delivered if and only if it was committed.
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, Self::Store(error) if error.kind() == StoreErrorKind::OutcomeUnknown)
    }
}

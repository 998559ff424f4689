//! What a drain did, and why one failed.

use std::{error::Error, fmt};

use pillarbox_core::{
    Event, Outcome,
    domain::{Status, Timestamp},
    engine::OutboxError,
    port::{AdminStore, Found, Query, StoreError},
};

use super::recorder::Run;

/// What a drain did, each list in the order in which it happened.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Drained {
    /// The events that their handlers have dealt with.
    pub delivered: Vec<Event>,
    /// Every run that failed, also of events that a later one has dealt with.
    pub failed: Vec<FailedRun>,
    /// The events whose handlers asked for another delivery later, once for each time they did.
    pub deferred: Vec<Event>,
    /// The events that are dead since this drain.
    pub dead: Vec<Dead>,
    /// The events whose outcome was lost in a crash, once for each time it was.
    pub lost: Vec<Event>,
    /// Whether the drain ended in a crash; see [`TestOutbox::crash_after_handler`](super::TestOutbox::crash_after_handler).
    pub crashed: bool,
}

/// A run of an event's handlers that failed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FailedRun {
    /// The event.
    pub event: Event,
    /// Which attempt it was, from 1.
    pub attempt: u32,
    /// What the first handler that failed said.
    pub error: String,
}

/// An event that is dead.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Dead {
    /// The event; `None` if its row can't be read.
    pub event: Option<Event>,
    /// Its id, as it stands in the table.
    pub id: String,
    /// Failed attempts.
    pub attempts: u32,
    /// The last error.
    pub error: String,
}

impl Drained {
    /// Adds runs whose outcomes are durable.
    pub(super) fn add(&mut self, runs: Vec<Run>) {
        for Run { delivery, result } in runs {
            let event = delivery.event().clone();
            match result {
                Ok(Outcome::Done) => self.delivered.push(event),
                Ok(_) => self.deferred.push(event),
                Err(failure) => {
                    self.failed.push(FailedRun { event, attempt: delivery.attempt(), error: failure.to_string() });
                }
            }
        }
    }

    /// Adds runs whose outcomes are lost.
    pub(super) fn lose(&mut self, runs: &[Run]) {
        self.lost.extend(runs.iter().map(|run| run.delivery.event().clone()));
    }

    /// Adds what is dead now. What a handler has dealt with is not delivered if another has failed for good.
    pub(super) fn bury(&mut self, dead: Vec<Found>) {
        for found in dead {
            let event = found.record.ok().map(|record| record.event);
            if let Some(event) = &event {
                self.delivered.retain(|delivered| delivered.id() != event.id());
            }
            let error = found.last_error.unwrap_or_default();
            self.dead.push(Dead { event, id: found.id, attempts: found.attempts, error });
        }
    }
}

/// Why a drain failed. Its `Debug` is its `Display`, so that `unwrap` shows it to people.
#[non_exhaustive]
pub enum DrainError {
    /// The outbox or its store failed.
    Outbox(OutboxError),
    /// It would never end, or not in time.
    Stuck {
        /// Why it was given up.
        why: String,
        /// What is not delivered, each in words.
        events: Vec<String>,
    },
    /// A handler was run a second time, and that has changed what must not change.
    NotIdempotent {
        /// The event that it was given, in words.
        event: String,
        /// The state after the first run.
        first: String,
        /// The state after the second run.
        second: String,
    },
}

impl fmt::Display for DrainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outbox(_) => write!(f, "the outbox could not be drained"),
            Self::Stuck { why, events } => {
                write!(f, "{why}")?;
                events.iter().take(SHOWN).try_for_each(|event| write!(f, "\n  {event}"))?;
                match events.len().saturating_sub(SHOWN) {
                    0 => Ok(()),
                    more => write!(f, "\n  and {more} more"),
                }
            }
            Self::NotIdempotent { event, first, second } => write!(
                f,
                "a second run of its handlers has changed the state, for {event}\nafter the first run: {first}\nafter the second run: {second}"
            ),
        }
    }
}

/// More than that many events don't help anybody.
const SHOWN: usize = 20;

impl fmt::Debug for DrainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        let mut cause = self.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

impl Error for DrainError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Outbox(error) => Some(error),
            Self::Stuck { .. } | Self::NotIdempotent { .. } => None,
        }
    }
}

impl From<OutboxError> for DrainError {
    fn from(error: OutboxError) -> Self {
        Self::Outbox(error)
    }
}

impl From<StoreError> for DrainError {
    fn from(error: StoreError) -> Self {
        Self::Outbox(error.into())
    }
}

/// Every event that matches.
pub(super) async fn all<S: AdminStore + ?Sized>(store: &S, query: &Query) -> Result<Vec<Found>, StoreError> {
    let mut events = Vec::new();
    let mut from = pillarbox_core::domain::Seq(0);
    loop {
        let mut page = store.list(query, from, 500).await?;
        events.append(&mut page.events);
        match page.next {
            Some(next) => from = next,
            None => return Ok(events),
        }
    }
}

/// Every event in one of these statuses.
pub(super) async fn in_status<S: AdminStore + ?Sized>(
    store: &S,
    statuses: &[Status],
) -> Result<Vec<Found>, StoreError> {
    all(store, &Query { statuses: statuses.to_vec(), ..Query::default() }).await
}

/// An event in words.
pub(super) fn name(event: &Event) -> String {
    let key = event.key().map(|key| format!(" with key {:?}", key.as_str())).unwrap_or_default();
    format!("{} {}{key}", event.event_type(), event.id())
}

/// An event that waits, in words.
pub(super) fn describe(found: &Found, now: Timestamp) -> String {
    let who = found.record.as_ref().map_or_else(|_| found.id.clone(), |record| name(&record.event));
    let due = found.available_at.filter(|due| *due > now).map(|due| format!(", due in {:?}", due.since(now)));
    let error = found.last_error.as_deref().map(|error| format!(", last error: {error}"));
    let failures = match found.attempts {
        0 => ", no failed attempts".to_owned(),
        1 => ", 1 failed attempt".to_owned(),
        many => format!(", {many} failed attempts"),
    };
    format!("{who}: {}{failures}{}{}", found.status, due.unwrap_or_default(), error.unwrap_or_default())
}

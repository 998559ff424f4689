//! Dead events: what an operator can do about them.

use std::{fmt, str::FromStr};

use tokio::time::Instant;

use super::{bulk::Bulk, error::OutboxError, shared::Shared};
use crate::{
    domain::{Event, EventError, EventId, Payload, Seq, Status},
    port::{Actor, BoxFuture, Found, Listing, Query, Store, StoreError},
};

/// The dead events of an outbox: list, count, replay, skip, edit, discard.
///
/// ```
/// # use pillarbox_core::{Outbox, port::{Actor, Query}};
/// # async fn example<S>(outbox: Outbox<S>) -> Result<(), Box<dyn std::error::Error>> {
/// let ada = Actor::new("ada").because("the carrier is back");
/// for found in outbox.dead().list(&Query::default(), None, 20).await?.events {
///     println!("{} died after {} attempts: {:?}", found.id, found.attempts, found.last_error);
///     outbox.dead().replay(found.seq, &ada).await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy)]
pub struct Dead<'a> {
    pub(super) store: &'a dyn Store,
    shared: Option<&'a Shared>,
}

impl<'a> Dead<'a> {
    pub(crate) fn new(shared: &'a Shared) -> Self {
        Self { store: &*shared.store, shared: Some(shared) }
    }

    /// The dead events of a store, for programs that neither write nor deliver. The nodes that deliver hear of what
    /// is done at their next poll.
    pub fn of(store: &'a dyn Store) -> Self {
        Self { store, shared: None }
    }

    /// A page of dead events that match, by sequence; `from` is [`Listing::next`] of the page before.
    pub async fn list(&self, query: &Query, from: Option<Seq>, limit: u32) -> Result<Listing, OutboxError> {
        let first = if query.newest_first { Seq(i64::MAX) } else { Seq(0) };
        Ok(self.store.list(&only_dead(query), from.unwrap_or(first), limit).await?)
    }

    /// How many dead events match.
    pub async fn count(&self, query: &Query) -> Result<u64, OutboxError> {
        Ok(self.store.count(&only_dead(query)).await?)
    }

    /// Makes a dead event due now, with no attempts and no error. What is not dead is refused.
    pub async fn replay(&self, event: impl Into<EventRef>, actor: &Actor) -> Result<(), OutboxError> {
        let event = event.into();
        let found = self.find(event, "replayed").await?;
        let changed = self.replay_these(vec![found.seq], actor).await?;
        self.changed(event, &changed, "replayed").await
    }

    /// Removes a dead event; a key that it holds goes on with its next event.
    pub async fn discard(&self, event: impl Into<EventRef>, actor: &Actor) -> Result<(), OutboxError> {
        let event = event.into();
        let found = self.find(event, "discarded").await?;
        let changed = self.discard_these(vec![found.seq], actor).await?;
        self.changed(event, &changed, "discarded").await
    }

    /// Lets the key of a dead event go on without it; the event stays dead.
    pub async fn skip(&self, event: impl Into<EventRef>, actor: &Actor) -> Result<(), OutboxError> {
        let event = event.into();
        let found = self.find(event, "skipped").await?;
        if !found.holds_key {
            return Err(OutboxError::HoldsNothing(event.to_string()));
        }
        let (seq, by) = (found.seq, actor.clone());
        let changed = self.act(move |store| Box::pin(async move { store.skip(&[seq], &by).await })).await?;
        self.changed(event, &changed, "skipped").await
    }

    /// Gives a dead event another payload; it stays dead until it is replayed. The payload is checked as when an event
    /// is built, and must be JSON where its content type says so. The one that was there is kept with the action.
    pub async fn edit(&self, event: impl Into<EventRef>, payload: Payload, actor: &Actor) -> Result<(), OutboxError> {
        let event = event.into();
        let found = self.find(event, "edited").await?;
        check(&found, &payload)?;
        let (seq, by) = (found.seq, actor.clone());
        let edited = self.act(move |store| Box::pin(async move { store.edit(seq, &payload, &by).await })).await?;
        let seqs: &[Seq] = if edited { &[seq] } else { &[] };
        self.changed(event, seqs, "edited").await
    }

    /// Replays all dead events that match, oldest first, at most `per_second` of them a second (`None`: as
    /// fast as it goes). Events that die again meanwhile are not taken twice. Returns how many were replayed.
    pub async fn replay_all(
        &self,
        query: &Query,
        per_second: Option<std::num::NonZeroU32>,
        actor: &Actor,
    ) -> Result<u64, OutboxError> {
        let bulk = match per_second {
            Some(rate) => self.all(query).rate(rate),
            None => self.all(query),
        };
        Ok(bulk.replay(actor).await?.changed)
    }

    /// Discards all dead events that match, oldest first; their keys go on. Returns how many are gone.
    pub async fn discard_all(&self, query: &Query, actor: &Actor) -> Result<u64, OutboxError> {
        Ok(self.all(query).discard(actor).await?.changed)
    }

    /// All dead events that match, for an action in batches that can be slowed down, watched, cut short and tried
    /// without effect.
    pub fn all(&self, query: &Query) -> Bulk<'a> {
        Bulk::new(*self, only_dead(query))
    }

    pub(super) async fn replay_these(&self, seqs: Vec<Seq>, actor: &Actor) -> Result<Vec<Seq>, OutboxError> {
        let by = actor.clone();
        self.act(move |store| Box::pin(async move { store.replay(&seqs, &by).await })).await
    }

    pub(super) async fn discard_these(&self, seqs: Vec<Seq>, actor: &Actor) -> Result<Vec<Seq>, OutboxError> {
        let by = actor.clone();
        self.act(move |store| Box::pin(async move { store.discard(&seqs, &by).await })).await
    }

    /// Makes a change where the node settles: as there, a renewal of the lease may have to wait for it.
    async fn act<T: Send + 'static>(
        &self,
        change: impl for<'s> FnOnce(&'s dyn Store) -> BoxFuture<'s, Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, OutboxError> {
        let Some(shared) = self.shared else { return Ok(change(self.store).await?) };
        let store = shared.store.clone();
        Ok(shared.apart(async move { change(&*store).await }).await?)
    }

    async fn find(&self, event: EventRef, action: &'static str) -> Result<Found, OutboxError> {
        match self.look(event, vec![Status::Dead]).await? {
            Some(found) => Ok(found),
            None => Err(self.refusal(event, action).await?),
        }
    }

    async fn look(&self, event: EventRef, statuses: Vec<Status>) -> Result<Option<Found>, OutboxError> {
        let (id, from) = match event {
            EventRef::Id(id) => (Some(id), Seq(0)),
            EventRef::Number(seq) => (None, seq),
        };
        let found = self.store.list(&Query { statuses, id, ..Query::default() }, from, 1).await?.events.pop();
        Ok(found.filter(|found| id.is_some() || found.seq == from))
    }

    /// Says why an event that is not dead can't be acted on.
    async fn refusal(&self, event: EventRef, action: &'static str) -> Result<OutboxError, OutboxError> {
        let id = event.to_string();
        Ok(match self.look(event, Vec::new()).await? {
            Some(found) => OutboxError::NotDead { id, status: found.status.to_string(), action },
            None => OutboxError::NotFound(id),
        })
    }

    /// Somebody else may have been faster.
    async fn changed(&self, event: EventRef, changed: &[Seq], action: &'static str) -> Result<(), OutboxError> {
        if changed.is_empty() {
            return Err(self.refusal(event, action).await?);
        }
        self.wake();
        Ok(())
    }

    /// The event or its key may be this node's.
    pub(super) fn wake(&self) {
        if let Some(shared) = self.shared {
            shared.flight.lock().look_for_due(Instant::now());
            shared.read.notify_one();
        }
    }
}

/// An event, as an operator names it: by its id or, where others have written an id that is none, by its number.
///
/// ```
/// # use pillarbox_core::{EventId, domain::Seq, engine::EventRef};
/// assert_eq!("174".parse(), Ok(EventRef::Number(Seq(174))));
/// let id: EventId = "01JD3K5Y7Z8QWXN4T2V6B9C0DE".parse()?;
/// assert_eq!(id.to_string().parse(), Ok(EventRef::Id(id)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventRef {
    /// Its id.
    Id(EventId),
    /// Its number in the table, the column `seq`.
    Number(Seq),
}

impl From<EventId> for EventRef {
    fn from(id: EventId) -> Self {
        Self::Id(id)
    }
}

impl From<Seq> for EventRef {
    fn from(seq: Seq) -> Self {
        Self::Number(seq)
    }
}

/// An id has 26 characters, a number fewer.
impl FromStr for EventRef {
    type Err = <EventId as FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            Ok(number) if text.len() < 20 => Ok(Self::Number(Seq(number))),
            _ => text.parse().map(Self::Id),
        }
    }
}

impl fmt::Display for EventRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Number(Seq(number)) => number.fmt(f),
        }
    }
}

impl fmt::Debug for Dead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dead").finish_non_exhaustive()
    }
}

/// As the builder of the event would.
fn check(found: &Found, payload: &Payload) -> Result<(), OutboxError> {
    let refused = |why| OutboxError::Payload { id: found.id.clone(), why };
    if payload.is_json() {
        payload.to::<serde::de::IgnoredAny>().map_err(|error| refused(EventError::NotJson(error.to_string())))?;
    }
    let event = match &found.record {
        Ok(record) => record.event.to_builder(),
        // What is broken may be the payload itself.
        Err(_) => Event::builder("unknown"),
    };
    event.payload(payload.clone()).build().map_err(refused)?;
    Ok(())
}

fn only_dead(query: &Query) -> Query {
    Query { statuses: vec![Status::Dead], ..query.clone() }
}

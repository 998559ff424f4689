//! Dead events: what an operator can do about them.

use std::fmt;

use tokio::time::Instant;

use super::{bulk::Bulk, error::OutboxError, shared::Shared};
use crate::{
    domain::{Event, EventError, EventId, Payload, Seq, Status},
    port::{Actor, Found, Listing, Query, Store},
};

/// The dead events of an outbox: list, count, replay, skip, edit, discard.
///
/// ```
/// # use pillarbox_core::{Outbox, port::{Actor, Query}};
/// # async fn example<S>(outbox: Outbox<S>) -> Result<(), Box<dyn std::error::Error>> {
/// let ada = Actor::new("ada").because("the carrier is back");
/// for found in outbox.dead().list(&Query::default(), None, 20).await?.events {
///     println!("{} died after {} attempts: {:?}", found.id, found.attempts, found.last_error);
///     outbox.dead().replay(found.id.parse()?, &ada).await?;
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
    pub async fn replay(&self, id: EventId, actor: &Actor) -> Result<(), OutboxError> {
        let found = self.find(id, "replayed").await?;
        let changed = self.store.replay(&[found.seq], actor).await?;
        self.changed(id, &changed, "replayed").await
    }

    /// Removes a dead event; a key that it holds goes on with its next event.
    pub async fn discard(&self, id: EventId, actor: &Actor) -> Result<(), OutboxError> {
        let found = self.find(id, "discarded").await?;
        let changed = self.store.discard(&[found.seq], actor).await?;
        self.changed(id, &changed, "discarded").await
    }

    /// Lets the key of a dead event go on without it; the event stays dead.
    pub async fn skip(&self, id: EventId, actor: &Actor) -> Result<(), OutboxError> {
        let found = self.find(id, "skipped").await?;
        if !found.holds_key {
            return Err(OutboxError::HoldsNothing(id.to_string()));
        }
        let changed = self.store.skip(&[found.seq], actor).await?;
        self.changed(id, &changed, "skipped").await
    }

    /// Gives a dead event another payload; it stays dead until it is replayed. The payload is checked as when an event
    /// is built, and must be JSON where its content type says so. The one that was there is kept with the action.
    pub async fn edit(&self, id: EventId, payload: Payload, actor: &Actor) -> Result<(), OutboxError> {
        let found = self.find(id, "edited").await?;
        check(&found, &payload)?;
        let seqs = if self.store.edit(found.seq, &payload, actor).await? { vec![found.seq] } else { Vec::new() };
        self.changed(id, &seqs, "edited").await
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

    async fn find(&self, id: EventId, action: &'static str) -> Result<Found, OutboxError> {
        let query = Query { id: Some(id), statuses: vec![Status::Dead], ..Query::default() };
        match self.store.list(&query, Seq(0), 1).await?.events.pop() {
            Some(found) => Ok(found),
            None => Err(self.refusal(id, action).await?),
        }
    }

    /// Says why an event that is not dead can't be acted on.
    async fn refusal(&self, id: EventId, action: &'static str) -> Result<OutboxError, OutboxError> {
        let query = Query { id: Some(id), ..Query::default() };
        let found = self.store.list(&query, Seq(0), 1).await?.events.pop();
        Ok(match found {
            Some(found) => OutboxError::NotDead { id: id.to_string(), status: found.status.to_string(), action },
            None => OutboxError::NotFound(id.to_string()),
        })
    }

    /// Somebody else may have been faster.
    async fn changed(&self, id: EventId, changed: &[Seq], action: &'static str) -> Result<(), OutboxError> {
        if changed.is_empty() {
            return Err(self.refusal(id, action).await?);
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

//! Dead events: what an operator can do about them.

use tokio::time::{Duration, Instant, sleep_until};

use super::{error::OutboxError, shared::Shared};
use crate::{
    domain::{EventId, Seq, Status},
    port::{Actor, Found, Listing, Query, Store},
};

/// How many events one transaction of a bulk replay takes.
const REPLAY_BATCH: u32 = 100;

/// The dead events of an outbox: list, count, replay, skip, discard.
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
#[derive(Debug)]
pub struct Dead<'a> {
    shared: &'a Shared,
}

impl<'a> Dead<'a> {
    pub(crate) fn new(shared: &'a Shared) -> Self {
        Self { shared }
    }

    /// A page of dead events that match, by sequence; `from` is [`Listing::next`] of the page before.
    pub async fn list(&self, query: &Query, from: Option<Seq>, limit: u32) -> Result<Listing, OutboxError> {
        Ok(self.store().list(&only_dead(query), from.unwrap_or(Seq(0)), limit).await?)
    }

    /// How many dead events match.
    pub async fn count(&self, query: &Query) -> Result<u64, OutboxError> {
        Ok(self.store().count(&only_dead(query)).await?)
    }

    /// Makes a dead event due now, with no attempts and no error. What is not dead is refused.
    pub async fn replay(&self, id: EventId, actor: &Actor) -> Result<(), OutboxError> {
        let found = self.find(id, "replayed").await?;
        let changed = self.store().replay(&[found.seq], actor).await?;
        self.changed(id, &changed, "replayed").await
    }

    /// Removes a dead event; a key that it holds goes on with its next event.
    pub async fn discard(&self, id: EventId, actor: &Actor) -> Result<(), OutboxError> {
        let found = self.find(id, "discarded").await?;
        let changed = self.store().discard(&[found.seq], actor).await?;
        self.changed(id, &changed, "discarded").await
    }

    /// Lets the key of a dead event go on without it; the event stays dead.
    pub async fn skip(&self, id: EventId, actor: &Actor) -> Result<(), OutboxError> {
        let found = self.find(id, "skipped").await?;
        if !found.holds_key {
            return Err(OutboxError::HoldsNothing(id.to_string()));
        }
        let changed = self.store().skip(&[found.seq], actor).await?;
        self.changed(id, &changed, "skipped").await
    }

    /// Replays all dead events that match, oldest first, at most `per_second` of them a second (`None`: as
    /// fast as it goes). Events that die again meanwhile are not taken twice. Returns how many were replayed.
    pub async fn replay_all(
        &self,
        query: &Query,
        per_second: Option<std::num::NonZeroU32>,
        actor: &Actor,
    ) -> Result<u64, OutboxError> {
        let query = only_dead(query);
        let mut replayed = 0;
        let mut from = Seq(0);
        let batch = per_second.map_or(REPLAY_BATCH, |rate| rate.get().clamp(1, REPLAY_BATCH));
        let mut next_at = Instant::now();
        loop {
            let page = self.store().list(&query, from, batch).await?;
            let seqs: Vec<Seq> = page.events.iter().map(|found| found.seq).collect();
            if !seqs.is_empty() {
                sleep_until(next_at).await;
                let changed = self.store().replay(&seqs, actor).await?;
                replayed += changed.len() as u64;
                self.wake();
                if let Some(rate) = per_second {
                    let count = u32::try_from(changed.len()).unwrap_or(u32::MAX);
                    next_at = Instant::now() + Duration::from_secs(1) * count / rate.get();
                }
            }
            match page.next {
                Some(next) => from = next,
                None => return Ok(replayed),
            }
        }
    }

    fn store(&self) -> &dyn Store {
        &*self.shared.store
    }

    async fn find(&self, id: EventId, action: &'static str) -> Result<Found, OutboxError> {
        let query = Query { id: Some(id), statuses: vec![Status::Dead], ..Query::default() };
        match self.store().list(&query, Seq(0), 1).await?.events.pop() {
            Some(found) => Ok(found),
            None => Err(self.refusal(id, action).await?),
        }
    }

    /// Says why an event that is not dead can't be acted on.
    async fn refusal(&self, id: EventId, action: &'static str) -> Result<OutboxError, OutboxError> {
        let query = Query { id: Some(id), ..Query::default() };
        let found = self.store().list(&query, Seq(0), 1).await?.events.pop();
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
    fn wake(&self) {
        self.shared.flight.lock().look_for_due(Instant::now());
        self.shared.read.notify_one();
    }
}

fn only_dead(query: &Query) -> Query {
    Query { statuses: vec![Status::Dead], ..query.clone() }
}

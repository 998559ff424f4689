//! One action on many dead events, in batches.

use std::{fmt, num::NonZeroU32};

use tokio::time::{Duration, Instant, sleep_until};

use super::{dead::Dead, error::OutboxError};
use crate::{
    domain::Seq,
    port::{Actor, Query},
};

/// How many events one transaction takes.
const BATCH: u32 = 100;

/// All dead events that match, and how an action goes over them. Nothing happens until `replay` or `discard`.
///
/// Events are taken by their numbers, the lowest first, and each once: one that dies again meanwhile is left alone.
///
/// ```
/// # use std::num::NonZeroU32;
/// # use pillarbox_core::{Outbox, port::{Actor, Query}};
/// # async fn example<S>(outbox: Outbox<S>) -> Result<(), Box<dyn std::error::Error>> {
/// let placed = Query { event_type: Some("OrderPlaced".into()), ..Query::default() };
/// let bulk = outbox.dead().all(&placed).rate(NonZeroU32::new(50).ok_or("no rate")?);
/// let done = bulk.replay(&Actor::new("ada").because("the carrier is back")).await?;
/// println!("{} replayed", done.changed);
/// # Ok(()) }
/// ```
#[must_use = "nothing happens until it is replayed or discarded"]
pub struct Bulk<'a> {
    dead: Dead<'a>,
    query: Query,
    from: Seq,
    per_second: Option<NonZeroU32>,
    at_most: Option<u64>,
    until: Option<Instant>,
    dry_run: bool,
    progress: Option<Box<dyn FnMut(u64) + Send + 'a>>,
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Replay,
    Discard,
}

/// What became of a [`Bulk`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BulkDone {
    /// How many events were changed; in a dry run, how many would have been.
    pub changed: u64,
    /// Where to go on, if it was cut short by [`Bulk::at_most`] or [`Bulk::within`].
    pub next: Option<Seq>,
}

impl<'a> Bulk<'a> {
    pub(super) fn new(dead: Dead<'a>, query: Query) -> Self {
        let query = Query { newest_first: false, ..query };
        Self { dead, query, from: Seq(0), per_second: None, at_most: None, until: None, dry_run: false, progress: None }
    }

    /// At most so many a second.
    pub fn rate(mut self, per_second: NonZeroU32) -> Self {
        self.per_second = Some(per_second);
        self
    }

    /// Begins at this number: [`BulkDone::next`] of the run before.
    pub fn from(mut self, seq: Seq) -> Self {
        self.from = seq;
        self
    }

    /// So many events at the most.
    pub fn at_most(mut self, events: u64) -> Self {
        self.at_most = Some(events);
        self
    }

    /// Begins no batch when this much time has gone by.
    pub fn within(mut self, span: Duration) -> Self {
        self.until = Some(Instant::now() + span);
        self
    }

    /// Only counts what would be changed.
    pub fn dry_run(mut self, dry: bool) -> Self {
        self.dry_run = dry;
        self
    }

    /// Is told after every batch how many events were changed so far.
    pub fn on_progress(mut self, told: impl FnMut(u64) + Send + 'a) -> Self {
        self.progress = Some(Box::new(told));
        self
    }

    /// Makes them due now.
    pub async fn replay(self, actor: &Actor) -> Result<BulkDone, OutboxError> {
        self.run(Act::Replay, actor).await
    }

    /// Removes them; the keys that they hold go on.
    pub async fn discard(self, actor: &Actor) -> Result<BulkDone, OutboxError> {
        self.run(Act::Discard, actor).await
    }

    async fn run(mut self, action: Act, actor: &Actor) -> Result<BulkDone, OutboxError> {
        let batch = self.per_second.map_or(BATCH, |rate| rate.get().clamp(1, BATCH));
        let mut done = BulkDone { changed: 0, next: Some(self.from) };
        // Events that somebody else was faster with count for the limit, or it would not limit the work.
        let mut taken = 0;
        let mut next_at = Instant::now();
        while let Some(from) = done.next {
            let left = self.at_most.map_or(u64::from(batch), |most| most.saturating_sub(taken));
            let late = self.until.is_some_and(|until| next_at.max(Instant::now()) >= until);
            if left == 0 || late {
                break;
            }
            let limit = u32::try_from(left).map_or(batch, |left| left.min(batch));
            let page = self.dead.store.list(&self.query, from, limit).await?;
            let seqs: Vec<Seq> = page.events.iter().map(|found| found.seq).collect();
            taken += seqs.len() as u64;
            if !seqs.is_empty() {
                let changed = if self.dry_run {
                    seqs.len() as u64
                } else {
                    sleep_until(next_at).await;
                    change(self.dead, action, seqs, actor).await?
                };
                done.changed += changed;
                if let Some(rate) = self.per_second {
                    let count = u32::try_from(changed).unwrap_or(u32::MAX);
                    next_at = Instant::now() + Duration::from_secs(1) * count / rate.get();
                }
                if let Some(told) = &mut self.progress {
                    told(done.changed);
                }
            }
            done.next = page.next;
        }
        // Who goes on with another run keeps the rate.
        if done.next.is_some() && !self.dry_run {
            sleep_until(next_at).await;
        }
        Ok(done)
    }
}

async fn change(dead: Dead<'_>, action: Act, seqs: Vec<Seq>, actor: &Actor) -> Result<u64, OutboxError> {
    let changed = match action {
        Act::Replay => dead.replay_these(seqs, actor).await?,
        Act::Discard => dead.discard_these(seqs, actor).await?,
    };
    dead.wake();
    Ok(changed.len() as u64)
}

impl fmt::Debug for Bulk<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bulk")
            .field("query", &self.query)
            .field("from", &self.from)
            .field("per_second", &self.per_second)
            .field("at_most", &self.at_most)
            .field("dry_run", &self.dry_run)
            .finish_non_exhaustive()
    }
}

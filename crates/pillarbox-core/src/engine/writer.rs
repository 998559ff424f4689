//! The writer: events go into the caller's transaction, and are announced when it has committed.
//!
//! When the process dies:
//! - before the commit: the database rolls back, and there is no event;
//! - after the commit, before it is announced: the row is NEW, and the partition's owner finds it by reading;
//! - after it is announced: as before, for what is announced lies in memory alone.

use std::sync::Arc;

use tokio::time::Instant;
use tracing::Instrument as _;

use super::{
    context::Providers,
    dedup::{Duplicate, Sorted, keep_first},
    error::WriteError,
    flight::{Job, OfKey},
    hook::{WriterHook, observe},
    shared::Shared,
};
use crate::{
    domain::{
        Codecs, Delivery, Event, EventBuilder, EventError, EventId, Key, OutboxEvent, Partition, PartitionSet, Record,
        Seq,
    },
    port::{NewRow, WriteStore},
};

/// What can be written: an event as a type of one's own, an [`Event`], or a builder that becomes one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an event",
    note = "write a reference to a type that derives `OutboxEvent`, as in `tx.write(&placed)`",
    note = "or an `Event`, or the builder that `Event::builder(..)` and `placed.to_event()` give"
)]
pub trait IntoEvent {
    /// The event; what is a type is encoded by the outbox's codec.
    fn into_event(self, codecs: &Codecs) -> Result<Event, EventError>;
}

impl<E: OutboxEvent> IntoEvent for &E {
    fn into_event(self, codecs: &Codecs) -> Result<Event, EventError> {
        self.to_event_by(codecs).build()
    }
}

impl IntoEvent for Event {
    fn into_event(self, _codecs: &Codecs) -> Result<Event, EventError> {
        Ok(self)
    }
}

impl IntoEvent for &Event {
    fn into_event(self, _codecs: &Codecs) -> Result<Event, EventError> {
        Ok(self.clone())
    }
}

impl IntoEvent for EventBuilder {
    fn into_event(self, _codecs: &Codecs) -> Result<Event, EventError> {
        self.build()
    }
}

/// What an outbox does about events without a key.
#[derive(Clone, Debug, Default)]
pub(crate) enum KeyRule {
    /// They have no order.
    #[default]
    Optional,
    /// They are refused.
    Required,
    /// They all get this one.
    Default(Key),
}

pub(crate) struct Writer {
    shared: Arc<Shared>,
    codecs: Codecs,
    providers: Providers,
    hooks: Vec<Arc<dyn WriterHook>>,
    key_rule: KeyRule,
}

impl Writer {
    pub(crate) fn new(
        shared: Arc<Shared>,
        codecs: Codecs,
        providers: Providers,
        hooks: Vec<Arc<dyn WriterHook>>,
        key_rule: KeyRule,
    ) -> Self {
        Self { shared, codecs, providers, hooks, key_rule }
    }

    pub(crate) fn codecs(&self) -> &Codecs {
        &self.codecs
    }

    /// Inserts a batch into the transaction, as one statement or a few.
    pub(crate) async fn write<S, Tx>(
        &self,
        store: &S,
        tx: &mut Tx,
        events: impl IntoIterator<Item: IntoEvent>,
    ) -> Result<Written, WriteError>
    where
        S: WriteStore<Tx> + ?Sized,
    {
        let events = events.into_iter().map(|event| event.into_event(&self.codecs));
        let mut batch = events.collect::<Result<Vec<_>, _>>()?;
        self.providers.apply(&mut batch)?;
        for hook in &self.hooks {
            hook.before_write(&mut batch).map_err(WriteError::Hook)?;
        }
        if batch.is_empty() {
            return Ok(Written::nothing(self.shared.clone(), None, Vec::new()));
        }
        let span = self.shared.traces.write(&mut batch);
        let mut rows = self.rows(batch)?;
        let Sorted { answers, duplicates } = keep_first(store, tx, &mut rows).await?;
        if rows.is_empty() {
            return Ok(Written::nothing(self.shared.clone(), answers, duplicates));
        }
        let begun = Instant::now();
        let seqs = store.insert(tx, &rows).instrument(span).await?;
        let ids: Vec<EventId> = rows.iter().map(|row| row.event.id()).collect();
        let Reserved { jobs, of_keys, announce } = self.reserve(rows, &seqs, begun);
        if of_keys.iter().any(|of_key| of_key.is_expected) {
            // To see what comes before them, while the transaction is still open.
            self.shared.expected.notify_one();
        }
        for hook in &self.hooks {
            observe("after_write", || hook.after_write(&ids));
        }
        let hooks = self.hooks.iter().filter(|hook| hook.observes_end()).cloned().collect();
        Ok(Written { shared: self.shared.clone(), ids, answers, duplicates, reserved: jobs, of_keys, announce, hooks })
    }

    fn rows(&self, batch: Vec<Event>) -> Result<Vec<NewRow>, WriteError> {
        let (idle, active) = {
            let flight = self.shared.flight.lock();
            (flight.has_idle_workers(), flight.owned.active())
        };
        batch
            .into_iter()
            .map(|event| {
                let event = self.keyed(event)?;
                let partition = event.key_partition().unwrap_or_else(|| {
                    // Own partitions take the hot path, which pays while workers are idle; otherwise the
                    // load is spread.
                    if idle && !active.is_empty() && !event.is_delayed() { one_of(active) } else { any() }
                });
                Ok(NewRow { event, partition })
            })
            .collect()
    }

    fn keyed(&self, event: Event) -> Result<Event, WriteError> {
        if event.key().is_some() {
            return Ok(event);
        }
        match &self.key_rule {
            KeyRule::Optional => Ok(event),
            KeyRule::Required => Err(WriteError::NoKey(event.id().to_string())),
            KeyRule::Default(key) => Ok(event.to_builder().key(key.as_str()).build()?),
        }
    }

    /// Reserves what may take the hot path, before the commit can make it visible to the reader.
    fn reserve(&self, rows: Vec<NewRow>, seqs: &[Seq], begun: Instant) -> Reserved {
        let shared = &self.shared;
        let created_at = shared.database_time();
        let expires = begun + shared.settings.reservation_ttl;
        let hints = shared.store.wants_hints();
        let (mut jobs, mut of_keys, mut announce) = (Vec::new(), Vec::new(), Announce::default());
        let mut flight = shared.flight.lock();
        for (NewRow { event, partition }, seq) in rows.into_iter().zip(seqs.iter().copied()) {
            let owned = flight.owned.is_active(partition);
            if event.is_delayed() {
                announce.delayed += 1;
                continue;
            }
            let key = event.key().cloned();
            let record = Record { seq, partition, event, attempts: 0, starts: 0, progress: None, created_at };
            let is_hot = if let Some(key) = key {
                // Whoever owns it: it may be this node's own by the next event of the transaction.
                let is_expected = flight.expect(&key, record, begun);
                of_keys.push(OfKey { key, seq, is_expected });
                is_expected
            } else if let Some(epoch) = flight.reserve(seq, partition, expires) {
                jobs.push(Job { delivery: Delivery::new(record, epoch), written: begun });
                true
            } else {
                false
            };
            if !is_hot && owned {
                announce.reader = true;
            } else if !is_hot && hints {
                announce.elsewhere.insert(partition);
            }
        }
        Reserved { jobs, of_keys, announce }
    }
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("hooks", &self.hooks.len()).finish_non_exhaustive()
    }
}

/// What a batch leads to when its transaction is committed.
struct Reserved {
    jobs: Vec<Job>,
    of_keys: Vec<OfKey>,
    announce: Announce,
}

/// Whom to tell of a commit, beside the hot queue.
#[derive(Clone, Copy, Debug, Default)]
struct Announce {
    reader: bool,
    delayed: u64,
    elsewhere: PartitionSet,
}

/// A batch in an open transaction.
pub(crate) struct Written {
    shared: Arc<Shared>,
    // Those that were inserted.
    ids: Vec<EventId>,
    // For all that were given, where there were duplicates.
    answers: Option<Vec<EventId>>,
    duplicates: Vec<Duplicate>,
    reserved: Vec<Job>,
    // All its events with a key, expected or not.
    of_keys: Vec<OfKey>,
    announce: Announce,
    hooks: Vec<Arc<dyn WriterHook>>,
}

impl Written {
    fn nothing(shared: Arc<Shared>, answers: Option<Vec<EventId>>, duplicates: Vec<Duplicate>) -> Self {
        Self {
            shared,
            ids: Vec::new(),
            answers,
            duplicates,
            reserved: Vec::new(),
            of_keys: Vec::new(),
            announce: Announce::default(),
            hooks: Vec::new(),
        }
    }

    /// For each event the id under which it is kept.
    pub(crate) fn ids(&self) -> &[EventId] {
        self.answers.as_deref().unwrap_or(&self.ids)
    }

    pub(crate) fn duplicates(&self) -> &[Duplicate] {
        &self.duplicates
    }

    /// Whether anybody waits to hear of the transaction's end.
    pub(crate) fn is_registered(&self) -> bool {
        let Announce { reader, delayed, elsewhere } = &self.announce;
        let is_known = !self.reserved.is_empty() || !self.of_keys.is_empty();
        !self.hooks.is_empty() || is_known || *reader || *delayed > 0 || !elsewhere.is_empty()
    }

    /// The transaction is committed.
    pub(crate) fn committed(mut self) {
        let shared = self.shared.clone();
        shared.meters.delayed_skipped.increment(self.announce.delayed);
        let jobs = std::mem::take(&mut self.reserved);
        let of_keys = std::mem::take(&mut self.of_keys);
        if !jobs.is_empty() || !of_keys.is_empty() {
            let (confirmed, signals) = shared.flight.lock().confirm(jobs, &of_keys, Instant::now());
            shared.confirmed(confirmed, signals);
        }
        if self.announce.delayed > 0 {
            // It may come due before the reader looks by itself.
            shared.flight.lock().look_for_due(Instant::now());
        }
        if self.announce.reader || self.announce.delayed > 0 {
            shared.read.notify_one();
        }
        if !self.announce.elsewhere.is_empty() {
            *shared.hinted.lock() |= self.announce.elsewhere;
            shared.hints.notify_one();
        }
        for hook in std::mem::take(&mut self.hooks) {
            observe("after_commit", || hook.after_commit(&self.ids));
        }
    }

    /// The transaction is rolled back.
    pub(crate) fn rolled_back(mut self) {
        let (jobs, of_keys) = (std::mem::take(&mut self.reserved), std::mem::take(&mut self.of_keys));
        let seqs = jobs.iter().map(|job| job.delivery.seq());
        let signals = self.shared.flight.lock().rolled_back(seqs, &of_keys);
        self.shared.signal(signals);
        for hook in std::mem::take(&mut self.hooks) {
            observe("after_rollback", || hook.after_rollback(&self.ids));
        }
    }
}

/// Whatever nobody told the end of is left to the reader.
impl Drop for Written {
    fn drop(&mut self) {
        if self.reserved.is_empty() && self.of_keys.is_empty() {
            return;
        }
        let seqs = self.reserved.iter().map(|job| job.delivery.seq());
        let signals = self.shared.flight.lock().abandon(seqs, &self.of_keys);
        self.shared.signal(signals);
    }
}

impl std::fmt::Debug for Written {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Written").field("ids", &self.ids).finish_non_exhaustive()
    }
}

fn any() -> Partition {
    Partition(fastrand::u8(..))
}

fn one_of(partitions: PartitionSet) -> Partition {
    if partitions == PartitionSet::ALL {
        return any();
    }
    partitions.iter().nth(fastrand::usize(..partitions.len())).unwrap_or_else(any)
}

//! What a handler is given.

use std::sync::Arc;

use super::{Epoch, Event, Headers, Key, Partition, Seq, Timestamp};

/// An event as the store keeps it.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The database's number for it.
    pub seq: Seq,
    /// The partition it lies in.
    pub partition: Partition,
    /// The event itself.
    pub event: Event,
    /// Deliveries that failed so far.
    pub attempts: u32,
    /// Times it was started as a suspect and had no end (see `ReadStore::start`).
    pub starts: u32,
    /// Handlers that have succeeded already, where several share an event; in the engine's own form.
    pub progress: Option<Box<str>>,
    /// When its row was inserted, by the database's clock.
    pub created_at: Timestamp,
}

impl Record {
    /// The ordering key, if it has one.
    pub fn key(&self) -> Option<&Key> {
        self.event.key()
    }
}

/// One delivery of an event to a handler. Cheap to clone.
///
/// ```
/// # use pillarbox_core::{Delivery, HandlerError};
/// async fn ship(delivery: Delivery) -> Result<(), HandlerError> {
///     let order: serde_json::Value = delivery.event().payload().to()?;
///     println!("attempt {} for {order}", delivery.attempt());
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Delivery {
    record: Record,
    epoch: Epoch,
    handler: Option<Arc<str>>,
    trace: Option<Arc<Headers>>,
}

impl Delivery {
    /// The delivery of a record under an epoch of its partition.
    pub fn new(record: Record, epoch: Epoch) -> Self {
        Self { record, epoch, handler: None, trace: None }
    }

    /// The same, for a handler of this name.
    #[must_use]
    pub fn to(&self, handler: &Arc<str>) -> Self {
        Self { handler: Some(handler.clone()), ..self.clone() }
    }

    /// The event.
    pub fn event(&self) -> &Event {
        &self.record.event
    }

    /// The event as stored.
    pub fn record(&self) -> &Record {
        &self.record
    }

    pub(crate) fn into_record(self) -> Record {
        self.record
    }

    /// The database's number for the event.
    pub fn seq(&self) -> Seq {
        self.record.seq
    }

    /// Which attempt this is, from 1. Deferred and interrupted deliveries don't count.
    pub fn attempt(&self) -> u32 {
        self.record.attempts.saturating_add(1)
    }

    /// Whether an attempt has failed before.
    pub fn is_retry(&self) -> bool {
        self.record.attempts > 0
    }

    /// The name of the handler that it goes to; empty before it goes to one.
    pub fn handler_id(&self) -> &str {
        self.handler.as_deref().unwrap_or_default()
    }

    /// The headers with which a message or a request continues the trace of this very delivery. None if the outbox has no
    /// [`Tracer`](crate::port::Tracer), or nobody listens to it; the event's own headers tell of the trace then.
    pub fn trace(&self) -> Option<&Headers> {
        self.trace.as_deref()
    }

    pub(crate) fn continued_by(&mut self, headers: Headers) {
        self.trace = Some(Arc::new(headers));
    }

    /// Raised whenever the event's partition changes hands: a store that keeps the highest token it has
    /// seen for a key can refuse the late effect of a node that lost its lease.
    pub fn fencing_token(&self) -> Epoch {
        self.epoch
    }
}

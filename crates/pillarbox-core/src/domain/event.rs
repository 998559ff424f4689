//! The event: what a service says has happened.

use std::{fmt, sync::Arc, time::Duration};

use serde::Serialize;

use super::{AggregateType, EventId, EventType, Headers, Key, Partition, Payload, Route, Timestamp};

/// How long each field may be, in bytes of UTF-8.
pub mod limit {
    /// Event type, aggregate type, aggregate id, tenant id and content type.
    pub const NAME: usize = 255;
    /// The ordering key, and the dedup key.
    pub const KEY: usize = 512;
    /// All headers together, in their stored form as a JSON object.
    pub const HEADERS: usize = 64 * 1024;
    /// The payload; exactly this much passes.
    pub const PAYLOAD: usize = 1024 * 1024;
}

/// An event, immutable and checked. Clones share their data.
///
/// ```
/// use pillarbox_core::Event;
///
/// let placed = Event::builder("OrderPlaced")
///     .aggregate("Order", "order-7")
///     .key("order-7")
///     .header("source", "web")
///     .json(&serde_json::json!({ "order": 7, "total_cents": 4200 }))
///     .build()?;
/// assert_eq!(placed.aggregate_id(), Some("order-7"));
/// # Ok::<(), pillarbox_core::EventError>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct Event(Arc<Data>);

#[derive(Clone, Debug, PartialEq)]
struct Data {
    id: EventId,
    event_type: EventType,
    aggregate_type: AggregateType,
    aggregate_id: Option<Box<str>>,
    tenant_id: Option<Box<str>>,
    key: Option<Key>,
    headers: Headers,
    payload: Payload,
    occurred_at: Timestamp,
    due: Due,
    dedup: Option<Dedup>,
}

/// Keeps a second event of the same key from being written within a window of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dedup {
    /// What makes two events the same. It is a name of its own, and has nothing to do with the ordering key.
    pub key: Box<str>,
    /// For how long, from the write on, by the database's clock.
    pub window: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    AtOnce,
    At(Timestamp),
    After(Duration),
}

impl Event {
    /// Begins an event of this type; a string, or an enum of one's own that is `AsRef<str>`.
    pub fn builder(event_type: impl Into<EventType>) -> EventBuilder {
        EventBuilder {
            id: None,
            event_type: event_type.into(),
            aggregate_type: None,
            aggregate_id: None,
            tenant_id: None,
            key: None,
            headers: Headers::new(),
            payload: None,
            has_two_payloads: false,
            occurred_at: None,
            available_at: None,
            deliver_after: None,
            dedup: None,
        }
    }

    /// A builder that starts with everything this event has, its id included: for hooks that change events.
    pub fn to_builder(&self) -> EventBuilder {
        let data = &*self.0;
        EventBuilder {
            id: Some(data.id),
            event_type: data.event_type.clone(),
            aggregate_type: Some(data.aggregate_type.clone()),
            aggregate_id: data.aggregate_id.clone(),
            tenant_id: data.tenant_id.clone(),
            key: data.key.clone(),
            headers: data.headers.clone(),
            payload: Some(Ok(data.payload.clone())),
            has_two_payloads: false,
            occurred_at: Some(data.occurred_at),
            available_at: self.available_at(),
            deliver_after: self.deliver_after(),
            dedup: data.dedup.clone(),
        }
    }

    /// Its identity.
    pub fn id(&self) -> EventId {
        self.0.id
    }

    /// What happened.
    pub fn event_type(&self) -> &EventType {
        &self.0.event_type
    }

    /// The kind of thing it happened to.
    pub fn aggregate_type(&self) -> &AggregateType {
        &self.0.aggregate_type
    }

    /// The thing it happened to.
    pub fn aggregate_id(&self) -> Option<&str> {
        self.0.aggregate_id.as_deref()
    }

    /// The tenant it belongs to.
    pub fn tenant_id(&self) -> Option<&str> {
        self.0.tenant_id.as_deref()
    }

    /// The ordering key; events without one have no order.
    pub fn key(&self) -> Option<&Key> {
        self.0.key.as_ref()
    }

    /// What travels beside the payload.
    pub fn headers(&self) -> &Headers {
        &self.0.headers
    }

    /// The body.
    pub fn payload(&self) -> &Payload {
        &self.0.payload
    }

    /// When it happened, by the writer's word.
    pub fn occurred_at(&self) -> Timestamp {
        self.0.occurred_at
    }

    /// The time before which it is not delivered, if one was set.
    pub fn available_at(&self) -> Option<Timestamp> {
        match self.0.due {
            Due::At(time) => Some(time),
            Due::AtOnce | Due::After(_) => None,
        }
    }

    /// How long after its insert it is delivered, if that was set; the database's clock counts.
    pub fn deliver_after(&self) -> Option<Duration> {
        match self.0.due {
            Due::After(delay) => Some(delay),
            Due::AtOnce | Due::At(_) => None,
        }
    }

    /// Whether it waits for a time of its own, and so takes no hot path.
    pub fn is_delayed(&self) -> bool {
        self.0.due != Due::AtOnce
    }

    /// What keeps it from being written twice, if that was set. Known to the writer alone: an event that was
    /// read from the database has none.
    pub fn dedup(&self) -> Option<&Dedup> {
        self.0.dedup.as_ref()
    }

    /// Where it goes.
    pub fn route(&self) -> Route {
        Route { aggregate: self.0.aggregate_type.clone(), event: self.0.event_type.clone() }
    }

    /// The partition that its key gives; none without a key.
    pub fn key_partition(&self) -> Option<Partition> {
        self.key().map(Partition::of_key)
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Payloads may hold what must not be logged.
        f.debug_struct("Event")
            .field("id", &self.0.id)
            .field("type", &self.0.event_type.as_str())
            .field("aggregate", &self.0.aggregate_type.as_str())
            .field("key", &self.0.key.as_ref().map(Key::as_str))
            .field("payload_bytes", &self.0.payload.len())
            .finish_non_exhaustive()
    }
}

/// Gathers the fields of an [`Event`]; `build` checks them all.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built or written"]
pub struct EventBuilder {
    id: Option<EventId>,
    event_type: EventType,
    aggregate_type: Option<AggregateType>,
    aggregate_id: Option<Box<str>>,
    tenant_id: Option<Box<str>>,
    key: Option<Key>,
    headers: Headers,
    payload: Option<Result<Payload, EventError>>,
    // A mistake that `build` reports.
    has_two_payloads: bool,
    occurred_at: Option<Timestamp>,
    available_at: Option<Timestamp>,
    deliver_after: Option<Duration>,
    dedup: Option<Dedup>,
}

impl EventBuilder {
    /// Sets the id; without it the event gets a monotonic ULID.
    pub fn id(mut self, id: EventId) -> Self {
        self.id = Some(id);
        self
    }

    /// Sets what it happened to: the kind of thing, and which one.
    pub fn aggregate(mut self, aggregate_type: impl Into<AggregateType>, id: impl Into<Box<str>>) -> Self {
        self.aggregate_type = Some(aggregate_type.into());
        self.aggregate_id = Some(id.into());
        self
    }

    /// Sets which thing it happened to alone.
    pub fn aggregate_id(mut self, id: impl Into<Box<str>>) -> Self {
        self.aggregate_id = Some(id.into());
        self
    }

    /// Sets the kind of thing alone.
    pub fn aggregate_type(mut self, aggregate_type: impl Into<AggregateType>) -> Self {
        self.aggregate_type = Some(aggregate_type.into());
        self
    }

    /// Sets the tenant.
    pub fn tenant(mut self, tenant: impl Into<Box<str>>) -> Self {
        self.tenant_id = Some(tenant.into());
        self
    }

    /// Sets the ordering key: events with one key are delivered one after another.
    pub fn key(mut self, key: impl Into<Key>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Adds a header.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.set(name, value);
        self
    }

    /// Adds an entry of the context: it comes before what the outbox's providers say, and reaches handlers and
    /// fallbacks at every attempt.
    pub fn context(mut self, name: impl AsRef<str>, value: impl Into<String>) -> Self {
        self.headers.set_context(name.as_ref(), value);
        self
    }

    /// Replaces all headers.
    pub fn headers(mut self, headers: Headers) -> Self {
        self.headers = headers;
        self
    }

    /// Sets the payload: a value, serialised as JSON here and now.
    pub fn json<T: Serialize + ?Sized>(self, value: &T) -> Self {
        self.and_payload(Payload::json(value))
    }

    /// Sets the payload: JSON text as it stands.
    pub fn json_text(self, text: impl Into<String>) -> Self {
        self.and_payload(Payload::json_text(text))
    }

    /// Sets the payload: bytes of any content type.
    pub fn bytes(self, content_type: impl AsRef<str> + Into<Box<str>>, body: impl Into<bytes::Bytes>) -> Self {
        self.and_payload(Ok(Payload::bytes(content_type, body)))
    }

    /// Replaces the payload, whatever was set before.
    pub fn payload(self, payload: Payload) -> Self {
        self.try_payload(Ok(payload))
    }

    pub(crate) fn try_payload(mut self, payload: Result<Payload, EventError>) -> Self {
        (self.payload, self.has_two_payloads) = (Some(payload), false);
        self
    }

    fn and_payload(mut self, payload: Result<Payload, EventError>) -> Self {
        self.has_two_payloads |= self.payload.is_some();
        self.payload = Some(payload);
        self
    }

    /// Sets when it happened; without it, the time of `build`.
    pub fn occurred_at(mut self, time: impl Into<Timestamp>) -> Self {
        self.occurred_at = Some(time.into());
        self
    }

    /// Delivers it at this time or later, by the database's clock.
    pub fn available_at(mut self, time: impl Into<Timestamp>) -> Self {
        self.available_at = Some(time.into());
        self
    }

    /// Delivers it this long after its insert, by the database's clock.
    pub fn deliver_after(mut self, delay: Duration) -> Self {
        self.deliver_after = Some(delay);
        self
    }

    /// Writes the event only if none with the same dedup key was written within the window before.
    pub fn dedup(mut self, key: impl Into<Box<str>>, window: Duration) -> Self {
        self.dedup = Some(Dedup { key: key.into(), window });
        self
    }

    /// Checks every field; `id` and `now` are taken where none was set.
    pub fn build_with(
        self,
        id: impl FnOnce() -> EventId,
        now: impl FnOnce() -> Timestamp,
    ) -> Result<Event, EventError> {
        name("event type", self.event_type.as_str())?;
        let aggregate_type = self.aggregate_type.unwrap_or_default();
        name("aggregate type", aggregate_type.as_str())?;
        optional("aggregate id", self.aggregate_id.as_deref(), limit::NAME)?;
        optional("tenant id", self.tenant_id.as_deref(), limit::NAME)?;
        optional("ordering key", self.key.as_ref().map(Key::as_str), limit::KEY)?;
        optional("dedup key", self.dedup.as_ref().map(|dedup| &*dedup.key), limit::KEY)?;
        if self.dedup.as_ref().is_some_and(|dedup| dedup.window.is_zero()) {
            return Err(EventError::NoWindow);
        }
        if !self.headers.is_empty() {
            check("headers", &self.headers.to_json(), limit::HEADERS)?;
            for (header, value) in self.headers.iter() {
                if header.is_empty() {
                    return Err(EventError::Empty("header name"));
                }
                check("header name", header, limit::HEADERS)?;
                check("header value", value, limit::HEADERS)?;
            }
        }
        if self.has_two_payloads {
            return Err(EventError::TwoPayloads);
        }
        let payload = self.payload.ok_or(EventError::NoPayload)??;
        name("content type", payload.content_type())?;
        if payload.len() > limit::PAYLOAD {
            return Err(EventError::TooLong { field: "payload", bytes: payload.len(), limit: limit::PAYLOAD });
        }
        let due = match (self.available_at, self.deliver_after) {
            (Some(_), Some(_)) => return Err(EventError::TwoDelays),
            (Some(time), None) => Due::At(time),
            (None, Some(delay)) => Due::After(delay),
            (None, None) => Due::AtOnce,
        };
        Ok(Event(Arc::new(Data {
            id: self.id.unwrap_or_else(id),
            event_type: self.event_type,
            aggregate_type,
            aggregate_id: self.aggregate_id,
            tenant_id: self.tenant_id,
            key: self.key,
            headers: self.headers,
            payload,
            occurred_at: self.occurred_at.unwrap_or_else(now),
            due,
            dedup: self.dedup,
        })))
    }
}

fn name(field: &'static str, value: &str) -> Result<(), EventError> {
    if value.is_empty() {
        return Err(EventError::Empty(field));
    }
    check(field, value, limit::NAME)
}

fn optional(field: &'static str, value: Option<&str>, limit: usize) -> Result<(), EventError> {
    match value {
        Some("") => Err(EventError::Empty(field)),
        Some(value) => check(field, value, limit),
        None => Ok(()),
    }
}

fn check(field: &'static str, value: &str, limit: usize) -> Result<(), EventError> {
    if value.len() > limit {
        return Err(EventError::TooLong { field, bytes: value.len(), limit });
    }
    // PostgreSQL keeps no NUL in text, and what passes here must pass on every database.
    if value.contains('\0') {
        return Err(EventError::Nul(field));
    }
    Ok(())
}

/// Why an event could not be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// A field that needs a value has an empty one.
    #[error("the {0} is empty: give it a value, or leave it unset where it is optional")]
    Empty(&'static str),
    /// A field is longer than every database is sure to take.
    #[error("the {field} has {bytes} bytes, and at most {limit} are allowed")]
    TooLong {
        /// Which field.
        field: &'static str,
        /// Its size.
        bytes: usize,
        /// The size that passes.
        limit: usize,
    },
    /// A text field contains the character NUL.
    #[error("the {0} contains a NUL character, which not every database can keep in text")]
    Nul(&'static str),
    /// No payload was set.
    #[error("the event has no payload: set one with json, json_text or bytes")]
    NoPayload,
    /// More than one payload was set.
    #[error("the event has more than one payload: set json or bytes, once")]
    TwoPayloads,
    /// The payload is not JSON, or could not be written as JSON.
    #[error("the payload is not JSON: {0}")]
    NotJson(String),
    /// The payload could not be put into the format of its codec.
    #[error("the payload can't be encoded: {0}")]
    NotEncoded(String),
    /// Both ways to delay were used.
    #[error("the event has both available_at and deliver_after: set one of them")]
    TwoDelays,
    /// A dedup key that would keep nothing.
    #[error("the dedup key has a window of no time: say for how long it keeps a second event away")]
    NoWindow,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn build(builder: EventBuilder) -> Result<Event, EventError> {
        builder.build_with(|| EventId::from_ulid(ulid::Ulid::from_parts(1, 2)), || Timestamp::from_micros(7))
    }

    fn valid() -> EventBuilder {
        Event::builder("Placed").json(&1)
    }

    #[test]
    fn defaults_are_filled_in() {
        let event = build(valid()).unwrap();
        assert_eq!(event.aggregate_type().as_str(), "__GLOBAL__");
        assert_eq!(event.occurred_at(), Timestamp::from_micros(7));
        assert_eq!(event.id(), EventId::from_ulid(ulid::Ulid::from_parts(1, 2)));
        assert_eq!((event.key(), event.tenant_id(), event.aggregate_id()), (None, None, None));
        assert!(!event.is_delayed());
    }

    #[test]
    fn a_builder_made_from_an_event_gives_it_back() {
        let event = build(
            valid().aggregate("Order", "7").tenant("t").key("k").header("a", "b").deliver_after(Duration::from_secs(3)),
        )
        .unwrap();
        assert_eq!(build(event.to_builder()).unwrap(), event);
    }

    #[test]
    fn exactly_one_mebibyte_passes_and_one_byte_more_does_not() {
        let of = |size| build(Event::builder("Big").bytes("application/octet-stream", vec![0; size]));
        assert_eq!(of(1 << 20).unwrap().payload().len(), 1 << 20);
        assert_eq!(
            of((1 << 20) + 1),
            Err(EventError::TooLong { field: "payload", bytes: (1 << 20) + 1, limit: 1 << 20 })
        );
    }

    #[test]
    fn each_field_has_its_limit() {
        let long = |n: usize| "x".repeat(n);
        for (field, at_limit, over) in [
            ("event type", Event::builder(long(255)).json(&1), Event::builder(long(256)).json(&1)),
            ("aggregate type", valid().aggregate_type(long(255)), valid().aggregate_type(long(256))),
            ("aggregate id", valid().aggregate("A", long(255)), valid().aggregate("A", long(256))),
            ("tenant id", valid().tenant(long(255)), valid().tenant(long(256))),
            ("ordering key", valid().key(long(512)), valid().key(long(513))),
            // {"h":"..."} is 8 bytes around the value.
            ("headers", valid().header("h", long(65_528)), valid().header("h", long(65_529))),
        ] {
            build(at_limit).unwrap_or_else(|error| panic!("{field}: {error}"));
            match build(over) {
                Err(EventError::TooLong { field: named, .. }) => assert_eq!(named, field),
                other => panic!("{field}: {other:?}"),
            }
        }
    }

    #[test]
    fn mistakes_are_named() {
        let at = Timestamp::from_micros(1);
        let cases = [
            (Event::builder("").json(&1), EventError::Empty("event type")),
            (valid().aggregate_type(""), EventError::Empty("aggregate type")),
            (valid().key(""), EventError::Empty("ordering key")),
            (valid().header("", "v"), EventError::Empty("header name")),
            (Event::builder("E"), EventError::NoPayload),
            (valid().bytes("a/b", vec![1]), EventError::TwoPayloads),
            (Event::builder("E").bytes("", vec![1]), EventError::Empty("content type")),
            (valid().available_at(at).deliver_after(Duration::ZERO), EventError::TwoDelays),
            (valid().tenant("a\0b"), EventError::Nul("tenant id")),
            (valid().header("a", "\0"), EventError::Nul("header value")),
        ];
        for (builder, error) in cases {
            assert_eq!(build(builder), Err(error));
        }
    }

    proptest! {
        #[test]
        fn lengths_are_counted_in_bytes(key in "\\PC{1,300}") {
            prop_assert_eq!(build(valid().key(&key)).is_ok(), key.len() <= limit::KEY);
        }
    }
}

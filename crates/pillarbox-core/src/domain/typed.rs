//! Events as types.

use serde::de::DeserializeOwned;

use super::{CodecError, Codecs, Event, EventBuilder, EventError, Payload, Route};

/// The header that tells the version of an event's schema; without it, it is 1.
pub const SCHEMA_VERSION: &str = "schema-version";

/// A type that stands for a kind of event, or an enum for several. Derive it:
///
/// ```text
/// #[derive(Serialize, Deserialize, OutboxEvent)]
/// #[outbox(aggregate = "Order", key = order_id)]
/// struct OrderPlaced {
///     order_id: String,
///     total_cents: i64,
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an event of an outbox",
    note = "derive it: `#[derive(Serialize, Deserialize, OutboxEvent)]`, with `#[outbox(key = some_field)]` if its events have an order"
)]
pub trait OutboxEvent: Sized + Send + 'static {
    /// Where its events go: one route, or one for each variant of an enum; with those of former versions of the schema.
    fn routes() -> Vec<Route>;

    /// Everything about the event but its payload.
    fn describe(&self) -> EventBuilder;

    /// The payload.
    fn encode(&self, codecs: &Codecs) -> Result<Payload, CodecError>;

    /// Reads it back, also from a former version of its schema.
    fn decode(event: &Event, codecs: &Codecs) -> Result<Self, CodecError>;

    /// A builder with all of it, for what only this one event has: a delay, a dedup key, a header.
    ///
    /// The payload is JSON here, unless the type has a codec of its own.
    fn to_event(&self) -> EventBuilder {
        self.to_event_by(&Codecs::default())
    }

    /// The same, in the format of an outbox.
    fn to_event_by(&self, codecs: &Codecs) -> EventBuilder {
        let payload = self.encode(codecs).map_err(|error| EventError::NotEncoded(error.to_string()));
        self.describe().try_payload(payload)
    }
}

/// An event that was written with a former version of its schema: what `#[outbox(upcast = ...)]` is given.
#[derive(Clone, Copy, Debug)]
pub struct Former<'a> {
    event: &'a Event,
    version: u32,
    codecs: &'a Codecs,
}

impl<'a> Former<'a> {
    /// This event, of this version.
    pub fn new(event: &'a Event, version: u32, codecs: &'a Codecs) -> Self {
        Self { event, version, codecs }
    }

    /// The version it was written with.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The event as it was written.
    pub fn event(&self) -> &Event {
        self.event
    }

    /// Its payload as the type that it was then.
    pub fn to<T: DeserializeOwned>(&self) -> Result<T, CodecError> {
        self.codecs.decode(self.event.payload())
    }
}

impl Event {
    /// The version of the schema that it was written with, as the header tells; 1 if none does.
    pub fn schema_version(&self) -> Result<u32, CodecError> {
        match self.headers().get(SCHEMA_VERSION) {
            None => Ok(1),
            Some(text) => text
                .parse()
                .map_err(|_| CodecError::new(format!("the header {SCHEMA_VERSION} is {text:?}, and not a number"))),
        }
    }
}

/// How generated code makes text of a value: anything with a `Display`, or an `Option` of it.
pub mod text {
    use std::fmt::Display;

    /// A value.
    #[derive(Debug)]
    pub struct Of<'a, T: ?Sized>(pub &'a T);

    /// Found first, and only for an `Option`.
    pub trait OfOption {
        /// The text, if there is a value.
        fn text(&self) -> Option<String>;
    }

    impl<T: Display> OfOption for Of<'_, Option<T>> {
        fn text(&self) -> Option<String> {
            self.0.as_ref().map(ToString::to_string)
        }
    }

    /// A field of a variant is there by reference.
    impl<T: Display> OfOption for Of<'_, &Option<T>> {
        fn text(&self) -> Option<String> {
            self.0.as_ref().map(ToString::to_string)
        }
    }

    /// Found behind one more reference, for everything else.
    pub trait OfDisplay {
        /// The text.
        fn text(&self) -> Option<String>;
    }

    impl<T: Display + ?Sized> OfDisplay for &Of<'_, T> {
        fn text(&self) -> Option<String> {
            Some(self.0.to_string())
        }
    }
}

//! The core of Pillarbox: [`domain`], [`port`] and [`engine`], without a database or a broker.
//!
//! Most users depend on the `pillarbox` crate, which names what an application needs.

pub mod domain;
pub mod engine;
pub mod observe;
pub mod port;

pub use domain::{Delivery, Event, EventError, EventId, HandlerError, OutboxEvent, Outcome, RetryPolicy};
pub use engine::{HandlerExt, Metadata, Outbox, new_id};

/// For the code that macros generate, and for nothing else.
#[doc(hidden)]
pub mod __private {
    #[cfg(feature = "protobuf")]
    pub use crate::domain::protobuf;
    pub use crate::{
        domain::{
            CodecError, Codecs, Event, EventBuilder, Former, OutboxEvent, Payload, RetryPolicy, Route, SCHEMA_VERSION,
            text,
        },
        engine::{HandlerSet, Handlers, IntoHandlers, handler},
    };
}

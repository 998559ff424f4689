//! A transactional outbox: a service writes its events in the same database transaction as its data, and
//! Pillarbox delivers every committed event at least once, in order per key.
//!
//! Begin with [`Outbox`]: choose a preset, name a handler for each kind of event, start it, and write events
//! with [`Transaction::write`]. The README has the ten lines; `docs/book/src/guarantees.md` says what is promised and
//! what is not.
//!
//! | feature | what it brings | default |
//! |---|---|---|
//! | `sqlite` | [`SqliteStore`], on a file of its own or your application's | yes |
//! | `postgres` | `PostgresStore` | no |
//! | `mysql` | `MySqlStore`, for MySQL and MariaDB | no |
//! | `macros` | `derive(OutboxEvent)` and `#[handlers]` | yes |
//! | `messagepack` | payloads in MessagePack | no |
//! | `protobuf` | payloads in Protobuf, for types that `prost` knows | no |
//! | `inbox` | the consumer's half: `inbox::{Guard, Inbox, Consumer, DeadLetters}` | no |
//! | `config` | settings from a TOML file and the environment: `config::Settings` | no |
//! | `opentelemetry` | one trace from the request to the consumer, and metrics, by OpenTelemetry | no |
//! | `testing` | an outbox for tests of handlers, and assertions about what was written | no |

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod any;

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub use any::{AnyConnection, AnyOptions, AnyStore, AnyTransaction, Kind};
#[doc(hidden)]
pub use pillarbox_core::__private;
#[cfg(feature = "messagepack")]
pub use pillarbox_core::domain::MessagePack;
#[cfg(feature = "protobuf")]
pub use pillarbox_core::domain::protobuf;
pub use pillarbox_core::{
    domain::{
        AggregateType, BoxError, CircuitPolicy, Codec, CodecError, Codecs, Dedup, Delivery, Epoch, Event, EventBuilder,
        EventError, EventId, EventType, Failure, Former, HandlerError, Headers, Json, Key, OutboxEvent, Outcome,
        Partition, Payload, Policy, Reads, Record, RetryPolicy, Route, Seq, Standing, Status, Timestamp,
    },
    engine::{
        Answers, Batch, Batched, Builder, Bulk, BulkDone, Bus, BusEvent, Configured, Context, ContextProvider, Dead,
        Duplicate, Each, EventBatchHandler, EventFallback, EventHandler, EventInTx, EventRef, Failed, Fallback, Handle,
        Handler, HandlerExt, HandlerSet, Handlers, Heartbeat, InTx, Interceptor, IntoAnswers, IntoEvent, IntoHandlers,
        IntoInTx, IntoRegistration, Metadata, NoHook, OnDeadHead, OnSuccess, Outbox, OutboxError, PublishError,
        PurgeOptions, Reaches, Receipt, Registration, Report, Set, Transaction, Work, WriteError, WriterHook, batch,
        handler, in_tx, mode, new_id,
    },
    observe,
    port::{
        self, Action, ActionQuery, Actions, Actor, Fleet, Found, Listing, NodeStatus, PurgeScope, Query, Stats,
        StoreError, StoreErrorKind,
    },
};
#[cfg(feature = "inbox")]
pub use pillarbox_inbox as inbox;
#[cfg(feature = "macros")]
pub use pillarbox_macros::{OutboxEvent, handlers};
#[cfg(feature = "mysql")]
pub use pillarbox_mysql::{MySqlInbox, MySqlStore, Options as MySqlOptions};
#[cfg(feature = "opentelemetry")]
pub use pillarbox_opentelemetry as opentelemetry;
#[cfg(feature = "postgres")]
pub use pillarbox_postgres::{Options as PostgresOptions, PostgresInbox, PostgresStore, PostgresTransaction};
#[cfg(feature = "config")]
pub use pillarbox_relay::config;
#[cfg(feature = "sqlite")]
pub use pillarbox_sqlite::{Durability, Options as SqliteOptions, SqliteInbox, SqliteStore, SqliteTransaction};
#[cfg(feature = "testing")]
pub use pillarbox_testkit::testing;

/// What most programs need: `use pillarbox::prelude::*`.
pub mod prelude {
    #[cfg(feature = "mysql")]
    pub use crate::MySqlStore;
    #[cfg(feature = "postgres")]
    pub use crate::PostgresStore;
    #[cfg(feature = "sqlite")]
    pub use crate::SqliteStore;
    #[cfg(feature = "macros")]
    pub use crate::handlers;
    pub use crate::{
        Batched, Delivery, Event, Failed, HandlerError, HandlerExt, Metadata, Outbox, OutboxEvent, Outcome,
        RetryPolicy, Work, handler,
    };
}

/// The snippets of the README and the book, as doctests.
#[cfg(doctest)]
mod snippets {
    macro_rules! pages {
        ($($page:ident: $file:literal),+ $(,)?) => {
            $(
                #[doc = include_str!($file)]
                pub struct $page;
            )+
        };
    }

    pages! {
        ReadmeSnippets: "../../../README.md",
        GettingStarted: "../../../docs/book/src/getting-started.md",
        Examples: "../../../docs/book/src/examples.md",
        Events: "../../../docs/book/src/events.md",
        Handlers: "../../../docs/book/src/handlers.md",
        Testing: "../../../docs/book/src/testing.md",
        Operations: "../../../docs/book/src/operations.md",
        OperatorsApi: "../../../docs/book/src/admin.md",
        Traces: "../../../docs/book/src/traces.md",
        Consuming: "../../../docs/book/src/consuming.md",
    }
}

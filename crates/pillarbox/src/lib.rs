//! A transactional outbox: a service writes its events in the same database transaction as its data, and
//! Pillarbox delivers every committed event at least once, in order per key.
//!
//! Begin with [`Outbox`]: choose a preset, name a handler for each kind of event, start it, and write events
//! with [`Transaction::write`]. The README has the ten lines; `docs/guarantees.md` says what is promised and
//! what is not.
//!
//! | feature | what it brings | default |
//! |---|---|---|
//! | `sqlite` | [`SqliteStore`], on a file of its own or your application's | yes |
//! | `postgres` | `PostgresStore` | no |
//! | `mysql` | `MySqlStore`, for MySQL and MariaDB | no |

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod any;

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub use any::{AnyConnection, AnyOptions, AnyStore, AnyTransaction, Kind};
pub use pillarbox_core::{
    domain::{
        AggregateType, Dedup, Delivery, Epoch, Event, EventBuilder, EventError, EventId, EventType, Failure,
        HandlerError, Headers, Key, Outcome, Partition, Payload, Record, RetryPolicy, Route, Seq, Standing, Status,
        Timestamp,
    },
    engine::{
        Builder, Configured, Dead, Duplicate, Handler, HandlerExt, Heartbeat, Interceptor, IntoEvent, NoHook,
        OnDeadHead, OnSuccess, Outbox, OutboxError, PurgeOptions, Receipt, Report, Transaction, WriteError, WriterHook,
        mode, new_id,
    },
    observe,
    port::{self, Actor, Fleet, Found, Listing, NodeStatus, PurgeScope, Query, Stats, StoreError, StoreErrorKind},
};
#[cfg(feature = "mysql")]
pub use pillarbox_mysql::{MySqlStore, Options as MySqlOptions};
#[cfg(feature = "postgres")]
pub use pillarbox_postgres::{Options as PostgresOptions, PostgresStore, PostgresTransaction};
#[cfg(feature = "sqlite")]
pub use pillarbox_sqlite::{Durability, Options as SqliteOptions, SqliteStore, SqliteTransaction};

/// What most programs need: `use pillarbox::prelude::*`.
pub mod prelude {
    #[cfg(feature = "mysql")]
    pub use crate::MySqlStore;
    #[cfg(feature = "postgres")]
    pub use crate::PostgresStore;
    #[cfg(feature = "sqlite")]
    pub use crate::SqliteStore;
    pub use crate::{Delivery, Event, HandlerError, HandlerExt, Outbox, Outcome, RetryPolicy};
}

/// The snippets of README.md, as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct ReadmeSnippets;

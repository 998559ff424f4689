//! The quirks of the SQLite store. What every store must do is in the conformance suite of the testkit.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic, in its steps as well")]

mod admin;
mod busy;
mod conformance;
mod consumer;
mod fence;
mod outboxes;
mod reading;
mod schema;
mod support;

use pillarbox_core::port::WriteStore;
use pillarbox_sqlite::SqliteStore;
use sqlx::{SqliteConnection, SqlitePool};

// An event is written in a transaction, or it does not compile.
static_assertions::assert_not_impl_any!(SqliteStore: WriteStore<SqliteConnection>, WriteStore<SqlitePool>);

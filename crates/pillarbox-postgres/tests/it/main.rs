//! The quirks of the PostgreSQL store. What every store must do is in the conformance suite of the testkit.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic, in its steps as well")]

mod broken;
mod conformance;
mod consumer;
mod driver;
mod durable;
mod fence;
mod kept;
mod late;
mod migrate;
mod numbers;
mod private;
mod rights;
mod runs;
mod schema;
mod support;
mod work;

use pillarbox_core::port::WriteStore;
use pillarbox_postgres::PostgresStore;
use sqlx::{PgConnection, PgPool};

// An event is written in a transaction, or it does not compile.
static_assertions::assert_not_impl_any!(PostgresStore: WriteStore<PgConnection>, WriteStore<PgPool>);

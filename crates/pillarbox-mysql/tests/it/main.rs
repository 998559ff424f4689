//! The quirks of the MySQL store. What every store must do is in the conformance suite of the testkit.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic, in its steps as well")]

mod conformance;
mod consumer;
mod errors;
mod fence;
mod late;
mod numbers;
mod private;
mod privileges;
mod schema;
mod support;
mod writing;

use pillarbox_core::port::WriteStore;
use pillarbox_mysql::MySqlStore;
use sqlx::{MySqlConnection, MySqlPool};

// An event is written in a transaction, or it does not compile.
static_assertions::assert_not_impl_any!(MySqlStore: WriteStore<MySqlConnection>, WriteStore<MySqlPool>);

//! Tests of the servers for tests.

#![expect(clippy::unwrap_used, reason = "what a test sets up must succeed")]

mod client;
mod database;
mod private;
mod proxy;

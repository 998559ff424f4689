//! The relay's parts on a running outbox.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic, in its steps as well")]

mod outlets;
mod pace;

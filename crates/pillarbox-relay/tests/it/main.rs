//! The relay's parts on a running outbox.

mod outlets;
mod pace;

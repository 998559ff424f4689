//! The relay's parts on a running outbox.

mod dropped;
mod outlets;
mod pace;

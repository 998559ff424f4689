//! The API as a client sees it.
#![expect(clippy::unwrap_used, reason = "what does not work in a test shall fail it")]

mod access;
mod bed;
mod document;
mod events;
mod fuzz;
mod letters;
mod limits;
mod logs;
#[cfg(feature = "inbox")]
mod queue;
mod redaction;

//! The consumer's half at work.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic, in its steps as well")]

mod alone;
mod consumer;
mod faults;
mod guard;
mod in_tx;
mod kill;
mod letters;
mod memory;
mod real;
mod support;

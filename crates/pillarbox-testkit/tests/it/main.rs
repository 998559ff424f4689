//! Tests of the test kit.

#![expect(clippy::unwrap_used, reason = "what a test sets up must succeed")]

mod conformance;
mod engine;
mod faulty;
mod listed;
mod memory;
mod probe;

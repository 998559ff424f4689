//! Tests of the test kit.

#![expect(clippy::unwrap_used, reason = "what a test sets up must succeed")]
#![allow(clippy::type_complexity, reason = "tables of cases have functions in their columns")]
#![allow(clippy::unused_async, reason = "handlers are async, whether they wait or not")]

mod conformance;
mod engine;
mod faulty;
mod listed;
mod memory;
mod probe;

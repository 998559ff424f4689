//! Tests of the test kit.

#![expect(clippy::unwrap_used, reason = "what a test sets up must succeed")]
#![expect(clippy::float_cmp, reason = "gauges are set to whole numbers, and compared with them")]
#![expect(clippy::unused_async, reason = "what stands for a handler is async, whether it waits or not")]
#![expect(clippy::type_complexity, reason = "tables of cases have functions in their columns")]

mod conformance;
mod engine;
mod faulty;
mod listed;
mod memory;
mod mutants;
mod probe;
mod simulation;
mod testing;

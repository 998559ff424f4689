//! The sink and the source on a real Mosquitto, and on a server that says what Mosquitto never does. What every sink and source must do is in the
//! exams of the testkit.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic, in its steps as well")]

mod answers;
mod conformance;
mod private;
mod receiving;
mod refusals;
mod support;

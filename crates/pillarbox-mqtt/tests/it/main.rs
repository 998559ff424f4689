//! The sink on a real Mosquitto, and on a server that says what Mosquitto never does. What every sink must do is in the exam
//! of the testkit.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic, in its steps as well")]

mod answers;
mod conformance;
mod private;
mod refusals;
mod support;

//! The sink on a real RabbitMQ. What every sink must do is in the exam of the testkit.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic, in its steps as well")]

mod conformance;
mod private;
mod receiving;
mod refusals;
mod support;

//! The quirks of Kafka. What every sink must do is in the exam of the testkit.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic, in its steps as well")]

mod cluster;
mod conformance;
mod faults;
mod receiving;
mod records;
mod relay;
mod tls;

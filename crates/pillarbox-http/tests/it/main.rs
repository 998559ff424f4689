//! The quirks of web hooks. What every sink must do is in the exam of the testkit.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic, in its steps as well")]

mod answers;
mod conformance;
mod connections;
mod limits;
mod receiver;
mod requests;
mod tls;

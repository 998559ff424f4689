//! The quirks of the Redis sink. What every sink must do is in the exam of the testkit.

mod conformance;
mod consumer;
mod place;
mod private;
mod quirks;
mod receiving;

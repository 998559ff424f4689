//! The core of Pillarbox: [`domain`], [`port`] and engine, without a database or a broker.
//!
//! Most users depend on the `pillarbox` crate, which names what an application needs.

pub mod domain;
pub mod engine;
pub mod port;

pub use domain::{Event, EventError, EventId, RetryPolicy};
pub use engine::new_id;

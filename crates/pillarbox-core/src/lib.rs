//! The core of Pillarbox: [`domain`], [`port`] and [`engine`], without a database or a broker.
//!
//! Most users depend on the `pillarbox` crate, which names what an application needs.

pub mod domain;
pub mod engine;
pub mod observe;
pub mod port;

pub use domain::{Delivery, Event, EventError, EventId, HandlerError, Outcome, RetryPolicy};
pub use engine::{Outbox, new_id};

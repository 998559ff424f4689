//! For users' tests of their handlers, and of the code that writes events.
//!
//! [`outbox()`] builds an outbox in memory that delivers nothing by itself: [`drain`](TestOutbox::drain) runs the handlers,
//! with the engine that runs them in production, until nothing is left to do.
//!
//! ```
//! # use pillarbox_core as pillarbox;
//! # use pillarbox_testkit::{testing, assert_written};
//! # use pillarbox_core::{Metadata, HandlerError};
//! # use serde::{Serialize, Deserialize};
//! # use pillarbox_macros::OutboxEvent;
//! #[derive(Serialize, Deserialize, OutboxEvent)]
//! # #[outbox(crate = pillarbox_core)]
//! struct OrderPlaced {
//!     order_id: String,
//!     total_cents: i64,
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! async fn ship(placed: OrderPlaced, meta: Metadata) -> Result<(), &'static str> {
//!     if meta.is_retry() { Ok(()) } else { Err("the carrier does not answer") }
//! }
//!
//! let outbox = testing::outbox().handle(ship).start().await?;
//! let mut tx = outbox.begin().await?;
//! tx.write(&OrderPlaced { order_id: "7".into(), total_cents: 4_200 }).await?;
//! tx.commit().await?;
//! assert_written!(outbox, OrderPlaced { order_id: "7", .. });
//!
//! let report = outbox.drain().await?;
//! assert_eq!(report.delivered.len(), 1);
//! assert_eq!(report.failed[0].error, "the carrier does not answer");
//! # Ok(()) }
//! ```
//!
//! # Time
//! The outbox in memory has a clock that stands still. A drain moves it on to the next attempt of what has failed, so it
//! ends with every event done or dead, and waits for nothing. Events that were written with a delay of their own stay
//! where they are until the test calls [`advance`](TestOutbox::advance).
//!
//! # On a real database
//! [`outbox_on`] does the same on any store; there, retries take the time they take. Where the code under test starts its
//! outbox itself, [`OutboxExt::drain_within`] waits until everything is delivered. The assertions take every outbox.

mod assert;
mod builder;
mod ext;
mod outbox;
mod recorder;
mod report;
mod twice;

#[doc(hidden)]
pub use assert::{Asked, Times, check, value};
pub use builder::{Builder, outbox, outbox_on};
pub use ext::OutboxExt;
pub use outbox::TestOutbox;
pub use report::{Dead, DrainError, Drained, FailedRun};

#[doc(inline)]
pub use crate::{assert_not_written, assert_written};

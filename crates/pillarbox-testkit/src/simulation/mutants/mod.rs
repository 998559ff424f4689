//! Stores that lack one safety each, so that it is known that the checker would notice.
//!
//! | mutant | lacks | the checker says |
//! |---|---|---|
//! | [`UnlockedFence`] | the lock on the node's row between the fence's check and the writes | `StaleSettle` |
//! | [`NoEpoch`] | the comparison of the partition's epoch | `StaleSettle` |
//! | [`NoDeadline`] | the node's deadline: it runs on when its lease has lapsed | `TwoAtOnce` |
//! | [`NoLane`] | the lane: the head of a key stops nobody | `OutOfOrder` |
//! | [`Sweep`] | the single snapshot: late commits are found by a sweep of their own | `OutOfOrder` |
//! | [`OldSnapshot`] | what tombstones rest on: a read sees what was settled before it began | `Doubled` |
//! | [`NoReservation`] | the reservation: the numbers that the writer reserves are not those of its rows | `Doubled` |
//!
//! Each is a layer in front of the store in memory. The product has no switch for any of this.

mod fence;
mod lane;
mod lease;
mod page;
mod reservation;
#[cfg(test)]
mod tests;

pub use fence::{NoEpoch, UnlockedFence};
pub use lane::NoLane;
pub use lease::NoDeadline;
pub use page::{OldSnapshot, Sweep};
pub use reservation::NoReservation;

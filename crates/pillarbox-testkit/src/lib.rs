//! What tests of an outbox need: a store in memory, scripted faults, a probe for handlers, and the exam that
//! every store passes.
//!
//! - [`MemoryStore`] implements all ports without a database, with real transactions and a clock of choice.
//! - [`ManualClock`] moves only when it is told to.

mod clock;
pub mod memory;

pub use clock::ManualClock;
pub use memory::MemoryStore;

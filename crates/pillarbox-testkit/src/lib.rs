//! What tests of an outbox need: a store in memory, scripted faults, a probe for handlers, and the exam that
//! every store passes.
//!
//! - [`testing`] is for users' tests of their handlers: `pillarbox::testing`.
//! - [`MemoryStore`] implements all ports without a database, with real transactions and a clock of choice.
//! - [`MemoryBroker`] is a broker in memory: a sink, sources for groups of consumers, and faults.
//! - [`ManualClock`] moves only when it is told to.
//! - [`Faulty`] wraps any store and lets a test script what goes wrong, call by call.
//! - [`Probe`] records deliveries, waits for them, and plays handlers that fail, panic or hang.
//! - `servers`, with the feature of this name: real database servers, and a proxy that breaks connections.
//! - `processes`, with the feature of this name: several processes on one database, and what ends them.
//! - [`proof`] reads what was committed and what was delivered, and says what is wrong.
//! - `silence`, with the feature `processes`: a database that does not answer any more.
//! - `told`, with the same feature: what errors and logs tell, for tests of what they must not.
//! - [`simulation`] runs the engine through thousands of schedules, in virtual time, and asks the proof about each.
//! - [`conformance`](mod@conformance) is the exam: a backend runs it with one line.
//! - `sinks`, with the feature `servers`, is the exam of a sink, and `sources` that of a source.
//! - [`guards`](mod@guards), [`inboxes`](mod@inboxes) and [`letters`](mod@letters) are the exams of the consumer's half.
//! - [`driver`](mod@driver) is the exam of a driver, whose transactions events are written in.

mod broker;
mod clock;
pub mod conformance;
pub mod driver;
pub mod exam;
mod faulty;
mod gate;
pub mod guards;
pub mod inboxes;
pub mod letters;
pub mod memory;
mod patience;
pub mod probe;
#[cfg(feature = "processes")]
pub mod processes;
pub mod proof;
#[cfg(feature = "processes")]
pub mod silence;
pub mod simulation;
#[cfg(feature = "servers")]
pub mod sinks;
#[cfg(feature = "servers")]
pub mod sources;
pub mod testing;
#[cfg(feature = "processes")]
pub mod told;

pub use broker::{MemoryBroker, MemorySource};
pub use clock::ManualClock;
pub use faulty::{Call, Faults, Faulty};
pub use gate::Gate;
pub use memory::{MemoryConnection, MemoryStore};
#[cfg(feature = "servers")]
pub use pillarbox_servers as servers;
pub use probe::Probe;

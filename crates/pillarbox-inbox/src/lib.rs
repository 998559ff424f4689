//! The consumer's half of Pillarbox.
mod error;
mod guard;
mod inbox;
mod letters;
mod memory;
mod message;

pub use error::Error;
pub use guard::{Guard, Guarded};
pub use inbox::Inbox;
pub use letters::{DeadLetters, Parked, REPLAY_FOR, REPLAY_NUMBER, id_of};
pub use memory::{MemoryGuard, MemoryLetters};

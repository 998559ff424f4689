//! The consumer's half of Pillarbox: a broker delivers at least once, and this makes it once.
//!
//! | what | when to take it |
//! |---|---|
//! | [`Inbox`] | the work is in a database: the message is entered in the transaction of the work |
//! | [`Guard`] | the work is elsewhere: the message is marked before it, for a time |
//! | [`Consumer`] | the whole loop: receive, drop what is known, handle with retries, park or finish, acknowledge |
//! | [`DeadLetters`] | what was given up: list, replay, edit, discard |
//!
//! Each works alone. Their stores are in the adapters: `SqliteInbox`, `PostgresInbox` and `MySqlInbox` have all of them;
//! Redis and NATS have guards, dead letters and sources.

mod consumer;
mod error;
mod guard;
mod inbox;
mod letters;
mod memory;
mod message;
mod settings;

pub use consumer::{Builder, Consumer, OnUnknown, WithInbox, metric};
pub use error::Error;
pub use guard::{Guard, Guarded};
pub use inbox::Inbox;
pub use letters::{DeadLetters, Parked, REPLAY_FOR, REPLAY_NUMBER, REPLAY_OF, id_of};
pub use memory::{MemoryGuard, MemoryLetters};
pub use settings::{ConsumerSettings, DeadLetterSettings, GuardSettings, InboxSettings, Refused};

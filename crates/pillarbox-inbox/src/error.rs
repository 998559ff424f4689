//! What can go wrong on the consumer's side.

use std::time::Duration;

use pillarbox_core::{
    engine::OutboxError,
    port::{LetterStatus, SinkError, StoreError},
};

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting has a value that it can't have.
    #[error("{0}")]
    Setting(String),
    /// The name of a consumer, or the id of a message, can't be stored.
    #[error("{what} has {bytes} bytes: allowed is 1 to {most}")]
    Name {
        /// Which.
        what: &'static str,
        /// How many it has.
        bytes: usize,
        /// How many it may have.
        most: usize,
    },
    /// A redelivery could come after the inbox has forgotten the message.
    #[error(
        "the inbox remembers messages for {window:?}, and a message may be under way for {horizon:?}: {arithmetic}. Set a window \
         of {horizon:?} or more, or fewer attempts, shorter pauses, a shorter timeout"
    )]
    Window {
        /// How long the inbox remembers.
        window: Duration,
        /// How long a message may be under way.
        horizon: Duration,
        /// How that adds up.
        arithmetic: String,
    },
    /// The tables are kept by a shorter window than this program needs.
    #[error(
        "the inbox's tables were made for a window of {agreed:?}, and this program asks for {asked:?}: all consumers of one \
         inbox have one window. Set it to {agreed:?}, or give this consumer an inbox of its own, by another prefix"
    )]
    OtherWindow {
        /// How long the tables remember.
        agreed: Duration,
        /// How long they should.
        asked: Duration,
    },
    /// The handlers can't be used.
    #[error("the handlers can't be used")]
    Handlers(#[from] OutboxError),
    /// The database failed.
    #[error("the consumer's database failed")]
    Store(#[from] StoreError),
    /// The broker failed.
    #[error("the broker failed: {0}")]
    Broker(#[from] SinkError),
    /// There is no such letter.
    #[error("there is no dead letter {0}")]
    NotFound(String),
    /// There is something in the letter's place that is none.
    #[error(
        "dead letter {id} can't be read: it was changed by another program, or written by a newer version of this one. Look at it \
         with the store's own tools, mend it or remove it there"
    )]
    Unreadable {
        /// Which.
        id: String,
        /// What the store says.
        source: StoreError,
    },
    /// The letter is not in the state that the action needs.
    #[error("dead letter {id} is {status}, and only PENDING ones can be {action}")]
    NotPending {
        /// Which letter.
        id: String,
        /// Where it stands.
        status: LetterStatus,
        /// What was asked.
        action: &'static str,
    },
    /// It was replayed as often as may be.
    #[error(
        "dead letter {id} was replayed {replays} times and died each time, and an edit does not change that: mend the cause, write \
         the event anew if it is still needed, and discard the letter"
    )]
    TooManyReplays {
        /// Which letter.
        id: String,
        /// How often.
        replays: u32,
    },
    /// Somebody else is at it.
    #[error("dead letter {0} is being replayed by somebody else right now")]
    Busy(String),
    /// There is no way back to the broker.
    #[error(
        "dead letters can't be replayed here: no sink was given to send them through. Give one with DeadLetters::sink; \
         `pillarbox dead` and `pillarbox admin` take one with --config FILE or --broker URL"
    )]
    NoSink,
    /// The new payload can't stand for the old one.
    #[error("the payload can't be changed: {0}")]
    Payload(String),
}

//! Where a relay sends messages: a broker, a web hook, a terminal.

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use bytes::Bytes;

use super::BoxFuture;
use crate::domain::{EventId, Key};

/// A way out of the outbox. An adapter is one broker's client behind this trait; the exam that every adapter passes is
/// `pillarbox_testkit::sinks`.
pub trait Sink: Send + Sync + 'static {
    /// What it promises, and what it can take.
    fn abilities(&self) -> Abilities;

    /// How it likes to be called.
    fn pace(&self) -> Pace {
        Pace::default()
    }

    /// Sends messages, and waits for the receiver's word on each: one answer a message, in the order of the batch. No two
    /// messages of a batch have the same key, so that they may be under way at once; who calls again with a key has the
    /// answer to the message before. Is called again while batches are under way, as often as its [pace](Self::pace) says.
    ///
    /// A message that it refuses by itself, before anything is sent, is [unfit](SinkError::unfit): it tells nothing of the
    /// receiver, who may be down. One that the receiver refuses is [rejected](SinkError::rejected).
    ///
    /// Connects if need be, and gives up after a time of its own: a receiver that does not answer is
    /// [unavailable](SinkError::unavailable). May be dropped at any await; what was under way then may arrive or not.
    fn send<'a>(&'a self, batch: &'a [Message]) -> BoxFuture<'a, Vec<Sent>>;

    /// Tries the connection, and whether what it was set up for is there.
    fn check(&self) -> BoxFuture<'_, Sent>;

    /// Ends the connection in an orderly way. What is sent afterwards opens it again.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// The receiver's word on one message: it has it, or why it has not.
pub type Sent = Result<(), SinkError>;

/// What a sink promises, and what it can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// What its "yes" means.
    pub confirms: Confirms,
    /// The most bytes that a payload may have, if it knows.
    pub largest: Option<usize>,
    /// Whether messages of one key arrive in the order in which they were confirmed.
    pub keeps_order: bool,
    /// Whether the receiver drops a second message of the same id by itself, within its window.
    pub dedupes: bool,
}

/// What a sink's "yes" means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirms {
    /// The receiver has stored the message, as safely as it is set up to.
    Stored,
    /// The receiver has it; whether it keeps it is its own affair.
    Received,
}

/// How a sink likes to be called. The caller may do less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The most messages of a batch. One that sends each by itself says 1: no answer waits for another then.
    pub batch: usize,
    /// How many batches may be under way at once.
    pub batches: usize,
}

/// Any number of messages, and two batches: one is on its way while the receiver deals with the other.
impl Default for Pace {
    fn default() -> Self {
        Self { batch: usize::MAX, batches: 2 }
    }
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Where to: a topic, a subject, a routing key, a stream, a path.
    pub topic: Arc<str>,
    /// What has to stay in order, and chooses the partition where there are any.
    pub key: Option<Key>,
    /// The event's id: where the receiver can drop a second one of the same id, it is told this.
    pub id: EventId,
    /// Of the payload.
    pub content_type: Arc<str>,
    /// CloudEvents attributes that travel beside the payload, under their bare names (`id`, `source`, `type` ...): each
    /// adapter writes them as the protocol's binding says. None if the payload itself has them.
    pub attributes: Vec<(Cow<'static, str>, String)>,
    /// Further headers, `traceparent` among them.
    pub headers: Vec<(String, String)>,
    /// The body, to the byte.
    pub payload: Bytes,
}

/// Why a message was not taken.
#[derive(Clone, PartialEq, Eq)]
pub struct SinkError {
    kind: SinkErrorKind,
    words: String,
    retry_after: Option<Duration>,
    unsent: bool,
}

/// Whose fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkErrorKind {
    /// Nobody answers, or not in time: no message would get through. Opens the circuit, and uses up no attempt.
    Unavailable,
    /// This message failed this time.
    Failed,
    /// The receiver will never take this message.
    Rejected,
}

impl SinkError {
    /// Nobody answers.
    pub fn unavailable(words: impl fmt::Display) -> Self {
        Self::new(SinkErrorKind::Unavailable, words)
    }

    /// It did not work this time.
    pub fn failed(words: impl fmt::Display) -> Self {
        Self::new(SinkErrorKind::Failed, words)
    }

    /// It never will; with the receiver's own words.
    pub fn rejected(words: impl fmt::Display) -> Self {
        Self::new(SinkErrorKind::Rejected, words)
    }

    /// It never will, and the sink itself knows: nothing was sent. So it tells nothing of the receiver, and a circuit stays
    /// as it is.
    pub fn unfit(words: impl fmt::Display) -> Self {
        Self { unsent: true, ..Self::rejected(words) }
    }

    fn new(kind: SinkErrorKind, words: impl fmt::Display) -> Self {
        Self { kind, words: words.to_string(), retry_after: None, unsent: false }
    }

    /// The receiver has said when to come back.
    #[must_use]
    pub fn after(mut self, span: Duration) -> Self {
        self.retry_after = Some(span);
        self
    }

    /// Whose fault it is.
    pub fn kind(&self) -> SinkErrorKind {
        self.kind
    }

    /// Whether the receiver was not asked.
    pub fn is_unsent(&self) -> bool {
        self.unsent
    }

    /// When to come back, if the receiver has said so.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }
}

impl fmt::Display for SinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl fmt::Debug for SinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.words)
    }
}

impl std::error::Error for SinkError {}

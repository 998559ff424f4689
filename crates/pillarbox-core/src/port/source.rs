//! Where a consumer receives messages from: a broker.

use bytes::Bytes;

use super::{BoxFuture, SinkError};
use crate::domain::Key;

/// A way in from a broker. An adapter is one broker's client behind this trait; the exam that every adapter passes is
/// `pillarbox_testkit::sources`.
///
/// A message that was received and not acknowledged comes again, to this consumer or another one of its group: when the
/// connection is lost, when the process dies, or after a time of the broker's.
pub trait Source: Send + Sync + 'static {
    /// What it is called in logs and metrics: the stream, the queue, the subscription.
    fn name(&self) -> &str;

    /// What it promises.
    fn gives(&self) -> Gives;

    /// Waits for messages, and gives those that are there, at most so many, in the order of the broker. Empty: none came
    /// within a time of its own. Connects if need be.
    ///
    /// May be dropped at any await; what had come in by then is given by the next call, or comes again.
    fn receive(&self, most: usize) -> BoxFuture<'_, Result<Vec<Received>, SinkError>>;

    /// Tells the broker that messages are dealt with, in any order: one answer each. After an error a message may come
    /// again.
    ///
    /// A ticket that is not good any more is an error, and no harm. Whether it outlives its connection is the broker's affair:
    /// those of NATS, Redis and Kafka do, and acknowledge by the next one; those of RabbitMQ and MQTT end with it, since their
    /// messages come again by the next one.
    fn acknowledge<'a>(&'a self, tickets: &'a [Ticket]) -> BoxFuture<'a, Vec<Result<(), SinkError>>>;

    /// Gives messages back, undone: they come again, to whoever is there. What can't be given back comes again in the way of
    /// its broker, sooner or later.
    fn give_back<'a>(&'a self, tickets: &'a [Ticket]) -> BoxFuture<'a, ()>;

    /// Says that messages are still being dealt with, where the broker would hand them to others after a time. Called
    /// often enough for [`Gives::again_after`].
    fn hold<'a>(&'a self, tickets: &'a [Ticket]) -> BoxFuture<'a, ()> {
        let _ = tickets;
        Box::pin(async {})
    }

    /// How many messages wait at the broker for this group of consumers, if it says.
    fn lag(&self) -> BoxFuture<'_, Result<Option<u64>, SinkError>> {
        Box::pin(async { Ok(None) })
    }

    /// Tries the connection, and whether what it was set up for is there.
    fn check(&self) -> BoxFuture<'_, Result<(), SinkError>>;

    /// Ends the connection in an orderly way.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// What a source promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gives {
    /// Whether the messages of one key come in the order in which they were sent, as long as no fault interferes and one
    /// consumer alone has them.
    pub order: bool,
    /// After this time a message that was not acknowledged is given to others, unless it is [held](Source::hold).
    pub again_after: Option<std::time::Duration>,
    /// Whether [`Received::deliveries`] survives the death of a consumer.
    pub counts: bool,
}

/// What a source knows a received message by. Not to be used with another source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// One message as it came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// For the acknowledgement.
    pub ticket: Ticket,
    /// Which delivery of this message it is, from 1, as far as the broker knows.
    pub deliveries: u32,
    /// The message.
    pub message: Incoming,
}

/// A message on its way to a handler.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Incoming {
    /// Where it was sent to, and where a replay goes: a topic, a subject, a routing key, a stream.
    pub topic: String,
    /// What has to stay in order.
    pub key: Option<Key>,
    /// The id that the broker's own protocol has for it, for messages that are no CloudEvents.
    pub id: Option<String>,
    /// Of the payload; empty if it was not said.
    pub content_type: String,
    /// CloudEvents attributes under their bare names, as they travelled beside the payload.
    pub attributes: Vec<(String, String)>,
    /// All other headers.
    pub headers: Vec<(String, String)>,
    /// The body, to the byte.
    pub payload: Bytes,
}

impl Incoming {
    /// A CloudEvents attribute that travelled beside the payload.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(other, _)| other == name).map(|(_, value)| &**value)
    }

    /// A header; letter case does not matter.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| &**value)
    }
}

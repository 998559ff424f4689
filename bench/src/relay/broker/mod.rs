//! What differs from broker to broker: its start, the relay's sink, the client's own loop, and who listens.

mod http;
#[cfg(feature = "kafka")]
mod kafka;
mod mqtt;
mod nats;
mod rabbitmq;
mod redis;
mod stdout;

use std::{process::Stdio, time::Duration};

use pillarbox_core::port::Message;

#[cfg(feature = "kafka")]
pub(super) use self::kafka::Kafka;
pub(super) use self::{http::Http, mqtt::Mqtt, nats::Nats, rabbitmq::RabbitMq, redis::Redis, stdout::Stdout};
use super::arrivals::Arrivals;
use crate::Result;

/// A private broker for the run.
pub(super) trait Broker: Sized {
    const NAMES: Names;
    /// Of these the client's loop takes the fastest.
    const WINDOWS: &'static [usize];
    /// What a window is.
    const WINDOW: &'static str = "messages under way:";
    /// Whether it keeps messages for who listens later. One that does not has a listener in all rounds, the limit's too.
    const KEEPS: bool;
    /// What the relay waits for.
    const CONFIRM: &'static str = "the broker's word";
    /// How a subscriber sees a message.
    const SEEN: &'static str;
    /// Whether a target is about it.
    const IS_REAL: bool = true;
    /// Whether its client keeps memory of its own, for which nothing is promised.
    const OWN_MEMORY: bool = false;

    async fn start() -> Result<Self>;

    /// What it is, how it is set, and where messages go.
    fn place(&self) -> Result<String>;

    /// The settings of the relay's sink.
    fn sink(&self) -> Vec<String>;

    /// The relay's standard output.
    fn output(&self) -> Result<Stdio> {
        Ok(Stdio::null())
    }

    /// Makes a place without messages, where none of these was ever seen.
    async fn clear(&self) -> Result<()>;

    /// The client's own best loop: sends all messages, and has the broker's word on each; how long it took from the first
    /// message to the last word.
    async fn limit(&self, messages: &[Message], window: usize) -> Result<Duration>;

    /// All messages of the place, those that are there first.
    async fn listen(&self) -> Result<Arrivals>;
}

/// The names of a broker's figures.
#[derive(Clone, Copy, Debug)]
pub(super) struct Names {
    pub(super) rate: &'static str,
    pub(super) memory: &'static str,
    pub(super) latency: &'static str,
    pub(super) start: &'static str,
}

/// The settings of the relay's sink, of this type.
fn sink(kind: &str, settings: &[(&str, String)]) -> Vec<String> {
    let all = settings.iter().map(|(name, value)| format!("sinks.broker.{name}={value}"));
    std::iter::once(format!("sinks.broker.type={kind}")).chain(all).collect()
}

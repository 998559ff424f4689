//! NATS JetStream.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use async_nats::{
    HeaderMap,
    header::NATS_MESSAGE_ID,
    jetstream::{
        self, Context,
        consumer::{DeliverPolicy, push::OrderedConfig},
        message::PublishMessage,
        stream::Config,
    },
};
use futures_util::StreamExt as _;
use pillarbox_core::port::Message;
use pillarbox_servers::Nats as Server;

use super::{Arrivals, Broker, Names, sink};
use crate::{Result, backend::EVENT_TYPE};

const STREAM: &str = "BENCH";

/// A private NATS server.
#[derive(Debug)]
pub(in crate::relay) struct Nats {
    server: Server,
}

impl Nats {
    async fn connect(&self) -> Result<Context> {
        Ok(jetstream::new(async_nats::connect(self.server.url()).await?))
    }
}

impl Broker for Nats {
    const NAMES: Names =
        Names { rate: "relay_nats", memory: "nats_memory", latency: "nats_latency", start: "nats_start" };
    const WINDOWS: &'static [usize] = &[250, 500, 1_000, 2_000];
    const KEEPS: bool = true;
    const SEEN: &'static str = "seen by an ordered consumer";

    async fn start() -> Result<Self> {
        Ok(Self { server: Server::start()? })
    }

    fn place(&self) -> Result<String> {
        Ok(format!("NATS {}, a stream in a file, with Nats-Msg-Id", self.server.version()?))
    }

    fn sink(&self) -> Vec<String> {
        sink("nats", &[("url", self.server.url()), ("stream.name", STREAM.into())])
    }

    /// A new stream, which knows no ids of the one before.
    async fn clear(&self) -> Result<()> {
        let context = self.connect().await?;
        // There is none at first.
        let _ = context.delete_stream(STREAM).await;
        let config = Config {
            name: STREAM.into(),
            subjects: vec![EVENT_TYPE.into()],
            duplicate_window: Duration::from_mins(2),
            ..Config::default()
        };
        context.create_stream(config).await?;
        Ok(())
    }

    async fn limit(&self, messages: &[Message], window: usize) -> Result<Duration> {
        let context = self.connect().await?;
        let begun = Instant::now();
        let mut under_way = VecDeque::with_capacity(window);
        for message in messages {
            if under_way.len() == window
                && let Some(first) = under_way.pop_front()
            {
                acknowledged(first).await?;
            }
            under_way.push_back(context.send_publish(message.topic.to_string(), publish(message)).await?);
        }
        for rest in under_way {
            acknowledged(rest).await?;
        }
        Ok(begun.elapsed())
    }

    async fn listen(&self) -> Result<Arrivals> {
        let context = self.connect().await?;
        let config = OrderedConfig {
            deliver_subject: context.client().new_inbox(),
            deliver_policy: DeliverPolicy::All,
            ..OrderedConfig::default()
        };
        let consumer = context.get_stream(STREAM).await?.create_consumer(config).await?;
        let mut messages = consumer.messages().await?;
        Ok(Arrivals::of(async move |inbox| {
            while let Some(message) = messages.next().await {
                inbox.put(&message?.payload);
            }
            Ok(())
        }))
    }
}

async fn acknowledged(answer: jetstream::context::PublishAckFuture) -> Result<()> {
    if answer.await?.duplicate { Err("a message counts as one that was there".into()) } else { Ok(()) }
}

/// With the headers that the relay's message has.
fn publish(message: &Message) -> PublishMessage {
    let mut headers = HeaderMap::new();
    headers.insert(NATS_MESSAGE_ID, message.id.to_string());
    headers.insert("content-type", &*message.content_type);
    for (name, value) in &message.attributes {
        headers.insert(format!("ce-{name}"), value.as_str());
    }
    PublishMessage::build().payload(message.payload.clone()).headers(headers)
}

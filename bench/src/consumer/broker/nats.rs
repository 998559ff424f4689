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
        consumer::{AckPolicy, Consumer, PullConsumer, pull},
        kv::{self, Store},
        message::PublishMessage,
        stream,
    },
};
use futures_util::StreamExt as _;
use pillarbox_core::port::Message;
use pillarbox_inbox::Guard;
use pillarbox_nats::{Bucket, NatsSource, Options, Subscription};
use pillarbox_servers::Nats as Server;

use super::{Broker, names};
use crate::{
    Result,
    backend::EVENT_TYPE,
    consumer::guard::{self, BY, CONSUMER, Marks},
};

const STREAM: &str = "BENCH";
const BUCKET: &str = "bench_guard";
const HOUR: Duration = Duration::from_hours(1);
/// So many may be out.
const MOST_OUT: u32 = 50_000;

/// A private NATS server.
#[derive(Debug)]
pub(in crate::consumer) struct Nats {
    server: Server,
}

impl Nats {
    pub(in crate::consumer) fn start() -> Result<Self> {
        Ok(Self { server: Server::start()? })
    }

    async fn connect(&self) -> Result<Context> {
        Ok(jetstream::new(async_nats::connect(self.server.url()).await?))
    }
}

impl Broker for Nats {
    const NAME: &'static str = names::NATS;
    type Source = NatsSource;
    const WINDOWS: &'static [usize] = &[200, 500, 1_000, 5_000];

    fn place(&self, window: usize) -> Result<String> {
        Ok(format!(
            "NATS {}, a stream in a file; the limit: a pull consumer's stream of messages in batches of {window}, each \
             acknowledged, the last one with an answer",
            self.server.version()?
        ))
    }

    async fn fill(&self, messages: &[Message]) -> Result<()> {
        let context = self.connect().await?;
        let config =
            stream::Config { name: STREAM.into(), subjects: vec![EVENT_TYPE.into()], ..stream::Config::default() };
        context.create_stream(config).await?;
        let mut under_way = VecDeque::new();
        for message in messages {
            if under_way.len() == 1_000
                && let Some(first) = under_way.pop_front()
            {
                first.await?;
            }
            under_way.push_back(context.send_publish(message.topic.to_string(), publish(message)).await?);
        }
        for rest in under_way {
            rest.await?;
        }
        Ok(())
    }

    async fn group(&self, name: &str) -> Result<()> {
        let config = pull::Config {
            durable_name: Some(name.into()),
            ack_policy: AckPolicy::Explicit,
            max_ack_pending: MOST_OUT.into(),
            ..pull::Config::default()
        };
        let stream = self.connect().await?.get_stream(STREAM).await?;
        let _: Consumer<pull::Config> = stream.create_consumer(config).await?;
        Ok(())
    }

    fn source(&self, group: &str) -> Result<NatsSource> {
        let subscription = Subscription::new(STREAM, group).most_out(MOST_OUT);
        Ok(Options::new(self.server.url()).subscribe(subscription)?)
    }

    async fn limit(&self, group: &str, messages: usize, window: usize) -> Result<Duration> {
        let context = self.connect().await?;
        let consumer: PullConsumer = context.get_stream(STREAM).await?.get_consumer(group).await?;
        let begun = Instant::now();
        let mut coming = consumer.stream().max_messages_per_batch(window).messages().await?;
        for number in 1..=messages {
            let message = coming.next().await.ok_or("the messages have ended")??;
            if number == messages {
                message.double_ack().await?;
            } else {
                message.ack().await?;
            }
        }
        Ok(begun.elapsed())
    }

    async fn left(&self, group: &str) -> Result<u64> {
        let stream = self.connect().await?.get_stream(STREAM).await?;
        let info = stream.consumer_info(group).await?;
        stream.delete_consumer(group).await?;
        Ok(info.num_pending + info.num_ack_pending as u64)
    }
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

impl guard::Place for Nats {
    const NAMES: [&'static str; 2] = guard::names::NATS;
    type Bare = Bare;
    type Kept = ();

    async fn bare(&self, _callers: usize) -> Result<Bare> {
        // In a bucket that a guard has made.
        self.guard().await?.0.try_process(CONSUMER, "first").await?;
        Ok(Bare(self.connect().await?.get_key_value(BUCKET).await?))
    }

    async fn guard(&self) -> Result<(Guard, ())> {
        // There is none at first.
        let _ = self.connect().await?.delete_stream(format!("KV_{BUCKET}")).await;
        let guard = Options::new(self.server.url()).guard(Bucket::named(BUCKET), HOUR)?;
        Ok((Guard::new(guard).ttl(HOUR), ()))
    }

    fn note(&self) -> String {
        "the client's own create of a key, all on one connection".into()
    }
}

/// A bucket by its client.
pub(in crate::consumer) struct Bare(Store);

impl Marks for Bare {
    async fn mark(&self, _caller: usize, message: &str) -> Result<bool> {
        match self.0.create(format!("{CONSUMER}.{message}"), BY.into()).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == kv::CreateErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

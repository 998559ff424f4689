//! Redis Streams.

use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use pillarbox_core::port::Message;
use pillarbox_servers::Redis as Server;
use redis::{
    AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo as _, Pipeline, Value,
    aio::MultiplexedConnection,
    streams::{StreamReadOptions, StreamReadReply},
};

use super::{Arrivals, Broker, Names, sink};
use crate::{Result, backend::EVENT_TYPE};

/// Each with a pipeline under way. Redis writes to the disk for every 16 KiB that it reads of one.
const CONNECTIONS: usize = 8;

/// A private Redis.
#[derive(Debug)]
pub(in crate::relay) struct Redis {
    server: Server,
}

impl Redis {
    async fn connect(&self) -> Result<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let info = self.server.url().into_connection_info()?;
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let client = Client::open(info.set_tcp_settings(tcp))?;
        Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
    }
}

impl Broker for Redis {
    const NAMES: Names =
        Names { rate: "relay_redis", memory: "redis_memory", latency: "redis_latency", start: "redis_start" };
    const WINDOWS: &'static [usize] = &[25, 100, 250, 500, 1_000];
    const WINDOW: &'static str = "8 connections with pipelines of";
    const KEEPS: bool = true;
    const SEEN: &'static str = "seen by XREAD";

    async fn start() -> Result<Self> {
        Ok(Self { server: Server::start()? })
    }

    fn place(&self) -> Result<String> {
        Ok(format!("Redis {}, one stream, appendfsync always", self.server.version()?))
    }

    fn sink(&self) -> Vec<String> {
        sink("redis", &[("url", self.server.url())])
    }

    async fn clear(&self) -> Result<()> {
        let mut connection = self.connect().await?;
        redis::cmd("DEL").arg(EVENT_TYPE).query_async::<Value>(&mut connection).await?;
        // So that the log of the rounds before is not rewritten in the middle of this one.
        redis::cmd("CONFIG")
            .arg("SET")
            .arg("auto-aof-rewrite-percentage")
            .arg(0)
            .query_async::<Value>(&mut connection)
            .await?;
        Ok(())
    }

    async fn limit(&self, messages: &[Message], window: usize) -> Result<Duration> {
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            connections.push(self.connect().await?);
        }
        let begun = Instant::now();
        let pipelines = stream::iter(messages.chunks(window)).zip(stream::iter(connections.iter().cycle()));
        let asking = pipelines.map(|(chunk, connection)| async move {
            let mut pipeline = Pipeline::with_capacity(chunk.len());
            for message in chunk {
                pipeline.add_command(append(message));
            }
            pipeline.query_async::<Vec<Value>>(&mut connection.clone()).await
        });
        asking.buffered(CONNECTIONS).try_for_each(async |_| Ok(())).await?;
        Ok(begun.elapsed())
    }

    async fn listen(&self) -> Result<Arrivals> {
        let mut connection = self.connect().await?;
        Ok(Arrivals::of(async move |inbox| {
            let options = StreamReadOptions::default().count(1_000).block(1_000);
            let mut last = "0".to_owned();
            loop {
                let mut asked = redis::cmd("XREAD");
                asked.arg(&options).arg("STREAMS").arg(EVENT_TYPE).arg(&last);
                let read: Option<StreamReadReply> = asked.query_async(&mut connection).await?;
                for entry in read.into_iter().flat_map(|reply| reply.keys).flat_map(|stream| stream.ids) {
                    inbox.put(&entry.get::<Vec<u8>>("payload").unwrap_or_default());
                    last = entry.id;
                }
            }
        }))
    }
}

/// With the fields that the relay's message has.
fn append(message: &Message) -> Cmd {
    let mut command = redis::cmd("XADD");
    command.arg(&*message.topic).arg("*").arg("id").arg(message.id.to_string());
    command.arg("key").arg(message.key.as_ref().map_or("", |key| key.as_str()));
    command.arg("content-type").arg(&*message.content_type);
    for (name, value) in &message.attributes {
        command.arg(format!("ce_{name}")).arg(value);
    }
    command.arg("payload").arg(&message.payload[..]);
    command
}

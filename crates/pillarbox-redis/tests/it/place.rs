//! Streams of a test's own on the shared server.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use pillarbox_core::port::{Message, Sent, Sink};
use pillarbox_redis::{Options, Persistence, RedisSink, RedisSource, Subscription};
use pillarbox_testkit::{
    servers::{self, Proxy, Shared},
    sinks::{ANSWER_WITHIN, Place, Received},
    sources::{self, WAIT},
};
use redis::{
    Client,
    aio::MultiplexedConnection,
    streams::{StreamId, StreamRangeReply},
};

pub(crate) struct Redis {
    proxy: Proxy,
    topic: Arc<str>,
    refused: Arc<str>,
    url: String,
    // If it is not the shared one.
    server: Option<servers::Redis>,
}

impl Redis {
    /// What sinks of the exam are made with.
    pub(crate) fn options(&self) -> Options {
        let url = self.proxy.url(&self.url);
        Options::new(url).answer_within(ANSWER_WITHIN).largest(1024 * 1024).persistence(Persistence::Always)
    }

    async fn on(url: String, server: Option<servers::Redis>) -> Self {
        let name = fastrand::u64(..);
        let (topic, refused) = (format!("pillarbox-{name:x}"), format!("pillarbox-{name:x}-refused"));
        let () = redis::cmd("SET").arg(&refused).arg("text").query_async(&mut connect(&url).await).await.expect("SET");
        let proxy = Proxy::to_url(&url).expect("a proxy");
        Self { proxy, topic: topic.into(), refused: refused.into(), url, server }
    }

    async fn give_memory(&self, bytes: u32) {
        let mut command = redis::cmd("CONFIG");
        command.arg("SET").arg("maxmemory").arg(bytes);
        let () = command.query_async(&mut connect(&self.url).await).await.expect("CONFIG SET");
    }
}

impl Place for Redis {
    type Sink = RedisSink;

    async fn fresh() -> Self {
        Self::on(Shared::Redis.url(), None).await
    }

    fn sink(&self) -> RedisSink {
        self.options().open().expect("a sink")
    }

    fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    fn topic(&self) -> Arc<str> {
        Arc::clone(&self.topic)
    }

    fn refused(&self) -> Arc<str> {
        Arc::clone(&self.refused)
    }

    async fn failing() -> Result<Self, &'static str> {
        let place = <Self as sources::Place>::private().await;
        place.give_memory(1).await;
        Ok(place)
    }

    async fn relent(&self) {
        self.give_memory(0).await;
    }

    fn unlimited(&self) -> Result<(RedisSink, usize), &'static str> {
        Err("Redis ends the connection at more than 512 MiB, which is the most that the sink can be told to take")
    }

    async fn received(&self) -> Vec<Received> {
        read(&self.url, &self.topic).await
    }
}

impl sources::Place for Redis {
    type Source = RedisSource;

    async fn private() -> Self {
        let server = servers::Redis::start().expect("a server");
        Self::on(server.url(), Some(server)).await
    }

    fn restart(&mut self) {
        let server = self.server.as_mut().expect("a server of its own");
        server.kill();
        server.start_again().expect("to start again");
    }

    fn source(&self, group: &str, again_after: Duration) -> RedisSource {
        let subscription = Subscription::new([&*self.topic], group).again_after(again_after).wait(WAIT);
        self.options().subscribe(subscription).expect("a source")
    }

    async fn send_plain(&self, payload: &[u8]) {
        let mut command = redis::cmd("XADD");
        command.arg(&*self.topic).arg("*").arg("payload").arg(payload);
        let _: String = command.query_async(&mut connect(&self.url).await).await.expect("XADD");
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        if self.server.is_some() {
            return;
        }
        let client = Client::open(Shared::Redis.url()).expect("a client");
        let mut connection = client.get_connection().expect("a connection");
        let () = redis::cmd("DEL").arg(&*self.topic).arg(&*self.refused).query(&mut connection).expect("DEL");
    }
}

pub(crate) async fn connect(url: &str) -> MultiplexedConnection {
    let client = Client::open(url).expect("a client");
    client.get_multiplexed_async_connection().await.expect("a connection")
}

/// Every entry of a stream.
pub(crate) async fn read(url: &str, stream: &str) -> Vec<Received> {
    let mut question = redis::cmd("XRANGE");
    question.arg(stream).arg("-").arg("+");
    let reply: StreamRangeReply = question.query_async(&mut connect(url).await).await.expect("XRANGE");
    reply.ids.iter().map(received).collect()
}

fn received(entry: &StreamId) -> Received {
    let text = |name: &str| entry.get::<String>(name);
    let prefixed = |prefix: &str| -> BTreeMap<String, String> {
        let names = entry.map.keys().filter_map(|name| Some((name, name.strip_prefix(prefix)?)));
        names.map(|(name, bare)| (bare.to_owned(), text(name).expect("text"))).collect()
    };
    Received {
        id: text("id").expect("an id"),
        key: text("key"),
        content_type: text("content-type"),
        attributes: prefixed("ce_"),
        headers: prefixed("header_"),
        payload: entry.get::<Vec<u8>>("payload").expect("a payload").into(),
    }
}

/// Sends one message.
pub(crate) async fn send_one(sink: &RedisSink, message: Message) -> Sent {
    let mut answers = sink.send(&[message]).await;
    assert_eq!(answers.len(), 1);
    answers.remove(0)
}

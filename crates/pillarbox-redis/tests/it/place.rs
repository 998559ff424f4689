//! Streams of a test's own on the shared server.

use std::{collections::BTreeMap, sync::Arc};

use pillarbox_core::port::{Message, Sent, Sink};
use pillarbox_redis::{Options, Persistence, RedisSink};
use pillarbox_testkit::{
    servers::{Proxy, Shared},
    sinks::{ANSWER_WITHIN, Place, Received},
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
}

impl Redis {
    /// What sinks of the exam are made with.
    pub(crate) fn options(&self) -> Options {
        let url = self.proxy.url(&Shared::Redis.url());
        Options::new(url).answer_within(ANSWER_WITHIN).largest(1024 * 1024).persistence(Persistence::Always)
    }
}

impl Place for Redis {
    type Sink = RedisSink;

    async fn fresh() -> Self {
        let url = Shared::Redis.url();
        let name = fastrand::u64(..);
        let (topic, refused) = (format!("pillarbox-{name:x}"), format!("pillarbox-{name:x}-refused"));
        let () = redis::cmd("SET").arg(&refused).arg("text").query_async(&mut connect(&url).await).await.expect("SET");
        Self { proxy: Proxy::to_url(&url).expect("a proxy"), topic: topic.into(), refused: refused.into() }
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

    async fn received(&self) -> Vec<Received> {
        read(&Shared::Redis.url(), &self.topic).await
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
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

//! A queue of one's own, and what arrived there.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties,
    options::{BasicGetOptions, BasicPublishOptions, QueueDeclareOptions, QueueDeleteOptions},
    types::{AMQPValue, FieldTable, ShortString},
};
use pillarbox_core::{
    Event,
    port::{Message, SinkErrorKind},
};
use pillarbox_rabbitmq::{Options, PREFIX, RabbitMqSink, RabbitMqSource, Subscription, Unroutable};
use pillarbox_testkit::{
    servers::{Proxy, RabbitMq, Shared},
    sinks::{ANSWER_WITHIN, Place, Received},
    sources::{self, WAIT},
};

pub(crate) struct Queue {
    name: Arc<str>,
    proxy: Proxy,
    // The server drops the queue when nobody has used it for a while; this connection does not count.
    connection: Connection,
    url: String,
    // If it is not the shared one.
    server: Option<RabbitMq>,
}

impl Place for Queue {
    type Sink = RabbitMqSink;

    async fn fresh() -> Self {
        Self::on(Shared::RabbitMq.url(), None).await
    }

    fn sink(&self) -> RabbitMqSink {
        // With retries, as by default, nothing that RabbitMQ refuses by its topic would be refused for good.
        self.options().unroutable(Unroutable::Reject).open().unwrap()
    }

    fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    fn topic(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    fn refused(&self) -> Arc<str> {
        format!("{}-nobody", self.name).into()
    }

    async fn failing() -> Result<Self, &'static str> {
        let place = Self::fresh().await;
        let full =
            [("x-max-length", AMQPValue::LongInt(0)), ("x-overflow", AMQPValue::LongString("reject-publish".into()))];
        place.declare_again(&full).await;
        Ok(place)
    }

    async fn relent(&self) {
        self.declare_again(&[]).await;
    }

    fn unlimited(&self) -> Result<(RabbitMqSink, usize), &'static str> {
        Err("RabbitMQ takes 128 MiB: what is larger is sent once, to a server of its own, in the module `private`")
    }

    async fn received(&self) -> Vec<Received> {
        received(&self.connection, &self.name).await
    }
}

impl sources::Place for Queue {
    type Source = RabbitMqSource;

    async fn private() -> Self {
        let server = RabbitMq::start().unwrap();
        Self::on(server.url(), Some(server)).await
    }

    fn restart(&mut self) {
        let server = self.server.as_mut().unwrap();
        server.kill();
        server.start_again().unwrap();
    }

    fn source(&self, _group: &str, _again_after: Duration) -> RabbitMqSource {
        self.options().subscribe(Subscription::new(&*self.name).wait(WAIT)).unwrap()
    }

    async fn send_plain(&self, payload: &[u8]) {
        let (exchange, options) = (ShortString::default(), BasicPublishOptions::default());
        let sent = self.channel().await;
        let sent =
            sent.basic_publish(exchange, (&*self.name).into(), options, payload, BasicProperties::default()).await;
        sent.unwrap().await.unwrap();
    }
}

impl Queue {
    /// Through the proxy.
    pub(crate) fn options(&self) -> Options {
        Options::new(self.proxy.url(&self.url)).answer_within(ANSWER_WITHIN)
    }

    async fn on(url: String, server: Option<RabbitMq>) -> Self {
        let connection = connect(&url).await;
        let name = name();
        declare(&connection.create_channel().await.unwrap(), &name, &[]).await;
        Self { name, proxy: Proxy::to_url(&url).unwrap(), connection, url, server }
    }

    /// With other settings, and empty.
    async fn declare_again(&self, settings: &[(&str, AMQPValue)]) {
        let channel = self.channel().await;
        channel.queue_delete((&*self.name).into(), QueueDeleteOptions::default()).await.unwrap();
        declare(&channel, &self.name, settings).await;
    }

    /// A channel that does not come by the proxy.
    pub(crate) async fn channel(&self) -> Channel {
        self.connection.create_channel().await.unwrap()
    }
}

pub(crate) fn name() -> Arc<str> {
    let event = Event::builder("Queue").json(&()).build().unwrap();
    format!("pillarbox-test-{}", event.id()).into()
}

pub(crate) async fn connect(url: &str) -> Connection {
    Connection::connect(url, ConnectionProperties::default()).await.unwrap()
}

pub(crate) async fn declare(channel: &Channel, name: &str, settings: &[(&str, AMQPValue)]) {
    let mut arguments = FieldTable::default();
    arguments.insert("x-expires".into(), AMQPValue::LongInt(120_000));
    for (name, value) in settings {
        arguments.insert((*name).into(), value.clone());
    }
    let options = QueueDeclareOptions { durable: true, ..Default::default() };
    channel.queue_declare(name.into(), options, arguments).await.unwrap();
}

/// All that is in the queue, and stays there.
pub(crate) async fn received(connection: &Connection, queue: &str) -> Vec<Received> {
    let channel = connection.create_channel().await.unwrap();
    let mut all = Vec::new();
    while let Some(message) = channel.basic_get(queue.into(), BasicGetOptions::default()).await.unwrap() {
        let properties = &message.delivery.properties;
        assert_eq!(*properties.delivery_mode(), Some(2), "not persistent");
        let text = |text: &Option<ShortString>| text.as_ref().map(ToString::to_string);
        let mut received = Received {
            id: text(properties.message_id()).unwrap_or_default(),
            key: None,
            content_type: text(properties.content_type()),
            attributes: std::collections::BTreeMap::new(),
            headers: std::collections::BTreeMap::new(),
            payload: Bytes::from(message.delivery.data.clone()),
        };
        for (name, value) in properties.headers().as_ref().unwrap().inner() {
            let AMQPValue::LongString(value) = value else { panic!("{name} is {value:?}") };
            let value = String::from_utf8(value.as_bytes().to_vec()).unwrap();
            match name.as_str().strip_prefix(PREFIX) {
                Some("partitionkey") => received.key = Some(value),
                Some(name) => drop(received.attributes.insert(name.to_owned(), value)),
                None => drop(received.headers.insert(name.to_string(), value)),
            }
        }
        all.push(received);
    }
    channel.close(200, "OK".into()).await.unwrap();
    all
}

pub(crate) fn assert_error(answer: &pillarbox_core::port::Sent, kind: SinkErrorKind, words: &str) {
    let error = answer.as_ref().expect_err(words);
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(words), "{error}");
}

/// A message to this topic.
pub(crate) fn message(topic: &Arc<str>, payload: impl Into<Bytes>) -> Message {
    let id = Event::builder("OrderPlaced").json(&()).build().unwrap().id();
    Message {
        topic: Arc::clone(topic),
        key: None,
        id,
        content_type: "application/json".into(),
        attributes: vec![("id".into(), id.to_string())],
        headers: Vec::new(),
        payload: payload.into(),
    }
}

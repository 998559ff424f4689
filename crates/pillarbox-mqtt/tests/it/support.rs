//! A topic of one's own, and what arrived there.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use pillarbox_core::{
    Event,
    port::{Message, Sent, SinkErrorKind, Source as _},
};
use pillarbox_mqtt::{MqttSink, MqttSource, Options, Subscription};
use pillarbox_testkit::{
    servers::{Mosquitto, Proxy, Shared},
    sinks::{ANSWER_WITHIN, Place, Received},
    sources::{self, WAIT},
};
use rumqttc::v5::{
    AsyncClient, MqttOptions,
    mqttbytes::{
        QoS,
        v5::{Packet, Publish},
    },
};
use tokio::sync::{Mutex, OnceCell, mpsc};

/// What a payload is taken to be at most in the exam.
const LARGEST: usize = 100_000;

const ATTRIBUTES: [&str; 5] = ["specversion", "id", "source", "type", "time"];

pub(crate) struct Topic {
    name: Arc<str>,
    proxy: Proxy,
    observer: OnceCell<Observer>,
    url: String,
    // If it is not the shared one.
    server: Option<Mosquitto>,
}

impl Place for Topic {
    type Sink = MqttSink;

    async fn fresh() -> Self {
        let place = Self::unobserved();
        place.observe().await;
        place
    }

    fn sink(&self) -> MqttSink {
        self.options().largest(LARGEST).open().unwrap()
    }

    fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    fn topic(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    fn refused(&self) -> Arc<str> {
        format!("refused/{}", self.name).into()
    }

    async fn failing() -> Result<Self, &'static str> {
        Ok(Self::unobserved())
    }

    async fn relent(&self) {
        self.observe().await;
    }

    fn unlimited(&self) -> Result<(MqttSink, usize), &'static str> {
        Err("Mosquitto takes whatever MQTT has room for; a server that does not is played in the module `answers`")
    }

    async fn received(&self) -> Vec<Received> {
        self.observer.get().unwrap().received().await
    }
}

impl sources::Place for Topic {
    type Source = MqttSource;

    async fn private() -> Self {
        let server = Mosquitto::start().unwrap();
        let url = server.url();
        // Nobody observes a server that dies.
        Self { name: name(), proxy: Proxy::to_url(&url).unwrap(), observer: OnceCell::new(), url, server: Some(server) }
    }

    fn restart(&mut self) {
        let server = self.server.as_mut().unwrap();
        server.kill();
        server.start_again().unwrap();
    }

    fn source(&self, group: &str, _again_after: Duration) -> MqttSource {
        self.options().subscribe(self.member(group, 0)).unwrap()
    }

    fn another(&self, group: &str, _again_after: Duration) -> MqttSource {
        self.options().subscribe(self.member(group, 1)).unwrap()
    }

    async fn prepare(&self, group: &str) {
        let source = Options::new(&self.url).subscribe(self.member(group, 0)).unwrap();
        source.check().await.unwrap();
        source.close().await;
    }

    async fn send_plain(&self, payload: &[u8]) {
        self.send_with(QoS::AtLeastOnce, payload.to_vec()).await;
    }
}

impl Topic {
    /// A topic that nobody has subscribed to.
    fn unobserved() -> Self {
        let url = Shared::Mosquitto.url();
        Self { name: name(), proxy: Proxy::to_url(&url).unwrap(), observer: OnceCell::new(), url, server: None }
    }

    async fn observe(&self) {
        self.observer.get_or_init(|| Observer::new(&self.url, &self.name)).await;
    }

    /// Through the proxy.
    pub(crate) fn options(&self) -> Options {
        Options::new(self.proxy.url(&self.url)).answer_within(ANSWER_WITHIN)
    }

    /// Sends a bare payload, not by way of the proxy.
    pub(crate) async fn send_with(&self, quality: QoS, payload: Vec<u8>) {
        let client = &self.observer.get().unwrap().client;
        client.publish(&*self.name, quality, false, payload).await.unwrap();
    }

    /// One of a group.
    pub(crate) fn member(&self, group: &str, number: u32) -> Subscription {
        let client_id = format!("{}-{group}-{number}", self.name);
        let alone = Subscription::new(&*self.name, client_id).keep_for(Duration::from_mins(10)).wait(WAIT);
        // Mosquitto forgets over a restart what a group is subscribed to, until its members are back.
        if self.server.is_some() { alone } else { alone.group(group) }
    }
}

/// Somebody who has subscribed to a topic, and misses nothing.
pub(crate) struct Observer {
    topic: Arc<str>,
    client: AsyncClient,
    arrived: Mutex<(mpsc::UnboundedReceiver<Publish>, Vec<Received>)>,
}

impl Observer {
    /// Of all topics that match.
    pub(crate) async fn new(url: &str, topic: &str) -> Self {
        let port = url.rsplit_once(':').unwrap().1.parse().unwrap();
        let mut options = MqttOptions::new(format!("observer-{}", id()), "127.0.0.1", port);
        options.set_max_packet_size(Some(1_000_000));
        let (client, mut events) = AsyncClient::new(options, 100);
        client.subscribe(topic, QoS::AtLeastOnce).await.unwrap();
        let (sender, receiver) = mpsc::unbounded_channel();
        let (ready, subscribed) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            let mut ready = Some(ready);
            while !sender.is_closed() {
                match events.poll().await {
                    Ok(rumqttc::v5::Event::Incoming(Packet::SubAck(_))) => {
                        ready.take().map(|ready| ready.send(()));
                    }
                    Ok(rumqttc::v5::Event::Incoming(Packet::Publish(publish))) => drop(sender.send(publish)),
                    Ok(_) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
        subscribed.await.unwrap();
        Self { topic: topic.replace('#', "last").into(), client, arrived: Mutex::new((receiver, Vec::new())) }
    }

    /// All so far: what it says itself comes after them.
    pub(crate) async fn received(&self) -> Vec<Received> {
        let last = id();
        self.client.publish(&*self.topic, QoS::AtLeastOnce, false, last.clone()).await.unwrap();
        let mut arrived = self.arrived.lock().await;
        let (receiver, all) = &mut *arrived;
        loop {
            let publish = receiver.recv().await.unwrap();
            if publish.payload == last {
                return all.clone();
            }
            all.push(received(publish));
        }
    }
}

fn received(publish: Publish) -> Received {
    assert_eq!(publish.qos, QoS::AtLeastOnce);
    let properties = publish.properties.unwrap();
    let mut received = Received {
        id: String::new(),
        key: None,
        content_type: properties.content_type,
        attributes: BTreeMap::new(),
        headers: BTreeMap::new(),
        payload: publish.payload,
    };
    for (name, value) in properties.user_properties {
        match name.as_str() {
            "partitionkey" => received.key = Some(value),
            name if ATTRIBUTES.contains(&name) => drop(received.attributes.insert(name.to_owned(), value)),
            _ => drop(received.headers.insert(name, value)),
        }
    }
    received.id = received.attributes["id"].clone();
    received
}

pub(crate) fn name() -> Arc<str> {
    format!("pillarbox/test/{}", id()).into()
}

fn id() -> String {
    Event::builder("Topic").json(&()).build().unwrap().id().to_string()
}

pub(crate) fn assert_error(answer: &Sent, kind: SinkErrorKind, words: &str) {
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

//! Streams of a test's own on the shared server.

use std::{collections::BTreeMap, sync::Arc, thread, time::Duration};

use async_nats::{
    HeaderMap,
    jetstream::{
        Context, ErrorCode,
        context::CreateStreamErrorKind,
        message::StreamMessage,
        stream::{Config, DiscardPolicy},
    },
};
use pillarbox_core::port::{Message, Sent, Sink};
use pillarbox_nats::{LARGEST, NatsSink, NatsSource, Options, Subscription};
use pillarbox_testkit::{
    servers::{self, Proxy, Shared},
    sinks::{ANSWER_WITHIN, Place, Received},
    sources::{self, WAIT},
};

pub(crate) struct Nats {
    proxy: Proxy,
    // Of the stream, and what its subjects begin with.
    pub(crate) name: String,
    topic: Arc<str>,
    refused: Arc<str>,
    url: String,
    // If it is not the shared one.
    server: Option<servers::Nats>,
}

impl Nats {
    /// What sinks of the exam are made with.
    pub(crate) fn options(&self) -> Options {
        Options::new(self.proxy.url(&self.url)).answer_within(ANSWER_WITHIN)
    }

    /// The stream takes so many messages, and no more.
    async fn hold(&self, max_messages: i64) {
        let jetstream = connect(&self.url).await;
        let stream = jetstream.get_stream(&self.name).await.expect("a stream");
        let config = Config { max_messages, discard: DiscardPolicy::New, ..stream.cached_info().config.clone() };
        jetstream.update_stream(config).await.expect("to update");
    }

    async fn on(url: String, server: Option<servers::Nats>) -> Self {
        let name = format!("pillarbox-{:x}", fastrand::u64(..));
        let refused = format!("{name}-refused");
        let jetstream = connect(&url).await;
        let stream = |name: &str, subject: String, max_message_size| Config {
            name: name.into(),
            subjects: vec![subject],
            max_message_size,
            ..Config::default()
        };
        for stream in [stream(&name, format!("{name}.>"), 0), stream(&refused, refused.clone(), 8)] {
            create(&jetstream, stream).await;
        }
        let proxy = Proxy::to_url(&url).expect("a proxy");
        Self { proxy, topic: format!("{name}.placed").into(), name, refused: refused.into(), url, server }
    }
}

impl Place for Nats {
    type Sink = NatsSink;

    async fn fresh() -> Self {
        Self::on(Shared::Nats.url(), None).await
    }

    fn sink(&self) -> NatsSink {
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
        let place = Self::fresh().await;
        place.hold(1).await;
        sources::Place::send_plain(&place, b"it is full").await;
        Ok(place)
    }

    async fn relent(&self) {
        let stream = connect(&self.url).await.get_stream(&self.name).await.expect("a stream");
        stream.purge().await.expect("to purge");
        self.hold(-1).await;
    }

    fn unlimited(&self) -> Result<(NatsSink, usize), &'static str> {
        // The server takes 1 MiB.
        Ok((self.options().largest(10 * LARGEST).open().expect("a sink"), 2 * LARGEST))
    }

    async fn received(&self) -> Vec<Received> {
        let all = read(&self.url, &self.name).await;
        all.iter().filter(|message| message.subject.as_str() == &*self.topic).map(received).collect()
    }
}

impl sources::Place for Nats {
    type Source = NatsSource;

    async fn private() -> Self {
        let server = servers::Nats::start().expect("a server");
        Self::on(server.url(), Some(server)).await
    }

    fn restart(&mut self) {
        let server = self.server.as_mut().expect("a server of its own");
        server.kill();
        server.start_again().expect("to start again");
    }

    fn source(&self, group: &str, again_after: Duration) -> NatsSource {
        let subscription = Subscription::new(&self.name, group).again_after(again_after).wait(WAIT);
        self.options().subscribe(subscription).expect("a source")
    }

    async fn send_plain(&self, payload: &[u8]) {
        // Its end is the end of what waits for answers.
        let jetstream = connect(&self.url).await;
        let sent = jetstream.publish(self.topic.to_string(), payload.to_vec().into()).await;
        sent.expect("to send").await.expect("to be stored");
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        if self.server.is_some() {
            return;
        }
        let streams = [self.name.clone(), self.refused.to_string()];
        let cleaning = async move {
            let jetstream = connect(&Shared::Nats.url()).await;
            for stream in streams {
                jetstream.delete_stream(stream).await.expect("to delete");
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        // A runtime can't wait for another on its own thread.
        thread::spawn(move || runtime.block_on(cleaning)).join().expect("to clean up");
    }
}

pub(crate) async fn connect(url: &str) -> Context {
    async_nats::jetstream::new(async_nats::connect(url).await.expect("a connection"))
}

/// The server removes the folder of an account's streams with the last of them, also when another is just being created there:
/// then it is to be asked again.
async fn create(jetstream: &Context, stream: Config) {
    while let Err(error) = jetstream.create_stream(stream.clone()).await {
        let CreateStreamErrorKind::JetStream(told) = error.kind() else { panic!("{error}") };
        assert_eq!(told.error_code(), ErrorCode::STREAM_CREATE, "{told}");
    }
}

/// Every message of a stream.
pub(crate) async fn read(url: &str, stream: &str) -> Vec<StreamMessage> {
    let stream = connect(url).await.get_stream(stream).await.expect("a stream");
    let state = &stream.cached_info().state;
    let mut messages = Vec::new();
    // Of an empty stream, the first is beyond the last, or none.
    for sequence in state.first_sequence.max(1)..=state.last_sequence {
        messages.push(stream.get_raw_message(sequence).await.expect("a message"));
    }
    messages
}

/// The id under which the stream knows it.
pub(crate) fn id(message: &StreamMessage) -> String {
    message.headers.get("Nats-Msg-Id").expect("an id").to_string()
}

fn received(message: &StreamMessage) -> Received {
    let (mut attributes, mut headers) = (BTreeMap::new(), all(&message.headers));
    for (name, value) in std::mem::take(&mut headers) {
        match name.strip_prefix("ce-") {
            Some(bare) => attributes.insert(bare.to_owned(), value),
            None => headers.insert(name, value),
        };
    }
    Received {
        id: headers.remove("Nats-Msg-Id").expect("an id"),
        key: attributes.remove("partitionkey"),
        content_type: headers.remove("content-type"),
        attributes,
        headers,
        payload: message.payload.clone(),
    }
}

fn all(headers: &HeaderMap) -> BTreeMap<String, String> {
    let one = |values: &[async_nats::HeaderValue]| {
        assert_eq!(values.len(), 1, "{values:?}");
        decode(values[0].as_str())
    };
    headers.iter().map(|(name, values)| (name.to_string(), one(values))).collect()
}

/// As a consumer would.
fn decode(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().expect("a part").as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).expect("a number"));
        bytes.extend(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).expect("text")
}

/// Sends one message.
pub(crate) async fn send_one(sink: &NatsSink, message: Message) -> Sent {
    let mut answers = sink.send(&[message]).await;
    assert_eq!(answers.len(), 1);
    answers.remove(0)
}

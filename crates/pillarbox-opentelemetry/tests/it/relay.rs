//! From the write through a relay and a broker to the consumer.

use std::{collections::BTreeSet, sync::Arc};

use async_nats::{
    HeaderMap,
    jetstream::{self, stream},
};
use futures_util::StreamExt as _;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use pillarbox_core::{Event, Outbox};
use pillarbox_opentelemetry::{OpenTelemetry, Telemetry, consumer_span};
use pillarbox_relay::{
    Relay,
    config::{Config, Source},
};
use pillarbox_sqlite::SqliteStore;
use pillarbox_testkit::servers::Shared;
use tracing_subscriber::prelude::*;

use crate::{collector::Collector, shop::request};

const EVENTS: usize = 20;

fn headers(of: Option<&HeaderMap>) -> Vec<(String, String)> {
    let each = of.into_iter().flat_map(HeaderMap::iter);
    each.filter_map(|(name, values)| Some((name.to_string(), values.first()?.to_string()))).collect()
}

/// All events wait when the relay starts, so that they leave in batches.
#[tokio::test]
async fn one_trace_leads_from_each_request_through_the_relay_to_its_consumer() {
    let collector = Collector::start();
    let telemetry = Telemetry::to(collector.endpoint()).start().unwrap();
    // For all threads: those of SQLite enter spans, too, and a subscriber of one thread would not hear that they leave them.
    tracing_subscriber::registry().with(telemetry.layer()).init();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shop.db");
    let store = async || SqliteStore::open(path.to_str().unwrap()).await.unwrap();
    let writer = Outbox::writer_only(store().await).tracer(OpenTelemetry::new()).start().await.unwrap();
    for n in 0..EVENTS {
        let event = Event::builder("OrderPlaced").json(&n).build().unwrap();
        request(&writer, event).await;
    }
    writer.shutdown().await;
    drop(writer);

    let url = Shared::Nats.url();
    let name = format!("traces-{}", pillarbox_core::engine::new_id());
    let jetstream = jetstream::new(async_nats::connect(&url).await.unwrap());
    let config = stream::Config { name: name.clone(), subjects: vec![format!("{name}.>")], ..Default::default() };
    let stream = jetstream.create_stream(config).await.unwrap();
    let config = format!(
        "outbox.url = \"sqlite:unused\"\n[sinks.broker]\ntype = \"nats\"\nurl = {url:?}\n[[rules]]\ntopic = \"{name}.orders\"\n"
    );
    let config = Config::read(&Source::new().text(config)).unwrap();
    let tracer = Arc::new(OpenTelemetry::new());
    let relay = Relay::start_with(&config, store().await, Some(tracer)).await.unwrap();

    let consumer = stream.create_consumer(jetstream::consumer::pull::Config::default()).await.unwrap();
    let mut messages = consumer.messages().await.unwrap().take(EVENTS);
    while let Some(message) = messages.next().await {
        let message = message.unwrap();
        consumer_span("orders", headers(message.headers.as_ref())).in_scope(|| tracing::info!("taken"));
        message.ack().await.unwrap();
    }
    jetstream.delete_stream(&name).await.unwrap();
    relay.shutdown().await;
    telemetry.shutdown().await;

    let (requests, writes) = (collector.all("request"), collector.all("write OrderPlaced"));
    let (sends, consumes) = (collector.all("send OrderPlaced"), collector.all("consume orders"));
    let counts = [&requests, &writes, &sends, &consumes].map(Vec::len);
    assert_eq!(counts, [EVENTS; 4], "{:#?}", collector.spans());
    let traces: BTreeSet<_> = requests.iter().map(|of| &of.span.trace_id).collect();
    assert_eq!(traces.len(), EVENTS, "each request has a trace of its own");
    for consume in &consumes {
        let send = sends.iter().find(|send| consume.is_child_of(send)).expect("a send above");
        let write = writes.iter().find(|write| send.is_child_of(write)).expect("a write above");
        let request = requests.iter().find(|request| write.is_child_of(request)).expect("a request above");
        assert!(request.is_root());
        assert_eq!(send.span.kind(), SpanKind::Producer);
        assert_eq!(send.attribute("handler").as_deref(), Some("sink:broker"));
    }
}

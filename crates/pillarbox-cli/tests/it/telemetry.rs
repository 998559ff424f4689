//! `pillarbox relay` and a collector of OpenTelemetry.

// Exactly the collector that the crate's own tests have.
#[path = "../../../pillarbox-opentelemetry/tests/it/collector.rs"]
mod collector;

use async_nats::jetstream::{self, stream};
use collector::{Collector, text};
use futures_util::StreamExt as _;
use opentelemetry_proto::tonic::metrics::v1::{metric::Data, number_data_point::Value};
use pillarbox::{
    AnyStore, Event, Outbox,
    opentelemetry::{OpenTelemetry, Telemetry, consumer_span},
};
use pillarbox_servers::Shared;
use tracing::{Instrument as _, Subscriber, info_span};
use tracing_subscriber::prelude::*;

use super::relay::{Relay, count, migrated, wait, write};

/// A service whose spans go to the collector.
fn service(collector: &Collector, name: &str) -> (Telemetry, impl Subscriber + Send + Sync + use<>) {
    let telemetry = Telemetry::to(collector.endpoint()).service(name).start().expect("telemetry");
    let subscriber = tracing_subscriber::registry().with(telemetry.layer());
    (telemetry, subscriber)
}

/// Three services: the shop and the warehouse in this process, each with its own subscriber, and the relay in another.
#[tokio::test]
async fn one_trace_goes_from_the_request_through_the_program_to_the_consumer() {
    let collector = Collector::start();
    let database = migrated();
    let (shop, subscriber) = service(&collector, "shop");
    {
        let _shop = subscriber.set_default();
        let store = AnyStore::open(&database.url()).await.unwrap();
        let outbox = Outbox::writer_only(store).tracer(OpenTelemetry::new()).start().await.unwrap();
        let request = async {
            let mut tx = outbox.begin().await.unwrap();
            tx.write(Event::builder("OrderPlaced").json(&7)).await.unwrap();
            tx.commit().await.unwrap();
        };
        request.instrument(info_span!("request")).await;
        outbox.shutdown().await;
    }
    shop.shutdown().await;

    let name = database.name().to_owned();
    let jetstream = jetstream::new(async_nats::connect(Shared::Nats.url()).await.unwrap());
    let config = stream::Config { name: name.clone(), subjects: vec![format!("{name}.>")], ..Default::default() };
    let stream = jetstream.create_stream(config).await.unwrap();
    let set = [
        "sinks.broker.type=nats".to_owned(),
        format!("sinks.broker.url={}", Shared::Nats.url()),
        format!("rules=[{{ topic = \"{name}.orders\", sinks = [\"broker\"] }}]"),
        format!("telemetry.endpoint={}", collector.endpoint()),
        "telemetry.service=orders-relay".to_owned(),
    ];
    let relay = Relay::start(&database, &set.each_ref().map(String::as_str));

    let consumer = stream.create_consumer(jetstream::consumer::pull::Config::default()).await.unwrap();
    let message = consumer.messages().await.unwrap().next().await.unwrap().unwrap();
    message.ack().await.unwrap();
    jetstream.delete_stream(&name).await.unwrap();
    let headers = message.headers.clone().unwrap_or_default();
    let headers = headers.iter().map(|(name, values)| (name.to_string(), values[0].to_string()));
    let (warehouse, subscriber) = service(&collector, "warehouse");
    tracing::subscriber::with_default(subscriber, || consumer_span("orders", headers).in_scope(|| {}));
    warehouse.shutdown().await;

    wait("the outcome", || (count(&database, "status = 'DONE'") == 1).then_some(()));
    assert_eq!(relay.metric("pillarbox_delivered_total"), Some(1.0), "Prometheus is served as well");
    // What is left is sent at the end.
    let (ended, log) = relay.end();
    assert!(ended, "{log}");

    let (request, write) = (collector.one("request"), collector.one("write OrderPlaced"));
    let (send, consume) = (collector.one("send OrderPlaced"), collector.one("consume orders"));
    assert!(request.is_root() && write.is_child_of(&request) && send.is_child_of(&write) && consume.is_child_of(&send));
    let services = [&request, &write, &send, &consume].map(|of| of.service.as_str());
    assert_eq!(services, ["shop", "shop", "orders-relay", "warehouse"]);
    assert_eq!(send.attribute("handler").as_deref(), Some("sink:broker"));

    let Some(Data::Sum(delivered)) = collector.metric("pillarbox_delivered_total").data else { panic!("no sum") };
    assert_eq!(delivered.data_points[0].value, Some(Value::AsInt(1)));
    let Some(Data::Gauge(open)) = collector.metric("pillarbox_circuit_open").data else { panic!("no gauge") };
    let destinations = open.data_points.iter().filter_map(|point| text(&point.attributes, "destination"));
    assert!(destinations.into_iter().any(|name| name == "broker"));
}

#[test]
fn a_relay_whose_collector_is_away_says_so_and_sends_all_the_same() {
    let database = migrated();
    write(&database, 0..50);
    let relay = Relay::start(&database, &["telemetry.endpoint=http://127.0.0.1:1"]);
    wait("all", || (relay.lines().len() == 50).then_some(()));
    wait("the outcomes", || (count(&database, "status = 'DONE'") == 50).then_some(()));
    let (ended, log) = relay.end();
    assert!(ended, "{log}");
    assert!(log.contains("opentelemetry") || log.contains("the collector did not take"), "{log}");
}

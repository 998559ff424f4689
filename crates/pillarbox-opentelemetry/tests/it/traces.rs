//! From the write to the handler.

use std::{sync::Arc, time::Duration};

use opentelemetry::trace::{TraceContextExt as _, Tracer as _, TracerProvider as _};
use opentelemetry_proto::tonic::trace::v1::{span::SpanKind, status::StatusCode};
use pillarbox_core::{
    Delivery, Event, HandlerError, Metadata, Outbox, RetryPolicy,
    domain::{CodecError, Codecs, EventBuilder, OutboxEvent, Payload, Route},
    engine::{Batched, HandlerExt as _, Work},
};
use pillarbox_opentelemetry::{OpenTelemetry, Telemetry, consumer_span};
use pillarbox_testkit::MemoryStore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tracing::{Instrument as _, info_span};

use crate::{
    collector::Collector,
    shop::{Shop, placed, request, write},
};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Tells the test of each delivery.
fn tell(told: &UnboundedSender<Delivery>) -> impl Fn(Delivery) -> std::future::Ready<()> + Send + Sync + 'static {
    let told = told.clone();
    move |delivery| {
        let _ = told.send(delivery);
        std::future::ready(())
    }
}

async fn next(told: &mut UnboundedReceiver<Delivery>) -> Delivery {
    told.recv().await.expect("a delivery")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

#[tokio::test]
async fn a_handler_runs_in_a_span_below_the_write() {
    let shop = Shop::new();
    let (told, mut deliveries) = unbounded_channel();
    let outbox = Shop::builder().route("OrderPlaced", tell(&told)).start().await.unwrap();
    request(&outbox, placed()).await;
    let delivery = next(&mut deliveries).await;
    shop.close(outbox).await;

    let of = &shop.collector;
    let (request, write, deliver) = (of.one("request"), of.one("write OrderPlaced"), of.one("deliver OrderPlaced"));
    assert!(request.is_root() && write.is_child_of(&request) && deliver.is_child_of(&write));
    assert_eq!(write.span.kind(), SpanKind::Producer);
    assert_eq!(deliver.span.kind(), SpanKind::Consumer);
    assert_eq!(deliver.attribute("event_id"), Some(delivery.event().id().to_string()));
    assert_eq!(deliver.attribute("attempt").as_deref(), Some("1"));
    assert_eq!(deliver.service, "shop");
    assert!(deliver.span.status.is_none_or(|status| status.code() == StatusCode::Unset));

    // What is stored leads to the write, and what the handler is told leads to itself.
    let traceparent = |span: &[u8]| format!("00-{}-{}-01", hex(&request.span.trace_id), hex(span));
    assert_eq!(delivery.event().headers().get("traceparent"), Some(&*traceparent(&write.span.span_id)));
    assert_eq!(delivery.event().headers().get("tracestate"), None);
    assert_eq!(delivery.trace().unwrap().get("traceparent"), Some(&*traceparent(&deliver.span.span_id)));
}

#[tokio::test]
async fn each_attempt_is_a_span_of_its_own_in_the_same_trace() {
    let shop = Shop::new();
    let (told, mut deliveries) = unbounded_channel();
    let handler = move |delivery: Delivery| {
        let _ = told.send(delivery.clone());
        async move { if delivery.attempt() < 3 { Err(HandlerError::msg("out of paper")) } else { Ok(()) } }
    };
    let retry = RetryPolicy::fixed(Duration::from_millis(1)).max_attempts(3);
    let outbox = Shop::builder().route("OrderPlaced", handler.with_retry(retry)).start().await.unwrap();
    request(&outbox, placed()).await;
    for attempt in 1..=3 {
        assert_eq!(next(&mut deliveries).await.attempt(), attempt);
    }
    shop.close(outbox).await;

    let (write, attempts) = (shop.collector.one("write OrderPlaced"), shop.collector.all("deliver OrderPlaced"));
    assert_eq!(attempts.len(), 3);
    assert!(attempts.iter().all(|attempt| attempt.is_child_of(&write)));
    let status = |n: usize| attempts[n].span.status.clone().unwrap_or_default();
    for failed in [0, 1] {
        assert_eq!(status(failed).code(), StatusCode::Error);
        assert!(status(failed).message.contains("out of paper"), "{:?}", status(failed));
    }
    assert_eq!(status(2).code(), StatusCode::Unset);
    let numbers: Vec<_> = attempts.iter().filter_map(|attempt| attempt.attribute("attempt")).collect();
    assert_eq!(numbers, ["1", "2", "3"]);
}

#[tokio::test]
async fn the_events_own_trace_comes_before_the_writers() {
    let shop = Shop::new();
    let (told, mut deliveries) = unbounded_channel();
    let outbox = Shop::builder().route("OrderPlaced", tell(&told)).start().await.unwrap();
    let event = placed().to_builder().header("traceparent", PARENT).build().unwrap();
    request(&outbox, event).await;
    let delivery = next(&mut deliveries).await;
    shop.close(outbox).await;

    assert_eq!(delivery.event().headers().get("traceparent"), Some(PARENT));
    let deliver = shop.collector.one("deliver OrderPlaced").span;
    assert_eq!(hex(&deliver.trace_id), "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(hex(&deliver.parent_span_id), "b7ad6b7169203331");
}

#[tokio::test]
async fn a_trace_that_cant_be_read_is_ignored_and_the_event_delivered() {
    let shop = Shop::new();
    let (told, mut deliveries) = unbounded_channel();
    let outbox = Shop::builder().route("OrderPlaced", tell(&told)).start().await.unwrap();
    let malformed = ["", "00-1-2-01", "00-00000000000000000000000000000000-b7ad6b7169203331-01", "ä\0\n"];
    for text in malformed {
        let event = placed().to_builder().header("traceparent", text).build();
        // Some texts are no headers at all.
        let Ok(event) = event else { continue };
        request(&outbox, event).await;
        assert_eq!(next(&mut deliveries).await.event().headers().get("traceparent"), Some(text));
    }
    shop.close(outbox).await;

    let delivered = shop.collector.all("deliver OrderPlaced");
    assert!(delivered.len() >= 3, "{delivered:?}");
    assert!(delivered.iter().all(super::collector::Kept::is_root), "{delivered:?}");
}

#[tokio::test]
async fn without_a_trace_nothing_is_stored() {
    let shop = Shop::new();
    let (told, mut deliveries) = unbounded_channel();
    let outbox = Shop::builder().route("OrderPlaced", tell(&told)).start().await.unwrap();
    write(&outbox, placed()).await;
    assert!(next(&mut deliveries).await.event().headers().is_empty());
    shop.close(outbox).await;
    assert!(shop.collector.all("write OrderPlaced").is_empty());
    assert!(shop.collector.one("deliver OrderPlaced").is_root());

    // Nor without a tracer, whoever has a trace.
    let outbox = Outbox::single_node(MemoryStore::new()).route("OrderPlaced", tell(&told)).start().await.unwrap();
    request(&outbox, placed()).await;
    let delivery = next(&mut deliveries).await;
    assert!(delivery.event().headers().is_empty() && delivery.trace().is_none());
    outbox.shutdown().await;
}

#[tokio::test]
async fn a_trace_without_spans_of_tracing_is_captured_too() {
    let shop = Shop::new();
    let (told, mut deliveries) = unbounded_channel();
    let outbox = Shop::builder().route("OrderPlaced", tell(&told)).start().await.unwrap();
    let span = shop.telemetry.tracer_provider().tracer("other").start("of opentelemetry alone");
    let context = opentelemetry::Context::current_with_span(span);
    let attached = context.clone().attach();
    write(&outbox, placed()).await;
    drop(attached);
    context.span().end();
    next(&mut deliveries).await;
    shop.close(outbox).await;
    let of = &shop.collector;
    assert!(of.one("write OrderPlaced").is_child_of(&of.one("of opentelemetry alone")));
    assert!(of.one("deliver OrderPlaced").is_child_of(&of.one("write OrderPlaced")));
}

#[tokio::test]
async fn a_trace_that_is_not_sampled_stays_so_to_the_handler() {
    let collector = Collector::start();
    let telemetry = Telemetry::to(collector.endpoint()).sampled(0.0).start().unwrap();
    let shop = Shop::of(collector, telemetry);
    let (told, mut deliveries) = unbounded_channel();
    let outbox = Shop::builder().route("OrderPlaced", tell(&told)).start().await.unwrap();
    request(&outbox, placed()).await;
    let delivery = next(&mut deliveries).await;
    shop.close(outbox).await;
    let traceparent = delivery.trace().unwrap().get("traceparent").unwrap();
    assert!(traceparent.ends_with("-00"), "{traceparent}");
    assert!(shop.collector.spans().is_empty());
}

/// An event of a test, as a type.
struct Step(u32);

impl OutboxEvent for Step {
    fn routes() -> Vec<Route> {
        vec![Route::from("Step")]
    }

    fn describe(&self) -> EventBuilder {
        Event::builder("Step")
    }

    fn encode(&self, codecs: &Codecs) -> Result<Payload, CodecError> {
        codecs.encode(&self.0)
    }

    fn decode(event: &Event, codecs: &Codecs) -> Result<Self, CodecError> {
        codecs.decode(event.payload()).map(Self)
    }
}

#[tokio::test]
async fn what_a_transactional_handler_writes_continues_its_trace() {
    let shop = Shop::new();
    let (told, mut ended) = unbounded_channel();
    let outbox = Shop::builder().handle_in_tx(move |mut work: Work<MemoryStore>, Step(n): Step| {
        let told = told.clone();
        async move {
            if n < 2 {
                work.write(&Step(n + 1)).await?;
            }
            let _ = told.send(n);
            Ok::<_, HandlerError>(())
        }
    });
    let outbox = outbox.start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.write(&Step(0)).instrument(info_span!("request")).await.unwrap();
    tx.commit().await.unwrap();
    while ended.recv().await != Some(2) {}
    shop.close(outbox).await;

    let (writes, delivers) = (shop.collector.all("write Step"), shop.collector.all("deliver Step"));
    assert_eq!((writes.len(), delivers.len()), (3, 3));
    let mut parent = shop.collector.one("request");
    for (write, deliver) in writes.into_iter().zip(delivers) {
        assert!(write.is_child_of(&parent) && deliver.is_child_of(&write), "{write:?} {deliver:?}");
        parent = deliver;
    }
}

#[tokio::test]
async fn a_batch_has_a_span_for_each_event_and_one_that_is_linked_to_them() {
    let shop = Shop::new();
    // One transaction makes them wait at once, and the one worker takes them as one batch.
    let (told, mut ended) = unbounded_channel();
    let outbox = Shop::builder().workers(1).handle_batch(10, move |batch: Vec<Batched<Step>>| {
        let told = told.clone();
        async move {
            tracing::info!("in the batch");
            let traces: Vec<_> = batch.iter().filter_map(|of| trace_id(&of.metadata)).collect();
            let answers: Vec<_> = batch.iter().map(|of| if of.event.0 == 1 { Err("no") } else { Ok(()) }).collect();
            let _ = told.send(traces);
            answers
        }
    });
    let outbox = outbox.retry(RetryPolicy::never()).start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    for n in 0..3 {
        tx.write(&Step(n)).instrument(info_span!("request")).await.unwrap();
    }
    tx.commit().await.unwrap();
    let mut traces = ended.recv().await.unwrap();
    shop.close(outbox).await;

    let (requests, writes, delivers) =
        (shop.collector.all("request"), shop.collector.all("write Step"), shop.collector.all("deliver Step"));
    assert_eq!((requests.len(), writes.len(), delivers.len()), (3, 3, 3));
    assert!(delivers.iter().all(|deliver| writes.iter().any(|write| deliver.is_child_of(write))));
    let failed =
        |of: &super::collector::Kept| of.span.status.as_ref().is_some_and(|status| status.code() == StatusCode::Error);
    assert_eq!(delivers.iter().filter(|deliver| failed(deliver)).count(), 1);

    let call = shop.collector.one("deliver batch");
    assert!(call.is_root());
    let mut links: Vec<_> = call.span.links.iter().map(|link| (&link.trace_id, &link.span_id)).collect();
    let mut each: Vec<_> = delivers.iter().map(|of| (&of.span.trace_id, &of.span.span_id)).collect();
    links.sort();
    each.sort();
    assert_eq!(links, each);
    assert!(call.span.events.iter().any(|event| event.name == "in the batch"), "{call:?}");
    let mut expected: Vec<_> = requests.iter().map(|of| hex(&of.span.trace_id)).collect();
    expected.sort();
    traces.sort();
    assert_eq!(traces, expected);
}

fn trace_id(metadata: &Metadata) -> Option<String> {
    Some(metadata.trace()?.get("traceparent")?.split('-').nth(1)?.to_owned())
}

#[tokio::test]
async fn a_consumers_span_continues_the_message_or_begins_a_trace() {
    let shop = Shop::new();
    consumer_span("orders", [("Traceparent", PARENT)]).in_scope(|| tracing::info!("taken"));
    consumer_span("orders", [("traceparent", "nonsense"), ("x", "y")]).in_scope(|| {});
    shop.telemetry.shutdown().await;
    let spans = shop.collector.all("consume orders");
    assert_eq!(spans.len(), 2);
    assert_eq!(hex(&spans[0].span.parent_span_id), "b7ad6b7169203331");
    assert_eq!(spans[0].span.kind(), SpanKind::Consumer);
    assert!(spans[1].is_root());
}

/// A port where nobody listens, and one where nobody answers.
#[tokio::test]
async fn a_collector_that_is_away_holds_nobody_up() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for address in [closed, silent.local_addr().unwrap()] {
        let telemetry = Telemetry::to(format!("http://{address}")).start().unwrap();
        let shop = Shop::of(Collector::start(), telemetry);
        let (told, mut deliveries) = unbounded_channel();
        let outbox = Shop::builder().route("OrderPlaced", tell(&told)).start().await.unwrap();
        for _ in 0..100 {
            request(&outbox, placed()).await;
            assert!(next(&mut deliveries).await.trace().is_some());
        }
        shop.close(outbox).await;
    }
}

#[tokio::test]
async fn wrong_settings_are_told() {
    for (builder, words) in [
        (Telemetry::to("collector:4318"), "http://localhost:4318"),
        (Telemetry::to(""), "http://localhost:4318"),
        (Telemetry::to("http://localhost:4318").sampled(1.5), "0.0 to 1.0"),
        (Telemetry::to("http://localhost:4318").sampled(f64::NAN), "0.0 to 1.0"),
    ] {
        let error = builder.start().unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// The tracer of a program that has no layer of OpenTelemetry.
#[tokio::test]
async fn a_tracer_that_nobody_listens_to_leaves_the_events_trace_alone() {
    let (told, mut deliveries) = unbounded_channel();
    let builder = Outbox::single_node(MemoryStore::new()).tracer(Arc::new(OpenTelemetry::new()));
    let outbox = builder.route("OrderPlaced", tell(&told)).start().await.unwrap();
    let event = placed().to_builder().header("traceparent", PARENT).build().unwrap();
    request(&outbox, event).await;
    let delivery = next(&mut deliveries).await;
    assert_eq!(delivery.event().headers().get("traceparent"), Some(PARENT));
    assert!(delivery.trace().is_none());
    outbox.shutdown().await;
}

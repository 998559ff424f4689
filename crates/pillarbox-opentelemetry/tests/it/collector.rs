//! An OTLP collector that keeps what it is sent.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    thread,
};

use axum::{Router, body::Bytes, extract::State, http::StatusCode, routing::post};
use opentelemetry_proto::tonic::{
    collector::{metrics::v1::ExportMetricsServiceRequest, trace::v1::ExportTraceServiceRequest},
    common::v1::{KeyValue, any_value::Value},
    metrics::v1::Metric,
    resource::v1::Resource,
    trace::v1::Span,
};
use prost::Message as _;

/// A span, and who sent it.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) service: String,
    pub(crate) span: Span,
}

impl Kept {
    pub(crate) fn attribute(&self, name: &str) -> Option<String> {
        text(&self.span.attributes, name)
    }

    pub(crate) fn is_child_of(&self, parent: &Self) -> bool {
        self.span.trace_id == parent.span.trace_id && self.span.parent_span_id == parent.span.span_id
    }

    pub(crate) fn is_root(&self) -> bool {
        self.span.parent_span_id.is_empty()
    }
}

#[derive(Default)]
struct Store {
    spans: Vec<Kept>,
    metrics: BTreeMap<String, Metric>,
}

/// Listens until the test's process ends.
pub(crate) struct Collector {
    address: SocketAddr,
    store: Arc<Mutex<Store>>,
}

impl Collector {
    /// On a thread of its own, so that tests that block can have one, too.
    pub(crate) fn start() -> Self {
        let store = Arc::new(Mutex::new(Store::default()));
        let routes = Router::new().route("/v1/traces", post(traces)).route("/v1/metrics", post(metrics));
        let routes = routes.with_state(store.clone());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a listener for tokio");
        let address = listener.local_addr().expect("an address");
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
                axum::serve(listener, routes).await.expect("to serve");
            });
        });
        Self { address, store }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What was sent so far.
    pub(crate) fn spans(&self) -> Vec<Kept> {
        self.store.lock().expect("no panic").spans.clone()
    }

    /// All spans of this name, in the order of their beginning.
    pub(crate) fn all(&self, name: &str) -> Vec<Kept> {
        let mut spans = self.spans();
        spans.retain(|kept| kept.span.name == name);
        spans.sort_by_key(|kept| kept.span.start_time_unix_nano);
        spans
    }

    /// The one span of this name.
    pub(crate) fn one(&self, name: &str) -> Kept {
        let spans = self.all(name);
        let [span] = &spans[..] else { panic!("{} spans {name:?} among {:#?}", spans.len(), self.spans()) };
        span.clone()
    }

    /// What was sent of a metric last.
    pub(crate) fn metric(&self, name: &str) -> Metric {
        let store = self.store.lock().expect("no panic");
        store.metrics.get(name).unwrap_or_else(|| panic!("{name} among {:?}", store.metrics.keys())).clone()
    }
}

async fn traces(State(store): State<Arc<Mutex<Store>>>, body: Bytes) -> StatusCode {
    let Ok(request) = ExportTraceServiceRequest::decode(body) else { return StatusCode::BAD_REQUEST };
    for of_resource in request.resource_spans {
        let service = service(of_resource.resource.as_ref());
        let spans = of_resource.scope_spans.into_iter().flat_map(|of_scope| of_scope.spans);
        let spans = spans.map(|span| Kept { service: service.clone(), span });
        store.lock().expect("no panic").spans.extend(spans);
    }
    StatusCode::OK
}

async fn metrics(State(store): State<Arc<Mutex<Store>>>, body: Bytes) -> StatusCode {
    let Ok(request) = ExportMetricsServiceRequest::decode(body) else { return StatusCode::BAD_REQUEST };
    let of_scopes = request.resource_metrics.into_iter().flat_map(|of_resource| of_resource.scope_metrics);
    let metrics = of_scopes.flat_map(|of_scope| of_scope.metrics);
    store.lock().expect("no panic").metrics.extend(metrics.map(|metric| (metric.name.clone(), metric)));
    StatusCode::OK
}

fn service(resource: Option<&Resource>) -> String {
    resource.and_then(|resource| text(&resource.attributes, "service.name")).unwrap_or_default()
}

pub(crate) fn text(attributes: &[KeyValue], name: &str) -> Option<String> {
    let attribute = attributes.iter().find(|attribute| attribute.key == name)?;
    match attribute.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        other => panic!("{name} is {other:?}"),
    }
}

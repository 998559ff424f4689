//! Spans and metrics to a collector, by OTLP over HTTP.

use std::{collections::HashMap, error::Error, time::Duration};

use metrics_opentelemetry::{OpenTelemetryMetrics, OpenTelemetryRecorder};
use opentelemetry::{metrics::MeterProvider as _, trace::TracerProvider as _};
use opentelemetry_otlp::{MetricExporter, Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{
    Resource,
    metrics::{Aggregation, Instrument, InstrumentKind, PeriodicReader, SdkMeterProvider, Stream},
    trace::{Sampler, SdkTracerProvider},
};
use reqwest::Url;
use tracing::{Subscriber, level_filters::LevelFilter};
use tracing_subscriber::{Layer, filter::Targets, registry::LookupSpan};

use crate::client;

const SCOPE: &str = "pillarbox";

/// From a tenth of a millisecond to a minute; OpenTelemetry's own begin at five seconds.
const SECONDS: [f64; 17] =
    [0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 20.0, 60.0];

/// How long a shutdown waits for the collector.
const FLUSH_WITHIN: Duration = Duration::from_secs(5);

/// What sending spans asks of others would be spans again.
const OF_THE_EXPORTER: [&str; 6] = ["h2", "hyper", "hyper_util", "opentelemetry", "reqwest", "rustls"];

/// Spans and metrics on their way to a collector. They are gathered and sent by threads of their own: a collector that is
/// slow or away costs spans, and a warning in the log, and never holds anybody up.
#[derive(Clone, Debug)]
pub struct Telemetry {
    spans: SdkTracerProvider,
    metrics: SdkMeterProvider,
}

/// Gathers the settings of [`Telemetry`]; `start` checks them.
#[derive(Clone, Debug)]
#[must_use = "nothing is sent before it is started"]
pub struct TelemetryBuilder {
    endpoint: String,
    service: Option<String>,
    sampled: f64,
    every: Duration,
    headers: HashMap<String, String>,
}

/// Why nothing can be sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TelemetryError {
    /// The endpoint is no address.
    #[error("{0:?} is no endpoint: it is a URL such as \"http://localhost:4318\", without /v1/traces")]
    Endpoint(String),
    /// The share is out of its range.
    #[error("the share of sampled traces is {0}: allowed is 0.0 to 1.0")]
    Sampled(f64),
    /// There is a recorder of metrics already.
    #[error(
        "this process has a recorder of metrics already: put both behind one that fans out, and use Telemetry::recorder"
    )]
    Recorder,
    /// Something else.
    #[error("the exporter could not be set up")]
    Setup(#[source] Box<dyn Error + Send + Sync>),
}

impl TelemetryError {
    pub(crate) fn setup(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Setup(error.into())
    }
}

impl Telemetry {
    /// To a collector: the address of its HTTP port, which `/v1/traces` and `/v1/metrics` are added to.
    pub fn to(endpoint: impl Into<String>) -> TelemetryBuilder {
        TelemetryBuilder {
            endpoint: endpoint.into(),
            service: None,
            sampled: 1.0,
            every: Duration::from_mins(1),
            headers: HashMap::new(),
        }
    }

    /// What makes spans of `tracing` spans of OpenTelemetry: those of the level INFO and above, with the log lines in them,
    /// without what the exporter itself does. For another choice, [`tracer_provider`](Self::tracer_provider) makes a layer.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let filter = Targets::new().with_default(LevelFilter::INFO);
        let filter = filter.with_targets(OF_THE_EXPORTER.map(|target| (target, LevelFilter::OFF)));
        // A task has no thread of its own, and the target tells enough of the place.
        let layer = tracing_opentelemetry::layer().with_threads(false).with_location(false);
        layer.with_tracer(self.spans.tracer(SCOPE)).with_filter(filter)
    }

    /// For a layer of one's own.
    pub fn tracer_provider(&self) -> &SdkTracerProvider {
        &self.spans
    }

    /// Sends whatever is counted through the facade `metrics` from now on, by this process: an outbox that was built before is
    /// not heard.
    pub fn install_metrics(&self) -> Result<(), TelemetryError> {
        metrics::set_global_recorder(self.recorder()).map_err(|_| TelemetryError::Recorder)
    }

    /// The recorder behind [`install_metrics`](Self::install_metrics), to be put beside others: `metrics-util` has a `Fanout`.
    pub fn recorder(&self) -> impl metrics::Recorder + use<> {
        OpenTelemetryRecorder::new(OpenTelemetryMetrics::new(self.metrics.meter(SCOPE)))
    }

    /// Sends what is left, and ends. Waits five seconds at the most; what could not be sent is lost, and logged.
    pub async fn shutdown(&self) {
        let Self { spans, metrics } = self.clone();
        let spans = tokio::task::spawn_blocking(move || spans.shutdown_with_timeout(FLUSH_WITHIN));
        let metrics = tokio::task::spawn_blocking(move || metrics.shutdown_with_timeout(FLUSH_WITHIN));
        for (what, ended) in [("spans", spans), ("metrics", metrics)] {
            if let Ok(Err(error)) = ended.await {
                tracing::warn!(what, error = &error as &dyn Error, "the collector did not take what was left");
            }
        }
    }
}

impl TelemetryBuilder {
    /// The name of this service. Default: `OTEL_SERVICE_NAME` of the environment, else `unknown_service`.
    pub fn service(mut self, name: impl Into<String>) -> Self {
        self.service = Some(name.into());
        self
    }

    /// Which share of the traces that begin here is sent, from 0.0 to 1.0. A trace that came from elsewhere is sent if it
    /// was there. Default: all.
    pub fn sampled(mut self, share: f64) -> Self {
        self.sampled = share;
        self
    }

    /// How often metrics are sent. Default: once a minute.
    pub fn metrics_every(mut self, every: Duration) -> Self {
        self.every = every;
        self
    }

    /// Sends a header with each request: a key, for instance.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Checks the settings, and starts the threads that send. A collector that is not there is no error.
    pub fn start(self) -> Result<Telemetry, TelemetryError> {
        let Self { endpoint, service, sampled, every, headers } = self;
        let base = Url::parse(&endpoint).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let Some(base) = base else { return Err(TelemetryError::Endpoint(endpoint)) };
        if !(0.0..=1.0).contains(&sampled) {
            return Err(TelemetryError::Sampled(sampled));
        }
        let client = client::client(&base)?;
        let path = |path: &str| format!("{}/v1/{path}", endpoint.trim_end_matches('/'));
        let mut resource = Resource::builder();
        if let Some(name) = service {
            resource = resource.with_service_name(name);
        }
        let resource = resource.build();

        let spans = SpanExporter::builder()
            .with_http()
            .with_http_client(client.clone())
            .with_headers(headers.clone())
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(path("traces"))
            .with_timeout(client::ANSWER_WITHIN)
            .build()
            .map_err(TelemetryError::setup)?;
        let spans = SdkTracerProvider::builder()
            .with_batch_exporter(spans)
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(sampled))))
            .with_resource(resource.clone())
            .build();

        let metrics = MetricExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_headers(headers)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(path("metrics"))
            .with_timeout(client::ANSWER_WITHIN)
            .build()
            .map_err(TelemetryError::setup)?;
        let metrics = SdkMeterProvider::builder()
            .with_reader(PeriodicReader::builder(metrics).with_interval(every).build())
            .with_view(buckets)
            .with_resource(resource)
            .build();
        Ok(Telemetry { spans, metrics })
    }
}

/// Times get buckets of their own.
fn buckets(instrument: &Instrument) -> Option<Stream> {
    if instrument.kind() != InstrumentKind::Histogram || instrument.unit() != "s" {
        return None;
    }
    let boundaries = SECONDS.to_vec();
    let aggregation = Aggregation::ExplicitBucketHistogram { boundaries, record_min_max: true };
    Stream::builder().with_aggregation(aggregation).build().ok()
}

//! Traces in headers.

use std::fmt;

use opentelemetry::{
    Context,
    propagation::{Extractor, Injector, TextMapPropagator},
    trace::TraceContextExt as _,
};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use pillarbox_core::{domain::Headers, port::Tracer};
use tracing::{Span, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// Carries the traces of OpenTelemetry through the outbox. The spans themselves go to whatever layer of
/// `tracing-opentelemetry` the program's subscriber has, such as [`Telemetry::layer`](crate::Telemetry::layer).
///
/// ```
/// # use pillarbox_core::{Outbox, port::Store};
/// # fn on(store: impl Store) {
/// use pillarbox_opentelemetry::OpenTelemetry;
///
/// let outbox = Outbox::single_node(store).tracer(OpenTelemetry::new());
/// # }
/// ```
pub struct OpenTelemetry {
    propagator: Box<dyn TextMapPropagator + Send + Sync>,
}

impl OpenTelemetry {
    /// In the headers `traceparent` and `tracestate`, as W3C has it, which every language reads.
    pub fn new() -> Self {
        Self::by(TraceContextPropagator::new())
    }

    /// In the headers of another propagator: of W3C's with baggage, for instance, which then stands in the table as well.
    pub fn by(propagator: impl TextMapPropagator + Send + Sync + 'static) -> Self {
        Self { propagator: Box::new(propagator) }
    }

    fn inject(&self, context: &Context) -> Headers {
        let mut into = Injected(Headers::new());
        self.propagator.inject_context(context, &mut into);
        into.0
    }

    /// What headers tell of; nothing of what this task does itself.
    fn extract(&self, headers: &Headers) -> Option<Context> {
        let context = self.propagator.extract_with_context(&Context::new(), &Extracted(headers));
        context.span().span_context().is_valid().then_some(context)
    }
}

impl Default for OpenTelemetry {
    fn default() -> Self {
        Self::new()
    }
}

impl Tracer for OpenTelemetry {
    fn current(&self) -> Headers {
        // A span of `tracing` is there, too, when it is entered; unless the layer was told otherwise.
        let context = Context::current();
        let context = if context.has_active_span() { context } else { Span::current().context() };
        self.inject(&context)
    }

    fn headers(&self, span: &Span) -> Headers {
        self.inject(&span.context())
    }

    fn adopt(&self, span: &Span, headers: &Headers) {
        if let Some(context) = self.extract(headers) {
            // It fails if nobody listens to the span, and then there is nothing to be said.
            let _ = span.set_parent(context);
        }
    }

    fn link(&self, span: &Span, headers: &Headers) {
        if let Some(context) = self.extract(headers) {
            span.add_link(context.span().span_context().clone());
        }
    }
}

impl fmt::Debug for OpenTelemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenTelemetry").field("headers", &self.propagator.fields().collect::<Vec<_>>()).finish()
    }
}

/// The span of who takes a message from a broker: a child of the relay's, by the `traceparent` among the message's headers, or
/// the first of a new trace if there is none that can be read. `source` is the topic, the subject, the stream.
///
/// ```
/// use pillarbox_opentelemetry::consumer_span;
/// use tracing::Instrument as _;
///
/// # async fn of(headers: Vec<(String, String)>) {
/// # async fn ship() {}
/// let span = consumer_span("orders", headers);
/// async { ship().await }.instrument(span).await;
/// # }
/// ```
pub fn consumer_span<N, V>(source: &str, headers: impl IntoIterator<Item = (N, V)>) -> Span
where
    N: Into<String>,
    V: Into<String>,
{
    let span = info_span!(
        target: "pillarbox::trace",
        parent: None,
        "consume",
        otel.name = %format_args!("consume {source}"),
        otel.kind = "consumer",
        source,
        otel.status_description = tracing::field::Empty,
    );
    // Names of headers have no case where they went through HTTP.
    let headers = headers.into_iter().map(|(name, value)| (name.into().to_ascii_lowercase(), value));
    OpenTelemetry::new().adopt(&span, &headers.collect());
    span
}

const TRACEPARENT: &str = "traceparent";

/// Whether it has the form that W3C gives it. The propagator also takes ids that are too short, which are somebody else's.
fn is_traceparent(text: &str) -> bool {
    let is_hex = |from: usize, to: usize| {
        text.get(from..to).is_some_and(|part| part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')))
    };
    let is_dash = |at: usize| text.as_bytes().get(at) == Some(&b'-');
    // Later versions may have more to say.
    let ends = text.len() == 55 || (!text.starts_with("00") && is_dash(55));
    is_hex(0, 2)
        && is_dash(2)
        && is_hex(3, 35)
        && is_dash(35)
        && is_hex(36, 52)
        && is_dash(52)
        && is_hex(53, 55)
        && ends
}

struct Injected(Headers);

impl Injector for Injected {
    fn set(&mut self, name: &str, value: String) {
        // A `tracestate` of nobody.
        if !value.is_empty() {
            self.0.set(name, value);
        }
    }
}

struct Extracted<'a>(&'a Headers);

impl Extractor for Extracted<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).filter(|value| name != TRACEPARENT || is_traceparent(value))
    }

    fn keys(&self) -> Vec<&str> {
        self.0.iter().map(|(name, _)| name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_has_its_form() {
        let trace = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";
        for good in [format!("00-{trace}-01"), format!("00-{trace}-00"), format!("01-{trace}-03-more")] {
            assert!(is_traceparent(&good), "{good}");
        }
        for bad in [
            String::new(),
            "00-1-2-01".into(),
            trace.into(),
            format!("00-{trace}"),
            format!("00-{trace}-01-more"),
            format!("01-{trace}-01more"),
            format!("00-{}-01", trace.to_uppercase()),
            format!("00-{}-01", trace.replace('-', "_")),
            format!("ä0-{trace}-1"),
        ] {
            assert!(!is_traceparent(&bad), "{bad}");
        }
    }
}

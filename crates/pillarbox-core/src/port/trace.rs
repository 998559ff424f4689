//! The trace that an event belongs to, from its write to its consumer.

use std::sync::Arc;

use tracing::Span;

use crate::domain::Headers;

/// Carries traces through the table: what it says at the write is stored among the event's headers, and what it reads
/// there is restored around the handler. `pillarbox-opentelemetry` has the one for OpenTelemetry and W3C's `traceparent`.
///
/// Headers of traces come from other programs. None of its methods fails: what it can't read is no trace. A panic counts
/// as no trace, too.
pub trait Tracer: Send + Sync + 'static {
    /// The headers that continue what is going on in this task. Empty if no trace is.
    fn current(&self) -> Headers;

    /// The headers that continue a span. Empty if the span belongs to no trace, for instance because nobody listens to it.
    fn headers(&self, span: &Span) -> Headers;

    /// Makes a span a child of what the headers tell of. The span is new: neither entered nor asked for its headers. It stays
    /// as it is if there is no trace in the headers, or none that can be read.
    fn adopt(&self, span: &Span, headers: &Headers);

    /// Says of a span that it also has to do with what the headers tell of.
    fn link(&self, span: &Span, headers: &Headers);
}

impl<T: Tracer + ?Sized> Tracer for Arc<T> {
    fn current(&self) -> Headers {
        (**self).current()
    }

    fn headers(&self, span: &Span) -> Headers {
        (**self).headers(span)
    }

    fn adopt(&self, span: &Span, headers: &Headers) {
        (**self).adopt(span, headers);
    }

    fn link(&self, span: &Span, headers: &Headers) {
        (**self).link(span, headers);
    }
}

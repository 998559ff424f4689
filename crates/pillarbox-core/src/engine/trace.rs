//! Spans around writes and handlers, and the traces that events belong to.
//!
//! Without a [`Tracer`], a handler runs in a span of the level DEBUG with the event's id, and nobody pays for it who does not
//! listen. With one, spans are of the level INFO, all of the target `pillarbox::trace`:
//!
//! | span | parent | of |
//! |---|---|---|
//! | `write TYPE` | what the caller is doing | a call of `write` or `write_all`, if the caller has a trace |
//! | `deliver TYPE`, `send TYPE` | the write | a call of a handler; each attempt has its own |
//! | `deliver batch` | none, with links to the `deliver` of each event | a call of a batch handler |

use std::{panic::AssertUnwindSafe, sync::Arc};

use tracing::{Instrument as _, Span, debug_span, field::Empty, info_span};

use super::calling::panic_text;
use crate::{
    domain::{Delivery, Event, Failure, Outcome},
    port::{BoxFuture, Tracer},
};

const TARGET: &str = "pillarbox::trace";

/// The tracer of an outbox, if it has one.
#[derive(Clone, Default)]
pub(crate) struct Traces(Option<Arc<dyn Tracer>>);

impl Traces {
    pub(crate) fn by(tracer: impl Tracer) -> Self {
        Self(Some(Arc::new(tracer)))
    }

    /// The span of a write, whose trace the events get. Those that have one of its headers keep their own.
    pub(crate) fn write(&self, batch: &mut [Event]) -> Span {
        let (Some(tracer), Some(first)) = (&self.0, batch.first()) else { return Span::none() };
        let current = guarded(|| tracer.current());
        if current.is_empty() {
            return Span::none();
        }
        let span = info_span!(
            target: TARGET,
            "write",
            otel.name = %format_args!("write {}", first.event_type()),
            otel.kind = "producer",
            event_id = %first.id(),
            event_type = %first.event_type(),
            events = number(batch.len()),
            otel.status_description = Empty,
        );
        let of_span = guarded(|| tracer.headers(&span));
        let headers = if of_span.is_empty() { current } else { of_span };
        for event in batch {
            if headers.iter().any(|(name, _)| event.headers().get(name).is_some()) {
                continue;
            }
            let builder = headers.iter().fold(event.to_builder(), |builder, (name, value)| builder.header(name, value));
            // An event whose headers have no room for its trace goes without: a write never fails for it.
            if let Ok(traced) = builder.build() {
                *event = traced;
            }
        }
        span
    }

    /// The span of a delivery to a handler, which the delivery then tells of.
    pub(crate) fn delivery(&self, delivery: &mut Delivery, passes_on: bool) -> Span {
        let event = delivery.event();
        let Some(tracer) = &self.0 else {
            return debug_span!(
                target: TARGET,
                parent: None,
                "deliver",
                event_id = %event.id(),
                event_type = %event.event_type(),
                handler = delivery.handler_id(),
                attempt = i64::from(delivery.attempt()),
                otel.status_description = Empty,
            );
        };
        let (name, kind) = if passes_on { ("send", "producer") } else { ("deliver", "consumer") };
        let span = info_span!(
            target: TARGET,
            parent: None,
            "deliver",
            otel.name = %format_args!("{name} {}", event.event_type()),
            otel.kind = kind,
            event_id = %event.id(),
            event_type = %event.event_type(),
            handler = delivery.handler_id(),
            attempt = i64::from(delivery.attempt()),
            otel.status_description = Empty,
        );
        if !span.is_disabled() {
            let headers = guarded(|| {
                tracer.adopt(&span, event.headers());
                tracer.headers(&span)
            });
            if !headers.is_empty() {
                delivery.continued_by(headers);
            }
        }
        span
    }

    /// The span of a call with several deliveries, and one for each of them.
    pub(crate) fn batch(&self, deliveries: &mut [Delivery], passes_on: bool) -> (Span, Vec<Span>) {
        let handler = deliveries.first().map(Delivery::handler_id).unwrap_or_default();
        let events = number(deliveries.len());
        let Some(tracer) = &self.0 else {
            let call = debug_span!(target: TARGET, parent: None, "deliver batch", handler, events);
            return (call, vec![Span::none(); deliveries.len()]);
        };
        if passes_on {
            // Who sends on does nothing with them together that would have a meaning of its own.
            return (Span::none(), deliveries.iter_mut().map(|delivery| self.delivery(delivery, true)).collect());
        }
        let call = info_span!(target: TARGET, parent: None, "deliver batch", otel.kind = "consumer", handler, events);
        let each = deliveries.iter_mut().map(|delivery| {
            let span = self.delivery(delivery, false);
            if let Some(headers) = delivery.trace() {
                guarded(|| tracer.link(&call, headers));
            }
            span
        });
        let each = each.collect();
        (call, each)
    }
}

impl std::fmt::Debug for Traces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "a tracer" } else { "no tracer" })
    }
}

/// Collectors know numbers of this type alone; others become text.
fn number(of: usize) -> i64 {
    i64::try_from(of).unwrap_or(i64::MAX)
}

/// Makes a future in a span, and runs it there. Who does not listen pays nothing for it.
pub(crate) fn inside<'a, T: 'a>(span: &Span, make: impl FnOnce() -> BoxFuture<'a, T>) -> BoxFuture<'a, T> {
    if span.is_disabled() {
        return make();
    }
    Box::pin(span.in_scope(make).instrument(span.clone()))
}

/// Says on a span how its delivery ended.
pub(crate) fn ended(span: &Span, result: &Result<Outcome, Failure>) {
    if let (Err(failure), false) = (result, span.is_disabled()) {
        span.record("otel.status_description", tracing::field::display(failure));
    }
}

/// What a tracer says; nothing if it panics.
fn guarded<T: Default>(ask: impl FnOnce() -> T) -> T {
    std::panic::catch_unwind(AssertUnwindSafe(ask)).unwrap_or_else(|panic| {
        tracing::error!(error = panic_text(&*panic), "the tracer panicked: the trace ends here");
        T::default()
    })
}

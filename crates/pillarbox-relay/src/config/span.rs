//! Spans of time as people write them.

use std::{fmt, time::Duration};

use serde::de::{self, Deserializer, Visitor};

/// A span such as `"250ms"`, `"5s"`, `"1m 30s"` or `"7days"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span(pub(super) Duration);

impl<'de> de::Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Text)
    }
}

struct Text;

impl Visitor<'_> for Text {
    type Value = Span;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a span of time with its unit, such as \"250ms\", \"5s\", \"1m 30s\" or \"7days\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
        humantime::parse_duration(text).map(Span).map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

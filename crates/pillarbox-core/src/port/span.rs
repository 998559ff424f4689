//! Spans of time in settings, for `#[serde(with = "span")]`: `"250ms"`, `"10s"`, `"2m"`, `"1h"`, `"7d"`.

use std::{fmt, time::Duration};

use serde::de::{Deserializer, Error, Unexpected, Visitor};

/// Reads a span: a whole number with its unit.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    deserializer.deserialize_any(Span)
}

/// Reads a span that may be left out.
pub mod option {
    use super::{Deserializer, Duration};

    /// Reads a span.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        super::deserialize(deserializer).map(Some)
    }
}

struct Span;

impl Visitor<'_> for Span {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a span of time with its unit, such as \"250ms\", \"10s\", \"2m\", \"1h\" or \"7d\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
        let wrong = || E::invalid_value(Unexpected::Str(text), &self);
        let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let seconds = |each: u64| number.checked_mul(each).map(Duration::from_secs).ok_or_else(wrong);
        match unit.trim_start() {
            "ms" => Ok(Duration::from_millis(number)),
            "s" => seconds(1),
            "m" => seconds(60),
            "h" => seconds(3_600),
            "d" => seconds(86_400),
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    struct Settings(#[serde(with = "super")] Duration);

    #[test]
    fn spans_are_whole_numbers_with_a_unit() {
        for (json, expected) in [
            ("\"250ms\"", Some(Duration::from_millis(250))),
            ("\"10s\"", Some(Duration::from_secs(10))),
            ("\"2 m\"", Some(Duration::from_mins(2))),
            ("\"1h\"", Some(Duration::from_hours(1))),
            ("\"7d\"", Some(Duration::from_hours(168))),
            ("\"0s\"", Some(Duration::ZERO)),
            ("\"10\"", None),
            ("\"soon\"", None),
            ("\"-1s\"", None),
            ("\"1.5s\"", None),
            ("\"99999999999999999999s\"", None),
            ("\"9999999999999999999d\"", None),
            ("3", None),
        ] {
            let parsed = serde_json::from_str::<Settings>(json).ok().map(|settings| settings.0);
            assert_eq!(parsed, expected, "{json}");
        }
    }
}

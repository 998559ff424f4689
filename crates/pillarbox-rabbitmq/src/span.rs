//! Spans of time in settings: `"250ms"`, `"10s"`, `"2m"`, or a number of seconds.

use std::{fmt, time::Duration};

use serde::{
    Deserializer,
    de::{Error, Visitor},
};

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    deserializer.deserialize_any(Span)
}

struct Span;

impl Visitor<'_> for Span {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a span of time such as \"250ms\", \"10s\" or \"2m\", or a number of seconds")
    }

    fn visit_u64<E: Error>(self, seconds: u64) -> Result<Duration, E> {
        Ok(Duration::from_secs(seconds))
    }

    fn visit_i64<E: Error>(self, seconds: i64) -> Result<Duration, E> {
        u64::try_from(seconds).map(Duration::from_secs).map_err(|_| E::custom("a span of time can't be negative"))
    }

    fn visit_f64<E: Error>(self, seconds: f64) -> Result<Duration, E> {
        Duration::try_from_secs_f64(seconds).map_err(E::custom)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
        let text = text.trim();
        let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
        let number: u64 = number.parse().map_err(|_| E::invalid_value(serde::de::Unexpected::Str(text), &self))?;
        match unit.trim() {
            "ms" => Ok(Duration::from_millis(number)),
            "s" => Ok(Duration::from_secs(number)),
            "m" => Ok(Duration::from_secs(number.saturating_mul(60))),
            _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    struct Settings(#[serde(with = "super")] Duration);

    #[test]
    fn spans_are_texts_with_a_unit_or_seconds() {
        for (json, expected) in [
            ("\"250ms\"", Some(Duration::from_millis(250))),
            ("\"10s\"", Some(Duration::from_secs(10))),
            ("\"2 m\"", Some(Duration::from_mins(2))),
            ("3", Some(Duration::from_secs(3))),
            ("0.5", Some(Duration::from_millis(500))),
            ("\"10\"", None),
            ("\"soon\"", None),
            ("-1", None),
        ] {
            let parsed = serde_json::from_str::<Settings>(json).ok().map(|settings| settings.0);
            assert_eq!(parsed, expected, "{json}");
        }
    }
}

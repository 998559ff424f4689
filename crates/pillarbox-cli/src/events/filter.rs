//! Which events: the options that `list` and `follow` share.

use std::time::Duration;

use clap::Args;
use pillarbox::{Query, Status, Timestamp};

/// Narrows what is shown; what is not given matches everything.
#[derive(Clone, Debug, Args)]
pub(super) struct Filter {
    /// In this status: NEW, RETRY, DONE or DEAD; may be given more than once, or with commas.
    #[arg(long, value_name = "STATUS", value_delimiter = ',', value_parser = status)]
    status: Vec<Status>,
    /// Of this event type.
    #[arg(long = "type", value_name = "TYPE")]
    event_type: Option<String>,
    /// Of this aggregate type.
    #[arg(long, value_name = "TYPE")]
    aggregate_type: Option<String>,
    /// Of this aggregate.
    #[arg(long, value_name = "ID")]
    aggregate_id: Option<String>,
    /// Of this tenant.
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    /// With this ordering key.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Inserted since then: a span such as 90s, 30m, 1h or 2d, or a time such as 2026-11-15T08:30:00Z.
    #[arg(long, value_name = "WHEN", value_parser = since)]
    since: Option<Since>,
    /// With this text in the last error or the payload, letter case apart.
    #[arg(long, value_name = "WORDS")]
    text: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Since {
    Ago(Duration),
    At(Timestamp),
}

impl Filter {
    /// What is asked, at a time of the database's.
    pub(super) fn query(&self, now: Timestamp) -> Query {
        Query {
            statuses: self.status.clone(),
            event_type: self.event_type.clone(),
            aggregate_type: self.aggregate_type.clone(),
            aggregate_id: self.aggregate_id.clone(),
            tenant_id: self.tenant.clone(),
            key: self.key.clone(),
            from: self.since.map(|since| match since {
                Since::Ago(span) => now.saturating_sub(span),
                Since::At(time) => time,
            }),
            text: self.text.clone(),
            ..Query::default()
        }
    }
}

fn status(text: &str) -> Result<Status, String> {
    text.to_ascii_uppercase().parse().map_err(|_| "it is NEW, RETRY, DONE or DEAD".to_owned())
}

fn since(text: &str) -> Result<Since, String> {
    let read = span(text).map(Since::Ago).or_else(|| text.parse().ok().map(Since::At));
    read.ok_or_else(|| "it is a span such as 90s, 30m, 1h or 2d, or a time such as 2026-11-15T08:30:00Z".to_owned())
}

fn span(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let seconds = match unit.trim_start() {
        "s" => 1,
        "m" | "min" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(seconds).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_a_number_and_a_unit() {
        for (text, seconds) in [("90s", 90), ("30m", 1_800), ("5 min", 300), ("1h", 3_600), ("2d", 172_800)] {
            assert_eq!(since(text), Ok(Since::Ago(Duration::from_secs(seconds))), "{text}");
        }
        for text in ["", "h", "1", "1w", "-1h", "99999999999999999999d", "18446744073709551615d"] {
            assert!(since(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_are_those_that_are_printed() {
        for micros in [0, 951_782_400_000_000, 1_794_731_400_250_000, 4_107_542_399_999_999, -1] {
            let time = Timestamp::from_micros(micros);
            assert_eq!(since(&time.to_string()), Ok(Since::At(time)));
        }
        let at = |text: &str| match since(text) {
            Ok(Since::At(time)) => time.to_string(),
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(at("2026-11-15"), "2026-11-15T00:00:00.000000Z");
        assert_eq!(at("2026-11-15T08:30Z"), "2026-11-15T08:30:00.000000Z");
        assert_eq!(at("2026-11-15 08:30:01.5+02:00"), "2026-11-15T06:30:01.500000Z");
        assert_eq!(at("2024-02-29T23:59:59.1234567-00:30"), "2024-03-01T00:29:59.123456Z");
        for text in
            ["2026-02-29", "2026-13-01", "2026-11-15T24:00Z", "2026-11-15T08:30", "2026-11-15T08:30:00.Z", "été"]
        {
            assert!(since(text).is_err(), "{text}");
        }
    }
}

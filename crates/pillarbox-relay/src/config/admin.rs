//! The operators' API: `pillarbox admin`.

use std::{fmt, net::SocketAddr, time::Duration};

use pillarbox_core::port::span;

use super::{ConfigError, listen};

/// How the operators' API is served. What is not set has the default of `pillarbox-admin`.
#[derive(Clone, Default, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdminConfig {
    /// Where it listens.
    #[serde(deserialize_with = "listen::set")]
    pub listen: Option<SocketAddr>,
    /// Who may come in: a line for each token, with name, role and token.
    pub tokens: Option<String>,
    /// The paths of payloads whose values are hidden from viewers.
    pub redact: Vec<String>,
    /// The names of headers whose values are hidden from viewers.
    pub redact_headers: Vec<String>,
    /// Whether errors are hidden from viewers.
    pub hide_errors: bool,
    /// Whether payloads are hidden from viewers altogether.
    pub hide_payloads: bool,
    /// Whether operators are treated like viewers in this.
    pub redact_for_everybody: bool,
    /// How much may be asked.
    pub limits: LimitsConfig,
}

/// How much may be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// How many items a page has where nothing is asked.
    pub page: Option<u32>,
    /// How many items a page may have.
    pub largest_page: Option<u32>,
    /// After how many bytes of payload a page ends early.
    pub page_bytes: Option<usize>,
    /// How many bytes a body may have.
    pub body: Option<usize>,
    /// How many events or letters one request may act upon.
    pub bulk: Option<u64>,
    /// How many requests a caller may send a second.
    pub requests_per_second: Option<f64>,
    /// How many it may send at once after a pause.
    pub burst: Option<u32>,
    /// How many requests are worked on at once.
    pub at_once: Option<usize>,
    /// How long one may take.
    #[serde(with = "span::option")]
    pub time: Option<Duration>,
}

impl AdminConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let limits = &self.limits;
        let at = |key: &str, what: String| Err(ConfigError::at(format!("admin.limits.{key}"), what));
        let numbers = [
            ("page", limits.page.map(u64::from), 10_000),
            ("largest_page", limits.largest_page.map(u64::from), 10_000),
            ("page_bytes", limits.page_bytes.map(|bytes| bytes as u64), 1 << 30),
            ("body", limits.body.map(|bytes| bytes as u64), 1 << 30),
            ("bulk", limits.bulk, 1_000_000),
            ("burst", limits.burst.map(u64::from), 1_000_000),
            ("at_once", limits.at_once.map(|requests| requests as u64), 10_000),
        ];
        for (key, value, most) in numbers {
            if let Some(value) = value.filter(|value| !(1..=most).contains(value)) {
                return at(key, format!("is {value}: allowed is 1 to {most}"));
            }
        }
        if let Some(rate) = limits.requests_per_second.filter(|rate| !(0.01..=100_000.0).contains(rate)) {
            return at("requests_per_second", format!("is {rate}: allowed is 0.01 to 100000"));
        }
        match limits.time.filter(|time| *time < Duration::from_secs(1)) {
            Some(time) => at("time", format!("is {time:?}: the least is 1s")),
            None => Ok(()),
        }
    }
}

/// Without the tokens.
impl fmt::Debug for AdminConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminConfig")
            .field("listen", &self.listen)
            .field("tokens", &self.tokens.is_some())
            .field("redact", &self.redact)
            .field("redact_headers", &self.redact_headers)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

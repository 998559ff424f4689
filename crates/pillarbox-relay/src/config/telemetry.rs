//! Where spans and metrics go.

use std::{collections::BTreeMap, fmt, time::Duration};

use pillarbox_core::port::span;

use super::ConfigError;

/// Where spans and metrics go: to a collector of OpenTelemetry, by OTLP over HTTP.
#[derive(Clone, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Telemetry {
    /// Where the collector listens. Without it, nothing is sent.
    pub endpoint: Option<String>,
    /// What this service is called.
    pub service: String,
    /// Which share is sent of the traces that begin here.
    pub sampled: f64,
    /// Whether metrics are sent as well.
    pub metrics: bool,
    /// How often they are.
    #[serde(with = "span")]
    pub metrics_every: Duration,
    /// Headers of each request.
    pub headers: BTreeMap<String, String>,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self {
            endpoint: None,
            service: "pillarbox-relay".into(),
            sampled: 1.0,
            metrics: true,
            metrics_every: Duration::from_mins(1),
            headers: BTreeMap::new(),
        }
    }
}

impl Telemetry {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let at = |key: &str, what: String| Err(ConfigError::at(format!("telemetry.{key}"), what));
        if self.endpoint.as_deref().is_some_and(|endpoint| !is_endpoint(endpoint)) {
            return at(
                "endpoint",
                "is no address of a collector: it is a URL such as \"http://localhost:4318\"".into(),
            );
        }
        if self.service.is_empty() {
            return at("service", "is empty: it is a name such as \"pillarbox-relay\"".into());
        }
        if !(0.0..=1.0).contains(&self.sampled) {
            return at("sampled", format!("is {}: allowed is 0.0 to 1.0", self.sampled));
        }
        if self.metrics_every < Duration::from_secs(1) {
            return at("metrics_every", format!("is {:?}: at least 1s is allowed", self.metrics_every));
        }
        let is_name = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':');
        match self.headers.iter().find(|(name, value)| !is_name(name) || value.chars().any(char::is_control)) {
            Some((name, _)) => at(&format!("headers.{name}"), "is no header: its name or its value is none".into()),
            None => Ok(()),
        }
    }
}

fn is_endpoint(text: &str) -> bool {
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    host.is_some_and(|host| {
        !host.is_empty() && !host.starts_with(['/', ':']) && host.bytes().all(|it| it.is_ascii_graphic())
    })
}

/// Without the headers' values, and without the URL, which may hold a password.
impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry")
            .field("is_on", &self.endpoint.is_some())
            .field("service", &self.service)
            .field("headers", &self.headers.keys())
            .finish_non_exhaustive()
    }
}

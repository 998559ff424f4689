//! Sinks as they are written: `type` says which, all other keys are that sink's own.

use std::{collections::BTreeMap, fmt, sync::Arc};

use figment::value::{Dict, Tag, Value};
use pillarbox_core::port::{Sink, SinkError};
use serde::de::DeserializeOwned;

use super::{ConfigError, error::unknown, read::extract};
use crate::StdoutSink;

/// A sink that is set up and not yet connected.
#[derive(Clone)]
pub struct SinkConfig {
    kind: &'static str,
    sink: Arc<dyn Sink>,
}

impl SinkConfig {
    /// Its type.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// The sink.
    pub fn sink(&self) -> Arc<dyn Sink> {
        self.sink.clone()
    }

    /// The same with another sink in its place, as one that wraps it and measures what it does.
    #[must_use]
    pub fn map(self, with: impl FnOnce(Arc<dyn Sink>) -> Arc<dyn Sink>) -> Self {
        Self { kind: self.kind, sink: with(self.sink) }
    }
}

impl fmt::Debug for SinkConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind)
    }
}

type Open = fn(&str, Dict) -> Result<Arc<dyn Sink>, ConfigError>;

/// How a sink is opened whose crate is there with a feature.
macro_rules! of_feature {
    ($feature:literal, $crate_name:ident) => {{
        #[cfg(feature = $feature)]
        const OPEN: Option<Open> = Some(|path, dict| open(path, dict, $crate_name::Options::open));
        #[cfg(not(feature = $feature))]
        const OPEN: Option<Open> = None;
        OPEN
    }};
}

/// Every type there is, and how it is opened; those that this build lacks can't be.
const KINDS: [(&str, Option<Open>); 7] = [
    ("http", of_feature!("http", pillarbox_http)),
    ("kafka", of_feature!("kafka", pillarbox_kafka)),
    ("mqtt", of_feature!("mqtt", pillarbox_mqtt)),
    ("nats", of_feature!("nats", pillarbox_nats)),
    ("rabbitmq", of_feature!("rabbitmq", pillarbox_rabbitmq)),
    ("redis", of_feature!("redis", pillarbox_redis)),
    ("stdout", Some(stdout)),
];

pub(super) fn read(sinks: BTreeMap<String, Dict>) -> Result<BTreeMap<String, SinkConfig>, ConfigError> {
    let mut read = BTreeMap::new();
    for (name, mut dict) in sinks {
        let path = format!("sinks.{name}");
        let kinds: Vec<&str> = KINDS.iter().map(|(kind, _)| *kind).collect();
        let wanted = match dict.remove("type") {
            Some(Value::String(_, kind)) => kind,
            Some(_) => return Err(ConfigError::at(format!("{path}.type"), "is no text")),
            None => {
                let what = format!("is missing: it says what kind of sink this is: {}", kinds.join(", "));
                return Err(ConfigError::at(format!("{path}.type"), what));
            }
        };
        let Some((kind, open)) = KINDS.iter().find(|(kind, _)| *kind == wanted) else {
            return Err(ConfigError::at(
                format!("{path}.type"),
                format!("{wanted:?} {}", unknown("sink", &wanted, &kinds)),
            ));
        };
        let Some(open) = open else {
            let what = format!("{kind:?} is not in this build: build it with the feature `{kind}`");
            return Err(ConfigError::at(format!("{path}.type"), what));
        };
        let sink = open(&path, dict)?;
        read.insert(name, SinkConfig { kind, sink });
    }
    Ok(read)
}

/// What the address of a broker begins with, and what kind of sink that is.
const SCHEMES: [(&str, &str); 11] = [
    ("nats", "nats"),
    ("tls", "nats"),
    ("redis", "redis"),
    ("rediss", "redis"),
    ("amqp", "rabbitmq"),
    ("amqps", "rabbitmq"),
    ("mqtt", "mqtt"),
    ("mqtts", "mqtt"),
    ("http", "http"),
    ("https", "http"),
    ("kafka", "kafka"),
];

/// A sink by its address alone, with the defaults of its kind. The address may hold a password, and is not repeated.
pub fn broker(url: &str) -> Result<SinkConfig, ConfigError> {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme).to_ascii_lowercase();
    let Some((_, kind)) = SCHEMES.iter().find(|(known, _)| *known == scheme) else {
        let what = "is the address of no broker that is known: it begins with nats://, redis://, rediss://, amqp://, \
                    amqps://, mqtt://, mqtts://, http://, https:// or kafka://";
        return Err(ConfigError::at("", what));
    };
    let (key, address) = match *kind {
        "kafka" => ("brokers", url.split_once("://").map_or(url, |(_, brokers)| brokers)),
        _ => ("url", url),
    };
    let text = |text: &str| Value::String(Tag::Default, text.to_owned());
    let dict = Dict::from([("type".to_owned(), text(kind)), (key.to_owned(), text(address))]);
    let read = read(BTreeMap::from([("broker".to_owned(), dict)]));
    let mut read = read.map_err(|error| ConfigError::at("", error.what()))?;
    read.remove("broker").ok_or_else(|| ConfigError::at("", "is no broker"))
}

/// Reads the options, and opens the sink with them.
#[cfg_attr(
    not(any(
        feature = "http",
        feature = "kafka",
        feature = "mqtt",
        feature = "nats",
        feature = "rabbitmq",
        feature = "redis"
    )),
    expect(dead_code, reason = "no sink of this build has options")
)]
fn open<O: DeserializeOwned, S: Sink>(
    path: &str,
    dict: Dict,
    open: fn(O) -> Result<S, SinkError>,
) -> Result<Arc<dyn Sink>, ConfigError> {
    let options = extract::<O>(path, dict)?;
    let sink = open(options).map_err(|error| ConfigError::at(path, error.to_string()))?;
    Ok(Arc::new(sink))
}

#[expect(clippy::needless_pass_by_value, reason = "as all that open a sink")]
fn stdout(path: &str, dict: Dict) -> Result<Arc<dyn Sink>, ConfigError> {
    match dict.keys().next() {
        Some(key) => {
            Err(ConfigError::at(format!("{path}.{key}"), "is no key of a sink of type \"stdout\", which has none"))
        }
        None => Ok(Arc::new(StdoutSink::new())),
    }
}

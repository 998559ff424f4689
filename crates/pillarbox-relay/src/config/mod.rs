//! A relay from a file, the environment and flags.
//!
//! A later source comes before an earlier one: the file, then `PILLARBOX__SECTION__KEY` of the environment, then what is
//! set by hand (`--set section.key=value`). Wherever a text is expected, `{ file = "..." }` and `{ env = "..." }` take it from a
//! file or a variable, so that no secret has to stand in the configuration; what was read there is never printed.
//!
//! Every setting of the outbox's builder is a key of `[outbox]`, with the same name and default. What is unknown or out
//! of its range is refused with its path, what is allowed, and what may have been meant. The same holds for `[guard]`,
//! `[inbox]`, `[consumer]` and `[dead_letters]`, which a service hands to its builders ([`Settings`]), and `[admin]`, which
//! `pillarbox admin` reads.

mod admin;
mod error;
mod listen;
mod outbox;
mod read;
mod rules;
mod settings;
mod sinks;
mod telemetry;

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

pub use admin::{AdminConfig, LimitsConfig};
pub use error::ConfigError;
pub use outbox::OutboxConfig;
pub use read::Source;
pub use settings::Settings;
pub use sinks::{SinkConfig, broker};
pub use telemetry::Telemetry;

use self::read::Raw;
use crate::{Mode, Rules};

/// Everything that a relay is told.
#[derive(Clone, Debug)]
pub struct Config {
    /// The outbox it reads.
    pub outbox: OutboxConfig,
    /// The messages it makes.
    pub messages: Messages,
    /// Where they go, by name.
    pub sinks: BTreeMap<String, SinkConfig>,
    /// Which event goes where.
    pub rules: Arc<Rules>,
    /// The port for metrics and health.
    pub http: Http,
    /// What it says of itself.
    pub log: Log,
    /// Where its spans and metrics go.
    pub telemetry: Telemetry,
}

/// The messages that a relay makes.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Messages {
    /// Who sends them: the CloudEvents attribute, a URI reference.
    pub source: String,
    /// How their attributes travel.
    pub mode: Mode,
    /// How many one batch has at the most.
    pub batch: usize,
    /// Where events go that no rule matches. With a single sink it is the default.
    pub unmatched: Option<Vec<String>>,
}

impl Default for Messages {
    fn default() -> Self {
        Self { source: "/pillarbox".into(), mode: Mode::default(), batch: 500, unmatched: None }
    }
}

/// The port for metrics and health.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// Where it listens.
    #[serde(deserialize_with = "listen::address")]
    pub listen: SocketAddr,
    /// Whether it does.
    pub enabled: bool,
}

impl Default for Http {
    fn default() -> Self {
        Self { listen: SocketAddr::from(([127, 0, 0, 1], 9464)), enabled: true }
    }
}

/// What a relay says of itself.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// For people or for programs.
    pub format: LogFormat,
    /// Which lines, as `RUST_LOG` has it.
    pub filter: String,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            format: LogFormat::default(), // The payloads of messages that RabbitMQ returns are not for a log.
            filter: "info,lapin::returned_messages=off".into(),
        }
    }
}

/// How the lines of the log look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// A JSON object a line.
    Json,
}

/// The commented file, with every setting and its default.
pub const REFERENCE: &str = include_str!("reference.toml");

impl Config {
    /// Reads all sources, and refuses what is wrong.
    pub fn read(source: &Source) -> Result<Self, ConfigError> {
        source.read(Self::of)
    }

    fn of(raw: Raw) -> Result<Self, ConfigError> {
        let sinks = sinks::read(raw.sinks)?;
        let rules = rules::read(raw.rules, raw.messages.unmatched.clone(), &sinks)?;
        let batch = raw.messages.batch;
        if !(1..=10_000).contains(&batch) {
            return Err(ConfigError::at("messages.batch", format!("is {batch}: allowed is 1 to 10000")));
        }
        if raw.messages.source.is_empty() {
            return Err(ConfigError::at("messages.source", "is empty: it is a URI reference such as \"/orders\""));
        }
        raw.outbox.check_url()?;
        raw.telemetry.check()?;
        Ok(Self {
            outbox: raw.outbox,
            messages: raw.messages,
            sinks,
            rules: Arc::new(rules),
            http: raw.http,
            log: raw.log,
            telemetry: raw.telemetry,
        })
    }
}

#[cfg(test)]
mod tests;

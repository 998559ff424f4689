//! Every setting of the consumer's half, as a file or the environment has it: the names are those of the builders' methods,
//! and the defaults stand here, for both.
//!
//! They are read by serde, from whatever a service keeps its settings in. `pillarbox::config` reads the sections `[guard]`,
//! `[inbox]`, `[consumer]` and `[dead_letters]` of a TOML file and the environment.
//!
//! ```
//! use pillarbox_inbox::{Guard, GuardSettings, MemoryGuard};
//!
//! let settings: GuardSettings = serde_json::from_str(r#"{ "ttl": "30m" }"#)?;
//! let guard = Guard::new(MemoryGuard::new()).settings(&settings);
//! # Ok::<(), serde_json::Error>(())
//! ```

use std::{fmt, time::Duration};

use pillarbox_core::{
    domain::bucket::LEAST_WINDOW,
    port::{CircuitSettings, RetrySettings, span},
};
use serde::Deserialize;

use crate::{Error, OnUnknown};

/// The settings of a [`Guard`](crate::Guard).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GuardSettings {
    /// Whether it guards; if not, every message is the first.
    pub enabled: bool,
    /// How long a mark stands.
    #[serde(with = "span")]
    pub ttl: Duration,
}

impl Default for GuardSettings {
    fn default() -> Self {
        Self { enabled: true, ttl: Duration::from_hours(1) }
    }
}

/// The settings of an [`Inbox`](crate::Inbox).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InboxSettings {
    /// Whether messages are entered; if not, every message is the first.
    pub enabled: bool,
    /// How long messages are remembered, at least.
    #[serde(with = "span")]
    pub window: Duration,
    /// Whether the tables are made at the start, or expected.
    pub migrate: bool,
    /// What the names of the tables begin with: for `SqliteInbox::with_prefix` and its siblings.
    pub prefix: String,
}

impl Default for InboxSettings {
    fn default() -> Self {
        Self { enabled: true, window: Duration::from_hours(24), migrate: true, prefix: "inbox_".into() }
    }
}

/// The settings of [`DeadLetters`](crate::DeadLetters).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeadLetterSettings {
    /// Whether what is given up is kept; if not, it is told in the log and gone.
    pub enabled: bool,
    /// How often a letter may be replayed.
    pub most_replays: u32,
    /// How long finished letters are kept.
    #[serde(with = "span")]
    pub retention: Duration,
    /// Which of the configured sinks replays go through, where there are several.
    pub sink: Option<String>,
}

impl Default for DeadLetterSettings {
    fn default() -> Self {
        Self { enabled: true, most_replays: 3, retention: Duration::from_hours(7 * 24), sink: None }
    }
}

/// The settings of a [`Consumer`](crate::Consumer).
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConsumerSettings {
    /// How many handlers run at once.
    pub workers: usize,
    /// How many messages are held at once.
    pub prefetch: usize,
    /// How many messages share a transaction at the most.
    pub messages_per_transaction: usize,
    /// After how many deliveries without an end a message runs alone.
    pub max_deliveries: u32,
    /// What becomes of a message whose type no handler takes.
    pub on_unknown: OnUnknown,
    /// How long a handler may take.
    #[serde(with = "span")]
    pub handler_timeout: Duration,
    /// How long running handlers may take at a shutdown.
    #[serde(with = "span")]
    pub drain_timeout: Duration,
    /// How long the sender and the broker may hold a message back.
    #[serde(with = "span")]
    pub under_way: Duration,
    /// How often is removed what is over.
    #[serde(with = "span")]
    pub upkeep_every: Duration,
    /// What the names of metrics begin with.
    pub metrics_prefix: String,
    /// When failed messages are tried again.
    pub retry: RetrySettings,
    /// When the circuit of a destination opens.
    pub circuit: CircuitSettings,
}

impl Default for ConsumerSettings {
    fn default() -> Self {
        Self {
            workers: 8,
            prefetch: 500,
            messages_per_transaction: 100,
            max_deliveries: 20,
            on_unknown: OnUnknown::default(),
            handler_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(15),
            under_way: Duration::from_hours(1),
            upkeep_every: Duration::from_mins(1),
            metrics_prefix: "pillarbox".into(),
            retry: RetrySettings::default(),
            circuit: CircuitSettings::default(),
        }
    }
}

/// A value that a setting can't have: which setting, and what it may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The setting, such as `workers` or `retry`.
    pub key: &'static str,
    /// What is wrong with its value, and what is allowed.
    pub what: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.key, self.what)
    }
}

impl std::error::Error for Refused {}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        Self::Setting(refused.to_string())
    }
}

impl GuardSettings {
    /// Refuses what can't be.
    pub fn check(&self) -> Result<(), Refused> {
        at_least("ttl", self.ttl, Duration::from_millis(1))
    }
}

impl InboxSettings {
    /// Refuses what can't be.
    pub fn check(&self) -> Result<(), Refused> {
        at_least("window", self.window, LEAST_WINDOW)
    }
}

impl DeadLetterSettings {
    /// Refuses what can't be.
    pub fn check(&self) -> Result<(), Refused> {
        between("most_replays", self.most_replays as usize, 0, 1_000)
    }
}

impl ConsumerSettings {
    /// Refuses what can't be.
    pub fn check(&self) -> Result<(), Refused> {
        between("workers", self.workers, 1, 10_000)?;
        between("prefetch", self.prefetch, 1, 100_000)?;
        between("messages_per_transaction", self.messages_per_transaction, 1, 10_000)?;
        between("max_deliveries", self.max_deliveries as usize, 1, 1_000_000)?;
        at_least("handler_timeout", self.handler_timeout, Duration::from_millis(1))?;
        at_least("upkeep_every", self.upkeep_every, Duration::from_millis(10))?;
        self.retry.policy().validate().map_err(|what| Refused { key: "retry", what })?;
        self.circuit.policy().validate().map_err(|what| Refused { key: "circuit", what })?;
        let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '.');
        let prefix = &self.metrics_prefix;
        if !prefix.starts_with(|c: char| c.is_ascii_alphabetic()) || !prefix.chars().all(named) {
            let what =
                format!("is {prefix:?}: it begins with a letter and goes on with letters, digits, '_', ':' or '.'");
            return Err(Refused { key: "metrics_prefix", what });
        }
        Ok(())
    }
}

fn between(key: &'static str, value: usize, least: usize, most: usize) -> Result<(), Refused> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Refused { key, what: format!("is {value}: allowed is {least} to {most}") })
}

fn at_least(key: &'static str, value: Duration, least: Duration) -> Result<(), Refused> {
    if value >= least {
        return Ok(());
    }
    Err(Refused { key, what: format!("is {value:?}: the least is {least:?}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Consumer, DeadLetters, Guard, MemoryGuard, MemoryLetters};

    /// M4: what is not set is what the builder has by itself.
    #[test]
    fn settings_that_say_nothing_change_no_builder() {
        let guard = Guard::new(MemoryGuard::new());
        assert_eq!(format!("{:?}", guard.clone().settings(&GuardSettings::default())), format!("{guard:?}"));
        let letters = DeadLetters::new(MemoryLetters::new());
        let same = letters.clone().settings(&DeadLetterSettings::default());
        assert_eq!(format!("{same:?}"), format!("{letters:?}"));
        let source = || pillarbox_testkit::MemoryBroker::new().source("orders", "billing");
        let consumer = Consumer::builder("billing", source(), letters.clone());
        let same = Consumer::builder("billing", source(), letters).settings(&ConsumerSettings::default());
        assert_eq!(format!("{same:?}"), format!("{consumer:?}"));
    }

    /// M4: every key is a method of the builder, and does the same.
    #[test]
    fn settings_are_what_the_methods_say() {
        let settings: ConsumerSettings = serde_json::from_str(
            r#"{"workers": 3, "prefetch": 7, "messages_per_transaction": 2, "max_deliveries": 4, "on_unknown": "skip",
                "handler_timeout": "2s", "drain_timeout": "3s", "under_way": "5m", "upkeep_every": "1s",
                "metrics_prefix": "shop", "retry": {"max_attempts": 2}, "circuit": {"failures": 9}}"#,
        )
        .unwrap();
        let letters = DeadLetters::new(MemoryLetters::new());
        let builder =
            || Consumer::builder("b", pillarbox_testkit::MemoryBroker::new().source("o", "b"), letters.clone());
        let by_hand = builder()
            .workers(3)
            .prefetch(7)
            .messages_per_transaction(2)
            .max_deliveries(4)
            .on_unknown(OnUnknown::Skip)
            .handler_timeout(Duration::from_secs(2))
            .drain_timeout(Duration::from_secs(3))
            .under_way(Duration::from_mins(5))
            .upkeep_every(Duration::from_secs(1))
            .metrics_prefix("shop")
            .retry(settings.retry.policy())
            .circuit(settings.circuit.policy());
        assert_eq!(format!("{:?}", builder().settings(&settings)), format!("{by_hand:?}"));
    }

    #[test]
    fn what_can_not_be_is_refused_with_its_key_and_range() {
        let refused =
            |json: &str| serde_json::from_str::<ConsumerSettings>(json).unwrap().check().unwrap_err().to_string();
        assert_eq!(refused(r#"{"workers": 0}"#), "workers is 0: allowed is 1 to 10000");
        assert_eq!(refused(r#"{"prefetch": 1000000}"#), "prefetch is 1000000: allowed is 1 to 100000");
        assert!(refused(r#"{"retry": {"max_attempts": 0}}"#).starts_with("retry max_attempts is 0"));
        assert!(refused(r#"{"metrics_prefix": "a b"}"#).starts_with("metrics_prefix is \"a b\""));
        let window = InboxSettings { window: Duration::from_secs(1), ..InboxSettings::default() };
        assert_eq!(window.check().unwrap_err().to_string(), "window is 1s: the least is 360s");
        assert!(serde_json::from_str::<GuardSettings>(r#"{"ttll": "1h"}"#).unwrap_err().to_string().contains("`ttl`"));
    }
}

//! The outbox that is read: every setting of its builder, under the same name.

use std::{fmt, time::Duration};

use pillarbox_core::{
    engine::{Builder, Heartbeat, OnDeadHead, OnSuccess, PurgeOptions, mode::MultiNode},
    port::{CircuitSettings, PurgeScope, RetrySettings, Store, span},
};
use serde::de::{Deserialize, Deserializer, Error as _, Unexpected, value::StrDeserializer};

use super::ConfigError;

/// How many deliveries are under way at once, unless it is set: a worker of a relay only waits for its sink. Two batches
/// have room.
const WORKERS: usize = 1000;

/// The builder's defaults, which a single one of the two is held against.
const HEARTBEAT: Duration = Duration::from_secs(5);
const STALE_AFTER: Duration = Duration::from_secs(30);
/// The longest of a setting that is not for ever.
const LONGEST: Duration = Duration::from_hours(10 * 365 * 24);

/// The outbox that is read. What is not set has the builder's default.
#[derive(Clone, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OutboxConfig {
    pub(super) url: Option<String>,
    enabled: Option<bool>,
    prefix: Option<String>,
    schema: Option<String>,
    migrate: Option<bool>,
    node_name: Option<String>,
    metrics_prefix: Option<String>,
    workers: Option<usize>,
    #[serde(with = "span::option")]
    handler_timeout: Option<Duration>,
    hot_capacity: Option<usize>,
    cold_capacity: Option<usize>,
    page_size: Option<usize>,
    lane_capacity: Option<usize>,
    #[serde(with = "span::option")]
    skip_recent: Option<Duration>,
    poll_interval: Option<PollConfig>,
    events_per_transaction: Option<usize>,
    settle_batch: Option<usize>,
    #[serde(with = "span::option")]
    settle_linger: Option<Duration>,
    on_success: Option<OnSuccessConfig>,
    stop_on_first_failure: Option<bool>,
    on_dead_head: Option<OnDeadHeadConfig>,
    max_starts: Option<u32>,
    #[serde(with = "span::option")]
    drain_timeout: Option<Duration>,
    #[serde(with = "span::option")]
    reservation_ttl: Option<Duration>,
    #[serde(with = "span::option")]
    route_grace: Option<Duration>,
    #[serde(with = "span::option")]
    sample_every: Option<Duration>,
    #[serde(with = "span::option")]
    heartbeat: Option<Duration>,
    heartbeat_on: Option<HeartbeatConfig>,
    #[serde(with = "span::option")]
    stale_after: Option<Duration>,
    #[serde(with = "span::option")]
    rebalance_every: Option<Duration>,
    retry: Option<RetrySettings>,
    circuit: Option<CircuitSettings>,
    purge: Option<PurgeConfig>,
}

#[derive(Clone, Copy, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PollConfig {
    #[serde(with = "span")]
    shortest: Duration,
    #[serde(with = "span")]
    longest: Duration,
}

/// The builder's defaults, for one of the two that is set alone.
impl Default for PollConfig {
    fn default() -> Self {
        Self { shortest: Duration::from_millis(20), longest: Duration::from_secs(1) }
    }
}

#[derive(Clone, Copy, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum OnSuccessConfig {
    Keep,
    Delete,
}

#[derive(Clone, Copy, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum OnDeadHeadConfig {
    Hold,
    GoOn,
}

#[derive(Clone, Copy, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum HeartbeatConfig {
    OwnThread,
    SharedRuntime,
}

/// After how long something is removed.
#[derive(Clone, Copy)]
enum After {
    Span(Duration),
    Never,
}

impl After {
    fn span(self) -> Option<Duration> {
        match self {
            Self::Span(span) => Some(span),
            Self::Never => None,
        }
    }
}

impl<'de> Deserialize<'de> for After {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "never" {
            return Ok(Self::Never);
        }
        let expected = "a span of time with its unit, such as \"7d\", or \"never\"";
        let wrong = |_: D::Error| D::Error::invalid_value(Unexpected::Str(&text), &expected);
        span::deserialize(StrDeserializer::new(&text)).map(Self::Span).map_err(wrong)
    }
}

#[derive(Clone, Copy, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PurgeConfig {
    enabled: Option<bool>,
    #[serde(with = "span::option")]
    done: Option<Duration>,
    dead: Option<After>,
    actions: Option<After>,
    batch: Option<u32>,
    #[serde(with = "span::option")]
    every: Option<Duration>,
}

impl OutboxConfig {
    /// The database. A relay has one.
    pub fn url(&self) -> &str {
        self.url.as_deref().unwrap_or_default()
    }

    /// Whether events are delivered.
    pub fn enabled(&self) -> bool {
        self.enabled.unwrap_or(true)
    }

    /// What the names of the tables begin with.
    pub fn prefix(&self) -> Option<&str> {
        self.prefix.as_deref()
    }

    /// The schema of the tables.
    pub fn schema(&self) -> Option<&str> {
        self.schema.as_deref()
    }

    /// The names of metrics begin with this.
    pub fn metrics_prefix(&self) -> &str {
        self.metrics_prefix.as_deref().unwrap_or("pillarbox")
    }

    /// How long a batch may be under way.
    pub(crate) fn handler_timeout(&self) -> Option<Duration> {
        self.handler_timeout
    }

    /// The keys of counts, with their values and the most that each may be. The least is 1.
    fn counts(&self) -> [(&'static str, Option<usize>, usize); 9] {
        let purge = self.purge.unwrap_or_default();
        [
            ("workers", self.workers, 10_000),
            ("hot_capacity", self.hot_capacity, 1_000_000),
            ("cold_capacity", self.cold_capacity, 1_000_000),
            ("page_size", self.page_size, 100_000),
            ("lane_capacity", self.lane_capacity, 100_000),
            ("events_per_transaction", self.events_per_transaction, 1_000),
            ("settle_batch", self.settle_batch, 10_000),
            ("max_starts", self.max_starts.map(|starts| starts as usize), 1_000),
            ("purge.batch", purge.batch.map(|rows| rows as usize), 100_000),
        ]
    }

    /// The most that a count may be, by its key.
    pub(super) fn most(key: &str) -> Option<usize> {
        Self::default().counts().into_iter().find(|(name, ..)| *name == key).map(|(.., most)| most)
    }

    /// Refuses what the builder refuses, with its path, and before a database is opened. A test holds the two against
    /// each other.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let at = |key: &str, what: String| Err(ConfigError::at(format!("outbox.{key}"), what));
        let purge = self.purge.unwrap_or_default();
        let (heartbeat, stale_after) = (self.heartbeat.unwrap_or(HEARTBEAT), self.stale_after.unwrap_or(STALE_AFTER));
        for (key, value, most) in self.counts() {
            if let Some(value) = value.filter(|value| !(1..=most).contains(value)) {
                return at(key, format!("is {value}: allowed is 1 to {most}"));
            }
        }
        let millis = Duration::from_millis;
        for (key, value, least) in [
            ("handler_timeout", self.handler_timeout, millis(1)),
            ("poll_interval.shortest", self.poll_interval.map(|poll| poll.shortest), millis(1)),
            (
                "poll_interval.longest",
                self.poll_interval.map(|poll| poll.longest),
                self.poll_interval.map_or(Duration::ZERO, |poll| poll.shortest),
            ),
            ("reservation_ttl", self.reservation_ttl, millis(10)),
            ("sample_every", self.sample_every, millis(10)),
            ("heartbeat", self.heartbeat, millis(10)),
            ("rebalance_every", self.rebalance_every, millis(10)),
            ("purge.every", purge.every, millis(10)),
        ] {
            if let Some(value) = value.filter(|value| *value < least) {
                return at(key, format!("is {value:?}: the least is {least:?}"));
            }
        }
        for (key, value) in [
            ("poll_interval.longest", self.poll_interval.map(|poll| poll.longest)),
            ("reservation_ttl", self.reservation_ttl),
            ("sample_every", self.sample_every),
            ("skip_recent", self.skip_recent),
            ("settle_linger", self.settle_linger),
            ("route_grace", self.route_grace),
            ("heartbeat", self.heartbeat),
            ("rebalance_every", self.rebalance_every),
            ("stale_after", self.stale_after),
            ("purge.every", purge.every),
        ] {
            if let Some(value) = value.filter(|value| *value > LONGEST) {
                return at(key, format!("is {value:?}: the most is {LONGEST:?}, ten years"));
            }
        }
        if stale_after < heartbeat.saturating_mul(3) {
            let what =
                format!("is {stale_after:?}, and heartbeat {heartbeat:?}: a lease must outlast three heartbeats");
            return at("stale_after", what);
        }
        if let Some(Err(why)) = self.retry.map(|retry| retry.policy().validate()) {
            return at("retry", why);
        }
        if let Some(Err(why)) = self.circuit.map(|circuit| circuit.policy().validate()) {
            return at("circuit", why);
        }
        if let Some(name) = self.node_name.as_ref().filter(|name| !(1..=200).contains(&name.len())) {
            return at("node_name", format!("has {} bytes: allowed is 1 to 200", name.len()));
        }
        let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '.');
        let prefix = self.metrics_prefix();
        if !prefix.starts_with(|c: char| c.is_ascii_alphabetic()) || !prefix.chars().all(named) {
            let what = "begins with a letter and goes on with letters, digits, '_', ':' or '.'";
            return at("metrics_prefix", format!("is {prefix:?}: it {what}"));
        }
        Ok(())
    }

    /// Refuses to do without a database, as a relay can't.
    pub(super) fn check_url(&self) -> Result<(), ConfigError> {
        if self.url().is_empty() {
            let what = "is missing: the database whose outbox is read, such as \"postgres://user@host/shop\"; \
                        { file = \"...\" } or { env = \"...\" } keep the password out of this file";
            return Err(ConfigError::at("outbox.url", what));
        }
        Ok(())
    }

    /// How many deliveries of a relay may be under way at once.
    pub(crate) fn under_way(&self) -> usize {
        self.workers.unwrap_or(WORKERS)
    }

    /// Brings the settings to the builder of a relay.
    pub(crate) fn of_relay<S: Store>(&self, builder: Builder<S, MultiNode>) -> Builder<S, MultiNode> {
        self.apply(builder.workers(self.under_way()))
    }

    /// Brings the settings to a builder. What is not set stays as it is there.
    pub fn apply<S: Store>(&self, mut builder: Builder<S, MultiNode>) -> Builder<S, MultiNode> {
        macro_rules! set {
            ($($name:ident),+) => {
                $(if let Some(value) = self.$name.clone() { builder = builder.$name(value); })+
            };
        }
        set!(enabled, workers, events_per_transaction);
        set!(migrate, node_name, metrics_prefix, hot_capacity, cold_capacity, page_size, lane_capacity, settle_batch);
        set!(stop_on_first_failure, max_starts);
        set!(handler_timeout, skip_recent, settle_linger, drain_timeout, reservation_ttl, route_grace);
        set!(sample_every, heartbeat, stale_after, rebalance_every);
        if let Some(PollConfig { shortest, longest }) = self.poll_interval {
            builder = builder.poll_interval(shortest, longest);
        }
        if let Some(on_success) = self.on_success {
            builder = builder.on_success(match on_success {
                OnSuccessConfig::Keep => OnSuccess::Keep,
                OnSuccessConfig::Delete => OnSuccess::Delete,
            });
        }
        if let Some(on_dead_head) = self.on_dead_head {
            builder = builder.on_dead_head(match on_dead_head {
                OnDeadHeadConfig::Hold => OnDeadHead::Hold,
                OnDeadHeadConfig::GoOn => OnDeadHead::GoOn,
            });
        }
        if let Some(place) = self.heartbeat_on {
            builder = builder.heartbeat_on(match place {
                HeartbeatConfig::OwnThread => Heartbeat::OwnThread,
                HeartbeatConfig::SharedRuntime => Heartbeat::SharedRuntime,
            });
        }
        if let Some(retry) = &self.retry {
            builder = builder.retry(retry.policy());
        }
        if let Some(circuit) = &self.circuit {
            builder = builder.circuit(circuit.policy());
        }
        match &self.purge {
            Some(PurgeConfig { enabled: Some(false), .. }) => builder.no_purge(),
            Some(purge) => builder.purge(purge.options()),
            None => builder,
        }
    }
}

impl PurgeConfig {
    fn options(self) -> PurgeOptions {
        let default = PurgeOptions::default();
        let week = Duration::from_hours(7 * 24);
        let done = self.done.unwrap_or(week);
        let dead = self.dead.map_or(Some(week), After::span);
        PurgeOptions {
            scope: PurgeScope::Finished { done, dead },
            batch: self.batch.unwrap_or(default.batch),
            every: self.every.unwrap_or(default.every),
            actions: self.actions.map_or(default.actions, After::span),
        }
    }
}

/// Without the URL, which may hold a password.
impl fmt::Debug for OutboxConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboxConfig")
            .field("prefix", &self.prefix)
            .field("schema", &self.schema)
            .finish_non_exhaustive()
    }
}

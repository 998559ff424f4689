//! The outbox that is read: every setting of its builder, under the same name.

use std::{fmt, time::Duration};

use pillarbox_core::{
    engine::{Builder, OnDeadHead, OnSuccess, PurgeOptions, mode::MultiNode},
    port::{CircuitSettings, PurgeScope, RetrySettings, Store, span},
};

use super::ConfigError;

/// How many deliveries are under way at once, unless it is set: a worker of a relay only waits for its sink. Two batches
/// have room.
const WORKERS: usize = 1000;

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
    #[serde(with = "span::option")]
    stale_after: Option<Duration>,
    #[serde(with = "span::option")]
    rebalance_every: Option<Duration>,
    retry: Option<RetrySettings>,
    circuit: Option<CircuitSettings>,
    purge: Option<PurgeConfig>,
}

#[derive(Clone, Copy, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct PollConfig {
    #[serde(with = "span")]
    shortest: Duration,
    #[serde(with = "span")]
    longest: Duration,
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

#[derive(Clone, Copy, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PurgeConfig {
    enabled: Option<bool>,
    #[serde(with = "span::option")]
    done: Option<Duration>,
    #[serde(with = "span::option")]
    dead: Option<Duration>,
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

    pub(super) fn check(&self) -> Result<(), ConfigError> {
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
        let dead = Some(self.dead.unwrap_or(week));
        PurgeOptions {
            scope: PurgeScope::Finished { done, dead },
            batch: self.batch.unwrap_or(default.batch),
            every: self.every.unwrap_or(default.every),
            ..default
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

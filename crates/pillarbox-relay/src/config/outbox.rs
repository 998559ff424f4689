//! The outbox that is read: every setting of its builder, under the same name.

use std::{fmt, time::Duration};

use pillarbox_core::{
    RetryPolicy,
    domain::CircuitPolicy,
    engine::{Builder, OnDeadHead, OnSuccess, PurgeOptions, mode::MultiNode},
    port::{PurgeScope, Store},
};

use super::{ConfigError, span::Span};

/// How many deliveries are under way at once, unless it is set: a worker of a relay only waits for its sink.
const WORKERS: usize = 500;

/// The outbox that is read. What is not set has the builder's default.
#[derive(Clone, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OutboxConfig {
    pub(super) url: Option<String>,
    prefix: Option<String>,
    schema: Option<String>,
    migrate: Option<bool>,
    node_name: Option<String>,
    metrics_prefix: Option<String>,
    workers: Option<usize>,
    handler_timeout: Option<Span>,
    hot_capacity: Option<usize>,
    cold_capacity: Option<usize>,
    page_size: Option<usize>,
    lane_capacity: Option<usize>,
    skip_recent: Option<Span>,
    poll_interval: Option<PollConfig>,
    settle_batch: Option<usize>,
    settle_linger: Option<Span>,
    on_success: Option<OnSuccessConfig>,
    stop_on_first_failure: Option<bool>,
    on_dead_head: Option<OnDeadHeadConfig>,
    max_starts: Option<u32>,
    drain_timeout: Option<Span>,
    reservation_ttl: Option<Span>,
    route_grace: Option<Span>,
    sample_every: Option<Span>,
    heartbeat: Option<Span>,
    stale_after: Option<Span>,
    rebalance_every: Option<Span>,
    retry: Option<RetryConfig>,
    circuit: Option<CircuitConfig>,
    purge: Option<PurgeConfig>,
}

#[derive(Clone, Copy, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct PollConfig {
    shortest: Span,
    longest: Span,
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
struct RetryConfig {
    backoff: Backoff,
    base: Option<Span>,
    multiplier: Option<f64>,
    max_delay: Option<Span>,
    jitter: Option<f64>,
    max_attempts: Option<u32>,
}

#[derive(Clone, Copy, Default, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum Backoff {
    Fixed,
    Linear,
    #[default]
    Exponential,
    Never,
}

#[derive(Clone, Copy, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
struct CircuitConfig {
    failures: Option<u32>,
    shortest: Option<Span>,
    longest: Option<Span>,
}

#[derive(Clone, Copy, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PurgeConfig {
    enabled: Option<bool>,
    done: Option<Span>,
    dead: Option<Span>,
    batch: Option<u32>,
    every: Option<Span>,
}

impl OutboxConfig {
    /// The database. A relay has one.
    pub fn url(&self) -> &str {
        self.url.as_deref().unwrap_or_default()
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

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.url().is_empty() {
            let what = "is missing: the database whose outbox is read, such as \"postgres://user@host/shop\"; \
                        { file = \"...\" } or { env = \"...\" } keep the password out of this file";
            return Err(ConfigError::at("outbox.url", what));
        }
        Ok(())
    }

    /// Brings the settings to a builder.
    pub fn apply<S: Store>(&self, builder: Builder<S, MultiNode>) -> Builder<S, MultiNode> {
        let mut builder = builder.workers(self.workers.unwrap_or(WORKERS));
        macro_rules! set {
            ($($name:ident),+) => {
                $(if let Some(value) = self.$name.clone() { builder = builder.$name(value); })+
            };
            (span $($name:ident),+) => {
                $(if let Some(Span(value)) = self.$name { builder = builder.$name(value); })+
            };
        }
        set!(migrate, node_name, metrics_prefix, hot_capacity, cold_capacity, page_size, lane_capacity, settle_batch);
        set!(stop_on_first_failure, max_starts);
        set!(span handler_timeout, skip_recent, settle_linger, drain_timeout, reservation_ttl, route_grace);
        set!(span sample_every, heartbeat, stale_after, rebalance_every);
        if let Some(PollConfig { shortest, longest }) = self.poll_interval {
            builder = builder.poll_interval(shortest.0, longest.0);
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

impl RetryConfig {
    fn policy(self) -> RetryPolicy {
        let default = RetryPolicy::default();
        let base = self.base.map_or_else(|| default.delay(1, 0.5), |Span(base)| base);
        let mut policy = match self.backoff {
            Backoff::Fixed => RetryPolicy::fixed(base),
            Backoff::Linear => RetryPolicy::linear(base),
            Backoff::Exponential => RetryPolicy::exponential(base),
            Backoff::Never => return RetryPolicy::never(),
        };
        if let Some(multiplier) = self.multiplier {
            policy = policy.multiplier(multiplier);
        }
        if let Some(Span(max)) = self.max_delay {
            policy = policy.max_delay(max);
        }
        if let Some(jitter) = self.jitter {
            policy = policy.jitter(jitter);
        }
        if let Some(attempts) = self.max_attempts {
            policy = policy.max_attempts(attempts);
        }
        policy
    }
}

impl CircuitConfig {
    fn policy(self) -> CircuitPolicy {
        let default = CircuitPolicy::default();
        let span = |set: Option<Span>, default: Duration| set.map_or(default, |Span(span)| span);
        CircuitPolicy {
            failures: self.failures.unwrap_or(default.failures),
            shortest: span(self.shortest, default.shortest),
            longest: span(self.longest, default.longest),
        }
    }
}

impl PurgeConfig {
    fn options(self) -> PurgeOptions {
        let default = PurgeOptions::default();
        let week = Duration::from_hours(7 * 24);
        let done = self.done.map_or(week, |Span(span)| span);
        let dead = Some(self.dead.map_or(week, |Span(span)| span));
        PurgeOptions {
            scope: PurgeScope::Finished { done, dead },
            batch: self.batch.unwrap_or(default.batch),
            every: self.every.map_or(default.every, |Span(span)| span),
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

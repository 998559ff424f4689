//! Every setting of an outbox, with its default.

use std::time::Duration;

use super::error::OutboxError;
use crate::{
    domain::{CircuitPolicy, RetryPolicy},
    port::PurgeScope,
};

/// What becomes of an event's row when it is delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnSuccess {
    /// It stays as DONE until it is purged.
    #[default]
    Keep,
    /// It is deleted at once: fewer bytes written, and nothing to look at afterwards.
    Delete,
}

/// What follows when the head of a key is DEAD.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDeadHead {
    /// The key waits until an operator replays, skips or discards the dead event. Other keys go on.
    #[default]
    Hold,
    /// The key goes on with its next event.
    GoOn,
}

/// Where the node's lease is renewed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Heartbeat {
    /// On a thread of its own, which no handler that blocks can starve. Settles and the purge run there too, since a renewal may
    /// have to wait for them.
    ///
    /// What handlers and the application hold in the database themselves stays with them. On SQLite, where one writes at a time, a
    /// transaction of theirs keeps a renewal waiting until it ends, and so does on MySQL and MariaDB the commit of a transactional
    /// handler: don't block the runtime of such.
    #[default]
    OwnThread,
    /// On the runtime that runs the handlers. For tests with virtual time.
    SharedRuntime,
}

/// The longest that a setting may be: nobody lives to see its end, and an instant so far ahead can still be told.
pub(crate) const LONGEST: Duration = Duration::from_hours(10 * 365 * 24);

/// When finished rows are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PurgeOptions {
    /// Which rows, by age. Default: DONE and DEAD after 7 days.
    pub scope: PurgeScope,
    /// How many rows one transaction removes. Default: 500.
    pub batch: u32,
    /// How often the purge runs. Default: 1 h.
    pub every: Duration,
    /// How long the record of operators' actions is kept; `None`: for ever. Default: 365 days.
    pub actions: Option<Duration>,
}

impl Default for PurgeOptions {
    fn default() -> Self {
        let week = Duration::from_hours(7 * 24);
        Self {
            scope: PurgeScope::Finished { done: week, dead: Some(week) },
            batch: 500,
            every: Duration::from_hours(1),
            actions: Some(Duration::from_hours(365 * 24)),
        }
    }
}

/// The values behind a builder.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) enabled: bool,
    pub(crate) workers: usize,
    pub(crate) retry: RetryPolicy,
    pub(crate) circuit: CircuitPolicy,
    pub(crate) handler_timeout: Duration,
    pub(crate) hot_capacity: usize,
    pub(crate) cold_capacity: usize,
    pub(crate) page_size: usize,
    pub(crate) lane_capacity: usize,
    pub(crate) skip_recent: Duration,
    pub(crate) poll_min: Duration,
    pub(crate) poll_max: Duration,
    pub(crate) events_per_transaction: usize,
    /// How many events a worker may be given at once; by the handlers.
    pub(crate) most_at_once: usize,
    pub(crate) settle_batch: usize,
    pub(crate) settle_linger: Duration,
    pub(crate) on_success: OnSuccess,
    pub(crate) stop_on_first_failure: bool,
    pub(crate) on_dead_head: OnDeadHead,
    pub(crate) max_starts: u32,
    pub(crate) drain_timeout: Duration,
    pub(crate) reservation_ttl: Duration,
    pub(crate) route_grace: Duration,
    /// As it was set, where one setting stands for heartbeat, stale and rebalance time.
    pub(crate) lease: Option<Duration>,
    pub(crate) heartbeat: Duration,
    pub(crate) stale_after: Duration,
    pub(crate) rebalance_every: Duration,
    pub(crate) heartbeat_on: Heartbeat,
    pub(crate) purge: Option<PurgeOptions>,
    pub(crate) sample_every: Duration,
    pub(crate) metrics_prefix: String,
    pub(crate) migrate: bool,
    pub(crate) node_name: Option<String>,
    pub(crate) group: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            enabled: true,
            workers: 8,
            retry: RetryPolicy::default(),
            circuit: CircuitPolicy::default(),
            handler_timeout: Duration::from_secs(30),
            hot_capacity: 1_000,
            cold_capacity: 2_000,
            page_size: 500,
            lane_capacity: 64,
            skip_recent: Duration::ZERO,
            poll_min: Duration::from_millis(20),
            poll_max: Duration::from_secs(1),
            events_per_transaction: 50,
            most_at_once: 1,
            settle_batch: 500,
            settle_linger: Duration::from_millis(5),
            on_success: OnSuccess::default(),
            stop_on_first_failure: true,
            on_dead_head: OnDeadHead::default(),
            max_starts: 3,
            drain_timeout: Duration::from_secs(15),
            reservation_ttl: Duration::from_secs(5),
            route_grace: Duration::from_secs(5),
            lease: None,
            heartbeat: Duration::from_secs(5),
            stale_after: Duration::from_secs(30),
            rebalance_every: Duration::from_secs(10),
            heartbeat_on: Heartbeat::default(),
            purge: Some(PurgeOptions::default()),
            sample_every: Duration::from_secs(30),
            metrics_prefix: "pillarbox".into(),
            migrate: true,
            node_name: None,
            group: None,
        }
    }
}

impl Settings {
    /// Outcomes that may wait for their settle before the workers pause.
    pub(crate) fn unsettled_limit(&self) -> usize {
        self.settle_batch.saturating_mul(4)
    }

    /// How many events may have been started and not settled, or lie in the hot queue, at the moment of a
    /// crash: the number of suspects it leaves at either end.
    ///
    /// The workers pause at the limit, and what they run then still ends. All of that may be in a settle under way while as
    /// much comes together again.
    pub(crate) fn in_flight_bound(&self) -> u32 {
        let running = self.workers.saturating_mul(self.most_at_once);
        let unsettled = running.saturating_add(self.unsettled_limit()).saturating_mul(2);
        u32::try_from(unsettled.saturating_add(self.hot_capacity)).unwrap_or(u32::MAX)
    }

    pub(crate) fn validate(&self) -> Result<(), OutboxError> {
        fn between(name: &str, value: usize, least: usize, most: usize) -> Result<(), OutboxError> {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(OutboxError::setting(format!("{name} is {value}: allowed is {least} to {most}")))
        }
        fn at_least(name: &str, value: Duration, least: Duration) -> Result<(), OutboxError> {
            if value >= least {
                return Ok(());
            }
            Err(OutboxError::setting(format!("{name} is {value:?}: the least is {least:?}")))
        }
        fn within(name: &str, value: Duration, least: Duration) -> Result<(), OutboxError> {
            at_least(name, value, least)?;
            if value <= LONGEST {
                return Ok(());
            }
            Err(OutboxError::setting(format!("{name} is {value:?}: the most is {LONGEST:?}, ten years")))
        }
        let millis = Duration::from_millis;

        between("workers", self.workers, 1, 10_000)?;
        between("hot_capacity", self.hot_capacity, 1, 1_000_000)?;
        between("cold_capacity", self.cold_capacity, 1, 1_000_000)?;
        between("page_size", self.page_size, 1, 100_000)?;
        between("lane_capacity", self.lane_capacity, 1, 100_000)?;
        between("events_per_transaction", self.events_per_transaction, 1, 1_000)?;
        between("the size of a batch", self.most_at_once, 1, 10_000)?;
        between("settle_batch", self.settle_batch, 1, 10_000)?;
        between("max_starts", self.max_starts as usize, 1, 1_000)?;
        // This one and the drain timeout may be for ever.
        at_least("handler_timeout", self.handler_timeout, millis(1))?;
        within("poll_interval's minimum", self.poll_min, millis(1))?;
        within("poll_interval's maximum", self.poll_max, self.poll_min)?;
        within("reservation_ttl", self.reservation_ttl, millis(10))?;
        within("sample_every", self.sample_every, millis(10))?;
        within("skip_recent", self.skip_recent, Duration::ZERO)?;
        within("settle_linger", self.settle_linger, Duration::ZERO)?;
        within("route_grace", self.route_grace, Duration::ZERO)?;
        if let Some(lease) = self.lease {
            within("lease", lease, millis(30))?;
        }
        within("heartbeat", self.heartbeat, millis(10))?;
        within("rebalance_every", self.rebalance_every, millis(10))?;
        within("stale_after", self.stale_after, Duration::ZERO)?;
        // Two renewals may fail before the lease is lost.
        let (heartbeat, stale_after) = (self.heartbeat, self.stale_after);
        if stale_after < heartbeat.saturating_mul(3) {
            return Err(OutboxError::setting(format!(
                "stale_after is {stale_after:?} and heartbeat {heartbeat:?}: a lease must outlast three heartbeats, or a \
                 late renewal costs it. Set stale_after to {:?} or more, or heartbeat to {:?} or less",
                heartbeat.saturating_mul(3),
                stale_after / 3
            )));
        }
        if let Some(purge) = &self.purge {
            between("purge.batch", purge.batch as usize, 1, 100_000)?;
            within("purge.every", purge.every, millis(10))?;
        }
        self.retry.validate().map_err(|reason| OutboxError::setting(format!("retry policy: {reason}")))?;
        self.circuit.validate().map_err(|reason| OutboxError::setting(format!("circuit: {reason}")))?;
        let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '.');
        if !self.metrics_prefix.starts_with(|c: char| c.is_ascii_alphabetic())
            || !self.metrics_prefix.chars().all(named)
        {
            return Err(OutboxError::setting(format!(
                "metrics_prefix is {:?}: it begins with a letter and goes on with letters, digits, '_', ':' or '.'",
                self.metrics_prefix
            )));
        }
        if let Some(name) = &self.node_name
            && (name.is_empty() || name.len() > 200)
        {
            return Err(OutboxError::setting(format!("node_name has {} bytes: allowed is 1 to 200", name.len())));
        }
        Ok(())
    }
}

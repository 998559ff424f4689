//! The telemetry contract: the names of metrics, through the `metrics` facade.
//!
//! The prefix is a setting (`pillarbox` by default), and an underscore joins it to the names below.
//! Everything is registered when an outbox starts, so that a counter which never moved shows as 0.
//!
//! Logs go through `tracing`: a hot drop, a failed attempt and a lost lease warn; a dead event and a loop
//! that failed are errors; each that concerns an event carries its `event_id`.

use metrics::{Counter, Gauge, Histogram, Unit, counter, gauge, histogram};

use crate::domain::Status;

/// The names of all metrics, without the prefix.
pub mod name {
    /// Events that took the hot path.
    pub const HOT_ENQUEUED: &str = "hot_enqueued_total";
    /// Events that found the hot queue full and are left to the reader.
    pub const HOT_DROPPED: &str = "hot_dropped_total";
    /// Events that did not take the hot path because they are delayed.
    pub const DELAYED_SKIPPED: &str = "delayed_skipped_total";
    /// Events that were read from the table and queued.
    pub const COLD_ENQUEUED: &str = "cold_enqueued_total";
    /// Events whose handler succeeded.
    pub const DELIVERED: &str = "delivered_total";
    /// Deliveries that failed.
    pub const FAILED: &str = "failed_total";
    /// Deliveries that were put off without counting an attempt.
    pub const DEFERRED: &str = "deferred_total";
    /// Events that were given up.
    pub const DEAD: &str = "dead_total";
    /// Outcomes that came after the lease or the partition was lost, and changed nothing.
    pub const STALE_SETTLES: &str = "stale_settles_total";
    /// Rows that were purged.
    pub const PURGED: &str = "purged_total";
    /// Failures of a background loop; each is tried again.
    pub const LOOP_ERRORS: &str = "loop_errors_total";
    /// Jobs in the hot queue.
    pub const HOT_DEPTH: &str = "hot_depth";
    /// Jobs in the cold queue.
    pub const COLD_DEPTH: &str = "cold_depth";
    /// The age of the oldest pending event.
    pub const OLDEST_LAG: &str = "oldest_lag_seconds";
    /// Rows by `status`.
    pub const RECORDS: &str = "records";
    /// Pending events.
    pub const PENDING: &str = "pending";
    /// Pending events of the fullest partition.
    pub const WORST_PARTITION: &str = "pending_worst_partition";
    /// Partitions this node owns.
    pub const PARTITIONS_OWNED: &str = "partitions_owned";
    /// Keys of this node's partitions that wait behind a failed or dead event.
    pub const BLOCKED_KEYS: &str = "blocked_keys";
    /// Nodes whose lease is in force.
    pub const LIVE_NODES: &str = "live_nodes";
    /// 1 while the circuit of a `destination` is open.
    pub const CIRCUIT_OPEN: &str = "circuit_open";
    /// From the insert of an event to the start of its handler.
    pub const LATENCY: &str = "delivery_latency_seconds";
    /// How long handlers take.
    pub const HANDLER_TIME: &str = "handler_seconds";
}

/// Whether the circuit of a destination is open.
pub(crate) fn circuit_open(prefix: &str, destination: &str) -> Gauge {
    let name = format!("{prefix}_{}", name::CIRCUIT_OPEN);
    metrics::describe_gauge!(name.clone(), "1 while the circuit of a destination is open");
    let gauge = gauge!(name, "destination" => destination.to_owned());
    gauge.set(0.0);
    gauge
}

/// The handles of one outbox's metrics.
pub(crate) struct Meters {
    pub(crate) hot_enqueued: Counter,
    pub(crate) hot_dropped: Counter,
    pub(crate) delayed_skipped: Counter,
    pub(crate) cold_enqueued: Counter,
    pub(crate) delivered: Counter,
    pub(crate) failed: Counter,
    pub(crate) deferred: Counter,
    pub(crate) dead: Counter,
    pub(crate) stale_settles: Counter,
    pub(crate) purged: Counter,
    pub(crate) loop_errors: Counter,
    pub(crate) hot_depth: Gauge,
    pub(crate) cold_depth: Gauge,
    pub(crate) oldest_lag: Gauge,
    records: [Gauge; 4],
    pub(crate) pending: Gauge,
    pub(crate) worst_partition: Gauge,
    pub(crate) partitions_owned: Gauge,
    pub(crate) blocked_keys: Gauge,
    pub(crate) live_nodes: Gauge,
    pub(crate) latency: Histogram,
    pub(crate) handler_time: Histogram,
}

impl Meters {
    /// Registers every metric under the prefix.
    pub(crate) fn new(prefix: &str) -> Self {
        let full = |name: &str| format!("{prefix}_{name}");
        let count = |name: &str, about: &'static str| {
            metrics::describe_counter!(full(name), about);
            let counter = counter!(full(name));
            counter.absolute(0);
            counter
        };
        let level = |name: &str, about: &'static str| {
            metrics::describe_gauge!(full(name), about);
            gauge!(full(name))
        };
        let spread = |name: &str, about: &'static str| {
            metrics::describe_histogram!(full(name), Unit::Seconds, about);
            histogram!(full(name))
        };
        Self {
            hot_enqueued: count(name::HOT_ENQUEUED, "events that took the hot path"),
            hot_dropped: count(name::HOT_DROPPED, "events that found the hot queue full"),
            delayed_skipped: count(name::DELAYED_SKIPPED, "events left to the reader because they are delayed"),
            cold_enqueued: count(name::COLD_ENQUEUED, "events read from the table and queued"),
            delivered: count(name::DELIVERED, "events whose handler succeeded"),
            failed: count(name::FAILED, "deliveries that failed"),
            deferred: count(name::DEFERRED, "deliveries put off without counting an attempt"),
            dead: count(name::DEAD, "events given up"),
            stale_settles: count(name::STALE_SETTLES, "outcomes that came too late and changed nothing"),
            purged: count(name::PURGED, "rows purged"),
            loop_errors: count(name::LOOP_ERRORS, "failures of background loops"),
            hot_depth: level(name::HOT_DEPTH, "jobs in the hot queue"),
            cold_depth: level(name::COLD_DEPTH, "jobs in the cold queue"),
            oldest_lag: level(name::OLDEST_LAG, "age of the oldest pending event in seconds"),
            records: Status::ALL.map(|status| {
                metrics::describe_gauge!(full(name::RECORDS), "rows by status");
                gauge!(full(name::RECORDS), "status" => status.as_str())
            }),
            pending: level(name::PENDING, "pending events"),
            worst_partition: level(name::WORST_PARTITION, "pending events of the fullest partition"),
            partitions_owned: level(name::PARTITIONS_OWNED, "partitions this node owns"),
            blocked_keys: level(name::BLOCKED_KEYS, "keys that wait behind a failed or dead event"),
            live_nodes: level(name::LIVE_NODES, "nodes whose lease is in force"),
            latency: spread(name::LATENCY, "from the insert of an event to the start of its handler"),
            handler_time: spread(name::HANDLER_TIME, "time spent in handlers"),
        }
    }

    pub(crate) fn records(&self, status: Status) -> &Gauge {
        &self.records[status as usize]
    }
}

impl std::fmt::Debug for Meters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meters").finish_non_exhaustive()
    }
}

//! The metrics of a consumer. All have the label `consumer`.

use std::sync::OnceLock;

use metrics::{Counter, Gauge, Histogram, Unit, counter, gauge, histogram};

/// The names of all metrics, without the prefix.
pub mod name {
    /// Messages that came in.
    pub const RECEIVED: &str = "consumer_received_total";
    /// Messages that were dealt with.
    pub const HANDLED: &str = "consumer_handled_total";
    /// Messages that were known already, and dropped.
    pub const DUPLICATES: &str = "consumer_duplicates_total";
    /// Messages for others, or of a kind that is skipped.
    pub const SKIPPED: &str = "consumer_skipped_total";
    /// Attempts that failed.
    pub const FAILED: &str = "consumer_failed_total";
    /// Attempts that were put off without counting one.
    pub const DEFERRED: &str = "consumer_deferred_total";
    /// Messages that were put into the dead letter queue.
    pub const PARKED: &str = "consumer_parked_total";
    /// Failures of the broker, the database or the dead letter queue; each is tried again.
    pub const ERRORS: &str = "consumer_errors_total";
    /// Messages that wait at the broker. There is none where the source can't tell, and it is `NaN` while the broker does not answer.
    pub const LAG: &str = "consumer_lag";
    /// Messages that the consumer holds.
    pub const HELD: &str = "consumer_held";
    /// How long handlers take, retries apart.
    pub const HANDLER_TIME: &str = "consumer_handler_seconds";
}

pub(super) struct Meters {
    pub(super) received: Counter,
    pub(super) handled: Counter,
    pub(super) duplicates: Counter,
    pub(super) skipped: Counter,
    pub(super) failed: Counter,
    pub(super) deferred: Counter,
    pub(super) parked: Counter,
    pub(super) errors: Counter,
    lag: Lag,
    pub(super) held: Gauge,
    pub(super) handler_time: Histogram,
}

impl Meters {
    pub(super) fn new(prefix: &str, consumer: &str) -> Self {
        let full = |name: &str| format!("{prefix}_{name}");
        let count = |name: &str, about: &'static str| {
            metrics::describe_counter!(full(name), about);
            let counter = counter!(full(name), "consumer" => consumer.to_owned());
            counter.absolute(0);
            counter
        };
        let level = |name: &str, about: &'static str| {
            metrics::describe_gauge!(full(name), about);
            gauge!(full(name), "consumer" => consumer.to_owned())
        };
        metrics::describe_histogram!(full(name::HANDLER_TIME), Unit::Seconds, "time spent in handlers");
        Self {
            received: count(name::RECEIVED, "messages that came in"),
            handled: count(name::HANDLED, "messages that were dealt with"),
            duplicates: count(name::DUPLICATES, "messages that were known already"),
            skipped: count(name::SKIPPED, "messages for others, or of a kind that is skipped"),
            failed: count(name::FAILED, "attempts that failed"),
            deferred: count(name::DEFERRED, "attempts put off without counting one"),
            parked: count(name::PARKED, "messages put into the dead letter queue"),
            errors: count(name::ERRORS, "failures of the broker, the database or the dead letter queue"),
            lag: Lag { name: full(name::LAG), consumer: consumer.to_owned(), gauge: OnceLock::new() },
            held: level(name::HELD, "messages that the consumer holds"),
            handler_time: histogram!(full(name::HANDLER_TIME), "consumer" => consumer.to_owned()),
        }
    }
}

/// It is there from the first answer on: of a source that can't tell, none is shown.
struct Lag {
    name: String,
    consumer: String,
    gauge: OnceLock<Gauge>,
}

impl Meters {
    #[expect(clippy::cast_precision_loss, reason = "a gauge of messages")]
    pub(super) fn lag(&self, messages: u64) {
        let gauge = self.lag.gauge.get_or_init(|| {
            metrics::describe_gauge!(self.lag.name.clone(), "messages that wait at the broker");
            gauge!(self.lag.name.clone(), "consumer" => self.lag.consumer.clone())
        });
        gauge.set(messages as f64);
    }

    /// The last value would stand for one that nobody knows.
    pub(super) fn lag_is_unknown(&self) {
        if let Some(gauge) = self.lag.gauge.get() {
            gauge.set(f64::NAN);
        }
    }
}

impl std::fmt::Debug for Meters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meters").finish_non_exhaustive()
    }
}

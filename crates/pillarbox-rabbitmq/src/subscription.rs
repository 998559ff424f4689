//! How a source is set up.

use std::time::Duration;

use lapin::types::ShortString;
use pillarbox_core::port::{SinkError, span};
use serde::Deserialize;

use crate::error::refused;

/// What a source receives: the messages of a queue, which all its consumers share. The names are those of a settings file.
///
/// The queue has to be there, with its bindings. It is looked at when the source connects: one that is not durable, or that goes
/// when its consumers go, is refused.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subscription {
    pub(crate) queue: String,
    #[serde(default = "five_seconds", with = "span")]
    pub(crate) wait: Duration,
    #[serde(default = "most_out")]
    pub(crate) most_out: u16,
}

impl Subscription {
    /// To a queue.
    pub fn new(queue: impl Into<String>) -> Self {
        Self { queue: queue.into(), wait: five_seconds(), most_out: most_out() }
    }

    /// How long a receive waits for the first message. 5 s unless told otherwise.
    #[must_use]
    pub fn wait(mut self, span: Duration) -> Self {
        self.wait = span;
        self
    }

    /// How many messages this source may have that are not acknowledged, received or on the way (`prefetch`). 200 unless told
    /// otherwise. No fewer than are dealt with at once.
    #[must_use]
    pub fn most_out(mut self, count: u16) -> Self {
        self.most_out = count;
        self
    }

    /// Whether a source can work like this.
    pub(crate) fn judge(&self) -> Result<(), SinkError> {
        if self.queue.is_empty() {
            return Err(refused("the queue has no name"));
        }
        if ShortString::try_new(self.queue.as_str()).is_err() {
            return Err(refused("the name of the queue is longer than the 255 bytes that AMQP has for it"));
        }
        if self.wait.is_zero() {
            return Err(refused("wait is 0: no message can come in no time"));
        }
        if self.wait > Duration::from_mins(5) {
            return Err(refused("wait is more than 5m: it would be seen too late that the server is gone"));
        }
        if self.most_out == 0 {
            return Err(refused(
                "most_out is 0: the server would send all that it has, whether there is room for it or not",
            ));
        }
        Ok(())
    }
}

fn five_seconds() -> Duration {
    Duration::from_secs(5)
}

fn most_out() -> u16 {
    200
}

#[cfg(test)]
mod tests {
    use pillarbox_core::port::SinkErrorKind;

    use super::*;
    use crate::Options;

    #[test]
    fn settings_that_can_not_work_are_refused_with_the_reason() {
        for (subscription, reason) in [
            (Subscription::new(""), "no name"),
            (Subscription::new("x".repeat(256)), "255 bytes"),
            (Subscription::new("orders").wait(Duration::ZERO), "no time"),
            (Subscription::new("orders").wait(Duration::from_hours(1)), "too late"),
            (Subscription::new("orders").most_out(0), "room"),
        ] {
            let error = Options::new("amqp://localhost").subscribe(subscription).expect_err(reason);
            assert_eq!(error.kind(), SinkErrorKind::Rejected);
            assert!(error.to_string().contains(reason), "{error}");
        }
        assert!(Options::new("amqp://localhost").subscribe(Subscription::new("orders")).is_ok());
    }

    #[test]
    fn settings_are_read_by_name() {
        let text = r#"{"queue": "orders", "most_out": 10, "wait": "250ms"}"#;
        let subscription: Subscription = serde_json::from_str(text).expect(text);
        assert_eq!(subscription, Subscription::new("orders").most_out(10).wait(Duration::from_millis(250)));
        assert!(serde_json::from_str::<Subscription>(r#"{"queue": "a", "group": "b"}"#).is_err());
    }
}

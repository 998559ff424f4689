//! How a source is set up.

use std::time::Duration;

use pillarbox_core::port::{SinkError, span};
use serde::Deserialize;

use crate::message::check_topic;

/// What a source receives: the records of topics, for a group of consumers. The names are those of a settings file.
///
/// A group that is new begins with the oldest record.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subscription {
    pub(crate) topics: Vec<String>,
    pub(crate) group: String,
    #[serde(default = "session", with = "span")]
    pub(crate) session: Duration,
    #[serde(default = "five_seconds", with = "span")]
    pub(crate) wait: Duration,
}

impl Subscription {
    /// To topics, for a group of consumers.
    pub fn new<S: Into<String>>(topics: impl IntoIterator<Item = S>, group: impl Into<String>) -> Self {
        Self {
            topics: topics.into_iter().map(Into::into).collect(),
            group: group.into(),
            session: session(),
            wait: five_seconds(),
        }
    }

    /// After this time without a sign of life a consumer's partitions go to others (`session.timeout.ms`). 45 s unless told
    /// otherwise.
    #[must_use]
    pub fn session(mut self, span: Duration) -> Self {
        self.session = span;
        self
    }

    /// How long a receive waits for the first message. 5 s unless told otherwise.
    #[must_use]
    pub fn wait(mut self, span: Duration) -> Self {
        self.wait = span;
        self
    }

    /// Whether a source can work like this.
    pub(crate) fn judge(&self) -> Result<(), SinkError> {
        if self.topics.is_empty() {
            return Err(SinkError::rejected("there is no topic: nothing could come"));
        }
        self.topics.iter().try_for_each(|topic| check_topic(topic))?;
        if self.group.is_empty() {
            return Err(SinkError::rejected("the group has no name"));
        }
        if self.session < Duration::from_secs(1) {
            return Err(SinkError::rejected("session is less than 1s: partitions would change hands all the time"));
        }
        if self.wait.is_zero() {
            return Err(SinkError::rejected("wait is 0: no message can come in no time"));
        }
        if self.wait > Duration::from_mins(5) {
            return Err(SinkError::rejected("wait is more than 5m: it would be seen too late that the server is gone"));
        }
        Ok(())
    }
}

fn session() -> Duration {
    Duration::from_secs(45)
}

fn five_seconds() -> Duration {
    Duration::from_secs(5)
}

#[cfg(test)]
mod tests {
    use pillarbox_core::port::SinkErrorKind;

    use super::*;
    use crate::Options;

    #[test]
    fn settings_that_can_not_work_are_refused_with_the_reason() {
        let ours = || Subscription::new(["orders"], "billing");
        for (subscription, reason) in [
            (Subscription::new(Vec::<String>::new(), "billing"), "no topic"),
            (Subscription::new(["a b"], "billing"), "no name of a topic"),
            (Subscription::new(["orders"], ""), "no name"),
            (ours().session(Duration::from_millis(10)), "change hands"),
            (ours().wait(Duration::ZERO), "no time"),
            (ours().wait(Duration::from_hours(1)), "too late"),
        ] {
            let error = Options::new("localhost:9092").subscribe(subscription).map(drop).expect_err(reason);
            assert_eq!(error.kind(), SinkErrorKind::Rejected);
            assert!(error.to_string().contains(reason), "{error}");
        }
        assert!(Options::new("localhost:9092").subscribe(ours()).is_ok());
        for (name, value) in [("enable.auto.commit", "true"), ("group.id", "x"), ("auto.offset.reset", "latest")] {
            let error =
                Options::new("localhost:9092").property(name, value).subscribe(ours()).map(drop).expect_err(name);
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}

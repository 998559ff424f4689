//! How a source is set up.

use std::time::Duration;

use pillarbox_core::port::{SinkError, span};
use serde::Deserialize;

use crate::options::refused;

/// What a source receives: the entries of streams, for a group of consumers. The names are those of a settings file.
///
/// The streams and the group on each are created when the source connects, if they are not there. The group begins with the
/// oldest entry.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subscription {
    pub(crate) streams: Vec<String>,
    pub(crate) group: String,
    #[serde(default = "thirty_seconds", with = "span")]
    pub(crate) again_after: Duration,
    #[serde(default = "five_seconds", with = "span")]
    pub(crate) wait: Duration,
}

impl Subscription {
    /// To streams, for a group of consumers.
    pub fn new<S: Into<String>>(streams: impl IntoIterator<Item = S>, group: impl Into<String>) -> Self {
        Self {
            streams: streams.into_iter().map(Into::into).collect(),
            group: group.into(),
            again_after: thirty_seconds(),
            wait: five_seconds(),
        }
    }

    /// When a message comes again that is neither acknowledged nor held. 30 s unless told otherwise. All consumers of a group
    /// should have the same: the shortest of theirs counts.
    #[must_use]
    pub fn again_after(mut self, span: Duration) -> Self {
        self.again_after = span;
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
        if self.streams.is_empty() || self.streams.iter().any(String::is_empty) {
            return Err(refused("there is no stream, or one without a name: nothing could come"));
        }
        let mut streams: Vec<_> = self.streams.iter().collect();
        streams.sort();
        if let Some([twice, ..]) = streams.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(refused(format_args!("the stream {twice:?} is named twice")));
        }
        if self.group.is_empty() {
            return Err(refused("the group has no name"));
        }
        if self.again_after < Duration::from_secs(1) {
            return Err(refused("again_after is less than 1s: messages would come again while they are dealt with"));
        }
        if self.wait < Duration::from_millis(1) {
            return Err(refused("wait is less than 1ms: no message can come in no time"));
        }
        if self.wait > Duration::from_mins(5) {
            return Err(refused("wait is more than 5m: it would be seen too late that the server is gone"));
        }
        Ok(())
    }
}

fn thirty_seconds() -> Duration {
    Duration::from_secs(30)
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
        let ours = || Subscription::new(["orders", "payments"], "billing");
        for (subscription, reason) in [
            (Subscription::new([""], "billing"), "without a name"),
            (Subscription::new(Vec::<String>::new(), "billing"), "no stream"),
            (Subscription::new(["b", "a", "b"], "billing"), "\"b\" is named twice"),
            (Subscription::new(["orders"], ""), "no name"),
            (ours().again_after(Duration::from_millis(999)), "while they are dealt with"),
            (ours().wait(Duration::ZERO), "no time"),
            (ours().wait(Duration::from_hours(1)), "too late"),
        ] {
            let error = Options::new("redis://localhost").subscribe(subscription).expect_err(reason);
            assert_eq!(error.kind(), SinkErrorKind::Rejected);
            assert!(error.to_string().contains(reason), "{error}");
        }
        assert!(Options::new("redis://localhost").subscribe(ours()).is_ok());
    }

    #[test]
    fn settings_are_read_by_name() {
        let text = r#"{"streams": ["orders"], "group": "billing", "again_after": "1m", "wait": "250ms"}"#;
        let subscription: Subscription = serde_json::from_str(text).expect(text);
        let expected = Subscription::new(["orders"], "billing")
            .again_after(Duration::from_mins(1))
            .wait(Duration::from_millis(250));
        assert_eq!(subscription, expected);
        assert!(serde_json::from_str::<Subscription>(r#"{"streams": ["a"], "group": "b", "topic": "c"}"#).is_err());
    }
}

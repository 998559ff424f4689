//! How a source is set up.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, Config, pull};
use pillarbox_core::port::{SinkError, span};
use serde::Deserialize;

use crate::options::refused;

/// What a source receives: the messages of a stream, for a group of consumers. The names are those of a settings file.
///
/// The group is a durable consumer of the stream, a pull consumer with explicit acknowledgements. It is created when the source
/// connects, if it is not there, and begins with the oldest message of the stream. One that is there stays as it is, and is
/// refused with the reason if it could lose messages.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subscription {
    pub(crate) stream: String,
    pub(crate) group: String,
    #[serde(default)]
    pub(crate) subjects: Vec<String>,
    #[serde(default = "thirty_seconds", with = "span")]
    pub(crate) again_after: Duration,
    #[serde(default = "five_seconds", with = "span")]
    pub(crate) wait: Duration,
    #[serde(default = "most_out")]
    pub(crate) most_out: u32,
}

impl Subscription {
    /// To a stream, which has to be there, for a group of consumers.
    pub fn new(stream: impl Into<String>, group: impl Into<String>) -> Self {
        Self {
            stream: stream.into(),
            group: group.into(),
            subjects: Vec::new(),
            again_after: thirty_seconds(),
            wait: five_seconds(),
            most_out: most_out(),
        }
    }

    /// Only messages of these subjects, which may have wildcards. All of the stream unless told otherwise. More than one needs
    /// a server of version 2.10.
    #[must_use]
    pub fn subjects<S: Into<String>>(mut self, subjects: impl IntoIterator<Item = S>) -> Self {
        self.subjects = subjects.into_iter().map(Into::into).collect();
        self
    }

    /// When a message comes again that is neither acknowledged nor held (`ack_wait`). 30 s unless told otherwise.
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

    /// How many messages may be out, not acknowledged, for all consumers of the group together (`max_ack_pending`), if it is
    /// created. 10,000 unless told otherwise.
    #[must_use]
    pub fn most_out(mut self, count: u32) -> Self {
        self.most_out = count;
        self
    }

    /// Whether a source can work like this.
    pub(crate) fn judge(&self) -> Result<(), SinkError> {
        let is_name = |name: &str| {
            !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c.is_control() || ".*>/\\".contains(c))
        };
        if !is_name(&self.stream) {
            return Err(refused(format_args!(
                "{:?} is no name of a stream: it is empty, or has one of . * > / \\ or a space",
                self.stream
            )));
        }
        if !is_name(&self.group) {
            return Err(refused(format_args!(
                "{:?} is no name of a group: it is empty, or has one of . * > / \\ or a space",
                self.group
            )));
        }
        if self.subjects.iter().any(String::is_empty) {
            return Err(refused("a subject is empty: leave subjects out for all of the stream"));
        }
        if self.again_after < Duration::from_secs(1) {
            return Err(refused("again_after is less than 1s: messages would come again while they are dealt with"));
        }
        if self.wait.is_zero() {
            return Err(refused("wait is 0: no message can come in no time"));
        }
        if self.wait > Duration::from_mins(5) {
            return Err(refused("wait is more than 5m: it would be seen too late that the server is gone"));
        }
        if self.most_out == 0 {
            return Err(refused("most_out is 0: no message could come"));
        }
        Ok(())
    }

    /// The consumer to be created.
    pub(crate) fn config(&self) -> pull::Config {
        let (filter_subject, filter_subjects) = match &self.subjects[..] {
            [] => (String::new(), Vec::new()),
            [one] => (one.clone(), Vec::new()),
            many => (String::new(), many.to_vec()),
        };
        pull::Config {
            durable_name: Some(self.group.clone()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: self.again_after,
            max_deliver: -1,
            max_ack_pending: self.most_out.into(),
            filter_subject,
            filter_subjects,
            ..pull::Config::default()
        }
    }

    /// Whether a consumer that is set up like this gives every message until it is acknowledged.
    pub(crate) fn judge_consumer(&self, config: &Config) -> Result<(), String> {
        let told = |words: &str| Err(words.to_owned());
        if config.deliver_subject.is_some() {
            return told("is a push consumer: delete it, or give the source another group");
        }
        if config.durable_name.is_none() {
            return told("is not durable: it would forget its place; delete it, or give the source another group");
        }
        if config.ack_policy == AckPolicy::None {
            return told(
                "has ack_policy none: a message that was not dealt with would not come again; delete it and it will be created \
                 with explicit",
            );
        }
        if config.ack_policy != AckPolicy::Explicit {
            return told(
                "has an ack_policy other than explicit: one acknowledgement would stand for others; delete it and it will be \
                 created with explicit",
            );
        }
        if config.max_deliver > 0 {
            return Err(format!(
                "has max_deliver {}: the server would drop a message after that many deliveries, and tell nobody; set it to -1: \
                 a consumer of Pillarbox gives up by itself, and keeps what it has given up",
                config.max_deliver
            ));
        }
        if config.headers_only {
            return told("has headers_only: payloads would not come; set it to false");
        }
        if !config.inactive_threshold.is_zero() {
            return told(
                "has an inactive_threshold: it would be deleted with what it knows while no consumer runs; set it to 0",
            );
        }
        let shortest = config.backoff.iter().copied().chain([config.ack_wait]).min().unwrap_or_default();
        if shortest < self.again_after {
            return Err(format!(
                "has an ack_wait or backoff of {shortest:?}, and again_after is {:?}: messages would come again while they are \
                 held; set one to the other",
                self.again_after
            ));
        }
        let mut filters = config.filter_subjects.clone();
        filters.extend(Some(config.filter_subject.clone()).filter(|subject| !subject.is_empty()));
        filters.sort();
        let mut asked = self.subjects.clone();
        asked.sort();
        if filters != asked {
            let all =
                |subjects: &[String]| if subjects.is_empty() { "all subjects".into() } else { subjects.join(", ") };
            return Err(format!(
                "gives messages of {}, and {} are asked for: change one of them; several need a server of version 2.10",
                all(&filters),
                all(&asked)
            ));
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

fn most_out() -> u32 {
    10_000
}

#[cfg(test)]
mod tests {
    use async_nats::jetstream::consumer::IntoConsumerConfig as _;
    use pillarbox_core::port::SinkErrorKind;

    use super::*;
    use crate::Options;

    #[test]
    fn settings_that_can_not_work_are_refused_with_the_reason() {
        let ours = || Subscription::new("ORDERS", "billing");
        for (subscription, reason) in [
            (Subscription::new("", "billing"), "name of a stream"),
            (Subscription::new("a.b", "billing"), "name of a stream"),
            (Subscription::new("ORDERS", "a b"), "name of a group"),
            (Subscription::new("ORDERS", "a>"), "name of a group"),
            (ours().subjects([""]), "subject is empty"),
            (ours().again_after(Duration::from_millis(999)), "while they are dealt with"),
            (ours().wait(Duration::ZERO), "no time"),
            (ours().wait(Duration::from_hours(1)), "too late"),
            (ours().most_out(0), "no message could come"),
        ] {
            let error = Options::new("nats://localhost").subscribe(subscription).expect_err(reason);
            assert_eq!(error.kind(), SinkErrorKind::Rejected);
            assert!(error.to_string().contains(reason), "{error}");
        }
        assert!(Options::new("nats://localhost").subscribe(ours()).is_ok());
    }

    #[test]
    fn a_consumer_that_could_lose_messages_is_refused() {
        let subscription = Subscription::new("ORDERS", "billing").subjects(["orders.>"]);
        let ours = || subscription.config().into_consumer_config();
        assert_eq!(subscription.judge_consumer(&ours()), Ok(()));
        let longer = Config { ack_wait: Duration::from_mins(5), ..ours() };
        assert_eq!(subscription.judge_consumer(&longer), Ok(()));
        for (config, reason) in [
            (Config { deliver_subject: Some("x".into()), ..ours() }, "push consumer"),
            (Config { durable_name: None, ..ours() }, "not durable"),
            (Config { ack_policy: AckPolicy::None, ..ours() }, "would not come again"),
            (Config { ack_policy: AckPolicy::All, ..ours() }, "stand for others"),
            (Config { max_deliver: 5, ..ours() }, "max_deliver 5"),
            (Config { headers_only: true, ..ours() }, "headers_only"),
            (Config { inactive_threshold: Duration::from_secs(1), ..ours() }, "would be deleted"),
            (Config { ack_wait: Duration::from_secs(29), ..ours() }, "while they are held"),
            (Config { backoff: vec![Duration::from_secs(1)], ..ours() }, "while they are held"),
            (Config { filter_subject: String::new(), ..ours() }, "all subjects"),
            (Config { filter_subject: "orders.paid".into(), ..ours() }, "orders.paid"),
        ] {
            let told = subscription.judge_consumer(&config).expect_err(reason);
            assert!(told.contains(reason), "{told}");
        }
    }

    #[test]
    fn settings_are_read_by_name() {
        let text = r#"{"stream": "ORDERS", "group": "billing", "again_after": "1m", "wait": "250ms"}"#;
        let subscription: Subscription = serde_json::from_str(text).expect(text);
        let expected =
            Subscription::new("ORDERS", "billing").again_after(Duration::from_mins(1)).wait(Duration::from_millis(250));
        assert_eq!(subscription, expected);
        assert!(serde_json::from_str::<Subscription>(r#"{"stream": "a", "group": "b", "topic": "c"}"#).is_err());
    }
}

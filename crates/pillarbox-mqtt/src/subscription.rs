//! How a source is set up.

use std::time::Duration;

use pillarbox_core::port::{SinkError, span};
use rumqttc::v5::mqttbytes::{
    QoS,
    v5::{Filter, RetainForwardRule},
    valid_filter,
};
use serde::Deserialize;

use crate::error::refused;

/// What a source receives: the messages of topics, for one client of the server. The names are those of a settings file.
///
/// The server keeps messages for the client by its id, from the first time that it has connected: see the
/// [source](crate#the-source).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subscription {
    pub(crate) topic: String,
    pub(crate) client_id: String,
    #[serde(default)]
    pub(crate) group: Option<String>,
    #[serde(default, with = "span::option")]
    pub(crate) keep_for: Option<Duration>,
    #[serde(default = "five_seconds", with = "span")]
    pub(crate) wait: Duration,
    #[serde(default = "most_out")]
    pub(crate) most_out: u16,
}

impl Subscription {
    /// To a topic, or to all that match: `shop/+/orders`, `shop/#`.
    ///
    /// The server knows this consumer by its id, which has to be the same after a restart, and unlike any other's: of two with
    /// the same id the server throws out the first when the second comes. Where there are several of a service, take what each
    /// has for good: the name of its host, or its number, such as `billing-0`.
    pub fn new(topic: impl Into<String>, client_id: impl Into<String>) -> Self {
        Self {
            topic: topic.into(),
            client_id: client_id.into(),
            group: None,
            keep_for: None,
            wait: five_seconds(),
            most_out: most_out(),
        }
    }

    /// A group that shares the messages: each goes to one of its members. Without it each client gets them all.
    #[must_use]
    pub fn group(mut self, name: impl Into<String>) -> Self {
        self.group = Some(name.into());
        self
    }

    /// How long the server keeps this client's session when it is not there, and with it the messages that it has not
    /// acknowledged. For ever unless told otherwise, or as long as the server is set up to.
    #[must_use]
    pub fn keep_for(mut self, span: Duration) -> Self {
        self.keep_for = Some(span);
        self
    }

    /// How long a receive waits for the first message. 5 s unless told otherwise.
    #[must_use]
    pub fn wait(mut self, span: Duration) -> Self {
        self.wait = span;
        self
    }

    /// How many messages this source may have that are not acknowledged, received or on the way (`Receive Maximum`). 200 unless
    /// told otherwise. No fewer than are dealt with at once.
    #[must_use]
    pub fn most_out(mut self, count: u16) -> Self {
        self.most_out = count;
        self
    }

    /// Whether a source can work like this.
    pub(crate) fn judge(&self) -> Result<(), SinkError> {
        let longest = usize::from(u16::MAX);
        if self.topic.starts_with("$share/") {
            return Err(refused("the topic begins with $share/: name the group in `group`, and the topic alone here"));
        }
        if !is_filter(&self.topic) {
            return Err(refused(format_args!(
                "the topic {:?} is none that can be subscribed to: a + stands alone between slashes, a # alone at the end",
                self.topic
            )));
        }
        if self.client_id.is_empty() || self.client_id.len() > longest {
            return Err(refused(
                "client_id is empty or longer than MQTT has room for: the server keeps messages by it, so it has to be this \
                 consumer's for good",
            ));
        }
        if self.group.as_ref().is_some_and(|group| group.is_empty() || group.contains(['/', '+', '#', '\0'])) {
            return Err(refused("the group is empty, or has one of / + #, which MQTT does not allow there"));
        }
        if self.path().len() > longest {
            return Err(refused("topic and group are longer than the 65535 bytes that MQTT has for them"));
        }
        if self.keep_for.is_some_and(|span| span < Duration::from_mins(1)) {
            return Err(refused("keep_for is less than 1m: a restart would lose messages"));
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

    /// What the server is asked for.
    pub(crate) fn filter(&self) -> Filter {
        let mut filter = Filter::new(self.path(), QoS::AtLeastOnce);
        // It is asked for again and again, and what the server retains would come each time.
        filter.retain_forward_rule = RetainForwardRule::Never;
        filter
    }

    /// In whole seconds. The largest number is "for ever".
    pub(crate) fn expiry(&self) -> u32 {
        self.keep_for.map_or(u32::MAX, |span| u32::try_from(span.as_secs()).unwrap_or(u32::MAX))
    }

    fn path(&self) -> String {
        match &self.group {
            Some(group) => format!("$share/{group}/{}", self.topic),
            None => self.topic.clone(),
        }
    }
}

fn is_filter(topic: &str) -> bool {
    valid_filter(topic) && !topic.contains('\0') && topic.split('/').all(|level| level == "+" || !level.contains('+'))
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
        let ours = || Subscription::new("shop/orders", "billing-0");
        for (subscription, reason) in [
            (Subscription::new("", "billing-0"), "can be subscribed to"),
            (Subscription::new("shop/#/orders", "billing-0"), "a # alone at the end"),
            (Subscription::new("shop/a+", "billing-0"), "a + stands alone"),
            (Subscription::new("$share/billing/orders", "billing-0"), "`group`"),
            (Subscription::new("x".repeat(65_536), "billing-0"), "65535 bytes"),
            (Subscription::new("shop/orders", ""), "client_id is empty"),
            (ours().group(""), "the group is empty"),
            (ours().group("a/b"), "does not allow"),
            (ours().keep_for(Duration::from_secs(59)), "lose messages"),
            (ours().wait(Duration::ZERO), "no time"),
            (ours().wait(Duration::from_hours(1)), "too late"),
            (ours().most_out(0), "no message could come"),
        ] {
            let error = Options::new("mqtt://localhost").subscribe(subscription).expect_err(reason);
            assert_eq!(error.kind(), SinkErrorKind::Rejected);
            assert!(error.to_string().contains(reason), "{error}");
        }
        let error = Options::new("mqtt://localhost").client_id("relay").subscribe(ours()).expect_err("two ids");
        assert!(error.to_string().contains("the sink's"), "{error}");
        for topic in ["shop/orders", "shop/+/orders", "+", "#", "shop/#", "/shop"] {
            assert!(Options::new("mqtt://localhost").subscribe(Subscription::new(topic, "a")).is_ok(), "{topic}");
        }
    }

    #[test]
    fn settings_are_read_by_name() {
        let text = r#"{"topic": "shop/#", "client_id": "billing-0", "group": "billing", "keep_for": "7d", "most_out": 10,
            "wait": "250ms"}"#;
        let subscription: Subscription = serde_json::from_str(text).expect(text);
        let expected = Subscription::new("shop/#", "billing-0").group("billing").most_out(10);
        let expected = expected.keep_for(Duration::from_hours(7 * 24)).wait(Duration::from_millis(250));
        assert_eq!(subscription, expected);
        assert!(serde_json::from_str::<Subscription>(r#"{"topic": "a", "client_id": "b", "queue": "c"}"#).is_err());
        assert!(serde_json::from_str::<Subscription>(r#"{"topic": "a"}"#).is_err());
    }

    #[test]
    fn the_server_is_asked_for_the_group_and_for_the_time() {
        let ours = Subscription::new("shop/#", "billing-0");
        assert_eq!((ours.filter().path, ours.expiry()), ("shop/#".to_owned(), u32::MAX));
        let grouped = ours.group("billing").keep_for(Duration::from_hours(1));
        assert_eq!((grouped.filter().path, grouped.expiry()), ("$share/billing/shop/#".to_owned(), 3600));
        assert_eq!(grouped.keep_for(Duration::MAX).expiry(), u32::MAX);
    }
}

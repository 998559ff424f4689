//! How a sink is set up.

use std::{collections::BTreeMap, fmt, time::Duration};

use pillarbox_core::port::{SinkError, span};
use rdkafka::{ClientConfig, config::RDKafkaLogLevel};
use serde::{Deserialize, Deserializer, de::Visitor};

use crate::{
    KafkaSink, KafkaSource, Subscription,
    connection::{self, Connection},
    error,
};

/// Room for key, headers and framing in what librdkafka takes as a message's size.
const OVERHEAD: usize = 1024;
const HAS_TLS: bool = cfg!(feature = "tls");

/// Which brokers, and how. Prints no values of properties: passwords are among them.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    brokers: String,
    #[serde(default)]
    properties: BTreeMap<String, Value>,
    #[serde(default = "answer_within", with = "span")]
    answer_within: Duration,
}

fn answer_within() -> Duration {
    Duration::from_secs(10)
}

/// As a file may have it; librdkafka knows texts only.
#[derive(Clone)]
struct Value(String);

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Scalar;

        impl Visitor<'_> for Scalar {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a number, `true` or `false`")
            }

            fn visit_str<E>(self, text: &str) -> Result<Value, E> {
                Ok(Value(text.to_owned()))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
                Ok(Value(number.to_string()))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
                Ok(Value(number.to_string()))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
                Ok(Value(number.to_string()))
            }

            fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
                Ok(Value(flag.to_string()))
            }
        }

        from.deserialize_any(Scalar)
    }
}

impl Options {
    /// A cluster that is reached by these brokers, `host:port` with commas between them; they tell of the others.
    pub fn new(brokers: impl Into<String>) -> Self {
        Self { brokers: brokers.into(), properties: BTreeMap::new(), answer_within: answer_within() }
    }

    /// A setting of librdkafka, such as `compression.type`, `linger.ms` or `sasl.username`.
    #[must_use]
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.insert(name.into(), Value(value.into()));
        self
    }

    /// How long a message may take, with all that librdkafka tries by itself: 10 s by default. It looks once a second, so
    /// that it may be a second more.
    #[must_use]
    pub fn answer_within(mut self, span: Duration) -> Self {
        self.answer_within = span;
        self
    }

    /// The sink, which connects when it is first used.
    pub fn open(self) -> Result<KafkaSink, SinkError> {
        check_brokers(&self.brokers)?;
        if !(Duration::from_millis(100)..=Duration::from_mins(5)).contains(&self.answer_within) {
            return Err(SinkError::rejected("answer_within has to be between 100 ms and 5 min"));
        }
        let mut config = self.defaults();
        for (name, Value(value)) in &self.properties {
            if let Some(reason) = refusal(name, value, self.answer_within).or_else(|| lack(name, value, HAS_TLS)) {
                return Err(SinkError::rejected(format_args!("the property {name} is refused: {reason}")));
            }
            config.set(name, value);
        }
        // What librdkafka makes of it, names that it does not know among them.
        let native = config.create_native_config().map_err(|error| error::of_settings(&error))?;
        let most = native.get("message.max.bytes").map_err(|error| error::of_settings(&error))?;
        let largest = most.parse().unwrap_or(1_000_000_usize).saturating_sub(OVERHEAD);
        connection::try_out(config.clone())?;
        Ok(KafkaSink::new(Connection::new(config), self.brokers, self.answer_within, largest))
    }

    /// A source in place of a sink, which connects when it is first used. Properties are those of consumers.
    pub fn subscribe(self, subscription: Subscription) -> Result<KafkaSource, SinkError> {
        check_brokers(&self.brokers)?;
        subscription.judge()?;
        if !(Duration::from_millis(100)..=Duration::from_mins(5)).contains(&self.answer_within) {
            return Err(SinkError::rejected("answer_within has to be between 100 ms and 5 min"));
        }
        let request = self.answer_within.as_millis().clamp(1_000, 60_000).to_string();
        let session = subscription.session.as_millis();
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &self.brokers)
            .set("client.id", "pillarbox")
            .set("group.id", &subscription.group)
            // What is acknowledged is committed, and nothing else.
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "earliest")
            .set("session.timeout.ms", session.to_string())
            .set("heartbeat.interval.ms", (session / 10).max(100).to_string())
            // Handlers may take their time: a consumer that hangs is not one that has died.
            .set("max.poll.interval.ms", session.max(24 * 60 * 60 * 1000).to_string())
            .set("socket.timeout.ms", &request)
            .set("socket.connection.setup.timeout.ms", &request)
            .set("api.version.request.timeout.ms", &request)
            .set("reconnect.backoff.max.ms", "1000")
            .set_log_level(RDKafkaLogLevel::Warning);
        for (name, Value(value)) in &self.properties {
            let reason = match &**name {
                "bootstrap.servers" | "metadata.broker.list" => Some("it is set by brokers"),
                "group.id" => Some("it is set by the subscription's group"),
                "session.timeout.ms" => Some("it is set by the subscription's session"),
                "enable.auto.commit" | "enable.auto.offset.store" | "auto.commit.enable" => {
                    Some("what was not dealt with would count as done; leave it out")
                }
                "auto.offset.reset" => Some("a new group would miss what was sent before; leave it out"),
                name if name.starts_with("test.mock.") => Some("messages would come from a cluster that is none"),
                _ => None,
            };
            if let Some(reason) = reason.or_else(|| lack(name, value, HAS_TLS)) {
                return Err(SinkError::rejected(format_args!("the property {name} is refused: {reason}")));
            }
            config.set(name, value);
        }
        config.create_native_config().map_err(|error| error::of_settings(&error))?;
        Ok(KafkaSource::new(config, self.brokers, self.answer_within, subscription))
    }

    fn defaults(&self) -> ClientConfig {
        let within = self.answer_within.as_millis();
        let request = within.clamp(1_000, 60_000).to_string();
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &self.brokers)
            .set("client.id", "pillarbox")
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("partitioner", "murmur2_random")
            // librdkafka gives up when the relay does: else a message could arrive long after it was called undelivered.
            .set("message.timeout.ms", within.to_string())
            // A connection that swallows requests is not held on to longer than that, either.
            .set("socket.timeout.ms", &request)
            .set("socket.connection.setup.timeout.ms", &request)
            .set("api.version.request.timeout.ms", &request)
            .set("reconnect.backoff.max.ms", "1000")
            // So long a topic stays refused after it was made, or the right to it was given.
            .set("topic.metadata.refresh.interval.ms", "30000")
            // Half of the time for a topic to become known: then it is missing, and not late.
            .set("topic.metadata.propagation.max.ms", (within / 2).to_string())
            .set_log_level(RDKafkaLogLevel::Warning);
        config
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // With a user in them they are refused, but may be printed before.
        let brokers = if self.brokers.contains('@') { ".." } else { &self.brokers };
        f.debug_struct("Options")
            .field("brokers", &brokers)
            .field("properties", &self.properties.keys())
            .field("answer_within", &self.answer_within)
            .finish()
    }
}

fn check_brokers(brokers: &str) -> Result<(), SinkError> {
    if brokers.split(',').all(|broker| broker.trim().is_empty()) {
        return Err(SinkError::rejected("brokers are needed: host:port, with commas between them"));
    }
    if brokers.contains('@') {
        return Err(SinkError::rejected(
            "brokers have no user: set the properties security.protocol, sasl.mechanism, sasl.username and sasl.password",
        ));
    }
    Ok(())
}

/// Why a setting is refused: what could lose messages, change their order, or is the sink's own.
fn refusal(name: &str, value: &str, answer_within: Duration) -> Option<&'static str> {
    let value = value.trim().to_ascii_lowercase();
    let number = || value.parse::<u128>();
    let is_true = matches!(&*value, "true" | "t" | "1");
    match name {
        "bootstrap.servers" | "metadata.broker.list" => Some("it is set by brokers"),
        "acks" | "request.required.acks" if value != "all" && value != "-1" => Some(
            "messages that fewer than all replicas have are lost with their broker; leave it out, or set it to all",
        ),
        "enable.idempotence" if !is_true => {
            Some("what is sent again could arrive twice, and out of order; leave it out")
        }
        "retries" | "message.send.max.retries" if number().is_ok_and(|retries| retries == 0) => {
            Some("each change of a leader would fail messages; leave it out")
        }
        "message.timeout.ms" | "delivery.timeout.ms" => Some("it is set by answer_within"),
        "max.in.flight" | "max.in.flight.requests.per.connection" if number().is_ok_and(|requests| requests > 5) => {
            Some("above 5, what is sent again could arrive out of order")
        }
        "queuing.strategy" if value != "fifo" => Some("messages would be sent out of order"),
        "partitioner" if value == "random" => Some("messages of one key would lie in many partitions, in no order"),
        "transactional.id" => Some("the sink commits no transactions: nothing would ever be seen"),
        "delivery.report.only.error" if value != "false" => Some("no message would ever be confirmed"),
        "linger.ms" | "queue.buffering.max.ms" => {
            // librdkafka takes fractions, too.
            let millis = value.parse::<f64>().ok().filter(|millis| millis.is_finite());
            let lingers = millis.is_some_and(|millis| millis >= answer_within.as_secs_f64() * 1000.0);
            lingers.then_some("messages would be given up before they are sent: it has to be less than answer_within")
        }
        name if name.starts_with("test.mock.") => Some("messages would go to a cluster that is none"),
        _ => None,
    }
}

/// What a build lacks for a setting, if it was made without TLS.
fn lack(name: &str, value: &str, has_tls: bool) -> Option<&'static str> {
    let value = value.trim().to_ascii_lowercase();
    let needs_tls = match name {
        "security.protocol" => matches!(&*value, "ssl" | "sasl_ssl"),
        "sasl.mechanism" | "sasl.mechanisms" => value.starts_with("scram-"),
        _ => false,
    };
    let words =
        "this build has no TLS: build it with the feature `tls` of pillarbox-kafka, which is `kafka-tls` of the relay";
    (needs_tls && !has_tls).then_some(words)
}

#[cfg(test)]
mod tests {
    use pillarbox_core::port::Sink;

    use super::*;

    fn refused(options: Options) -> String {
        options.open().map(|_| ()).expect_err("a refusal").to_string()
    }

    #[test]
    fn settings_that_could_lose_messages_are_refused_with_the_reason() {
        for (name, value, part) in [
            ("acks", "1", "lost with their broker"),
            ("acks", "0", "lost with their broker"),
            ("request.required.acks", "1", "lost with their broker"),
            ("enable.idempotence", "false", "twice"),
            ("enable.idempotence", "F", "twice"),
            ("retries", "0", "leader"),
            ("message.send.max.retries", "0", "leader"),
            ("message.timeout.ms", "100", "answer_within"),
            ("delivery.timeout.ms", "100", "answer_within"),
            ("max.in.flight", "6", "order"),
            ("max.in.flight.requests.per.connection", "1000", "order"),
            ("queuing.strategy", "lifo", "order"),
            ("partitioner", "random", "order"),
            ("transactional.id", "relay", "transactions"),
            ("delivery.report.only.error", "true", "confirmed"),
            ("linger.ms", "10000", "answer_within"),
            ("queue.buffering.max.ms", "20000.5", "answer_within"),
            ("test.mock.num.brokers", "3", "none"),
            ("bootstrap.servers", "elsewhere:9092", "brokers"),
        ] {
            let words = refused(Options::new("kafka:9092").property(name, value));
            assert!(words.contains(name) && words.contains(part), "{name}={value}: {words}");
        }
    }

    #[test]
    fn settings_that_lose_nothing_are_taken() {
        for (name, value) in [
            ("acks", "all"),
            ("acks", "-1"),
            ("enable.idempotence", "true"),
            ("retries", "3"),
            ("max.in.flight", "1"),
            ("partitioner", "consistent_random"),
            ("linger.ms", "20"),
            ("compression.type", "lz4"),
            ("queue.buffering.max.messages", "10"),
            ("client.id", "relay-1"),
        ] {
            Options::new("kafka:9092").property(name, value).open().expect(name);
        }
    }

    #[test]
    fn settings_that_librdkafka_does_not_know_are_refused_without_their_value() {
        for (name, part) in [
            ("no.such.setting", "no.such.setting"),
            ("compression.type", "compression.type"),
            ("security.protocol", "security.protocol"),
        ] {
            let words = refused(Options::new("kafka:9092").property(name, "pa55word"));
            assert!(words.contains(part), "{words}");
            assert!(!words.contains("pa55word"), "{words}");
        }
    }

    // Both kinds of builds: all tests together are built with what one of them needs.
    #[test]
    fn what_needs_tls_is_refused_by_a_build_without_it() {
        for (name, value) in
            [("security.protocol", "ssl"), ("security.protocol", "SASL_SSL"), ("sasl.mechanism", "SCRAM-SHA-256")]
        {
            assert!(lack(name, value, false).expect(name).contains("kafka-tls"));
            assert_eq!(lack(name, value, true), None);
            if !HAS_TLS {
                let words = refused(Options::new("kafka:9092").property(name, value));
                assert!(words.contains(name) && words.contains("kafka-tls"), "{words}");
            }
        }
        for (name, value) in [("security.protocol", "sasl_plaintext"), ("sasl.mechanism", "PLAIN"), ("acks", "all")] {
            assert_eq!(lack(name, value, false), None);
        }
    }

    #[test]
    #[cfg(feature = "tls")]
    fn a_login_over_tls_is_taken() {
        for mechanism in ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] {
            let options = Options::new("kafka:9092").property("security.protocol", "sasl_ssl");
            let options = options.property("sasl.mechanism", mechanism);
            options.property("sasl.username", "shop").property("sasl.password", "pa55word").open().expect(mechanism);
        }
    }

    #[test]
    fn settings_that_do_not_go_together_are_refused_at_once() {
        let options = || Options::new("kafka:9092").property("security.protocol", "sasl_plaintext");
        let words = refused(options().property("sasl.mechanism", "PLAIN"));
        assert!(words.contains("sasl.username"), "{words}");
        if HAS_TLS {
            let options = Options::new("kafka:9092").property("security.protocol", "ssl");
            let words = refused(options.property("ssl.ca.location", "/nowhere/at/all.crt"));
            assert!(words.contains("ssl.ca.location"), "{words}");
        }
    }

    #[test]
    fn nothing_secret_is_printed() {
        let options = Options::new("kafka:9092").property("sasl.password", "pa55word");
        for shown in [format!("{options:?}"), format!("{:?}", options.open().expect("a sink"))] {
            assert!(shown.contains("kafka:9092") && !shown.contains("pa55word"), "{shown}");
        }
        let options = Options::new("shop:pa55word@kafka:9092");
        assert!(!format!("{options:?}").contains("pa55word"));
        let words = refused(options);
        assert!(words.contains("sasl.username") && !words.contains("pa55word"), "{words}");
        for brokers in ["", " , "] {
            assert!(refused(Options::new(brokers)).contains("brokers"));
        }
    }

    #[test]
    fn a_file_has_the_same_names_and_no_others() {
        let json = r#"{"brokers": "kafka:9092", "answer_within": "3s",
            "properties": {"linger.ms": 20, "socket.keepalive.enable": true, "message.max.bytes": "5000",
                "queue.buffering.max.ms": 0.5}}"#;
        let options: Options = serde_json::from_str(json).expect("options");
        assert_eq!(options.answer_within, Duration::from_secs(3));
        assert_eq!(options.open().expect("a sink").abilities().largest, Some(5000 - OVERHEAD));
        let error = serde_json::from_str::<Options>(r#"{"brokers": "kafka:9092", "acks": "1"}"#).map(|_| ());
        assert!(error.expect_err("unknown").to_string().contains("acks"));
    }
}

//! How a sink is set up.

use std::{fmt, fs, path::PathBuf, time::Duration};

use lapin::{
    tcp::OwnedTLSConfig,
    types::ShortString,
    uri::{AMQPScheme, AMQPUri},
};
use pillarbox_core::port::{SinkError, span};
use serde::Deserialize;
use url::{Host, Url};

use crate::{RabbitMqSink, RabbitMqSource, Subscription, connection::Connection, error::refused};

/// The most bytes of a message that RabbitMQ 4 takes unless it was told otherwise (`max_message_size`): 16 MiB. RabbitMQ 3
/// takes 128 MiB.
pub const LARGEST: usize = 16 * 1024 * 1024;

/// What no RabbitMQ takes more of, whatever it was told: 512 MiB.
const LIMIT: usize = 512 * 1024 * 1024;

/// Seconds between signs of life, unless the URL says otherwise.
const HEARTBEAT: u16 = 10;

/// How a sink is set up. The names are those of the relay's settings file.
///
/// Publisher confirms, the `mandatory` flag and persistent messages can't be turned off: without each of them messages
/// could be lost that count as sent.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    url: String,
    #[serde(default)]
    pub(crate) exchange: String,
    #[serde(default)]
    pub(crate) routing: Routing,
    #[serde(default)]
    pub(crate) unroutable: Unroutable,
    #[serde(default = "answer_within", with = "span")]
    pub(crate) answer_within: Duration,
    #[serde(default = "largest")]
    pub(crate) largest: usize,
    #[serde(default)]
    root_certificate: Option<PathBuf>,
}

/// What the exchange decides by, the routing key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Routing {
    /// The message's topic.
    #[default]
    Topic,
    /// The event's key, and nothing if it has none: for an exchange of the type `x-consistent-hash`, which spreads keys over
    /// queues.
    Key,
}

/// What becomes of a message for which the exchange has no queue (`312 NO_ROUTE`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Unroutable {
    /// It has failed this time, and is tried again as the retry policy says: whoever reads it may bind a queue yet.
    #[default]
    Retry,
    /// It is rejected for good. Where queues are there before anything is sent, a wrong topic is seen at once.
    Reject,
}

impl Options {
    /// For the server at this URL: `amqp://[user[:password]@]host[:port][/vhost]`, or `amqps://` for TLS. The virtual host is
    /// `/` unless the URL has one, in which a `/` is written `%2f`. `?heartbeat=10` sets the seconds between signs of life.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            exchange: String::new(),
            routing: Routing::default(),
            unroutable: Unroutable::default(),
            answer_within: answer_within(),
            largest: LARGEST,
            root_certificate: None,
        }
    }

    /// Publishes to this exchange, which has to be there. Unless told so, to the default exchange, where a topic is the name
    /// of a queue.
    #[must_use]
    pub fn exchange(mut self, name: impl Into<String>) -> Self {
        self.exchange = name.into();
        self
    }

    /// What the routing key is.
    #[must_use]
    pub fn routing(mut self, routing: Routing) -> Self {
        self.routing = routing;
        self
    }

    /// What becomes of a message for which there is no queue.
    #[must_use]
    pub fn unroutable(mut self, unroutable: Unroutable) -> Self {
        self.unroutable = unroutable;
        self
    }

    /// How long a batch may take, the connect included. 10 s unless told otherwise.
    #[must_use]
    pub fn answer_within(mut self, span: Duration) -> Self {
        self.answer_within = span;
        self
    }

    /// The most bytes of a payload: [`LARGEST`] unless told otherwise. The server does not tell its `max_message_size`; what
    /// is larger than that, and not than this, is rejected with the server's words, at the price of a channel.
    #[must_use]
    pub fn largest(mut self, bytes: usize) -> Self {
        self.largest = bytes;
        self
    }

    /// A file with the certificates, in PEM, of those who may vouch for an `amqps://` server, beside the public ones.
    #[must_use]
    pub fn root_certificate(mut self, file: impl Into<PathBuf>) -> Self {
        self.root_certificate = Some(file.into());
        self
    }

    /// A source in place of a sink. Checks the settings, and does not connect.
    pub fn subscribe(self, subscription: Subscription) -> Result<RabbitMqSource, SinkError> {
        subscription.judge()?;
        Ok(RabbitMqSource::new(self.connection()?, self.answer_within, subscription))
    }

    /// Checks the settings. Does not connect: a server that is down is no error yet.
    pub fn open(self) -> Result<RabbitMqSink, SinkError> {
        if self.largest == 0 || self.largest > LIMIT {
            return Err(refused(format_args!("largest is {}: 1 to {LIMIT} bytes are possible", self.largest)));
        }
        if ShortString::try_new(self.exchange.as_str()).is_err() {
            return Err(refused("the name of the exchange is longer than the 255 bytes that AMQP has for it"));
        }
        if self.exchange.is_empty() && self.routing == Routing::Key {
            return Err(refused("routing is \"key\", and no exchange is set: keys would be taken for names of queues"));
        }
        Ok(RabbitMqSink::new(self.connection()?, self))
    }

    fn connection(&self) -> Result<Connection, SinkError> {
        if self.answer_within.is_zero() {
            return Err(refused("answer_within is 0: no server can answer in no time"));
        }
        let uri = parse(&self.url)?;
        let mut tls = OwnedTLSConfig::default();
        if let Some(path) = &self.root_certificate {
            if uri.scheme != AMQPScheme::AMQPS {
                return Err(refused(
                    "root_certificate is set, and the url is not amqps://: nothing would be encrypted",
                ));
            }
            let unusable =
                |error: &dyn fmt::Display| refused(format_args!("root_certificate {}: {error}", path.display()));
            let text = fs::read_to_string(path).map_err(|error| unusable(&error))?;
            if !text.contains("-----BEGIN CERTIFICATE-----") {
                return Err(unusable(&"it has no certificate in PEM"));
            }
            tls.cert_chain = Some(text);
        }
        Ok(Connection::new(uri, tls, self.answer_within))
    }
}

/// Without the URL's user and password.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = parse(&self.url).map_or_else(|_| "unreadable".to_owned(), |uri| server(&uri));
        f.debug_struct("Options")
            .field("server", &server)
            .field("exchange", &self.exchange)
            .field("routing", &self.routing)
            .field("unroutable", &self.unroutable)
            .field("answer_within", &self.answer_within)
            .field("largest", &self.largest)
            .field("root_certificate", &self.root_certificate)
            .finish()
    }
}

/// Where it is, and nothing that is secret.
pub(crate) fn server(uri: &AMQPUri) -> String {
    format!("{}://{}:{}/{}", uri.scheme, uri.authority.host, uri.authority.port, uri.vhost)
}

fn parse(text: &str) -> Result<AMQPUri, SinkError> {
    // What a parser says of a URL could quote it.
    let wrong = || refused("the url is not amqp://[user[:password]@]host[:port][/vhost], or amqps://...");
    let url = Url::parse(text).map_err(|_| wrong())?;
    let host = match url.host() {
        Some(Host::Domain(name)) if !name.is_empty() => name.to_owned(),
        Some(Host::Ipv4(address)) => address.to_string(),
        Some(Host::Ipv6(address)) => address.to_string(),
        _ => return Err(wrong()),
    };
    const KNOWN: [&str; 5] = ["heartbeat", "frame_max", "channel_max", "connection_timeout", "auth_mechanism"];
    for (name, _) in url.query_pairs() {
        if !KNOWN.contains(&&*name) {
            return Err(refused(format_args!("the url has ?{name}=, and may have {}", KNOWN.join(", "))));
        }
    }
    if url.path().get(1..).is_some_and(|vhost| vhost.contains('/')) || url.fragment().is_some() {
        return Err(refused("the url has more than one / after the host: in the name of a virtual host it is %2f"));
    }
    let mut uri: AMQPUri = text.parse().map_err(|_| wrong())?;
    uri.authority.host = host;
    uri.query.heartbeat.get_or_insert(HEARTBEAT);
    Ok(uri)
}

fn answer_within() -> Duration {
    Duration::from_secs(10)
}

fn largest() -> usize {
    LARGEST
}

#[cfg(test)]
mod tests {
    use pillarbox_core::port::SinkErrorKind;

    use super::*;

    #[test]
    fn settings_that_make_no_sense_are_refused_with_the_reason() {
        let options = || Options::new("amqp://localhost");
        for (options, reason) in [
            (options().answer_within(Duration::ZERO), "no time"),
            (options().largest(0), "largest is 0"),
            (options().largest(LIMIT + 1), "possible"),
            (options().exchange("x".repeat(256)), "255 bytes"),
            (options().routing(Routing::Key), "names of queues"),
            (options().root_certificate("ca.pem"), "nothing would be encrypted"),
            (Options::new("amqps://localhost").root_certificate("/no/such/file"), "/no/such/file"),
            (Options::new("amqp://localhost?mandatory=false"), "?mandatory="),
            (Options::new("amqp://localhost/a/b"), "%2f"),
        ] {
            let error = options.open().map(|_| ()).expect_err(reason);
            assert_eq!(error.kind(), SinkErrorKind::Rejected);
            assert!(error.to_string().contains(reason), "{error}");
        }
    }

    #[test]
    fn a_url_that_is_none_is_told_without_its_password() {
        for url in
            ["http://u:hush@localhost", "amqp://u:hush@", "amqp://u:hush@h:port", "u:hush@localhost", "", "amqp:hush"]
        {
            let error = Options::new(url).open().map(|_| ()).expect_err(url).to_string();
            assert!(error.contains("amqp://") && !error.contains("hush"), "{error}");
        }
    }

    #[test]
    fn urls_are_read_as_their_scheme_says() {
        for (url, expected) in [
            ("amqp://u:p@broker", "amqp://broker:5672//"),
            ("amqps://broker/shop", "amqps://broker:5671/shop"),
            ("amqp://10.0.0.7:1234/%2fa%2fb", "amqp://10.0.0.7:1234//a/b"),
            ("amqp://[::1]", "amqp://::1:5672//"),
        ] {
            assert_eq!(server(&parse(url).expect(url)), expected);
        }
        assert_eq!(parse("amqp://broker").expect("a url").query.heartbeat, Some(HEARTBEAT));
        assert_eq!(parse("amqp://broker?heartbeat=3").expect("a url").query.heartbeat, Some(3));
    }

    #[test]
    fn debug_has_no_password() {
        let options = Options::new("amqp://user:hush@localhost:1234/shop");
        assert!(format!("{options:?}").contains("localhost:1234/shop"), "{options:?}");
        assert!(!format!("{options:?}").contains("hush"), "{options:?}");
        let sink = options.open().expect("a sink");
        assert!(format!("{sink:?}").contains("localhost:1234/shop"), "{sink:?}");
        assert!(!format!("{sink:?}").contains("hush"), "{sink:?}");
    }

    #[test]
    fn settings_are_read_by_name() {
        let text = r#"{"url": "amqp://localhost", "exchange": "events", "routing": "key", "unroutable": "reject",
            "answer_within": "2s", "largest": 1000}"#;
        let options: Options = serde_json::from_str(text).expect(text);
        assert_eq!((options.routing, options.unroutable), (Routing::Key, Unroutable::Reject));
        assert_eq!((options.answer_within, options.largest), (Duration::from_secs(2), 1000));
        for unknown in ["mandatory", "confirms", "persistent"] {
            let text = format!(r#"{{"url": "amqp://:hush@localhost", "{unknown}": false}}"#);
            let error = serde_json::from_str::<Options>(&text).expect_err(unknown).to_string();
            assert!(error.contains(unknown) && !error.contains("hush"), "{error}");
        }
    }
}

//! How a sink is set up.

use std::{fmt, path::PathBuf, time::Duration};

use async_nats::ServerAddr;
use pillarbox_core::port::{SinkError, span};
use serde::Deserialize;

use crate::{
    Bucket, NatsGuard, NatsLetters, NatsSink, NatsSource, Subscription, bucket::Values, connection::Connection, message,
};

/// The most bytes of a payload unless told otherwise: a server takes 1 MiB with headers, and streams take headers of 64 KiB.
pub const LARGEST: usize = 1024 * 1024 - 64 * 1024;

/// How a sink is set up. The names are those of the relay's settings file.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    url: String,
    #[serde(default = "ten_seconds", with = "span")]
    pub(crate) answer_within: Duration,
    #[serde(default = "largest")]
    pub(crate) largest: usize,
    #[serde(default)]
    pub(crate) stream: Option<Stream>,
    #[serde(default)]
    pub(crate) domain: Option<String>,
    #[serde(default)]
    pub(crate) prefix: Option<String>,
    #[serde(default)]
    pub(crate) user: Option<String>,
    #[serde(default)]
    pub(crate) password: Option<String>,
    #[serde(default)]
    pub(crate) token: Option<String>,
    #[serde(default)]
    pub(crate) credentials: Option<PathBuf>,
    #[serde(default)]
    pub(crate) root_certificate: Option<PathBuf>,
}

/// The stream that takes the messages. It is looked at when the sink connects: one that could lose messages, or would never
/// answer, is refused.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stream {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) subjects: Vec<String>,
    #[serde(default = "one")]
    pub(crate) replicas: usize,
    #[serde(default = "two_minutes", with = "span")]
    pub(crate) duplicate_window: Duration,
}

impl Stream {
    /// A stream that is there, or the sink does not send.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), subjects: Vec::new(), replicas: one(), duplicate_window: two_minutes() }
    }

    /// Creates it if it is not there, for these subjects: in a file, without limits. One that is there stays as it is.
    #[must_use]
    pub fn subjects<S: Into<String>>(mut self, subjects: impl IntoIterator<Item = S>) -> Self {
        self.subjects = subjects.into_iter().map(Into::into).collect();
        self
    }

    /// On how many servers it is kept, if it is created. 1 unless told otherwise.
    #[must_use]
    pub fn replicas(mut self, count: usize) -> Self {
        self.replicas = count;
        self
    }

    /// How long it remembers ids, if it is created. Two minutes unless told otherwise.
    #[must_use]
    pub fn duplicate_window(mut self, span: Duration) -> Self {
        self.duplicate_window = span;
        self
    }
}

impl Options {
    /// For the server at this URL, `nats://[user:password@]host[:port]`, or `tls://` for TLS; or for several of one cluster,
    /// separated by commas.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            answer_within: ten_seconds(),
            largest: LARGEST,
            stream: None,
            domain: None,
            prefix: None,
            user: None,
            password: None,
            token: None,
            credentials: None,
            root_certificate: None,
        }
    }

    /// How long a batch may take, the connect included. 10 s unless told otherwise.
    #[must_use]
    pub fn answer_within(mut self, span: Duration) -> Self {
        self.answer_within = span;
        self
    }

    /// The most bytes of a payload: [`LARGEST`] unless told otherwise. What is larger than the server's `max_payload`, the
    /// headers included, is rejected in any case.
    #[must_use]
    pub fn largest(mut self, bytes: usize) -> Self {
        self.largest = bytes;
        self
    }

    /// The stream that takes the messages, so that it can be looked at or created.
    #[must_use]
    pub fn stream(mut self, stream: Stream) -> Self {
        self.stream = Some(stream);
        self
    }

    /// The JetStream domain, if it is not the server's own.
    #[must_use]
    pub fn domain(mut self, name: impl Into<String>) -> Self {
        self.domain = Some(name.into());
        self
    }

    /// What the subjects of JetStream's API begin with, if it is imported from another account. `$JS.API` unless told
    /// otherwise.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// Logs in as a user, in place of the URL's.
    #[must_use]
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        (self.user, self.password) = (Some(name.into()), Some(password.into()));
        self
    }

    /// Logs in with a token.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Logs in with a credentials file, read at every connect.
    #[must_use]
    pub fn credentials(mut self, file: impl Into<PathBuf>) -> Self {
        self.credentials = Some(file.into());
        self
    }

    /// A file with the certificates, in PEM, of those who may vouch for the server, in place of the system's.
    #[must_use]
    pub fn root_certificate(mut self, file: impl Into<PathBuf>) -> Self {
        self.root_certificate = Some(file.into());
        self
    }

    /// Checks the settings. Does not connect: a server that is down is no error yet.
    pub fn open(self) -> Result<NatsSink, SinkError> {
        self.connection().map(NatsSink::new)
    }

    /// A source in place of a sink. Checks the settings, and does not connect.
    pub fn subscribe(self, subscription: Subscription) -> Result<NatsSource, SinkError> {
        subscription.judge()?;
        Ok(NatsSource::new(self.connection()?, subscription))
    }

    /// A guard: marks in a bucket, each for this time. Checks the settings, and does not connect.
    pub fn guard(self, bucket: Bucket, ttl: Duration) -> Result<NatsGuard, SinkError> {
        bucket.judge()?;
        // What a stream may have as the age of its messages.
        if ttl < Duration::from_millis(100) {
            return Err(refused("ttl is less than 100ms: no server counts the time of a value so exactly"));
        }
        Ok(NatsGuard::new(Values::new(self.connection()?, bucket, Some(ttl))))
    }

    /// A store of dead letters: a bucket that keeps them for ever. Checks the settings, and does not connect.
    pub fn letters(self, bucket: Bucket) -> Result<NatsLetters, SinkError> {
        bucket.judge()?;
        Ok(NatsLetters::new(Values::new(self.connection()?, bucket, None)))
    }

    pub(crate) fn connection(mut self) -> Result<Connection, SinkError> {
        let servers = self.servers()?;
        if self.answer_within.is_zero() {
            return Err(refused("answer_within is 0: no server can answer in no time"));
        }
        if self.largest == 0 {
            return Err(refused("largest is 0: no payload could be sent"));
        }
        if self.domain.is_some() && self.prefix.is_some() {
            return Err(refused("domain and prefix are set: they say the same in two ways, choose one"));
        }
        if self.user.is_some() != self.password.is_some() {
            return Err(refused("a user needs a password, and a password a user"));
        }
        let logins = [self.user.is_some(), self.token.is_some(), self.credentials.is_some()];
        if logins.into_iter().filter(|is_set| *is_set).count() > 1 {
            return Err(refused(
                "user, token and credentials are ways to log in: choose one (the url's user is one, too)",
            ));
        }
        if let Some(stream) = &self.stream {
            judge(stream)?;
        }
        Ok(Connection::new(servers, self))
    }

    /// The servers without their logins, which become the options'. The client would not look for them there.
    fn servers(&mut self) -> Result<Vec<ServerAddr>, SinkError> {
        let mut servers = Vec::new();
        for url in self.url.split(',') {
            // What the client says of a URL could quote it.
            let wrong =
                || refused("the url is not nats://[user:password@]host[:port], or tls://..., or some with commas");
            let server: ServerAddr = url.trim().parse().map_err(|_| wrong())?;
            if !matches!(server.scheme(), "nats" | "tls") || server.host().is_empty() {
                return Err(wrong());
            }
            if self.root_certificate.is_some() && server.scheme() != "tls" {
                return Err(refused("root_certificate is set, and the url is not tls://: nothing need be encrypted"));
            }
            let decoded = |part: Option<&str>| part.map(|part| message::decode(part).into_owned());
            let (user, password) = (decoded(server.username()), decoded(server.password()));
            match (user, password) {
                (Some(user), Some(password)) => {
                    other_than(self.user.as_ref(), &user)?;
                    other_than(self.password.as_ref(), &password)?;
                    (self.user, self.password) = (Some(user), Some(password));
                }
                (Some(token), None) => {
                    other_than(self.token.as_ref(), &token)?;
                    self.token = Some(token);
                }
                (None, Some(_)) => return Err(refused("the url has a password, and no user")),
                (None, None) => {}
            }
            let mut url = server.into_inner();
            url.set_username("").and_then(|()| url.set_password(None)).map_err(|()| wrong())?;
            servers.push(ServerAddr::from_url(url).map_err(|_| wrong())?);
        }
        // From here on, nobody needs it.
        self.url = servers.iter().map(ServerAddr::as_url_str).collect::<Vec<_>>().join(",");
        Ok(servers)
    }
}

fn other_than(known: Option<&String>, login: &String) -> Result<(), SinkError> {
    if known.is_some_and(|known| known != login) {
        return Err(refused("there are different logins: all servers of a cluster take the same"));
    }
    Ok(())
}

fn judge(stream: &Stream) -> Result<(), SinkError> {
    let is_name = |name: &str| !name.is_empty() && !name.contains(|c: char| ".*>/\\".contains(c) || c.is_whitespace());
    if !is_name(&stream.name) {
        return Err(refused("the stream's name is empty, or has dots, wildcards, slashes or spaces"));
    }
    if stream.duplicate_window.is_zero() {
        return Err(refused("duplicate_window is 0: what is sent again after a fault would be there twice"));
    }
    if stream.replicas == 0 {
        return Err(refused("replicas is 0: nobody would keep the messages"));
    }
    Ok(())
}

/// Without passwords and tokens.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bare = self.clone();
        let servers = bare.servers().map(|_| bare.url);
        f.debug_struct("Options")
            .field("servers", &servers.unwrap_or_else(|_| "unreadable".into()))
            .field("answer_within", &self.answer_within)
            .field("largest", &self.largest)
            .field("stream", &self.stream)
            .field("domain", &self.domain)
            .field("prefix", &self.prefix)
            .field("user", &self.user)
            .field("credentials", &self.credentials)
            .field("root_certificate", &self.root_certificate)
            .finish_non_exhaustive()
    }
}

/// Not to be mended by waiting.
pub(crate) fn refused(words: impl fmt::Display) -> SinkError {
    SinkError::rejected(format_args!("nats: {words}"))
}

fn ten_seconds() -> Duration {
    Duration::from_secs(10)
}

fn two_minutes() -> Duration {
    Duration::from_mins(2)
}

fn largest() -> usize {
    LARGEST
}

fn one() -> usize {
    1
}

#[cfg(test)]
mod tests {
    use pillarbox_core::port::SinkErrorKind;

    use super::*;

    #[test]
    fn settings_that_could_lose_messages_are_refused_with_the_reason() {
        let options = || Options::new("nats://localhost");
        for (options, reason) in [
            (options().answer_within(Duration::ZERO), "no time"),
            (options().largest(0), "largest is 0"),
            (options().domain("hub").prefix("JS.hub.API"), "choose one"),
            (options().token("hush").credentials("file"), "choose one"),
            (Options::new("nats://user:hush@localhost").token("hush"), "choose one"),
            (Options::new("nats://user:hush@a,nats://user:other@b"), "different logins"),
            (Options::new("nats://:hush@localhost"), "no user"),
            (options().root_certificate("ca.pem"), "need be encrypted"),
            (options().stream(Stream::named("a.b")), "name"),
            (options().stream(Stream::named("")), "name"),
            (options().stream(Stream::named("a").duplicate_window(Duration::ZERO)), "twice"),
            (options().stream(Stream::named("a").replicas(0)), "nobody"),
        ] {
            let error = options.open().expect_err(reason);
            assert_eq!(error.kind(), SinkErrorKind::Rejected);
            assert!(error.to_string().contains(reason) && !error.to_string().contains("hush"), "{error}");
        }
    }

    #[test]
    fn a_url_that_is_none_is_told_without_its_password() {
        for url in
            ["http://u:hush@localhost", "ws://u:hush@localhost", "nats://u:hush@:1", "u:hush@local host", "", "a,"]
        {
            let error = Options::new(url).open().expect_err(url).to_string();
            assert!(error.contains("nats://") && !error.contains("hush"), "{error}");
        }
    }

    #[test]
    fn logins_are_taken_out_of_urls() {
        let mut options = Options::new("nats://us%40er:hu%25sh@one, tls://us%40er:hu%25sh@two:1");
        let servers = options.servers().expect("servers");
        let urls: Vec<_> = servers.iter().map(ServerAddr::as_url_str).collect();
        assert_eq!(urls, ["nats://one", "tls://two:1"]);
        assert_eq!((options.user.as_deref(), options.password.as_deref()), (Some("us@er"), Some("hu%sh")));
        let mut options = Options::new("nats://token@one");
        options.servers().expect("servers");
        assert_eq!((options.token.as_deref(), options.user.as_deref()), (Some("token"), None));
    }

    #[test]
    fn debug_has_no_password() {
        for options in [
            Options::new("nats://someone:hush@host"),
            Options::new("nats://hush@host"),
            Options::new("nats://host").user("someone", "hush"),
            Options::new("nats://host").token("hush"),
        ] {
            assert!(format!("{options:?}").contains("host"), "{options:?}");
            assert!(!format!("{options:?}").contains("hush"), "{options:?}");
            let sink = options.open().expect("a sink");
            assert!(!format!("{sink:?}").contains("hush"), "{sink:?}");
        }
    }

    #[test]
    fn settings_are_read_by_name() {
        let text = r#"{"url": "nats://localhost", "answer_within": "2500ms", "user": "u", "password": "p",
            "stream": {"name": "ORDERS", "subjects": ["orders.>"], "duplicate_window": "10m"}}"#;
        let options: Options = serde_json::from_str(text).expect(text);
        assert_eq!((options.answer_within, options.largest), (Duration::from_millis(2500), LARGEST));
        let stream = Stream::named("ORDERS").subjects(["orders.>"]).duplicate_window(Duration::from_mins(10));
        assert_eq!(options.stream, Some(stream));
        let unknown = serde_json::from_str::<Options>(r#"{"url": "nats://u:hush@localhost", "streams": 7}"#);
        let error = unknown.expect_err("an unknown name").to_string();
        assert!(error.contains("`streams`") && error.contains("`stream`") && !error.contains("hush"), "{error}");
    }
}

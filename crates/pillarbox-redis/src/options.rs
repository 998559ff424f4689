//! How a sink is set up.

use std::{fmt, fs, path::PathBuf, time::Duration};

use pillarbox_core::port::{SinkError, span};
use redis::{Client, ConnectionAddr, IntoConnectionInfo, TlsCertificates};
use serde::Deserialize;

use crate::{RedisGuard, RedisLetters, RedisSink, RedisSource, Subscription, connection::Connection, store::Store};

/// What Redis takes as one value unless it was told otherwise (`proto-max-bulk-len`): 512 MiB.
pub const LARGEST: usize = 512 * 1024 * 1024;

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
    pub(crate) max_len: Option<u64>,
    #[serde(default)]
    pub(crate) exact_max_len: bool,
    #[serde(default, rename = "persistence")]
    asked: Option<Persistence>,
    /// What was asked for, or what is the default of what is made.
    #[serde(skip)]
    pub(crate) persistence: Persistence,
    #[serde(default)]
    pub(crate) replicas: u32,
    #[serde(default)]
    root_certificate: Option<PathBuf>,
}

/// What the server has to do for an entry before it may confirm it. Asked for with `CONFIG GET` at every connect. One that
/// throws out streams when its memory is full (`maxmemory-policy allkeys-...`) is only good enough unchecked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Persistence {
    /// `appendfsync always`: it is on the disk.
    Always,
    /// `appendfsync everysec`, or better: it is on the disk within a second or two.
    #[default]
    EverySecond,
    /// Whatever it does. For servers that don't let clients ask; without an append-only file a restart loses confirmed
    /// messages.
    Unchecked,
}

impl Options {
    /// For the server at this URL: `redis://[user][:password@]host[:port][/database]`, or `rediss://` for TLS.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            answer_within: ten_seconds(),
            largest: LARGEST,
            max_len: None,
            exact_max_len: false,
            asked: None,
            persistence: Persistence::default(),
            replicas: 0,
            root_certificate: None,
        }
    }

    /// How long a batch may take, the connect included. 10 s unless told otherwise.
    #[must_use]
    pub fn answer_within(mut self, span: Duration) -> Self {
        self.answer_within = span;
        self
    }

    /// The most bytes of a payload: [`LARGEST`] unless told otherwise. A server whose `proto-max-bulk-len` is lower ends
    /// the connection at a larger one, with all that is under way: then set it here, too.
    #[must_use]
    pub fn largest(mut self, bytes: usize) -> Self {
        self.largest = bytes;
        self
    }

    /// Trims each stream to about this many entries (`MAXLEN ~`) as it grows. Streams are not trimmed unless told so.
    ///
    /// Redis does not ask whether anybody has read what it trims: a consumer that lags behind by more than this loses
    /// messages.
    #[must_use]
    pub fn max_len(mut self, entries: u64) -> Self {
        self.max_len = Some(entries);
        self
    }

    /// Trims to exactly [`max_len`](Self::max_len) entries, which costs the server more.
    #[must_use]
    pub fn exact_max_len(mut self, is_exact: bool) -> Self {
        self.exact_max_len = is_exact;
        self
    }

    /// What the server has to do for an entry before it may confirm it. [`Always`](Persistence::Always) for
    /// [dead letters](Self::letters), for their messages are acknowledged then and gone; else
    /// [`EverySecond`](Persistence::EverySecond).
    #[must_use]
    pub fn persistence(mut self, persistence: Persistence) -> Self {
        self.asked = Some(persistence);
        self.unless_asked(persistence)
    }

    fn unless_asked(mut self, persistence: Persistence) -> Self {
        self.persistence = self.asked.unwrap_or(persistence);
        self
    }

    /// How many replicas must have an entry before it counts as confirmed (`WAIT`). None unless told otherwise.
    #[must_use]
    pub fn replicas(mut self, count: u32) -> Self {
        self.replicas = count;
        self
    }

    /// A file with the certificates, in PEM, of those who may vouch for a `rediss://` server, in place of the system's.
    #[must_use]
    pub fn root_certificate(mut self, file: impl Into<PathBuf>) -> Self {
        self.root_certificate = Some(file.into());
        self
    }

    /// Checks the settings. Does not connect: a server that is down is no error yet.
    pub fn open(self) -> Result<RedisSink, SinkError> {
        if self.max_len == Some(0) {
            return Err(refused("max_len is 0: every message would be trimmed as soon as it is confirmed"));
        }
        if self.exact_max_len && self.max_len.is_none() {
            return Err(refused("exact_max_len is set, and max_len is not: nothing would be trimmed"));
        }
        if self.largest == 0 || self.largest > LARGEST {
            return Err(refused(format_args!("largest is {}: 1 to {LARGEST} bytes are possible", self.largest)));
        }
        let options = self.unless_asked(Persistence::EverySecond);
        Ok(RedisSink::new(&options.client()?, &options))
    }

    /// A source in place of a sink. Checks the settings, and does not connect.
    pub fn subscribe(self, subscription: Subscription) -> Result<RedisSource, SinkError> {
        subscription.judge()?;
        let options = self.unless_asked(Persistence::EverySecond);
        Ok(RedisSource::new(options.clone().connection()?, options.connection()?, subscription))
    }

    /// A guard, whose keys begin with this. Checks the settings, and does not connect. Its marks have a time to live, so that
    /// the server must have `maxmemory-policy noeviction`, unless it is [unchecked](Persistence::Unchecked).
    pub fn guard(self, prefix: impl Into<String>) -> Result<RedisGuard, SinkError> {
        Ok(RedisGuard::new(
            Store::new(self.unless_asked(Persistence::EverySecond).connection()?.with_mortals()),
            prefix.into(),
        ))
    }

    /// A store of dead letters, whose keys begin with this. Checks the settings, and does not connect. A server that does not
    /// have `appendfsync always` is refused, unless less was asked for with [`persistence`](Self::persistence).
    pub fn letters(self, prefix: impl Into<String>) -> Result<RedisLetters, SinkError> {
        Ok(RedisLetters::new(Store::new(self.unless_asked(Persistence::Always).connection()?), prefix.into()))
    }

    pub(crate) fn connection(self) -> Result<Connection, SinkError> {
        Ok(Connection::new(self.client()?, self))
    }

    fn client(&self) -> Result<Client, SinkError> {
        if self.answer_within.is_zero() {
            return Err(refused("answer_within is 0: no server can answer in no time"));
        }
        // What the client says of a URL could quote it.
        let wrong = |_| refused("the url is not redis://[user][:password@]host[:port][/database], or rediss://...");
        let info = self.url.as_str().into_connection_info().map_err(wrong)?;
        // The end of a batch would wait until the server has acknowledged its beginning, which takes up to 40 ms.
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let info = info.set_tcp_settings(tcp);
        let is_tls = match info.addr() {
            ConnectionAddr::TcpTls { insecure: true, .. } => {
                return Err(refused("the url ends with #insecure: anybody could pass for the server"));
            }
            ConnectionAddr::TcpTls { .. } => true,
            _ => false,
        };
        let Some(path) = &self.root_certificate else {
            return Client::open(info).map_err(wrong);
        };
        if !is_tls {
            return Err(refused("root_certificate is set, and the url is not rediss://: nothing would be encrypted"));
        }
        let unusable = |error: &dyn fmt::Display| refused(format_args!("root_certificate {}: {error}", path.display()));
        let certificate = fs::read(path).map_err(|error| unusable(&error))?;
        let certificates = TlsCertificates { client_tls: None, root_cert: Some(certificate) };
        Client::build_with_tls(info, certificates).map_err(|error| unusable(&error))
    }
}

/// Without the URL's password.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = self.url.as_str().into_connection_info().map(|info| info.addr().to_string());
        f.debug_struct("Options")
            .field("server", &server.unwrap_or_else(|_| "unreadable".into()))
            .field("answer_within", &self.answer_within)
            .field("largest", &self.largest)
            .field("max_len", &self.max_len)
            .field("exact_max_len", &self.exact_max_len)
            .field("asked", &self.asked)
            .field("persistence", &self.persistence)
            .field("replicas", &self.replicas)
            .field("root_certificate", &self.root_certificate)
            .finish()
    }
}

/// Not to be mended by waiting.
pub(crate) fn refused(words: impl fmt::Display) -> SinkError {
    SinkError::rejected(format_args!("redis: {words}"))
}

fn ten_seconds() -> Duration {
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
    fn settings_that_could_lose_messages_are_refused_with_the_reason() {
        let options = || Options::new("redis://localhost");
        for (options, reason) in [
            (options().max_len(0), "trimmed"),
            (options().exact_max_len(true), "max_len is not"),
            (options().answer_within(Duration::ZERO), "no time"),
            (options().largest(0), "largest is 0"),
            (options().largest(LARGEST + 1), "possible"),
            (options().root_certificate("ca.pem"), "nothing would be encrypted"),
            (Options::new("rediss://localhost").root_certificate("/no/such/file"), "/no/such/file"),
            (Options::new("rediss://localhost/#insecure"), "#insecure"),
        ] {
            let error = options.open().expect_err(reason);
            assert_eq!(error.kind(), SinkErrorKind::Rejected);
            assert!(error.to_string().contains(reason), "{error}");
        }
    }

    #[test]
    fn a_url_that_is_none_is_told_without_its_password() {
        for url in ["http://:hush@localhost", "redis://:hush@", "redis://:hush@localhost/first", ":hush@localhost", ""]
        {
            let error = Options::new(url).open().expect_err(url).to_string();
            assert!(error.contains("redis://") && !error.contains("hush"), "{error}");
        }
    }

    #[test]
    fn debug_has_no_password() {
        let options = Options::new("redis://user:hush@localhost:1234/7");
        assert!(format!("{options:?}").contains("localhost:1234"), "{options:?}");
        assert!(!format!("{options:?}").contains("hush"), "{options:?}");
        let sink = options.open().expect("a sink");
        assert!(!format!("{sink:?}").contains("hush"), "{sink:?}");
    }

    #[test]
    fn settings_are_read_by_name() {
        let text =
            r#"{"url": "redis://localhost", "answer_within": "2500ms", "max_len": 7, "persistence": "every_second"}"#;
        let options: Options = serde_json::from_str(text).expect(text);
        assert_eq!(options.answer_within, Duration::from_millis(2500));
        assert_eq!((options.max_len, options.largest), (Some(7), LARGEST));
        let unknown = serde_json::from_str::<Options>(r#"{"url": "redis://:hush@localhost", "maxlen": 7}"#);
        let error = unknown.expect_err("an unknown name").to_string();
        assert!(error.contains("`maxlen`") && error.contains("`max_len`") && !error.contains("hush"), "{error}");
    }
}

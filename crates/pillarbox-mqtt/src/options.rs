//! How a sink is set up, and the way to the server for sink and source.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use pillarbox_core::port::{SinkError, span};
use rumqttc::{Transport, v5::MqttOptions};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use serde::Deserialize;
use url::{Host, Url};

use crate::{MqttSink, MqttSource, Subscription, connection::Connection, error::refused, session::Session};

const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// How a sink is set up. The names are those of the relay's settings file.
///
/// The quality of service is always 1, that is "at least once": with 0 nothing would be confirmed, and 2 costs twice the
/// answers for what the relay's own sending again takes away.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    url: String,
    #[serde(default)]
    user: Option<String>,
    #[serde(default)]
    password: Option<String>,
    #[serde(default)]
    client_id: Option<String>,
    #[serde(default)]
    pub(crate) retain: bool,
    #[serde(default)]
    unroutable: Option<Unroutable>,
    #[serde(default = "answer_within", with = "span")]
    pub(crate) answer_within: Duration,
    #[serde(default)]
    pub(crate) largest: Option<usize>,
    #[serde(default)]
    root_certificate: Option<PathBuf>,
}

/// What becomes of a message to whose topic nobody has subscribed (`0x10`, no matching subscribers). Sessions whose client is
/// away count as subscribed. A server need not tell: one that says 0x00 is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Unroutable {
    /// It has failed this time, and is tried again as the retry policy says: whoever reads it may subscribe yet.
    Retry,
    /// It is rejected for good. Where subscriptions are there before anything is sent, a wrong topic is seen at once.
    Reject,
    /// It counts as sent, though the server drops it, unless it [retains](Options::retain) it.
    Accept,
}

/// A URL, read.
struct Server {
    host: String,
    port: u16,
    is_tls: bool,
    user: Option<String>,
    password: Option<String>,
}

impl Options {
    /// For the server at this URL: `mqtt://[user:password@]host[:port]`, or `mqtts://` for TLS.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            user: None,
            password: None,
            client_id: None,
            retain: false,
            unroutable: None,
            answer_within: answer_within(),
            largest: None,
            root_certificate: None,
        }
    }

    /// Who to log in as, if the URL does not say so.
    #[must_use]
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        (self.user, self.password) = (Some(name.into()), Some(password.into()));
        self
    }

    /// What the server knows this sink by. Has to be unlike any other's: of two with the same id the server throws out the
    /// first when the second comes. Random unless told otherwise.
    #[must_use]
    pub fn client_id(mut self, id: impl Into<String>) -> Self {
        self.client_id = Some(id.into());
        self
    }

    /// Whether the server keeps the last message of each topic for who subscribes later. Off unless told otherwise.
    #[must_use]
    pub fn retain(mut self, retain: bool) -> Self {
        self.retain = retain;
        self
    }

    /// What becomes of a message to whose topic nobody has subscribed. [`Unroutable::Retry`] unless told otherwise; with
    /// [`retain`](Self::retain), by which the server has it for who comes later, [`Unroutable::Accept`].
    #[must_use]
    pub fn unroutable(mut self, unroutable: Unroutable) -> Self {
        self.unroutable = Some(unroutable);
        self
    }

    /// How long a batch may take, the connect included. 10 s unless told otherwise.
    #[must_use]
    pub fn answer_within(mut self, span: Duration) -> Self {
        self.answer_within = span;
        self
    }

    /// The most bytes of a payload. The server's own limit, which is about the whole packet, counts in any case if it tells
    /// one.
    #[must_use]
    pub fn largest(mut self, bytes: usize) -> Self {
        self.largest = Some(bytes);
        self
    }

    /// A file with the certificates, in PEM, of those who may vouch for an `mqtts://` server, in place of the system's.
    #[must_use]
    pub fn root_certificate(mut self, file: impl Into<PathBuf>) -> Self {
        self.root_certificate = Some(file.into());
        self
    }

    /// A source in place of a sink. Checks the settings, and does not connect.
    pub fn subscribe(self, subscription: Subscription) -> Result<MqttSource, SinkError> {
        subscription.judge()?;
        if self.client_id.is_some() {
            return Err(refused("client_id is set, which is the sink's: a source has the one of its subscription"));
        }
        let (settings, shown) = self.way(subscription.client_id.clone())?;
        Ok(MqttSource::new(Session::new(settings, shown, self.answer_within, &subscription), subscription))
    }

    /// Checks the settings. Does not connect: a server that is down is no error yet.
    pub fn open(self) -> Result<MqttSink, SinkError> {
        if self.largest == Some(0) {
            return Err(refused("largest is 0: nothing would ever be sent"));
        }
        let id = match &self.client_id {
            Some(id) if id.is_empty() || id.len() > usize::from(u16::MAX) => {
                return Err(refused("client_id is empty or longer than MQTT has room for"));
            }
            Some(id) => id.clone(),
            None => random_id(),
        };
        let (settings, shown) = self.way(id)?;
        Ok(MqttSink::new(Connection::new(settings, shown, &self), self))
    }

    pub(crate) fn for_unroutable(&self) -> Unroutable {
        self.unroutable.unwrap_or(if self.retain { Unroutable::Accept } else { Unroutable::Retry })
    }

    /// How to reach the server, and what it may be called in logs.
    fn way(&self, id: String) -> Result<(MqttOptions, String), SinkError> {
        if self.answer_within.is_zero() {
            return Err(refused("answer_within is 0: no server can answer in no time"));
        }
        let server = parse(&self.url)?;
        let login = match (&server.user, &self.user) {
            (Some(_), Some(_)) => return Err(refused("the url has a user, and so has the option: say it once")),
            (Some(user), None) => Some((user, server.password.as_ref())),
            (None, Some(user)) => Some((user, self.password.as_ref())),
            (None, None) if self.password.is_some() || server.password.is_some() => {
                return Err(refused("there is a password, and no user that it belongs to"));
            }
            (None, None) => None,
        };
        let mut settings = MqttOptions::new(id, &server.host, server.port);
        if let Some((user, password)) = login {
            settings.set_credentials(user, password.map_or("", String::as_str));
        }
        if server.is_tls {
            settings.set_transport(Transport::tls_with_config(self.tls()?.into()));
        } else if self.root_certificate.is_some() {
            return Err(refused("root_certificate is set, and the url is not mqtts://: nothing would be encrypted"));
        }
        settings.set_keep_alive(KEEP_ALIVE);
        settings.set_connection_timeout(self.answer_within.as_secs().saturating_add(1));
        // The end of a batch would wait until the server has acknowledged its beginning, which takes up to 40 ms.
        let mut network = settings.network_options();
        network.set_tcp_nodelay(true);
        settings.set_network_options(network);
        Ok((settings, server.to_string()))
    }

    fn tls(&self) -> Result<ClientConfig, SinkError> {
        let mut roots = RootCertStore::empty();
        if let Some(path) = &self.root_certificate {
            let unusable =
                |error: &dyn fmt::Display| refused(format_args!("root_certificate {}: {error}", path.display()));
            for certificate in CertificateDer::pem_file_iter(path).map_err(|error| unusable(&error))? {
                let certificate = certificate.map_err(|error| unusable(&error))?;
                roots.add(certificate).map_err(|error| unusable(&error))?;
            }
            if roots.is_empty() {
                return Err(unusable(&"it has no certificate in PEM"));
            }
        } else {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err(refused("the system has no root certificates: set root_certificate"));
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| refused(format_args!("TLS: {error}")))?;
        Ok(builder.with_root_certificates(roots).with_no_client_auth())
    }
}

/// Without user and password.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = parse(&self.url).map_or_else(|_| "unreadable".to_owned(), |server| server.to_string());
        f.debug_struct("Options")
            .field("server", &server)
            .field("client_id", &self.client_id)
            .field("retain", &self.retain)
            .field("unroutable", &self.for_unroutable())
            .field("answer_within", &self.answer_within)
            .field("largest", &self.largest)
            .field("root_certificate", &self.root_certificate)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}:{}", if self.is_tls { "mqtts" } else { "mqtt" }, self.host, self.port)
    }
}

fn parse(text: &str) -> Result<Server, SinkError> {
    // What a parser says of a URL could quote it.
    let wrong = || refused("the url is not mqtt://[user:password@]host[:port], or mqtts://...");
    let url = Url::parse(text).map_err(|_| wrong())?;
    let is_tls = match url.scheme() {
        "mqtt" => false,
        "mqtts" => true,
        _ => return Err(wrong()),
    };
    let host = match url.host() {
        Some(Host::Domain(name)) if !name.is_empty() => name.to_owned(),
        Some(Host::Ipv4(address)) => address.to_string(),
        Some(Host::Ipv6(_)) if is_tls => {
            return Err(refused("with TLS the url needs a name or an IPv4 address for the host"));
        }
        Some(Host::Ipv6(address)) => format!("[{address}]"),
        _ => return Err(wrong()),
    };
    if !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some() {
        return Err(refused("the url has more than a host and a port: other settings are options of their own"));
    }
    let text = |part: &str| decoded(part).ok_or_else(wrong);
    let user = (!url.username().is_empty()).then(|| text(url.username())).transpose()?;
    let password = url.password().map(text).transpose()?;
    Ok(Server { host, port: url.port().unwrap_or(if is_tls { 8883 } else { 1883 }), is_tls, user, password })
}

/// What `%` stands for.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let pair = [rest.next()?, rest.next()?];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&pair).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// 22 letters and digits, which every server takes.
fn random_id() -> String {
    let random = std::iter::repeat_with(fastrand::alphanumeric).take(13);
    "pillarbox".chars().chain(random).collect()
}

fn answer_within() -> Duration {
    Duration::from_secs(10)
}

#[cfg(test)]
mod tests {
    use pillarbox_core::port::SinkErrorKind;

    use super::*;

    #[test]
    fn settings_that_make_no_sense_are_refused_with_the_reason() {
        let options = || Options::new("mqtt://localhost");
        for (options, reason) in [
            (options().answer_within(Duration::ZERO), "no time"),
            (options().largest(0), "largest is 0"),
            (options().client_id(""), "client_id is empty"),
            (Options::new("mqtt://a:hush@localhost").user("b", "hush"), "say it once"),
            (Options::new("mqtt://:hush@localhost"), "no user"),
            (options().root_certificate("ca.pem"), "nothing would be encrypted"),
            (Options::new("mqtts://localhost").root_certificate("/no/such/file"), "/no/such/file"),
            (Options::new("mqtts://[::1]"), "IPv4"),
            (Options::new("mqtt://localhost?qos=0"), "options of their own"),
            (Options::new("mqtt://localhost/topic"), "options of their own"),
        ] {
            let error = options.open().map(|_| ()).expect_err(reason);
            assert_eq!(error.kind(), SinkErrorKind::Rejected);
            assert!(error.to_string().contains(reason), "{error}");
            assert!(!error.to_string().contains("hush"), "{error}");
        }
    }

    #[test]
    fn a_url_that_is_none_is_told_without_its_password() {
        for url in
            ["http://u:hush@localhost", "mqtt://u:hush@", "mqtt://u:hush@h:port", "u:hush@localhost", "", "mqtt:hush"]
        {
            let error = Options::new(url).open().map(|_| ()).expect_err(url).to_string();
            assert!(error.contains("mqtt://") && !error.contains("hush"), "{error}");
        }
    }

    #[test]
    fn urls_are_read_as_their_scheme_says() {
        for (url, expected) in [
            ("mqtt://broker", "mqtt://broker:1883"),
            ("mqtts://broker", "mqtts://broker:8883"),
            ("mqtt://10.0.0.7:1234/", "mqtt://10.0.0.7:1234"),
            ("mqtt://[::1]", "mqtt://[::1]:1883"),
        ] {
            assert_eq!(parse(url).map(|server| server.to_string()).expect(url), expected);
        }
        let server = parse("mqtt://sh%40p:%C3%BC%25@broker").expect("a url");
        assert_eq!((server.user.as_deref(), server.password.as_deref()), (Some("sh@p"), Some("ü%")));
        assert_eq!(decoded("%2"), None);
        assert_eq!(decoded("%ff"), None);
    }

    #[test]
    fn debug_has_no_password() {
        for options in [
            Options::new("mqtt://user:hush@localhost:1234"),
            Options::new("mqtt://localhost:1234").user("user", "hush"),
        ] {
            assert!(format!("{options:?}").contains("localhost:1234"), "{options:?}");
            assert!(!format!("{options:?}").contains("hush"), "{options:?}");
            let sink = options.open().expect("a sink");
            assert!(format!("{sink:?}").contains("localhost:1234"), "{sink:?}");
            assert!(!format!("{sink:?}").contains("hush"), "{sink:?}");
        }
    }

    #[test]
    fn settings_are_read_by_name() {
        let text = r#"{"url": "mqtt://localhost", "user": "shop", "password": "hush", "client_id": "shop-relay",
            "retain": true, "answer_within": "2s", "largest": 1000}"#;
        let options: Options = serde_json::from_str(text).expect(text);
        assert_eq!((options.answer_within, options.largest), (Duration::from_secs(2), Some(1000)));
        assert!(options.retain);
        for unknown in ["qos", "clean_start"] {
            let text = format!(r#"{{"url": "mqtt://a:hush@localhost", "{unknown}": 0}}"#);
            let error = serde_json::from_str::<Options>(&text).expect_err(unknown).to_string();
            assert!(error.contains(unknown) && !error.contains("hush"), "{error}");
        }
    }

    #[test]
    fn every_sink_has_an_id_of_its_own() {
        assert_eq!(random_id().len(), 22);
        assert_ne!(random_id(), random_id());
    }
}

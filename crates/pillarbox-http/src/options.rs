//! How a sink is set up.

use std::{collections::BTreeMap, fmt, path::PathBuf, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use percent_encoding::percent_decode_str;
use pillarbox_core::port::{SinkError, span};
use reqwest::{
    Url,
    header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue},
};
use serde::Deserialize;

use crate::{
    HttpSink, Secret,
    connection::{self, Connection},
    message,
};

/// Where web hooks go, and how. Prints neither passwords nor secrets.
///
/// In a file the settings have the names of the methods, and `secrets` and `headers` are a list and a table.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    url: String,
    #[serde(default)]
    secrets: Vec<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default = "connect_within", with = "span")]
    connect_within: Duration,
    #[serde(default = "answer_within", with = "span")]
    answer_within: Duration,
    #[serde(default = "at_once")]
    at_once: usize,
    #[serde(default)]
    largest: Option<usize>,
    #[serde(default)]
    root_certificates: Option<PathBuf>,
}

fn connect_within() -> Duration {
    Duration::from_secs(5)
}

fn answer_within() -> Duration {
    Duration::from_secs(10)
}

fn at_once() -> usize {
    16
}

impl Options {
    /// Web hooks below this URL: topics are paths under its own. `http://` to another machine works, and is warned of: who
    /// listens there reads along. `user:password@` is sent as basic authentication.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            secrets: Vec::new(),
            headers: BTreeMap::new(),
            connect_within: connect_within(),
            answer_within: answer_within(),
            at_once: at_once(),
            largest: None,
            root_certificates: None,
        }
    }

    /// Signs with this secret, which [`Secret::parse`] reads; with each, if there are several, so that receivers can change
    /// from one to the next in their own time. Without any, nothing is signed.
    #[must_use]
    pub fn secret(mut self, secret: impl Into<String>) -> Self {
        self.secrets.push(secret.into());
        self
    }

    /// Sends this header with every request, such as `authorization`. A message that has one of the same name is rejected.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// How long a connection may take: 5 s by default.
    #[must_use]
    pub fn connect_within(mut self, span: Duration) -> Self {
        self.connect_within = span;
        self
    }

    /// How long a request may take, from its beginning to its answer: 10 s by default.
    #[must_use]
    pub fn answer_within(mut self, span: Duration) -> Self {
        self.answer_within = span;
        self
    }

    /// How many requests are under way at once: 16 by default.
    #[must_use]
    pub fn at_once(mut self, requests: usize) -> Self {
        self.at_once = requests;
        self
    }

    /// The most bytes that the receiver takes, if that is known: what is larger is rejected without a request. Without it,
    /// the receiver says so itself, with 413.
    #[must_use]
    pub fn largest(mut self, bytes: usize) -> Self {
        self.largest = Some(bytes);
        self
    }

    /// A file with certificates (PEM) of authorities to trust besides those of the machine.
    #[must_use]
    pub fn root_certificates(mut self, file: impl Into<PathBuf>) -> Self {
        self.root_certificates = Some(file.into());
        self
    }

    /// The sink, which connects when it is first used.
    pub fn open(self) -> Result<HttpSink, SinkError> {
        let mut url = checked(&self.url)?;
        if self.at_once == 0 {
            return Err(SinkError::rejected("at_once has to be at least 1: nothing would ever be sent"));
        }
        for (name, span) in [("connect_within", self.connect_within), ("answer_within", self.answer_within)] {
            if span.is_zero() {
                return Err(SinkError::rejected(format_args!("{name} has to be more than nothing")));
            }
        }
        let secrets = self.secrets.iter().map(|secret| Secret::parse(secret));
        let secrets = secrets.collect::<Result<_, _>>().map_err(SinkError::rejected)?;
        let headers = self.headers.iter().map(|(name, value)| fixed(name, value));
        let mut headers: HeaderMap = headers.collect::<Result<_, _>>()?;
        if let Some(login) = login(&mut url)
            && headers.insert(AUTHORIZATION, login).is_some()
        {
            return Err(SinkError::rejected("the URL has a user, and there is an authorization header: which is it?"));
        }
        if url.scheme() == "http" && !is_loopback(&url) {
            let receiver = message::origin(&url);
            tracing::warn!(receiver, "web hooks go over the network without TLS: use https");
        }
        let tls = connection::tls(&url, self.root_certificates.as_deref())?;
        let connection = Connection::new(&url, tls, headers, self.connect_within, self.at_once);
        Ok(HttpSink::new(connection, url, secrets, self.answer_within, self.at_once, self.largest))
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What is no URL may be anything, a password too.
        let url = Url::parse(&self.url).map_or_else(|_| "..".to_owned(), |url| message::place(&url));
        f.debug_struct("Options")
            .field("url", &url)
            .field("secrets", &self.secrets.len())
            .field("headers", &self.headers.keys())
            .field("connect_within", &self.connect_within)
            .field("answer_within", &self.answer_within)
            .field("at_once", &self.at_once)
            .field("largest", &self.largest)
            .field("root_certificates", &self.root_certificates)
            .finish()
    }
}

fn checked(url: &str) -> Result<Url, SinkError> {
    let url = Url::parse(url).map_err(|error| SinkError::rejected(format_args!("the URL of the web hook: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") {
        let scheme = url.scheme();
        return Err(SinkError::rejected(format_args!("the URL of the web hook is http or https, and not {scheme}")));
    }
    if url.fragment().is_some() {
        return Err(SinkError::rejected(
            "the URL of the web hook has a fragment (#), which is never sent: leave it out",
        ));
    }
    Ok(url)
}

/// Basic authentication, for the user of the URL, who leaves it: it is printed in too many places.
fn login(url: &mut Url) -> Option<HeaderValue> {
    if url.username().is_empty() && url.password().is_none() {
        return None;
    }
    let mut login: Vec<u8> = percent_decode_str(url.username()).collect();
    login.push(b':');
    login.extend(percent_decode_str(url.password().unwrap_or_default()));
    // A URL with a host takes both.
    let _ = (url.set_username(""), url.set_password(None));
    let mut value = HeaderValue::try_from(format!("Basic {}", STANDARD.encode(login))).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn fixed(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), SinkError> {
    // The value may be a password.
    let failed = |why: &str| SinkError::rejected(format_args!("the header {name:?} {why}"));
    let known = HeaderName::try_from(name).map_err(|_| failed("has a name that HTTP does not know"))?;
    if message::is_reserved(known.as_str()) {
        return Err(failed("is the sink's own"));
    }
    let mut value = HeaderValue::try_from(value).map_err(|_| failed("has a value that HTTP can't carry"))?;
    value.set_sensitive(true);
    Ok((known, value))
}

pub(crate) fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    fn refusal(options: Options) -> String {
        options.open().map(|_| ()).expect_err("a refusal").to_string()
    }

    #[test]
    fn settings_that_make_no_sense_are_refused_with_the_reason() {
        for (options, part) in [
            (Options::new("ftp://shop.example"), "http or https"),
            (Options::new("shop.example/hooks"), "URL"),
            (Options::new("https://"), "URL"),
            (Options::new("https://shop.example/#top"), "fragment"),
            (Options::new("https://shop.example").at_once(0), "at_once"),
            (Options::new("https://shop.example").answer_within(Duration::ZERO), "answer_within"),
            (Options::new("https://shop.example").secret("hush"), "whsec_"),
            (Options::new("https://shop.example").root_certificates("/no/such/file"), "/no/such/file"),
            (Options::new("https://shop.example").root_certificates("Cargo.toml"), "no certificate"),
            (Options::new("http://shop.example").root_certificates("Cargo.toml"), "https"),
            (Options::new("https://shop.example").header("host", "evil.example"), "the sink's own"),
            (Options::new("https://shop.example").header("Webhook-Signature", "v1,"), "the sink's own"),
            (Options::new("https://a:hush@shop.example").header("authorization", "Bearer x"), "which is it"),
            (Options::new("https://shop.example").header("a b", "c"), "name"),
            (Options::new("https://shop.example").header("x-a", "c\r\nhost: d"), "value"),
        ] {
            let shown = format!("{options:?}");
            let words = refusal(options);
            assert!(words.contains(part), "{shown}: {words}");
            assert!(!words.contains("hush") && !words.contains("host: d"), "{words}");
        }
    }

    #[test]
    fn nothing_secret_is_printed() {
        let options = Options::new("https://shop:pa55word@shop.example/hooks?token=t0ken")
            .secret(SECRET)
            .header("x-api-key", "b3arer");
        for shown in [format!("{options:?}"), format!("{:?}", options.open().expect("a sink"))] {
            assert!(shown.contains("shop.example/hooks"), "{shown}");
            for secret in ["pa55word", "t0ken", "b3arer", "MfKQ9r8G"] {
                assert!(!shown.contains(secret), "{shown}");
            }
        }
        assert!(!format!("{:?}", Options::new("pa55word")).contains("pa55word"));
    }

    #[test]
    fn a_file_has_the_same_names_and_no_others() {
        let json = r#"{"url": "https://shop.example", "secrets": ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"],
            "headers": {"x-team": "shop"}, "answer_within": "3s", "connect_within": "1s", "at_once": 4, "largest": 1000}"#;
        let options: Options = serde_json::from_str(json).expect("options");
        assert_eq!((options.answer_within, options.at_once, options.largest), (Duration::from_secs(3), 4, Some(1000)));
        let options: Options = serde_json::from_str(r#"{"url": "https://shop.example"}"#).expect("options");
        assert_eq!((options.answer_within, options.at_once), (Duration::from_secs(10), 16));
        let error = serde_json::from_str::<Options>(r#"{"url": "https://shop.example", "follow_redirects": true}"#);
        assert!(error.expect_err("unknown").to_string().contains("follow_redirects"));
    }

    #[test]
    fn loopback_is_told_from_the_network() {
        for (url, expected) in [
            ("http://localhost:80", true),
            ("http://127.0.0.1", true),
            ("http://[::1]/x", true),
            ("http://10.0.0.1", false),
            ("http://localhost.example", false),
        ] {
            assert_eq!(is_loopback(&Url::parse(url).expect("a URL")), expected, "{url}");
        }
    }
}

//! Where dead events are acted upon: over a database or over the API, with the same words.
//!
//! Over a database, the API's own router is called in this process: there is one way to do each thing.

use std::{path::PathBuf, sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::Request,
};
use clap::Args;
use pillarbox::port::Sink;
use pillarbox_admin::{Access, Identity, Limits};
use reqwest::{Client, Method, Url, redirect};
use serde_json::Value;
use tower::ServiceExt as _;

use crate::{
    error::Error,
    letters::{Place, try_out},
};

/// The environment's token for the API. No flag: a command line can be read by everybody.
const TOKEN: &str = "PILLARBOX_TOKEN";

/// Which outbox, and who asks.
#[derive(Debug, Args)]
pub(super) struct Desk {
    #[command(flatten)]
    place: Place,
    /// The API instead of a database, such as `https://ops.example.org/api/admin`. It goes before --db.
    #[arg(long, value_name = "URL", env = "PILLARBOX_API", hide_env_values = true)]
    api: Option<String>,
    /// The file with the token for the API; else the environment's PILLARBOX_TOKEN is one.
    #[arg(long, value_name = "FILE", env = "PILLARBOX_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// Who acts, for the record. Default: over a database your name on this machine, over the API that of the token.
    #[arg(long = "as", value_name = "NAME")]
    on_behalf: Option<String>,
}

impl Desk {
    /// Opens it to look, and to act on what needs no broker.
    pub(super) async fn open(&self) -> Result<Api, Error> {
        match &self.api {
            Some(api) => self.over_api(api),
            None => self.over_database(None).await,
        }
    }

    /// Opens it to replay: letters are sent to a broker, if one is named.
    pub(super) async fn open_to_replay(&self) -> Result<Api, Error> {
        if let Some(api) = &self.api {
            return self.over_api(api);
        }
        let sink = self.place.way_back(&self.place.settings()?)?;
        if let Some(sink) = &sink {
            try_out(&**sink).await?;
        }
        self.over_database(sink).await
    }

    async fn over_database(&self, sink: Option<Arc<dyn Sink>>) -> Result<Api, Error> {
        let settings = self.place.settings()?;
        let opened = self.place.open(&settings).await?.ok_or_else(|| {
            Error::new("neither a database nor an API is given").advice(
                "--db URL or PILLARBOX_DB for a database, --config FILE for one that names it, --letters URL for dead letters \
                 elsewhere, --api URL or PILLARBOX_API for an API",
            )
        })?;
        let access = Access::everybody(Identity::operator(self.who()));
        let admin = opened.admin(access, sink.as_ref()).limits(Limits::unhurried());
        Ok(Api::Here { router: admin.router(), sink })
    }

    fn who(&self) -> String {
        let user = || std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).ok().filter(|user| !user.is_empty());
        self.on_behalf.clone().or_else(user).unwrap_or_else(|| "somebody at a terminal".to_owned())
    }

    fn over_api(&self, api: &str) -> Result<Api, Error> {
        let advice = "such as https://ops.example.org/api/admin, as pillarbox admin prints it";
        let base = Url::parse(api).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let base = base.ok_or_else(|| Error::new("the address of the API can't be read").advice(advice))?;
        if !base.username().is_empty() || base.password().is_some() {
            return Err(Error::new("the address of the API has a password in it").advice("--token-file FILE"));
        }
        let token = self.token()?;
        let here =
            base.host_str().is_some_and(|host| matches!(host, "localhost" | "[::1]") || host.starts_with("127."));
        if token.is_some() && base.scheme() == "http" && !here {
            eprintln!("warning: the token goes over the network in clear: use https");
        }
        // Which provider is the process's is this program's choice; a second call changes nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut client = Client::builder()
            .user_agent(concat!("pillarbox/", env!("CARGO_PKG_VERSION")))
            .redirect(redirect::Policy::none())
            .connect_timeout(Duration::from_secs(10))
            .timeout(Duration::from_mins(2));
        if here {
            // The environment's proxy does not know this machine as itself.
            client = client.no_proxy();
        }
        let client =
            client.build().map_err(|error| Error::new("no request can be made").caused_by(error.without_url()))?;
        let base = base.as_str().trim_end_matches('/').to_owned();
        Ok(Api::There { client, base, token, on_behalf: self.on_behalf.clone() })
    }

    fn token(&self) -> Result<Option<String>, Error> {
        let Some(file) = &self.token_file else {
            return Ok(std::env::var(TOKEN)
                .ok()
                .map(|token| token.trim().to_owned())
                .filter(|token| !token.is_empty()));
        };
        let text = std::fs::read_to_string(file).map_err(|error| {
            Error::new(format!("the file with the token, {}, can't be read", file.display())).caused_by(error)
        })?;
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        match (lines.next(), lines.next()) {
            (Some(token), None) if !token.contains(char::is_whitespace) => Ok(Some(token.to_owned())),
            _ => Err(Error::new(format!("the file {} is not one token alone", file.display()))),
        }
    }
}

/// The API, there or here.
pub(super) enum Api {
    Here { router: Router, sink: Option<Arc<dyn Sink>> },
    There { client: Client, base: String, token: Option<String>, on_behalf: Option<String> },
}

/// What was answered.
pub(super) struct Answer {
    status: u16,
    body: Vec<u8>,
}

impl Api {
    /// Leaves the broker in peace.
    pub(super) async fn close(self) {
        if let Self::Here { sink: Some(sink), .. } = self {
            sink.close().await;
        }
    }

    pub(super) async fn get(&self, path: &str, query: &[(&str, String)]) -> Result<Answer, Error> {
        self.send(Method::GET, &with(path, query), None).await
    }

    pub(super) async fn send(&self, method: Method, path: &str, body: Option<Value>) -> Result<Answer, Error> {
        let body = body.map(|body| body.to_string());
        match self {
            Self::Here { router, .. } => {
                let mut request = Request::builder().method(method).uri(path);
                if body.is_some() {
                    request = request.header("content-type", "application/json");
                }
                let request = request.body(body.map_or_else(Body::empty, Body::from));
                let request = request.map_err(|error| Error::new("no request can be made of this").caused_by(error))?;
                let Ok(response) = router.clone().oneshot(request).await;
                let status = response.status().as_u16();
                let body = to_bytes(response.into_body(), usize::MAX).await;
                let body = body.map_err(|error| Error::new("the answer did not come through").caused_by(error))?;
                Ok(Answer { status, body: body.to_vec() })
            }
            Self::There { client, base, token, on_behalf } => {
                let failed = |error: reqwest::Error| {
                    Error::new("the API does not answer")
                        .caused_by(error.without_url())
                        .advice("look whether pillarbox admin runs there, and whether the address is right")
                };
                let mut request = client.request(method, format!("{base}{path}"));
                if let Some(token) = token {
                    request = request.bearer_auth(token);
                }
                if let Some(name) = on_behalf {
                    request = request.header("x-pillarbox-as", name);
                }
                if let Some(body) = body {
                    request = request.header("content-type", "application/json").body(body);
                }
                let response = request.send().await.map_err(failed)?;
                let status = response.status().as_u16();
                Ok(Answer { status, body: response.bytes().await.map_err(failed)?.to_vec() })
            }
        }
    }
}

/// A path with its parameters.
pub(super) fn with(path: &str, query: &[(&str, String)]) -> String {
    if query.is_empty() {
        return path.to_owned();
    }
    let mut coded = form_urlencoded::Serializer::new(String::new());
    query.iter().for_each(|(name, value)| {
        coded.append_pair(name, value);
    });
    format!("{path}?{}", coded.finish())
}

impl Answer {
    pub(super) fn is_missing(&self) -> bool {
        self.status == 404
    }

    /// What was asked for, as JSON; or why it was not given.
    pub(super) fn value(&self) -> Result<Value, Error> {
        self.done()?;
        serde_json::from_slice(&self.body).map_err(|error| {
            Error::new("the answer is no JSON")
                .caused_by(error)
                .advice("is this the address of the API? it ends with /api/admin")
        })
    }

    /// The answer as text.
    pub(super) fn text(&self) -> Result<String, Error> {
        self.done()?;
        Ok(String::from_utf8_lossy(&self.body).into_owned())
    }

    pub(super) fn done(&self) -> Result<(), Error> {
        if (200..300).contains(&self.status) {
            return Ok(());
        }
        let problem: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let text = |name: &str| problem[name].as_str().map(crate::out::harmless);
        let what = text("detail").unwrap_or_else(|| format!("the API answers {}", self.status));
        let error = Error::new(what);
        let advice = match self.status {
            401 => Some("--token-file FILE or PILLARBOX_TOKEN".to_owned()),
            _ => text("nearest").map(|nearest| format!("did you mean {nearest}?")),
        };
        Err(match advice {
            Some(advice) => error.advice(advice),
            None => error,
        })
    }
}

//! `pillarbox admin`: serves the operators' API.

use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use axum::{
    Router,
    http::{StatusCode, header},
    response::{IntoResponse as _, Redirect, Response},
    routing::get,
};
use clap::Args as ClapArgs;
use pillarbox_admin::{Access, Limits, Redaction, Tokens};
use pillarbox_relay::config::{AdminConfig, LimitsConfig};
use tokio_util::sync::CancellationToken;

use crate::{
    error::Error,
    interrupt::interrupted,
    letters::{Place, try_out},
    out,
};

const PLACE: &str = "/api/admin";
/// How long requests that are under way have to end.
const PATIENCE: Duration = Duration::from_secs(10);
const LISTEN: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8420));
/// Tokens themselves, for where there are no files. No flag: a command line can be read by everybody.
const TOKENS: &str = "PILLARBOX_ADMIN_TOKENS";

/// Serve the operators' API: dead events, dead letters, and the record of what was done
///
/// With tokens it listens wherever it is told to. Without, it listens on this machine alone, and lets in who comes
/// from there. TLS is the affair of a proxy in front of it.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// Where to listen; port 0 takes a free one. Default: 127.0.0.1:8420.
    #[arg(long, value_name = "ADDRESS", env = "PILLARBOX_ADMIN_LISTEN")]
    listen: Option<SocketAddr>,
    /// Who may come in: a file with a line for each token, with name, role (viewer or operator) and token. The
    /// environment's PILLARBOX_ADMIN_TOKENS is read as such a file.
    #[arg(long, value_name = "FILE", env = "PILLARBOX_ADMIN_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// Hide from viewers what is at this path of a payload, such as `$.card.number`, `$.items[*].price` or `$..email`; may be
    /// given several times.
    #[arg(long, value_name = "PATH", env = "PILLARBOX_ADMIN_REDACT", value_delimiter = ';')]
    redact: Vec<String>,
    /// Hide from viewers the header of this name; may be given several times.
    #[arg(long, value_name = "NAME", env = "PILLARBOX_ADMIN_REDACT_HEADERS", value_delimiter = ',')]
    redact_header: Vec<String>,
    /// Hide errors from viewers: they may quote payloads.
    #[arg(long)]
    hide_errors: bool,
    /// Hide payloads from viewers altogether.
    #[arg(long)]
    hide_payloads: bool,
    /// Hide it from operators as well.
    #[arg(long)]
    redact_for_everybody: bool,
    /// How many requests a caller may send a second, on the average. Default: 50.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    requests_per_second: Option<u32>,
    /// How many items a page may have. Default: 500.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    largest_page: Option<u32>,
}

pub(crate) async fn run(args: Args) -> Result<ExitCode, Error> {
    let mut settings = args.place.settings()?;
    args.over(&mut settings.admin);
    let config = &settings.admin;
    let redaction = redaction(config)?;
    let address = config.listen.unwrap_or(LISTEN);
    let (access, who) = match args.tokens(config)? {
        Some(tokens) => {
            let who = format!("those with one of {} tokens", tokens.len());
            (Access::tokens(tokens), who)
        }
        None if address.ip().is_loopback() => {
            (Access::loopback(), "everybody on this machine, for there are no tokens".to_owned())
        }
        None => {
            return Err(Error::new(format!("without tokens the API listens on loopback only, and {address} is not"))
                .advice("give it tokens with --token-file FILE, or let it listen on 127.0.0.1"));
        }
    };
    let way_back = args.place.way_back(&settings)?;
    let end = interrupted()?;
    let opened = args.place.open(&settings).await?.ok_or_else(|| {
        Error::new("no database is given")
            .advice("--db URL or PILLARBOX_DB, or --config FILE with a url in its [outbox]; or --letters URL")
    })?;
    if opened.has_letters() {
        if let Some(sink) = &way_back {
            if let Err(error) = try_out(&**sink).await {
                eprintln!("warning: {error}\n  it goes on: replays fail until the sink is there");
            }
        } else {
            eprintln!("dead letters can't be replayed: give a sink with --config FILE or --broker URL");
        }
    }
    let admin = opened.admin(access, way_back.as_ref()).redact(redaction).limits(limits(&config.limits));
    let page = format!("{PLACE}/docs");
    let root = get(move || std::future::ready(Redirect::temporary(&page)));
    // A browser asks for it, whatever the page says.
    let icon = get(|| std::future::ready(StatusCode::NO_CONTENT));
    let service = Router::new()
        .nest(PLACE, admin.router())
        .route("/", root)
        .route("/favicon.ico", icon)
        .fallback(|| async { elsewhere(StatusCode::NOT_FOUND) })
        .method_not_allowed_fallback(|| async { elsewhere(StatusCode::METHOD_NOT_ALLOWED) });
    let listener = tokio::net::TcpListener::bind(address).await.map_err(|error| {
        Error::new(format!("{address} can't be listened on"))
            .caused_by(error)
            .advice("choose another with --listen, such as 127.0.0.1:0")
    })?;
    let address = listener.local_addr().map_err(|error| Error::new("the port is not known").caused_by(error))?;
    let _ = out::print(format!("http://{address}{PLACE}\n"))?;
    eprintln!("a page to try it: http://{address}{PLACE}/docs");
    eprintln!("it lets in {who}; Ctrl-C ends it");
    let service = service.into_make_service_with_connect_info::<SocketAddr>();
    let ended = CancellationToken::new();
    let told = ended.clone();
    let serving = axum::serve(listener, service).with_graceful_shutdown(async move {
        end.await;
        told.cancel();
    });
    let patience = async {
        ended.cancelled().await;
        tokio::time::sleep(PATIENCE).await;
    };
    tokio::select! {
        served = serving => served.map_err(|error| Error::new("the API is no longer served").caused_by(error))?,
        // Somebody began a request and does not end it.
        () = patience => eprintln!("not every connection has ended: they are closed"),
    }
    if let Some(sink) = way_back {
        sink.close().await;
    }
    Ok(ExitCode::SUCCESS)
}

/// What is not at a path of the API is told as there.
fn elsewhere(status: StatusCode) -> Response {
    let title = status.canonical_reason().unwrap_or("refused");
    let problem = serde_json::json!({
        "type": "about:blank",
        "title": title,
        "status": status.as_u16(),
        "detail": format!("the API is at {PLACE}, with a page to try it at {PLACE}/docs"),
    });
    (status, [(header::CONTENT_TYPE, "application/problem+json")], problem.to_string()).into_response()
}

impl Args {
    /// Puts what the flags say before what the configuration says.
    fn over(&self, config: &mut AdminConfig) {
        config.listen = self.listen.or(config.listen);
        config.redact.extend_from_slice(&self.redact);
        config.redact_headers.extend_from_slice(&self.redact_header);
        config.hide_errors |= self.hide_errors;
        config.hide_payloads |= self.hide_payloads;
        config.redact_for_everybody |= self.redact_for_everybody;
        if let Some(rate) = self.requests_per_second {
            config.limits.requests_per_second = Some(f64::from(rate));
            config.limits.burst = Some(rate.saturating_mul(2));
        }
        config.limits.largest_page = self.largest_page.or(config.limits.largest_page);
    }

    fn tokens(&self, config: &AdminConfig) -> Result<Option<Tokens>, Error> {
        let (text, of) = match (&self.token_file, std::env::var(TOKENS)) {
            (Some(_), Ok(_)) => {
                return Err(Error::new(format!("there are tokens both in a file and in {TOKENS}")).advice("use one"));
            }
            (Some(file), Err(_)) => {
                let text = std::fs::read_to_string(file).map_err(|error| {
                    Error::new(format!("the file of tokens, {}, can't be read", file.display())).caused_by(error)
                })?;
                tell_if_open(file);
                (text, file.display().to_string())
            }
            (None, Ok(text)) => (text, TOKENS.to_owned()),
            (None, Err(std::env::VarError::NotPresent)) => match &config.tokens {
                Some(text) => (text.clone(), "admin.tokens".to_owned()),
                None => return Ok(None),
            },
            (None, Err(error)) => return Err(Error::new(format!("{TOKENS} can't be read")).caused_by(error)),
        };
        let refused = |error| Error::new(format!("the tokens of {of} are refused")).caused_by(error);
        Tokens::read(&text).map(Some).map_err(refused)
    }
}

fn redaction(config: &AdminConfig) -> Result<Redaction, Error> {
    let mut redaction = Redaction::new();
    for path in &config.redact {
        let refused = |error| Error::new(format!("--redact, or admin.redact, is refused: {path:?}")).caused_by(error);
        redaction = redaction.path(path).map_err(refused)?;
    }
    redaction = config.redact_headers.iter().fold(redaction, |redaction, name| redaction.header(name.trim()));
    if config.hide_errors {
        redaction = redaction.hide_errors();
    }
    if config.hide_payloads {
        redaction = redaction.hide_payloads();
    }
    Ok(if config.redact_for_everybody { redaction.for_everybody() } else { redaction })
}

fn limits(config: &LimitsConfig) -> Limits {
    let default = Limits::default();
    Limits {
        page: config.page.unwrap_or(default.page),
        largest_page: config.largest_page.unwrap_or(default.largest_page),
        page_bytes: config.page_bytes.unwrap_or(default.page_bytes),
        body: config.body.unwrap_or(default.body),
        bulk: config.bulk.unwrap_or(default.bulk),
        requests_per_second: config.requests_per_second.unwrap_or(default.requests_per_second),
        burst: config.burst.unwrap_or(default.burst),
        at_once: config.at_once.unwrap_or(default.at_once),
        time: config.time.unwrap_or(default.time),
    }
}

/// A secret that others on the machine can read is none.
#[cfg(unix)]
fn tell_if_open(file: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let open = std::fs::metadata(file).is_ok_and(|metadata| metadata.permissions().mode() & 0o077 != 0);
    if open {
        eprintln!("warning: others on this machine can read {}: chmod 600 it", file.display());
    }
}

#[cfg(not(unix))]
fn tell_if_open(_file: &std::path::Path) {}

#[cfg(test)]
mod tests {
    use pillarbox_relay::config::{REFERENCE, Settings, Source};

    use super::*;

    /// M4: the file that shows the defaults shows those of the router.
    #[test]
    fn the_reference_has_the_defaults_of_the_api() {
        let (_, of_admin) = REFERENCE.split_once("#[admin]").expect("a section");
        let lines = of_admin.lines().filter(|line| !line.starts_with("# ") && !line.contains("tokens"));
        let text = lines.map(|line| line.trim_start_matches('#')).collect::<Vec<_>>().join("\n");
        let settings = Settings::read(&Source::new().text(format!("[admin]\n{text}"))).expect("a configuration");
        assert_eq!(settings.admin.listen, Some(LISTEN));
        let said = format!("{:?}", settings.admin.limits);
        assert!(!said.contains("None"), "{said}");
        assert_eq!(limits(&settings.admin.limits), Limits::default());
    }
}

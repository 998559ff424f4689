//! `pillarbox admin`: serves the operators' API.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use axum::{Router, response::Redirect, routing::get};
use clap::Args as ClapArgs;
use pillarbox_admin::{Access, Admin, Limits, Redaction, Tokens};

use crate::{error::Error, interrupt::interrupted, letters::Tables, out, store::Database};

const PLACE: &str = "/api/admin";
/// Tokens themselves, for where there are no files. No flag: a command line can be read by everybody.
const TOKENS: &str = "PILLARBOX_ADMIN_TOKENS";

/// Serve the operators' API: dead events, dead letters, and the record of what was done
///
/// With tokens it listens wherever it is told to. Without, it listens on this machine alone, and lets in who comes
/// from there. TLS is the affair of a proxy in front of it.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    database: Database,
    #[command(flatten)]
    tables: Tables,
    /// Where to listen; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8420", env = "PILLARBOX_ADMIN_LISTEN")]
    listen: SocketAddr,
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
    /// How many requests a caller may send a second, on the average.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    requests_per_second: u32,
    /// How many items a page may have.
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    largest_page: u32,
}

pub(crate) async fn run(args: Args) -> Result<ExitCode, Error> {
    let redaction = args.redaction()?;
    let tokens = args.tokens()?;
    let address = args.listen;
    let (access, who) = match tokens {
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
    let end = interrupted()?;
    let store = args.database.open_migrated().await?;
    let limits = Limits {
        requests_per_second: f64::from(args.requests_per_second),
        burst: args.requests_per_second.saturating_mul(2),
        largest_page: args.largest_page,
        ..Limits::default()
    };
    let letters = args.tables.letters(&store).await?;
    let mut admin = Admin::new(store, access).redact(redaction).limits(limits);
    if let Some(letters) = letters {
        admin = admin.letters(letters);
    }
    let page = format!("{PLACE}/docs");
    let root = get(move || std::future::ready(Redirect::temporary(&page)));
    let service = Router::new().nest(PLACE, admin.router()).route("/", root);
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
    let serving = axum::serve(listener, service).with_graceful_shutdown(end);
    serving.await.map_err(|error| Error::new("the API is no longer served").caused_by(error))?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn tokens(&self) -> Result<Option<Tokens>, Error> {
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
            (None, Err(std::env::VarError::NotPresent)) => return Ok(None),
            (None, Err(error)) => return Err(Error::new(format!("{TOKENS} can't be read")).caused_by(error)),
        };
        let refused = |error| Error::new(format!("the tokens of {of} are refused")).caused_by(error);
        Tokens::read(&text).map(Some).map_err(refused)
    }

    fn redaction(&self) -> Result<Redaction, Error> {
        let mut redaction = Redaction::new();
        for path in &self.redact {
            let refused = |error| Error::new("--redact is refused").caused_by(error);
            redaction = redaction.path(path).map_err(refused)?;
        }
        redaction = self.redact_header.iter().fold(redaction, |redaction, name| redaction.header(name.trim()));
        if self.hide_errors {
            redaction = redaction.hide_errors();
        }
        if self.hide_payloads {
            redaction = redaction.hide_payloads();
        }
        Ok(if self.redact_for_everybody { redaction.for_everybody() } else { redaction })
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

//! `pillarbox relay`: sends the events of an outbox to brokers, until it is told to stop.

mod logs;
mod serve;

use std::{error::Error as StdError, path::PathBuf, pin::pin, process::ExitCode, sync::Arc};

use clap::Args as ClapArgs;
use pillarbox::{
    AnyOptions, AnyStore, Kind, OutboxError, StoreErrorKind,
    opentelemetry::{OpenTelemetry, Telemetry},
    port::{Tracer, UpkeepStore as _},
};
use pillarbox_relay::{
    Relay, check_sinks,
    config::{self, Config, OutboxConfig, Source},
};

use crate::{advice, error::Error, interrupt::interrupted, out::harmless, secret::untold, store::to_look_at};

/// Send the events of an outbox to brokers.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// The configuration; `pillarbox config --reference` prints one with everything in it.
    #[arg(short, long, value_name = "FILE", env = "PILLARBOX_CONFIG")]
    config: Option<PathBuf>,
    /// The database, before what the configuration says: sqlite:FILE, postgres://..., mysql://... or mariadb://...
    #[arg(long, value_name = "URL", env = "PILLARBOX_DB", hide_env_values = true)]
    db: Option<String>,
    /// Sets a value, before what the configuration and the environment say; may be given several times.
    #[arg(long, value_name = "PATH=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,
    /// Reads the configuration, tries the database and every sink, and ends.
    #[arg(long)]
    check: bool,
}

fn pair(text: &str) -> Result<(String, String), String> {
    const FORM: &str = "a path, a `=` and a value, such as outbox.workers=100";
    let (path, value) = text.split_once('=').ok_or(FORM)?;
    // A URL with a parameter, whose path was forgotten.
    if path.contains([':', '/', '@']) {
        return Err(FORM.into());
    }
    Ok((path.trim().to_owned(), value.trim().to_owned()))
}

pub(crate) async fn run(args: Args) -> Result<ExitCode, Error> {
    let config = read(&args)?;
    if args.check {
        logs::start(&config.log, None)?;
        return check(&config).await;
    }
    let telemetry = start_telemetry(&config.telemetry)?;
    logs::start(&config.log, telemetry.as_ref())?;
    // Before it joins: if the port is taken, nothing has been.
    let collector = telemetry.as_ref().filter(|_| config.telemetry.metrics);
    let port = serve::open(&config.http, config.outbox.metrics_prefix(), collector).await?;
    let mut told = pin!(interrupted()?);
    let tracer = telemetry.is_some().then(|| Arc::new(OpenTelemetry::new()) as Arc<dyn Tracer>);
    let starting = async {
        let store = open(&config.outbox, config.outbox.url()).await?;
        let relay = Relay::start_with(&config, store, tracer).await;
        relay.map_err(refused)
    };
    let relay = tokio::select! {
        relay = starting => relay?,
        // The database may be slow to answer. Whatever it has taken, its lease gives back.
        () = &mut told => {
            tracing::info!("stopped before it had started");
            return Ok(ExitCode::SUCCESS);
        }
    };
    if !config.outbox.enabled() {
        tracing::warn!("outbox.enabled is false: nothing is sent");
    }
    for (name, sink) in &config.sinks {
        tracing::info!(sink = name, kind = sink.kind(), "sending to");
    }
    let http = port.map(|port| port.serve(relay.outbox().clone(), config.outbox.enabled()));
    told.await;
    tracing::info!(
        "stopping: what is under way is finished first; another signal, a second from now or later, ends it at once"
    );
    relay.shutdown().await;
    drop(http);
    if let Some(telemetry) = telemetry {
        telemetry.shutdown().await;
    }
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

fn read(args: &Args) -> Result<Config, Error> {
    let mut source = Source::new().environment();
    if let Some(path) = &args.config {
        source = source.file(path);
    }
    if let Some(url) = &args.db {
        // As text, whatever it looks like.
        source = source.set_text("outbox.url", url);
    }
    for (path, value) in &args.set {
        source = source.set(path, value);
    }
    let advice = "pillarbox config --reference prints every setting with its default";
    Config::read(&source).map_err(|error| Error::new("the configuration is refused").caused_by(error).advice(advice))
}

fn refused(error: OutboxError) -> Error {
    let advice = "stop the others first, if this one is to take their place: a node that was killed counts until its lease has \
                  run out (outbox.stale_after); or set another outbox.prefix";
    let is_other = matches!(error, OutboxError::OtherGroup { .. });
    let error = Error::new("the relay could not start").caused_by(error);
    if is_other { error.advice(advice) } else { error }
}

/// Nothing without an endpoint.
fn start_telemetry(config: &config::Telemetry) -> Result<Option<Telemetry>, Error> {
    let Some(endpoint) = &config.endpoint else { return Ok(None) };
    let builder = Telemetry::to(endpoint).service(&config.service).sampled(config.sampled);
    let builder = builder.metrics_every(config.metrics_every);
    let builder = config.headers.iter().fold(builder, |builder, (name, value)| builder.header(name, value));
    let started = builder.start().map_err(|error| Error::new("the telemetry could not start").caused_by(error));
    started.map(Some)
}

async fn open(outbox: &OutboxConfig, url: &str) -> Result<AnyStore, Error> {
    let mut options = AnyOptions::new();
    if let Some(prefix) = outbox.prefix() {
        options = options.prefix(prefix);
    }
    if let Some(schema) = outbox.schema() {
        options = options.schema(schema);
    }
    let kind = kind(url)?;
    let refused = |error| advice::caused(Error::new("[outbox]: the database could not be opened"), error, kind);
    options.open(url).await.map_err(refused)
}

/// Tries everything, and tells of each.
async fn check(config: &Config) -> Result<ExitCode, Error> {
    let mut good = true;
    let mut tell = |what: &str, said: Result<(), String>| match said {
        Ok(()) => println!("{what}  ok"),
        Err(error) => {
            good = false;
            println!("{what}  FAILED: {}", untold(&harmless(&error)));
        }
    };
    let store = open_to_look(&config.outbox).await;
    // Without a database they can't be tried, and it is told below why there is none.
    let settings = store.as_ref().map_or(Ok(()), |store| Relay::validate(config, store.clone()));
    tell("configuration", settings.map_err(|error| format!("in [outbox], {error}")));
    let database = async {
        let store = store.map_err(|error| error.to_string())?;
        store.check().await.map_err(|error| match error.kind() {
            StoreErrorKind::Schema => format!(
                "{error} (pillarbox migrate --db URL does; so does the relay when it starts, unless outbox.migrate is false)"
            ),
            _ => with_causes(&error),
        })
    };
    let (database, sinks) = tokio::join!(database, check_sinks(config));
    tell("outbox", database);
    for (name, said) in sinks {
        let kind = config.sinks.get(&name).map_or("", |sink| sink.kind());
        tell(&format!("sink {name} ({kind})"), said.map_err(|error| error.to_string()));
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn open_to_look(outbox: &OutboxConfig) -> Result<AnyStore, Error> {
    open(outbox, &to_look_at(kind(outbox.url())?, outbox.url())).await
}

fn kind(url: &str) -> Result<Kind, Error> {
    Kind::of(url).map_err(|error| Error::new("outbox.url: the database is not known").caused_by(error))
}

/// In one line.
fn with_causes(error: &dyn StdError) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        // Wrappers that repeat what they wrap add nothing.
        if !words.contains(&text) {
            words = format!("{words}: {text}");
        }
        cause = error.source();
    }
    words
}

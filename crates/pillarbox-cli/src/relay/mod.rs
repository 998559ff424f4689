//! `pillarbox relay`: sends the events of an outbox to brokers, until it is told to stop.

mod logs;
mod serve;

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use clap::Args as ClapArgs;
use pillarbox::{
    AnyOptions, AnyStore, Kind,
    opentelemetry::{OpenTelemetry, Telemetry},
    port::{Tracer, UpkeepStore as _},
};
use pillarbox_relay::{
    Relay, check_sinks,
    config::{self, Config, OutboxConfig, Source},
};
use tokio::signal::unix::{SignalKind, signal};

use crate::error::Error;

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
    let (path, value) = text.split_once('=').ok_or("a path, a `=` and a value, such as outbox.workers=100")?;
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
    let metrics =
        serve::metrics(config.outbox.metrics_prefix(), telemetry.as_ref().filter(|_| config.telemetry.metrics))?;
    let store = open(&config.outbox).await?;
    let tracer = telemetry.is_some().then(|| Arc::new(OpenTelemetry::new()) as Arc<dyn Tracer>);
    let relay = Relay::start_with(&config, store, tracer).await;
    let relay = relay.map_err(|error| Error::new("the relay could not start").caused_by(error))?;
    if !config.outbox.enabled() {
        tracing::warn!("outbox.enabled is false: nothing is sent");
    }
    for (name, sink) in &config.sinks {
        tracing::info!(sink = name, kind = sink.kind(), "sending to");
    }
    let http = if config.http.enabled {
        Some(serve::start(&config.http, metrics, relay.outbox().clone(), config.outbox.enabled()).await?)
    } else {
        None
    };
    until_told().await?;
    tracing::info!("stopping: what is under way is finished first");
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

/// Nothing without an endpoint.
fn start_telemetry(config: &config::Telemetry) -> Result<Option<Telemetry>, Error> {
    let Some(endpoint) = &config.endpoint else { return Ok(None) };
    let builder = Telemetry::to(endpoint).service(&config.service).sampled(config.sampled);
    let builder = builder.metrics_every(config.metrics_every);
    let builder = config.headers.iter().fold(builder, |builder, (name, value)| builder.header(name, value));
    let started = builder.start().map_err(|error| Error::new("the telemetry could not start").caused_by(error));
    started.map(Some)
}

async fn open(outbox: &OutboxConfig) -> Result<AnyStore, Error> {
    let mut options = AnyOptions::new();
    if let Some(prefix) = outbox.prefix() {
        options = options.prefix(prefix);
    }
    if let Some(schema) = outbox.schema() {
        options = options.schema(schema);
    }
    let refused = |error| Error::new("outbox.url: the database could not be opened").caused_by(error);
    Kind::of(outbox.url()).map_err(refused)?;
    options.open(outbox.url()).await.map_err(refused)
}

/// Tries everything, and tells of each.
async fn check(config: &Config) -> Result<ExitCode, Error> {
    println!("configuration  ok");
    let mut good = true;
    let mut tell = |what: &str, said: Result<(), String>| match said {
        Ok(()) => println!("{what}  ok"),
        Err(error) => {
            good = false;
            println!("{what}  FAILED: {error}");
        }
    };
    let database = async {
        let store = open(&config.outbox).await.map_err(|error| error.to_string())?;
        store.check().await.map_err(|error| format!("{error} (pillarbox migrate --db URL makes the tables)"))
    };
    let (database, sinks) = tokio::join!(database, check_sinks(config));
    tell("outbox", database);
    for (name, said) in sinks {
        let kind = config.sinks.get(&name).map_or("", |sink| sink.kind());
        tell(&format!("sink {name} ({kind})"), said.map_err(|error| error.to_string()));
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Waits for SIGTERM or Ctrl-C.
async fn until_told() -> Result<(), Error> {
    let failed = |error| Error::new("signals can't be heard").caused_by(error);
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

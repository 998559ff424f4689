//! The `pillarbox` program. One module a subcommand; this file only chooses.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

mod admin;
mod advice;
mod arguments;
mod config;
mod dead;
mod demo;
mod error;
mod events;
mod interrupt;
mod letters;
mod migrate;
mod out;
mod relay;
mod secret;
mod status;
mod store;

use error::Error;

/// A relay takes an event apart on one thread and lets go of it on another, a dozen small texts each: the allocator of the C
/// library took a third of its time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A transactional outbox: events commit with your data, and reach their handlers at least once, in order
/// per key.
#[derive(Debug, Parser)]
#[command(name = "pillarbox", version, about, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Log what the outbox does, to stderr; twice for more. RUST_LOG goes before it.
    #[arg(short, long, action = clap::ArgAction::Count, global = true, display_order = 100)]
    verbose: u8,
}

#[derive(Debug, Subcommand)]
enum Command {
    Admin(admin::Args),
    Config(config::Args),
    Dead(Box<dead::Args>),
    Demo(demo::Args),
    Events(events::Args),
    Migrate(migrate::Args),
    Relay(relay::Args),
    Status(status::Args),
}

fn main() -> ExitCode {
    let cli: Cli = match arguments::read() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    // A relay's logs are a part of its configuration.
    let quiet = match cli.command {
        Command::Relay(_) => false,
        // Who acts is worth a line.
        Command::Admin(_) => start_logs(cli.verbose.max(1)),
        _ => start_logs(cli.verbose),
    };
    let end = match cli.command {
        Command::Admin(args) => on_runtime(admin::run(args)),
        Command::Config(args) => config::run(&args),
        Command::Dead(args) => on_runtime(dead::run(*args)),
        Command::Demo(args) => on_runtime(demo::run(args, quiet)),
        Command::Events(args) => on_runtime(events::run(args)),
        Command::Migrate(args) => on_runtime(migrate::run(args)),
        Command::Relay(args) => on_runtime(relay::run(args)),
        Command::Status(args) => on_runtime(status::run(args)),
    };
    end.unwrap_or_else(|error| {
        error.print();
        ExitCode::FAILURE
    })
}

fn on_runtime(work: impl Future<Output = Result<ExitCode, Error>>) -> Result<ExitCode, Error> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::new("the runtime could not be started").caused_by(error))?
        .block_on(work)
}

/// Returns whether logs are rare enough to draw on the terminal beside them.
fn start_logs(verbose: u8) -> bool {
    let from_environment = std::env::var("RUST_LOG").ok().filter(|filter| !filter.is_empty());
    let filter = from_environment.as_deref().unwrap_or(match verbose {
        // The dispatcher says which events fail and die. In a demo, they are meant to.
        // Why a letter could not be sent stands in no answer of the API, and is for who asks at a terminal.
        0 => "error,pillarbox_core::engine::dispatcher=off,pillarbox_admin::letters=warn",
        1 => "info",
        _ => "info,pillarbox=debug",
    });
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
    verbose == 0 && from_environment.is_none()
}

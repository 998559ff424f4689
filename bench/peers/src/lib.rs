//! Other libraries, measured under the terms of Pillarbox's own drain: events that wait in the database are
//! delivered to a handler that does nothing, and what counts is the time until the last one is durably finished.
//!
//! One run is one round of one peer, and prints one line of JSON. README.md is the contract.

mod database;
mod peers;
mod round;
mod tally;

use std::{error::Error, process::ExitCode, time::Duration};

use clap::Parser;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Measures one round of a library that is not Pillarbox.
#[derive(Debug, Parser)]
struct Args {
    /// A PostgreSQL server, as a role that may create databases.
    #[arg(long, required_unless_present = "list")]
    url: Option<String>,
    /// Which library: see --list.
    #[arg(long, required_unless_present = "list")]
    peer: Option<String>,
    /// How many events wait.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    events: u32,
    /// How many seconds the round may take, from the empty database to the last count.
    #[arg(long, default_value_t = 600)]
    limit: u64,
    /// Lists the peers that are built in, with their versions.
    #[arg(long)]
    list: bool,
}

/// The program.
#[must_use]
pub fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    if args.list {
        for (name, version) in peers::list() {
            println!("{name} {version}");
        }
        return Ok(());
    }
    let (Some(url), Some(peer)) = (&args.url, &args.peer) else { return Err("give --url and --peer".into()) };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let limit = Duration::from_secs(args.limit);
    let line = runtime.block_on(peers::measure(peer, url, args.events, limit));
    // Some peers go on in the background, without a database by now.
    runtime.shutdown_background();
    println!("{}", serde_json::to_string(&line?)?);
    Ok(())
}

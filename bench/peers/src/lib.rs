//! Other libraries, measured under the terms of Pillarbox's own drain: events that wait in the database are
//! delivered to a handler that does nothing, and what counts is the time until the last one is durably finished.
//!
//! One run is one round of one peer, and prints one line of JSON. README.md is the contract.

mod database;
mod peers;
mod round;
mod tally;

use std::{
    env::{self, consts::EXE_SUFFIX},
    error::Error,
    path::PathBuf,
    process::{Command, ExitCode},
};

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
    /// Lists the peers that are built in, with their versions.
    #[arg(long)]
    list: bool,
}

/// The program.
pub fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<ExitCode> {
    if args.list {
        for (name, version) in peers::list() {
            println!("{name} {version}");
        }
        return beside("obix").map_or(Ok(ExitCode::SUCCESS), hand_over);
    }
    let (Some(url), Some(peer)) = (&args.url, &args.peer) else { return Err("give --url and --peer".into()) };
    if let Some(program) = beside(peer) {
        return hand_over(program);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let line = runtime.block_on(peers::measure(peer, url, args.events));
    // Some peers go on in the background, without a database by now.
    runtime.shutdown_background();
    println!("{}", serde_json::to_string(&line?)?);
    Ok(ExitCode::SUCCESS)
}

/// The program beside this one with a peer that needs a build of its own, if it was built.
fn beside(peer: &str) -> Option<PathBuf> {
    let own = env::current_exe().ok()?;
    let other = own.with_file_name(format!("pillarbox-peers-{peer}{EXE_SUFFIX}"));
    (other != own && other.is_file()).then_some(other)
}

/// Lets another program do what this one was asked for.
fn hand_over(program: PathBuf) -> Result<ExitCode> {
    let status = Command::new(program).args(env::args_os().skip(1)).status()?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

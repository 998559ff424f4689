//! The limit of the machine and Pillarbox, side by side, in one run on one file system.
//!
//! The limit is a hand-written loop on the same table with the same driver (see `limit`). Figures that are
//! ratios are medians of ratios, each of one round in which both ran one after the other.

mod bed;
mod counts;
mod drain;
mod latency;
mod limit;
mod memory;
mod read_flat;
mod report;
mod rounds;
mod write;

use std::{error::Error, path::PathBuf, process::ExitCode};

use clap::{Parser, ValueEnum};

use crate::{bed::Bed, report::Report};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Measures Pillarbox beside the limit of the machine.
#[derive(Debug, Parser)]
#[command(name = "cargo x bench")]
struct Args {
    /// The database to measure.
    #[arg(long, value_enum, default_value_t = Backend::Sqlite)]
    backend: Backend,
    /// Smaller sizes: good enough to see that it runs, and not for figures to quote.
    #[arg(long)]
    quick: bool,
    /// Also writes the figures to this file, one JSON object a line.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Runs only the benches whose name begins with this; may be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Where the databases lie. Default: a new folder for temporary files, on a disk if there is one.
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    /// How many rounds each ratio is the median of, 7 at the least.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(7..))]
    rounds: u32,
    /// Drains this file and prints what it took, for the bench of memory: a fresh process has a clean heap.
    #[arg(long, value_name = "FILE", hide = true)]
    drain_and_tell_memory: Option<PathBuf>,
    /// How many events that file has.
    #[arg(long, default_value_t = 0, hide = true)]
    events: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Backend {
    Sqlite,
}

/// How much each bench does.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    rounds: usize,
    /// Events of a write, each in a transaction of its own.
    singles: usize,
    /// Transactions of a write of 100.
    hundreds: usize,
    drained: usize,
    /// Events of one round of latencies.
    timed: usize,
    /// The backlog of the memory bench, and the finished rows of read_flat.
    many: usize,
    /// Pages of one round of read_flat.
    pages: usize,
    /// Events whose round trips and row writes are counted.
    counted: usize,
}

impl Sizes {
    fn full(rounds: usize) -> Self {
        Self {
            rounds,
            singles: 2_000,
            hundreds: 300,
            drained: 100_000,
            timed: 2_000,
            many: 1_000_000,
            pages: 200,
            counted: 5_000,
        }
    }

    fn quick(rounds: usize) -> Self {
        Self {
            rounds,
            singles: 200,
            hundreds: 30,
            drained: 20_000,
            timed: 200,
            many: 50_000,
            pages: 40,
            counted: 1_000,
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    counts::install();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn run(args: &Args) -> Result<()> {
    if let Some(file) = &args.drain_and_tell_memory {
        return memory::child(file, args.events).await;
    }
    let rounds = usize::try_from(args.rounds)?;
    let sizes = if args.quick { Sizes::quick(rounds) } else { Sizes::full(rounds) };
    let bed = Bed::new(args.dir.as_deref())?;
    let mut report = Report::new(args.quick, &bed);
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| name.starts_with(only));

    // The rate of hot_latency depends on the limit of write_1.
    let mut limit_of_write_1 = None;
    for (name, events) in [("write_1", 1), ("write_100", 100)] {
        if wanted(name) {
            let rate = write::run(&bed, &sizes, name, events, &mut report).await?;
            if events == 1 {
                limit_of_write_1 = Some(rate);
            }
        }
    }
    for finish in drain::FINISHES {
        if wanted(finish.name) {
            drain::run(&bed, &sizes, finish, &mut report).await?;
        }
    }
    if wanted("hot_latency") {
        latency::run(&bed, &sizes, limit_of_write_1, &mut report).await?;
    }
    if wanted("memory") {
        memory::run(&bed, &sizes, &mut report).await?;
    }
    if wanted("read_flat") {
        read_flat::run(&bed, &sizes, &mut report).await?;
    }
    report.print();
    if let Some(file) = &args.json {
        report.write_json(file)?;
    }
    Ok(())
}

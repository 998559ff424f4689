//! The limit of the machine and Pillarbox, side by side, in one run on one file system or server.
//!
//! The limit is a hand-written loop on the same table with the same driver (see `limit` of each backend). Figures that are
//! ratios are medians of ratios, each of one round in which both ran one after the other.

mod backend;
mod consumer;
mod dispatch;
mod drain;
mod held;
mod latency;
mod log_bytes;
mod memory;
mod moments;
mod nodes;
mod ordered;
mod peers;
mod place;
mod read_flat;
mod relay;
mod remote;
mod report;
mod rounds;
mod write;

use std::{error::Error, path::PathBuf, process::ExitCode};

use backend::{Backend, Finish, Server, mysql, postgres, sqlite};
use clap::{Parser, ValueEnum};
use report::Report;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Measures Pillarbox beside the limit of the machine.
#[derive(Debug, Parser)]
#[command(name = "cargo x bench")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
struct Args {
    /// The database to measure. Servers are private ones with their default settings, which wait for the disk: `mysql`
    /// is MariaDB, and `oracle-mysql` is MySQL itself, where it can be had.
    #[arg(long, value_enum, default_value_t = Kind::Sqlite)]
    backend: Kind,
    /// Measures this server instead of a private one; its user must be allowed to do everything. Nobody else may use it
    /// meanwhile.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Also measures the peers of bench/peers, which are built for it. PostgreSQL only. `--only peers` leaves out all
    /// else.
    #[arg(long)]
    peers: bool,
    /// Measures the relay in place of the library: from PostgreSQL to private brokers, beside their clients alone. `--only`
    /// names brokers: redis, nats, rabbitmq, mqtt, http, stdout, and kafka, which is left out otherwise.
    #[arg(long)]
    relay: bool,
    /// Measures the consumer's half in place of the outbox: guard, inbox and consumer loop, on private servers. `--only` names
    /// figures: guard, inbox, consumer, or longer, such as guard_redis.
    #[arg(long, conflicts_with_all = ["relay", "peers", "backend"])]
    consumer: bool,
    /// Smaller sizes: good enough to see that it runs, and not for figures to quote.
    #[arg(long)]
    quick: bool,
    /// Also writes the figures to this file, one JSON object a line.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Runs only the benches whose name begins with this; may be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Where SQLite's files lie. Default: a new folder for temporary files, on a disk if there is one. Private servers
    /// lie in the folder for temporary files, which TMPDIR names.
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    /// How many rounds each ratio is the median of, 7 at the least.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(7..))]
    rounds: u32,
    /// Idles on one database, drains another, and prints what that took: a fresh process has a clean heap.
    #[arg(long, num_args = 2, hide = true)]
    as_memory: Option<Vec<String>>,
    /// Is the other process of remote_latency on this database.
    #[arg(long, hide = true)]
    as_node: Option<String>,
    /// Is one of several processes on this database.
    #[arg(long, hide = true)]
    as_member: Option<String>,
    /// Is a relay from this database that tells when messages are confirmed.
    #[arg(long, hide = true)]
    as_relay: Option<String>,
    /// A setting of that relay; may be given several times.
    #[arg(long, value_name = "PATH=VALUE", hide = true)]
    set: Vec<String>,
    /// How many events the database of a process of its own has, or will have.
    #[arg(long, default_value_t = 0, hide = true)]
    events: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Sqlite,
    Postgres,
    Mysql,
    OracleMysql,
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
    /// Events of one round of latencies between processes.
    remote: usize,
    /// Events of each node of several.
    shared: usize,
    /// How often a process is killed, and one stopped.
    ends: usize,
    /// Events that a peer drains.
    peers: usize,
    /// The backlog of the memory bench.
    backlog: usize,
    /// The finished rows of read_flat.
    finished: usize,
    /// Pages of one round of read_flat.
    pages: usize,
    /// Events whose round trips and row writes are counted.
    counted: usize,
}

impl Sizes {
    fn full(rounds: usize, kind: Kind) -> Self {
        Self {
            rounds,
            singles: 2_000,
            hundreds: 300,
            drained: 100_000,
            timed: 2_000,
            remote: 500,
            shared: 10_000,
            ends: 5,
            peers: 500_000,
            backlog: 1_000_000,
            finished: if kind == Kind::Sqlite { 1_000_000 } else { 5_000_000 },
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
            remote: 100,
            shared: 2_000,
            ends: 1,
            peers: 10_000,
            backlog: 50_000,
            finished: 50_000,
            pages: 40,
            counted: 1_000,
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    sqlite::install();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                eprintln!("  because: {error}");
                cause = error.source();
            }
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn run(args: &Args) -> Result<()> {
    if args.peers && args.backend != Kind::Postgres {
        return Err("the peers are measured on PostgreSQL: add `--backend postgres`".into());
    }
    if args.url.is_some() && args.backend == Kind::Sqlite && !args.relay && !args.consumer {
        return Err("SQLite has no URL: `--dir` says where its files lie".into());
    }
    if args.as_memory.is_some() || args.as_node.is_some() || args.as_member.is_some() {
        return match args.backend {
            Kind::Sqlite => child::<sqlite::Bed>(args).await,
            Kind::Postgres => child::<postgres::Bed>(args).await,
            Kind::Mysql | Kind::OracleMysql => child::<mysql::Bed>(args).await,
        };
    }
    if let Some(address) = &args.as_relay {
        return relay::child(address, &args.set, args.events).await;
    }
    if args.relay {
        if args.peers || matches!(args.backend, Kind::Mysql | Kind::OracleMysql) {
            return Err("the relay is measured on PostgreSQL, without peers".into());
        }
        let bed = postgres::Bed::new(args.url.as_deref()).await?;
        let mut report = Report::of_relay(args.quick, &bed);
        let ended = relay::run(&bed, relay::Sizes::new(args.quick), &args.only, &mut report).await;
        return tell(&report, args, ended);
    }
    let rounds = usize::try_from(args.rounds)?;
    if args.consumer {
        let wanted = consumer::Wanted::new(&args.only)?;
        let beds = consumer::Beds::start(&wanted, args.dir.as_deref(), args.url.as_deref()).await?;
        let mut report = Report::of_consumer(args.quick, beds.place());
        let ended = consumer::run(&beds, &consumer::Sizes::new(args.quick, rounds), &wanted, &mut report).await;
        return tell(&report, args, ended);
    }
    let sizes = if args.quick { Sizes::quick(rounds) } else { Sizes::full(rounds, args.backend) };
    let (report, ended) = match args.backend {
        Kind::Sqlite => {
            let bed = sqlite::Bed::new(args.dir.as_deref())?;
            let mut report = Report::new(args.quick, &bed);
            let ended = everywhere(&bed, &sizes, args, &mut report).await;
            (report, ended)
        }
        Kind::Postgres => {
            let bed = postgres::Bed::new(args.url.as_deref()).await?;
            let mut report = Report::new(args.quick, &bed);
            let ended = on_postgres(&bed, &sizes, args, &mut report).await;
            (report, ended)
        }
        Kind::Mysql | Kind::OracleMysql => {
            let is_mariadb = args.backend == Kind::Mysql;
            let family = if is_mariadb { mysql::Family::MariaDb } else { mysql::Family::MySql };
            let bed = mysql::Bed::new(family, args.url.as_deref()).await?;
            let mut report = Report::new(args.quick, &bed);
            let ended = on_servers(&bed, &sizes, args, &mut report).await;
            (report, ended)
        }
    };
    tell(&report, args, ended)
}

/// Tells everything, also what was found before one failed.
fn tell(report: &Report, args: &Args, ended: Result<()>) -> Result<()> {
    report.print();
    if let Some(file) = &args.json {
        report.write_json(file)?;
    }
    ended
}

impl Args {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| name.starts_with(only))
    }
}

/// What is measured on every database.
async fn everywhere<B: Backend>(bed: &B, sizes: &Sizes, args: &Args, report: &mut Report) -> Result<()> {
    // The rate of hot_latency depends on the limit of write_1.
    let mut limit_of_write_1 = None;
    for bench in [("write_1", 1, B::TARGETS.write_1), ("write_100", 100, B::TARGETS.write_100)] {
        if args.wants(bench.0) {
            let rate = write::run(bed, sizes, bench, report).await?;
            if bench.1 == 1 {
                limit_of_write_1 = Some(rate);
            }
        }
    }
    for finish in Finish::ALL {
        if args.wants(finish.name()) {
            drain::run(bed, sizes, finish, report).await?;
        }
    }
    if args.wants("dispatch") {
        dispatch::run(bed, sizes, report).await?;
    }
    if args.wants("ordered_drain") {
        ordered::run(bed, sizes, report).await?;
    }
    if args.wants("hot_latency") {
        latency::run(bed, sizes, limit_of_write_1, report).await?;
    }
    if args.wants("memory") {
        memory::run(bed, sizes, report).await?;
    }
    if args.wants("read_flat") {
        read_flat::run(bed, sizes, report).await?;
    }
    Ok(())
}

async fn on_postgres(bed: &postgres::Bed, sizes: &Sizes, args: &Args, report: &mut Report) -> Result<()> {
    on_servers(bed, sizes, args, report).await?;
    if args.peers {
        peers::run(bed, sizes, report).await?;
    }
    Ok(())
}

/// The same, and what makes sense where others are at work too.
async fn on_servers<B: Server>(bed: &B, sizes: &Sizes, args: &Args, report: &mut Report) -> Result<()> {
    everywhere(bed, sizes, args, report).await?;
    if args.wants("drain_held_tx") {
        held::run(bed, sizes, report).await?;
    }
    if args.wants("wal_delete_mode") {
        log_bytes::run(bed, sizes, report).await?;
    }
    if args.wants("remote_latency") {
        remote::run(bed, sizes, report).await?;
    }
    if args.wants("nodes") {
        nodes::scale(bed, sizes, report).await?;
    }
    if args.wants("takeover") {
        nodes::end_of_one(bed, sizes, report).await?;
    }
    Ok(())
}

/// A process that a bench has started.
async fn child<B: Backend>(args: &Args) -> Result<()> {
    match (&args.as_memory, &args.as_node) {
        (Some(addresses), _) if addresses.len() == 2 => {
            memory::child::<B>(&addresses[0], &addresses[1], args.events).await
        }
        (_, Some(address)) => remote::child::<B>(address, args.events).await,
        _ if args.as_member.is_some() => nodes::child::<B>(args.as_member.as_deref().unwrap_or_default()).await,
        _ => Err("two databases are needed".into()),
    }
}

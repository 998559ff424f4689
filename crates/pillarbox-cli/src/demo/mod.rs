//! `pillarbox demo`: a small shop on an outbox, with a verdict.

mod check;
mod database;
mod figures;
mod handlers;
mod ledger;
mod operator;
mod plan;
mod progress;
mod shop;
mod summary;

use std::{
    collections::HashMap,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use pillarbox::{Delivery, EventId, Outbox, RetryPolicy, SqliteStore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    error::Error,
    interrupt::{INTERRUPTED, interrupted},
};
use check::{Evidence, check};
use database::Database;
use figures::Figures;
use handlers::{Handlers, SIGNUP};
use ledger::{Ledger, Step};
use plan::{MAX_ATTEMPTS, Plan};
use progress::{Show, Watched};
use shop::{Counters, Pace, Shop, WRITERS, Writer, Written};
use summary::{Listed, Paint, Summary, Verdict, counted, say};

/// A run in which nothing is delivered for so long does not end by itself any more.
const STALLED: Duration = Duration::from_secs(15);

/// Run a small shop on an outbox, and check that no event is lost, doubled or out of order
///
/// Orders and their events are written in one transaction, some of which roll back. Handlers get the events;
/// some fail at first and are retried, and a few events die as planned. At the end the demo compares the
/// shop's own tables, the outbox's table and what the handlers saw.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pillarbox demo                           a run of some seconds, in a temporary file
  pillarbox demo --events 200000           a long one
  pillarbox demo --rate 500                at 500 events a second, to see the latency without load
  pillarbox demo --keep                    leave the database for a look
  pillarbox demo --db sqlite:shop.db --json

Exit code: 0 if everything holds, 1 if not or on an error, 2 for wrong arguments, 130 if interrupted.")]
pub(crate) struct Args {
    /// How many events to commit; those that roll back come on top
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=5_000_000))]
    events: u64,

    /// How many events to write a second; 0 is as fast as it goes
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    rate: u32,

    /// A SQLite database to use, as a URL or a path, instead of a temporary one. It is made if it is missing,
    /// put into WAL mode, and never removed; the demo's tables in it begin with `demo_`
    #[arg(long, value_name = "URL")]
    db: Option<String>,

    /// Print one JSON object on stdout, and nothing else
    #[arg(long)]
    json: bool,

    /// Leave the temporary database, and print how to look into it
    #[arg(long)]
    keep: bool,
}

/// Runs the demo. `quiet_logs` tells whether the terminal is free for bars.
pub(crate) async fn run(args: Args, quiet_logs: bool) -> Result<ExitCode, Error> {
    let interrupt = interrupted()?;
    let database = Database::open(args.db.as_deref()).await?;
    if !args.json {
        say(&heading(&args, &database));
    }
    let result = run_in(&database, &args, quiet_logs, interrupt).await;
    let kept = args.keep || !database.is_temporary();
    let path = database.path().to_string_lossy().into_owned();
    database.close(kept).await;
    let mut summary = result?;
    summary.database = kept.then_some(path);
    summary.print(args.json);
    Ok(match summary.verdict {
        Verdict::Ok => ExitCode::SUCCESS,
        Verdict::Failed => ExitCode::FAILURE,
        Verdict::Interrupted => ExitCode::from(INTERRUPTED),
    })
}

async fn run_in(
    database: &Database,
    args: &Args,
    quiet_logs: bool,
    interrupt: impl Future<Output = ()>,
) -> Result<Summary, Error> {
    let ledger = Arc::new(Ledger::new());
    let counters = Arc::new(Counters::default());
    let plan = Plan::new(args.events, WRITERS);
    let outbox = start(database, &ledger).await?;
    let progress = tokio::spawn(progress::run(
        Show::choose(args.json, quiet_logs),
        Watched { events: plan.events(), counters: counters.clone(), ledger: ledger.clone() },
    ));
    let shop = Arc::new(Shop {
        outbox: outbox.clone(),
        run: database.run,
        plan,
        ledger: ledger.clone(),
        counters,
        pace: Pace::new(args.rate),
        stop: CancellationToken::new(),
    });
    let worked = work(database, &shop, interrupt).await;
    outbox.shutdown().await;
    progress.abort();
    let _ = progress.await;
    let Worked { written, skipped, interrupted } = worked?;

    let evidence = Evidence {
        committed: written.committed,
        rolled_back: written.rolled_back,
        attempts: ledger.take(),
        stored: database.stored().await?,
        shop: database.shop().await?,
        interrupted,
    };
    let findings = check(&evidence);
    Ok(Summary {
        verdict: match (interrupted, findings.is_empty()) {
            (true, _) => Verdict::Interrupted,
            (false, true) => Verdict::Ok,
            (false, false) => Verdict::Failed,
        },
        figures: Figures {
            transactions: written.commits,
            rolled_back_transactions: written.rollbacks,
            leftovers: ledger.leftovers(),
            ..Figures::of(&evidence, &skipped)
        },
        problems: Listed::all(&findings),
        run: database.run.0,
        database: None,
    })
}

async fn start(database: &Database, ledger: &Arc<Ledger>) -> Result<Outbox<SqliteStore>, Error> {
    let handlers = Handlers::new(&database.run.tenant(), ledger.clone());
    let mut builder = Outbox::single_node(database.store.clone())
        .retry(RetryPolicy::exponential(Duration::from_millis(20)).max_attempts(MAX_ATTEMPTS))
        .no_purge();
    for step in Step::ALL {
        let handlers = handlers.clone();
        builder = builder.route(Handlers::route(step), move |delivery: Delivery| {
            let outcome = handlers.order(step, &delivery);
            async move { outcome }
        });
    }
    builder = builder.route(("Newsletter", SIGNUP), move |delivery: Delivery| {
        let outcome = handlers.signup(&delivery);
        async move { outcome }
    });
    builder.start().await.map_err(|error| Error::new("the outbox could not be started").caused_by(error))
}

/// What came of the work.
struct Worked {
    written: Written,
    /// When the operator let the key of a dead event go on.
    skipped: HashMap<EventId, u64>,
    interrupted: bool,
}

/// Writes and delivers until everything is, or until it is interrupted.
async fn work(database: &Database, shop: &Arc<Shop>, interrupt: impl Future<Output = ()>) -> Result<Worked, Error> {
    let mut writers = JoinSet::new();
    for number in 0..WRITERS {
        writers.spawn(Writer::new(shop.clone(), number).run());
    }
    let dead = CancellationToken::new();
    let operator = tokio::spawn({
        let (shop, dead) = (shop.clone(), dead.clone());
        async move { operator::run(shop.outbox.clone(), shop.run, &shop.ledger, dead).await }
    });

    tokio::pin!(interrupt);
    let mut interrupted = false;
    let mut written = Written::default();
    loop {
        tokio::select! {
            writer = writers.join_next() => match writer {
                Some(writer) => written.add(writer.map_err(broken)??),
                None => break,
            },
            () = &mut interrupt, if !interrupted => {
                interrupted = true;
                shop.stop.cancel();
            }
        }
    }
    if !interrupted {
        tokio::select! {
            drained = drained(database, shop, written.committed.len() as u64) => drained?,
            () = &mut interrupt => interrupted = true,
        }
    }
    dead.cancel();
    let skipped = operator
        .await
        .map_err(broken)?
        .map_err(|error| Error::new("a dead event's key could not be let go on").caused_by(error))?;
    Ok(Worked { written, skipped, interrupted })
}

/// Waits until no event waits any more, or until nothing moves.
async fn drained(database: &Database, shop: &Shop, written: u64) -> Result<(), Error> {
    let mut before = shop.ledger.standing();
    let mut moved = Instant::now();
    loop {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let standing = shop.ledger.standing();
        if standing != before {
            (before, moved) = (standing, Instant::now());
        }
        let complete = standing.delivered + shop.plan.dead() >= written;
        // The table is asked rarely: it has no index for this.
        if (complete || moved.elapsed() > Duration::from_millis(500)) && database.pending().await? == 0 {
            return Ok(());
        }
        if moved.elapsed() > STALLED {
            return Ok(());
        }
    }
}

fn broken(error: tokio::task::JoinError) -> Error {
    Error::new("a task of the demo broke off").caused_by(error)
}

fn heading(args: &Args, database: &Database) -> String {
    let paint = Paint::on_stdout();
    let place =
        if database.is_temporary() { "a temporary SQLite file".into() } else { database.path().display().to_string() };
    let rate = match args.rate {
        0 => String::new(),
        rate => format!(" at {} a second", summary::grouped(u64::from(rate))),
    };
    format!(
        "\n  {}  {}\n",
        paint.bold("A shop on Pillarbox"),
        paint.dim(&format!("{}{rate}, {WRITERS} writers, {place}", counted(args.events, "event")))
    )
}

//! `pillarbox events`: the events themselves, for people and for scripts.

mod filter;
mod follow;
mod json;
mod show;
mod table;
mod view;

use std::{fmt::Write as _, process::ExitCode};

use clap::{Args as ClapArgs, Subcommand};
use pillarbox::{AnyStore, Seq, StoreError, Timestamp, port::AdminStore as _};

use self::{
    filter::Filter,
    table::{Table, Time},
    view::View,
};
use crate::{error::Error, out, store::Database};

/// List events, show one in full, or follow them as they are committed
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    List(List),
    Show(show::Args),
    Follow(follow::Args),
}

/// List events by their numbers, the oldest first
#[derive(Debug, ClapArgs)]
struct List {
    #[command(flatten)]
    database: Database,
    #[command(flatten)]
    filter: Filter,
    /// So many at most.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Only events with a higher number: the last of the page before.
    #[arg(long, value_name = "SEQ")]
    after: Option<i64>,
    /// Print one JSON object for each event, on a line of its own.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args) -> Result<ExitCode, Error> {
    match args.command {
        Command::List(args) => list(args).await,
        Command::Show(args) => show::run(args).await,
        Command::Follow(args) => follow::run(args).await,
    }
}

async fn list(args: List) -> Result<ExitCode, Error> {
    let store = args.database.open_migrated().await?;
    let now = clock(&store).await.map_err(unreadable)?;
    let from = Seq(args.after.map_or(0, |after| after.saturating_add(1)));
    let query = args.filter.query(now);
    let listing = store.list(&query, from, args.limit).await.map_err(unreadable)?;
    let mut text = String::new();
    if args.json {
        for found in &listing.events {
            text.push_str(&View::of(found, now).as_line()?);
        }
    } else if listing.events.is_empty() {
        text.push_str("no events match\n");
    } else {
        let table = Table::new(Time::Age(now), out::size().map(|(_, columns)| columns));
        text.push_str(&table.write(&listing.events));
        if let (Some(_), Some(last)) = (listing.next, listing.events.last()) {
            let _ = writeln!(text, "\nthere are more: the same with --after {}", last.seq);
        }
    }
    // Who has left has read enough.
    let _ = out::print(text)?;
    Ok(ExitCode::SUCCESS)
}

/// The database's time, from a table that is always small.
async fn clock(store: &AnyStore) -> Result<Timestamp, StoreError> {
    store.fleet().await.map(|fleet| fleet.now)
}

fn unreadable(error: StoreError) -> Error {
    Error::new("the events can't be read").caused_by(error)
}

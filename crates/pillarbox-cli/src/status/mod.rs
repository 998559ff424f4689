//! `pillarbox status`: the outbox at a glance.

mod blocked;
mod watch;

use std::{fmt::Write as _, process::ExitCode, time::Duration};

use clap::Args as ClapArgs;
use pillarbox::{AnyStore, Fleet, NodeStatus, Partition, Standing, Stats, Status, Timestamp, port::AdminStore as _};
use serde::Serialize;

use self::blocked::Blocked;
use crate::{
    error::Error,
    out::{self, one_line},
    store::{Database, unreadable},
};

/// Show what waits, what is dead, which nodes own what, and which keys are blocked
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    database: Database,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
    /// Show it again every so many seconds, until Ctrl-C; with --json, one object a line.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = watch::every)]
    watch: Option<Duration>,
}

pub(crate) async fn run(args: Args) -> Result<ExitCode, Error> {
    let store = args.database.open_migrated().await?;
    let database = args.database.kind()?.name();
    if let Some(every) = args.watch {
        return watch::run(&store, database, every, args.json).await;
    }
    let view = View::read(&store, database).await?;
    let text = if args.json { as_json(serde_json::to_string_pretty(&view))? } else { view.as_text() };
    // Who has left has read enough.
    let _ = out::print(text)?;
    Ok(ExitCode::SUCCESS)
}

fn as_json(text: serde_json::Result<String>) -> Result<String, Error> {
    text.map(|text| text + "\n").map_err(|error| Error::new("the status can't be written as JSON").caused_by(error))
}

/// What is shown. The names are those of the JSON.
#[derive(Debug, Serialize)]
struct View {
    database: &'static str,
    pending: u64,
    oldest_pending_seconds: Option<f64>,
    by_status: Vec<ByStatus>,
    worst_partition: Option<Worst>,
    nodes: Vec<Node>,
    partitions: Partitions,
    blocked: Blocked,
}

#[derive(Debug, Serialize)]
struct ByStatus {
    status: &'static str,
    events: u64,
    oldest_seconds: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Worst {
    partition: u8,
    pending: u64,
}

#[derive(Debug, Serialize)]
struct Node {
    name: String,
    live: bool,
    /// Until its lease ends; negative since it has ended.
    lease_seconds: f64,
    up_seconds: f64,
    /// How much of the whole it wants, against the others; 16 by default, 0 when it is about to leave.
    weight: u8,
    idle: bool,
    partitions: Vec<u8>,
    routes: Vec<String>,
    mark: Option<i64>,
}

#[derive(Debug, Serialize)]
struct Partitions {
    owned: usize,
    owned_by_lapsed: usize,
    free: usize,
}

impl View {
    async fn read(store: &AnyStore, database: &'static str) -> Result<Self, Error> {
        let unreadable = |error| unreadable(error, store.kind());
        let stats = store.stats().await.map_err(unreadable)?;
        let fleet = store.fleet().await.map_err(unreadable)?;
        let blocked = Blocked::read(store, stats.now).await?;
        Ok(Self::new(database, &stats, &fleet, blocked))
    }

    fn new(database: &'static str, stats: &Stats, fleet: &Fleet, blocked: Blocked) -> Self {
        let age = |status| stats.oldest(status).map(|oldest| stats.now.since(oldest).as_secs_f64());
        let of_status = |status: Status| ByStatus {
            status: status.as_str(),
            events: stats.count(status),
            oldest_seconds: age(status),
        };
        let owned = |live: bool| {
            let nodes = fleet.nodes.iter().filter(|node| node.is_live(fleet.now) == live);
            nodes.map(|node| node.partitions.len()).sum()
        };
        Self {
            database,
            pending: stats.pending(),
            oldest_pending_seconds: [Status::New, Status::Retry].into_iter().filter_map(age).reduce(f64::max),
            by_status: Status::ALL.into_iter().map(of_status).collect(),
            worst_partition: stats.worst_partition.map(|(Partition(partition), pending)| Worst { partition, pending }),
            nodes: fleet.nodes.iter().map(|node| Node::new(node, fleet.now)).collect(),
            partitions: Partitions { owned: owned(true), owned_by_lapsed: owned(false), free: fleet.free.len() },
            blocked,
        }
    }

    fn as_text(&self) -> String {
        let mut text = String::new();
        // A string takes everything.
        let _ = self.write_to(&mut text);
        text
    }

    fn write_to(&self, text: &mut String) -> std::fmt::Result {
        match self.pending {
            1 => write!(text, "1 event waits")?,
            pending => write!(text, "{pending} events wait")?,
        }
        match self.oldest_pending_seconds {
            Some(seconds) => writeln!(text, ", the oldest for {}", for_people(seconds))?,
            None => writeln!(text)?,
        }
        if let Some(Worst { partition, pending }) = self.worst_partition {
            writeln!(text, "{pending} of them in the fullest partition, {partition}")?;
        }
        writeln!(text, "\n{:<8}{:>12}  oldest", "status", "events")?;
        for line in &self.by_status {
            let oldest = line.oldest_seconds.map_or_else(|| "-".into(), for_people);
            writeln!(text, "{:<8}{:>12}  {oldest}", line.status, line.events)?;
        }
        self.blocked.write_to(text)?;
        writeln!(text)?;
        self.write_nodes(text)
    }

    fn write_nodes(&self, text: &mut String) -> std::fmt::Result {
        if self.nodes.is_empty() {
            return writeln!(text, "no nodes: nobody delivers these events");
        }
        let name = |node: &Node| one_line(&node.name);
        let width = self.nodes.iter().map(|node| name(node).chars().count()).max().unwrap_or(0).max(4);
        writeln!(text, "{:<width$}  {:<22}  {:<10}  {:>10}  routes", "node", "lease", "up for", "partitions")?;
        for node in &self.nodes {
            let lease = if node.live && node.weight == 0 {
                "leaving".into()
            } else if node.live {
                format!("{} left", for_people(node.lease_seconds))
            } else {
                format!("LAPSED {} ago", for_people(-node.lease_seconds))
            };
            let up = for_people(node.up_seconds);
            let routes = if node.routes.is_empty() { "-".into() } else { one_line(&node.routes.join(" ")) };
            let partitions = node.partitions.len();
            writeln!(text, "{:<width$}  {lease:<22}  {up:<10}  {partitions:>10}  {routes}", name(node))?;
        }
        let Partitions { owned, owned_by_lapsed, free } = self.partitions;
        writeln!(text, "\n{owned} of 256 partitions have a live owner")?;
        if owned_by_lapsed > 0 {
            writeln!(
                text,
                "{owned_by_lapsed} belong to nodes whose lease has lapsed: the next live node takes them over"
            )?;
        }
        if free > 0 {
            writeln!(text, "{free} have no owner")?;
        }
        Ok(())
    }
}

impl Node {
    fn new(node: &NodeStatus, now: Timestamp) -> Self {
        let standing = Standing::read(&node.routes);
        Self {
            name: node.node.to_string(),
            live: node.is_live(now),
            lease_seconds: seconds(now, node.until),
            up_seconds: seconds(node.started_at, now),
            partitions: node.partitions.iter().map(|partition| partition.0).collect(),
            weight: standing.weight,
            idle: standing.idle,
            routes: Standing::routes(&node.routes).map(ToOwned::to_owned).collect(),
            mark: node.mark.map(|mark| mark.0),
        }
    }
}

/// From one time to another; negative if the other comes first.
pub(crate) fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    if to < from { -from.since(to).as_secs_f64() } else { to.since(from).as_secs_f64() }
}

/// A span in the two largest units that it has.
pub(crate) fn for_people(seconds: f64) -> String {
    let span = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    let whole = span.as_secs();
    match whole {
        0 => format!("{} ms", span.as_millis()),
        1..60 => format!("{:.1} s", span.as_secs_f64()),
        60..3_600 => format!("{} min {} s", whole / 60, whole % 60),
        3_600..86_400 => format!("{} h {} min", whole / 3_600, whole / 60 % 60),
        _ => format!("{} d {} h", whole / 86_400, whole / 3_600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_readable() {
        for (seconds, text) in [
            (-1.0, "0 ms"),
            (0.0421, "42 ms"),
            (1.25, "1.2 s"),
            (59.9, "59.9 s"),
            (60.0, "1 min 0 s"),
            (3_725.0, "1 h 2 min"),
            (90_000.0, "1 d 1 h"),
        ] {
            assert_eq!(for_people(seconds), text);
        }
    }
}

//! From a commit in one process to the handler in another.

use std::{
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use pillarbox::{Delivery, Outbox};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::{sleep, sleep_until, timeout},
};

use crate::{
    Result, Sizes,
    backend::{Backend, Database, EVENT_TYPE, PAYLOAD, Server},
    moments::{Moments, now},
    report::{Figure, Report},
    rounds::{Spread, float, percentile},
    write,
};

/// A moderate rate, in events a second: far below what a connection commits, so that each event is waited for.
const RATE: f64 = 100.0;
const PATIENCE: Duration = Duration::from_mins(1);

/// Latencies and commits of one round in milliseconds: p50 and p99.
#[derive(Clone, Copy, Debug)]
struct Round {
    handler: (f64, f64),
    commit: (f64, f64),
}

pub(crate) async fn run<B: Server>(bed: &B, sizes: &Sizes, report: &mut Report) -> Result<()> {
    report.begin("remote_latency");
    let mut measured = Vec::new();
    for _ in 0..sizes.rounds {
        measured.push(round::<B>(&bed.empty().await?, sizes.remote).await?);
    }
    let spread = |value: fn(&Round) -> f64| Spread::of(measured.iter().map(value));
    let over = spread(|round| round.handler.1 - round.commit.1);
    let note = format!(
        "p99 to the handler over the p99 of the commit; p99 {:.2} and {:.2}, p50 {:.2} and {:.2}; {RATE:.0} events/s",
        spread(|round| round.handler.1).median,
        spread(|round| round.commit.1).median,
        spread(|round| round.handler.0).median,
        spread(|round| round.commit.0).median,
    );
    report.add(Figure::of_spread("remote_latency", "ms", over, B::TARGETS.remote_latency).note(note));
    Ok(())
}

async fn round<B: Backend>(database: &B::Database, events: usize) -> Result<Round> {
    let mut node = Node::start::<B>(database, events).await?;
    let outbox = Outbox::writer_only(database.store().await?).start().await?;
    let (mut committed, mut commits) = (Vec::new(), Vec::new());
    let interval = Duration::from_secs_f64(1.0 / RATE);
    let mut next = tokio::time::Instant::now();
    for number in 0..events {
        next += interval;
        sleep_until(next).await;
        let mut payload = vec![0; PAYLOAD];
        payload[..8].copy_from_slice(&(number as u64).to_le_bytes());
        let mut tx = outbox.begin().await?;
        tx.write(write::event(&Bytes::from(payload))).await?;
        let begun = Instant::now();
        tx.commit().await?;
        commits.push(begun.elapsed().as_secs_f64() * 1e3);
        committed.push(now());
    }
    let arrived = node.arrivals().await?;
    outbox.shutdown().await;
    <B::Database as Database>::close(outbox.store()).await;
    if arrived.len() != events {
        return Err(format!("{} of {events} events came to the other process", arrived.len()).into());
    }
    // Both clocks are this machine's. A handler may begin before the writer hears that its commit is through.
    let pairs = arrived.iter().zip(&committed);
    let mut latencies: Vec<f64> =
        pairs.map(|(arrived, committed)| float(arrived.saturating_sub(*committed)) / 1e6).collect();
    let of = |values: &mut [f64]| (percentile(values, 0.5), percentile(values, 0.99));
    Ok(Round { handler: of(&mut latencies), commit: of(&mut commits) })
}

/// The process with the handler.
struct Node {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Node {
    async fn start<B: Backend>(database: &B::Database, events: usize) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--backend", B::NAME, "--as-node", &database.address(), "--events", &events.to_string()])
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()?;
        let output = child.stdout.take().ok_or("the other process has no output")?;
        let mut node = Self { child, lines: BufReader::new(output).lines() };
        node.line().await?;
        Ok(node)
    }

    /// Nanoseconds of each event, in the order of their numbers.
    async fn arrivals(&mut self) -> Result<Vec<u64>> {
        let line = self.line().await?;
        self.child.wait().await?;
        Moments::read(&line)
    }

    async fn line(&mut self) -> Result<String> {
        let line = timeout(PATIENCE, self.lines.next_line()).await.map_err(|_| "the other process says nothing")??;
        line.ok_or_else(|| "the other process ended too early".into())
    }
}

/// The other process: owns every partition, says so, and tells when each event came.
pub(crate) async fn child<B: Backend>(address: &str, events: usize) -> Result<()> {
    let database = B::Database::at(address);
    let moments = Arc::new(Moments::new(events));
    let outbox = {
        let moments = moments.clone();
        Outbox::multi_node(database.store().await?)
            .route(EVENT_TYPE, move |delivery: Delivery| {
                let now = now();
                let number =
                    delivery.event().payload().as_bytes().first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
                if let Some(number) = number.and_then(|number| usize::try_from(number).ok()) {
                    moments.note(number, now);
                }
                async {}
            })
            .start()
            .await?
    };
    while outbox.partitions_owned() < 256 {
        sleep(Duration::from_millis(10)).await;
    }
    println!("ready");
    moments.all().await;
    println!("{}", moments.line());
    outbox.shutdown().await;
    Ok(())
}

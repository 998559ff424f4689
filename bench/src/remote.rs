//! From a commit in one process to the handler in another.

use std::{
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use pillarbox::{Delivery, Outbox};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    sync::Notify,
    time::{sleep, sleep_until, timeout},
};

use crate::{
    Result, Sizes,
    backend::{Backend, Database, EVENT_TYPE, PAYLOAD, Server},
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
        line.split(' ').map(|number| Ok(number.parse()?)).collect()
    }

    async fn line(&mut self) -> Result<String> {
        let line = timeout(PATIENCE, self.lines.next_line()).await.map_err(|_| "the other process says nothing")??;
        line.ok_or_else(|| "the other process ended too early".into())
    }
}

/// The other process: owns every partition, says so, and tells when each event came.
pub(crate) async fn child<B: Backend>(address: &str, events: usize) -> Result<()> {
    let database = B::Database::at(address);
    let at: Arc<Vec<AtomicU64>> = Arc::new((0..events).map(|_| AtomicU64::new(0)).collect());
    let (missing, all) = (Arc::new(AtomicUsize::new(events)), Arc::new(Notify::new()));
    let outbox = {
        let (at, missing, all) = (at.clone(), missing, all.clone());
        Outbox::multi_node(database.store().await?)
            .route(EVENT_TYPE, move |delivery: Delivery| {
                let now = now();
                let number =
                    delivery.event().payload().as_bytes().first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
                let place = number.and_then(|number| at.get(usize::try_from(number).ok()?));
                if let Some(place) = place
                    && place.swap(now, Ordering::Relaxed) == 0
                    && missing.fetch_sub(1, Ordering::AcqRel) == 1
                {
                    all.notify_one();
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
    all.notified().await;
    let at: Vec<String> = at.iter().map(|at| at.load(Ordering::Relaxed).to_string()).collect();
    println!("{}", at.join(" "));
    outbox.shutdown().await;
    Ok(())
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

//! Several nodes on one outbox: what another one adds, and how long keys wait when one dies or stops.

use std::{
    collections::HashMap,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use pillarbox::{Delivery, Outbox};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, Command},
    task::JoinHandle,
    time::{MissedTickBehavior, interval, sleep},
};

use crate::{
    Result, Sizes,
    backend::{Backend, Database, EVENT_TYPE, PAYLOAD, Server},
    moments::now,
    report::{Figure, Report},
    rounds::{Rounds, Spread, float},
    write,
};

const WORKERS: usize = 8;
const WORK: Duration = Duration::from_millis(1);
const BEAT: Duration = Duration::from_millis(500);
/// The stale time of the nodes that are killed and stopped.
const STALE: Duration = Duration::from_secs(3);
const KEYS: usize = 1_000;
/// Each key gets an event so often.
const EVERY: Duration = Duration::from_millis(500);
/// Keys of one transaction.
const AT_ONCE: usize = 20;

/// What a second and a third node add, where handlers wait and not the database.
pub(crate) async fn scale<B: Server>(bed: &B, sizes: &Sizes, report: &mut Report) -> Result<()> {
    report.begin("nodes");
    let mut by_count = [const { Vec::new() }; 3];
    for round in 0..sizes.rounds {
        let mut counts = [1, 2, 3];
        counts.rotate_left(round % 3);
        for count in counts {
            by_count[count - 1].push(rate_per_node(&bed.empty().await?, count, sizes.shared).await?);
        }
    }
    let [one, two, three] = by_count;
    for (name, more) in [("second_node", two), ("third_node", three)] {
        let rounds = Rounds { limit: one.clone(), pillarbox: more };
        let figure = Figure::of_rounds(name, "events/s", &rounds, B::TARGETS.more_nodes);
        let note = format!("by each node, beside one alone; {WORKERS} workers, a handler that sleeps {WORK:?}");
        report.add(figure.of_itself().note(note));
    }
    Ok(())
}

/// Events a second and node, between the first tenth and the last.
async fn rate_per_node<D: Database>(database: &D, count: usize, events: usize) -> Result<f64> {
    let events = events * count;
    let delivered = Arc::new(AtomicUsize::new(0));
    let mut nodes = Vec::new();
    for number in 0..count {
        let delivered = delivered.clone();
        let node = Outbox::multi_node(database.store().await?)
            .node_name(format!("node-{number}"))
            .heartbeat(BEAT)
            .rebalance_every(BEAT)
            .workers(WORKERS)
            .route(EVENT_TYPE, move |_: Delivery| {
                let delivered = delivered.clone();
                async move {
                    sleep(WORK).await;
                    delivered.fetch_add(1, Ordering::Relaxed);
                }
            })
            .start()
            .await?;
        nodes.push(node);
    }
    while nodes.iter().any(|node| node.partitions_owned().abs_diff(256 / count) > 1) {
        sleep(Duration::from_millis(10)).await;
    }
    let writer = Outbox::writer_only(database.store().await?).start().await?;
    let payload = Bytes::from(vec![b'x'; PAYLOAD]);
    // In one transaction: nobody writes any more while they are delivered.
    let mut tx = writer.begin().await?;
    tx.write_all((0..events).map(|number| write::event(&payload).key(format!("key-{number}")))).await?;
    tx.commit().await?;
    let reached = async |count| {
        while delivered.load(Ordering::Relaxed) < count {
            sleep(Duration::from_micros(500)).await;
        }
        (Instant::now(), delivered.load(Ordering::Relaxed))
    };
    let first = reached(events / 10).await;
    let last = reached(events * 9 / 10).await;
    reached(events).await;
    for node in nodes.iter().chain([&writer]) {
        node.shutdown().await;
        D::close(node.store()).await;
    }
    Ok(float(last.1 - first.1) / last.0.duration_since(first.0).as_secs_f64() / float(count))
}

/// How long keys wait when one of three processes is killed, and when one stops.
pub(crate) async fn end_of_one<B: Server>(bed: &B, sizes: &Sizes, report: &mut Report) -> Result<()> {
    report.begin("takeover");
    let (mut killed, mut stopped) = (Vec::new(), Vec::new());
    for _ in 0..sizes.ends {
        let (takeover, pause) = one_ends::<B>(&bed.empty().await?).await?;
        killed.push(takeover);
        stopped.push(pause);
    }
    let note = format!(
        "from kill -9 of one of three to the first delivery of its last key; the stale time is {} s, and each key has an \
         event every {EVERY:?}",
        STALE.as_secs()
    );
    report.add(Figure::of_spread("takeover", "s", Spread::of(killed), None).note(note));
    let note = "a clean stop of one of three: the longest time from a commit to its handler, of any key".into();
    report.add(Figure::of_spread("hand_over", "ms", Spread::of(stopped), None).note(note));
    Ok(())
}

/// Seconds until the last key of a killed process is served again; the longest pause at a clean stop, in milliseconds.
async fn one_ends<B: Backend>(database: &B::Database) -> Result<(f64, f64)> {
    let mut members = Vec::new();
    for _ in 0..3 {
        members.push(Member::start::<B>(database).await?);
    }
    let writer = Outbox::writer_only(database.store().await?).start().await?;
    let writing = tokio::spawn(write_on(writer.clone()));
    // Shares are even, and every key has been served.
    sleep(BEAT * 4 + EVERY * 2).await;
    let begun = now();
    members[1].stop().await?;
    sleep(EVERY * 3).await;
    let stopped = now();
    // What was written by then is long delivered, and is no matter of the kill.
    sleep(EVERY).await;
    members[0].child.kill().await?;
    let killed = now();
    // What the killed process had under way is delivered one by one at first.
    sleep(STALE * 4).await;
    writing.abort();
    let _ = writing.await;
    sleep(EVERY).await;
    members[2].stop().await?;
    let mut seen = Vec::new();
    for member in members {
        seen.push(member.seen.await??);
    }
    writer.shutdown().await;
    B::Database::close(writer.store()).await;

    let between = seen.iter().flatten().filter(|seen| seen.written >= begun && seen.written < stopped);
    // What the killed process had not settled is delivered again: its first delivery counts.
    let mut first: HashMap<(u64, u64), u64> = HashMap::new();
    for seen in between {
        let at = first.entry((seen.key, seen.written)).or_insert(seen.at);
        *at = seen.at.min(*at);
    }
    let pause = first.iter().map(|((_, written), at)| at.saturating_sub(*written)).max().unwrap_or_default();
    let orphans = served_last(&seen, killed);
    let again = orphans.iter().map(|key| {
        let later = seen[2].iter().filter(|seen| seen.key == *key && seen.at > killed);
        later.map(|seen| seen.at).min().ok_or("a key of the killed process was not served again")
    });
    let again = again.collect::<std::result::Result<Vec<_>, _>>()?;
    let last = again.into_iter().max().ok_or("the killed process had no key")?;
    Ok((float(last - killed) / 1e9, float(pause) / 1e6))
}

/// The keys that were served last by the first member.
fn served_last(seen: &[Vec<Seen>], before: u64) -> Vec<u64> {
    let mut last: HashMap<u64, (u64, usize)> = HashMap::new();
    for (member, seen) in seen.iter().enumerate() {
        for seen in seen.iter().filter(|seen| seen.at <= before) {
            let last = last.entry(seen.key).or_default();
            *last = (*last).max((seen.at, member));
        }
    }
    last.into_iter().filter(|(_, (_, member))| *member == 0).map(|(key, _)| key).collect()
}

/// Writes an event of each key again and again.
async fn write_on<S: pillarbox::port::Store + pillarbox::port::TransactStore>(writer: Outbox<S>) -> Result<()> {
    let keys: Vec<u64> = (0..KEYS as u64).collect();
    let batches: Vec<_> = keys.chunks(AT_ONCE).collect();
    let mut ticks = interval(EVERY / u32::try_from(batches.len())?);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for batch in batches.into_iter().cycle() {
        ticks.tick().await;
        let mut tx = writer.begin().await?;
        tx.write_all(batch.iter().map(|key| {
            let mut payload = vec![0; PAYLOAD];
            payload[..8].copy_from_slice(&now().to_le_bytes());
            payload[8..16].copy_from_slice(&key.to_le_bytes());
            write::event(&Bytes::from(payload)).key(format!("key-{key}"))
        }))
        .await?;
        tx.commit().await?;
    }
    Ok(())
}

/// A delivery, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
struct Seen {
    key: u64,
    written: u64,
    at: u64,
}

/// One of the processes.
struct Member {
    child: Child,
    seen: JoinHandle<Result<Vec<Seen>>>,
}

impl Member {
    async fn start<B: Backend>(database: &B::Database) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--backend", B::NAME, "--as-member", &database.address()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()?;
        let output = child.stdout.take().ok_or("the other process has no output")?;
        let mut lines = BufReader::new(output).lines();
        lines.next_line().await?.ok_or("the other process ended too early")?;
        let seen = tokio::spawn(async move {
            let mut seen = Vec::new();
            while let Some(line) = lines.next_line().await? {
                let numbers: Vec<u64> = line.split(' ').filter_map(|number| number.parse().ok()).collect();
                // The last line of one that is killed may be torn.
                if let [key, written, at] = numbers[..] {
                    seen.push(Seen { key, written, at });
                }
            }
            Ok(seen)
        });
        Ok(Self { child, seen })
    }

    async fn stop(&mut self) -> Result<()> {
        if let Some(mut input) = self.child.stdin.take() {
            input.write_all(b"stop\n").await?;
        }
        self.child.wait().await?;
        Ok(())
    }
}

/// The other process: tells of every delivery, until it is told to stop.
pub(crate) async fn child<B: Backend>(address: &str) -> Result<()> {
    let database = B::Database::at(address);
    let outbox = Outbox::multi_node(database.store().await?)
        .heartbeat(BEAT)
        .rebalance_every(BEAT)
        .stale_after(STALE)
        .route(EVENT_TYPE, |delivery: Delivery| async move {
            let payload = delivery.event().payload().as_bytes();
            let number = |at: usize| payload.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
            if let (Some(written), Some(key)) = (number(0), number(8)) {
                println!("{key} {written} {}", now());
            }
        })
        .start()
        .await?;
    println!("ready");
    BufReader::new(tokio::io::stdin()).lines().next_line().await?;
    outbox.shutdown().await;
    Ok(())
}

//! The relay: a backlog in PostgreSQL goes to a real broker by the `pillarbox` program, beside what the broker's client
//! can do without a database, and beside `drain_delete` of the same PostgreSQL.
//!
//! Every round ends with a look at what has arrived: an event that is lost, comes twice or comes before an earlier one of
//! its key is an error, and there is no figure.

mod arrivals;
mod broker;
mod confirm;
mod latency;
mod program;
mod start;

use std::time::{Duration, Instant};

use arrivals::Seen;
use broker::Broker;
use bytes::Bytes;
pub(crate) use confirm::child;
use pillarbox::{Event, Outbox};
use pillarbox_core::port::Message;
use pillarbox_relay::{Mode, Target as Address, message};
use program::{Program, Running};

use crate::{
    Result,
    backend::{Backend as _, Database as _, EVENT_TYPE, Finish, PAYLOAD, postgres},
    drain,
    report::{Figure, Report, Target},
    rounds::{Rounds, Spread, float},
    write,
};

/// Of every ratio.
const ROUNDS: usize = 5;
/// As many as orders have: each has several events in the backlog.
const KEYS: usize = 10_000;
/// Events of one transaction that fills the table.
const CHUNK: usize = 2_000;
/// Rows that are looked at to tell how far a round has come.
const LOOKED_AT: usize = 10_000;
/// A round may take so long.
const PATIENCE: Duration = Duration::from_mins(5);
/// Of the smaller of the client's loop and the drain.
const RATE: Target = Target::AtLeast(0.5);
/// MiB.
const MEMORY: Target = Target::AtMost(64.0);

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    events: usize,
    rounds: usize,
    /// Commits of one round of latencies.
    timed: usize,
}

impl Sizes {
    pub(crate) fn new(quick: bool) -> Self {
        if quick {
            Self { events: 20_000, rounds: 2, timed: 500 }
        } else {
            Self { events: 200_000, rounds: ROUNDS, timed: 2_500 }
        }
    }
}

/// What all brokers are measured with.
struct Ground<'a> {
    bed: &'a postgres::Bed,
    program: Program,
    sizes: Sizes,
    /// With the backlog.
    keyed: postgres::Database,
    /// As many events without keys, for the drain.
    plain: postgres::Database,
    messages: Vec<Message>,
}

/// Measures those brokers that are wanted. Kafka has to be asked for: its client takes long to build.
pub(crate) async fn run(bed: &postgres::Bed, sizes: Sizes, only: &[String], report: &mut Report) -> Result<()> {
    let wants = |name: &str| {
        if only.is_empty() { name != "kafka" } else { only.iter().any(|only| name.starts_with(only.as_str())) }
    };
    let names = ["redis", "nats", "rabbitmq", "mqtt", "http", "stdout", "kafka"];
    if let Some(unknown) = only.iter().find(|only| !names.iter().any(|name| name.starts_with(only.as_str()))) {
        return Err(format!("there is no broker `{unknown}`: {} are there", names.join(", ")).into());
    }
    report.begin("the relay: building it, and writing its backlog");
    let program = Program::build(wants("kafka")).await?;
    report.add(Figure::of_value("relay_binary", "MiB", program.mebibytes()?, None).note(program.note()));
    let ground = Ground {
        bed,
        program,
        sizes,
        keyed: backlog(bed, sizes.events).await?,
        plain: bed.filled(sizes.events).await?,
        messages: (0..sizes.events).map(made).collect::<Result<_>>()?,
    };
    if wants("redis") {
        measure::<broker::Redis>(&ground, report).await?;
    }
    if wants("nats") {
        measure::<broker::Nats>(&ground, report).await?;
    }
    if wants("rabbitmq") {
        measure::<broker::RabbitMq>(&ground, report).await?;
    }
    if wants("mqtt") {
        measure::<broker::Mqtt>(&ground, report).await?;
    }
    if wants("http") {
        measure::<broker::Http>(&ground, report).await?;
    }
    if wants("stdout") {
        measure::<broker::Stdout>(&ground, report).await?;
    }
    if wants("kafka") {
        #[cfg(feature = "kafka")]
        measure::<broker::Kafka>(&ground, report).await?;
        #[cfg(not(feature = "kafka"))]
        return Err("this build has no Kafka: `cargo x bench --relay --only kafka` builds one that has".into());
    }
    Ok(())
}

async fn measure<B: Broker>(ground: &Ground<'_>, report: &mut Report) -> Result<()> {
    let names = B::NAMES;
    let broker = B::start().await?;
    let window = best_window(&broker, ground).await?;
    let (mut limits, mut drains) = (Vec::new(), Vec::new());
    let (mut rounds, mut peak) = (Rounds::default(), 0.0_f64);
    for round in 0..ground.sizes.rounds {
        report.begin(&format!("{}, round {} of {}", names.rate, round + 1, ground.sizes.rounds));
        let mut sides = [0, 1, 2];
        sides.rotate_left(round % 3);
        let (mut limit, mut drain, mut relay) = (f64::INFINITY, 0.0, 0.0);
        for side in sides {
            match side {
                0 => limit = self::limit(&broker, &ground.messages, window).await?,
                1 => drain = drained(ground).await?,
                _ => {
                    let (rate, most) = relayed(&broker, ground).await?;
                    relay = rate;
                    peak = peak.max(most);
                }
            }
        }
        limits.push(limit);
        drains.push(drain);
        rounds.limit.push(limit.min(drain));
        rounds.pillarbox.push(relay);
    }
    let median = |values: &[f64]| Spread::of(values.iter().copied()).median;
    let loop_words = match window {
        Some(window) => format!("the client's loop {:.0} ({} {window})", median(&limits), B::WINDOW),
        None => "there is no client".into(),
    };
    let note = format!("{loop_words}, drain_delete {:.0}; {}", median(&drains), broker.place()?);
    let target = B::IS_REAL.then_some(RATE);
    report.add(Figure::of_rounds(names.rate, "events/s", &rounds, target).note(note));
    let target = (!B::OWN_MEMORY).then_some(MEMORY);
    let note = format!("the most that was resident in {} runs", ground.sizes.rounds);
    report.add(Figure::of_value(names.memory, "MiB", peak, target).note(note));
    latency::run(&broker, ground, report).await?;
    start::run(&broker, ground, report).await
}

/// Of the windows to choose from the one with which the client's loop is fastest, by a part of the messages.
async fn best_window<B: Broker>(broker: &B, ground: &Ground<'_>) -> Result<Option<usize>> {
    let part = &ground.messages[..ground.messages.len() / 5];
    let mut best = None;
    for &window in B::WINDOWS {
        let rate = limit(broker, part, Some(window)).await?;
        eprintln!("  the client's loop, {} {window}: {rate:.0} messages/s", B::WINDOW);
        if best.is_none_or(|(fastest, _)| rate > fastest) {
            best = Some((rate, window));
        }
    }
    Ok(best.map(|(_, window)| window))
}

/// Messages a second by the client's own loop, without a database.
async fn limit<B: Broker>(broker: &B, messages: &[Message], window: Option<usize>) -> Result<f64> {
    let Some(window) = window else { return Ok(f64::INFINITY) };
    broker.clear().await?;
    let mut arrivals = if B::KEEPS { None } else { Some(broker.listen().await?) };
    let took = tokio::time::timeout(PATIENCE, broker.limit(messages, window)).await;
    let took = took.map_err(|_| "the client's own loop is stuck")??;
    if let Some(arrivals) = &mut arrivals {
        Seen::new(messages.len(), KEYS).all(arrivals).await?;
    }
    Ok(float(messages.len()) / took.as_secs_f64())
}

async fn drained(ground: &Ground<'_>) -> Result<f64> {
    drain::rate(&ground.bed.copy(&ground.plain).await?, ground.sizes.events, Finish::Delete).await
}

/// Events a second by the relay, and the most MiB that it had.
async fn relayed<B: Broker>(broker: &B, ground: &Ground<'_>) -> Result<(f64, f64)> {
    let database = ground.bed.copy(&ground.keyed).await?;
    broker.clear().await?;
    let output = broker.output()?;
    let before = if B::KEEPS { None } else { Some(broker.listen().await?) };
    // Opens the connection that looks on.
    database.pending(ground.sizes.events).await?;
    let mut relay = ground.program.start(&database.address(), &broker.sink(), output)?;
    let rate = timed(&database, ground.sizes.events, &mut relay).await;
    // What it has said tells more than that it took too long.
    let rate = rate.map_err(|error| relay.explain(&*error))?;
    let peak = relay.most_resident()?;
    let mut arrivals = match before {
        Some(arrivals) => arrivals,
        None => broker.listen().await?,
    };
    Seen::new(ground.sizes.events, KEYS).all(&mut arrivals).await?;
    relay.stop().await?;
    if database.pending(0).await? > 0 {
        return Err("the relay has left events in the table".into());
    }
    Ok((rate, peak))
}

/// From the first rows that are gone to the last. One row a look: that costs the database next to nothing.
async fn timed(database: &postgres::Database, events: usize, relay: &mut Running) -> Result<f64> {
    let end = Instant::now() + PATIENCE;
    let mut gone = async |seq: usize| -> Result<()> {
        while database.has(seq).await? {
            if Instant::now() > end {
                return Err(format!("row {seq} is still there after {PATIENCE:?}").into());
            }
            relay.must_live()?;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    };
    gone(1).await?;
    let begun = Instant::now();
    let first = LOOKED_AT.min(events) - database.count_to(LOOKED_AT.min(events)).await?;
    gone(events).await?;
    // What was under way beside it is bounded, and among the last; the caller looks at all.
    while database.pending(events.saturating_sub(LOOKED_AT)).await? > 0 {
        if Instant::now() > end {
            return Err(format!("some rows are still there after {PATIENCE:?}").into());
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(float(events - first) / begun.elapsed().as_secs_f64())
}

/// The payload of an event: its number, and letters up to the size of all payloads.
fn payload(number: usize) -> Bytes {
    let mut payload = format!("{number:012}").into_bytes();
    payload.resize(PAYLOAD, b'x');
    payload.into()
}

fn key(number: usize) -> String {
    format!("key-{}", number % KEYS)
}

/// A database with the backlog.
async fn backlog(bed: &postgres::Bed, events: usize) -> Result<postgres::Database> {
    let database = bed.empty().await?;
    let outbox = Outbox::writer_only(database.store().await?).start().await?;
    let numbers: Vec<usize> = (0..events).collect();
    for chunk in numbers.chunks(CHUNK) {
        let mut tx = outbox.begin().await?;
        tx.write_all(chunk.iter().map(|&number| write::event(&payload(number)).key(key(number)))).await?;
        tx.commit().await?;
    }
    outbox.shutdown().await;
    postgres::Database::close(outbox.store()).await;
    // Tidies up, and adds nothing.
    database.fill(0).await?;
    Ok(database)
}

/// The message that the relay makes of an event of the backlog, for the client's own loop.
fn made(number: usize) -> Result<Message> {
    let event: Event = write::event(&payload(number)).key(key(number)).build()?;
    let address = Address { topic: EVENT_TYPE.into(), key: None, headers: Vec::new() };
    Ok(message(&event, address, Mode::Binary, "/pillarbox"))
}

//! From a commit to the broker at a steady rate, and from the start of the program to its first message.
//!
//! The broker's word itself can't be seen from outside. A subscriber of this process, with the clock of the commits, gets
//! a message when the broker has it; so these times are the broker's way to a subscriber too long.

use std::time::{Duration, Instant};

use pillarbox::{Outbox, port::TransactStore as _};
use tokio::time::sleep_until;

use super::{Broker, Ground, arrivals::Arrivals, payload, program::Running};
use crate::{
    Result,
    backend::{Backend as _, Database as _, postgres},
    report::{Figure, Report},
    rounds::{Spread, percentile},
    write,
};

/// Commits a second.
const RATE: u32 = 500;
/// Events that wait when the program starts.
const WAITING: usize = 10;

/// p50 and p99 of one round, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Round {
    broker: (f64, f64),
    commit: (f64, f64),
}

pub(super) async fn run<B: Broker>(broker: &B, ground: &Ground<'_>, report: &mut Report) -> Result<()> {
    report.begin(B::NAMES.latency);
    let (mut starts, mut rounds) = (Vec::new(), Vec::new());
    for _ in 0..ground.sizes.rounds {
        let Started { database, mut relay, mut arrivals, took } = start(broker, ground).await?;
        starts.push(took.as_secs_f64() * 1_000.0);
        let round = round(&database, ground.sizes.timed, &mut arrivals).await;
        rounds.push(round.map_err(|error| relay.explain(&*error))?);
        relay.must_live()?;
        relay.stop().await?;
    }
    let spread = |value: fn(&Round) -> f64| Spread::of(rounds.iter().map(value));
    let note = format!(
        "p99; p50 {:.2}; the commit itself: p50 {:.2}, p99 {:.2}; {RATE} commits/s, {}",
        spread(|round| round.broker.0).median,
        spread(|round| round.commit.0).median,
        spread(|round| round.commit.1).median,
        B::SEEN
    );
    report.add(Figure::of_spread(B::NAMES.latency, "ms", spread(|round| round.broker.1), None).note(note));
    let note = format!("from the start of the process to its first message, with {WAITING} events waiting");
    report.add(Figure::of_spread(B::NAMES.start, "ms", Spread::of(starts), None).note(note));
    Ok(())
}

struct Started {
    database: postgres::Database,
    relay: Running,
    arrivals: Arrivals,
    took: Duration,
}

/// Starts a relay where a few events wait, and comes back when all of them have arrived.
async fn start<B: Broker>(broker: &B, ground: &Ground<'_>) -> Result<Started> {
    let database = ground.bed.empty().await?;
    let outbox = Outbox::writer_only(database.store().await?).start().await?;
    let mut tx = outbox.begin().await?;
    tx.write_all((0..WAITING).map(|number| write::event(&payload(number)).key(format!("first-{number}")))).await?;
    tx.commit().await?;
    outbox.shutdown().await;
    postgres::Database::close(outbox.store()).await;

    broker.clear().await?;
    let output = broker.output()?;
    let mut arrivals = broker.listen().await?;
    let begun = Instant::now();
    let relay = ground.program.start(&database.address(), &broker.sink(), output)?;
    let first = arrivals.next().await.map_err(|error| relay.explain(&*error))?;
    let took = first.at.saturating_duration_since(begun);
    for _ in 1..WAITING {
        arrivals.next().await.map_err(|error| relay.explain(&*error))?;
    }
    Ok(Started { database, relay, arrivals, took })
}

async fn round(database: &postgres::Database, events: usize, arrivals: &mut Arrivals) -> Result<Round> {
    let outbox = Outbox::writer_only(database.store().await?).start().await?;
    let writing = async {
        let (mut commits, mut committed) = (Vec::with_capacity(events), Vec::with_capacity(events));
        let interval = Duration::from_secs(1) / RATE;
        let mut next = tokio::time::Instant::now();
        for number in 0..events {
            next += interval;
            sleep_until(next).await;
            // A transaction of one's own: so its end is known before the outbox hears of it.
            let mut tx = outbox.store().begin().await?;
            // Each its own key: no event waits for another.
            let event = write::event(&payload(WAITING + number)).key(format!("key-{number}"));
            let receipt = outbox.write(&mut tx, event).await?;
            let before = Instant::now();
            outbox.store().commit(tx).await?;
            let after = Instant::now();
            receipt.confirm();
            commits.push((after - before).as_secs_f64() * 1_000.0);
            committed.push(after);
        }
        Result::Ok((commits, committed))
    };
    let listening = async {
        let mut arrived = vec![None; events];
        for _ in 0..events {
            let arrival = arrivals.next().await?;
            let place = arrival.number.checked_sub(WAITING).and_then(|number| arrived.get_mut(number));
            let place = place.ok_or("a message is not of this round")?;
            if place.replace(arrival.at).is_some() {
                return Err(format!("event {} has arrived twice", arrival.number).into());
            }
        }
        Result::Ok(arrived)
    };
    let ((mut commits, committed), arrived) = tokio::try_join!(writing, listening)?;
    outbox.shutdown().await;
    postgres::Database::close(outbox.store()).await;
    let arrived = arrived.into_iter().flatten().zip(committed);
    let late = |(arrived, committed): (Instant, Instant)| arrived.saturating_duration_since(committed);
    let mut latencies: Vec<f64> = arrived.map(|pair| late(pair).as_secs_f64() * 1_000.0).collect();
    let of = |values: &mut [f64]| (percentile(values, 0.5), percentile(values, 0.99));
    Ok(Round { broker: of(&mut latencies), commit: of(&mut commits) })
}

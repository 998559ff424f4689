//! From a commit to the broker's word in the relay, at a steady rate.
//!
//! A subscriber of this process sees to it that every message arrives once. When it gets one is told beside: before the
//! broker's word or after it, as the broker likes.

use std::time::{Duration, Instant};

use pillarbox::{Outbox, port::TransactStore as _};
use pillarbox_postgres::PostgresStore;
use tokio::time::sleep_until;

use super::{
    Broker, Ground,
    arrivals::Arrivals,
    confirm::Confirming,
    payload,
    start::{WAITING, waiting},
};
use crate::{
    Result,
    backend::{Database as _, postgres},
    moments::now,
    report::{Figure, Report},
    rounds::{Spread, float, percentile},
    write,
};

/// Commits a second.
const RATE: u32 = 500;

/// p50 and p99 of one round, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Round {
    confirm: (f64, f64),
    seen: (f64, f64),
    commit: (f64, f64),
}

pub(super) async fn run<B: Broker>(broker: &B, ground: &Ground<'_>, report: &mut Report) -> Result<()> {
    report.begin(B::NAMES.latency);
    let mut rounds = Vec::new();
    for _ in 0..ground.sizes.rounds {
        rounds.push(round(broker, ground).await?);
    }
    let spread = |value: fn(&Round) -> f64| Spread::of(rounds.iter().map(value));
    let median = |value| spread(value).median;
    let note = format!(
        "p99 from the commit to {} in the relay, here a library in a process of its own; p50 {:.2}; {}: p50 {:.2}, p99 {:.2}; \
         the commit itself: p50 {:.2}, p99 {:.2}; {RATE} commits/s",
        B::CONFIRM,
        median(|round| round.confirm.0),
        B::SEEN,
        median(|round| round.seen.0),
        median(|round| round.seen.1),
        median(|round| round.commit.0),
        median(|round| round.commit.1),
    );
    report.add(Figure::of_spread(B::NAMES.latency, "ms", spread(|round| round.confirm.1), None).note(note));
    Ok(())
}

async fn round<B: Broker>(broker: &B, ground: &Ground<'_>) -> Result<Round> {
    let (database, events) = (waiting(ground.bed).await?, ground.sizes.timed);
    broker.clear().await?;
    let output = broker.output()?;
    let mut arrivals = broker.listen().await?;
    let relay = Confirming::start(&database.address(), &broker.sink(), output, WAITING + events).await?;
    let outbox = Outbox::writer_only(database.store().await?).start().await?;
    let (Committed { mut took, at }, seen, confirmed) =
        tokio::try_join!(write_on(&outbox, events), see(&mut arrivals, events), relay.moments())?;
    outbox.shutdown().await;
    postgres::Database::close(outbox.store()).await;
    if confirmed.len() != WAITING + events {
        return Err(format!("{} of {} events were confirmed", confirmed.len(), WAITING + events).into());
    }
    let both = |values: &mut [f64]| (percentile(values, 0.5), percentile(values, 0.99));
    // The relay may have a word on an event before the writer hears that its commit is through.
    let after = |moments: &[u64]| {
        let pairs = moments.iter().zip(&at);
        let mut late: Vec<f64> = pairs.map(|(moment, at)| float(moment.saturating_sub(*at)) / 1e6).collect();
        both(&mut late)
    };
    Ok(Round { confirm: after(&confirmed[WAITING..]), seen: after(&seen), commit: both(&mut took) })
}

/// How long each commit took, in milliseconds, and when it was through.
struct Committed {
    took: Vec<f64>,
    at: Vec<u64>,
}

/// Commits at the rate, each event by itself.
async fn write_on(outbox: &Outbox<PostgresStore>, events: usize) -> Result<Committed> {
    let mut committed = Committed { took: Vec::with_capacity(events), at: Vec::with_capacity(events) };
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
        committed.took.push(before.elapsed().as_secs_f64() * 1_000.0);
        committed.at.push(now());
        receipt.confirm();
    }
    Ok(committed)
}

/// When the subscriber has got each event, after those that waited; an error if one comes twice.
async fn see(arrivals: &mut Arrivals, events: usize) -> Result<Vec<u64>> {
    let mut seen = vec![0; WAITING + events];
    for _ in 0..seen.len() {
        let arrival = arrivals.next().await?;
        let place = seen.get_mut(arrival.number).ok_or("a message is not of this round")?;
        if std::mem::replace(place, arrival.at) != 0 {
            return Err(format!("event {} has arrived twice", arrival.number).into());
        }
    }
    Ok(seen.split_off(WAITING))
}

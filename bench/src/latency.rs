//! The hot path: from a commit to the handler, at a steady rate well below the limit of writing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use pillarbox::{Delivery, Outbox, port::TransactStore as _};
use tokio::{sync::Notify, time::sleep_until};

use crate::{
    Result, Sizes,
    backend::{Backend, Database, EVENT_TYPE, PAYLOAD, Writer as _},
    report::{Figure, Report},
    rounds::{Rounds, Spread, float, percentile},
    write,
};

/// The percentiles of one round, in microseconds.
#[derive(Clone, Copy, Debug)]
struct Round {
    handler: (f64, f64),
    commit: (f64, f64),
}

pub(crate) async fn run<B: Backend>(bed: &B, sizes: &Sizes, limit: Option<f64>, report: &mut Report) -> Result<()> {
    report.begin("hot_latency");
    let limit = if let Some(limit) = limit {
        limit
    } else {
        let database = bed.empty().await?;
        let mut writer = database.writer(1).await?;
        float(sizes.singles) / writer.write(sizes.singles).await?
    };
    let rate = (0.3 * limit).min(1_000.0);
    let (mut measured, mut keyed) = (Vec::new(), Vec::new());
    for _ in 0..sizes.rounds {
        measured.push(round(&bed.empty().await?, sizes.timed, rate, false).await?);
        keyed.push(round(&bed.empty().await?, sizes.timed, rate, true).await?);
    }
    let median = |value: fn(&Round) -> f64| Spread::of(measured.iter().map(value)).median;
    let rounds = Rounds {
        limit: measured.iter().map(|round| round.commit.1).collect(),
        pillarbox: measured.iter().map(|round| round.handler.1).collect(),
    };
    let note = format!(
        "p99; p50 {:.0} us to the handler, {:.0} us for the commit; {rate:.0} events/s",
        median(|round| round.handler.0),
        median(|round| round.commit.0),
    );
    report.add(Figure::of_rounds("hot_latency", "us", &rounds, B::TARGETS.hot_latency).note(note));
    let keyed_p50 = Spread::of(keyed.iter().map(|round| round.handler.0)).median;
    let rounds = Rounds { limit: rounds.pillarbox, pillarbox: keyed.iter().map(|round| round.handler.1).collect() };
    let note = format!("p99 of events with a key, beside those without; p50 {keyed_p50:.0} us");
    report.add(Figure::of_rounds("keyed_latency", "us", &rounds, None).of_itself().note(note));
    Ok(())
}

async fn round<D: Database>(database: &D, events: usize, rate: f64, keyed: bool) -> Result<Round> {
    let clock = Instant::now();
    let now = move || u64::try_from(clock.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let arrivals = Arc::new(Arrivals::new(events));
    let seen = arrivals.clone();
    let outbox = Outbox::single_node(database.store().await?)
        .route(EVENT_TYPE, move |delivery: Delivery| {
            seen.arrived(delivery.event().payload().as_bytes(), now());
            async {}
        })
        .start()
        .await?;

    let mut commits = Vec::with_capacity(events);
    let mut committed = Vec::with_capacity(events);
    let interval = Duration::from_secs_f64(1.0 / rate);
    let mut next = tokio::time::Instant::now();
    for number in 0..events {
        next += interval;
        sleep_until(next).await;
        let mut payload = vec![0; PAYLOAD];
        payload[..8].copy_from_slice(&(number as u64).to_le_bytes());
        // A transaction of one's own: so its end is known before the outbox hears of it.
        let mut tx = outbox.store().begin().await?;
        let event = write::event(&Bytes::from(payload));
        // Each its own: no event waits for another.
        let event = if keyed { event.key(format!("key-{number}")) } else { event };
        let receipt = outbox.write(&mut tx, event).await?;
        let before = now();
        outbox.store().commit(tx).await?;
        let after = now();
        receipt.confirm();
        commits.push(float(after - before) / 1_000.0);
        committed.push(after);
    }
    arrivals.all.notified().await;
    outbox.shutdown().await;
    D::close(outbox.store()).await;

    let arrived = arrivals.at.iter().map(|at| at.load(Ordering::Relaxed));
    let mut latencies: Vec<f64> =
        arrived.zip(committed).map(|(arrived, committed)| float(arrived.saturating_sub(committed)) / 1_000.0).collect();
    let of = |values: &mut [f64]| (percentile(values, 0.5), percentile(values, 0.99));
    Ok(Round { handler: of(&mut latencies), commit: of(&mut commits) })
}

/// When each event came to the handler.
#[derive(Debug)]
struct Arrivals {
    at: Vec<AtomicU64>,
    missing: AtomicUsize,
    all: Notify,
}

impl Arrivals {
    fn new(events: usize) -> Self {
        Self {
            at: (0..events).map(|_| AtomicU64::new(0)).collect(),
            missing: AtomicUsize::new(events),
            all: Notify::new(),
        }
    }

    fn arrived(&self, payload: &[u8], now: u64) {
        let number = payload.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let place = number.and_then(|number| self.at.get(usize::try_from(number).ok()?));
        if let Some(place) = place {
            place.store(now, Ordering::Relaxed);
            if self.missing.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.all.notify_one();
            }
        }
    }
}

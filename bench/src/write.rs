//! Writing: events in transactions of 1 and of 100, by an outbox that only writes.

use std::time::Instant;

use bytes::Bytes;
use pillarbox::{Event, EventBuilder, Outbox, SqliteStore};

use crate::{
    Result, Sizes,
    bed::{Bed, CONTENT_TYPE, EVENT_TYPE, PAYLOAD},
    counts::{self, Begins},
    limit,
    report::{Figure, Report, Target},
    rounds::{Rounds, Spread, float},
};

/// How often the sides take turns in one round.
const TURNS: usize = 100;

/// Measures one size of transactions. Returns the limit in events a second.
pub(crate) async fn run(
    bed: &Bed,
    sizes: &Sizes,
    name: &'static str,
    events: usize,
    report: &mut Report,
) -> Result<f64> {
    report.begin(name);
    let transactions = if events == 1 { sizes.singles } else { sizes.hundreds };
    let mut rounds = Rounds::default();
    for _ in 0..sizes.rounds {
        let (limit, pillarbox) = round(bed, transactions, events).await?;
        rounds.limit.push(limit);
        rounds.pillarbox.push(pillarbox);
    }
    let limit = Spread::of(rounds.limit.iter().copied()).median;
    report.add(Figure::of_rounds(name, "events/s", &rounds, Target::AtLeast(0.9)));

    let transactions = sizes.counted.div_ceil(events);
    let counted = transactions * events;
    let by_limit = counts::of(bed, None, counted, Begins::Explicitly, async |store| {
        let mut writer = limit::Writer::open(&store, events).await?;
        writer.write(transactions).await?;
        writer.close().await
    });
    report.count(name, "limit", by_limit.await?);
    let by_pillarbox = counts::of(bed, None, counted, Begins::Explicitly, async |store| {
        let writer = Writer::open(store, events).await?;
        writer.write(transactions).await?;
        writer.close().await
    });
    report.count(name, "pillarbox", by_pillarbox.await?);
    Ok(limit)
}

/// An event as the benches write it.
pub(crate) fn event(payload: &Bytes) -> EventBuilder {
    Event::builder(EVENT_TYPE).bytes(CONTENT_TYPE, payload.clone())
}

/// One round: each side writes a file of its own, in turns, for the disk's mood changes by the second.
async fn round(bed: &Bed, transactions: usize, events: usize) -> Result<(f64, f64)> {
    let files = [bed.new_file(), bed.new_file()];
    let mut limit = limit::Writer::open(&files[0].store().await?, events).await?;
    let pillarbox = Writer::open(files[1].store().await?, events).await?;
    let turn = transactions.div_ceil(TURNS);
    let (mut by_limit, mut by_pillarbox) = (0.0, 0.0);
    for number in 0..TURNS {
        if number % 2 == 0 {
            by_limit += limit.write(turn).await?;
            by_pillarbox += pillarbox.write(turn).await?;
        } else {
            by_pillarbox += pillarbox.write(turn).await?;
            by_limit += limit.write(turn).await?;
        }
    }
    limit.close().await?;
    pillarbox.close().await?;
    let all = float(turn * TURNS * events);
    Ok((all / by_limit, all / by_pillarbox))
}

struct Writer {
    outbox: Outbox<SqliteStore>,
    events: usize,
    payload: Bytes,
}

impl Writer {
    async fn open(store: SqliteStore, events: usize) -> Result<Self> {
        Ok(Self { outbox: Outbox::writer_only(store).start().await?, events, payload: vec![b'x'; PAYLOAD].into() })
    }

    /// Writes so many transactions; seconds.
    async fn write(&self, transactions: usize) -> Result<f64> {
        let begun = Instant::now();
        for _ in 0..transactions {
            let mut tx = self.outbox.begin().await?;
            tx.write_all((0..self.events).map(|_| event(&self.payload))).await?;
            tx.commit().await?;
        }
        Ok(begun.elapsed().as_secs_f64())
    }

    async fn close(self) -> Result<()> {
        self.outbox.shutdown().await;
        self.outbox.store().pool().close().await;
        Ok(())
    }
}

//! Writing: events in transactions of 1 and of 100, by an outbox that only writes.

use std::time::Instant;

use bytes::Bytes;
use pillarbox::{Event, EventBuilder, Outbox};

use crate::{
    Result, Sizes,
    backend::{Backend, Begins, CONTENT_TYPE, Database, EVENT_TYPE, PAYLOAD, Writer as _},
    report::{Figure, Report, Target},
    rounds::{Rounds, Spread, float},
};

/// How often the sides take turns in one round.
const TURNS: usize = 100;

/// Measures one size of transactions. Returns the limit in events a second.
pub(crate) async fn run<B: Backend>(
    bed: &B,
    sizes: &Sizes,
    (name, events, target): (&'static str, usize, Option<Target>),
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
    report.add(Figure::of_rounds(name, "events/s", &rounds, target));

    let transactions = sizes.counted.div_ceil(events);
    let counted = transactions * events;
    let by_limit = bed.count(0, counted, Begins::Explicitly, async |database| {
        let mut writer = database.writer(events).await?;
        writer.write(transactions).await?;
        writer.close().await
    });
    report.count(name, "limit", by_limit.await?);
    let by_pillarbox = bed.count(0, counted, Begins::Explicitly, async |database| {
        let writer = Writer::<B::Database>::open(database, events).await?;
        writer.write(transactions).await?;
        writer.close().await;
        Ok(())
    });
    report.count(name, "pillarbox", by_pillarbox.await?);
    Ok(limit)
}

/// An event as the benches write it.
pub(crate) fn event(payload: &Bytes) -> EventBuilder {
    Event::builder(EVENT_TYPE).bytes(CONTENT_TYPE, payload.clone())
}

/// One round: each side writes to a database of its own, in turns, for the disk's mood changes by the second.
async fn round<B: Backend>(bed: &B, transactions: usize, events: usize) -> Result<(f64, f64)> {
    let databases = [bed.empty().await?, bed.empty().await?];
    let mut limit = databases[0].writer(events).await?;
    let pillarbox = Writer::open(&databases[1], events).await?;
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
    pillarbox.close().await;
    let all = float(turn * TURNS * events);
    Ok((all / by_limit, all / by_pillarbox))
}

/// An outbox that only writes.
pub(crate) struct Writer<D: Database> {
    outbox: Outbox<D::Store>,
    events: usize,
    payload: Bytes,
}

impl<D: Database> Writer<D> {
    pub(crate) async fn open(database: &D, events: usize) -> Result<Self> {
        let outbox = Outbox::writer_only(database.store().await?).start().await?;
        Ok(Self { outbox, events, payload: vec![b'x'; PAYLOAD].into() })
    }

    /// Writes so many transactions; seconds.
    pub(crate) async fn write(&self, transactions: usize) -> Result<f64> {
        let begun = Instant::now();
        for _ in 0..transactions {
            let mut tx = self.outbox.begin().await?;
            tx.write_all((0..self.events).map(|_| event(&self.payload))).await?;
            tx.commit().await?;
        }
        Ok(begun.elapsed().as_secs_f64())
    }

    pub(crate) async fn close(self) {
        self.outbox.shutdown().await;
        D::close(self.outbox.store()).await;
    }
}

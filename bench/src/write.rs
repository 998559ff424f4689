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
    let all = float(transactions * events);
    let rounds = Rounds::run(
        sizes.rounds,
        async || {
            let file = bed.new_file();
            Ok(all / limit::write(&file.store().await?, transactions, events).await?)
        },
        async || {
            let file = bed.new_file();
            Ok(all / pillarbox(file.store().await?, transactions, events).await?)
        },
    )
    .await?;
    let limit = Spread::of(rounds.limit.iter().copied()).median;
    report.add(Figure::of_rounds(name, "events/s", &rounds, Target::AtLeast(0.9)));

    let transactions = sizes.counted.div_ceil(events);
    let counted = transactions * events;
    let by_limit = counts::of(bed, None, counted, Begins::Explicitly, async |store| {
        limit::write(&store, transactions, events).await.map(drop)
    });
    report.count(name, "limit", by_limit.await?);
    let by_pillarbox = counts::of(bed, None, counted, Begins::Explicitly, async |store| {
        pillarbox(store, transactions, events).await.map(drop)
    });
    report.count(name, "pillarbox", by_pillarbox.await?);
    Ok(limit)
}

/// An event as the benches write it.
pub(crate) fn event(payload: &Bytes) -> EventBuilder {
    Event::builder(EVENT_TYPE).bytes(CONTENT_TYPE, payload.clone())
}

async fn pillarbox(store: SqliteStore, transactions: usize, events: usize) -> Result<f64> {
    let outbox = Outbox::writer_only(store).start().await?;
    let payload = Bytes::from(vec![b'x'; PAYLOAD]);
    let begun = Instant::now();
    for _ in 0..transactions {
        let mut tx = outbox.begin().await?;
        tx.write_all((0..events).map(|_| event(&payload))).await?;
        tx.commit().await?;
    }
    let took = begun.elapsed();
    outbox.shutdown().await;
    outbox.store().pool().close().await;
    Ok(took.as_secs_f64())
}

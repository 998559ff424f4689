//! What a handler over a type costs beside a raw one: the same backlog, drained by both in turn. The raw handler decodes the
//! payload itself, so that what is left is what the type's way to its handler takes; what decoding takes is shown apart.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use pillarbox::prelude::*;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::{
    Result, Sizes,
    backend::{Backend, Database, PAYLOAD},
    report::{Figure, Report, Target},
    rounds::{Rounds, Spread, float},
};

const NAME: &str = "dispatch";

/// Events of one transaction while the backlog is written.
const BATCH: usize = 1_000;

#[derive(Clone, Debug, Serialize, Deserialize, OutboxEvent)]
struct Measured {
    order: u64,
    customer: String,
    note: String,
}

impl Measured {
    /// As JSON, it has the size of every payload here.
    fn new(order: usize) -> Self {
        let mut event = Self { order: 1_000_000 + order as u64, customer: "customer-4711".into(), note: String::new() };
        let size = serde_json::to_vec(&event).map_or(0, |json| json.len());
        event.note = "x".repeat(PAYLOAD.saturating_sub(size));
        event
    }
}

/// How the events are handled.
#[derive(Clone, Copy)]
enum Way {
    Raw,
    RawAndDecoded,
    Typed,
}

pub(crate) async fn run<B: Backend>(bed: &B, sizes: &Sizes, report: &mut Report) -> Result<()> {
    report.begin(NAME);
    let events = sizes.drained;
    let template = bed.empty().await?;
    fill(&template, events).await?;
    let mut raw = Vec::new();
    let rounds = Rounds::run(
        sizes.rounds,
        async || {
            raw.push(rate(&bed.copy(&template).await?, events, Way::Raw).await?);
            rate(&bed.copy(&template).await?, events, Way::RawAndDecoded).await
        },
        async || rate(&bed.copy(&template).await?, events, Way::Typed).await,
    )
    .await?;
    let raw = Spread::of(raw).median;
    let note = format!(
        "the limit: a raw handler that decodes the JSON itself. Without decoding: {raw:.0} events/s; decoding takes {:.0} ns",
        decoding().as_nanos()
    );
    report.add(Figure::of_rounds(NAME, "events/s", &rounds, Some(Target::AtLeast(0.91))).note(note));
    Ok(())
}

async fn fill<D: Database>(database: &D, events: usize) -> Result<()> {
    let outbox = Outbox::writer_only(database.store().await?).start().await?;
    for begin in (0..events).step_by(BATCH) {
        let mut tx = outbox.begin().await?;
        let batch: Vec<_> = (begin..events.min(begin + BATCH)).map(Measured::new).collect();
        tx.write_all(&batch).await?;
        tx.commit().await?;
    }
    outbox.shutdown().await;
    D::close(outbox.store()).await;
    // None more, and what is left to tidy up is tidied up: the database is copied.
    database.fill(0).await
}

/// Events a second until the last one is handled and settled.
async fn rate<D: Database>(database: &D, events: usize, way: Way) -> Result<f64> {
    let (handled, full) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let count = {
        let (handled, full) = (handled.clone(), full.clone());
        move || {
            if handled.fetch_add(1, Ordering::Relaxed) + 1 == events {
                full.notify_one();
            }
        }
    };
    let builder = Outbox::single_node(database.store().await?).on_success(pillarbox::OnSuccess::Delete);
    let builder = match way {
        Way::Raw => builder.route("Measured", move |_: Delivery| {
            count();
            async {}
        }),
        Way::RawAndDecoded => builder.route("Measured", move |delivery: Delivery| {
            let decoded = delivery.event().payload().to::<Measured>();
            std::hint::black_box(&decoded);
            count();
            async move { decoded.map(drop) }
        }),
        Way::Typed => builder.handle(move |event: Measured| {
            std::hint::black_box(&event);
            count();
            async {}
        }),
    };
    let outbox = builder.start().await?;
    let begun = Instant::now();
    full.notified().await;
    while database.pending(0).await? > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let took = begun.elapsed();
    outbox.shutdown().await;
    D::close(outbox.store()).await;
    Ok(float(events) / took.as_secs_f64())
}

/// How long it takes to decode one payload.
fn decoding() -> Duration {
    const TIMES: u32 = 200_000;
    let json = serde_json::to_vec(&Measured::new(7)).unwrap_or_default();
    let begun = Instant::now();
    for _ in 0..TIMES {
        let _ = std::hint::black_box(serde_json::from_slice::<Measured>(std::hint::black_box(&json)));
    }
    begun.elapsed() / TIMES
}

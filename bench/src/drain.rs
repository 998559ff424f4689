//! Draining: events that wait are delivered to a handler that does nothing, and finished.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use pillarbox::{Delivery, OnSuccess, Outbox, SqliteStore};
use tokio::{sync::Notify, time::sleep};

use crate::{
    Result, Sizes,
    bed::{Bed, EVENT_TYPE, pending},
    counts::{self, Begins},
    limit,
    report::{Figure, Report, Target},
    rounds::{Rounds, Spread, float},
};

/// What `start` has read when it comes back: one page by default.
const READ_AT_START: usize = 500;

/// What becomes of rows that are delivered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finish {
    pub(crate) name: &'static str,
    pub(crate) on_success: OnSuccess,
    /// How the limit does it.
    pub(crate) sql: &'static str,
}

pub(crate) const KEEP: Finish = Finish {
    name: "drain_keep",
    on_success: OnSuccess::Keep,
    sql: "update outbox_event not indexed set status = 'DONE', \
          done_at = (cast(round(unixepoch('subsec') * 1000) as integer) * 1000) where seq between ? and ?",
};

pub(crate) const DELETE: Finish = Finish {
    name: "drain_delete",
    on_success: OnSuccess::Delete,
    sql: "delete from outbox_event not indexed where seq between ? and ?",
};

pub(crate) const FINISHES: [Finish; 2] = [KEEP, DELETE];

pub(crate) async fn run(bed: &Bed, sizes: &Sizes, finish: Finish, report: &mut Report) -> Result<()> {
    report.begin(finish.name);
    let events = sizes.drained;
    let template = bed.filled(events).await?;
    let mut by_page = limit::PAGES.map(|_| Vec::new());
    let mut rounds = Rounds::run(
        sizes.rounds,
        async || {
            for (page, rates) in limit::PAGES.into_iter().zip(&mut by_page) {
                let file = bed.copy(&template)?;
                rates.push(float(events) / limit::drain(&file.store().await?, events, page, finish).await?);
            }
            Ok(0.0)
        },
        async || {
            let file = bed.copy(&template)?;
            Ok(float(events - READ_AT_START) / pillarbox(file.store().await?, events, finish).await?)
        },
    )
    .await?;
    let median = |rates: &[f64]| Spread::of(rates.iter().copied()).median;
    let faster = usize::from(median(&by_page[1]) > median(&by_page[0]));
    rounds.limit = by_page[faster].clone();
    let figure = Figure::of_rounds(finish.name, "events/s", &rounds, Target::AtLeast(0.6));
    report.add(figure.note(format!("the limit's page: {}", limit::PAGES[faster])));

    let by_limit = counts::of(bed, Some(&template), events, Begins::ByStatement, async |store| {
        limit::drain(&store, events, limit::PAGES[faster], finish).await.map(drop)
    });
    report.count(finish.name, "limit", by_limit.await?);
    let by_pillarbox = counts::of(bed, Some(&template), events, Begins::Explicitly, async |store| {
        pillarbox(store, events, finish).await.map(drop)
    });
    report.count(finish.name, "pillarbox", by_pillarbox.await?);
    Ok(())
}

/// Drains events 1 to `events`; seconds from the started outbox to the last event that is durably finished.
pub(crate) async fn pillarbox(store: SqliteStore, events: usize, finish: Finish) -> Result<f64> {
    let drained = Drained::start(store, events, finish).await?;
    let took = drained.took;
    drained.check().await?;
    Ok(took.as_secs_f64())
}

/// An outbox that has drained its backlog.
pub(crate) struct Drained {
    outbox: Outbox<SqliteStore>,
    tally: Arc<Tally>,
    events: usize,
    took: Duration,
}

impl Drained {
    /// Starts an outbox with the default settings, and comes back when everything is durably finished.
    pub(crate) async fn start(store: SqliteStore, events: usize, finish: Finish) -> Result<Self> {
        let tally = Arc::new(Tally::default());
        let counter = tally.clone();
        let outbox = Outbox::single_node(store)
            .on_success(finish.on_success)
            .handle(EVENT_TYPE, move |_: Delivery| {
                counter.count(events);
                async {}
            })
            .start()
            .await?;
        let begun = Instant::now();
        tally.full.notified().await;
        // What is delivered and not settled is bounded, and among the last; `check` looks at all.
        while pending(outbox.store(), events.saturating_sub(10_000)).await? > 0 {
            sleep(Duration::from_millis(1)).await;
        }
        Ok(Self { took: begun.elapsed(), outbox, tally, events })
    }

    /// Sees to it that every event was delivered once and is settled, and stops.
    pub(crate) async fn check(self) -> Result<()> {
        let (delivered, events) = (self.tally.delivered.load(Ordering::Relaxed), self.events);
        let left = pending(self.outbox.store(), 0).await?;
        if left > 0 || delivered != events {
            return Err(format!("{delivered} of {events} events were delivered, and {left} are not settled").into());
        }
        self.outbox.shutdown().await;
        self.outbox.store().pool().close().await;
        Ok(())
    }
}

/// Counts deliveries.
#[derive(Debug, Default)]
struct Tally {
    delivered: AtomicUsize,
    full: Notify,
}

impl Tally {
    fn count(&self, all: usize) {
        if self.delivered.fetch_add(1, Ordering::Relaxed) + 1 == all {
            self.full.notify_one();
        }
    }
}

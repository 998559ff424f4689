//! Draining: events that wait are delivered to a handler that does nothing, and finished.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use pillarbox::{Delivery, Outbox};
use tokio::{sync::Notify, time::sleep};

use crate::{
    Result, Sizes,
    backend::{Backend, Begins, Database, EVENT_TYPE, Finish, PAGES},
    report::{Figure, Report},
    rounds::{Rounds, Spread, float},
};

/// What `start` has read when it comes back: one page by default.
const READ_AT_START: usize = 500;

pub(crate) async fn run<B: Backend>(bed: &B, sizes: &Sizes, finish: Finish, report: &mut Report) -> Result<()> {
    report.begin(finish.name());
    let events = sizes.drained;
    let template = bed.filled(events).await?;
    let mut by_page = PAGES.map(|_| Vec::new());
    let mut rounds = Rounds::run(
        sizes.rounds,
        async || {
            for (page, rates) in PAGES.into_iter().zip(&mut by_page) {
                let database = bed.copy(&template).await?;
                rates.push(float(events) / database.drain(events, page, finish).await?);
            }
            Ok(0.0)
        },
        async || rate(&bed.copy(&template).await?, events, finish).await,
    )
    .await?;
    drop(template);
    let median = |rates: &[f64]| Spread::of(rates.iter().copied()).median;
    let faster = usize::from(median(&by_page[1]) > median(&by_page[0]));
    rounds.limit = by_page[faster].clone();
    let figure = Figure::of_rounds(finish.name(), "events/s", &rounds, B::TARGETS.of_drain(finish));
    report.add(figure.note(format!("the limit's page: {}", PAGES[faster])));

    let by_limit = bed.count(events, events, Begins::ByStatement, async |database| {
        database.drain(events, PAGES[faster], finish).await.map(drop)
    });
    report.count(finish.name(), "limit", by_limit.await?);
    let by_pillarbox =
        bed.count(events, events, Begins::Explicitly, async |database| rate(database, events, finish).await.map(drop));
    report.count(finish.name(), "pillarbox", by_pillarbox.await?);
    Ok(())
}

/// Drains events 1 to `events`; events a second from the started outbox to the last event that is durably finished.
pub(crate) async fn rate<D: Database>(database: &D, events: usize, finish: Finish) -> Result<f64> {
    let drained = Drained::start(database, events, finish).await?;
    let took = drained.took;
    drained.check().await?;
    Ok(float(events - READ_AT_START) / took.as_secs_f64())
}

/// An outbox that has drained its backlog.
pub(crate) struct Drained<'a, D: Database> {
    database: &'a D,
    outbox: Outbox<D::Store>,
    tally: Arc<Tally>,
    events: usize,
    took: Duration,
}

impl<'a, D: Database> Drained<'a, D> {
    /// Starts an outbox with the default settings, and comes back when everything is durably finished.
    pub(crate) async fn start(database: &'a D, events: usize, finish: Finish) -> Result<Self> {
        // Opens the connection that looks on.
        database.pending(events).await?;
        let tally = Arc::new(Tally::default());
        let counter = tally.clone();
        let outbox = Outbox::single_node(database.store().await?)
            .on_success(finish.on_success())
            .route(EVENT_TYPE, move |_: Delivery| {
                counter.count(events);
                async {}
            })
            .start()
            .await?;
        let begun = Instant::now();
        tally.full.notified().await;
        // What is delivered and not settled is bounded, and among the last; `check` looks at all.
        while database.pending(events.saturating_sub(10_000)).await? > 0 {
            sleep(Duration::from_millis(1)).await;
        }
        Ok(Self { took: begun.elapsed(), database, outbox, tally, events })
    }

    /// Sees to it that every event was delivered once and is settled, and stops.
    pub(crate) async fn check(self) -> Result<()> {
        let (delivered, events) = (self.tally.delivered.load(Ordering::Relaxed), self.events);
        let left = self.database.pending(0).await?;
        if left > 0 || delivered != events {
            return Err(format!("{delivered} of {events} events were delivered, and {left} are not settled").into());
        }
        self.outbox.shutdown().await;
        D::close(self.outbox.store()).await;
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

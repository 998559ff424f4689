//! Whether the cost of reading grows with what is finished.

use std::time::{Duration, Instant};

use pillarbox::{
    Delivery, Outbox, Seq,
    port::{Candidate, Position, ReadStore as _, Scan},
};
use pillarbox_core::domain::PartitionSet;

use crate::{
    Result, Sizes,
    backend::{Backend, Database, EVENT_TYPE, Finish},
    drain,
    report::{Figure, Report},
    rounds::{Rounds, float},
};

const PAGE: usize = 500;
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn run<B: Backend>(bed: &B, sizes: &Sizes, report: &mut Report) -> Result<()> {
    report.begin("read_flat");
    let (empty, full) = (bed.empty().await?, bed.filled(sizes.finished).await?);
    drain::rate(&full, sizes.finished, Finish::Keep).await?;
    let (empty, full) = (Side::prepare(empty, 0).await?, Side::prepare(full, sizes.finished).await?);
    let rounds =
        Rounds::run(sizes.rounds, async || empty.cost(sizes.pages).await, async || full.cost(sizes.pages).await)
            .await?;
    let note = format!("page of {PAGE}, with {} finished rows over with none", sizes.finished);
    report.add(Figure::of_rounds("read_flat", "us/page", &rounds, B::TARGETS.read_flat).of_itself().note(note));
    Ok(())
}

/// A table with a page of events that wait, and the position from which a node reads it.
struct Side<D: Database> {
    store: D::Store,
    position: Position,
    _database: D,
}

impl<D: Database> Side<D> {
    /// Lets a node come and go, so that the position is Pillarbox's own, and adds a page. On MySQL the position moves only
    /// after a look at the open transactions, half a second later: a node that leaves sooner leaves a lower one.
    async fn prepare(database: D, finished: usize) -> Result<Self> {
        let store = database.store().await?;
        let begun = Instant::now();
        let mark = loop {
            let outbox = Outbox::single_node(store.clone()).route(EVENT_TYPE, |_: Delivery| async {}).start().await?;
            tokio::time::sleep(Duration::from_secs(1)).await;
            outbox.shutdown().await;
            let mark = database.mark().await?;
            if mark >= i64::try_from(finished)? {
                break mark;
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("{finished} events are finished, and the mark is {mark}").into());
            }
        };
        let position = Position::at(Seq(mark));
        database.fill(PAGE).await?;
        if database.pending(0).await? != i64::try_from(PAGE)? {
            return Err("the table is not as it was prepared".into());
        }
        Ok(Self { position, store, _database: database })
    }

    /// The time of a page in microseconds, the mean of many.
    async fn cost(&self, pages: usize) -> Result<f64> {
        let begun = Instant::now();
        for _ in 0..pages {
            let scan =
                Scan { partitions: PartitionSet::ALL, after: &self.position, limit: PAGE, skip_recent: Duration::ZERO };
            let page = self.store.page(scan, &mut |_: Candidate<'_>| true).await?;
            if page.rows.len() != PAGE {
                return Err(format!("a page has {} rows", page.rows.len()).into());
            }
        }
        Ok(begun.elapsed().as_secs_f64() * 1e6 / float(pages))
    }
}

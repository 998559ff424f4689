//! How many bytes of the write-ahead log an event costs in its whole life, from the insert to the delete and to the tidying up
//! after it: PostgreSQL's vacuum. Every run has its own, so that it makes no difference when autovacuum comes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use pillarbox::{Delivery, Outbox};
use tokio::time::{Instant, sleep};

use crate::{
    Result, Sizes,
    backend::{Database as _, EVENT_TYPE, Finish, Server},
    report::{Figure, Report},
    rounds::{Spread, float},
    write::Writer,
};

const NAME: &str = "wal_delete_mode";
const TRANSACTION: usize = 100;
/// Runs in one database, one after the other: the first warms up, so that the others touch pages which were
/// changed since the last checkpoint, and no full pages are logged.
const RUNS: usize = 4;
const PATIENCE: Duration = Duration::from_mins(1);

/// One process writes transactions of 100, another outbox delivers and deletes at the same time.
pub(crate) async fn run<B: Server>(bed: &B, sizes: &Sizes, report: &mut Report) -> Result<()> {
    report.begin(NAME);
    let database = bed.empty().await?;
    let delivered = Arc::new(AtomicUsize::new(0));
    let counter = delivered.clone();
    let outbox = Outbox::single_node(database.store().await?)
        .on_success(Finish::Delete.on_success())
        .route(EVENT_TYPE, move |_: Delivery| {
            counter.fetch_add(1, Ordering::Relaxed);
            async {}
        })
        .start()
        .await?;
    let writer = Writer::open(&database, TRANSACTION).await?;
    let transactions = sizes.drained.div_ceil(TRANSACTION * RUNS);
    let events = transactions * TRANSACTION;
    let mut bytes = Vec::new();
    for run in 1..=RUNS {
        let before = bed.log_position().await?;
        writer.write(transactions).await?;
        let begun = Instant::now();
        while delivered.load(Ordering::Relaxed) < run * events || database.pending(0).await? > 0 {
            if begun.elapsed() > PATIENCE {
                return Err(format!("{} of {} events came", delivered.load(Ordering::Relaxed), run * events).into());
            }
            sleep(Duration::from_millis(5)).await;
        }
        // Tidies up, and adds nothing.
        database.fill(0).await?;
        bytes.push(float(bed.log_position().await? - before) / float(events));
    }
    writer.close().await;
    outbox.shutdown().await;
    let first = bytes.remove(0);
    let spread = Spread::of(bytes);
    let note = format!(
        "from insert to gone and tidied up, {TRANSACTION} a transaction; the most of {} runs of {events} events after one of {first:.0}",
        spread.count
    );
    report.add(Figure::of_value(NAME, "B/event", spread.max, B::TARGETS.log_bytes).note(note));
    Ok(())
}

//! What a run costs PostgreSQL, by the server's own statistics.
//!
//! - Round trips: counted on the wire, from the first packet of each connection on.
//! - Row writes and commits: `pg_stat_database`, after all sessions have ended; read-only transactions count too.
//! - Log bytes: how far the insert position of the write-ahead log has moved. The events were inserted after the last
//!   checkpoint, so their pages were changed since, and no full pages are in it.

use std::sync::atomic::Ordering;

use sqlx::Row as _;

use super::{Bed, Database};
use crate::{
    Result,
    backend::{Backend as _, Counted, Database as _, Server as _, wire::Wire},
    rounds::float,
};

/// So many events stand in an outbox before writes are counted, so that its pages are there.
const BEFORE: usize = 100;

pub(super) async fn of(
    bed: &Bed,
    waiting: usize,
    events: usize,
    mut run: impl AsyncFnMut(&Database) -> Result<()>,
) -> Result<Counted> {
    let database = bed.empty().await?;
    database.fill(if waiting == 0 { BEFORE } else { waiting }).await?;
    bed.left_alone(&database.name).await?;
    let wire = Wire::to(bed.address()?).await?;
    let database = database.through(&wire)?;

    let before = statistics(bed, &database).await?;
    run(&database).await?;
    database.unwatch().await?;
    bed.left_alone(&database.name).await?;
    let after = statistics(bed, &database).await?;

    let each = |count: u64| float(count) / float(events);
    let asked = database.asked.load(Ordering::Relaxed);
    Ok(Counted {
        round_trips: Some(each(wire.turns())),
        row_writes: each(after.rows - before.rows),
        log_bytes: each(after.log - before.log),
        commits: each((after.commits - before.commits).saturating_sub(asked)),
    })
}

#[derive(Clone, Copy, Debug)]
struct Statistics {
    log: u64,
    commits: u64,
    rows: u64,
}

async fn statistics(bed: &Bed, database: &Database) -> Result<Statistics> {
    let log = bed.log_position().await?;
    let mut admin = bed.admin.lock().await;
    let row = sqlx::query(
        "select xact_commit, tup_inserted + tup_updated + tup_deleted from pg_stat_database where datname = $1",
    )
    .bind(&database.name)
    .fetch_one(&mut *admin)
    .await?;
    let count = |index: usize| -> Result<u64> { Ok(u64::try_from(row.try_get::<i64, _>(index)?)?) };
    Ok(Statistics { log, commits: count(0)?, rows: count(1)? })
}

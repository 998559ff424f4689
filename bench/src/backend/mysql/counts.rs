//! What a run costs MySQL or MariaDB, by the server's own counters. Nobody else may use the server meanwhile.
//!
//! - Round trips: counted on the wire, from the first packet of each connection on.
//! - Row writes: `Handler_write`, `Handler_update` and `Handler_delete`. (MySQL counts those on temporary tables as well.)
//! - Commits: `trx_rw_commits` of `innodb_metrics`, the transactions that wrote.
//! - Log bytes: how far the redo log's sequence number has moved.

use sqlx::{MySqlConnection, Row as _};

use super::{Bed, Database, run, status};
use crate::{
    Result,
    backend::{Backend as _, Counted, Database as _, wire::Wire},
    rounds::float,
};

/// Switches on what is off by default.
pub(super) async fn enable(admin: &mut MySqlConnection) -> Result<()> {
    run(admin, "set global innodb_monitor_enable = 'trx_rw_commits'".into()).await
}

pub(super) async fn of(
    bed: &Bed,
    waiting: usize,
    events: usize,
    mut run: impl AsyncFnMut(&Database) -> Result<()>,
) -> Result<Counted> {
    let database = bed.empty().await?;
    if waiting > 0 {
        database.fill(waiting).await?;
    }
    let wire = Wire::to(bed.address()?).await?;
    let database = database.through(&wire)?;
    let before = statistics(bed).await?;
    run(&database).await?;
    let after = statistics(bed).await?;
    let each = |count: u64| float(count) / float(events);
    Ok(Counted {
        round_trips: Some(each(wire.turns())),
        row_writes: each(after.rows - before.rows),
        log_bytes: each(after.log - before.log),
        commits: each(after.commits - before.commits),
    })
}

/// Bytes of the redo log so far: MariaDB's name for it, or MySQL's.
pub(super) async fn log_position(admin: &mut MySqlConnection) -> Result<u64> {
    match status(admin, "Innodb_lsn_current").await {
        Ok(position) => Ok(position),
        Err(_) => status(admin, "Innodb_redo_log_current_lsn").await,
    }
}

#[derive(Clone, Copy, Debug)]
struct Statistics {
    log: u64,
    commits: u64,
    rows: u64,
}

async fn statistics(bed: &Bed) -> Result<Statistics> {
    let mut admin = bed.admin.lock().await;
    let log = log_position(&mut admin).await?;
    let mut rows = 0;
    for name in ["Handler_write", "Handler_update", "Handler_delete"] {
        rows += status(&mut admin, name).await?;
    }
    let sql = "select cast(count as signed) from information_schema.innodb_metrics where name = 'trx_rw_commits'";
    let commits: i64 = sqlx::query(sql).fetch_one(&mut *admin).await?.try_get(0)?;
    Ok(Statistics { log, commits: u64::try_from(commits)?, rows })
}

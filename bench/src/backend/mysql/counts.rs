//! What a run costs MySQL or MariaDB, by the server's own counters. Nobody else may use the server meanwhile.
//!
//! - Round trips: counted on the wire, from the first packet of each connection on.
//! - Row writes: `dml_inserts`, `dml_updates` and `dml_deletes` of `innodb_metrics`.
//! - Commits: `trx_rw_commits`, the transactions that wrote.
//! - Log bytes: how far the redo log's sequence number has moved.

use sqlx::{MySqlConnection, Row as _};

use super::{Bed, Database, run, status};
use crate::{
    Result,
    backend::{Backend as _, Counted, Database as _, wire::Wire},
    rounds::float,
};

const COUNTERS: [&str; 4] = ["dml_inserts", "dml_updates", "dml_deletes", "trx_rw_commits"];

/// Switches on what is off by default.
pub(super) async fn enable(admin: &mut MySqlConnection) -> Result<()> {
    for counter in COUNTERS {
        run(admin, format!("set global innodb_monitor_enable = '{counter}'")).await?;
    }
    Ok(())
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

#[derive(Clone, Copy, Debug, Default)]
struct Statistics {
    log: u64,
    commits: u64,
    rows: u64,
}

async fn statistics(bed: &Bed) -> Result<Statistics> {
    let mut admin = bed.admin.lock().await;
    let mut statistics = Statistics { log: log_position(&mut admin).await?, ..Statistics::default() };
    let sql = "select name, cast(count as signed) from information_schema.innodb_metrics \
               where name in ('dml_inserts', 'dml_updates', 'dml_deletes', 'trx_rw_commits')";
    for row in sqlx::query(sql).fetch_all(&mut *admin).await? {
        let count = u64::try_from(row.try_get::<i64, _>(1)?)?;
        match row.try_get(0)? {
            "trx_rw_commits" => statistics.commits += count,
            _ => statistics.rows += count,
        }
    }
    Ok(statistics)
}

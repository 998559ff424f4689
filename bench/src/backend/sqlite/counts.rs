//! What a run costs SQLite: round trips, rows written and bytes of the log. Counted, not estimated,
//! in runs of their own that nobody times.

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use sqlx::{AssertSqlSafe, Connection as _, Row as _, SqliteConnection};
use tracing::{Event, Subscriber, level_filters::LevelFilter};
use tracing_subscriber::{
    Layer,
    filter::Targets,
    layer::{Context, SubscriberExt as _},
    util::SubscriberInitExt as _,
};

use super::{Bed, Database, empty_log};
use crate::{
    Result,
    backend::{Backend as _, Begins, Counted},
    rounds::float,
};

/// Statements that the driver has logged. Only databases that are opened for counting log any.
static STATEMENTS: AtomicU64 = AtomicU64::new(0);

/// Logs warnings to stderr, and counts statements.
pub(crate) fn install() {
    let warnings = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_filter(LevelFilter::WARN);
    let statements = Count.with_filter(Targets::new().with_target("sqlx::query", LevelFilter::DEBUG));
    tracing_subscriber::registry().with(warnings).with(statements).init();
}

/// Runs something twice on copies of the template, and counts what it does. The driver logs neither begin nor
/// commit, but the write-ahead log has the commits.
pub(super) async fn of(
    bed: &Bed,
    template: &Database,
    events: usize,
    begins: Begins,
    mut run: impl AsyncFnMut(&Database) -> Result<()>,
) -> Result<Counted> {
    let mut file = bed.copy(template).await?;
    let mut reader = pin_log(&file).await?;
    file.logs = true;
    let before = STATEMENTS.load(Ordering::Relaxed);
    run(&file).await?;
    let statements = STATEMENTS.load(Ordering::Relaxed) - before;
    let log = Log::read(&file.log())?;
    sqlx::query("rollback").execute(&mut reader).await?;
    reader.close().await?;

    let file = bed.copy(template).await?;
    watch_rows(&mut file.connect().await?).await?;
    run(&file).await?;
    let row = sqlx::query("select rows from bench_written").fetch_one(&mut file.connect().await?).await?;
    let rows: i64 = row.try_get(0)?;

    let around = if begins == Begins::Explicitly { 2 * log.commits } else { 0 };
    let each = |count: u64| float(count) / float(events);
    Ok(Counted {
        round_trips: Some(each(statements + around)),
        row_writes: each(u64::try_from(rows)?),
        log_bytes: each(log.bytes),
        commits: each(log.commits),
    })
}

/// Empties the log and begins to read: as long as the reader stays, the log only grows.
async fn pin_log(file: &Database) -> Result<SqliteConnection> {
    let mut reader = file.connect().await?;
    empty_log(&mut reader).await?;
    sqlx::query("begin").execute(&mut reader).await?;
    sqlx::query("select 1 from outbox_event limit 1").fetch_optional(&mut reader).await?;
    Ok(reader)
}

/// Counts the rows that are written by triggers on every table of the outbox.
async fn watch_rows(connection: &mut SqliteConnection) -> Result<()> {
    sqlx::query("create table bench_written (rows integer not null)").execute(&mut *connection).await?;
    sqlx::query("insert into bench_written values (0)").execute(&mut *connection).await?;
    let tables =
        sqlx::query("select name from sqlite_schema where type = 'table' and name like 'outbox!_%' escape '!'")
            .fetch_all(&mut *connection)
            .await?;
    for table in &tables {
        let table: &str = table.try_get(0)?;
        for change in ["insert", "update", "delete"] {
            let sql = format!(
                "create trigger bench_{table}_{change} after {change} on {table}
                 begin update bench_written set rows = rows + 1; end"
            );
            // Names from the schema of the outbox's own tables.
            sqlx::query(AssertSqlSafe(sql)).execute(&mut *connection).await?;
        }
    }
    Ok(())
}

/// What stands in a write-ahead log. See "The WAL File Format" of SQLite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Log {
    bytes: u64,
    commits: u64,
}

impl Log {
    fn read(path: &Path) -> Result<Self> {
        Self::parse(&fs::read(path)?)
    }

    fn parse(content: &[u8]) -> Result<Self> {
        let Some((header, mut frames)) = content.split_first_chunk::<32>() else {
            return Ok(Self::default());
        };
        let page = usize::try_from(number(header, 8))?;
        let salt = &header[16..24];
        let mut log = Self::default();
        while let Some((frame, rest)) = frames.split_first_chunk::<24>() {
            // What an earlier log left behind has another salt.
            if &frame[8..16] != salt || rest.len() < page {
                break;
            }
            log.bytes += u64::try_from(24 + page)?;
            log.commits += u64::from(number(frame, 4) != 0);
            frames = &rest[page..];
        }
        Ok(log)
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

struct Count;

impl<S: Subscriber> Layer<S> for Count {
    fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
        STATEMENTS.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_the_present_log_are_counted_and_leftovers_are_not() {
        let mut log = vec![0; 32];
        log[8..12].copy_from_slice(&512_u32.to_be_bytes());
        log[16] = 7;
        for (salt, size_after_commit) in [(7, 0_u32), (7, 3), (7, 4), (6, 5)] {
            let mut frame = [0; 24 + 512];
            frame[4..8].copy_from_slice(&size_after_commit.to_be_bytes());
            frame[8] = salt;
            log.extend(frame);
        }
        let expected = Log { bytes: 3 * 536, commits: 2 };
        assert_eq!(Log::parse(&log).unwrap(), expected);
        assert_eq!(Log::parse(&[]).unwrap(), Log::default());
    }
}

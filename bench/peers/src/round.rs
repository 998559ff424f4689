//! One round of one peer.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde::Serialize;
use sqlx::{Connection as _, PgConnection, Row as _};
use tokio::time::{sleep, timeout};

use crate::{Result, database::Database, tally::Tally};

/// How long a peer may go without any progress.
const PATIENCE: Duration = Duration::from_mins(1);

/// A library that is measured.
pub(crate) trait Peer: Sized {
    /// How it is set up, in words.
    const SETTINGS: &'static str;
    /// Selects how many events are not finished.
    const UNFINISHED: &'static str;

    /// Creates the tables of the library and queues events of [`PAYLOAD`](crate::peers::PAYLOAD) bytes.
    fn fill(url: &str, events: u32) -> impl Future<Output = Result<()>>;

    /// Connects and sets up the worker. This is not timed, and delivers nothing.
    fn open(url: &str, tally: Arc<Tally>) -> impl Future<Output = Result<Self>>;

    /// Runs the worker; may go on when there is nothing left to do, and is dropped then.
    fn run(self) -> impl Future<Output = Result<()>>;
}

/// The line of JSON. Fields and their meaning are a contract: see README.md.
#[derive(Debug, Serialize)]
pub(crate) struct Line {
    peer: &'static str,
    version: String,
    events: u32,
    seconds: f64,
    events_per_second: f64,
    wal_bytes_per_event: f64,
    commits_per_event: f64,
    row_writes_per_event: f64,
    settings: &'static str,
}

/// Measures a peer in a database of its own.
pub(crate) async fn measure<P: Peer>(
    peer: &'static str,
    version: String,
    url: &str,
    events: u32,
    limit: Duration,
) -> Result<Line> {
    let mut database = Database::create(url).await?;
    let line = timeout(limit, in_database::<P>(&mut database, peer, version, events)).await;
    database.drop().await?;
    line.map_err(|_| format!("it is not done after {limit:?}"))?
}

async fn in_database<P: Peer>(
    database: &mut Database,
    peer: &'static str,
    version: String,
    events: u32,
) -> Result<Line> {
    let url = database.url();
    P::fill(&url, events).await?;
    let mut session = database.connect().await?;
    // Otherwise whether autovacuum comes by is a matter of chance.
    sqlx::raw_sql("vacuum analyze").execute(&mut session).await?;
    session.close().await?;
    let before = database.counts().await?;

    let mut session = database.connect().await?;
    let tally = Arc::new(Tally::new(events));
    let worker = P::open(&url, tally.clone()).await?;
    let log_before = database.log_position().await?;
    let begun = Instant::now();
    let asked = tokio::select! {
        asked = finished::<P>(&tally, &mut session) => asked?,
        Err(error) = worker.run() => return Err(error),
    };
    let seconds = begun.elapsed().as_secs_f64();
    let log_after = database.log_position().await?;
    let after = database.counts().await?;

    let (left, delivered) = (unfinished::<P>(&mut database.connect().await?).await?, tally.delivered());
    if left > 0 || delivered != events {
        return Err(format!("{delivered} of {events} events were delivered, and {left} are not finished").into());
    }
    #[expect(clippy::cast_precision_loss, reason = "counts of a bench are far below 2^52")]
    let per_event = |count: i64| count as f64 / f64::from(events);
    Ok(Line {
        peer,
        version,
        events,
        seconds,
        events_per_second: f64::from(events) / seconds,
        wal_bytes_per_event: per_event(log_after - log_before),
        commits_per_event: per_event(after.commits - before.commits - asked),
        row_writes_per_event: per_event(after.row_writes - before.row_writes),
        settings: P::SETTINGS,
    })
}

/// Waits until every event is delivered and durably finished, and says how often it had to ask.
async fn finished<P: Peer>(tally: &Tally, session: &mut PgConnection) -> Result<i64> {
    let mut delivered = 0;
    while timeout(PATIENCE, tally.full()).await.is_err() {
        if tally.delivered() == delivered {
            return Err(format!("after {delivered} deliveries nothing was delivered for {PATIENCE:?}").into());
        }
        delivered = tally.delivered();
    }
    let full = Instant::now();
    let mut asked = 1;
    while unfinished::<P>(session).await? > 0 {
        if full.elapsed() > PATIENCE {
            return Err(format!("events that were delivered are not finished after {PATIENCE:?}").into());
        }
        sleep(Duration::from_millis(1)).await;
        asked += 1;
    }
    Ok(asked)
}

/// A statement that is one transaction, so that it can be told apart from the peer's own.
async fn unfinished<P: Peer>(session: &mut PgConnection) -> Result<i64> {
    Ok(sqlx::raw_sql(P::UNFINISHED).fetch_one(session).await?.try_get(0)?)
}

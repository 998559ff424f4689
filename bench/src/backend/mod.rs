//! What differs from database to database: a place for a run's databases, the limit, and how costs are counted.

pub(crate) mod mysql;
pub(crate) mod postgres;
pub(crate) mod sqlite;
mod wire;

use pillarbox::{
    OnSuccess,
    port::{Store, TransactStore},
};

use crate::{Result, report::Target};

/// The size of every payload.
pub(crate) const PAYLOAD: usize = 256;
/// The type of every event.
pub(crate) const EVENT_TYPE: &str = "Measured";
/// The content type of every payload.
pub(crate) const CONTENT_TYPE: &str = "application/octet-stream";
/// The limit drains in pages of these sizes; the faster counts.
pub(crate) const PAGES: [usize; 2] = [500, 2_000];

/// Where the databases of a run lie.
pub(crate) trait Backend: Sized {
    /// As the option and the figures name it.
    const NAME: &'static str;
    /// What is to be reached.
    const TARGETS: Targets;
    /// How the limit does it, in words that follow "the limit is a hand-written sqlx loop".
    const LIMIT: &'static str;
    type Database: Database;

    /// What is measured and where it lies, for the heading.
    fn place(&self) -> String;

    /// A database with an outbox in which nothing was ever written.
    async fn empty(&self) -> Result<Self::Database>;

    /// A copy, on the disk before it is used, and in the same state each time.
    async fn copy(&self, template: &Self::Database) -> Result<Self::Database>;

    /// Runs something, once or twice, on an outbox in which `waiting` events wait, and counts what it costs
    /// by the event. Nobody times such runs.
    async fn count(
        &self,
        waiting: usize,
        events: usize,
        begins: Begins,
        run: impl AsyncFnMut(&Self::Database) -> Result<()>,
    ) -> Result<Counted>;

    /// A database with so many events that wait.
    async fn filled(&self, events: usize) -> Result<Self::Database> {
        let database = self.empty().await?;
        database.fill(events).await?;
        Ok(database)
    }
}

/// A database that can be shared with other processes, so that benches of servers make sense.
pub(crate) trait Server: Backend {
    /// A transaction that is held open; it ends when this is dropped.
    type Held;

    /// Begins a transaction on this database, and leaves it open.
    async fn hold(&self, database: &Self::Database, hold: Hold) -> Result<Self::Held>;

    /// How many bytes were ever written to the log. Nobody else writes meanwhile.
    async fn log_position(&self) -> Result<u64>;
}

/// One database, gone after it is dropped.
pub(crate) trait Database: Sized {
    type Store: Store + TransactStore + Clone;
    type Writer: Writer;

    /// One that another process looks after.
    fn at(address: &str) -> Self;

    /// What `at` takes.
    fn address(&self) -> String;

    /// The store as a user opens it.
    async fn store(&self) -> Result<Self::Store>;

    /// Closes the application's connections.
    async fn close(store: &Self::Store);

    /// Appends so many events, whose numbers have no gaps, and leaves nothing to be tidied up.
    async fn fill(&self, events: usize) -> Result<()>;

    /// How many events still wait above a number. Its connection is opened at the first call, and left out of counts.
    async fn pending(&self, above: usize) -> Result<i64>;

    /// The lowest mark of all partitions.
    async fn mark(&self) -> Result<i64>;

    /// The limit of writing: transactions of so many events.
    async fn writer(&self, events: usize) -> Result<Self::Writer>;

    /// The limit of draining: finishes the events from 1 to `events` page by page; seconds.
    async fn drain(&self, events: usize, page: usize, finish: Finish) -> Result<f64>;
}

/// A hand-written loop that writes.
pub(crate) trait Writer {
    /// Writes so many transactions; seconds.
    async fn write(&mut self, transactions: usize) -> Result<f64>;

    async fn close(self) -> Result<()>;
}

/// What becomes of rows that are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    Keep,
    Delete,
}

impl Finish {
    pub(crate) const ALL: [Self; 2] = [Self::Keep, Self::Delete];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Keep => "drain_keep",
            Self::Delete => "drain_delete",
        }
    }

    pub(crate) fn on_success(self) -> OnSuccess {
        match self {
            Self::Keep => OnSuccess::Keep,
            Self::Delete => OnSuccess::Delete,
        }
    }
}

/// What a transaction that stays open has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// It has taken a snapshot.
    Snapshot,
    /// It has written a row of another table, and so has its id.
    Writer,
}

/// How a run begins its transactions, where the driver's log has neither begin nor commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begins {
    /// With a begin and a commit of their own.
    Explicitly,
    /// With the one statement that is the transaction.
    ByStatement,
}

/// Costs of one event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    /// Times that the database was asked and answered; none where nobody counted them.
    pub(crate) round_trips: Option<f64>,
    /// Rows inserted, updated or deleted in any table.
    pub(crate) row_writes: f64,
    /// Bytes appended to the write-ahead log.
    pub(crate) log_bytes: f64,
    /// Transactions: see the backend for which of them.
    pub(crate) commits: f64,
}

/// What is to be reached; nothing where a figure is only shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Targets {
    pub(crate) write_1: Option<Target>,
    pub(crate) write_100: Option<Target>,
    pub(crate) drain_keep: Option<Target>,
    pub(crate) drain_delete: Option<Target>,
    /// Of drain_delete.
    pub(crate) ordered_drain: Option<Target>,
    /// Of the rate of one node alone.
    pub(crate) more_nodes: Option<Target>,
    pub(crate) held_tx: Option<Target>,
    pub(crate) log_bytes: Option<Target>,
    pub(crate) hot_latency: Option<Target>,
    /// Milliseconds over the commit.
    pub(crate) remote_latency: Option<Target>,
    /// MiB.
    pub(crate) memory: Option<Target>,
    pub(crate) read_flat: Option<Target>,
    /// Times the fastest peer.
    pub(crate) peers: Option<Target>,
    /// Times the fastest peer that keeps an order.
    pub(crate) ordered_peers: Option<Target>,
}

impl Targets {
    pub(crate) const NONE: Self = Self {
        write_1: None,
        write_100: None,
        drain_keep: None,
        drain_delete: None,
        ordered_drain: None,
        more_nodes: None,
        held_tx: None,
        log_bytes: None,
        hot_latency: None,
        remote_latency: None,
        memory: None,
        read_flat: None,
        peers: None,
        ordered_peers: None,
    };

    pub(crate) fn of_drain(&self, finish: Finish) -> Option<Target> {
        match finish {
            Finish::Keep => self.drain_keep,
            Finish::Delete => self.drain_delete,
        }
    }
}

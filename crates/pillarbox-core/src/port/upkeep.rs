//! Keeping the tables in order.

use std::time::Duration;

use super::{BoxFuture, StoreError};
use crate::domain::{Lease, Seq};

/// Which rows a purge removes. Ages are by the database's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PurgeScope {
    /// DONE rows finished longer ago than `done`, DEAD ones longer ago than `dead` (`None`: never). A DEAD
    /// head that holds its key stays. Pending rows stay, whatever their age.
    Finished {
        /// How long DONE rows are kept.
        done: Duration,
        /// How long DEAD rows are kept.
        dead: Option<Duration>,
    },
    /// Every row inserted longer ago than this, delivered or not: for tables that are read by change data
    /// capture, where nothing is ever settled.
    ByAge(Duration),
}

/// Where the next batch of a purge begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PurgeCursor(pub Seq);

/// One batch of a purge.
#[derive(Clone, Copy, Debug)]
pub struct PurgeRequest<'a> {
    /// Which rows.
    pub scope: PurgeScope,
    /// How many at the most.
    pub batch: u32,
    /// Where the last batch ended; `None` begins a run.
    pub cursor: Option<PurgeCursor>,
    /// The purging node's lease, checked in the same transaction; `None` where nobody owns anything.
    pub lease: Option<&'a Lease>,
}

/// What a batch did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purged {
    /// So many rows are gone; the run goes on at `next`, or is over.
    Removed {
        /// How many.
        rows: u64,
        /// Where the next batch begins.
        next: Option<PurgeCursor>,
    },
    /// The lease is not in force: nothing was removed.
    Fenced,
}

/// The upkeep port.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store of an outbox",
    note = "open one by its URL, as in `SqliteStore::open(\"shop.db\")`, `PostgresStore::open(url)` or `AnyStore::open(url)`",
    note = "or on a pool of your own: `PostgresStore::from_pool(pool)`"
)]
pub trait UpkeepStore: Send + Sync {
    /// Brings the tables to this program's version. Safe when several processes do it at once, and when it
    /// is already done. Tables of a newer version are an error of kind `Schema`.
    fn migrate(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Checks that the tables are there and of this program's version.
    fn check(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Removes one batch. Scans a bounded number of rows, and none that are too young to go.
    fn purge<'a>(&'a self, request: PurgeRequest<'a>) -> BoxFuture<'a, Result<Purged, StoreError>>;
}

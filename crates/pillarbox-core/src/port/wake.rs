//! News from other processes.

use super::{BoxFuture, StoreError};
use crate::domain::PartitionSet;

/// Wake-ups between processes on one database. They are hints: they may come late, twice or not at all,
/// and polling is what correctness rests on.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store of an outbox",
    note = "open one by its URL, as in `SqliteStore::open(\"shop.db\")`, `PostgresStore::open(url)` or `AnyStore::open(url)`",
    note = "or on a pool of your own: `PostgresStore::from_pool(pool)`"
)]
pub trait WakeStore: Send + Sync {
    /// Whether [`hint`](Self::hint) does anything. Where every commit is news by itself it does not, and
    /// nobody is woken to call it.
    fn wants_hints(&self) -> bool {
        true
    }

    /// Tells the owners of these partitions in other processes that something was committed. Called outside
    /// any transaction, and coalesced by the caller.
    fn hint(&self, partitions: PartitionSet) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Waits until something may have been committed elsewhere. Pends for ever where the database has no
    /// way to tell. Dropping the future is safe.
    fn news(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Tells the nodes in other processes to look around: one has joined or is about to leave, or partitions have
    /// become free. Called rarely, and by who owns.
    fn hint_fleet(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async { Ok(()) })
    }

    /// Waits until another process has told so; [`news`](Self::news) is waited for meanwhile. Pends for ever where
    /// the database has no way to tell, and nodes look by themselves. Dropping the future is safe.
    fn fleet_news(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(std::future::pending())
    }
}

//! Inserting events.

use std::{ops::DerefMut, time::Duration};

use super::{BoxFuture, StoreError};
use crate::domain::{Event, EventId, Partition, Seq};

/// An event on its way into the table.
#[derive(Clone, Debug)]
pub struct NewRow {
    /// The event, checked.
    pub event: Event,
    /// Its partition: of its key, or of the writer's choice.
    pub partition: Partition,
}

/// A dedup key on its way into its table.
#[derive(Clone, Copy, Debug)]
pub struct NewKey<'a> {
    /// The key.
    pub key: &'a str,
    /// How long it stands.
    pub window: Duration,
    /// The event that is written under it.
    pub id: EventId,
}

/// Inserts events in a transaction `Tx` of the user's driver.
///
/// An adapter implements it once for each transaction type that can write to its database, and never for a
/// bare connection or pool: what is not a transaction does not compile.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't write events in a `{Tx}`",
    note = "pass the transaction of a driver that this store supports, not a connection or a pool: \
            an event must commit together with the data it tells of"
)]
pub trait WriteStore<Tx: ?Sized>: Send + Sync {
    /// Inserts the rows in status NEW, in one statement or a few, and returns their numbers in the order of
    /// `rows`. Numbers rise with the order. An event whose `available_at` or `deliver_after` is set gets
    /// its due time by the database's clock. Empty input touches nothing.
    ///
    /// After an error the transaction must be rolled back by its owner.
    fn insert<'a>(&'a self, tx: &'a mut Tx, rows: &'a [NewRow]) -> BoxFuture<'a, Result<Vec<Seq>, StoreError>>;

    /// Enters dedup keys, each of them once in `keys`, for as long as their windows last by the database's clock.
    /// Answers in the order of `keys`: `None` where the key was free or its window is over, else the event
    /// that has it. A key that another open transaction has entered is waited for; a rollback frees it.
    fn enter_keys<'a>(
        &'a self,
        tx: &'a mut Tx,
        keys: &'a [NewKey<'a>],
    ) -> BoxFuture<'a, Result<Vec<Option<EventId>>, StoreError>>;
}

/// Begins and ends transactions, for the outbox's own wrapper.
#[diagnostic::on_unimplemented(
    message = "`{Self}` begins no transactions",
    note = "write in a transaction of your own: `outbox.write(&mut tx, &event)`, and `confirm` the receipt after the commit"
)]
pub trait TransactStore: WriteStore<Self::Tx> {
    /// What `&mut *tx` gives: the driver's connection, for the user's own statements.
    type Connection: ?Sized + Send;
    /// The driver's transaction. Dropping it rolls back.
    type Tx: DerefMut<Target = Self::Connection> + Send + 'static;

    /// Begins a transaction fit for writing.
    fn begin(&self) -> BoxFuture<'_, Result<Self::Tx, StoreError>>;

    /// Commits. An error of kind `OutcomeUnknown` means that it may be in effect.
    fn commit(&self, tx: Self::Tx) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Rolls back.
    fn rollback(&self, tx: Self::Tx) -> BoxFuture<'_, Result<(), StoreError>>;
}

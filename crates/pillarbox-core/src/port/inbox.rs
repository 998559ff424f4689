//! Messages that a consumer has dealt with, entered in the transaction of its work.

use std::time::Duration;

use super::{BoxFuture, StoreError};

/// Enters messages in a transaction `Tx` of the user's driver.
///
/// An adapter implements it once for each transaction type that can write to its database, and never for a bare
/// connection or pool. The exam that every adapter passes is `pillarbox_testkit::inboxes`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't enter messages in a `{Tx}`",
    note = "pass the transaction of a driver that this inbox supports, not a connection or a pool: a message must be \
            entered together with the work it asks for"
)]
pub trait InboxStore<Tx: ?Sized>: Send + Sync {
    /// Enters messages of a consumer, no one of them twice in a call. Answers in their order: `true` where the message was
    /// not entered within the window. What another open transaction has entered is waited for; a rollback frees it.
    /// Empty input touches nothing.
    ///
    /// After an error the transaction must be rolled back by its owner.
    fn enter<'a>(
        &'a self,
        tx: &'a mut Tx,
        consumer: &'a str,
        messages: &'a [&'a str],
    ) -> BoxFuture<'a, Result<Vec<bool>, StoreError>>;
}

/// What an inbox needs beside: its tables, and room in them.
pub trait InboxUpkeep: Send + Sync + 'static {
    /// Brings the tables to this program's version. Safe when many processes call it at once.
    fn migrate(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Says how long messages must be remembered. Answers with the window that the tables are kept by, which is this one
    /// if it is the first to be said, and which nobody changes afterwards: what was entered by another arithmetic would
    /// be forgotten too early.
    fn agree(&self, window: Duration) -> BoxFuture<'_, Result<Duration, StoreError>>;

    /// Empties the bucket that is used next, if all that is in it is older than the window and nobody has done so yet. Says
    /// whether it did. To be called more often than once a bucket.
    fn rotate(&self) -> BoxFuture<'_, Result<bool, StoreError>>;
}

//! For writers on other drivers: what an insert says and binds, whatever driver runs it.
//!
//! A driver's crate wraps the driver's transaction in a type of its own and implements [`InTransaction`] for it: two
//! ways to run a statement, whose texts and values come from here. [`SqliteStore`](crate::SqliteStore) then writes
//! events with it. `sqlx` goes the same way.
//!
//! | statement | values | answer |
//! |---|---|---|
//! | insert of some rows | each row's columns, row after row | the number of the last |
//! | entering of dedup keys | a list | those that were entered, each with its event |
//! | dedup keys that stand | a list | each with its event |
//!
//! All rows of an insert stand in its text, so there are texts for some numbers of rows, and none has more than 1,536
//! values.

use std::{borrow::Cow, error::Error, future::Future};

use pillarbox_core::port::{StoreError, StoreErrorKind};
use sqlx::SqlStr;

use crate::error;

/// A transaction of a driver, as far as writing events needs it.
///
/// Implement it for a type that can't be had outside of a transaction, or that asks the driver before each query and
/// fails at once if there is none: an event must commit together with the data it tells of. The transaction must be
/// on the outbox's file, which has one writer at a time: one that begins with `begin immediate` waits for its turn as
/// long as the connection's busy timeout says, and one that begins otherwise, and reads before it writes, may fail in
/// the middle.
///
/// Errors are made by [`refused`], [`broken`] and [`misunderstood`].
#[diagnostic::on_unimplemented(
    message = "events can't be written in a `{Self}`",
    note = "pass the transaction of a driver that this store supports, not a connection or a pool: \
            an event must commit together with the data it tells of"
)]
pub trait InTransaction: Send {
    /// Runs an insert; returns the number of its last row, which is what `last_insert_rowid()` says after it.
    fn insert(
        &mut self,
        statement: Statement<'_>,
        values: Vec<Value<'_>>,
    ) -> impl Future<Output = Result<i64, StoreError>> + Send;

    /// Runs the statement; its two columns are `dedup_key` and `event_id`, both `text`.
    fn pairs(
        &mut self,
        statement: Statement<'_>,
        values: Vec<Value<'_>>,
    ) -> impl Future<Output = Result<Vec<(String, String)>, StoreError>> + Send;
}

/// A statement with a `?` for each value and no other, the same for the life of the store: it may be prepared and kept.
#[derive(Clone, Copy, Debug)]
pub struct Statement<'a>(pub(crate) &'a SqlStr);

impl<'a> Statement<'a> {
    /// The text.
    pub fn as_str(self) -> &'a str {
        self.0.as_str()
    }

    pub(crate) fn sql(self) -> SqlStr {
        self.0.clone()
    }
}

/// A value to bind. `None` is null.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the types")]
pub enum Value<'a> {
    Integer(Option<i64>),
    Text(Option<Cow<'a, str>>),
    Blob(Option<&'a [u8]>),
}

/// SQLite refused a statement, with this result code, be it extended or not, and message.
pub fn refused(code: u32, message: &str, source: impl Into<Box<dyn Error + Send + Sync>>) -> StoreError {
    let (kind, words) = error::of_code(code, message);
    StoreError::new(kind, words).caused_by(source)
}

/// The connection broke, or could not be had.
pub fn broken(source: impl Into<Box<dyn Error + Send + Sync>>) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, error::BROKEN).caused_by(source)
}

/// The driver could not make sense of the answer, or of a value.
pub fn misunderstood(source: impl Into<Box<dyn Error + Send + Sync>>) -> StoreError {
    StoreError::new(StoreErrorKind::Rejected, error::MISUNDERSTOOD).caused_by(source)
}

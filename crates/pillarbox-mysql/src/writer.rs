//! For writers on other drivers: what an insert says and binds, whatever driver runs it.
//!
//! A driver's crate wraps the driver's transaction in a type of its own and implements [`InTransaction`] for it: three
//! ways to run a statement, whose texts and values come from here. [`MySqlStore`](crate::MySqlStore) then writes
//! events with it. `sqlx` goes the same way.
//!
//! | statement | values | answer |
//! |---|---|---|
//! | insert of some rows | each row's columns, row after row | the number of the first |
//! | entering of dedup keys | a number that names the call, and a list | none |
//! | whose a dedup key is | the key, and that number | an event's id, or nothing |
//! | a setting of the server | none | its number, as text |
//!
//! All rows of an insert stand in its text, so there are texts for some numbers of rows, and none has more than 1,792
//! values.

use std::{borrow::Cow, error::Error, future::Future};

use pillarbox_core::port::{StoreError, StoreErrorKind};
use sqlx::SqlStr;

use crate::error;

/// A transaction of a driver, as far as writing events needs it.
///
/// Implement it for a type that can't be had outside of a transaction, or that asks the driver before each query and
/// fails at once if there is none: an event must commit together with the data it tells of. The transaction must be
/// on the outbox's server, and on a connection whose database is the outbox's, unless a schema was named to the store.
///
/// Errors are made by [`refused`], [`broken`] and [`misunderstood`].
#[diagnostic::on_unimplemented(
    message = "events can't be written in a `{Self}`",
    note = "pass the transaction of a driver that this store supports, not a connection or a pool: \
            an event must commit together with the data it tells of"
)]
pub trait InTransaction: Send {
    /// Runs an insert; returns the number that the server gave to its first row, which is what `last_insert_id()` says
    /// after it.
    fn insert(
        &mut self,
        statement: Statement<'_>,
        values: Vec<Value<'_>>,
    ) -> impl Future<Output = Result<i64, StoreError>> + Send;

    /// Runs a statement that answers nothing.
    fn execute(
        &mut self,
        statement: Statement<'_>,
        values: Vec<Value<'_>>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Runs a statement; its one column is `answer`, a `varchar`, and it has one row or none.
    fn text(
        &mut self,
        statement: Statement<'_>,
        values: Vec<Value<'_>>,
    ) -> impl Future<Output = Result<Option<String>, StoreError>> + Send;
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
    BigInt(Option<i64>),
    Text(Option<Cow<'a, str>>),
    Blob(Option<&'a [u8]>),
}

/// The server refused a statement, with this number.
pub fn refused(number: u16, source: impl Into<Box<dyn Error + Send + Sync>>) -> StoreError {
    let (kind, words) = error::of_number(number);
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

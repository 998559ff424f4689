//! What SQLite's errors mean to the caller.

use pillarbox_core::port::{StoreError, StoreErrorKind};

/// An error of a statement, a begin or a connect.
pub(crate) fn of(error: sqlx::Error) -> StoreError {
    let (kind, message) = judge(&error);
    StoreError::new(kind, message).caused_by(error)
}

/// An error of a commit: what broke in the middle of it may have left it in effect.
pub(crate) fn of_commit(error: sqlx::Error) -> StoreError {
    let (kind, message) = match &error {
        sqlx::Error::WorkerCrashed => (StoreErrorKind::OutcomeUnknown, "the connection broke during the commit"),
        sqlx::Error::Database(database) if primary(&**database) == Some(IOERR) => (
            StoreErrorKind::OutcomeUnknown,
            "the disk failed during the commit: check the disk, and whether the transaction is in effect",
        ),
        _ => judge(&error),
    };
    StoreError::new(kind, message).caused_by(error)
}

/// A row that the table does not take, because of what it holds or of another row: the statement is undone.
pub(crate) fn is_constraint(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| primary(error) == Some(CONSTRAINT))
}

/// Stored data that this program can't have written.
pub(crate) fn unreadable(what: impl std::fmt::Display) -> StoreError {
    StoreError::new(
        StoreErrorKind::Rejected,
        format!("the outbox's own tables hold what this program did not write: {what}"),
    )
}

const ERROR: u32 = 1;
const BUSY: u32 = 5;
const LOCKED: u32 = 6;
const NOMEM: u32 = 7;
const READONLY: u32 = 8;
const INTERRUPT: u32 = 9;
const IOERR: u32 = 10;
const CORRUPT: u32 = 11;
const FULL: u32 = 13;
const CANTOPEN: u32 = 14;
const SCHEMA: u32 = 17;
const CONSTRAINT: u32 = 19;
const NOTADB: u32 = 26;
const BUSY_SNAPSHOT: u32 = 517;

pub(crate) const BROKEN: &str = "the connection to the database broke";
pub(crate) const MISUNDERSTOOD: &str = "the database's answer can't be understood";

/// What a result code of SQLite's means, be it extended or not.
pub(crate) fn of_code(code: u32, message: &str) -> (StoreErrorKind, &'static str) {
    use StoreErrorKind::{Conflict, Rejected, Schema, Unavailable};

    match (code, primary_of(code)) {
        (BUSY_SNAPSHOT, _) => (
            Conflict,
            "another transaction wrote since this one began to read: run it again, or begin it with `begin immediate`",
        ),
        (_, BUSY | LOCKED) => (
            Unavailable,
            "the database is busy: another connection held the write lock for longer than the busy timeout",
        ),
        (_, FULL) => (Rejected, "the disk is full, or the database is at its size limit: make room"),
        (_, CORRUPT | NOTADB) => (Rejected, "the file is damaged or is no SQLite database: restore it from a backup"),
        (_, READONLY) => (Rejected, "the database is read-only: make its file and its folder writable"),
        (_, CANTOPEN) => {
            (Unavailable, "the database file can't be opened: check its path, its folder and the rights on them")
        }
        (_, IOERR | NOMEM | INTERRUPT | SCHEMA) => (Unavailable, "SQLite could not finish the statement"),
        (_, ERROR) if missing(message) => (
            Schema,
            "tables of the outbox, or of the inbox, are missing or of another version: run the migrations (`pillarbox migrate`, \
             and with --inbox for those of an inbox)",
        ),
        _ => (Rejected, "SQLite refused the statement"),
    }
}

fn judge(error: &sqlx::Error) -> (StoreErrorKind, &'static str) {
    use StoreErrorKind::{Rejected, Unavailable};

    match error {
        sqlx::Error::Database(database) => of_code(extended(&**database).unwrap_or_default(), database.message()),
        sqlx::Error::PoolTimedOut => {
            (Unavailable, "no free connection in the write pool: finish transactions sooner, or make the pool larger")
        }
        sqlx::Error::PoolClosed => (Rejected, "the write pool is closed"),
        sqlx::Error::WorkerCrashed
        | sqlx::Error::Io(_)
        | sqlx::Error::BeginFailed
        | sqlx::Error::InvalidSavePointStatement => (Unavailable, BROKEN),
        sqlx::Error::Configuration(_) => {
            (Rejected, "the database URL can't be understood: use `sqlite:path` or a path")
        }
        _ => (Rejected, MISUNDERSTOOD),
    }
}

fn missing(message: &str) -> bool {
    ["no such table", "no such column", "has no column", "no such index"].iter().any(|words| message.contains(words))
}

fn extended(error: &dyn sqlx::error::DatabaseError) -> Option<u32> {
    error.code()?.parse().ok()
}

fn primary(error: &dyn sqlx::error::DatabaseError) -> Option<u32> {
    extended(error).map(primary_of)
}

fn primary_of(code: u32) -> u32 {
    code & 0xff
}

//! What the server's errors mean to the caller.

use std::io;

use pillarbox_core::port::{StoreError, StoreErrorKind};
use sqlx::mysql::MySqlDatabaseError;

/// An error of a statement, a begin or a connect.
pub(crate) fn of(error: sqlx::Error) -> StoreError {
    let (kind, message) = judge(&error);
    StoreError::new(kind, message).caused_by(error)
}

/// An error of a connect, where what is missing is no table.
pub(crate) fn of_connect(error: sqlx::Error) -> StoreError {
    let message = match number(&error) {
        Some(NO_DATABASE) => "there is no such database: create it, or correct the database URL",
        // Who may not use a database is not told whether it is there.
        Some(NO_ACCESS) => {
            "there is no such database, or the user has no right to it: create it and grant the right, or correct the \
             database URL"
        }
        _ => return of(error),
    };
    StoreError::new(StoreErrorKind::Rejected, message).caused_by(error)
}

/// Whether the connection is lost.
pub(crate) fn is_lost(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(_) => number(error).is_some_and(|number| LOST.contains(&number)),
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => true,
        _ => false,
    }
}

/// An error of a commit: what broke in the middle of it may have left it in effect.
pub(crate) fn of_commit(error: sqlx::Error) -> StoreError {
    if is_lost(&error) {
        let message = "the connection broke during the commit: it may be in effect or not";
        return StoreError::new(StoreErrorKind::OutcomeUnknown, message).caused_by(error);
    }
    if number(&error) == Some(NO_SAVEPOINT) {
        // What came after the end of the transaction was committed one by one.
        let message = "the transaction was ended before its commit, by a deadlock whose error was passed over or by a \
                       statement that commits by itself: see what of it is in effect, and pass over no error of a statement";
        return StoreError::new(StoreErrorKind::OutcomeUnknown, message).caused_by(error);
    }
    of(error)
}

/// Stored data that this program can't have written.
pub(crate) fn unreadable(what: impl std::fmt::Display) -> StoreError {
    StoreError::new(
        StoreErrorKind::Rejected,
        format!("the outbox's own tables hold what this program did not write: {what}"),
    )
}

/// The server's number of an error.
pub(crate) fn number(error: &sqlx::Error) -> Option<u16> {
    error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number)
}

pub(crate) const DUPLICATE: u16 = 1062;
/// Of a release, when the transaction has ended.
const NO_SAVEPOINT: u16 = 1305;
const NO_DATABASE: u16 = 1049;
const NO_ACCESS: u16 = 1044;
const LOCK_TIMEOUT: u16 = 1205;
const DEADLOCK: u16 = 1213;
/// A record has changed since it was read (MariaDB, where snapshots are strict).
const CHANGED: u16 = 1020;
/// What was asked for needs a right that the user does not have.
pub(crate) const DENIED: [u16; 7] = [1044, 1142, 1143, 1227, 1370, UNSAFE_FUNCTION, BINARY_LOG];
/// Of a function, where the server writes a binary log.
pub(crate) const UNSAFE_FUNCTION: u16 = 1418;
pub(crate) const BINARY_LOG: u16 = 1419;
/// A function of this name is there.
pub(crate) const FUNCTION_THERE: u16 = 1304;
/// The server goes down, or has ended this connection.
const LOST: [u16; 9] = [1053, 1077, 1079, 1080, 1152, 1158, 1159, 1160, 1161];
/// The server has no room for another connection, or no memory or disk just now, or a statement was ended.
const BUSY: [u16; 10] = [1021, 1037, 1040, 1041, 1129, 1203, 1226, 1317, 1969, 3024];
/// The server takes no writes: a replica, or one that is about to change its role.
const READ_ONLY: [u16; 4] = [1290, 1792, 1836, 3032];
pub(crate) const NO_COLUMN: u16 = 1054;
pub(crate) const NO_TABLE: u16 = 1146;
/// No such table, column, index or function.
const MISSING: [u16; 6] = [1051, NO_COLUMN, NO_TABLE, 1176, 1305, 1412];
const LOGIN: [u16; 4] = [1045, 1698, 1251, 3118];

pub(crate) const BROKEN: &str = "the connection to the server broke";
pub(crate) const MISUNDERSTOOD: &str = "the server's answer can't be understood";

/// What a number of the server's means.
pub(crate) fn of_number(number: u16) -> (StoreErrorKind, &'static str) {
    use StoreErrorKind::{Conflict, Rejected, Schema, Unavailable};

    match number {
        DEADLOCK | CHANGED => (Conflict, "the transaction lost against another one: run it again"),
        LOCK_TIMEOUT => (Conflict, "another transaction held a lock for too long: run it again"),
        number if LOST.contains(&number) => (Unavailable, "the server has ended the connection"),
        number if BUSY.contains(&number) => (Unavailable, "the server is busy, or has ended the statement"),
        number if READ_ONLY.contains(&number) => {
            (Unavailable, "the server is read-only: connect to the one that takes writes")
        }
        number if MISSING.contains(&number) => (
            Schema,
            "tables of the outbox, or of the inbox, are missing or of another version: run the migrations (`pillarbox migrate`, \
             and with --inbox for those of an inbox)",
        ),
        NO_DATABASE => (Rejected, "there is no such database: create it, or correct the database URL, or the schema"),
        number if LOGIN.contains(&number) => (Rejected, "the server refuses the user or the password"),
        number if DENIED.contains(&number) => (Rejected, "the user lacks a right that the statement needs"),
        _ => (Rejected, "the server refused the statement"),
    }
}

fn judge(error: &sqlx::Error) -> (StoreErrorKind, &'static str) {
    use StoreErrorKind::{Rejected, Unavailable};

    match error {
        sqlx::Error::Database(_) => of_number(number(error).unwrap_or_default()),
        // The driver's pool waits for a server that refuses connections as it does for a free one.
        sqlx::Error::PoolTimedOut => (
            Unavailable,
            "no connection from the write pool in time: see that the server runs, finish transactions sooner, or make \
             the pool larger",
        ),
        sqlx::Error::PoolClosed => (Rejected, "the write pool is closed"),
        sqlx::Error::Io(error) => of_io(error.kind()),
        sqlx::Error::Protocol(_)
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed
        | sqlx::Error::InvalidSavePointStatement => (Unavailable, BROKEN),
        sqlx::Error::Tls(_) => {
            (Rejected, "no encrypted connection could be made: check `ssl-mode` and `ssl-ca` in the database URL")
        }
        // Of a connect: what can't be read of a URL is told when it is read.
        sqlx::Error::Configuration(_) => (
            Rejected,
            "the server wants another connection than the database URL describes: a login by `caching_sha2_password` \
             needs TLS (`ssl-mode=REQUIRED`), and a certificate needs its key",
        ),
        _ => (Rejected, MISUNDERSTOOD),
    }
}

const UNREACHABLE: &str = "the server can't be reached: check that it runs, and host and port in the database URL";

fn of_io(kind: io::ErrorKind) -> (StoreErrorKind, &'static str) {
    match kind {
        // That is how the driver tells what went wrong in TLS once the server has agreed to it.
        io::ErrorKind::InvalidData => (
            StoreErrorKind::Rejected,
            "the server's certificate is not trusted: check `ssl-mode` and `ssl-ca` in the database URL",
        ),
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => (
            StoreErrorKind::Unavailable,
            "a file that the database URL names can't be opened: the server's socket, or a certificate",
        ),
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::NotConnected
        | io::ErrorKind::TimedOut
        | io::ErrorKind::WriteZero => (StoreErrorKind::Unavailable, BROKEN),
        // A refusal, or a name that nobody knows, for which there is no kind.
        _ => (StoreErrorKind::Unavailable, UNREACHABLE),
    }
}

//! What PostgreSQL's errors mean to the caller.

use std::io;

use pillarbox_core::port::{StoreError, StoreErrorKind};

use crate::tables::Names;

pub(crate) const BROKEN: &str = "the connection to the database broke";
const READ_ONLY: &str = "the database only reads: the server is a standby, or the transaction is set to read only";
pub(crate) const MISUNDERSTOOD: &str = "the database's answer can't be understood";

/// An error of a statement, a begin or a connect.
pub(crate) fn of(error: sqlx::Error) -> StoreError {
    let (kind, message) = judge(&error);
    StoreError::new(kind, message).caused_by(error)
}

/// An error of a commit: what broke in the middle of it may have left it in effect.
pub(crate) fn of_commit(error: sqlx::Error) -> StoreError {
    let (kind, message) = judge(&error);
    if kind == StoreErrorKind::Unavailable || matches!(error, sqlx::Error::Io(_)) {
        let message = "the connection broke during the commit: it may be in effect";
        return StoreError::new(StoreErrorKind::OutcomeUnknown, message).caused_by(error);
    }
    StoreError::new(kind, message).caused_by(error)
}

/// An error of a migration.
pub(crate) fn of_migration(error: sqlx::Error, names: &Names) -> StoreError {
    let state = error.as_database_error().and_then(sqlx::error::DatabaseError::code).unwrap_or_default();
    let found = error.as_database_error().and_then(|error| names.ours(error.message()));
    let words = match &*state {
        "42P07" | "42710" => Some(foreign("table, view or index", found)),
        "42723" => Some(foreign("function", found)),
        // Of the table of versions, which is asked before anything else.
        "42703" | "42804" | "42883" | "22P02" if found.is_none() => Some(foreign("table", Some(&names.fill("{schema}")))),
        "3F000" => Some(
            "no schema of the search path is there: create one, or name the schema of the tables (Options::schema, \
             `--schema`)"
                .into(),
        ),
        "42501" if found.is_some() => Some(
            "the tables that are there belong to another role, and only that one may bring them up to date: migrate as it, or as \
             a member of it; it may run the text of `pillarbox migrate --print`"
                .into(),
        ),
        "42501" => Some(
            "the role may not make tables there: grant it CREATE on the schema, or on the database where the schema is \
             missing; or let a role that may run the text of `pillarbox migrate --print`"
                .into(),
        ),
        _ => None,
    };
    match words {
        Some(words) => StoreError::new(StoreErrorKind::Rejected, words).caused_by(error),
        None => of(error),
    }
}

fn foreign(what: &str, name: Option<&str>) -> String {
    let name = name.unwrap_or("of a name that is needed");
    format!("a {what} {name} is there that Pillarbox did not make: choose another prefix, or another schema")
}

/// Stored data that this program can't have written.
pub(crate) fn unreadable(what: impl std::fmt::Display) -> StoreError {
    StoreError::new(
        StoreErrorKind::Rejected,
        format!("the outbox's own tables hold what this program did not write: {what}"),
    )
}

/// Whether the connection is lost.
pub(crate) fn is_lost(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(database) => {
            let state = database.code().unwrap_or_default();
            state.starts_with("08") || ["57P01", "57P02", "57P05", "25P03"].contains(&&*state)
        }
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => true,
        _ => false,
    }
}

/// Whether a unique index refused a row.
pub(crate) fn is_duplicate(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(sqlx::error::DatabaseError::is_unique_violation)
}

fn judge(error: &sqlx::Error) -> (StoreErrorKind, &'static str) {
    use StoreErrorKind::{Rejected, Unavailable};

    match error {
        sqlx::Error::Database(database) => of_state(database.code().as_deref().unwrap_or_default(), database.message()),
        // The driver's pool waits for a server that refuses connections as it does for a free one.
        sqlx::Error::PoolTimedOut => (
            Unavailable,
            "no connection from the pool in time: see that the server runs, finish transactions sooner, or make the \
             pool larger",
        ),
        sqlx::Error::PoolClosed => (Rejected, "the pool is closed"),
        sqlx::Error::Io(error) => of_io(error.kind()),
        sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed
        | sqlx::Error::Protocol(_)
        | sqlx::Error::InvalidSavePointStatement => (Unavailable, BROKEN),
        sqlx::Error::Tls(_) => {
            (Rejected, "no TLS connection could be made: check `sslmode` and `sslrootcert` in the database URL")
        }
        sqlx::Error::Configuration(_) => (
            Rejected,
            "the database URL can't be understood: use `postgres://user:password@host:port/database?sslmode=...`",
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
            "the server's certificate is not trusted: check `sslmode` and `sslrootcert` in the database URL",
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

/// By SQLSTATE: its first two characters are the class.
pub(crate) fn of_state(state: &str, message: &str) -> (StoreErrorKind, &'static str) {
    use StoreErrorKind::{Conflict, Rejected, Schema, Unavailable};

    match (state.get(..2).unwrap_or_default(), state) {
        (_, "40P01") => {
            (Conflict, "the transaction was in a deadlock with another one and is rolled back: run it again")
        }
        ("40", _) => (Conflict, "the transaction lost against another one and is rolled back: run it again"),
        (_, "55P03") => (Conflict, "another transaction held a lock for longer than the lock timeout: run it again"),
        (_, "25P02") => (
            Rejected,
            "an earlier statement of the transaction failed, so all of it is rolled back: look at that error",
        ),
        (_, "25006") => (Unavailable, READ_ONLY),
        // Of a standby, to a transaction that says that it writes.
        (_, "0A000") if message.contains("during recovery") => (Unavailable, READ_ONLY),
        (_, "25P03" | "57P05") => (Unavailable, "the server ended the session, which was idle for too long"),
        (_, "57014") => (Unavailable, "the statement was cancelled, by its timeout or by a person"),
        ("08" | "57", _) => (Unavailable, "the server ended the connection or accepts none now"),
        (_, "53300") => {
            (Unavailable, "the server has no connection left: raise max_connections, or make pools smaller")
        }
        ("53", _) => (Unavailable, "the server is out of disk, memory or the like: make room"),
        ("26", _) | (_, "42P05") => (
            Rejected,
            "a prepared statement was lost between two calls, as behind a pooler in transaction mode: if there is one, \
             say so with Options::behind_pooler or `pillarbox_pooler=transaction` in the database URL",
        ),
        // After a migration by another process; a new connection plans anew.
        (_, "0A000") if message.contains("cached plan") => {
            (Unavailable, "the tables changed under a prepared statement")
        }
        (_, "42P01" | "42703" | "42883" | "3F000") => (
            Schema,
            "tables of the outbox, or of the inbox, are missing or of another version: run the migrations (`pillarbox migrate`, \
                 and with --inbox for those of an inbox)",
        ),
        ("28", _) => (Rejected, "the server refused the login: check user, password and pg_hba.conf"),
        (_, "3D000") => (Rejected, "there is no such database: create it, or correct the database URL"),
        (_, "42501") => (Rejected, "the role lacks a privilege on the outbox's tables: grant it"),
        _ => (Rejected, "PostgreSQL refused the statement"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_told_apart() {
        use StoreErrorKind::{Conflict, Rejected, Schema, Unavailable};

        for (state, kind) in [
            ("40P01", Conflict),
            ("40001", Conflict),
            ("55P03", Conflict),
            ("57P01", Unavailable),
            ("08006", Unavailable),
            ("53300", Unavailable),
            ("57014", Unavailable),
            ("25006", Unavailable),
            ("42P01", Schema),
            ("3F000", Schema),
            ("23505", Rejected),
            ("28P01", Rejected),
            ("25P02", Rejected),
            ("26000", Rejected),
            ("", Rejected),
        ] {
            assert_eq!(of_state(state, "").0, kind, "{state}");
        }
        assert_eq!(of_state("0A000", "cached plan must not change result type").0, Unavailable);
        assert_eq!(of_state("0A000", "cannot set transaction read-write mode during recovery").0, Unavailable);
        assert!(of_state("26000", "").1.contains("pillarbox_pooler=transaction"));
    }

    #[test]
    fn a_connection_that_breaks_during_the_commit_leaves_its_outcome_unknown() {
        let broken = || sqlx::Error::Io(io::ErrorKind::UnexpectedEof.into());
        assert_eq!(of(broken()).kind(), StoreErrorKind::Unavailable);
        assert_eq!(of_commit(broken()).kind(), StoreErrorKind::OutcomeUnknown);
        let garbled = sqlx::Error::Io(io::ErrorKind::InvalidData.into());
        assert_eq!(of_commit(garbled).kind(), StoreErrorKind::OutcomeUnknown);
    }
}

//! What diesel's errors mean to the caller.

use diesel::result::{DatabaseErrorKind, Error};
use pillarbox_core::port::{StoreError, StoreErrorKind};
use pillarbox_postgres::writer;

pub(crate) fn no_transaction() -> StoreError {
    StoreError::new(
        StoreErrorKind::Rejected,
        "the connection is in no transaction: write events in `pillarbox_diesel::transaction` or in \
         `connection.transaction`, so that they commit together with the data they tell of",
    )
}

pub(crate) fn of(error: Error) -> StoreError {
    match &error {
        Error::DatabaseError(DatabaseErrorKind::UnableToSendCommand | DatabaseErrorKind::ClosedConnection, _)
        | Error::BrokenTransactionManager => writer::broken(error),
        Error::DatabaseError(kind, details) => {
            let message = details.message().to_owned();
            writer::refused(state(*kind, &message), &message, error)
        }
        _ => writer::misunderstood(error),
    }
}

/// Diesel keeps a kind instead of the SQLSTATE. Where it has none the words decide, as far as they are English.
fn state(kind: DatabaseErrorKind, message: &str) -> &'static str {
    match kind {
        DatabaseErrorKind::UniqueViolation => "23505",
        DatabaseErrorKind::SerializationFailure => "40001",
        DatabaseErrorKind::ReadOnlyTransaction => "25006",
        _ if message.starts_with("deadlock detected") => "40P01",
        _ if message.starts_with("canceling statement due to lock timeout") => "55P03",
        _ if message.starts_with("current transaction is aborted") => "25P02",
        _ if message.starts_with("relation ") && message.ends_with(" does not exist") => "42P01",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadlock_is_known_by_its_words() {
        let kind_of = |kind, words: &str| of(Error::DatabaseError(kind, Box::new(words.to_owned()))).kind();
        for (kind, words, expected) in [
            (DatabaseErrorKind::SerializationFailure, "could not serialize access", StoreErrorKind::Conflict),
            (DatabaseErrorKind::Unknown, "deadlock detected", StoreErrorKind::Conflict),
            (DatabaseErrorKind::UniqueViolation, "duplicate key", StoreErrorKind::Rejected),
            (DatabaseErrorKind::Unknown, "relation \"outbox_event\" does not exist", StoreErrorKind::Schema),
            (DatabaseErrorKind::UnableToSendCommand, "connection closed", StoreErrorKind::Unavailable),
        ] {
            assert_eq!(kind_of(kind, words), expected, "{words}");
        }
    }
}

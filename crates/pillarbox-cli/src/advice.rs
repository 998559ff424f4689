//! What to do about an error of a database, where its own words don't say it.

use std::error::Error as StdError;

use pillarbox::{Kind, StoreError, StoreErrorKind};

use crate::error::Error;

/// Adds the error as the cause, and what to do about it if its words leave that open.
pub(crate) fn caused(failed: Error, error: StoreError, kind: Kind) -> Error {
    let advice = of(&error, kind);
    let failed = failed.caused_by(error);
    match advice {
        Some(advice) => failed.advice(advice),
        None => failed,
    }
}

fn of(error: &StoreError, kind: Kind) -> Option<&'static str> {
    match error.kind() {
        StoreErrorKind::Schema => Some("pillarbox migrate --db URL, unless the tables are newer than this program"),
        StoreErrorKind::Rejected if login_refused(error, kind) => Some("look at name and password in the URL"),
        StoreErrorKind::Unavailable if kind == Kind::Sqlite => cannot_open(error)
            .then_some("look whether the file is there, and whether you may write to it and its folder"),
        // A server that answers says what it lacks.
        StoreErrorKind::Unavailable if state(error).is_none() => {
            Some("look whether the server runs, and whether host and port in the URL are right")
        }
        // What was refused, a name or a setting, is named by the error, with what may stand in its place.
        _ => None,
    }
}

/// Whether the server knows the user or his password not.
fn login_refused(error: &StoreError, kind: Kind) -> bool {
    kind != Kind::Sqlite && state(error).is_some_and(|state| state.starts_with("28"))
}

/// Whether the server knows the user, and does not let him make tables.
pub(crate) fn not_allowed(error: &StoreError, kind: Kind) -> bool {
    let state = state(error);
    match kind {
        Kind::Postgres => state.as_deref() == Some("42501"),
        // What is no statement at all has this one as well, and there is none among the migrations.
        Kind::MySql => state.as_deref() == Some("42000"),
        _ => false,
    }
}

fn cannot_open(error: &StoreError) -> bool {
    const CANTOPEN: u32 = 14;
    state(error).and_then(|code| code.parse::<u32>().ok()).is_some_and(|code| code & 0xff == CANTOPEN)
}

/// The SQLSTATE that the server has given, or SQLite's code; none if nothing was answered.
fn state(error: &StoreError) -> Option<String> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(driver) = error.downcast_ref::<sqlx::Error>() {
            let answer = driver.as_database_error()?;
            return Some(answer.code().unwrap_or_default().into_owned());
        }
        cause = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_program_refuses_by_itself_is_no_matter_of_the_server() {
        let refused = StoreError::new(StoreErrorKind::Rejected, "table prefix \"x y\" is refused: use letters");
        for kind in [Kind::Sqlite, Kind::Postgres, Kind::MySql] {
            assert_eq!(of(&refused, kind), None);
        }
        let away = || StoreError::new(StoreErrorKind::Unavailable, "the server can't be reached");
        assert!(of(&away(), Kind::Postgres).is_some_and(|advice| advice.contains("host and port")));
        let refused = away().caused_by(sqlx::Error::Io(std::io::ErrorKind::ConnectionRefused.into()));
        assert!(of(&refused, Kind::MySql).is_some_and(|advice| advice.contains("host and port")));
        assert_eq!(of(&away(), Kind::Sqlite), None, "a file has no port");
    }
}

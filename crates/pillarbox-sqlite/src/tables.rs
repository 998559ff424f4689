//! Names of the tables, and the statements made from them.
//!
//! A statement is a static text with `{event}`, `{now}` and the like in it. The names are filled in once,
//! when the store is made, from a prefix that has passed [`Prefix::new`]; everything else is bound.

use pillarbox_core::port::{StoreError, StoreErrorKind};
use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

/// The prefix of the table names, safe to stand in a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prefix(Box<str>);

impl Prefix {
    pub(crate) const DEFAULT: &'static str = "outbox_";
    const LIMIT: usize = 32;

    pub(crate) fn new(prefix: &str) -> Result<Self, StoreError> {
        let mut letters = prefix.bytes();
        let first = letters.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
        let rest = letters.all(|b| b.is_ascii_alphanumeric() || b == b'_');
        // SQLite keeps names that begin so for itself.
        let reserved = prefix.to_ascii_lowercase().starts_with("sqlite_");
        if first && rest && !reserved && prefix.len() <= Self::LIMIT {
            Ok(Self(prefix.into()))
        } else {
            Err(StoreError::new(
                StoreErrorKind::Rejected,
                format!(
                    "table prefix {prefix:?} is refused: use a letter or `_`, then letters, digits or `_`, at most {} \
                     characters in all, and not `sqlite_` at the start",
                    Self::LIMIT
                ),
            ))
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Fills the names into a text.
    pub(crate) fn fill(&self, text: &str) -> String {
        let mut sql = text.replace("{now}", NOW).replace("{columns}", crate::row::COLUMNS);
        for table in TABLES {
            sql = sql.replace(&format!("{{{table}}}"), &format!("{}{table}", self.0));
        }
        sql
    }

    /// A statement, cheap to clone.
    pub(crate) fn statement(&self, text: &str) -> SqlStr {
        let sql: std::sync::Arc<str> = self.fill(text).into();
        // Static text and a checked prefix: nothing else enters.
        AssertSqlSafe(sql).into_sql_str()
    }
}

const TABLES: [&str; 14] = [
    "event",
    "hold",
    "instance",
    "partition",
    "dedup",
    "action",
    "schema",
    "guard",
    "seen_0",
    "seen_1",
    "seen_2",
    "window",
    "bucket",
    "letter",
];

/// SQLite's clock in microseconds; it counts in milliseconds, and one statement sees one time.
const NOW: &str = "(cast(round(unixepoch('subsec') * 1000) as integer) * 1000)";

/// Declares the statements of a module: a struct of texts, filled in once for a prefix.
macro_rules! statements {
    ($name:ident { $($(#[$doc:meta])* $field:ident: $text:expr,)+ }) => {
        #[derive(Debug)]
        pub(crate) struct $name {
            $($(#[$doc])* pub(crate) $field: sqlx::SqlStr,)+
        }

        impl $name {
            pub(crate) fn new(prefix: &crate::tables::Prefix) -> Self {
                Self { $($field: prefix.statement($text),)+ }
            }

            /// Every statement with its name.
            #[cfg(test)]
            pub(crate) fn named(&self) -> Vec<(&'static str, &sqlx::SqlStr)> {
                vec![$((stringify!($field), &self.$field),)+]
            }
        }
    };
}
pub(crate) use statements;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_prefixes_are_refused() {
        let long = "x".repeat(33);
        for bad in ["", "1x", "a-b", "a b", "x; drop table users; --", "x\"", "ä", "a.b", "sqlite_x", &long] {
            let error = Prefix::new(bad).unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Rejected, "{bad:?}");
            assert!(error.to_string().contains("table prefix"), "{error}");
        }
        for good in ["outbox_", "_", "A1_", &"x".repeat(32)] {
            Prefix::new(good).unwrap();
        }
    }

    #[test]
    fn names_are_filled_in() {
        let prefix = Prefix::new("my_").unwrap();
        assert_eq!(prefix.fill("select 1 from {event} join {hold}"), "select 1 from my_event join my_hold");
    }
}

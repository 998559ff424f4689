//! Names of the tables, and the statements made from them.
//!
//! A statement is a static text with `{event}`, `{now}` and the like in it. The names are filled in once,
//! when the store is made, from a prefix and a schema that have passed [`Names::new`]; everything else is bound.

use pillarbox_core::port::{StoreError, StoreErrorKind};
use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

/// The prefix of the table names and the schema they are in, safe to stand in a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    prefix: Box<str>,
    schema: Option<Box<str>>,
}

impl Names {
    pub(crate) const DEFAULT: &'static str = "outbox_";
    const LIMIT: usize = 32;
    /// The server's own limit.
    const SCHEMA_LIMIT: usize = 64;

    pub(crate) fn new(prefix: &str, schema: Option<&str>) -> Result<Self, StoreError> {
        let mut letters = prefix.bytes();
        let first = letters.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
        let rest = letters.all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !first || !rest || prefix.len() > Self::LIMIT {
            return Err(StoreError::new(
                StoreErrorKind::Rejected,
                format!(
                    "table prefix {prefix:?} is refused: use a letter or `_`, then letters, digits or `_`, at most {} \
                     characters in all",
                    Self::LIMIT
                ),
            ));
        }
        if let Some(schema) = schema {
            let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'$');
            if schema.is_empty() || schema.len() > Self::SCHEMA_LIMIT || !schema.bytes().all(good) {
                return Err(StoreError::new(
                    StoreErrorKind::Rejected,
                    format!("schema {schema:?} is refused: use letters, digits, `_`, `-` or `$`, at most 64 of them"),
                ));
            }
        }
        Ok(Self { prefix: prefix.into(), schema: schema.map(Into::into) })
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(crate) fn schema(&self) -> Option<&str> {
        self.schema.as_deref()
    }

    /// Fills the names into a text.
    pub(crate) fn fill(&self, text: &str) -> String {
        let mut sql = text
            .replace("{columns}", crate::row::COLUMNS)
            .replace("{now}", NOW)
            .replace("{epoch}", EPOCH)
            .replace("{prefix}", &self.prefix);
        for name in NAMES {
            let schema = self.schema.as_ref().map(|schema| format!("`{schema}`.")).unwrap_or_default();
            sql = sql.replace(&format!("{{{name}}}"), &format!("{schema}`{}{name}`", self.prefix));
        }
        sql
    }

    /// A statement, cheap to clone.
    pub(crate) fn statement(&self, text: &str) -> SqlStr {
        let sql: std::sync::Arc<str> = self.fill(text).into();
        // Static text and checked names: nothing else enters.
        AssertSqlSafe(sql).into_sql_str()
    }
}

/// The tables, and the function that other languages call.
const NAMES: [&str; 15] = [
    "event",
    "hold",
    "instance",
    "partition",
    "dedup",
    "action",
    "schema",
    "partition_of",
    "guard",
    "seen_0",
    "seen_1",
    "seen_2",
    "window",
    "bucket",
    "letter",
];

/// The server's clock when it is asked, in UTC on the store's own connections. `now()` and `utc_timestamp()` stand
/// still from the start of a statement, and a statement may have waited for a lock since then.
const NOW: &str = "sysdate(6)";

const EPOCH: &str = "timestamp'1970-01-01 00:00:00'";

/// Declares the statements of a module: a struct of texts, filled in once.
macro_rules! statements {
    ($name:ident { $($(#[$doc:meta])* $field:ident: $text:expr,)+ }) => {
        #[derive(Debug)]
        pub(crate) struct $name {
            $($(#[$doc])* pub(crate) $field: sqlx::SqlStr,)+
        }

        impl $name {
            pub(crate) fn new(names: &crate::tables::Names) -> Self {
                Self { $($field: names.statement($text),)+ }
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
    fn hostile_names_are_refused() {
        let long = "x".repeat(33);
        for bad in ["", "1x", "a-b", "a b", "x; drop table users; --", "x`", "x'", "ä", "a.b", "a\0", &long] {
            let error = Names::new(bad, None).unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Rejected, "{bad:?}");
            assert!(error.to_string().contains("table prefix"), "{error}");
        }
        for good in ["outbox_", "_", "A1_", &"x".repeat(32)] {
            Names::new(good, None).unwrap();
        }
        let long = "x".repeat(65);
        for bad in ["", "a`b", "a.b", "a b", "ä", "a\0", &long] {
            let error = Names::new("outbox_", Some(bad)).unwrap_err();
            assert!(error.to_string().contains("schema"), "{error}");
        }
        for good in ["shop", "my-shop", "1shop", "a$b"] {
            Names::new("outbox_", Some(good)).unwrap();
        }
    }

    #[test]
    fn names_are_filled_in() {
        let names = Names::new("my_", None).unwrap();
        assert_eq!(names.fill("select 1 from {event} join {hold}"), "select 1 from `my_event` join `my_hold`");
        let names = Names::new("my_", Some("shop")).unwrap();
        assert_eq!(names.fill("select 1 from {event}"), "select 1 from `shop`.`my_event`");
    }
}

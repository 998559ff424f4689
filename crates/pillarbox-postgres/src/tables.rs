//! Names of the tables, and the statements made from them.
//!
//! A statement is a static text with `{event}`, `{now}` and the like in it. The names are filled in once,
//! when the store is made, from a schema and a prefix that have passed [`Names::new`]; everything else is bound.

use pillarbox_core::port::{StoreError, StoreErrorKind};
use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

/// The schema and the prefix of the table names, safe to stand in a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    schema: Option<Box<str>>,
    prefix: Box<str>,
}

impl Names {
    pub(crate) const DEFAULT: &'static str = "outbox_";
    const LIMIT: usize = 32;
    /// PostgreSQL's own limit.
    const SCHEMA_LIMIT: usize = 63;

    pub(crate) fn new(schema: Option<&str>, prefix: &str) -> Result<Self, StoreError> {
        if let Some(schema) = schema {
            check_schema(schema)?;
        }
        check_prefix(prefix)?;
        // Not quoted in the statements, where PostgreSQL makes them lowercase as well.
        Ok(Self { schema: schema.map(Into::into), prefix: prefix.to_ascii_lowercase().into() })
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(crate) fn schema(&self) -> Option<&str> {
        self.schema.as_deref()
    }

    /// One name for the outbox, within its database.
    pub(crate) fn whole(&self) -> String {
        self.schema.iter().map(|schema| format!("{schema}.")).chain([self.prefix.to_string()]).collect()
    }

    /// The name that a message of the server tells of, if it is one of ours.
    pub(crate) fn ours<'a>(&self, message: &'a str) -> Option<&'a str> {
        // An index has the name of its table and more.
        let ours = |rest: &str| TABLES.iter().chain(&FUNCTIONS).any(|own| rest.starts_with(own));
        let mut words = message.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        words.find(|word| word.strip_prefix(&*self.prefix).is_some_and(ours))
    }

    /// Quotes for a text with our names in it: a schema may have a `$` in its name.
    pub(crate) fn quote(&self, word: &str) -> String {
        let schema = self.schema().unwrap_or_default();
        let mut quote = format!("${word}$");
        // Longer with each turn, and a schema's name is short.
        while schema.contains(&quote) {
            quote.insert(1, '_');
        }
        quote
    }

    /// Fills the names into a text.
    pub(crate) fn fill(&self, text: &str) -> String {
        let qualifier = self.schema.as_ref().map_or(String::new(), |schema| format!("\"{schema}\"."));
        let mut sql = text
            .replace("{now}", "clock_timestamp()")
            .replace("{columns}", crate::row::COLUMNS)
            .replace("{prefix_of}", &format!("{qualifier}{}", self.prefix))
            .replace("{prefix}", &self.prefix);
        for table in TABLES {
            sql = sql.replace(&format!("{{{table}}}"), &format!("{qualifier}{}{table}", self.prefix));
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

fn check_prefix(prefix: &str) -> Result<(), StoreError> {
    if is_name(prefix, Names::LIMIT, b"") {
        return Ok(());
    }
    Err(StoreError::new(
        StoreErrorKind::Rejected,
        format!(
            "table prefix {prefix:?} is refused: use a letter or `_`, then letters, digits or `_`, at most {} characters in \
             all",
            Names::LIMIT
        ),
    ))
}

/// It is always quoted in the statements.
fn check_schema(schema: &str) -> Result<(), StoreError> {
    // PostgreSQL keeps names that begin so for itself.
    let reserved = schema.to_ascii_lowercase().starts_with("pg_");
    if !reserved && is_name(schema, Names::SCHEMA_LIMIT, b"-$") {
        return Ok(());
    }
    Err(StoreError::new(
        StoreErrorKind::Rejected,
        format!(
            "schema {schema:?} is refused: use a letter or `_`, then letters, digits, `_`, `-` or `$`, at most {} \
             characters in all, and no schema that begins with `pg_`",
            Names::SCHEMA_LIMIT
        ),
    ))
}

fn is_name(name: &str, limit: usize, also: &[u8]) -> bool {
    let mut letters = name.bytes();
    let first = letters.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    first && letters.all(|b| b.is_ascii_alphanumeric() || b == b'_' || also.contains(&b)) && name.len() <= limit
}

const FUNCTIONS: [&str; 4] = ["partition_of", "new_id", "publish", "emptied"];

const TABLES: [&str; 16] = [
    "event",
    "hold",
    "instance",
    "life",
    "mark",
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

/// Declares the statements of a module: a struct of texts, filled in once for an outbox.
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
        let long = "x".repeat(64);
        for bad in
            ["", "1x", "-x", "$x", "a b", "x; drop table users; --", "x\"", "x'", "x\\", "{event}", "ä", "a.b", &long]
        {
            let prefix = Names::new(None, bad).unwrap_err();
            let schema = Names::new(Some(bad), "outbox_").unwrap_err();
            for (error, word) in [(prefix, "table prefix"), (schema, "schema")] {
                assert_eq!(error.kind(), StoreErrorKind::Rejected, "{bad:?}");
                assert!(error.to_string().starts_with(word), "{error}");
            }
        }
        for bad in ["a-b", "a$b", &"x".repeat(33)] {
            assert!(Names::new(None, bad).is_err(), "{bad}");
            Names::new(Some(bad), "outbox_").unwrap();
        }
        assert!(Names::new(Some("pg_x"), "outbox_").is_err());
        for good in ["outbox_", "_", "A1_", "pg_", &"x".repeat(32)] {
            Names::new(None, good).unwrap();
        }
    }

    #[test]
    fn quotes_are_no_part_of_a_schemas_name() {
        let quote = |schema| Names::new(Some(schema), "outbox_").unwrap().quote("body");
        assert_eq!(
            (quote("a$b"), quote("a$body$"), quote("a$_body$body$")),
            ("$body$".into(), "$_body$".into(), "$__body$".into())
        );
    }

    #[test]
    fn ours_are_found_in_the_words_of_any_language() {
        let names = Names::new(None, "mine_").unwrap();
        for (message, ours) in [
            ("relation \"mine_event\" already exists", Some("mine_event")),
            ("Relation »mine_event_due« existiert bereits", Some("mine_event_due")),
            ("function \"mine_publish\" already exists with same argument types", Some("mine_publish")),
            ("relation \"outbox_event\" already exists", None),
            ("mine_ mine_x", None),
        ] {
            assert_eq!(names.ours(message), ours, "{message}");
        }
    }

    #[test]
    fn names_are_filled_in() {
        let names = Names::new(None, "My_").unwrap();
        assert_eq!(names.fill("select 1 from {event} join {hold}"), "select 1 from my_event join my_hold");
        let names = Names::new(Some("Sales"), "my_").unwrap();
        let index = names.fill("create index {prefix}x on {event} ({prefix_of}f(a))");
        assert_eq!(index, "create index my_x on \"Sales\".my_event (\"Sales\".my_f(a))");
        assert_eq!(names.whole(), "Sales.my_");
    }
}

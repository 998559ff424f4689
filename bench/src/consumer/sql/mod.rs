//! What differs from database to database: the bare statements.

mod mysql;
mod postgres;
mod sqlite;

use pillarbox_core::domain::bucket::SLOTS;

pub(super) use self::{
    mysql::MySql,
    postgres::{Postgres, open as open_postgres},
    sqlite::Sqlite,
};

/// What the limit of a guard is.
const NOTE: &str = "one prepared insert that skips what is there, its own transaction, a connection for each caller";
/// The table of the inbox into which the bare insert writes.
const SEEN: &str = "inbox_seen_0";

/// How many messages stand in the inbox, whatever the bucket.
pub(super) fn count_seen() -> String {
    let tables = (0..SLOTS).map(|slot| format!("(select count(*) from inbox_seen_{slot})"));
    format!("select {}", tables.collect::<Vec<_>>().join(" + "))
}

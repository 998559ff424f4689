//! What differs from database to database: the bare statements.

mod mysql;
mod postgres;
mod sqlite;

use std::time::SystemTime;

use pillarbox_core::domain::{
    Timestamp,
    bucket::{self, Buckets, SLOTS},
};

pub(super) use self::{
    mysql::MySql,
    postgres::{Postgres, open as open_postgres},
    sqlite::Sqlite,
};
use super::inbox::WINDOW;
use crate::Result;

/// What the limit of a guard is.
const NOTE: &str = "one prepared insert that skips what is there, its own transaction, a connection for each caller";

/// Tables of the inbox.
#[derive(Clone, Debug)]
struct Seen {
    /// Of the present bucket, into which the bare insert writes.
    present: String,
    /// Of the one before.
    before: String,
}

impl Seen {
    /// By the clock of this host, on which the servers run.
    fn now() -> Result<Self> {
        let buckets = Buckets::of_window(WINDOW).ok_or("the window is too short")?;
        let slot = bucket::slot(buckets.number(Timestamp::from(SystemTime::now())));
        let table = |slot: usize| format!("inbox_seen_{slot}");
        Ok(Self { present: table(slot), before: table(bucket::before(slot)) })
    }
}

/// How many messages stand in the inbox, whatever the bucket.
pub(super) fn count_seen() -> String {
    let tables = (0..SLOTS).map(|slot| format!("(select count(*) from inbox_seen_{slot})"));
    format!("select {}", tables.collect::<Vec<_>>().join(" + "))
}

//! The consumer's half in a MySQL or MariaDB database: guard, inbox and dead letters.
//!
//! It works beside a store, with connections and tables of its own; the tables of the outbox need not be there.

mod ahead;
mod guard;
mod highest;
mod letters;
mod migrate;
mod recollection;
mod seen;

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use pillarbox_core::{
    domain::{Timestamp, bucket::Buckets, recollection::Recollection},
    port::{Marking, StoreError, StoreErrorKind},
};
use sqlx::Row as _;

pub(crate) use self::{
    ahead::Ahead, guard::GuardSql, highest::Highest, letters::LetterSql, migrate::UpkeepSql,
    recollection::RecollectionSql, seen::SeenSql,
};
use crate::{MySqlStore, connection::Line, error, tables::Names};

/// The consumer's half in the database and the schema of a store. Cheap to clone.
///
/// ```no_run
/// # async fn example() -> Result<(), pillarbox_core::port::StoreError> {
/// use pillarbox_mysql::{MySqlInbox, MySqlStore};
///
/// let store = MySqlStore::open("mysql://billing:secret@localhost/billing").await?;
/// let inbox = MySqlInbox::new(&store);
/// # Ok(()) }
/// ```
///
/// Its user needs SELECT, INSERT, UPDATE, DELETE and DROP on the inbox's tables, and LOCK TABLES: buckets are emptied as a
/// whole.
#[derive(Clone)]
pub struct MySqlInbox(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    store: MySqlStore,
    names: Names,
    /// For the guard, which is asked before every message.
    marks: Line,
    /// Those who ask it at once.
    marking: Marking,
    /// For everything else.
    upkeep: Line,
    pub(crate) sql: Sql,
    /// As agreed; read once.
    buckets: Mutex<Option<Buckets>>,
    /// The database's time, as it was told last.
    clock: Mutex<Option<(Timestamp, Instant)>>,
    /// Above what messages were never entered in the bucket before.
    highest: Highest,
    /// Whether that can be read.
    reads: Ahead,
    /// What messages were entered there.
    recollection: Mutex<Recollection>,
    /// Whether batches lie clear of the bucket before.
    pub(crate) ahead: Ahead,
}

pub(crate) struct Sql {
    pub(crate) guard: GuardSql,
    pub(crate) seen: SeenSql,
    pub(crate) recollection: RecollectionSql,
    pub(crate) letters: LetterSql,
    pub(crate) upkeep: UpkeepSql,
}

/// How the names of the tables begin by default.
const PREFIX: &str = "inbox_";

impl MySqlInbox {
    /// With tables whose names begin with `inbox_`.
    pub fn new(store: &MySqlStore) -> Self {
        Self::of(
            store,
            Names::new(PREFIX, store.0.names.schema()).expect("a prefix of letters, and the store's schema"),
        )
    }

    /// With tables whose names begin with this.
    pub fn with_prefix(store: &MySqlStore, prefix: &str) -> Result<Self, StoreError> {
        Ok(Self::of(store, names(store.0.names.schema(), prefix, store.prefix())?))
    }

    fn of(store: &MySqlStore, names: Names) -> Self {
        Self(Arc::new(Inner {
            marks: store.0.settles.beside(),
            marking: Marking::default(),
            upkeep: store.0.settles.beside(),
            store: store.clone(),
            sql: Sql {
                guard: GuardSql::new(&names),
                seen: SeenSql::new(&names),
                recollection: RecollectionSql::new(&names),
                letters: LetterSql::new(&names),
                upkeep: UpkeepSql::new(&names),
            },
            names,
            buckets: Mutex::default(),
            clock: Mutex::default(),
            highest: Highest::default(),
            reads: Ahead::default(),
            recollection: Mutex::default(),
            ahead: Ahead::default(),
        }))
    }

    /// The store beside which it works.
    pub fn store(&self) -> &MySqlStore {
        &self.0.store
    }

    /// The prefix of the table names.
    pub fn prefix(&self) -> &str {
        self.0.names.prefix()
    }

    /// How time is cut, as it stands in the table.
    async fn buckets(&self) -> Result<Option<Buckets>, StoreError> {
        if let Some(buckets) = *self.0.buckets.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(Some(buckets));
        }
        let mut entered = self.0.upkeep.enter().await?;
        let agreed = sqlx::query(self.0.sql.upkeep.agreed.clone()).fetch_optional(&mut *entered).await;
        let agreed = agreed.and_then(|row| row.map(|row| row.try_get(0)).transpose()).map_err(error::of)?;
        entered.done();
        let buckets = agreed.and_then(Buckets::of_micros);
        *self.0.buckets.lock().unwrap_or_else(PoisonError::into_inner) = buckets;
        Ok(buckets)
    }
}

/// Messages in the order in which all lock them: that of their bytes.
fn ascending<'a>(messages: &[&'a str]) -> Vec<&'a str> {
    let mut sorted = messages.to_vec();
    sorted.sort_unstable();
    sorted
}

/// A list of messages for a statement.
fn list(messages: &[&str]) -> Result<String, StoreError> {
    serde_json::to_string(messages).map_err(error::unreadable)
}

/// The inbox's names, other than the outbox's.
fn names(schema: Option<&str>, prefix: &str, outbox: &str) -> Result<Names, StoreError> {
    let names = Names::new(prefix, schema)?;
    if names.prefix().eq_ignore_ascii_case(outbox) {
        return Err(StoreError::new(
            StoreErrorKind::Rejected,
            format!("table prefix {prefix:?} is that of the outbox: give the inbox another"),
        ));
    }
    Ok(names)
}

impl fmt::Debug for MySqlInbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySqlInbox")
            .field("schema", &self.0.names.schema())
            .field("prefix", &self.prefix())
            .finish_non_exhaustive()
    }
}

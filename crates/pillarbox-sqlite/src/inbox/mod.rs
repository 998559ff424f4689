//! The consumer's half in a SQLite file: guard, inbox and dead letters.
//!
//! It works on the connections of a store, and has tables of its own beside those of an outbox, which need not be there.

mod guard;
mod letters;
mod migrate;
mod seen;

use std::{fmt, sync::Arc};

use parking_lot::Mutex;
use pillarbox_core::{
    domain::{Timestamp, bucket::Buckets},
    port::{StoreError, StoreErrorKind},
};
use sqlx::Row as _;

use self::{guard::GuardSql, letters::LetterSql, migrate::UpkeepSql, seen::SeenSql};
use crate::{SqliteStore, error, tables::Prefix};

/// The consumer's half in the file of a store. Cheap to clone.
///
/// ```no_run
/// # async fn example() -> Result<(), pillarbox_core::port::StoreError> {
/// use pillarbox_sqlite::{SqliteInbox, SqliteStore};
///
/// let store = SqliteStore::open("billing.db").await?;
/// let inbox = SqliteInbox::new(&store);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct SqliteInbox(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    store: SqliteStore,
    prefix: Prefix,
    pub(crate) guard: GuardSql,
    pub(crate) seen: SeenSql,
    pub(crate) letters: LetterSql,
    pub(crate) upkeep: UpkeepSql,
    /// As agreed; read once.
    buckets: Mutex<Option<Buckets>>,
}

/// How the names of the tables begin by default.
const PREFIX: &str = "inbox_";

impl SqliteInbox {
    /// With tables whose names begin with `inbox_`.
    pub fn new(store: &SqliteStore) -> Self {
        Self::of(store, Prefix::new(PREFIX).expect("a prefix of letters"))
    }

    /// With tables whose names begin with this.
    pub fn with_prefix(store: &SqliteStore, prefix: &str) -> Result<Self, StoreError> {
        Ok(Self::of(store, prefix_beside(prefix, store.prefix())?))
    }

    fn of(store: &SqliteStore, prefix: Prefix) -> Self {
        Self(Arc::new(Inner {
            store: store.clone(),
            guard: GuardSql::new(&prefix),
            seen: SeenSql::new(&prefix),
            letters: LetterSql::new(&prefix),
            upkeep: UpkeepSql::new(&prefix),
            prefix,
            buckets: Mutex::default(),
        }))
    }

    /// The store whose connections it uses.
    pub fn store(&self) -> &SqliteStore {
        &self.0.store
    }

    /// The prefix of the table names.
    pub fn prefix(&self) -> &str {
        self.0.prefix.as_str()
    }

    /// How time is cut, as it stands in the table.
    async fn buckets(&self) -> Result<Option<Buckets>, StoreError> {
        if let Some(buckets) = *self.0.buckets.lock() {
            return Ok(Some(buckets));
        }
        let mut entered = self.0.store.0.seeks.enter().await?;
        let row = sqlx::query(self.0.upkeep.agreed.clone()).fetch_optional(entered.connection()?).await;
        let micros = row.and_then(|row| row.map(|row| row.try_get(0)).transpose()).map_err(error::of)?;
        let buckets = micros.and_then(Buckets::of_micros);
        *self.0.buckets.lock() = buckets;
        Ok(buckets)
    }
}

/// The inbox's prefix, other than the outbox's.
fn prefix_beside(prefix: &str, outbox: &str) -> Result<Prefix, StoreError> {
    let prefix = Prefix::new(prefix)?;
    if prefix.as_str().eq_ignore_ascii_case(outbox) {
        return Err(StoreError::new(
            StoreErrorKind::Rejected,
            format!("table prefix {:?} is that of the outbox: give the inbox another", prefix.as_str()),
        ));
    }
    Ok(prefix)
}

/// SQLite's clock is the host's.
fn now() -> Timestamp {
    crate::store::now()
}

impl fmt::Debug for SqliteInbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteInbox").field("prefix", &self.prefix()).finish_non_exhaustive()
    }
}

//! The consumer's half in a PostgreSQL database: guard, inbox and dead letters.
//!
//! It works beside a store, with connections and tables of its own; the tables of the outbox need not be there.

mod guard;
mod letters;
mod migrate;
mod recollection;
mod seen;
mod text;

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
    guard::GuardSql, letters::LetterSql, migrate::UpkeepSql, recollection::RecollectionSql, seen::SeenSql,
};
use crate::{PostgresStore, connection::Line, error, tables::Names};

/// The consumer's half in the database and the schema of a store. Cheap to clone.
///
/// ```no_run
/// # fn example() -> Result<(), pillarbox_core::port::StoreError> {
/// use pillarbox_postgres::{PostgresInbox, PostgresStore};
///
/// let store = PostgresStore::open("postgres://billing@localhost/billing")?;
/// let inbox = PostgresInbox::new(&store);
/// # Ok(()) }
/// ```
///
/// Its role needs `select`, `insert`, `update`, `delete` and `truncate` on the inbox's tables.
#[derive(Clone)]
pub struct PostgresInbox(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    store: PostgresStore,
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
    /// What messages were entered in the bucket before.
    recollection: Mutex<Recollection>,
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

impl PostgresInbox {
    /// With tables whose names begin with `inbox_`.
    pub fn new(store: &PostgresStore) -> Self {
        Self::of(store, Names::new(store.schema(), PREFIX).expect("a prefix of letters, and the store's schema"))
    }

    /// With tables whose names begin with this.
    pub fn with_prefix(store: &PostgresStore, prefix: &str) -> Result<Self, StoreError> {
        Ok(Self::of(store, names(store.schema(), prefix, store.prefix())?))
    }

    fn of(store: &PostgresStore, names: Names) -> Self {
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
            recollection: Mutex::default(),
        }))
    }

    /// The store beside which it works.
    pub fn store(&self) -> &PostgresStore {
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
        let agreed = self.0.store.within(async {
            let mut entered = self.0.upkeep.enter().await?;
            let connection = entered.begin_reading().await.map_err(error::of)?;
            let agreed = self.0.store.query(&self.0.sql.upkeep.agreed).fetch_optional(connection).await;
            let agreed = agreed.map_err(error::of)?;
            entered.end_reading().await.map_err(error::of)?;
            entered.leave();
            agreed.map(|row| row.try_get(0)).transpose().map_err(error::of)
        });
        let buckets = agreed.await?.and_then(Buckets::of_micros);
        *self.0.buckets.lock().unwrap_or_else(PoisonError::into_inner) = buckets;
        Ok(buckets)
    }
}

/// The inbox's names, other than the outbox's.
fn names(schema: Option<&str>, prefix: &str, outbox: &str) -> Result<Names, StoreError> {
    let names = Names::new(schema, prefix)?;
    if names.prefix().eq_ignore_ascii_case(outbox) {
        return Err(StoreError::new(
            StoreErrorKind::Rejected,
            format!("table prefix {prefix:?} is that of the outbox: give the inbox another"),
        ));
    }
    Ok(names)
}

impl fmt::Debug for PostgresInbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresInbox")
            .field("schema", &self.0.names.schema())
            .field("prefix", &self.prefix())
            .finish_non_exhaustive()
    }
}

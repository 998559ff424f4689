//! The store: how it is opened, and the connections it keeps.

use std::{fmt, path::Path, str::FromStr, sync::Arc, time::Duration};

use pillarbox_core::domain::{Lease, Timestamp};
use pillarbox_core::port::{StoreError, StoreErrorKind};
use sqlx::{
    ConnectOptions as _, Connection as _, Row as _, SqliteConnection, SqlitePool,
    sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteSynchronous},
};
use tokio::sync::Mutex;

use crate::{
    action::ActionSql,
    admin::AdminSql,
    connection::{Entered, Line},
    error,
    migrate::migrations,
    own::OwnSql,
    read::ReadSql,
    settle::SettleSql,
    tables::Prefix,
    upkeep::UpkeepSql,
    write::{KeySql, WriteSql},
};

/// An outbox in a SQLite file. Cheap to clone.
#[derive(Clone)]
pub struct SqliteStore(pub(crate) Arc<Inner>);

/// How a store is opened.
///
/// ```
/// use pillarbox_sqlite::Options;
///
/// let options = Options::new().prefix("orders_outbox_").pool_size(8);
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) prefix: String,
    durability: Durability,
    busy_timeout: Duration,
    pool_size: u32,
    log_statements: bool,
}

/// What a commit waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The disk: a commit survives a power cut (`synchronous = full`).
    #[default]
    Full,
    /// The operating system: a power cut may undo the last commits (`synchronous = normal`), though it never
    /// damages the file. An event may then have been delivered whose transaction is undone.
    Normal,
}

pub(crate) struct Inner {
    pub(crate) prefix: Prefix,
    pub(crate) pool: SqlitePool,
    /// Whose turn it is to write. Fair: first come, first served.
    pub(crate) turn: Arc<Mutex<()>>,
    /// The one connection of [`TransactStore::begin`](pillarbox_core::port::TransactStore::begin), if the pool is
    /// the store's own.
    pub(crate) writer: Option<Arc<Line>>,
    pub(crate) busy_timeout: Duration,
    pub(crate) durability: Durability,
    pub(crate) settles: Line,
    pub(crate) lease: Line,
    pub(crate) pages: Line,
    pub(crate) seeks: Line,
    pub(crate) operators: Line,
    pub(crate) news: Line,
    pub(crate) seen_version: Mutex<Option<i64>>,
    pub(crate) seen_fleet: Mutex<Option<crate::wake::Fleet>>,
    pub(crate) sql: Sql,
}

pub(crate) struct Sql {
    pub(crate) write: WriteSql,
    pub(crate) keys: KeySql,
    pub(crate) own: OwnSql,
    pub(crate) read: ReadSql,
    pub(crate) settle: SettleSql,
    pub(crate) upkeep: UpkeepSql,
    pub(crate) action: ActionSql,
    pub(crate) admin: AdminSql,
}

impl Options {
    /// Table names with the prefix `outbox_`, full durability, a busy timeout of 5 seconds, a pool of 4.
    pub fn new() -> Self {
        Self {
            prefix: Prefix::DEFAULT.into(),
            durability: Durability::default(),
            busy_timeout: Duration::from_secs(5),
            pool_size: 4,
            log_statements: false,
        }
    }

    /// Begins the names of the tables with this. One file can hold several outboxes.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets what a commit waits for.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets how long a statement waits for another connection's write lock.
    #[must_use]
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = timeout;
        self
    }

    /// Sets how many connections the application's transactions share.
    #[must_use]
    pub fn pool_size(mut self, connections: u32) -> Self {
        self.pool_size = connections;
        self
    }

    /// Leaves the log of statements to the driver: each at level debug with the target `sqlx::query`. Default: no
    /// statement is logged, since looking at each costs more than some of them.
    #[must_use]
    pub fn log_statements(mut self) -> Self {
        self.log_statements = true;
        self
    }

    /// The migrations as one script, for a tool of one's own such as the `sqlite3` program. It is for a file without
    /// the tables; `migrations` has the single steps.
    pub fn migration_sql(&self) -> Result<String, StoreError> {
        let steps = migrations(&self.prefix)?.into_iter();
        let steps = steps.map(|(version, sql)| format!("\n-- Version {version}\nbegin immediate;\n{sql}commit;\n"));
        Ok(std::iter::once("pragma journal_mode = wal;\n".to_owned()).chain(steps).collect())
    }

    /// Opens the store in a file, which is made if it is missing: a path, or a URL such as `sqlite:shop.db`.
    pub async fn open(self, path_or_url: impl AsRef<str>) -> Result<SqliteStore, StoreError> {
        let connect = self.connect_options(path_or_url.as_ref())?;
        let pool = SqlitePoolOptions::new()
            .max_connections(self.pool_size.max(1))
            .idle_timeout(None)
            .max_lifetime(None)
            .test_before_acquire(false)
            // A transaction that SQLite ended by itself stays open for the driver: such a connection goes.
            .before_acquire(|connection, _| {
                let idle = !connection.is_in_transaction();
                Box::pin(async move { Ok(idle) })
            })
            .connect_lazy_with(connect.clone());
        let store = self.assemble(pool, &connect, true)?;
        store.use_wal().await?;
        Ok(store)
    }

    /// Makes a store of the application's own pool, which it uses for the application's transactions alone.
    /// The file is put into WAL mode by [`migrate`](pillarbox_core::port::UpkeepStore::migrate).
    pub fn from_pool(self, pool: SqlitePool) -> Result<SqliteStore, StoreError> {
        let connect = self.own_options(pool.connect_options().as_ref().clone());
        self.assemble(pool, &connect, false)
    }

    fn connect_options(&self, path_or_url: &str) -> Result<SqliteConnectOptions, StoreError> {
        if path_or_url.contains(":memory:") || path_or_url.contains("mode=memory") || path_or_url.is_empty() {
            return Err(in_memory());
        }
        let options = if path_or_url.starts_with("sqlite:") {
            SqliteConnectOptions::from_str(path_or_url).map_err(error::of)?
        } else {
            SqliteConnectOptions::new().filename(Path::new(path_or_url))
        };
        // A URL may say by its `mode` that the file must be there.
        let says = path_or_url.starts_with("sqlite:") && path_or_url.contains("mode=");
        Ok(self.own_options(if says { options } else { options.create_if_missing(true) }))
    }

    fn own_options(&self, options: SqliteConnectOptions) -> SqliteConnectOptions {
        let options = if self.log_statements { options } else { options.disable_statement_logging() };
        options
            .synchronous(match self.durability {
                Durability::Full => SqliteSynchronous::Full,
                Durability::Normal => SqliteSynchronous::Normal,
            })
            .busy_timeout(self.busy_timeout)
            .pragma("cache_size", "-16384")
    }

    fn assemble(self, pool: SqlitePool, connect: &SqliteConnectOptions, own: bool) -> Result<SqliteStore, StoreError> {
        let prefix = Prefix::new(&self.prefix)?;
        // They read and write in sequence, a page or a batch at a time: more would only be memory.
        let connect = connect.clone().pragma("cache_size", "-4096");
        let line = |name: &'static str| Line::new(connect.clone().thread_name(move |_| format!("pillarbox-{name}")));
        Ok(SqliteStore(Arc::new(Inner {
            sql: Sql {
                write: WriteSql::new(&prefix),
                keys: KeySql::new(&prefix),
                own: OwnSql::new(&prefix),
                read: ReadSql::new(&prefix),
                settle: SettleSql::new(&prefix),
                upkeep: UpkeepSql::new(&prefix),
                action: ActionSql::new(&prefix),
                admin: AdminSql::new(&prefix),
            },
            settles: line("settle"),
            lease: line("lease"),
            pages: line("page"),
            seeks: line("seek"),
            operators: line("admin"),
            news: line("news"),
            prefix,
            pool,
            turn: Arc::default(),
            writer: own.then(|| Arc::new(line("write"))),
            busy_timeout: self.busy_timeout,
            durability: self.durability,
            seen_version: Mutex::default(),
            seen_fleet: Mutex::default(),
        })))
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl SqliteStore {
    /// Opens the store in a file, which is made if it is missing: a path, or a URL such as `sqlite:shop.db`.
    /// A database in memory is refused.
    pub async fn open(path_or_url: impl AsRef<str>) -> Result<Self, StoreError> {
        Options::new().open(path_or_url).await
    }

    /// Makes a store of the application's own pool, with the default [`Options`].
    pub fn from_pool(pool: SqlitePool) -> Result<Self, StoreError> {
        Options::new().from_pool(pool)
    }

    /// The pool for the application's own statements and transactions.
    pub fn pool(&self) -> &SqlitePool {
        &self.0.pool
    }

    /// The prefix of the table names.
    pub fn prefix(&self) -> &str {
        self.0.prefix.as_str()
    }

    /// Puts the file into WAL mode, if it is not, and checks that the pool leaves it so.
    pub(crate) async fn use_wal(&self) -> Result<(), StoreError> {
        let mut own = self.0.settles.enter().await?;
        let deadline = std::time::Instant::now() + self.0.busy_timeout;
        let mode = loop {
            match journal_mode(own.connection()?, "pragma journal_mode = wal").await {
                // SQLite does not wait by itself when several connections change the mode at once.
                Err(error) if error.kind() == StoreErrorKind::Unavailable && std::time::Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                other => break other?,
            }
        };
        drop(own);
        if mode == "memory" {
            return Err(in_memory());
        }
        let mut pooled = self.0.pool.acquire().await.map_err(error::of)?;
        let synchronous: i64 =
            sqlx::query_scalar("pragma synchronous").fetch_one(&mut *pooled).await.map_err(error::of)?;
        if self.0.durability == Durability::Full && synchronous < 2 {
            return Err(StoreError::new(
                StoreErrorKind::Rejected,
                "the pool has synchronous set below full, so a power cut could undo a commit whose event was already \
                 delivered: set it to full, or accept that with Options::durability(Durability::Normal)",
            ));
        }
        // A connection from before the change learns of it with its next read.
        sqlx::query("select count(*) from sqlite_schema").execute(&mut *pooled).await.map_err(error::of)?;
        let pooled = journal_mode(&mut pooled, "pragma journal_mode").await?;
        if mode == "wal" && pooled == "wal" {
            return Ok(());
        }
        Err(StoreError::new(
            StoreErrorKind::Rejected,
            format!(
                "the database is in journal mode {pooled:?}, and WAL is needed: set no other mode on the pool, and keep \
                 the file on a local disk"
            ),
        ))
    }

    /// Waits for the turn to write, and then for the connection.
    ///
    /// The turn is kept as long as the guard lives, and that is until after the transaction.
    pub(crate) async fn write_on<'a>(
        &'a self,
        line: &'a Line,
    ) -> Result<(tokio::sync::MutexGuard<'a, ()>, Entered<'a>), StoreError> {
        let turn = self.0.turn.lock().await;
        let entered = line.enter().await?;
        Ok((turn, entered))
    }

    /// Whether the lease is in force. In a transaction that holds the write lock, it stays so to the end.
    pub(crate) async fn in_force(&self, tx: &mut SqliteConnection, lease: &Lease) -> Result<bool, StoreError> {
        sqlx::query(self.0.sql.own.fence.clone())
            .bind(lease.incarnation.0)
            .bind(lease.node.as_str())
            .fetch_optional(tx)
            .await
            .map(|found| found.is_some())
            .map_err(error::of)
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("prefix", &self.prefix()).finish_non_exhaustive()
    }
}

/// SQLite's clock, without a statement: it reads the host's, in whole milliseconds, as this does.
pub(crate) fn now() -> Timestamp {
    let now = Timestamp::from(std::time::SystemTime::now()).as_micros();
    Timestamp::from_micros(now - now.rem_euclid(1_000))
}

async fn journal_mode(connection: &mut SqliteConnection, sql: &'static str) -> Result<String, StoreError> {
    let row = sqlx::query(sql).fetch_one(connection).await.map_err(error::of)?;
    row.try_get(0).map_err(error::of)
}

fn in_memory() -> StoreError {
    StoreError::new(
        StoreErrorKind::Rejected,
        "a database in memory has no commit that survives, and no second connection: open a file, in a temporary \
         folder for tests",
    )
}

#[cfg(test)]
mod tests {
    use pillarbox_core::port::UpkeepStore as _;

    use super::*;

    async fn pragma(connection: &mut SqliteConnection, sql: &'static str) -> String {
        let row = sqlx::query(sql).fetch_one(connection).await.unwrap();
        row.try_get::<String, _>(0).or_else(|_| row.try_get::<i64, _>(0).map(|n| n.to_string())).unwrap()
    }

    /// Every connection of a store: the whole pool, and its own.
    async fn assert_commits(store: &SqliteStore, synchronous: &str) {
        let inner = &store.0;
        let lines = [&inner.settles, &inner.lease, &inner.pages, &inner.seeks, &inner.operators, &inner.news];
        for line in lines {
            let mut entered = line.enter().await.unwrap();
            let connection = entered.connection().unwrap();
            assert_eq!(pragma(connection, "pragma journal_mode").await, "wal");
            assert_eq!(pragma(connection, "pragma synchronous").await, synchronous);
        }
        let mut pool = Vec::new();
        for _ in 0..inner.pool.options().get_max_connections() {
            let mut connection = inner.pool.acquire().await.unwrap();
            assert_eq!(pragma(&mut connection, "pragma journal_mode").await, "wal");
            assert_eq!(pragma(&mut connection, "pragma synchronous").await, synchronous);
            pool.push(connection);
        }
    }

    #[tokio::test]
    async fn every_connection_waits_for_the_disk_unless_told_otherwise() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("outbox.db");
        let path = path.to_str().unwrap();
        assert_commits(&SqliteStore::open(path).await.unwrap(), "2").await;
        let normal = Options::new().durability(Durability::Normal).open(path).await.unwrap();
        assert_commits(&normal, "1").await;
        let pool = SqlitePool::connect(path).await.unwrap();
        let own = SqliteStore::from_pool(pool).unwrap();
        own.migrate().await.unwrap();
        assert_commits(&own, "2").await;
    }
}

//! The store: how it is opened, and the connections it keeps.

use std::{
    fmt,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt as _;
use pillarbox_core::port::{StoreError, StoreErrorKind};
use sqlx::{
    ConnectOptions as _, Connection as _, MySqlConnection, MySqlPool, Row as _,
    mysql::{MySqlConnectOptions, MySqlPoolOptions},
};

use crate::{
    action::ActionSql,
    admin::AdminSql,
    connection::{Isolation, Line},
    error,
    life::{InLife, Joined},
    own::OwnSql,
    read::ReadSql,
    recall::RecallSql,
    settle::SettleSql,
    tables::Names,
    upkeep::UpkeepSql,
    water::{Sweeps, Water, WaterSql},
    write::{KeySql, WriteSql},
};

/// An outbox in a MySQL or MariaDB database. Cheap to clone.
#[derive(Clone)]
pub struct MySqlStore(pub(crate) Arc<Inner>);

/// After so long, a pooled connection is asked whether it lives.
const RESTED: Duration = Duration::from_secs(1);

/// How a store is opened.
///
/// ```
/// use pillarbox_mysql::Options;
///
/// let options = Options::new().prefix("orders_outbox_").pool_size(8);
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) prefix: String,
    pub(crate) schema: Option<String>,
    pool_size: u32,
    answer_within: Duration,
    longest_write_transaction: Duration,
    sweep_every: Duration,
    log_statements: bool,
}

pub(crate) struct Inner {
    pub(crate) names: Names,
    pub(crate) pool: MySqlPool,
    /// Whether only this store can have the pool: it was opened here, and nobody has asked for it.
    pool_is_ours: AtomicBool,
    /// Whether it was opened here.
    opened_pool: bool,
    /// For transactional handlers.
    pub(crate) work: MySqlPool,
    pub(crate) settles: Line,
    pub(crate) lease: Line,
    pub(crate) pages: Line,
    pub(crate) seeks: Line,
    answer_within: Duration,
    /// `max_allowed_packet`.
    pub(crate) packet: OnceLock<usize>,
    pub(crate) joined: Joined,
    pub(crate) water: Mutex<InLife<Water>>,
    pub(crate) sweeps: Mutex<InLife<Sweeps>>,
    /// The newest number that a wait for news has seen.
    pub(crate) seen: tokio::sync::Mutex<Option<i64>>,
    /// How a wait for news of the nodes has seen them last.
    pub(crate) seen_fleet: tokio::sync::Mutex<Option<String>>,
    pub(crate) sql: Sql,
}

pub(crate) struct Sql {
    pub(crate) write: WriteSql,
    pub(crate) keys: KeySql,
    pub(crate) own: OwnSql,
    pub(crate) read: ReadSql,
    pub(crate) recall: RecallSql,
    pub(crate) settle: SettleSql,
    pub(crate) upkeep: UpkeepSql,
    pub(crate) action: ActionSql,
    pub(crate) admin: AdminSql,
    pub(crate) water: WaterSql,
}

impl Options {
    /// Table names with the prefix `outbox_` in the database of the URL, a pool of 4.
    pub fn new() -> Self {
        Self {
            prefix: Names::DEFAULT.into(),
            schema: None,
            pool_size: 4,
            answer_within: Duration::from_secs(30),
            longest_write_transaction: Duration::from_mins(5),
            sweep_every: Duration::from_mins(10),
            log_statements: false,
        }
    }

    /// Begins the names of the tables with this. One database can hold several outboxes.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Keeps the tables in another database of the same server than that of the URL.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }

    /// Sets how many connections the application's transactions share. Transactional handlers share as many others.
    #[must_use]
    pub fn pool_size(mut self, connections: u32) -> Self {
        self.pool_size = connections;
        self
    }

    /// Sets how long the store's own calls wait for the database before they give up the connection: a server that
    /// vanished without a word must not be waited for. Default: 30 seconds.
    #[must_use]
    pub fn answer_within(mut self, limit: Duration) -> Self {
        self.answer_within = limit;
        self
    }

    /// Sets for how long a transaction that has written an event may stay open. It counts only where the user lacks
    /// the privilege PROCESS, so that the open transactions can't be seen: what commits later than this is found
    /// by the next sweep, and may come after its successors. Default: 5 minutes.
    #[must_use]
    pub fn longest_write_transaction(mut self, span: Duration) -> Self {
        self.longest_write_transaction = span;
        self
    }

    /// Sets how often all pending rows are looked at, wherever the reading has come to: the net under everything
    /// else. Default: 10 minutes, and at each takeover.
    #[must_use]
    pub fn sweep_every(mut self, interval: Duration) -> Self {
        self.sweep_every = interval;
        self
    }

    /// Leaves the log of statements to the driver: each at level debug with the target `sqlx::query`. Default: no
    /// statement is logged, since looking at each costs more than some of them.
    #[must_use]
    pub fn log_statements(mut self) -> Self {
        self.log_statements = true;
        self
    }

    /// The SQL of all migrations, for those who run them with a tool of their own, such as the `mysql` or `mariadb`
    /// client.
    pub fn migration_sql(&self) -> Result<String, StoreError> {
        Ok(crate::migrate::text(&Names::new(&self.prefix, self.schema.as_deref())?))
    }

    /// Opens the store at a URL such as `mysql://user:password@host:3306/database`. Encryption is set there too:
    /// `?ssl-mode=VERIFY_IDENTITY&ssl-ca=/path/to/ca.pem`.
    pub async fn open(self, url: impl AsRef<str>) -> Result<MySqlStore, StoreError> {
        let connect = self.own_options(crate::url::read(url.as_ref())?);
        let pool = MySqlPoolOptions::new()
            .max_connections(self.pool_size.max(1))
            // A round trip beside the three of a small transaction: only for those that have rested.
            .test_before_acquire(false)
            .before_acquire(|connection, meta| {
                Box::pin(async move {
                    if meta.idle_for >= RESTED {
                        connection.ping().await?;
                    }
                    Ok(true)
                })
            })
            .connect_lazy_with(connect.clone());
        let store = self.assemble(pool, true, &connect)?;
        // Tells at once when the server can't be reached.
        store.0.seeks.enter().await?.done();
        Ok(store)
    }

    /// Makes a store of the application's own pool, which it uses for the application's transactions alone.
    pub fn from_pool(self, pool: MySqlPool) -> Result<MySqlStore, StoreError> {
        let connect = self.own_options(pool.connect_options().as_ref().clone());
        self.assemble(pool, false, &connect)
    }

    fn own_options(&self, options: MySqlConnectOptions) -> MySqlConnectOptions {
        if self.log_statements { options } else { options.disable_statement_logging() }
    }

    fn assemble(
        self,
        pool: MySqlPool,
        opened_pool: bool,
        connect: &MySqlConnectOptions,
    ) -> Result<MySqlStore, StoreError> {
        let names = Names::new(&self.prefix, self.schema.as_deref())?;
        if names.schema().is_none() && connect.get_database().is_none() {
            return Err(StoreError::new(
                StoreErrorKind::Rejected,
                "the URL names no database: add `/database` to it, or set a schema",
            ));
        }
        let line = |isolation| Line::new(connect.clone(), isolation);
        Ok(MySqlStore(Arc::new(Inner {
            sql: Sql {
                write: WriteSql::new(&names),
                keys: KeySql::new(&names),
                own: OwnSql::new(&names),
                read: ReadSql::new(&names),
                recall: RecallSql::new(&names),
                settle: SettleSql::new(&names),
                upkeep: UpkeepSql::new(&names),
                action: ActionSql::new(&names),
                admin: AdminSql::new(&names),
                water: WaterSql::new(&names),
            },
            settles: line(Isolation::ReadCommitted),
            lease: line(Isolation::ReadCommitted),
            pages: line(Isolation::Snapshot),
            seeks: line(Isolation::ReadCommitted),
            answer_within: self.answer_within,
            packet: OnceLock::new(),
            joined: Joined::default(),
            water: Mutex::new(InLife::new(Water::new(self.longest_write_transaction))),
            sweeps: Mutex::new(InLife::new(Sweeps::new(self.sweep_every))),
            seen: tokio::sync::Mutex::default(),
            seen_fleet: tokio::sync::Mutex::default(),
            names,
            work: crate::work::beside(&pool),
            pool,
            pool_is_ours: AtomicBool::new(opened_pool),
            opened_pool,
        })))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        farewell(&self.work);
        if *self.pool_is_ours.get_mut() {
            farewell(&self.pool);
        }
    }
}

/// Closes a pool as each line does it with its connection: without a wait, wherever this is called. Over TLS the driver waits
/// for the server's end of each, so one look closes one.
fn farewell(pool: &MySqlPool) {
    for _ in 0..=pool.size() {
        if pool.close().now_or_never().is_some() {
            return;
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl MySqlStore {
    /// Opens the store at a URL, with the default [`Options`].
    pub async fn open(url: impl AsRef<str>) -> Result<Self, StoreError> {
        Options::new().open(url).await
    }

    /// Makes a store of the application's own pool, with the default [`Options`].
    pub fn from_pool(pool: MySqlPool) -> Result<Self, StoreError> {
        Options::new().from_pool(pool)
    }

    /// The pool for the application's own statements and transactions.
    pub fn pool(&self) -> &MySqlPool {
        self.0.pool_is_ours.store(false, Ordering::Relaxed);
        &self.0.pool
    }

    /// Closes the store's connections, and the pool if it was opened with the store: an application's own is the
    /// application's to close. It waits for who uses them. For the end of the process, after `Outbox::shutdown`: a server
    /// writes a client that vanishes into its log. A store that is dropped does the same, but for a pool that
    /// [`MySqlStore::pool`] was asked for.
    pub async fn close(&self) {
        if self.0.opened_pool {
            self.0.pool.close().await;
        }
        self.0.work.close().await;
        for line in [&self.0.settles, &self.0.lease, &self.0.pages, &self.0.seeks] {
            line.close().await;
        }
    }

    /// The prefix of the table names.
    pub fn prefix(&self) -> &str {
        self.0.names.prefix()
    }

    /// Gives up a call that the database does not answer in time.
    pub(crate) async fn within<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        match tokio::time::timeout(self.0.answer_within, call).await {
            Ok(answer) => answer,
            Err(_) => Err(StoreError::new(StoreErrorKind::Unavailable, "the database did not answer in time")),
        }
    }

    /// Checks what the outbox needs of the server's settings.
    pub(crate) async fn check_server(&self, connection: &mut MySqlConnection) -> Result<(), StoreError> {
        let row = sqlx::query(
            "select cast(@@global.auto_increment_increment as signed), sysdate(6) < sysdate(6) + sleep(0.002) \
             or sysdate(6) > utc_timestamp(6)",
        )
        .fetch_one(connection)
        .await
        .map_err(error::of)?;
        let step: i64 = row.try_get(0).map_err(error::of)?;
        if step != 1 {
            return Err(StoreError::new(StoreErrorKind::Rejected, step_refused(step)));
        }
        if row.try_get::<i64, _>(1).map_err(error::of)? == 0 {
            return Err(StoreError::new(
                StoreErrorKind::Rejected,
                "the server runs with `sysdate-is-now`, so a statement that waited for a lock would see an old time: \
                 start it without",
            ));
        }
        Ok(())
    }
}

impl fmt::Debug for MySqlStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySqlStore").field("prefix", &self.prefix()).finish_non_exhaustive()
    }
}

pub(crate) fn step_refused(step: i64) -> String {
    format!(
        "auto_increment_increment is {step}, and 1 is needed: numbers of several counters tell no order, so let one \
         server take all writes"
    )
}

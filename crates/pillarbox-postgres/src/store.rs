//! The store: how it is opened, and the connections it keeps.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use pillarbox_core::port::{StoreError, StoreErrorKind};
use sqlx::{
    ConnectOptions as _, Connection as _, PgPool, Postgres, SqlStr,
    postgres::{PgArguments, PgConnectOptions, PgPoolOptions},
    query::Query,
};

use crate::{
    action::ActionSql,
    admin::AdminSql,
    connection::Line,
    kept::Kept,
    life::{Life, LifeSql},
    own::OwnSql,
    read::ReadSql,
    settle::SettleSql,
    tables::Names,
    upkeep::UpkeepSql,
    url,
    wake::Listening,
    work::Work,
    writer::WriteSql,
};

/// An outbox in a PostgreSQL database. Cheap to clone.
#[derive(Clone)]
pub struct PostgresStore(pub(crate) Arc<Inner>);

/// After so long, a pooled connection is asked whether it lives.
const RESTED: Duration = Duration::from_secs(1);

/// How a store is opened.
///
/// ```
/// use pillarbox_postgres::Options;
///
/// let options = Options::new().schema("shop").prefix("orders_outbox_").pool_size(8);
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) schema: Option<String>,
    pub(crate) prefix: String,
    pool_size: u32,
    connect_within: Duration,
    answer_within: Duration,
    behind_pooler: bool,
    log_statements: bool,
}

pub(crate) struct Inner {
    pub(crate) names: Names,
    pub(crate) pool: PgPool,
    pub(crate) kept: Kept,
    pub(crate) work: Work,
    pub(crate) lease: Line,
    pub(crate) reads: Line,
    pub(crate) settles: Line,
    pub(crate) life: Life,
    pub(crate) news: Listening,
    pub(crate) behind_pooler: bool,
    answer_within: Duration,
    pub(crate) sql: Sql,
}

pub(crate) struct Sql {
    pub(crate) write: WriteSql,
    pub(crate) life: LifeSql,
    pub(crate) own: OwnSql,
    pub(crate) read: ReadSql,
    pub(crate) settle: SettleSql,
    pub(crate) upkeep: UpkeepSql,
    pub(crate) action: ActionSql,
    pub(crate) admin: AdminSql,
}

impl Options {
    /// Table names with the prefix `outbox_`, found by the search path and else made in its first schema, and a pool
    /// of 4. Where search paths differ, by role or by tenant, name the [`schema`](Self::schema).
    pub fn new() -> Self {
        Self {
            schema: None,
            prefix: Names::DEFAULT.into(),
            pool_size: 4,
            connect_within: Duration::from_secs(10),
            answer_within: Duration::from_secs(30),
            behind_pooler: false,
            log_statements: false,
        }
    }

    /// Keeps the tables in this schema, which the migrations make if it is missing. Its name has letters, digits, `_`,
    /// `-` and `$`, as they are written here: it is quoted.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }

    /// Begins the names of the tables with this. One schema can hold several outboxes.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets how many connections the application's transactions share, if the store is opened by URL. Transactional
    /// handlers share as many others.
    #[must_use]
    pub fn pool_size(mut self, connections: u32) -> Self {
        self.pool_size = connections;
        self
    }

    /// Sets how long the opening of a connection may take. Default: 10 seconds.
    #[must_use]
    pub fn connect_within(mut self, limit: Duration) -> Self {
        self.connect_within = limit;
        self
    }

    /// Sets how long the store's own calls wait for the database before they give up the connection: a server that
    /// vanished without a word must not be waited for. Default: 30 seconds.
    #[must_use]
    pub fn answer_within(mut self, limit: Duration) -> Self {
        self.answer_within = limit;
        self
    }

    /// Says that a pooler in transaction mode is in between, such as PgBouncer: nothing is prepared, each statement
    /// has a transaction around it, and there is no `LISTEN`. An application's own pool must come with
    /// `statement_cache_capacity(0)` then, and its own statements are its own affair.
    #[must_use]
    pub fn behind_pooler(mut self) -> Self {
        self.behind_pooler = true;
        self
    }

    /// Leaves the log of statements to the driver: each at level debug with the target `sqlx::query`. Default: the
    /// store's own connections log none.
    #[must_use]
    pub fn log_statements(mut self) -> Self {
        self.log_statements = true;
        self
    }

    /// Opens the store by a URL, `postgres://user:password@host:port/database?sslmode=...`. Connections are made when
    /// they are needed.
    pub fn open(mut self, url: impl AsRef<str>) -> Result<PostgresStore, StoreError> {
        let read = url::read(url.as_ref())?;
        self.behind_pooler |= read.behind_pooler;
        let connect = self.own_options(read.connect);
        let pool = PgPoolOptions::new()
            .max_connections(self.pool_size.max(1))
            .acquire_timeout(self.answer_within)
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
        self.assemble(pool, &connect)
    }

    /// Makes a store of the application's own pool, which it uses for the application's transactions and for
    /// operators' lists alone.
    pub fn from_pool(self, pool: PgPool) -> Result<PostgresStore, StoreError> {
        let connect = self.own_options(pool.connect_options().as_ref().clone());
        self.assemble(pool, &connect)
    }

    fn own_options(&self, options: PgConnectOptions) -> PgConnectOptions {
        let options = if self.log_statements { options } else { options.disable_statement_logging() };
        if self.behind_pooler {
            // Poolers refuse settings that they don't know.
            return options.statement_cache_capacity(0).extra_float_digits(None);
        }
        if options.get_application_name().is_some() { options } else { options.application_name("pillarbox") }
    }

    fn assemble(self, pool: PgPool, connect: &PgConnectOptions) -> Result<PostgresStore, StoreError> {
        let names = Names::new(self.schema.as_deref(), &self.prefix)?;
        let line = || Line::new(connect.clone(), self.connect_within, self.behind_pooler);
        Ok(PostgresStore(Arc::new(Inner {
            sql: Sql {
                write: WriteSql::new(&names),
                life: LifeSql::new(&names),
                own: OwnSql::new(&names),
                read: ReadSql::new(&names),
                settle: SettleSql::new(&names),
                upkeep: UpkeepSql::new(&names),
                action: ActionSql::new(&names),
                admin: AdminSql::new(&names),
            },
            lease: line(),
            reads: line(),
            settles: line(),
            life: Life::default(),
            news: Listening::new(connect.clone(), self.connect_within, &names),
            names,
            work: Work::beside(&pool),
            pool,
            kept: Kept::new(),
            behind_pooler: self.behind_pooler,
            answer_within: self.answer_within,
        })))
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl PostgresStore {
    /// Opens the store by a URL, `postgres://user:password@host:port/database?sslmode=...`, with the default
    /// [`Options`].
    pub fn open(url: impl AsRef<str>) -> Result<Self, StoreError> {
        Options::new().open(url)
    }

    /// Makes a store of the application's own pool, with the default [`Options`].
    pub fn from_pool(pool: PgPool) -> Result<Self, StoreError> {
        Options::new().from_pool(pool)
    }

    /// The pool for the application's own statements and transactions.
    pub fn pool(&self) -> &PgPool {
        &self.0.pool
    }

    /// The schema of the tables, if one was named.
    pub fn schema(&self) -> Option<&str> {
        self.0.names.schema()
    }

    /// The prefix of the table names.
    pub fn prefix(&self) -> &str {
        self.0.names.prefix()
    }

    /// A statement; prepared once a connection, where that can be.
    pub(crate) fn query<'q>(&self, sql: &SqlStr) -> Query<'q, Postgres, PgArguments> {
        sqlx::query(sql.clone()).persistent(!self.0.behind_pooler)
    }

    /// Gives up a call that the database does not answer in time.
    pub(crate) async fn within<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        match tokio::time::timeout(self.0.answer_within, call).await {
            Ok(answer) => answer,
            Err(_) => Err(StoreError::new(StoreErrorKind::Unavailable, "the database did not answer in time")),
        }
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore")
            .field("schema", &self.schema())
            .field("prefix", &self.prefix())
            .finish_non_exhaustive()
    }
}

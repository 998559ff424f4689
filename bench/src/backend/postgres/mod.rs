//! PostgreSQL: a private server for the run, or one of the user's own; a database for each round.

mod counts;
mod limit;

use std::{
    str::FromStr as _,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use pillarbox::port::UpkeepStore as _;
use pillarbox_postgres::{Options, PostgresStore};
use pillarbox_servers::postgres::{Postgres, Version};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, Row as _, postgres::PgConnectOptions};
use tokio::sync::{Mutex as AsyncMutex, OnceCell};

use super::{
    Backend, Begins, CONTENT_TYPE, Counted, Database as _, EVENT_TYPE, Finish, Hold, PAYLOAD, Server, Targets,
    wire::{Wire, redirected, with_database},
};
use crate::{Result, place::file_system, report::Target};

/// A server for one run.
#[derive(Debug)]
pub(crate) struct Bed {
    // Stopped last.
    admin: AsyncMutex<PgConnection>,
    empty: OnceCell<Database>,
    url: String,
    version: String,
    made: AtomicUsize,
    dropped: Arc<Mutex<Vec<String>>>,
    server: Option<Postgres>,
}

impl Bed {
    /// Starts a server with its default settings, fsync and synchronous_commit among them; or takes the one at the URL,
    /// whose role may create databases and checkpoints.
    pub(crate) async fn new(url: Option<&str>) -> Result<Self> {
        let server = match url {
            Some(_) => None,
            None => Some(Postgres::options(Version::Debian).durable().start()?),
        };
        let url = match (&server, url) {
            (Some(server), _) => server.admin_url("postgres"),
            (None, url) => url.unwrap_or_default().to_owned(),
        };
        let mut admin = connect(&url).await?;
        let row = sqlx::query("select current_setting('server_version')").fetch_one(&mut admin).await?;
        for setting in ["fsync", "synchronous_commit", "full_page_writes"] {
            let is: String =
                sqlx::query("select current_setting($1)").bind(setting).fetch_one(&mut admin).await?.try_get(0)?;
            if is != "on" {
                return Err(format!("`{setting}` is {is}, and figures of such a server say nothing").into());
            }
        }
        Ok(Self {
            admin: AsyncMutex::new(admin),
            empty: OnceCell::new(),
            url,
            version: row.try_get(0)?,
            made: AtomicUsize::new(0),
            dropped: Arc::default(),
            server,
        })
    }

    /// The URL for who may do everything.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Host and port.
    fn address(&self) -> Result<String> {
        let options = PgConnectOptions::from_str(&self.url)?;
        Ok(format!("{}:{}", options.get_host(), options.get_port()))
    }

    /// Drops what nobody needs any more, and makes a database: empty, or as a copy. Then a checkpoint, so that everyone
    /// begins with clean pages and the next checkpoint is as far away as can be.
    async fn make(&self, template: Option<&str>) -> Result<Database> {
        let mut admin = self.admin.lock().await;
        let dropped = std::mem::take(&mut *self.dropped.lock().unwrap_or_else(PoisonError::into_inner));
        for name in dropped {
            run(&mut admin, format!("drop database if exists {name} with (force)")).await?;
        }
        let name = format!("pb_bench_{}_{}", std::process::id(), self.made.fetch_add(1, Ordering::Relaxed));
        match template {
            // By files, not through the log.
            Some(template) => {
                run(&mut admin, format!("create database {name} template {template} strategy file_copy")).await?;
            }
            None => run(&mut admin, format!("create database {name}")).await?,
        }
        run(&mut admin, "checkpoint".into()).await?;
        let url = with_database(&self.url, &name).ok_or("the URL is not one")?;
        let mut database = Database::at(&url);
        database.name = name;
        database.dropped = Some(self.dropped.clone());
        Ok(database)
    }

    async fn template(&self) -> Result<&Database> {
        self.empty
            .get_or_try_init(|| async {
                let database = self.make(None).await?;
                let store = database.store().await?;
                store.migrate().await?;
                store.pool().close().await;
                drop(store);
                self.left_alone(&database.name).await?;
                Ok(database)
            })
            .await
    }

    /// Waits until nobody is connected to a database: then all have handed in their statistics, and it can be copied.
    async fn left_alone(&self, name: &str) -> Result<()> {
        let mut admin = self.admin.lock().await;
        for _ in 0..2_000 {
            let row = sqlx::query(
                "select count(*) from pg_stat_activity where datname = $1 and backend_type = 'client backend'",
            )
            .bind(name)
            .fetch_one(&mut *admin)
            .await?;
            if row.try_get::<i64, _>(0)? == 0 {
                return Ok(());
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        Err(format!("someone stays connected to {name}").into())
    }
}

impl Backend for Bed {
    const NAME: &'static str = "postgres";
    const TARGETS: Targets = Targets {
        write_1: Some(Target::AtLeast(0.9)),
        write_100: Some(Target::AtLeast(0.8)),
        drain_keep: Some(Target::AtLeast(0.6)),
        drain_delete: Some(Target::AtLeast(0.5)),
        ordered_drain: Some(Target::AtLeast(0.7)),
        more_nodes: Some(Target::AtLeast(0.9)),
        held_tx: Some(Target::AtLeast(0.9)),
        log_bytes: Some(Target::AtMost(600.0)),
        hot_latency: Some(Target::AtMost(1.0)),
        remote_latency: Some(Target::AtMost(10.0)),
        read_flat: Some(Target::AtMost(1.3)),
        peers: Some(Target::AtLeast(2.0)),
        ordered_peers: Some(Target::AtLeast(5.0)),
        ..Targets::NONE
    };
    const LIMIT: &'static str = "Write: begin, one prepared insert\n(of arrays, where there are 100), commit. Drain: \
        select a page by primary key, finish exactly its rows by range in\none statement that is its own transaction.";
    type Database = Database;

    fn place(&self) -> String {
        match &self.server {
            Some(server) => format!(
                "PostgreSQL {} with default settings in {} on {}",
                self.version,
                server.folder().display(),
                file_system(server.folder())
            ),
            None => format!("PostgreSQL {}, a server that was there", self.version),
        }
    }

    async fn empty(&self) -> Result<Database> {
        let template = self.template().await?;
        self.make(Some(&template.name)).await
    }

    async fn copy(&self, template: &Database) -> Result<Database> {
        template.unwatch().await?;
        self.left_alone(&template.name).await?;
        self.make(Some(&template.name)).await
    }

    async fn count(
        &self,
        waiting: usize,
        events: usize,
        _begins: Begins,
        run: impl AsyncFnMut(&Database) -> Result<()>,
    ) -> Result<Counted> {
        counts::of(self, waiting, events, run).await
    }
}

impl Server for Bed {
    type Held = PgConnection;

    async fn hold(&self, database: &Database, hold: Hold) -> Result<PgConnection> {
        let mut connection = connect(&database.url).await?;
        match hold {
            Hold::Snapshot => {
                run(&mut connection, "begin isolation level repeatable read read only".into()).await?;
                run(&mut connection, "select count(*) from outbox_partition".into()).await?;
            }
            Hold::Writer => {
                run(&mut connection, "create table bench_business (id bigint)".into()).await?;
                run(&mut connection, "begin".into()).await?;
                run(&mut connection, "insert into bench_business values (1)".into()).await?;
            }
        }
        Ok(connection)
    }

    async fn log_position(&self) -> Result<u64> {
        let mut admin = self.admin.lock().await;
        let row = sqlx::query("select (pg_current_wal_insert_lsn() - '0/0')::bigint").fetch_one(&mut *admin).await?;
        Ok(u64::try_from(row.try_get::<i64, _>(0)?)?)
    }
}

/// A database, dropped before the next one is made.
#[derive(Debug)]
pub(crate) struct Database {
    name: String,
    url: String,
    /// By which way others reach it, if that is counted.
    by: Option<String>,
    dropped: Option<Arc<Mutex<Vec<String>>>>,
    watch: AsyncMutex<Option<PgConnection>>,
    /// Questions of `pending`, which are left out of counts.
    asked: AtomicU64,
}

impl Database {
    /// As the store and the limit connect.
    fn way(&self) -> &str {
        self.by.as_deref().unwrap_or(&self.url)
    }

    async fn connect(&self) -> Result<PgConnection> {
        connect(self.way()).await
    }

    /// Closes the connection of `pending`.
    async fn unwatch(&self) -> Result<()> {
        if let Some(connection) = self.watch.lock().await.take() {
            connection.close().await?;
        }
        Ok(())
    }

    /// Whether a row is there, by the connection of `pending`.
    pub(crate) async fn has(&self, seq: usize) -> Result<bool> {
        let mut watch = self.watch.lock().await;
        let connection = watch.as_mut().ok_or("nobody looks on")?;
        let row = sqlx::query("select exists (select from outbox_event where seq = $1)")
            .bind(i64::try_from(seq)?)
            .fetch_one(connection)
            .await?;
        Ok(row.try_get(0)?)
    }

    /// How many rows there are up to a number, by the connection of `pending`.
    pub(crate) async fn count_to(&self, seq: usize) -> Result<usize> {
        let mut watch = self.watch.lock().await;
        let connection = watch.as_mut().ok_or("nobody looks on")?;
        let row = sqlx::query("select count(*) from outbox_event where seq <= $1")
            .bind(i64::try_from(seq)?)
            .fetch_one(connection)
            .await?;
        Ok(usize::try_from(row.try_get::<i64, _>(0)?)?)
    }

    /// The same, through a wire that counts.
    fn through(mut self, wire: &Wire) -> Result<Self> {
        let by = redirected(&self.url, &format!("127.0.0.1:{}", wire.port()));
        self.by = Some(by.ok_or("the URL is not one")?);
        Ok(self)
    }
}

impl super::Database for Database {
    type Store = PostgresStore;
    type Writer = limit::Writer;

    fn at(address: &str) -> Self {
        Self {
            name: String::new(),
            url: address.to_owned(),
            by: None,
            dropped: None,
            watch: AsyncMutex::default(),
            asked: AtomicU64::new(0),
        }
    }

    fn address(&self) -> String {
        self.url.clone()
    }

    async fn store(&self) -> Result<PostgresStore> {
        Ok(Options::new().open(self.way())?)
    }

    async fn close(store: &PostgresStore) {
        store.pool().close().await;
    }

    async fn fill(&self, events: usize) -> Result<()> {
        let mut connection = connect(&self.url).await?;
        sqlx::query(
            "insert into outbox_event (given_partition, event_id, event_type, content_type, payload_bytes)
             select n % 256, lpad(n::text, 26, '0'), $2, $3, $4 from generate_series(1, $1::bigint) as n",
        )
        .bind(i64::try_from(events)?)
        .bind(EVENT_TYPE)
        .bind(CONTENT_TYPE)
        .bind(vec![b'x'; PAYLOAD])
        .execute(&mut connection)
        .await?;
        // Else autovacuum would do it, in the middle of some round.
        run(&mut connection, "vacuum (analyze) outbox_event".into()).await?;
        connection.close().await?;
        Ok(())
    }

    async fn pending(&self, above: usize) -> Result<i64> {
        let mut watch = self.watch.lock().await;
        if watch.is_none() {
            *watch = Some(connect(&self.url).await?);
        }
        let connection = watch.as_mut().ok_or("there is no connection")?;
        self.asked.fetch_add(1, Ordering::Relaxed);
        let row = sqlx::query("select count(*) from outbox_event where seq > $1 and status in ('NEW', 'RETRY')")
            .bind(i64::try_from(above)?)
            .fetch_one(connection)
            .await?;
        Ok(row.try_get(0)?)
    }

    async fn mark(&self) -> Result<i64> {
        let mut connection = connect(&self.url).await?;
        let row = sqlx::query("select min(mark) from outbox_partition").fetch_one(&mut connection).await?;
        Ok(row.try_get(0)?)
    }

    async fn writer(&self, events: usize) -> Result<limit::Writer> {
        limit::Writer::open(self, events).await
    }

    async fn drain(&self, events: usize, page: usize, finish: Finish) -> Result<f64> {
        limit::drain(self, events, page, finish).await
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Some(dropped) = &self.dropped {
            dropped.lock().unwrap_or_else(PoisonError::into_inner).push(std::mem::take(&mut self.name));
        }
    }
}

async fn connect(url: &str) -> Result<PgConnection> {
    Ok(PgConnectOptions::from_str(url)?.disable_statement_logging().connect().await?)
}

/// Runs a statement that was put together from names of the bench's own.
async fn run(connection: &mut PgConnection, sql: String) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await?;
    Ok(())
}

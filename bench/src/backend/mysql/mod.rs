//! MySQL and MariaDB: a private server for the run, or one of the user's own; a database for each round.

mod counts;
mod limit;

use std::{
    ops::Deref,
    str::FromStr as _,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use pillarbox::port::UpkeepStore as _;
use pillarbox_mysql::{MySqlStore, Options};
use pillarbox_servers::mysql::{self, MariaDb, MySql};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, MySqlConnection, Row as _, mysql::MySqlConnectOptions,
};
use tokio::sync::Mutex as AsyncMutex;

use super::{
    Backend, Begins, CONTENT_TYPE, Counted, Database as _, EVENT_TYPE, Finish, Hold, PAYLOAD, Server, Targets,
    wire::{Wire, redirected, with_database},
};
use crate::{Result, place::file_system};

/// Rows of one statement that fills a table.
const CHUNK: usize = 100_000;

/// A server for one run.
#[derive(Debug)]
pub(crate) struct Bed {
    admin: AsyncMutex<MySqlConnection>,
    url: String,
    version: String,
    /// Settings that hold back the writing of dirty pages, as they were.
    pace: [(&'static str, String); 3],
    made: AtomicUsize,
    dropped: Arc<Mutex<Vec<String>>>,
    // Stopped last.
    server: Option<Private>,
}

/// Which of the two, where the server is a private one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    MariaDb,
    MySql,
}

/// A server of the bench's own.
#[derive(Debug)]
enum Private {
    MariaDb(MariaDb),
    MySql(MySql),
}

impl Deref for Private {
    type Target = mysql::Server;

    fn deref(&self) -> &mysql::Server {
        match self {
            Self::MariaDb(server) => server,
            Self::MySql(server) => server,
        }
    }
}

impl Bed {
    /// Starts a server with its default settings, which wait for the disk; or takes the one at the URL, whose user may
    /// create databases and set global variables.
    pub(crate) async fn new(family: Family, url: Option<&str>) -> Result<Self> {
        let options = mysql::Options::default().durable();
        let server = match (url, family) {
            (Some(_), _) => None,
            (None, Family::MariaDb) => Some(Private::MariaDb(MariaDb::start_with(options)?)),
            (None, Family::MySql) => Some(Private::MySql(MySql::start_with(options)?)),
        };
        let url = match (&server, url) {
            (Some(server), _) => server.admin_url("mysql"),
            (None, url) => url.unwrap_or_default().to_owned(),
        };
        let mut admin = connect(&url).await?;
        let version = variable(&mut admin, "version").await?;
        if variable(&mut admin, "innodb_flush_log_at_trx_commit").await? != "1" {
            return Err("`innodb_flush_log_at_trx_commit` is not 1, and figures of such a server say nothing".into());
        }
        let mut pace = ["innodb_io_capacity", "innodb_io_capacity_max", "innodb_max_dirty_pages_pct"]
            .map(|name| (name, String::new()));
        for (name, value) in &mut pace {
            *value = variable(&mut admin, name).await?;
        }
        counts::enable(&mut admin).await?;
        Ok(Self {
            admin: AsyncMutex::new(admin),
            url,
            version,
            pace,
            made: AtomicUsize::new(0),
            dropped: Arc::default(),
            server,
        })
    }

    /// Drops what nobody needs any more, and makes a database with the outbox's tables.
    async fn make(&self) -> Result<Database> {
        let name = {
            let mut admin = self.admin.lock().await;
            let dropped = std::mem::take(&mut *self.dropped.lock().unwrap_or_else(PoisonError::into_inner));
            for name in dropped {
                end_sessions(&mut admin, &name).await?;
                run(&mut admin, format!("drop database if exists {name}")).await?;
            }
            let name = format!("pb_bench_{}_{}", std::process::id(), self.made.fetch_add(1, Ordering::Relaxed));
            run(&mut admin, format!("create database {name}")).await?;
            name
        };
        let url = with_database(&self.url, &name).ok_or("the URL is not one")?;
        let mut database = Database::at(&url);
        database.name = name;
        database.dropped = Some(self.dropped.clone());
        let store = database.store().await?;
        store.migrate().await?;
        store.pool().close().await;
        Ok(database)
    }

    /// Waits until dirty pages are written, so that everyone begins alike. By default that takes a server minutes.
    pub(crate) async fn settle_down(&self) -> Result<()> {
        let mut admin = self.admin.lock().await;
        let hurry =
            [("innodb_io_capacity_max", "20000"), ("innodb_io_capacity", "20000"), ("innodb_max_dirty_pages_pct", "0")];
        for (name, value) in hurry {
            run(&mut admin, format!("set global {name} = {value}")).await?;
        }
        for _ in 0..100 {
            if status(&mut admin, "Innodb_buffer_pool_pages_dirty").await? < 50 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for (name, value) in &self.pace {
            run(&mut admin, format!("set global {name} = {value}")).await?;
        }
        Ok(())
    }

    /// Host and port.
    fn address(&self) -> Result<String> {
        let options = MySqlConnectOptions::from_str(&self.url)?;
        Ok(format!("{}:{}", options.get_host(), options.get_port()))
    }
}

impl Backend for Bed {
    const NAME: &'static str = "mysql";
    const TARGETS: Targets = Targets::NONE;
    const LIMIT: &'static str = "Write: begin, one prepared insert,\ncommit. Drain: select a page by primary key, finish \
        exactly its rows by range in one statement that is its own\ntransaction.";
    type Database = Database;

    fn place(&self) -> String {
        match &self.server {
            Some(server) => format!(
                "{} with default settings in {} on {}",
                self.version,
                server.folder().display(),
                file_system(server.folder())
            ),
            None => format!("{}, a server that was there", self.version),
        }
    }

    async fn empty(&self) -> Result<Database> {
        let database = self.make().await?;
        self.settle_down().await?;
        Ok(database)
    }

    async fn copy(&self, template: &Database) -> Result<Database> {
        let database = self.make().await?;
        let mut connection = connect(&database.url).await?;
        let sql = format!("insert into outbox_event select * from {}.outbox_event order by seq", template.name);
        run(&mut connection, sql).await?;
        run(&mut connection, "analyze table outbox_event".into()).await?;
        connection.close().await?;
        self.settle_down().await?;
        Ok(database)
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
    type Held = MySqlConnection;

    async fn hold(&self, database: &Database, hold: Hold) -> Result<MySqlConnection> {
        let mut connection = connect(&database.url).await?;
        match hold {
            Hold::Snapshot => {
                run(&mut connection, "start transaction with consistent snapshot, read only".into()).await?;
            }
            Hold::Writer => {
                run(&mut connection, "create table bench_business (id bigint) engine = InnoDB".into()).await?;
                run(&mut connection, "start transaction".into()).await?;
                run(&mut connection, "insert into bench_business values (1)".into()).await?;
            }
        }
        Ok(connection)
    }

    async fn log_position(&self) -> Result<u64> {
        counts::log_position(&mut *self.admin.lock().await).await
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
    watch: AsyncMutex<Option<MySqlConnection>>,
}

impl Database {
    /// As the store and the limit connect.
    fn way(&self) -> &str {
        self.by.as_deref().unwrap_or(&self.url)
    }

    async fn connect(&self) -> Result<MySqlConnection> {
        connect(self.way()).await
    }

    /// The same, through a wire that counts.
    fn through(mut self, wire: &Wire) -> Result<Self> {
        let by = redirected(&self.url, &format!("127.0.0.1:{}", wire.port()));
        self.by = Some(by.ok_or("the URL is not one")?);
        Ok(self)
    }
}

impl super::Database for Database {
    type Store = MySqlStore;
    type Writer = limit::Writer;

    fn at(address: &str) -> Self {
        Self { name: String::new(), url: address.to_owned(), by: None, dropped: None, watch: AsyncMutex::default() }
    }

    fn address(&self) -> String {
        self.url.clone()
    }

    async fn store(&self) -> Result<MySqlStore> {
        Ok(Options::new().open(self.way()).await?)
    }

    async fn close(store: &MySqlStore) {
        store.pool().close().await;
    }

    async fn fill(&self, events: usize) -> Result<()> {
        let mut connection = connect(&self.url).await?;
        let mut left = events;
        while left > 0 {
            let count = left.min(CHUNK);
            left -= count;
            // Neither of MariaDB's and MySQL's ways to count reaches farther than a thousand by default.
            let sql = format!(
                "insert into outbox_event (`partition`, event_id, event_type, content_type, payload_bytes)
                 with recursive numbers (n) as (select 0 union all select n + 1 from numbers where n < 999)
                 select (a.n * 1000 + b.n) % 256, lpad(a.n * 1000 + b.n, 26, '0'), '{EVENT_TYPE}', '{CONTENT_TYPE}',
                     repeat('x', {PAYLOAD})
                 from numbers as a cross join numbers as b limit {count}"
            );
            run(&mut connection, sql).await?;
        }
        run(&mut connection, "analyze table outbox_event".into()).await?;
        connection.close().await?;
        Ok(())
    }

    async fn pending(&self, above: usize) -> Result<i64> {
        let mut watch = self.watch.lock().await;
        if watch.is_none() {
            *watch = Some(connect(&self.url).await?);
        }
        let connection = watch.as_mut().ok_or("there is no connection")?;
        let row = sqlx::query("select count(*) from outbox_event where seq > ? and status in ('NEW', 'RETRY')")
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

async fn connect(url: &str) -> Result<MySqlConnection> {
    Ok(MySqlConnectOptions::from_str(url)?.disable_statement_logging().connect().await?)
}

/// Ends what is still connected to a database, since an open transaction would make the drop wait.
async fn end_sessions(admin: &mut MySqlConnection, name: &str) -> Result<()> {
    let sessions = sqlx::query("select cast(id as signed) from information_schema.processlist where db = ?")
        .bind(name)
        .fetch_all(&mut *admin)
        .await?;
    for session in sessions {
        // It may have ended meanwhile.
        let _ = run(admin, format!("kill {}", session.try_get::<i64, _>(0)?)).await;
    }
    Ok(())
}

/// A global variable.
async fn variable(connection: &mut MySqlConnection, name: &str) -> Result<String> {
    let row = sqlx::query(AssertSqlSafe(format!("select cast(@@global.{name} as char)"))).fetch_one(connection).await?;
    Ok(row.try_get(0)?)
}

/// A number among the global status.
async fn status(connection: &mut MySqlConnection, name: &str) -> Result<u64> {
    let sql = AssertSqlSafe(format!("show global status like '{name}'"));
    let row = sqlx::raw_sql(sql).fetch_optional(connection).await?;
    let row = row.ok_or_else(|| format!("the server has no status `{name}`"))?;
    Ok(row.try_get::<String, _>(1)?.parse()?)
}

/// Runs a statement that was put together from names of the bench's own.
async fn run(connection: &mut MySqlConnection, sql: String) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await?;
    Ok(())
}

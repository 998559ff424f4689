//! A database for one round, and what the server counts in it.

use std::{
    process,
    str::FromStr as _,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, Row as _, postgres::PgConnectOptions};
use tokio::time::sleep;

use crate::Result;

/// How long the server may take to end a session.
const PATIENCE: Duration = Duration::from_secs(30);

/// A database that nobody else uses.
#[derive(Debug)]
pub(crate) struct Database {
    /// In another database of the server, so that what is asked here is not counted there.
    server: PgConnection,
    options: PgConnectOptions,
    name: String,
}

/// What was done in a database.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    pub(crate) commits: i64,
    pub(crate) row_writes: i64,
}

impl Database {
    pub(crate) async fn create(url: &str) -> Result<Self> {
        let options = PgConnectOptions::from_str(url)?;
        let mut server = options.connect().await?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros();
        let name = format!("pillarbox_peers_{}_{now}", process::id());
        sqlx::raw_sql(AssertSqlSafe(format!("create database {name}"))).execute(&mut server).await?;
        // Before the events are there: the next checkpoint, with its full pages in the log, is as far away as can be.
        sqlx::raw_sql("checkpoint").execute(&mut server).await?;
        Ok(Self { server, options: options.database(&name), name })
    }

    pub(crate) async fn drop(mut self) -> Result<()> {
        let sql = format!("drop database {} with (force)", self.name);
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut self.server).await?;
        Ok(self.server.close().await?)
    }

    pub(crate) fn url(&self) -> String {
        self.options.to_url_lossy().into()
    }

    pub(crate) async fn connect(&self) -> Result<PgConnection> {
        Ok(self.options.connect().await?)
    }

    /// The position in the write-ahead log of the server.
    pub(crate) async fn log_position(&mut self) -> Result<i64> {
        let sql = "select (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint";
        Ok(sqlx::raw_sql(sql).fetch_one(&mut self.server).await?.try_get(0)?)
    }

    /// What was done in this database so far. Ends all its sessions: that is when they hand in their statistics.
    pub(crate) async fn counts(&mut self) -> Result<Counts> {
        self.allow_connections(false).await?;
        self.end_sessions().await?;
        let sql = "select xact_commit, tup_inserted + tup_updated + tup_deleted from pg_stat_database \
                   where datname = $1";
        let row = sqlx::query(sql).bind(&self.name).fetch_one(&mut self.server).await?;
        self.allow_connections(true).await?;
        Ok(Counts { commits: row.try_get(0)?, row_writes: row.try_get(1)? })
    }

    async fn allow_connections(&mut self, allowed: bool) -> Result<()> {
        let sql = format!("alter database {} allow_connections {allowed}", self.name);
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut self.server).await?;
        Ok(())
    }

    async fn end_sessions(&mut self) -> Result<()> {
        let sql = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
                   where datname = $1 and backend_type = 'client backend'";
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            let sessions: i64 = sqlx::query(sql).bind(&self.name).fetch_one(&mut self.server).await?.try_get(0)?;
            if sessions == 0 {
                return Ok(());
            }
            sleep(Duration::from_millis(10)).await;
        }
        Err(format!("sessions in {} did not end within {PATIENCE:?}", self.name).into())
    }
}

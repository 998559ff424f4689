//! SQLite: files in a folder for the run.

mod counts;
mod limit;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

pub(crate) use counts::install;
use pillarbox::{SqliteStore, port::UpkeepStore as _};
use pillarbox_sqlite::Options;
use sqlx::{ConnectOptions as _, Connection as _, Row as _, SqliteConnection};
use tempfile::TempDir;
use tokio::sync::Mutex;

use super::{Backend, Begins, CONTENT_TYPE, Counted, EVENT_TYPE, Finish, PAYLOAD, Targets};
use crate::{
    Result,
    place::{file_system, on_a_disk},
    report::Target,
};

/// A folder for one run.
#[derive(Debug)]
pub(crate) struct Bed {
    folder: TempDir,
    made: AtomicUsize,
}

impl Bed {
    pub(crate) fn new(dir: Option<&Path>) -> Result<Self> {
        let dir = dir.map_or_else(on_a_disk, Path::to_path_buf);
        fs::create_dir_all(&dir)?;
        let folder = tempfile::Builder::new().prefix("pillarbox-bench-").tempdir_in(dir)?;
        Ok(Self { folder, made: AtomicUsize::new(0) })
    }

    /// A name that no file has yet.
    fn new_file(&self) -> Database {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let mut file = Database::of(self.folder.path().join(format!("{number}.db")));
        file.owned = true;
        file
    }
}

impl Backend for Bed {
    const NAME: &'static str = "sqlite";
    const TARGETS: Targets = Targets {
        write_1: Some(Target::AtLeast(0.9)),
        write_100: Some(Target::AtLeast(0.9)),
        drain_keep: Some(Target::AtLeast(0.6)),
        drain_delete: Some(Target::AtLeast(0.6)),
        ordered_drain: Some(Target::AtLeast(0.7)),
        hot_latency: Some(Target::AtMost(1.0)),
        memory: Some(Target::AtMost(64.0)),
        read_flat: Some(Target::AtMost(1.3)),
        ..Targets::NONE
    };
    const LIMIT: &'static str = "Write: begin immediate, one prepared\ninsert, commit. Drain: select a page by primary \
        key, finish exactly its rows by range in one statement that is\nits own transaction.";
    type Database = Database;

    fn place(&self) -> String {
        format!("{} on {}", self.folder.path().display(), file_system(self.folder.path()))
    }

    async fn empty(&self) -> Result<Database> {
        let file = self.new_file();
        let store = file.open().await?;
        store.migrate().await?;
        store.pool().close().await;
        Ok(file)
    }

    async fn copy(&self, template: &Database) -> Result<Database> {
        let file = self.new_file();
        fs::copy(&template.path, &file.path)?;
        File::open(&file.path)?.sync_all()?;
        Ok(file)
    }

    async fn count(
        &self,
        waiting: usize,
        events: usize,
        begins: Begins,
        run: impl AsyncFnMut(&Database) -> Result<()>,
    ) -> Result<Counted> {
        let template = self.filled(waiting).await?;
        counts::of(self, &template, events, begins, run).await
    }
}

/// A database file, removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Database {
    path: PathBuf,
    owned: bool,
    /// Whether the driver logs statements, for counting them.
    logs: bool,
    watch: Mutex<Option<SqliteConnection>>,
}

impl Database {
    fn of(path: PathBuf) -> Self {
        Self { path, owned: false, logs: false, watch: Mutex::default() }
    }

    /// The file with the write-ahead log.
    fn log(&self) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push("-wal");
        name.into()
    }

    async fn open(&self) -> Result<SqliteStore> {
        let options = if self.logs { Options::new().log_statements() } else { Options::new() };
        Ok(options.open(self.path.to_string_lossy()).await?)
    }

    /// Opens a connection of one's own with the settings of the store's.
    async fn connect(&self) -> Result<SqliteConnection> {
        let options = self.open().await?.pool().connect_options().as_ref().clone();
        // Rows come over from the driver's thread through a buffer: as wide as the store's own for pages.
        Ok(options.row_buffer_size(256).connect().await?)
    }
}

impl super::Database for Database {
    type Store = SqliteStore;
    type Writer = limit::Writer;

    fn at(address: &str) -> Self {
        Self::of(address.into())
    }

    fn address(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }

    async fn store(&self) -> Result<SqliteStore> {
        self.open().await
    }

    async fn close(store: &SqliteStore) {
        store.pool().close().await;
    }

    /// Puts the events into the file itself, so that every run begins with an empty log.
    async fn fill(&self, events: usize) -> Result<()> {
        let mut connection = self.connect().await?;
        sqlx::query(
            "insert into outbox_event (partition, event_id, event_type, content_type, payload)
             with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < ?1)
             select abs(random() % 256), printf('%026d', n), ?2, ?3, randomblob(?4) from numbers where ?1 > 0",
        )
        .bind(i64::try_from(events)?)
        .bind(EVENT_TYPE)
        .bind(CONTENT_TYPE)
        .bind(i64::try_from(PAYLOAD)?)
        .execute(&mut connection)
        .await?;
        empty_log(&mut connection).await?;
        connection.close().await?;
        Ok(())
    }

    async fn pending(&self, above: usize) -> Result<i64> {
        let mut watch = self.watch.lock().await;
        if watch.is_none() {
            let options = self.open().await?.pool().connect_options().as_ref().clone();
            *watch = Some(options.disable_statement_logging().connect().await?);
        }
        let connection = watch.as_mut().ok_or("there is no connection")?;
        let row =
            sqlx::query("select count(*) from outbox_event not indexed where seq > ? and status in ('NEW', 'RETRY')")
                .bind(i64::try_from(above)?)
                .fetch_one(connection)
                .await?;
        Ok(row.try_get(0)?)
    }

    async fn mark(&self) -> Result<i64> {
        let mut connection = self.connect().await?;
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

/// Moves everything from the log to the file.
async fn empty_log(connection: &mut SqliteConnection) -> Result<()> {
    sqlx::query("pragma wal_checkpoint(truncate)").execute(connection).await?;
    Ok(())
}

impl Drop for Database {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        for suffix in ["", "-wal", "-shm"] {
            let mut name = self.path.clone().into_os_string();
            name.push(suffix);
            // What is left goes with the folder.
            let _ = fs::remove_file(name);
        }
    }
}

//! Where the databases of a run lie, and how they are filled.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

use pillarbox::{SqliteStore, port::UpkeepStore as _};
use pillarbox_sqlite::Options;
use sqlx::{ConnectOptions as _, Connection as _, Row as _, SqliteConnection};
use tempfile::TempDir;

use crate::Result;

/// The size of every payload.
pub(crate) const PAYLOAD: usize = 256;
/// The type of every event.
pub(crate) const EVENT_TYPE: &str = "Measured";
/// The content type of every payload.
pub(crate) const CONTENT_TYPE: &str = "application/octet-stream";

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

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A name that no file has yet.
    pub(crate) fn new_file(&self) -> Database {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        Database(self.folder.path().join(format!("{number}.db")))
    }

    /// A database with so many events that wait.
    pub(crate) async fn filled(&self, events: usize) -> Result<Database> {
        let file = self.new_file();
        let store = file.store().await?;
        store.migrate().await?;
        file.fill(events).await?;
        store.pool().close().await;
        Ok(file)
    }

    /// A copy, on the disk before it is used.
    pub(crate) fn copy(&self, template: &Database) -> Result<Database> {
        let file = self.new_file();
        fs::copy(&template.0, &file.0)?;
        File::open(&file.0)?.sync_all()?;
        Ok(file)
    }
}

/// A database file, removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Database(PathBuf);

impl Database {
    pub(crate) fn at(path: &Path) -> Self {
        Self(path.to_path_buf())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// The file with the write-ahead log.
    pub(crate) fn log(&self) -> PathBuf {
        let mut name = self.0.clone().into_os_string();
        name.push("-wal");
        name.into()
    }

    /// The store as a user opens it.
    pub(crate) async fn store(&self) -> Result<SqliteStore> {
        self.store_with(Options::new()).await
    }

    pub(crate) async fn store_with(&self, options: Options) -> Result<SqliteStore> {
        Ok(options.open(self.0.to_string_lossy()).await?)
    }

    /// Appends so many events, and puts them into the file itself, so that every run begins with an empty log.
    pub(crate) async fn fill(&self, events: usize) -> Result<()> {
        let mut connection = connect(&self.store().await?).await?;
        sqlx::query(
            "insert into outbox_event (partition, event_id, event_type, content_type, payload)
             with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < ?1)
             select abs(random() % 256), printf('%026d', n), ?2, ?3, randomblob(?4) from numbers",
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
}

/// Opens a connection of one's own with the settings of the store's.
pub(crate) async fn connect(store: &SqliteStore) -> Result<SqliteConnection> {
    let options = store.pool().connect_options().as_ref().clone();
    // Rows come over from the driver's thread through a buffer: as wide as the store's own for pages.
    Ok(options.row_buffer_size(256).connect().await?)
}

/// Moves everything from the log to the file.
pub(crate) async fn empty_log(connection: &mut SqliteConnection) -> Result<()> {
    sqlx::query("pragma wal_checkpoint(truncate)").execute(connection).await?;
    Ok(())
}

/// How many events still wait above a number.
pub(crate) async fn pending(store: &SqliteStore, above: usize) -> Result<i64> {
    let row = sqlx::query("select count(*) from outbox_event not indexed where seq > ? and status in ('NEW', 'RETRY')")
        .bind(i64::try_from(above)?)
        .fetch_one(store.pool())
        .await?;
    Ok(row.try_get(0)?)
}

/// The kind of the file system that a folder lies on.
pub(crate) fn file_system(folder: &Path) -> String {
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            Some((fields.next()?, fields.next()?))
        })
        .filter(|(point, _)| folder.starts_with(point))
        .max_by_key(|(point, _)| point.len())
        .map_or_else(|| "an unknown file system".into(), |(_, kind)| kind.to_owned())
}

/// The folder for temporary files, or this one where that is no disk.
fn on_a_disk() -> PathBuf {
    let temporary = std::env::temp_dir();
    let here = std::env::current_dir().map(|folder| folder.join("target"));
    match here {
        Ok(here) if matches!(file_system(&temporary).as_str(), "tmpfs" | "ramfs") => here,
        _ => temporary,
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        for suffix in ["", "-wal", "-shm"] {
            let mut name = self.0.clone().into_os_string();
            name.push(suffix);
            // What is left goes with the folder.
            let _ = fs::remove_file(name);
        }
    }
}

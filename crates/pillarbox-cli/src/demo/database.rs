//! The demo's database: a temporary file, or one that the user names; its tables, and the plain SQL that counts
//! what is in them.

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use pillarbox::{
    EventId, SqliteStore,
    port::{AdminStore as _, UpkeepStore as _},
};
use pillarbox_sqlite::Options;
use sqlx::Row as _;
use tempfile::TempDir;

use super::{
    check::{Shop, Stored},
    handlers::{ORDER, SIGNUP},
    ledger::{Step, What},
    shop::Run,
};
use crate::error::Error;

/// What the names of all tables begin with, the outbox's and the shop's.
pub(super) const PREFIX: &str = "demo_";

/// Longer than the lease of a demo that was killed.
const PATIENCE: Duration = Duration::from_secs(5);

const TABLES: [&str; 4] = [
    "create table if not exists demo_run (
         id integer primary key autoincrement, started_at text not null default current_timestamp)",
    "create table if not exists demo_customer (
         run integer not null, id integer not null, events integer not null, primary key (run, id)) without rowid",
    "create table if not exists demo_order (
         run integer not null, id integer not null, customer integer not null, total_cents integer not null,
         step integer not null, primary key (run, id)) without rowid",
    "create table if not exists demo_signup (
         run integer not null, id integer not null, email text not null, primary key (run, id)) without rowid",
];

/// An open database.
#[derive(Debug)]
pub(super) struct Database {
    pub(super) store: SqliteStore,
    pub(super) run: Run,
    path: PathBuf,
    // Removes the folder when dropped.
    folder: Option<TempDir>,
}

impl Database {
    /// Opens the user's database, or one in a temporary folder, and begins a run in it.
    pub(super) async fn open(url: Option<&str>) -> Result<Self, Error> {
        let (path, folder) = if let Some(url) = url {
            (path_of(url)?, None)
        } else {
            let folder = tempfile::Builder::new().prefix("pillarbox-demo-").tempdir().map_err(|error| {
                Error::new("no temporary folder could be made")
                    .caused_by(error)
                    .advice("name a database with --db FILE, or another folder with TMPDIR")
            })?;
            (folder.path().join("shop.db"), Some(folder))
        };
        let opened = |error: pillarbox::StoreError| {
            Error::new(format!("the database {} could not be opened", path.display()))
                .caused_by(error)
                .advice("--db takes the path of a SQLite file in a folder that exists and can be written to")
        };
        let text = path.to_str().ok_or_else(|| Error::new("the path of the database is not UTF-8"))?;
        let store = Options::new().prefix(PREFIX).open(text).await.map_err(opened)?;
        store.migrate().await.map_err(opened)?;
        alone(&store, &path).await?;
        let run = begin_run(&store).await.map_err(|error| {
            Error::new(format!("the shop's tables could not be made in {}", path.display()))
                .caused_by(error)
                .advice("the demo needs the table names that begin with demo_ for itself: use another database")
        })?;
        Ok(Self { store, run, path, folder })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it goes away with the demo.
    pub(super) fn is_temporary(&self) -> bool {
        self.folder.is_some()
    }

    /// Closes it, and removes it if it is temporary and not to be kept.
    pub(super) async fn close(self, keep: bool) {
        self.store.pool().close().await;
        if let Some(folder) = self.folder.filter(|_| keep) {
            let _ = folder.keep();
        }
    }

    /// How many events of this run are neither done nor dead.
    pub(super) async fn pending(&self) -> Result<u64, Error> {
        sqlx::query_scalar("select count(*) from demo_event where status in ('NEW', 'RETRY') and tenant_id = ?")
            .bind(self.run.tenant())
            .fetch_one(self.store.pool())
            .await
            .map_err(uncounted)
    }

    /// Every event of this run in the outbox's table.
    pub(super) async fn stored(&self) -> Result<Vec<Stored>, Error> {
        let sql =
            "select event_id, status, event_type, aggregate_type, aggregate_id from demo_event where tenant_id = ?";
        let rows = sqlx::query(sql).bind(self.run.tenant()).fetch_all(self.store.pool()).await;
        rows.map_err(uncounted)?
            .iter()
            .map(|row| {
                let id: EventId =
                    row.try_get::<&str, _>(0)?.parse().map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
                Ok(Stored {
                    id,
                    status: row.try_get(1)?,
                    what: what(row.try_get(2)?, row.try_get(3)?, row.try_get(4)?),
                })
            })
            .collect::<Result<_, sqlx::Error>>()
            .map_err(uncounted)
    }

    /// What the shop's own tables say of this run.
    pub(super) async fn shop(&self) -> Result<Shop, Error> {
        let run = self.run.0;
        let pool = self.store.pool();
        let orders: Vec<(u32, u8)> = sqlx::query_as("select id, step from demo_order where run = ?")
            .bind(run)
            .fetch_all(pool)
            .await
            .map_err(uncounted)?;
        let customers: Vec<(u32, u32)> = sqlx::query_as("select id, events from demo_customer where run = ?")
            .bind(run)
            .fetch_all(pool)
            .await
            .map_err(uncounted)?;
        let signups: Vec<u32> = sqlx::query_scalar("select id from demo_signup where run = ?")
            .bind(run)
            .fetch_all(pool)
            .await
            .map_err(uncounted)?;
        let step = |number: u8| Step::ALL.into_iter().find(|step| *step as u8 == number);
        Ok(Shop {
            orders: orders.into_iter().filter_map(|(id, number)| Some((id, step(number)?))).collect(),
            customers: customers.into_iter().collect::<HashMap<_, _>>(),
            signups: signups.into_iter().collect::<HashSet<_>>(),
        })
    }
}

/// What an event tells, from its columns.
fn what(event_type: &str, aggregate_type: &str, aggregate_id: &str) -> Option<What> {
    let id = aggregate_id.parse().ok()?;
    if event_type == SIGNUP {
        return Some(What::Signup(id));
    }
    let step = Step::ALL.into_iter().find(|step| step.event_type() == event_type)?;
    (aggregate_type == ORDER).then_some(What::Order(id, step))
}

/// The file that a URL or a path names.
fn path_of(url: &str) -> Result<PathBuf, Error> {
    // A path of Windows begins with a letter and a colon.
    let scheme = url
        .split_once(':')
        .map(|(scheme, _)| scheme)
        .filter(|scheme| scheme.len() > 1 && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b)));
    let path = match scheme {
        None => url,
        Some("sqlite") => {
            let rest = &url["sqlite:".len()..];
            rest.strip_prefix("//").unwrap_or(rest)
        }
        Some(other) => {
            return Err(Error::new(format!("databases of the kind {other:?} are not supported: sqlite is"))
                .advice("--db sqlite:shop.db, or just the path of a file"));
        }
    };
    if path.is_empty() || path.contains(":memory:") || path.contains("mode=memory") {
        return Err(Error::new("a database in memory can't be used: the outbox needs commits that survive")
            .advice("--db sqlite:shop.db, or leave --db out for a temporary file"));
    }
    if path.contains('?') {
        return Err(Error::new(format!("{url:?} has parameters, and the demo takes none"))
            .advice("--db with the path of the file alone"));
    }
    Ok(path.into())
}

/// A second demo would take deliveries that this one counts. One that was killed is gone when its lease is.
async fn alone(store: &SqliteStore, path: &Path) -> Result<(), Error> {
    let begun = Instant::now();
    loop {
        let stats = store.stats().await.map_err(|error| {
            Error::new(format!("the database {} could not be read", path.display())).caused_by(error)
        })?;
        if stats.live_nodes == 0 {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            return Err(Error::new(format!("another demo is running on {}", path.display()))
                .advice("wait for its end, or name another database with --db"));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn begin_run(store: &SqliteStore) -> Result<Run, sqlx::Error> {
    for table in TABLES {
        sqlx::query(table).execute(store.pool()).await?;
    }
    sqlx::query_scalar("insert into demo_run default values returning id").fetch_one(store.pool()).await.map(Run)
}

fn uncounted(error: sqlx::Error) -> Error {
    Error::new("the demo could not count what is in its database").caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_and_paths_of_sqlite_are_taken() {
        for (url, path) in [
            ("shop.db", "shop.db"),
            ("/tmp/a b/shop.db", "/tmp/a b/shop.db"),
            ("sqlite:shop.db", "shop.db"),
            ("sqlite:///tmp/shop.db", "/tmp/shop.db"),
            ("sqlite://shop.db", "shop.db"),
            ("./odd:name.db", "./odd:name.db"),
        ] {
            assert_eq!(path_of(url).unwrap(), Path::new(path), "{url}");
        }
    }

    #[test]
    fn other_databases_are_refused_by_name_and_told_what_is_supported() {
        for url in ["postgres://localhost/shop", "mysql://root@localhost/shop"] {
            let error = path_of(url).unwrap_err().to_string();
            assert!(error.contains(url.split_once(':').unwrap().0) && error.contains("sqlite"), "{error}");
        }
        assert!(path_of("sqlite::memory:").unwrap_err().to_string().contains("memory"));
        assert!(path_of("").is_err());
        assert!(path_of("sqlite:a.db?mode=ro").unwrap_err().to_string().contains("parameters"));
    }
}

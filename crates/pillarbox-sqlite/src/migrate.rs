//! The versions of the tables.

use pillarbox_core::port::{StoreError, StoreErrorKind};
use sqlx::{AssertSqlSafe, Row as _, SqliteConnection};

use crate::{SqliteStore, error, tables::Prefix};

/// The version of the tables that this program works with.
pub const VERSION: i64 = MIGRATIONS[MIGRATIONS.len() - 1].0;

// What has been released is never changed: a new version is a new file.
const MIGRATIONS: [(i64, &str); 1] = [(1, include_str!("../migrations/0001_tables.sql"))];

pub(crate) const SCHEMA_TABLE: &str =
    "create table if not exists {schema} (version integer primary key, applied_at integer not null default {now})";

/// The migrations as text, for those who run them with a tool of their own: the version each leads to, and
/// its statements. Each is to run in one transaction.
pub fn migrations(prefix: &str) -> Result<Vec<(i64, String)>, StoreError> {
    let prefix = Prefix::new(prefix)?;
    Ok(MIGRATIONS
        .into_iter()
        .map(|(version, text)| {
            let text = format!("{SCHEMA_TABLE};\n{text}\ninsert into {{schema}} (version) values ({version});\n");
            (version, prefix.fill(&text))
        })
        .collect())
}

impl SqliteStore {
    pub(crate) async fn run_migrations(&self) -> Result<(), StoreError> {
        self.use_wal().await?;
        // Most starts find nothing to do, and need no write lock to see it.
        if self.version().await? == Some(VERSION) {
            return Ok(());
        }
        let (_turn, mut entered) = self.write_on(&self.0.settles).await?;
        let mut tx = entered.begin().await?;
        // Behind the write lock: of several processes one migrates, and the others find it done.
        sqlx::query(self.0.prefix.statement(SCHEMA_TABLE)).execute(&mut *tx).await.map_err(error::of)?;
        let present = self.version_in(&mut tx).await?.unwrap_or(0);
        refuse_newer(present)?;
        for (version, sql) in migrations(self.prefix())?.into_iter().filter(|(version, _)| *version > present) {
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *tx).await.map_err(error::of)?;
            tracing::info!(version, prefix = self.prefix(), "migrated the outbox's tables");
        }
        tx.commit().await.map_err(error::of_commit)
    }

    pub(crate) async fn check_version(&self) -> Result<(), StoreError> {
        match self.version().await? {
            Some(VERSION) => Ok(()),
            Some(older) if older < VERSION => Err(StoreError::new(
                StoreErrorKind::Schema,
                format!("the outbox's tables are of version {older}, and {VERSION} is needed: run the migrations"),
            )),
            Some(newer) => refuse_newer(newer),
            None => Err(StoreError::new(
                StoreErrorKind::Schema,
                format!("there are no tables with the prefix {:?}: run the migrations", self.prefix()),
            )),
        }
    }

    async fn version(&self) -> Result<Option<i64>, StoreError> {
        let mut entered = self.0.settles.enter().await?;
        match self.version_in(entered.connection()?).await {
            Err(error) if error.kind() == StoreErrorKind::Schema => Ok(None),
            other => other,
        }
    }

    async fn version_in(&self, connection: &mut SqliteConnection) -> Result<Option<i64>, StoreError> {
        let row = sqlx::query(self.0.prefix.statement("select max(version) from {schema}"))
            .fetch_one(connection)
            .await
            .map_err(error::of)?;
        row.try_get(0).map_err(error::of)
    }
}

fn refuse_newer(present: i64) -> Result<(), StoreError> {
    if present <= VERSION {
        return Ok(());
    }
    Err(StoreError::new(
        StoreErrorKind::Schema,
        format!(
            "the outbox's tables are of version {present}, newer than this program's {VERSION}: update the program"
        ),
    ))
}

//! The versions of the tables.

use pillarbox_core::port::{StoreError, StoreErrorKind};
use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use crate::{Options, PostgresStore, error, tables::Names};

/// The version of the tables that this program works with.
pub const VERSION: i64 = MIGRATIONS[MIGRATIONS.len() - 1].0;

// What has been released is never changed: a new version is a new file.
const MIGRATIONS: [(i64, &str); 2] =
    [(1, include_str!("../migrations/0001_tables.sql")), (2, include_str!("../migrations/0002_life.sql"))];

const SCHEMA_TABLE: &str = "create table if not exists {schema} (
    version bigint primary key,
    applied_at timestamptz not null default {now}
);\n";

impl Options {
    /// All migrations as one text, for those who run them with a tool of their own: on an empty database it makes
    /// everything that [`check`](pillarbox_core::port::UpkeepStore::check) looks for, in one transaction.
    pub fn migration_sql(&self) -> Result<String, StoreError> {
        let names = Names::new(self.schema.as_deref(), &self.prefix)?;
        let texts: String = MIGRATIONS.into_iter().map(|(version, text)| migration(&names, version, text)).collect();
        Ok(format!("begin;\n\n{}\n{texts}\ncommit;\n", ground(&names)))
    }
}

/// What the versions stand on.
pub(crate) fn ground(names: &Names) -> String {
    let schema = names.schema().map(|schema| format!("create schema if not exists \"{schema}\";\n"));
    schema.unwrap_or_default() + &names.fill(SCHEMA_TABLE)
}

pub(crate) fn migration(names: &Names, version: i64, text: &str) -> String {
    names.fill(&format!("{text}\ninsert into {{schema}} (version) values ({version});\n"))
}

impl PostgresStore {
    pub(crate) async fn run_migrations(&self) -> Result<(), StoreError> {
        // Most starts find nothing to do, and need no lock to see it.
        if self.version().await? == Some(VERSION) {
            return Ok(());
        }
        let mut entered = self.0.settles.enter().await?;
        entered.begin().await?;
        self.migrate_in(entered.connection().map_err(error::of)?).await?;
        entered.commit().await
    }

    async fn migrate_in(&self, tx: &mut PgConnection) -> Result<(), StoreError> {
        // Of several processes one migrates, and the others wait and find it done.
        sqlx::query("select pg_advisory_xact_lock(hashtextextended($1, 0))")
            .persistent(false)
            .bind(format!("pillarbox {}", self.0.names.whole()))
            .execute(&mut *tx)
            .await
            .map_err(error::of)?;
        sqlx::raw_sql(AssertSqlSafe(ground(&self.0.names))).execute(&mut *tx).await.map_err(error::of)?;
        let present = self.version_in(&mut *tx).await?.unwrap_or(0);
        refuse_newer(present)?;
        for (version, text) in MIGRATIONS.into_iter().filter(|(version, _)| *version > present) {
            let sql = migration(&self.0.names, version, text);
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *tx).await.map_err(error::of)?;
            tracing::info!(version, prefix = self.prefix(), "migrated the outbox's tables");
        }
        Ok(())
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
                format!("there are no tables with the prefix {:?}: run the migrations", self.0.names.whole()),
            )),
        }
    }

    async fn version(&self) -> Result<Option<i64>, StoreError> {
        let mut entered = self.0.settles.enter().await?;
        let connection = entered.begin_reading().await.map_err(error::of)?;
        match self.version_in(connection).await {
            Err(error) if error.kind() == StoreErrorKind::Schema => Ok(None),
            Err(error) => Err(error),
            Ok(version) => {
                entered.end_reading().await.map_err(error::of)?;
                entered.leave();
                Ok(version)
            }
        }
    }

    async fn version_in(&self, connection: &mut PgConnection) -> Result<Option<i64>, StoreError> {
        let row = sqlx::query(self.0.names.statement("select max(version) from {schema}"))
            .persistent(false)
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

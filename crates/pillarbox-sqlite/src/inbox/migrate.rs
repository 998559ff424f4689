//! The inbox's tables: their versions, and room in them.

use std::time::Duration;

use pillarbox_core::{
    domain::bucket::{Buckets, LEAST_WINDOW, slot},
    port::{BoxFuture, InboxUpkeep, StoreError, StoreErrorKind},
};
use sqlx::{AssertSqlSafe, Row as _, SqliteConnection};

use super::{SqliteInbox, now};
use crate::{Options, error, migrate::SCHEMA_TABLE, tables::statements};

// What has been released is never changed: a new version is a new file.
const MIGRATIONS: [(i64, &str); 1] = [(1, include_str!("../../migrations/inbox_0001_tables.sql"))];

statements!(UpkeepSql {
    schema: SCHEMA_TABLE,
    version: "select max(version) from {schema}",
    applied: "insert into {schema} (version) values (?)",
    agree: "insert into {window} (one, bucket_micros) values (1, ?) on conflict do nothing",
    agreed: "select bucket_micros from {window}",
    emptied: "insert into {bucket} (slot, emptied_for) values (?1, ?2)
        on conflict (slot) do update set emptied_for = excluded.emptied_for where emptied_for < excluded.emptied_for",
});

impl Options {
    /// The migrations of an inbox's tables as one script, for a tool of one's own, as [`Options::migration_sql`] has those of
    /// the outbox. The prefix of the inbox is `inbox_` by default.
    pub fn inbox_migration_sql(&self, prefix: &str) -> Result<String, StoreError> {
        let prefix = super::prefix_beside(prefix, &self.prefix)?;
        let steps = MIGRATIONS.into_iter().map(|(version, text)| {
            prefix.fill(&format!(
                "\n-- Version {version}\nbegin immediate;\n{SCHEMA_TABLE};\n{text}\n\
                 insert into {{schema}} (version) values ({version});\ncommit;\n"
            ))
        });
        Ok(std::iter::once("pragma journal_mode = wal;\n".to_owned()).chain(steps).collect())
    }
}

impl SqliteInbox {
    async fn run_migrations(&self) -> Result<(), StoreError> {
        let store = &self.0.store;
        store.use_wal().await?;
        let sql = &self.0.upkeep;
        let (_turn, mut entered) = store.write_on(&store.0.settles).await?;
        let mut tx = entered.begin().await?;
        // Behind the write lock: of several processes one migrates, and the others find it done.
        sqlx::query(sql.schema.clone()).execute(&mut *tx).await.map_err(error::of)?;
        let present = self.version(&mut tx).await?.unwrap_or(0);
        let newest = MIGRATIONS[MIGRATIONS.len() - 1].0;
        if present > newest {
            return Err(StoreError::new(
                StoreErrorKind::Schema,
                format!(
                    "the inbox's tables are of version {present}, newer than this program's {newest}: update the program"
                ),
            ));
        }
        for (version, text) in MIGRATIONS.into_iter().filter(|(version, _)| *version > present) {
            let text = self.0.prefix.fill(text);
            sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut *tx).await.map_err(error::of)?;
            sqlx::query(sql.applied.clone()).bind(version).execute(&mut *tx).await.map_err(error::of)?;
            tracing::info!(version, prefix = self.prefix(), "migrated the inbox's tables");
        }
        tx.commit().await.map_err(error::of_commit)
    }

    async fn version(&self, tx: &mut SqliteConnection) -> Result<Option<i64>, StoreError> {
        let row = sqlx::query(self.0.upkeep.version.clone()).fetch_one(tx).await.map_err(error::of)?;
        row.try_get(0).map_err(error::of)
    }
}

impl InboxUpkeep for SqliteInbox {
    fn migrate(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.run_migrations())
    }

    fn agree(&self, window: Duration) -> BoxFuture<'_, Result<Duration, StoreError>> {
        Box::pin(async move {
            let buckets = Buckets::of_window(window).ok_or_else(|| {
                let words = format!("a window of {window:?} is too short: the least is {LEAST_WINDOW:?}");
                StoreError::new(StoreErrorKind::Rejected, words)
            })?;
            let store = &self.0.store;
            {
                let (_turn, mut entered) = store.write_on(&store.0.settles).await?;
                let mut tx = entered.begin().await?;
                let agree = sqlx::query(self.0.upkeep.agree.clone()).bind(buckets.micros());
                agree.execute(&mut *tx).await.map_err(error::of)?;
                tx.commit().await.map_err(error::of_commit)?;
            }
            Ok(self.buckets().await?.unwrap_or(buckets).window())
        })
    }

    fn rotate(&self) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async {
            let Some(buckets) = self.buckets().await? else { return Ok(false) };
            if !buckets.is_time_to_empty(now()) {
                return Ok(false);
            }
            let store = &self.0.store;
            let (_turn, mut entered) = store.write_on(&store.0.settles).await?;
            let mut tx = entered.begin().await?;
            // Behind the write lock: nobody writes meanwhile, whatever time it has become.
            let next = buckets.number(now()) + 1;
            let slot = slot(next);
            let emptied = sqlx::query(self.0.upkeep.emptied.clone())
                .bind(i64::try_from(slot).unwrap_or(0))
                .bind(next)
                .execute(&mut *tx)
                .await
                .map_err(error::of)?;
            if emptied.rows_affected() == 0 {
                return Ok(false);
            }
            // Without a condition: SQLite drops the pages and looks at no row.
            let empty = self.0.prefix.statement(&format!("delete from {{seen_{slot}}}"));
            sqlx::query(empty).execute(&mut *tx).await.map_err(error::of)?;
            tx.commit().await.map_err(error::of_commit)?;
            Ok(true)
        })
    }
}

//! The inbox's tables: their versions, and room in them.
//!
//! TRUNCATE commits by itself, and can't be bound to a condition. So the slot is locked first, and the time looked at behind
//! that lock: if the process then stands still until the bucket has turned, those who want to write to the slot wait for
//! it. That it was emptied is recorded last.
//!
//! | the process dies | then |
//! |---|---|
//! | before TRUNCATE | the server frees the lock with the session; the next one empties the slot if it is still time |
//! | between TRUNCATE and the record | the same: the slot is emptied once more, and nothing was in it. If it is no longer time, it is written by now, and left alone: it was empty when its bucket began |
//! | after the record | nothing is left to do |
//!
//! Where it is not emptied in time, old ids stay for another round: they are known longer than they need be, and never shorter.

use std::{fmt::Write as _, time::Duration};

use pillarbox_core::{
    domain::{
        Timestamp,
        bucket::{Buckets, LEAST_WINDOW, SLOTS, slot},
    },
    port::{BoxFuture, InboxUpkeep, StoreError, StoreErrorKind},
};
use sqlx::{MySqlConnection, Row as _};

use super::MySqlInbox;
use crate::{
    Options,
    connection::retried,
    error,
    migrate::{SCHEMA_TABLE, lock, refuse_foreign, run},
    tables::statements,
};

// What has been released is never changed: a new version is a new file.
const MIGRATIONS: [(i64, &str); 1] = [(1, include_str!("../../migrations/inbox_0001_tables.sql"))];

const VERSION: i64 = MIGRATIONS[MIGRATIONS.len() - 1].0;

statements!(UpkeepSql {
    version: "select max(version) from {schema}",
    agree: "insert ignore into {window} (one, bucket_micros) values (1, ?)",
    agreed: "select bucket_micros from {window}",
    /// In any session, whatever its time zone.
    clock: "select timestampdiff(microsecond, {epoch}, utc_timestamp(6))",
    /// By primary key.
    emptied_for: "select emptied_for from {bucket} where slot = ?",
    emptied: "replace into {bucket} (slot, emptied_for) values (?, ?)",
});

/// How many seconds are waited for those who have used a slot: nobody could look into it meanwhile.
pub(super) const PATIENCE: &str = "set session lock_wait_timeout = 1";
/// The server's own default.
pub(super) const NO_PATIENCE: &str = "set session lock_wait_timeout = default";

impl Options {
    /// The migrations of an inbox's tables as one text, for those who run them with a tool of their own, as
    /// [`Options::migration_sql`] has those of the outbox. The prefix of the inbox is `inbox_` by default.
    pub fn inbox_migration_sql(&self, prefix: &str) -> Result<String, StoreError> {
        let names = super::names(self.schema.as_deref(), prefix, &self.prefix)?;
        let mut text = format!("{SCHEMA_TABLE};\n");
        for (version, sql) in MIGRATIONS {
            let _ = write!(text, "\n{sql}\ninsert ignore into {{schema}} (version) values ({version});\n");
        }
        Ok(names.fill(&text))
    }
}

impl MySqlInbox {
    async fn run_migrations(&self) -> Result<(), StoreError> {
        let mut entered = self.0.upkeep.enter().await?;
        // Most starts find nothing to do, and need no lock to see it.
        if self.version(&mut entered).await? != Some(VERSION) {
            lock(&mut entered, &self.0.names).await?;
            self.migrate_locked(&mut entered).await?;
            run(&mut entered, "select release_all_locks()".into()).await.or_else(|_| Ok(()))?;
        }
        entered.done();
        Ok(())
    }

    async fn migrate_locked(&self, connection: &mut MySqlConnection) -> Result<(), StoreError> {
        let names = &self.0.names;
        let present = self.version(connection).await?.unwrap_or(0);
        if present > VERSION {
            return Err(StoreError::new(
                StoreErrorKind::Schema,
                format!(
                    "the inbox's tables are of version {present}, newer than this program's {VERSION}: update the program"
                ),
            ));
        }
        for (version, sql) in MIGRATIONS.into_iter().filter(|(version, _)| *version > present) {
            refuse_foreign(connection, names, sql).await?;
            run(connection, names.fill(SCHEMA_TABLE)).await?;
            run(connection, names.fill(sql)).await?;
            run(connection, names.fill(&format!("insert ignore into {{schema}} (version) values ({version})"))).await?;
            tracing::info!(version, prefix = self.prefix(), "migrated the inbox's tables");
        }
        Ok(())
    }

    async fn version(&self, connection: &mut MySqlConnection) -> Result<Option<i64>, StoreError> {
        match sqlx::query(self.0.sql.upkeep.version.clone()).fetch_one(connection).await.map_err(error::of) {
            Ok(row) => row.try_get(0).map_err(error::of),
            Err(error) if error.kind() == StoreErrorKind::Schema => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The bucket whose slot is to be emptied now, if any, and nobody has done so yet.
    async fn due(&self, connection: &mut MySqlConnection, buckets: Buckets) -> Result<Option<i64>, sqlx::Error> {
        let sql = &self.0.sql.upkeep;
        let now = sqlx::query(sql.clock.clone()).fetch_one(&mut *connection).await?;
        let now = Timestamp::from_micros(now.try_get(0)?);
        if !buckets.is_time_to_empty(now) {
            return Ok(None);
        }
        let next = buckets.number(now) + 1;
        let done = sqlx::query(sql.emptied_for.clone()).bind(number(next)).fetch_optional(connection).await?;
        let done: Option<i64> = done.map(|row| row.try_get(0)).transpose()?;
        Ok((done.is_none_or(|done| done < next)).then_some(next))
    }

    async fn rotate_due(&self) -> Result<bool, StoreError> {
        let Some(buckets) = self.buckets().await? else { return Ok(false) };
        let mut entered = self.0.upkeep.enter().await?;
        let Some(next) = self.due(&mut entered, buckets).await.map_err(error::of)? else {
            entered.done();
            return Ok(false);
        };
        let emptied = match self.empty(&mut entered, buckets, next).await {
            Ok(emptied) => emptied,
            Err(error) => {
                let words = self.refused(next, error)?;
                tracing::warn!(slot = number(next), prefix = self.prefix(), "{words}");
                // With the connection the locks are gone.
                return Ok(false);
            }
        };
        entered.done();
        Ok(emptied)
    }

    async fn empty(&self, connection: &mut MySqlConnection, buckets: Buckets, next: i64) -> Result<bool, sqlx::Error> {
        let slot = number(next);
        let names = &self.0.names;
        sqlx::raw_sql(PATIENCE).execute(&mut *connection).await?;
        let lock = names.statement(&format!("lock tables {{seen_{slot}}} write, {{bucket}} write"));
        sqlx::raw_sql(lock).execute(&mut *connection).await?;
        // Behind the lock, which may have been waited for: now nobody can write there before it is freed.
        let still = self.due(&mut *connection, buckets).await? == Some(next);
        if still {
            let truncate = names.statement(&format!("truncate table {{seen_{slot}}}"));
            sqlx::raw_sql(truncate).execute(&mut *connection).await?;
            let emptied = sqlx::query(self.0.sql.upkeep.emptied.clone()).bind(slot).bind(next);
            emptied.execute(&mut *connection).await?;
        }
        sqlx::raw_sql("unlock tables").execute(&mut *connection).await?;
        sqlx::raw_sql(NO_PATIENCE).execute(connection).await?;
        Ok(still)
    }

    /// What a slot could not be emptied for: words if that passes, and an error otherwise.
    fn refused(&self, next: i64, error: sqlx::Error) -> Result<&'static str, StoreError> {
        if error::number(&error).is_some_and(|number| error::DENIED.contains(&number)) {
            return Err(StoreError::new(
                StoreErrorKind::Rejected,
                format!(
                    "the user may not empty {0}seen_{1}, so the inbox would grow for ever: grant DROP on the tables \
                     {0}seen_0 to {0}seen_{2}, and LOCK TABLES on their database",
                    self.prefix(),
                    number(next),
                    SLOTS - 1
                ),
            )
            .caused_by(error));
        }
        match error::of(error) {
            error if error.kind() == StoreErrorKind::Conflict => {
                Ok("a bucket of the inbox can't be emptied yet: a transaction that has used it is still open")
            }
            error => Err(error),
        }
    }
}

/// The number of a bucket's slot.
fn number(bucket: i64) -> i8 {
    i8::try_from(slot(bucket)).unwrap_or(0)
}

impl InboxUpkeep for MySqlInbox {
    fn migrate(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.run_migrations())
    }

    fn agree(&self, window: Duration) -> BoxFuture<'_, Result<Duration, StoreError>> {
        Box::pin(async move {
            let buckets = Buckets::of_window(window).ok_or_else(|| {
                let words = format!("a window of {window:?} is too short: the least is {LEAST_WINDOW:?}");
                StoreError::new(StoreErrorKind::Rejected, words)
            })?;
            retried(|| async {
                let mut entered = self.0.upkeep.enter().await?;
                let agree = sqlx::query(self.0.sql.upkeep.agree.clone()).bind(buckets.micros());
                agree.execute(&mut *entered).await.map_err(error::of)?;
                entered.done();
                Ok(())
            })
            .await?;
            Ok(self.buckets().await?.unwrap_or(buckets).window())
        })
    }

    fn rotate(&self) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(self.rotate_due())
    }
}

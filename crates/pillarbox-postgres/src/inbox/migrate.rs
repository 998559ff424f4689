//! The inbox's tables: their versions, and room in them.
//!
//! A rotation is one transaction: it records that the slot is empty and empties it, or neither. When the process dies in it,
//! the next one finds it undone.

use std::time::Duration;

use pillarbox_core::{
    domain::{
        Timestamp,
        bucket::{Buckets, LEAST_WINDOW, SLOTS, slot},
    },
    port::{BoxFuture, InboxUpkeep, StoreError, StoreErrorKind},
};
use sqlx::{PgConnection, Row as _};

use super::PostgresInbox;
use crate::{
    Options, error,
    migrate::{PRESENT, run_in, text},
    row::Time,
    tables::statements,
};

// What has been released is never changed: a new version is a new file.
const MIGRATIONS: [(i64, &str); 1] = [(1, include_str!("../../migrations/inbox_0001_tables.sql"))];

const VERSION: i64 = MIGRATIONS[MIGRATIONS.len() - 1].0;

statements!(UpkeepSql {
    version: PRESENT,
    agree: "insert into {window} (one, bucket_micros) values (1, $1) on conflict do nothing",
    agreed: "select bucket_micros from {window}",
    clock: "select {now}",
    /// Waits for whoever empties the same slot.
    emptied: "insert into {bucket} as state (slot, emptied_for) values ($1, $2)
        on conflict (slot) do update set emptied_for = excluded.emptied_for
            where state.emptied_for < excluded.emptied_for",
    emptied_for: "select emptied_for from {bucket} where slot = $1",
});

/// A transaction of a bucket before may still hold the slot: it is not waited for, since nobody could look into the slot
/// meanwhile.
const LOCK_TIMEOUT: &str = "set local lock_timeout = '1s'";

impl Options {
    /// The migrations of an inbox's tables as one text, for those who run them with a tool of their own, as
    /// [`Options::migration_sql`] has those of the outbox. The prefix of the inbox is `inbox_` by default.
    pub fn inbox_migration_sql(&self, prefix: &str) -> Result<String, StoreError> {
        let names = super::names(self.schema.as_deref(), prefix, &self.prefix)?;
        Ok(text(&names, &MIGRATIONS))
    }
}

impl PostgresInbox {
    async fn run_migrations(&self) -> Result<(), StoreError> {
        // Most starts find nothing to do, and need no lock to see it.
        if self.version().await? == Some(VERSION) {
            return Ok(());
        }
        let mut entered = self.0.upkeep.enter().await?;
        entered.begin().await?;
        let tx = entered.connection().map_err(error::of)?;
        let brought = run_in(tx, &self.0.names, &MIGRATIONS).await?;
        let present = self.version_in(tx).await?.unwrap_or(0);
        if present > VERSION {
            return Err(StoreError::new(
                StoreErrorKind::Schema,
                format!(
                    "the inbox's tables are of version {present}, newer than this program's {VERSION}: update the program"
                ),
            ));
        }
        entered.commit().await?;
        for version in brought {
            tracing::info!(version, prefix = self.prefix(), "migrated the inbox's tables");
        }
        Ok(())
    }

    async fn version(&self) -> Result<Option<i64>, StoreError> {
        let mut entered = self.0.upkeep.enter().await?;
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
        let version = sqlx::query(self.0.sql.upkeep.version.clone()).persistent(false).fetch_one(connection).await;
        version.and_then(|row| row.try_get(0)).map_err(error::of)
    }

    /// The bucket whose slot is to be emptied now, if any.
    async fn due(&self, connection: &mut PgConnection, buckets: Buckets) -> Result<Option<i64>, sqlx::Error> {
        let now = self.0.store.query(&self.0.sql.upkeep.clock).fetch_one(connection).await?;
        let Time(now) = now.try_get(0)?;
        Ok(next(buckets, now))
    }

    async fn rotate_due(&self) -> Result<bool, StoreError> {
        let Some(buckets) = self.buckets().await? else { return Ok(false) };
        let store = &self.0.store;
        let sql = &self.0.sql.upkeep;
        let mut entered = self.0.upkeep.enter().await?;
        entered.begin().await?;
        let tx = entered.connection().map_err(error::of)?;
        let Some(next) = self.due(tx, buckets).await.map_err(error::of)? else {
            entered.rollback().await?;
            return Ok(false);
        };
        let number = i16::try_from(slot(next)).unwrap_or(0);
        let done = store.query(&sql.emptied_for).bind(number).fetch_optional(&mut *tx).await.map_err(error::of)?;
        let done: Option<i64> = done.map(|row| row.try_get(0)).transpose().map_err(error::of)?;
        if done.is_some_and(|done| done >= next) {
            entered.rollback().await?;
            return Ok(false);
        }
        let emptied = match self.empty(tx, next, number).await {
            // After the locks, which may have been waited for: now nobody can write there before the commit.
            Ok(true) => self.due(tx, buckets).await.map_err(error::of)? == Some(next),
            Ok(false) => false,
            Err(error) if error.kind() == StoreErrorKind::Conflict => {
                tracing::warn!(
                    slot = number,
                    prefix = self.prefix(),
                    "a bucket of the inbox can't be emptied yet: a transaction that has used it is still open"
                );
                false
            }
            Err(error) => return Err(error),
        };
        if emptied {
            entered.commit().await?;
        } else {
            entered.rollback().await?;
        }
        Ok(emptied)
    }

    async fn empty(&self, tx: &mut PgConnection, next: i64, slot: i16) -> Result<bool, StoreError> {
        sqlx::raw_sql(LOCK_TIMEOUT).execute(&mut *tx).await.map_err(error::of)?;
        let emptied = self.0.store.query(&self.0.sql.upkeep.emptied).bind(slot).bind(next);
        if emptied.execute(&mut *tx).await.map_err(error::of)?.rows_affected() == 0 {
            return Ok(false);
        }
        let truncate = self.0.names.statement(&format!("truncate {{seen_{slot}}}"));
        match sqlx::query(truncate).persistent(false).execute(tx).await {
            Ok(_) => Ok(true),
            Err(error) if error.as_database_error().is_some_and(|error| error.code().as_deref() == Some("42501")) => {
                Err(StoreError::new(
                    StoreErrorKind::Rejected,
                    format!(
                        "the role may not empty {0}seen_{slot}, so the inbox would grow for ever: grant it TRUNCATE on \
                         the tables {0}seen_0 to {0}seen_{1}",
                        self.prefix(),
                        SLOTS - 1
                    ),
                )
                .caused_by(error))
            }
            Err(error) => Err(error::of(error)),
        }
    }
}

/// The bucket whose slot is to be emptied at a time, if it is time for that.
fn next(buckets: Buckets, now: Timestamp) -> Option<i64> {
    buckets.is_time_to_empty(now).then(|| buckets.number(now) + 1)
}

impl InboxUpkeep for PostgresInbox {
    fn migrate(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.run_migrations())
    }

    fn agree(&self, window: Duration) -> BoxFuture<'_, Result<Duration, StoreError>> {
        Box::pin(async move {
            let buckets = Buckets::of_window(window).ok_or_else(|| {
                let words = format!("a window of {window:?} is too short: the least is {LEAST_WINDOW:?}");
                StoreError::new(StoreErrorKind::Rejected, words)
            })?;
            let agreeing = self.0.store.within(async {
                let mut entered = self.0.upkeep.enter().await?;
                let agree = self.0.store.query(&self.0.sql.upkeep.agree).bind(buckets.micros());
                agree.execute(entered.begin_one().await.map_err(error::of)?).await.map_err(error::of)?;
                entered.end_one().await
            });
            agreeing.await?;
            Ok(self.buckets().await?.unwrap_or(buckets).window())
        })
    }

    fn rotate(&self) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(self.0.store.within(self.rotate_due()))
    }
}

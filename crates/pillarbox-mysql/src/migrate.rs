//! The versions of the tables.
//!
//! The server commits each change of a table by itself, so a migration is no transaction: every statement may run
//! twice, and the version is recorded last. One that was cut off anywhere is run again from its start. A named lock,
//! which the server frees with the session, keeps processes that start at once apart.

use std::fmt::Write as _;

use pillarbox_core::port::{StoreError, StoreErrorKind};
use sqlx::{AssertSqlSafe, MySqlConnection, Row as _};

use crate::{MySqlStore, error, tables::Names};

/// The version of the tables that this program works with.
pub const VERSION: i64 = MIGRATIONS[MIGRATIONS.len() - 1].0;

// What has been released is never changed: a new version is a new file.
const MIGRATIONS: [(i64, &str); 1] = [(1, include_str!("../migrations/0001_tables.sql"))];

pub(crate) const SCHEMA_TABLE: &str = "create table if not exists {schema} (version bigint not null primary key, \
     applied_at datetime(6) not null default (utc_timestamp(6))) engine = InnoDB";

/// Apart from the tables, since the rights to make it may be missing, and the outbox itself needs it not.
const PARTITION_OF: &str = include_str!("../migrations/partition_of.sql");

/// How many seconds a process waits for another that migrates.
const PATIENCE: i64 = 60;

/// All migrations as text, as the client programs read it.
pub(crate) fn text(names: &Names) -> String {
    let mut text = format!("{SCHEMA_TABLE};\n");
    for (version, sql) in MIGRATIONS {
        let _ = write!(text, "\n{sql}\ninsert ignore into {{schema}} (version) values ({version});\n");
    }
    text.push_str("\ndrop function if exists {partition_of};\ndelimiter //\n");
    text.push_str(PARTITION_OF);
    text.push_str("//\ndelimiter ;\n");
    fill(names, &text)
}

fn fill(names: &Names, text: &str) -> String {
    // The time of an id: ten digits of five bits.
    let digit = |shift| {
        format!(
            "substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', \
             (timestampdiff(microsecond, {{epoch}}, utc_timestamp(6)) div 1000 >> {shift} & 31) + 1, 1)"
        )
    };
    let digits: Vec<_> = (0..10).rev().map(|n| digit(n * 5)).collect();
    names.fill(&text.replace("{ulid_time}", &digits.join(", ")))
}

impl MySqlStore {
    pub(crate) async fn run_migrations(&self) -> Result<(), StoreError> {
        let mut entered = self.0.settles.enter().await?;
        self.check_server(&mut entered).await?;
        // Most starts find nothing to do, and need no lock to see it.
        if self.version(&mut entered).await? != Some(VERSION) || !self.has_function(&mut entered).await? {
            lock(&mut entered, &self.0.names).await?;
            self.migrate_locked(&mut entered).await?;
            run(&mut entered, "select release_all_locks()".into()).await.or_else(|_| Ok(()))?;
        }
        entered.done();
        Ok(())
    }

    async fn migrate_locked(&self, connection: &mut MySqlConnection) -> Result<(), StoreError> {
        let names = &self.0.names;
        run(connection, names.fill(SCHEMA_TABLE)).await?;
        let present = self.version(connection).await?.unwrap_or(0);
        refuse_newer(present)?;
        for (version, sql) in MIGRATIONS.into_iter().filter(|(version, _)| *version > present) {
            run(connection, fill(names, sql)).await?;
            run(connection, names.fill(&format!("insert ignore into {{schema}} (version) values ({version})"))).await?;
            tracing::info!(version, prefix = self.prefix(), "migrated the outbox's tables");
        }
        if self.has_function(connection).await? {
            return Ok(());
        }
        let made = sqlx::raw_sql(AssertSqlSafe(names.fill(PARTITION_OF))).execute(connection).await;
        match made {
            Ok(_) => Ok(()),
            Err(error) if error::number(&error).is_some_and(|number| error::DENIED.contains(&number)) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the function {}partition_of could not be made, so events with a key can't be written in plain SQL; \
                     the outbox itself does not need it. Grant CREATE ROUTINE, and where the server writes a binary log \
                     set log_bin_trust_function_creators = 1, or let an administrator run Options::migration_sql",
                    self.prefix()
                );
                Ok(())
            }
            Err(error) => Err(error::of(error)),
        }
    }

    pub(crate) async fn check_version(&self) -> Result<(), StoreError> {
        let mut entered = self.0.settles.enter().await?;
        self.check_server(&mut entered).await?;
        let version = self.version(&mut entered).await?;
        entered.done();
        match version {
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

    async fn version(&self, connection: &mut MySqlConnection) -> Result<Option<i64>, StoreError> {
        let row = sqlx::query(self.0.names.statement("select max(version) from {schema}")).fetch_one(connection).await;
        match row.map_err(error::of) {
            Ok(row) => row.try_get(0).map_err(error::of),
            Err(error) if error.kind() == StoreErrorKind::Schema => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn has_function(&self, connection: &mut MySqlConnection) -> Result<bool, StoreError> {
        let row = sqlx::query(
            "select count(*) from information_schema.routines \
             where routine_schema = coalesce(?, database()) and routine_name = ?",
        )
        .bind(self.0.names.schema())
        .bind(format!("{}partition_of", self.prefix()))
        .fetch_one(connection)
        .await
        .map_err(error::of)?;
        row.try_get::<i64, _>(0).map(|count| count > 0).map_err(error::of)
    }
}

/// Waits for other processes that migrate the same tables, and keeps them waiting.
pub(crate) async fn lock(connection: &mut MySqlConnection, names: &Names) -> Result<(), StoreError> {
    let row =
        sqlx::query("select get_lock(left(sha2(concat('pillarbox ', coalesce(?, database()), ' ', ?), 256), 60), ?)")
            .bind(names.schema())
            .bind(names.prefix())
            .bind(PATIENCE)
            .fetch_one(connection)
            .await
            .map_err(error::of)?;
    if row.try_get::<Option<i64>, _>(0).map_err(error::of)? == Some(1) {
        return Ok(());
    }
    Err(StoreError::new(StoreErrorKind::Unavailable, "another process is still migrating these tables"))
}

/// Runs a text of one or several statements.
pub(crate) async fn run(connection: &mut MySqlConnection, sql: String) -> Result<(), StoreError> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.map(drop).map_err(error::of)
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

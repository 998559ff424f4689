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

/// A client stops at the first error.
const FUNCTION_COMES_LAST: &str = "
-- The tables are complete. What follows is for writers of plain SQL, and needs CREATE ROUTINE and ALTER ROUTINE; where the
-- server writes a binary log also SUPER, or log_bin_trust_function_creators = 1. The outbox works without it.
";

/// How many seconds a process waits for another that migrates.
const PATIENCE: i64 = 60;

/// All migrations as text, as the client programs read it.
pub(crate) fn text(names: &Names) -> String {
    let mut text = format!("{SCHEMA_TABLE};\n");
    for (version, sql) in MIGRATIONS {
        let _ = write!(text, "\n{sql}\ninsert ignore into {{schema}} (version) values ({version});\n");
    }
    text.push_str(FUNCTION_COMES_LAST);
    text.push_str("drop function if exists {partition_of};\ndelimiter //\n");
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

/// The tables that a text makes, each with its columns.
fn tables(sql: &str) -> Vec<(&str, Vec<&str>)> {
    const NO_COLUMNS: [&str; 5] = ["--", "constraint", "index", "primary", "unique"];
    let begun = sql.split("create table if not exists {").skip(1);
    begun
        .filter_map(|text| {
            let (name, rest) = text.split_once("} (\n")?;
            let (body, _) = rest.split_once("\n)")?;
            let words = body.lines().filter_map(|line| line.split_whitespace().next());
            let columns = words.filter(|word| !NO_COLUMNS.contains(word)).map(|word| word.trim_matches('`'));
            Some((name, columns.collect()))
        })
        .collect()
}

/// Refuses a text that would pass over another's table: `create table if not exists` asks for the name alone. A table of
/// ours, from a migration that was cut off, is whole.
pub(crate) async fn refuse_foreign(
    connection: &mut MySqlConnection,
    names: &Names,
    sql: &str,
) -> Result<(), StoreError> {
    let versions = ("schema", vec!["version", "applied_at"]);
    for (table, columns) in std::iter::once(versions).chain(tables(sql)) {
        let look = names.statement(&format!("select `{}` from {{{table}}} limit 0", columns.join("`, `")));
        let Err(error) = sqlx::raw_sql(look).execute(&mut *connection).await else { continue };
        match error::number(&error) {
            Some(error::NO_TABLE) => {}
            Some(error::NO_COLUMN) => {
                return Err(StoreError::new(
                    StoreErrorKind::Rejected,
                    format!(
                        "a table {}{table} is there that Pillarbox did not make: choose another prefix",
                        names.prefix()
                    ),
                ));
            }
            _ => return Err(error::of(error)),
        }
    }
    Ok(())
}

impl MySqlStore {
    /// Brings the tables to this program's version, as `migrate` does, and tells what is left for an administrator, in
    /// words for people. The outbox itself works without it.
    pub async fn migrate_and_tell(&self) -> Result<Vec<String>, StoreError> {
        Ok(self.run_migrations().await?.into_iter().collect())
    }

    pub(crate) async fn run_migrations(&self) -> Result<Option<String>, StoreError> {
        let mut entered = self.0.settles.enter().await?;
        self.check_server(&mut entered).await?;
        // Most starts find nothing to do, and need neither a lock to see it nor the right to make tables.
        let is_current = self.version(&mut entered).await? == Some(VERSION);
        if !is_current {
            lock(&mut entered, &self.0.names).await?;
            self.migrate_locked(&mut entered).await?;
        }
        let left = self.make_function(&mut entered).await?;
        if !is_current {
            run(&mut entered, "select release_all_locks()".into()).await.or_else(|_| Ok(()))?;
        }
        entered.done();
        match &left {
            // Most nodes have no right to see the function, and it may be there.
            Some(words) if is_current => tracing::info!(prefix = self.prefix(), "{words}"),
            Some(words) => tracing::warn!(prefix = self.prefix(), "{words}"),
            None => {}
        }
        Ok(left)
    }

    async fn migrate_locked(&self, connection: &mut MySqlConnection) -> Result<(), StoreError> {
        let names = &self.0.names;
        let present = self.version(connection).await?.unwrap_or(0);
        refuse_newer(present)?;
        for (version, sql) in MIGRATIONS.into_iter().filter(|(version, _)| *version > present) {
            refuse_foreign(connection, names, sql).await?;
            run(connection, names.fill(SCHEMA_TABLE)).await?;
            run(connection, fill(names, sql)).await?;
            run(connection, names.fill(&format!("insert ignore into {{schema}} (version) values ({version})"))).await?;
            tracing::info!(version, prefix = self.prefix(), "migrated the outbox's tables");
        }
        Ok(())
    }

    /// Makes the function that writers of plain SQL call, if it is missing. Returns words on what is left to do if the user
    /// has no right to make it.
    async fn make_function(&self, connection: &mut MySqlConnection) -> Result<Option<String>, StoreError> {
        if self.has_function(connection).await? {
            return Ok(None);
        }
        let making = sqlx::raw_sql(AssertSqlSafe(self.0.names.fill(PARTITION_OF)));
        let Err(error) = making.execute(connection).await else { return Ok(None) };
        match error::number(&error) {
            Some(error::FUNCTION_THERE) => Ok(None),
            Some(number) if error::DENIED.contains(&number) => Ok(Some(self.function_is_left(number))),
            _ => Err(error::of(error)),
        }
    }

    fn function_is_left(&self, number: u16) -> String {
        let (why, remedy) = match number {
            error::BINARY_LOG | error::UNSAFE_FUNCTION => (
                "is missing: the server writes a binary log, and lets nobody without SUPER make functions",
                "set global log_bin_trust_function_creators = 1",
            ),
            _ => (
                "is missing, or hidden from this user, who may not make it",
                "grant create routine on DATABASE.* to USER",
            ),
        };
        format!(
            "the function {}partition_of {why}. Without it plain SQL can't write events with a key; everything else works. Let \
             an administrator run `{remedy}` and then migrate again, or run the end of what `pillarbox migrate --print` \
             prints",
            self.prefix()
        )
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

    /// Whether the function is there, and not hidden from this user: nothing tells the two apart.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_of_each_table_are_found_in_the_text() {
        let found = tables(MIGRATIONS[0].1);
        let names: Vec<_> = found.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["event", "hold", "instance", "partition", "dedup", "action"]);
        assert_eq!(found[0].1.len(), 21, "{:?}", found[0].1);
        assert_eq!(found[1].1, ["partition", "kind", "name", "from_seq", "space"]);
        for (_, columns) in found {
            assert!(columns.iter().all(|column| column.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')));
        }
    }
}

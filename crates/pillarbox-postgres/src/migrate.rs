//! The versions of the tables.
//!
//! All of them are one statement, which brings whatever it finds to the present version. It takes effect as a whole, in a
//! transaction of the caller's or in its own, so it may be cut off anywhere and may run twice. The program runs the very
//! text that it prints.

use std::fmt::Write as _;

use pillarbox_core::port::{StoreError, StoreErrorKind};
use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use crate::{Options, PostgresStore, error, tables::Names};

/// The version of the tables that this program works with.
pub const VERSION: i64 = MIGRATIONS[MIGRATIONS.len() - 1].0;

// What has been released is never changed: a new version is a new file.
const MIGRATIONS: [(i64, &str); 4] = [
    (1, include_str!("../migrations/0001_tables.sql")),
    (2, include_str!("../migrations/0002_life.sql")),
    (3, include_str!("../migrations/0003_publish.sql")),
    (4, include_str!("../migrations/0004_emptied.sql")),
];

/// What stands above a text that is printed.
const HEAD: &str = "-- Makes Pillarbox's tables, or brings those that are there to the present version; where they are of it already, it
-- does nothing. One statement, which takes effect as a whole: it needs no transaction around it, and may stand in one
-- (psql -1, or a tool that brings its own).
";

/// What the versions stand on. Of several at once one migrates; the others wait, and find it done: they wait for the schema,
/// however it was named or found, and whatever is made in it. The tables stay in the schema where the search path finds them,
/// and everything that is made beside them is made there. Who holds up the writers by waiting for a lock gives up soon.
const GROUND: &str = "    loop
{home}
        exit when home is not distinct from locked;
        perform pg_advisory_xact_lock(hashtextextended('pillarbox ' || home, 0));
        locked := home;
    end loop;
    perform set_config('lock_timeout', '5s', true) from pg_settings
        where name = 'lock_timeout' and setting::bigint not between 1 and 5000;
{make}
    if home is not null then
        perform set_config('search_path', quote_ident(home) || ', pg_temp', true);
    end if;
    if to_regclass('{schema}') is null then
        create table {schema} (
            version bigint primary key,
            applied_at timestamptz not null default {now}
        );
    end if;
    select coalesce(max(version), 0) into present from {schema};
";

const NAMED_HOME: &str = "        home := '{schema_name}';";

const MAKE_HOME: &str = "    if to_regnamespace(quote_ident(home)) is null then
        create schema \"{schema_name}\";
    end if;";

/// Once more behind the lock: another may have made the tables meanwhile, in a schema further behind.
const FOUND_HOME: &str =
    "        select nspname into home from pg_class join pg_namespace on pg_namespace.oid = relnamespace
            where pg_class.oid = to_regclass('{schema}');
        home := coalesce(home, current_schema());";

/// Null of a table of the same name that another has made.
pub(crate) const PRESENT: &str = "select max(version) from {schema} where pg_typeof(version) = 'bigint'::regtype";

/// The grants that are missing, if one is; what undoes a cache of numbers, which other sessions would pass; the schema of the
/// tables, and the first of the search path.
const PLACE: &str = "select case when has_table_privilege('{event}', 'update, delete')
            and not has_sequence_privilege(pg_class.oid, 'usage, select')
            then format('grant usage on sequence %I.%I to %I', nspname, relname, current_user) end,
        case when has_table_privilege('{event}', 'update')
            and not (has_table_privilege('{life}', 'select') and has_table_privilege('{life}', 'insert'))
            then format('grant select, insert on %s to %I', '{life}'::regclass, current_user) end,
        case when (select seqcache from pg_sequence where seqrelid = pg_class.oid) > 1
            then format('alter sequence %I.%I cache 1', nspname, relname) end,
        nspname::text, current_schema()::text
    from pg_class join pg_namespace on pg_namespace.oid = relnamespace
    where pg_class.oid = '{event}_seq_seq'::regclass";

impl Options {
    /// All migrations as one text, for those who run them with a tool of their own: on an empty database, and on one
    /// with older tables, it makes everything that [`check`](pillarbox_core::port::UpkeepStore::check) looks for. It is one
    /// statement, with or without a transaction around it, and can be run again at any time.
    pub fn migration_sql(&self) -> Result<String, StoreError> {
        Ok(text(&Names::new(self.schema.as_deref(), &self.prefix)?, &MIGRATIONS))
    }
}

/// For people.
pub(crate) fn text(names: &Names, versions: &[(i64, &str)]) -> String {
    format!("{HEAD}{}", statement(names, versions))
}

fn statement(names: &Names, versions: &[(i64, &str)]) -> String {
    let ground = match names.schema() {
        Some(_) => GROUND.replace("{home}", NAMED_HOME).replace("{make}", MAKE_HOME),
        None => GROUND.replace("{home}", FOUND_HOME).replace("{make}\n", ""),
    };
    let mut body = ground.replace("{schema_name}", names.schema().unwrap_or_default());
    for (version, text) in versions {
        // Writing to a string does not fail.
        let _ = write!(
            body,
            "\n    if present < {version} then\n{}\n\n        insert into {{schema}} (version) values ({version});\n    end if;\n",
            text.replace("$$", &names.quote("body")).trim_end()
        );
    }
    let quote = names.quote("pillarbox");
    names.fill(&format!(
        "do {quote}\ndeclare\n    path_before constant text := current_setting('search_path');\n    \
         timeout_before constant text := current_setting('lock_timeout');\n    home text;\n    locked text;\n    \
         present bigint;\nbegin\n{body}\n    perform set_config('search_path', path_before, true);\n    \
         perform set_config('lock_timeout', timeout_before, true);\nend {quote};\n"
    ))
}

/// Runs it in a transaction, and returns the versions that it has brought.
pub(crate) async fn run_in(
    tx: &mut PgConnection,
    names: &Names,
    versions: &[(i64, &str)],
) -> Result<Vec<i64>, StoreError> {
    let refused = |error| error::of_migration(error, names);
    sqlx::raw_sql(AssertSqlSafe(statement(names, versions))).execute(&mut *tx).await.map_err(refused)?;
    let brought = "select version from {schema} where xmin = pg_current_xact_id()::xid order by version";
    let rows = sqlx::query(names.statement(brought)).persistent(false).fetch_all(tx).await.map_err(error::of)?;
    rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().map_err(error::of)
}

impl PostgresStore {
    pub(crate) async fn run_migrations(&self) -> Result<(), StoreError> {
        // Most starts find nothing to do, and need no lock to see it.
        if self.version().await? == Some(VERSION) {
            return self.check_place(true).await;
        }
        let mut entered = self.0.settles.enter().await?;
        entered.begin().await?;
        let tx = entered.connection().map_err(error::of)?;
        let brought = run_in(tx, &self.0.names, &MIGRATIONS).await?;
        refuse_newer(self.version_in(tx).await?.unwrap_or(0))?;
        entered.commit().await?;
        for version in brought {
            tracing::info!(version, prefix = self.prefix(), "migrated the outbox's tables");
        }
        Ok(())
    }

    pub(crate) async fn check_version(&self) -> Result<(), StoreError> {
        match self.version().await? {
            Some(VERSION) => self.check_place(false).await,
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

    /// What a role that reads would not notice: without a right on the sequence newer servers answer null in place of its
    /// last number, and the position would stay where it is for ever. And that of a table which an upgrade has made, that its
    /// first join would stumble over. A role that only writes needs neither.
    async fn check_place(&self, migrating: bool) -> Result<(), StoreError> {
        let mut entered = self.0.settles.enter().await?;
        let connection = entered.begin_reading().await.map_err(error::of)?;
        let row = sqlx::query(self.0.names.statement(PLACE)).persistent(false).fetch_one(connection).await;
        let row = row.map_err(error::of)?;
        let text = |column| row.try_get::<Option<String>, _>(column).map_err(error::of);
        let (grant, of_life, alter, schema, first) = (text(0)?, text(1)?, text(2)?, text(3)?, text(4)?);
        entered.end_reading().await.map_err(error::of)?;
        entered.leave();
        if let Some(grant) = grant {
            return Err(StoreError::new(
                StoreErrorKind::Rejected,
                format!("the role may not see how far the numbers of the events have come: run `{grant}`"),
            ));
        }
        if let Some(grant) = of_life {
            return Err(StoreError::new(
                StoreErrorKind::Rejected,
                format!("the role can't join: it may not note the life of the server, run `{grant}`"),
            ));
        }
        if let Some(alter) = alter {
            return Err(StoreError::new(
                StoreErrorKind::Rejected,
                format!(
                    "sessions keep numbers of the events for later (the sequence has a cache), and such events would be passed \
                     over: run `{alter}`"
                ),
            ));
        }
        if migrating && self.schema().is_none() && first.is_some() && first != schema {
            tracing::warn!(
                schema,
                first,
                prefix = self.prefix(),
                "the outbox's tables were found on the search path behind its first schema, and are used as they are: to have \
                 others in the first one name it (Options::schema, `--schema`); to keep these name theirs"
            );
        }
        Ok(())
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
        let row = sqlx::query(self.0.names.statement(PRESENT))
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

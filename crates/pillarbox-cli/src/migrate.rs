//! `pillarbox migrate`: brings the tables to this program's version, or prints the SQL that would.

use std::{io::Write as _, process::ExitCode};

use clap::Args as ClapArgs;
use pillarbox::{
    AnyStore, Kind, MySqlInbox, PostgresInbox, SqliteInbox, StoreError, StoreErrorKind,
    port::{InboxUpkeep, UpkeepStore as _},
};
use serde::Serialize;
use sqlx::{AssertSqlSafe, Row as _};

use crate::{advice, error::Error, out, store::Database};

/// Make the outbox's tables, and those of its consumers, or bring them to this program's version
///
/// Safe to run at any time and by several machines at once. A service may also do it when it starts.
#[derive(Debug, ClapArgs)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(crate) struct Args {
    #[command(flatten)]
    database: Database,
    /// Print the SQL of all versions for a tool of your own, and touch nothing.
    #[arg(long, conflicts_with = "check")]
    print: bool,
    /// Print one JSON object for what was found and done.
    #[arg(long, conflicts_with = "print")]
    json: bool,
    /// Only say whether the tables are of this program's version; exit code 2 if not.
    #[arg(long, conflicts_with = "inbox")]
    check: bool,
    /// Also the tables of consumers: inbox, guard and dead letters.
    #[arg(long)]
    inbox: bool,
    /// What the names of the consumers' tables begin with.
    #[arg(long, value_name = "NAME", env = "PILLARBOX_INBOX_PREFIX", default_value = "inbox_")]
    inbox_prefix: String,
}

pub(crate) async fn run(args: Args) -> Result<ExitCode, Error> {
    let kind = args.database.kind()?;
    if args.print {
        let sql = args.database.options().migration_sql(kind);
        let refused = |error| Error::new("the migrations can't be printed").caused_by(error);
        let mut sql = sql.map_err(refused)?;
        if args.inbox {
            // Before the outbox's, at whose end a client may stop for want of a privilege.
            let inbox = args.database.options().inbox_migration_sql(kind, &args.inbox_prefix).map_err(refused)?;
            sql = format!("{inbox}\n{sql}");
        }
        // Who has left has read enough.
        let _ = out::print(sql)?;
        return Ok(ExitCode::SUCCESS);
    }
    let store = args.database.open().await?;
    if args.check { check(&args, &store).await } else { migrate(&args, &store).await }
}

/// What is printed as JSON.
#[derive(Debug, Serialize)]
struct Report {
    database: &'static str,
    /// Whether the tables are of the version that is needed, now.
    up_to_date: bool,
    /// The version that this program works with.
    needed: i64,
    /// The version that was found; none if there were no tables.
    before: Option<i64>,
    /// The version that is there now.
    version: Option<i64>,
    /// What brought it from the one to the other.
    applied: Vec<i64>,
    /// What a person should know besides.
    notes: Vec<String>,
    /// The consumers' tables, if they were asked for.
    inbox: Option<Inbox>,
}

#[derive(Debug, Serialize)]
struct Inbox {
    before: Option<i64>,
    version: Option<i64>,
    applied: Vec<i64>,
}

async fn check(args: &Args, store: &AnyStore) -> Result<ExitCode, Error> {
    let said = match store.check().await {
        Ok(()) => None,
        Err(error) if error.kind() == StoreErrorKind::Schema => Some(error.to_string()),
        Err(error) => {
            return Err(advice::caused(Error::new("the tables could not be looked at"), error, store.kind()));
        }
    };
    if args.json {
        let version = args.versions(store, &args.database.prefix).await?.last().copied();
        print(&Report {
            database: store.kind().name(),
            up_to_date: said.is_none(),
            needed: store.tables_version(),
            before: version,
            version,
            applied: Vec::new(),
            notes: said.iter().cloned().collect(),
            inbox: None,
        })?;
    } else {
        let _ = out::print(format!("{}\n", said.as_deref().unwrap_or("the tables are up to date")))?;
    }
    Ok(if said.is_none() { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

async fn migrate(args: &Args, store: &AnyStore) -> Result<ExitCode, Error> {
    let before = store.check().await;
    let versions = args.found(store, &args.database.prefix, &before).await?;
    let left = make_tables(store).await.map_err(|error| failed(&before, error, store.kind()))?;
    let mut of_inbox = Vec::new();
    if args.inbox {
        let inbox = consumers(store, &args.inbox_prefix)?;
        of_inbox = args.found(store, &args.inbox_prefix, &before).await?;
        inbox.migrate().await.map_err(|error| {
            let failed = Error::new("the migration of the consumers' tables failed, and can be run again");
            advice::caused(failed, error, store.kind())
        })?;
    }
    if args.json {
        let (version, applied) = news(&versions, &args.versions(store, &args.database.prefix).await?);
        let inbox = if args.inbox {
            let (version, applied) = news(&of_inbox, &args.versions(store, &args.inbox_prefix).await?);
            Some(Inbox { before: of_inbox.last().copied(), version, applied })
        } else {
            None
        };
        print(&Report {
            database: store.kind().name(),
            up_to_date: true,
            needed: store.tables_version(),
            before: versions.last().copied(),
            version,
            applied,
            notes: left,
            inbox,
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let _ = out::print(if before.is_ok() { "the tables were up to date\n" } else { "the tables are migrated\n" })?;
    if args.inbox {
        let _ = out::print("the consumers' tables are there\n")?;
    }
    for words in left {
        // Nobody is left to tell if stderr is gone.
        let _ = writeln!(std::io::stderr(), "note: {words}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns what is left for an administrator.
async fn make_tables(store: &AnyStore) -> Result<Vec<String>, StoreError> {
    match store {
        AnyStore::MySql(store) => store.migrate_and_tell().await,
        store => store.migrate().await.map(|()| Vec::new()),
    }
}

impl Args {
    /// The versions that are there before a migration, if they are to be told.
    async fn found(&self, store: &AnyStore, prefix: &str, checked: &Result<(), StoreError>) -> Result<Vec<i64>, Error> {
        // Who can't even look is told so by the migration.
        if self.json && looked(checked) { self.versions(store, prefix).await } else { Ok(Vec::new()) }
    }

    /// The versions that the tables have been through, in order; none if there are no tables.
    async fn versions(&self, store: &AnyStore, prefix: &str) -> Result<Vec<i64>, Error> {
        let quote = if store.kind() == Kind::MySql { '`' } else { '"' };
        let schema = self.database.schema.as_ref();
        let schema = schema.map_or_else(String::new, |schema| format!("{quote}{schema}{quote}."));
        // The store, or the inbox, has checked these names when it was opened.
        let sql = AssertSqlSafe(format!("select version from {schema}{prefix}schema order by version"));
        macro_rules! ask {
            ($store:expr) => {{
                let rows = sqlx::raw_sql(sql).fetch_all($store.pool()).await;
                rows.and_then(|rows| rows.iter().map(|row| row.try_get::<i64, _>(0)).collect::<Result<Vec<_>, _>>())
            }};
        }
        let asked = match store {
            AnyStore::Sqlite(store) => ask!(store),
            AnyStore::Postgres(store) => ask!(store),
            AnyStore::MySql(store) => ask!(store),
            _ => return Err(Error::new("this database has no versions")),
        };
        match asked {
            Err(sqlx::Error::Database(_)) => Ok(Vec::new()),
            asked => asked.map_err(|error| Error::new("the version of the tables can't be read").caused_by(error)),
        }
    }
}

/// The version now, and what brought it there.
fn news(before: &[i64], now: &[i64]) -> (Option<i64>, Vec<i64>) {
    (now.last().copied(), now.iter().copied().filter(|version| !before.contains(version)).collect())
}

fn print(report: &Report) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(report);
    let text = text.map_err(|error| Error::new("what was done can't be written as JSON").caused_by(error))?;
    let _ = out::print(text + "\n")?;
    Ok(())
}

/// Whether somebody has logged in.
fn looked(checked: &Result<(), StoreError>) -> bool {
    checked.as_ref().map_or_else(|error| error.kind() == StoreErrorKind::Schema, |()| true)
}

/// Who could look at the tables before has logged in; what was refused is then the making of tables.
fn failed(before: &Result<(), StoreError>, error: StoreError, kind: Kind) -> Error {
    const RIGHTS: &str =
        "the database's user must be allowed to make tables; --print shows the SQL for somebody who is";
    let failed = Error::new("the migration failed, and can be run again");
    match error.kind() {
        StoreErrorKind::Rejected if looked(before) && advice::not_allowed(&error, kind) => {
            failed.caused_by(error).advice(RIGHTS)
        }
        // To migrate is no advice to who has just done that.
        StoreErrorKind::Schema => failed.caused_by(error),
        _ => advice::caused(failed, error, kind),
    }
}

/// The consumers' tables, under a name that was checked.
fn consumers(store: &AnyStore, prefix: &str) -> Result<Box<dyn InboxUpkeep>, Error> {
    let refused = |error| Error::new("--inbox-prefix is refused").caused_by(error);
    Ok(match store {
        AnyStore::Sqlite(store) => Box::new(SqliteInbox::with_prefix(store, prefix).map_err(refused)?),
        AnyStore::Postgres(store) => Box::new(PostgresInbox::with_prefix(store, prefix).map_err(refused)?),
        AnyStore::MySql(store) => Box::new(MySqlInbox::with_prefix(store, prefix).map_err(refused)?),
        _ => return Err(Error::new("this database has no inbox")),
    })
}

//! `pillarbox migrate`: brings the tables to this program's version, or prints the SQL that would.

use std::{error::Error as _, io::Write as _, process::ExitCode};

use clap::Args as ClapArgs;
use pillarbox::{
    AnyStore, MySqlInbox, PostgresInbox, SqliteInbox, StoreError, StoreErrorKind,
    port::{InboxUpkeep as _, UpkeepStore as _},
};

use crate::{error::Error, out, store::Database};

/// Make the outbox's tables, and those of its consumers, or bring them to this program's version
///
/// Safe to run at any time and by several machines at once. A service may also do it when it starts.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    database: Database,
    /// Print the SQL of all versions for a tool of your own, and touch nothing.
    #[arg(long, conflicts_with = "check")]
    print: bool,
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
    if args.check {
        return match store.check().await {
            Ok(()) => {
                let _ = out::print("the tables are up to date\n")?;
                Ok(ExitCode::SUCCESS)
            }
            Err(error) if error.kind() == StoreErrorKind::Schema => {
                let _ = out::print(format!("{error}\n"))?;
                Ok(ExitCode::from(2))
            }
            Err(error) => Err(Error::new("the tables could not be looked at").caused_by(error)),
        };
    }
    let before = store.check().await;
    let left = migrate(&store).await.map_err(|error| {
        // What Pillarbox itself refuses has the advice in its words.
        let advice = error.source().map(|_| advice(&before, error.kind()));
        let failed = Error::new("the migration failed, and can be run again").caused_by(error);
        advice.into_iter().fold(failed, Error::advice)
    })?;
    if args.inbox {
        migrate_inbox(&store, &args.inbox_prefix).await?;
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
async fn migrate(store: &AnyStore) -> Result<Vec<String>, StoreError> {
    match store {
        AnyStore::MySql(store) => store.migrate_and_tell().await,
        store => store.migrate().await.map(|()| Vec::new()),
    }
}

/// Who could look at the tables before has logged in; what was refused is then the making of tables.
fn advice(before: &Result<(), StoreError>, failure: StoreErrorKind) -> &'static str {
    let looked = before.as_ref().map_or_else(|error| error.kind() == StoreErrorKind::Schema, |()| true);
    match failure {
        StoreErrorKind::Unavailable => "look whether the URL is right, and the server is up",
        _ if looked => "the database's user must be allowed to make tables; --print shows the SQL for somebody who is",
        _ => "look at name, password, database and TLS options in the URL",
    }
}

async fn migrate_inbox(store: &AnyStore, prefix: &str) -> Result<(), Error> {
    let refused = |error| Error::new("--inbox-prefix is refused").caused_by(error);
    let migrated = match store {
        AnyStore::Sqlite(store) => SqliteInbox::with_prefix(store, prefix).map_err(refused)?.migrate().await,
        AnyStore::Postgres(store) => PostgresInbox::with_prefix(store, prefix).map_err(refused)?.migrate().await,
        AnyStore::MySql(store) => MySqlInbox::with_prefix(store, prefix).map_err(refused)?.migrate().await,
        _ => return Err(Error::new("this database has no inbox")),
    };
    migrated.map_err(|error| {
        Error::new("the migration of the consumers' tables failed, and can be run again").caused_by(error)
    })
}

//! `pillarbox migrate`: brings the tables to this program's version, or prints the SQL that would.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use pillarbox::{StoreErrorKind, port::UpkeepStore as _};

use crate::{error::Error, store::Database};

/// Make the outbox's tables, or bring them to this program's version
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
    #[arg(long)]
    check: bool,
}

pub(crate) async fn run(args: Args) -> Result<ExitCode, Error> {
    let kind = args.database.kind()?;
    if args.print {
        let sql = args.database.options().migration_sql(kind);
        print!("{}", sql.map_err(|error| Error::new("the migrations can't be printed").caused_by(error))?);
        return Ok(ExitCode::SUCCESS);
    }
    let store = args.database.open().await?;
    if args.check {
        return match store.check().await {
            Ok(()) => {
                println!("the tables are up to date");
                Ok(ExitCode::SUCCESS)
            }
            Err(error) if error.kind() == StoreErrorKind::Schema => {
                println!("{error}");
                Ok(ExitCode::from(2))
            }
            Err(error) => Err(Error::new("the tables could not be looked at").caused_by(error)),
        };
    }
    let before = store.check().await;
    store.migrate().await.map_err(|error| {
        Error::new("the migration failed, and can be run again")
            .caused_by(error)
            .advice("the database's user must be allowed to make tables; --print shows the SQL for somebody who is")
    })?;
    println!("{}", if before.is_ok() { "the tables were up to date" } else { "the tables are migrated" });
    Ok(ExitCode::SUCCESS)
}

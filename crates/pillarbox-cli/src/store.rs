//! The database that a subcommand works on.

use clap::Args;
use pillarbox::{AnyOptions, AnyStore, Kind, StoreError, port::UpkeepStore as _};

use crate::{advice, error::Error};

/// Which outbox.
#[derive(Debug, Args)]
pub(crate) struct Database {
    /// The database: sqlite:FILE, postgres://..., mysql://... or mariadb://...
    #[arg(long, value_name = "URL", env = "PILLARBOX_DB", hide_env_values = true)]
    db: String,
    /// What the names of the outbox's tables begin with.
    #[arg(long, value_name = "NAME", env = "PILLARBOX_PREFIX", default_value = "outbox_")]
    pub(crate) prefix: String,
    /// The schema that the tables lie in; for MySQL and MariaDB the database. Default: the connection's own.
    #[arg(long, value_name = "NAME", env = "PILLARBOX_SCHEMA")]
    pub(crate) schema: Option<String>,
}

impl Database {
    pub(crate) fn new(db: &str, prefix: &str, schema: Option<&str>) -> Self {
        Self { db: db.to_owned(), prefix: prefix.to_owned(), schema: schema.map(ToOwned::to_owned) }
    }

    pub(crate) fn kind(&self) -> Result<Kind, Error> {
        Kind::of(&self.db).map_err(|error| {
            let failed = Error::new("the database is not known").caused_by(error);
            // Most likely the name of a file.
            if self.db.contains(':') { failed } else { failed.advice(format!("sqlite:{}, if that is a file", self.db)) }
        })
    }

    pub(crate) fn options(&self) -> AnyOptions {
        let options = AnyOptions::new().prefix(&self.prefix);
        match &self.schema {
            Some(schema) => options.schema(schema),
            None => options,
        }
    }

    /// Opens it, whether or not it has the tables. A SQLite file is made if it is missing.
    pub(crate) async fn open(&self) -> Result<AnyStore, Error> {
        self.open_at(&self.db).await
    }

    async fn open_at(&self, url: &str) -> Result<AnyStore, Error> {
        let kind = self.kind()?;
        self.options().open(url).await.map_err(|error| {
            advice::caused(Error::new(format!("the {kind} database could not be opened")), error, kind)
        })
    }

    /// Opens it, and finds the tables of this program's version.
    pub(crate) async fn open_migrated(&self) -> Result<AnyStore, Error> {
        let store = self.open_there().await?;
        store.check().await.map_err(|error| unreadable(error, store.kind()))?;
        Ok(store)
    }

    /// Opens it, whether or not it has the tables, if it is there.
    pub(crate) async fn open_there(&self) -> Result<AnyStore, Error> {
        self.open_at(&to_look_at(self.kind()?, &self.db)).await
    }
}

/// Why an outbox can't be read.
pub(crate) fn unreadable(error: StoreError, kind: Kind) -> Error {
    advice::caused(Error::new("the outbox can't be read"), error, kind)
}

/// The same database for who only looks at it: a file that is missing is not made.
pub(crate) fn to_look_at(kind: Kind, url: &str) -> String {
    match kind {
        Kind::Sqlite if !url.contains("mode=") => {
            let and = if url.contains('?') { '&' } else { '?' };
            format!("{url}{and}mode=rw")
        }
        _ => url.to_owned(),
    }
}

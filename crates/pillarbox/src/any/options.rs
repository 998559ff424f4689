//! From a URL to a store.

use std::{fmt, time::Duration};

use pillarbox_core::port::{StoreError, StoreErrorKind};

use super::AnyStore;

/// A kind of database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// SQLite, embedded.
    Sqlite,
    /// PostgreSQL.
    Postgres,
    /// MySQL and MariaDB.
    MySql,
}

impl Kind {
    /// The kind that a URL names by its scheme.
    pub fn of(url: &str) -> Result<Self, StoreError> {
        // The rest of the URL may hold a password, and is not repeated.
        let (scheme, _) = url.split_once(':').unwrap_or_default();
        match scheme.to_ascii_lowercase().as_str() {
            "sqlite" => Ok(Self::Sqlite),
            "postgres" | "postgresql" => Ok(Self::Postgres),
            "mysql" | "mariadb" => Ok(Self::MySql),
            other => {
                let found = if other.is_empty() { "no scheme".into() } else { format!("the scheme {other:?}") };
                Err(StoreError::new(
                    StoreErrorKind::Rejected,
                    format!(
                        "a database URL begins with sqlite:, postgres://, postgresql://, mysql:// or mariadb://, and \
                         this one has {found}"
                    ),
                ))
            }
        }
    }

    /// As people call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "SQLite",
            Self::Postgres => "PostgreSQL",
            Self::MySql => "MySQL or MariaDB",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The settings that every database has.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}", folder.path().join("shop.db").display());
/// use pillarbox::{AnyOptions, Kind};
///
/// let store = AnyOptions::new().prefix("billing_").open(&url).await?;
/// assert_eq!(store.kind(), Kind::Sqlite);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct AnyOptions {
    prefix: Option<String>,
    schema: Option<String>,
    pool_size: Option<u32>,
    answer_within: Option<Duration>,
}

impl AnyOptions {
    /// The defaults: the prefix `outbox_`, the schema that the connection has, a pool of 4, and the database's own patience.
    pub fn new() -> Self {
        Self::default()
    }

    /// The prefix of the table names.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// The schema (MySQL: the database) that the tables lie in. SQLite has none, and refuses it.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }

    /// Sets how many connections the application's transactions share; the store keeps a few of its own besides, and as many
    /// others for transactional handlers on PostgreSQL, MySQL and MariaDB. Default: 4. At least one is kept.
    #[must_use]
    pub fn pool_size(mut self, connections: u32) -> Self {
        self.pool_size = Some(connections);
        self
    }

    /// Sets how long the store's own calls wait for the database before they give up. Default: 30 seconds on PostgreSQL,
    /// MySQL and MariaDB. A SQLite file is always there, and what is waited for is another connection's write lock: the
    /// busy timeout, 5 seconds by default.
    #[must_use]
    pub fn answer_within(mut self, limit: Duration) -> Self {
        self.answer_within = Some(limit);
        self
    }

    /// Opens the database that the URL names.
    pub async fn open(self, url: &str) -> Result<AnyStore, StoreError> {
        match Kind::of(url)? {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite => Ok(AnyStore::Sqlite(self.sqlite()?.open(url).await?)),
            #[cfg(feature = "postgres")]
            Kind::Postgres => Ok(AnyStore::Postgres(self.postgres().open(url)?)),
            #[cfg(feature = "mysql")]
            Kind::MySql => Ok(AnyStore::MySql(self.mysql().open(url).await?)),
            #[allow(unreachable_patterns, reason = "with all features there is no other")]
            missing => Err(not_built(missing)),
        }
    }

    /// The migrations as SQL, for a tool of one's own.
    pub fn migration_sql(self, kind: Kind) -> Result<String, StoreError> {
        match kind {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite => self.sqlite()?.migration_sql(),
            #[cfg(feature = "postgres")]
            Kind::Postgres => self.postgres().migration_sql(),
            #[cfg(feature = "mysql")]
            Kind::MySql => self.mysql().migration_sql(),
            #[allow(unreachable_patterns, reason = "with all features there is no other")]
            missing => Err(not_built(missing)),
        }
    }

    /// The migrations of an inbox's tables as SQL, whose names begin with this.
    pub fn inbox_migration_sql(self, kind: Kind, prefix: &str) -> Result<String, StoreError> {
        match kind {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite => self.sqlite()?.inbox_migration_sql(prefix),
            #[cfg(feature = "postgres")]
            Kind::Postgres => self.postgres().inbox_migration_sql(prefix),
            #[cfg(feature = "mysql")]
            Kind::MySql => self.mysql().inbox_migration_sql(prefix),
            #[allow(unreachable_patterns, reason = "with all features there is no other")]
            missing => Err(not_built(missing)),
        }
    }

    #[cfg(feature = "sqlite")]
    fn sqlite(self) -> Result<crate::SqliteOptions, StoreError> {
        if let Some(schema) = self.schema {
            return Err(StoreError::new(
                StoreErrorKind::Rejected,
                format!("SQLite has no schemas: leave out the schema {schema:?}, or use a prefix"),
            ));
        }
        let mut options = crate::SqliteOptions::new();
        if let Some(prefix) = self.prefix {
            options = options.prefix(prefix);
        }
        if let Some(limit) = self.answer_within {
            options = options.busy_timeout(limit);
        }
        Ok(match self.pool_size {
            Some(connections) => options.pool_size(connections),
            None => options,
        })
    }

    #[cfg(feature = "postgres")]
    fn postgres(self) -> crate::PostgresOptions {
        let mut options = crate::PostgresOptions::new();
        if let Some(prefix) = self.prefix {
            options = options.prefix(prefix);
        }
        if let Some(schema) = self.schema {
            options = options.schema(schema);
        }
        if let Some(connections) = self.pool_size {
            options = options.pool_size(connections);
        }
        if let Some(limit) = self.answer_within {
            options = options.answer_within(limit);
        }
        options
    }

    #[cfg(feature = "mysql")]
    fn mysql(self) -> crate::MySqlOptions {
        let mut options = crate::MySqlOptions::new();
        if let Some(prefix) = self.prefix {
            options = options.prefix(prefix);
        }
        if let Some(schema) = self.schema {
            options = options.schema(schema);
        }
        if let Some(connections) = self.pool_size {
            options = options.pool_size(connections);
        }
        if let Some(limit) = self.answer_within {
            options = options.answer_within(limit);
        }
        options
    }
}

#[allow(dead_code, reason = "with all features nothing is missing")]
fn not_built(kind: Kind) -> StoreError {
    let feature = match kind {
        Kind::Sqlite => "sqlite",
        Kind::Postgres => "postgres",
        Kind::MySql => "mysql",
    };
    StoreError::new(
        StoreErrorKind::Rejected,
        format!("this program was built without {kind}: build it with the feature `{feature}` of the crate pillarbox"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_decides() {
        for (url, kind) in [
            ("sqlite:shop.db", Kind::Sqlite),
            ("sqlite:///var/shop.db", Kind::Sqlite),
            ("postgres://a@b/c", Kind::Postgres),
            ("PostgreSQL://a@b/c", Kind::Postgres),
            ("mysql://a@b/c", Kind::MySql),
            ("mariadb://a@b/c", Kind::MySql),
        ] {
            assert_eq!(Kind::of(url).unwrap(), kind, "{url}");
        }
    }

    #[test]
    fn another_scheme_is_refused_without_repeating_the_url() {
        for url in ["shop.db", "", "oracle://me:secret@host/db", "postgress://me:secret@host"] {
            let error = Kind::of(url).unwrap_err().to_string();
            assert!(error.contains("postgres://") && !error.contains("secret"), "{error}");
        }
    }

    /// What a program that was built with fewer features says; the same words in every build.
    #[test]
    fn a_database_that_was_left_out_is_named_with_its_feature() {
        for (kind, feature) in [(Kind::Sqlite, "sqlite"), (Kind::Postgres, "postgres"), (Kind::MySql, "mysql")] {
            let error = not_built(kind);
            assert!(error.to_string().contains(&format!("the feature `{feature}` of the crate pillarbox")), "{error}");
            assert_eq!(error.kind(), StoreErrorKind::Rejected);
        }
    }

    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn sqlite_refuses_a_schema() {
        let error = AnyOptions::new().schema("app").open("sqlite::memory:").await.unwrap_err();
        assert!(error.to_string().contains("SQLite has no schemas"), "{error}");
    }

    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn pool_and_patience_are_those_of_the_options() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("a.db").display());
        let patience = Duration::from_millis(20);
        let store = AnyOptions::new().pool_size(7).answer_within(patience).open(&url).await.unwrap();
        let AnyStore::Sqlite(store) = store else { panic!("{url}") };
        assert_eq!(store.pool().options().get_max_connections(), 7);
        let mut connection = store.pool().acquire().await.unwrap();
        let timeout: i64 = sqlx::query_scalar("pragma busy_timeout").fetch_one(&mut *connection).await.unwrap();
        assert_eq!(timeout, 20);
    }

    #[cfg(feature = "postgres")]
    #[tokio::test]
    async fn the_pool_of_a_server_has_the_size_of_the_options() {
        let store = AnyOptions::new().pool_size(7).open("postgres://nobody@localhost/shop").await.unwrap();
        let AnyStore::Postgres(store) = store else { panic!("another kind") };
        assert_eq!(store.pool().options().get_max_connections(), 7);
    }
}

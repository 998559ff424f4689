//! The store that a URL names, whichever database that is.

mod options;
mod ports;
mod transaction;

use pillarbox_core::port::{Store, StoreError};

pub use options::{AnyOptions, Kind};
pub use transaction::{AnyConnection, AnyTransaction};

/// A store of any of the databases that this build knows; which one, the URL decides.
///
/// For programs that learn their database when they start. One that knows it uses the database's own store,
/// whose transactions are the driver's.
///
/// ```
/// use pillarbox::prelude::*;
/// use pillarbox::AnyStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}", folder.path().join("shop.db").display());
/// let store = AnyStore::open(&url).await?; // or postgres://..., mysql://..., mariadb://...
/// let outbox = Outbox::single_node(store).route("OrderPlaced", |_: Delivery| async {}).start().await?;
/// let mut tx = outbox.begin().await?;
/// if let Some(sqlite) = tx.sqlite() {
///     sqlx::query("create table orders (id integer)").execute(sqlite).await?;
/// }
/// tx.write(Event::builder("OrderPlaced").json(&7)).await?;
/// tx.commit().await?;
/// outbox.shutdown().await;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AnyStore {
    /// A SQLite file.
    #[cfg(feature = "sqlite")]
    Sqlite(crate::SqliteStore),
    /// A PostgreSQL database.
    #[cfg(feature = "postgres")]
    Postgres(crate::PostgresStore),
    /// A MySQL or MariaDB database.
    #[cfg(feature = "mysql")]
    MySql(crate::MySqlStore),
}

impl AnyStore {
    /// Opens the database that the URL names, with the default settings; see [`AnyOptions`] for others.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        AnyOptions::new().open(url).await
    }

    /// Which database it is.
    pub fn kind(&self) -> Kind {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => Kind::Sqlite,
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => Kind::Postgres,
            #[cfg(feature = "mysql")]
            Self::MySql(_) => Kind::MySql,
        }
    }

    /// The version of the tables that this program works with; the table `outbox_schema` has the one that is there.
    pub fn tables_version(&self) -> i64 {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => pillarbox_sqlite::VERSION,
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => pillarbox_postgres::VERSION,
            #[cfg(feature = "mysql")]
            Self::MySql(_) => pillarbox_mysql::VERSION,
        }
    }

    /// The store as the engine sees it.
    pub fn as_dyn(&self) -> &dyn Store {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => store,
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store,
            #[cfg(feature = "mysql")]
            Self::MySql(store) => store,
        }
    }
}

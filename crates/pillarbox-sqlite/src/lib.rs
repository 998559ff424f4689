//! The SQLite store of the Pillarbox transactional outbox.
//!
//! ```no_run
//! # async fn example() -> Result<(), pillarbox_core::port::StoreError> {
//! use pillarbox_sqlite::SqliteStore;
//!
//! let store = SqliteStore::open("sqlite:shop.db").await?;
//! # Ok(()) }
//! ```
//!
//! SQLite has one writer at a time, so the order of the sequence numbers is the order of the commits. The
//! file is kept in WAL mode: readers don't wait for the writer, nor the writer for readers.
//!
//! # Connections
//! | for | how many |
//! |---|---|
//! | the application's own statements: a pool | [`Options::pool_size`], 4 by default |
//! | transactions of [`TransactStore::begin`] | 1; on an application's own pool, that pool's |
//! | settles, ownership, purges, operators' actions | 1 |
//! | renewing the lease | 1 |
//! | reading pages and due rows | 1 |
//! | reading lanes and the like | 1 |
//! | operators' lists and counts | 1 |
//! | news from other processes | 1 |
//!
//! Each is opened when it is first needed, and each has a thread of its own. All writers of one store but the
//! application's own connections wait in one fair queue, and so does what [`TransactStore::begin`] begins:
//! SQLite's own way of waiting for the write lock is a sleep, and knows no order.
//!
//! # Other drivers
//! Events go into transactions of `sqlx` as they are, and into those of SeaORM and diesel-async by the crates
//! `pillarbox-sea-orm` and `pillarbox-diesel`, with their feature `sqlite`. [`writer`] is for yet others.
//!
//! # Time
//! The database's clock is SQLite's, which is the clock of the host; WAL mode binds all processes on one
//! file to one host. Times are kept in microseconds, and count in milliseconds.
//!
//! [`TransactStore::begin`]: pillarbox_core::port::TransactStore::begin

mod action;
mod admin;
mod connection;
mod error;
mod inbox;
mod migrate;
mod own;
#[cfg(test)]
mod plans;
mod read;
mod row;
mod settle;
mod store;
mod tables;
mod upkeep;
mod wake;
mod work;
mod write;
pub mod writer;

pub use inbox::SqliteInbox;
pub use migrate::{VERSION, migrations};
pub use store::{Durability, Options, SqliteStore};
pub use write::SqliteTransaction;

//! The MySQL and MariaDB store of the Pillarbox transactional outbox: MySQL 8.0.19 or later, MariaDB 10.6 or later.
//!
//! ```no_run
//! # async fn example() -> Result<(), pillarbox_core::port::StoreError> {
//! use pillarbox_mysql::MySqlStore;
//!
//! let store = MySqlStore::open("mysql://shop:secret@localhost/shop").await?;
//! # Ok(()) }
//! ```
//!
//! # Order and late commits
//! An auto-increment number is drawn when a row is inserted and becomes visible when its transaction commits, so
//! numbers appear out of order. How the reader finds those that come late is told in the module `water`. It looks at
//! `information_schema.innodb_trx`, for which the user needs the privilege PROCESS; without it nothing is lost or
//! reordered as long as no transaction that writes events stays open for longer than
//! [`Options::longest_write_transaction`].
//!
//! Numbers must be drawn from one counter: `auto_increment_increment` other than 1, as in a cluster with several
//! writers, is refused. The order of a key is that of its numbers, which is the order of the commits as long as
//! writers of one aggregate hold its lock before they write the event.
//!
//! # Connections
//! | for | how many |
//! |---|---|
//! | the application's transactions: a pool | [`Options::pool_size`], 4 by default; or the application's own pool |
//! | settles, purges, operators' actions | 1 |
//! | the lease, and who owns what | 1 |
//! | reading pages and due rows | 1 |
//! | reading lanes and lists | 1 |
//! | a guard's marks | 1, if there is a [`MySqlInbox`] |
//! | an inbox's upkeep and its dead letters | 1, if there is one |
//!
//! Each but the pool's is opened when it is first needed, closed when it has rested for ten seconds, opened again after that or
//! a loss, and used by the runtime that opened it: when it is entered from another one, a new one is opened there. All say
//! goodbye to the server, whose log would complain of them otherwise; [`MySqlStore::close`] does it for the pool.
//!
//! # The consumer's half
//! [`MySqlInbox`] keeps a guard's marks, an inbox and dead letters in tables of their own. A message is entered in a
//! transaction of `sqlx`.
//!
//! # Other drivers
//! Events go into transactions of `sqlx` as they are, and into those of SeaORM and diesel-async by the crates
//! `pillarbox-sea-orm` and `pillarbox-diesel`, with their feature `mysql`. [`writer`] is for yet others.
//!
//! # Writing from other languages
//! A plain insert of `event_type` and `payload` is an event. One with a key needs the partition of that key, from the
//! function that the migration installs; without it the table refuses the row:
//!
//! ```sql
//! insert into outbox_event (event_type, payload) values ('ShopOpened', '{"at": 9}');
//! insert into outbox_event (event_type, payload, event_key, `partition`)
//!     values ('OrderPlaced', '{"order": 7}', 'order-7', outbox_partition_of('order-7'));
//! ```
//!
//! # Time
//! The database's clock is the server's, in UTC, in microseconds.

mod action;
mod admin;
mod connection;
mod error;
mod inbox;
mod life;
mod migrate;
mod own;
#[cfg(test)]
mod plans;
mod position;
mod read;
mod recall;
mod row;
mod settle;
mod store;
mod tables;
mod upkeep;
mod url;
mod wake;
mod water;
mod work;
mod write;
pub mod writer;

pub use inbox::MySqlInbox;
pub use migrate::VERSION;
pub use store::{MySqlStore, Options};

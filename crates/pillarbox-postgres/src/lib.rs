//! The PostgreSQL store of the Pillarbox transactional outbox.
//!
//! ```no_run
//! # async fn example() -> Result<(), pillarbox_core::port::StoreError> {
//! use pillarbox_postgres::PostgresStore;
//!
//! let store = PostgresStore::open("postgres://shop@localhost/shop")?;
//! # Ok(()) }
//! ```
//!
//! # Order
//! Events of one key are delivered in the order of their numbers. That is the order of the commits as long as
//! writers of one aggregate hold its lock (the row they change, say) before they write the event, and the
//! sequence keeps its `cache 1`.
//!
//! # Connections
//! | for | how many |
//! |---|---|
//! | the application's transactions, operators' lists and counts: a pool | [`Options::pool_size`], 4 by default; or the application's own pool |
//! | reading, and hints to other processes | 1 |
//! | settles, purges, operators' actions | 1 |
//! | the lease and the partitions | 1 |
//! | news from other processes (`LISTEN`) | 1; none behind a pooler |
//! | a guard's marks | 1, if there is a [`PostgresInbox`] |
//! | an inbox's upkeep and its dead letters | 1, if there is one |
//!
//! So a node has four of its own, however many workers it has, and six with an inbox. Each is opened when it is first needed, and anew
//! after it broke. Transactions on them are READ COMMITTED, whatever the role's default is.
//!
//! # Poolers
//! Behind PgBouncer in transaction mode a session is not kept from one transaction to the next: say so with
//! [`Options::behind_pooler`], or with `pillarbox_pooler=transaction` in the URL. Then nothing is prepared, each
//! statement has a transaction around it, and other processes are found by polling alone.
//!
//! # Other drivers
//! Events go into transactions of `sqlx` as they are, and into those of tokio-postgres, SeaORM and diesel-async by the
//! crates `pillarbox-tokio-postgres`, `pillarbox-sea-orm` and `pillarbox-diesel`. [`writer`] is for yet others.
//!
//! # The consumer's half
//! [`PostgresInbox`] keeps a guard's marks, an inbox and dead letters in tables of their own. A message is entered in a
//! transaction of any of these drivers.
//!
//! # Other languages
//! An event is a row. In psql, or from any language, in the transaction that changes the data:
//!
//! ```sql
//! select outbox_publish('OrderPlaced', '{"order": 7}', key => 'order-7');
//! insert into outbox_event (event_type, payload, event_key) values ('OrderPlaced', '{"order": 7}', 'order-7');
//! ```
//!
//! Both find the partition of the key by themselves.

mod action;
mod admin;
mod connection;
mod error;
mod horizon;
mod inbox;
mod kept;
mod life;
mod migrate;
mod own;
#[cfg(test)]
mod plans;
mod read;
mod row;
mod settle;
mod store;
mod tables;
mod transaction;
mod upkeep;
mod url;
mod wake;
mod work;
mod write;
pub mod writer;

pub use inbox::PostgresInbox;
pub use migrate::VERSION;
pub use store::{Options, PostgresStore};
pub use transaction::PostgresTransaction;

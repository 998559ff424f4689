//! Real servers for tests, databases and brokers, and a proxy that breaks connections to them.
//!
//! - [`Shared`] names the servers that `cargo x test` starts for all tests of a run. A test takes a database of
//!   its own there: `Shared::Postgres.database()`.
//! - [`Postgres`], [`MariaDb`], [`MySql`] and [`PgBouncer`] are private servers, for tests that restart or kill
//!   them; so are the brokers [`Redis`], [`Nats`], [`RabbitMq`] and [`Mosquitto`].
//! - [`Proxy`] stands before any of them, and cuts, refuses and stalls connections, or loses a commit.
//!
//! Every server listens on 127.0.0.1 only, keeps its data in a temporary folder, and ends with the process that
//! started it, also when that is killed. What is missing on the machine is installed where we may, and else is an
//! error: only tests of MySQL may go without their server.

pub mod broker;
mod database;
mod error;
mod folder;
pub mod login;
pub mod mysql;
pub mod packages;
pub mod pgbouncer;
pub mod postgres;
mod process;
mod proxy;
mod shared;
mod tls;

pub use broker::{Mosquitto, Nats, RabbitMq, Redis};
pub use database::Database;
pub use error::Error;
pub use mysql::{MariaDb, MySql};
pub use pgbouncer::PgBouncer;
pub use postgres::Postgres;
pub use proxy::Proxy;
pub use shared::Shared;
pub use tls::Certificate;

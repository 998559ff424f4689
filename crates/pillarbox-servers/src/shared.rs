//! The servers that `cargo x test` starts for all tests of a run.

use std::env;

use crate::{Database, database};

/// One of the servers that all tests share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {
    /// PostgreSQL as in the Debian release.
    Postgres,
    /// The newest PostgreSQL.
    PostgresNewest,
    /// PgBouncer in transaction mode, before [`Shared::Postgres`].
    PgBouncer,
    /// MariaDB as in the Debian release.
    MariaDb,
    /// MySQL. The only one that may be missing: see [`Shared::is_there`].
    MySql,
    /// Redis.
    Redis,
    /// NATS with JetStream.
    Nats,
    /// RabbitMQ.
    RabbitMq,
    /// Mosquitto.
    Mosquitto,
}

impl Shared {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Postgres,
        Self::PostgresNewest,
        Self::PgBouncer,
        Self::MariaDb,
        Self::MySql,
        Self::Redis,
        Self::Nats,
        Self::RabbitMq,
        Self::Mosquitto,
    ];

    /// The variable of the environment that holds the URL.
    pub fn variable(self) -> &'static str {
        match self {
            Self::Postgres => "PILLARBOX_TEST_POSTGRES",
            Self::PostgresNewest => "PILLARBOX_TEST_POSTGRES_NEWEST",
            Self::PgBouncer => "PILLARBOX_TEST_PGBOUNCER",
            Self::MariaDb => "PILLARBOX_TEST_MARIADB",
            Self::MySql => "PILLARBOX_TEST_MYSQL",
            Self::Redis => "PILLARBOX_TEST_REDIS",
            Self::Nats => "PILLARBOX_TEST_NATS",
            Self::RabbitMq => "PILLARBOX_TEST_RABBITMQ",
            Self::Mosquitto => "PILLARBOX_TEST_MOSQUITTO",
        }
    }

    /// The URL, for [`USER`](crate::login::USER).
    ///
    /// # Panics
    /// When the server was not started: a test without its server has failed.
    pub fn url(self) -> String {
        let variable = self.variable();
        env::var(variable).unwrap_or_else(|_| {
            panic!("{variable} is not set: run `cargo x test`, or `cargo x servers` in another terminal")
        })
    }

    /// Whether the server was started. Only tests of MySQL may ask, and say so when they do nothing.
    pub fn is_there(self) -> bool {
        env::var_os(self.variable()).is_some()
    }

    /// A database of the test's own on this server. Brokers have none: tests take topics with names of their own there.
    pub fn database(self) -> Database {
        match self {
            // What creates and drops databases can't share a server's connection.
            Self::PgBouncer => Database::on(&Self::Postgres.url()).seen_through(database::port(&self.url())),
            _ => Database::on(&self.url()),
        }
    }
}

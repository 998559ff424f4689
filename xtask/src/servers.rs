//! `cargo x servers`: the servers that all tests share, databases and brokers.
//!
//! `cargo x test` and `cargo x ci` start them too. A server whose variable is set already, by hand or by
//! `cargo x servers` in another terminal, is used as it is. When this program ends, in whatever way, they end.

use std::{
    mem,
    sync::{Mutex, PoisonError},
    thread,
    time::Instant,
};

use pillarbox_servers::{
    Error, MariaDb, Mosquitto, MySql, Nats, PgBouncer, Postgres, RabbitMq, Redis, Shared, packages,
    pgbouncer::PoolMode, postgres::Version,
};

use crate::step::Failed;

/// Everything that tests run, also what they don't need a server for. One call of the package manager is faster
/// than one for each server.
const PACKAGES: [&str; 13] = [
    "postgresql",
    "postgresql-client",
    "mariadb-server",
    "mariadb-client",
    "pgbouncer",
    "openssl",
    "faketime",
    "redis-server",
    "nats-server",
    "rabbitmq-server",
    "mosquitto",
    // Kafka's client is built with them, where it has TLS.
    "libssl-dev",
    "pkg-config",
];

static RUNNING: Mutex<Vec<Running>> = Mutex::new(Vec::new());

/// A server that was started here.
struct Running {
    which: Shared,
    url: String,
    // Ends the server when it is dropped.
    _server: Box<dyn Send>,
}

/// Starts the servers, tells how to use them, and keeps them until this program is ended.
pub(crate) fn run() -> Result<(), Failed> {
    start()?;
    println!("\nIn the terminal of the tests:\n");
    for (name, url) in environment() {
        println!("export {name}={url}");
    }
    println!("\nCtrl-C ends the servers.");
    loop {
        thread::park();
    }
}

/// Starts those servers that nobody has started yet, all at once. MySQL may be missing, the others may not.
pub(crate) fn start() -> Result<(), Failed> {
    let wanted = |which: Shared| !which.is_there() && !locked(|running| running.iter().any(|it| it.which == which));
    if !Shared::ALL.into_iter().any(wanted) {
        return Ok(());
    }
    packages()?;
    thread::scope(|scope| {
        let mut starting = Vec::new();
        // What stands before a server has to know it: the two come and go together.
        if wanted(Shared::Postgres) || wanted(Shared::PgBouncer) {
            starting.push(scope.spawn(|| {
                let begin = Instant::now();
                let postgres = Postgres::start(Version::Debian)?;
                tell(&format!("PostgreSQL {}", postgres.version()), postgres.port(), begin);
                let begin = Instant::now();
                let pgbouncer = PgBouncer::start(&postgres, PoolMode::Transaction)?;
                tell(&format!("PgBouncer {}", pgbouncer.version()), pgbouncer.port(), begin);
                add(Shared::PgBouncer, pgbouncer.url("postgres"), pgbouncer);
                add(Shared::Postgres, postgres.url("postgres"), postgres);
                Ok(())
            }));
        }
        if wanted(Shared::PostgresNewest) {
            starting.push(scope.spawn(|| {
                let begin = Instant::now();
                let postgres = Postgres::start(Version::Newest)?;
                tell(&format!("PostgreSQL {}", postgres.version()), postgres.port(), begin);
                add(Shared::PostgresNewest, postgres.url("postgres"), postgres);
                Ok(())
            }));
        }
        if wanted(Shared::MariaDb) {
            starting.push(scope.spawn(|| {
                let begin = Instant::now();
                let mariadb = MariaDb::start()?;
                tell(&format!("MariaDB {}", mariadb.version()), mariadb.port(), begin);
                add(Shared::MariaDb, mariadb.url(""), mariadb);
                Ok(())
            }));
        }
        if wanted(Shared::MySql) {
            starting.push(scope.spawn(|| {
                let begin = Instant::now();
                match MySql::start() {
                    Ok(mysql) => {
                        tell(&format!("MySQL {}", mysql.version()), mysql.port(), begin);
                        add(Shared::MySql, mysql.url(""), mysql);
                    }
                    Err(error) => println!("MySQL can't be had, and its tests do nothing: {error}"),
                }
                Ok(())
            }));
        }
        // Starts a broker, if it is wanted.
        macro_rules! broker {
            ($name:ident, $which:expr) => {
                if wanted($which) {
                    starting.push(scope.spawn(|| {
                        let begin = Instant::now();
                        let broker = $name::start()?;
                        tell(&format!("{} {}", stringify!($name), broker.version()?), broker.port(), begin);
                        add($which, broker.url(), broker);
                        Ok(())
                    }));
                }
            };
        }
        broker!(Redis, Shared::Redis);
        broker!(Nats, Shared::Nats);
        broker!(RabbitMq, Shared::RabbitMq);
        broker!(Mosquitto, Shared::Mosquitto);
        starting.into_iter().try_for_each(|thread| thread.join().expect("a server's thread does not panic"))
    })
    .map_err(|error| missing(&error))
}

/// Installs what the servers come from, if it is missing.
pub(crate) fn packages() -> Result<(), Failed> {
    packages::ensure(&PACKAGES).map_err(|error| missing(&error))
}

fn missing(error: &Error) -> Failed {
    Failed::new(format!("a server for tests is missing: {error}"))
}

/// Ends the servers that were started here.
pub(crate) fn stop() {
    drop(locked(mem::take));
}

/// The variables that tell tests where the servers are.
pub(crate) fn environment() -> Vec<(&'static str, String)> {
    locked(|running| running.iter().map(|it| (it.which.variable(), it.url.clone())).collect())
}

/// The URL of a server that was started, here or elsewhere.
pub(crate) fn url(which: Shared) -> Option<String> {
    let here = environment().into_iter().find(|(name, _)| *name == which.variable()).map(|(_, url)| url);
    here.or_else(|| std::env::var(which.variable()).ok())
}

fn add(which: Shared, url: String, server: impl Send + 'static) {
    locked(|running| running.push(Running { which, url, _server: Box::new(server) }));
}

fn locked<T>(work: impl FnOnce(&mut Vec<Running>) -> T) -> T {
    work(&mut RUNNING.lock().unwrap_or_else(PoisonError::into_inner))
}

fn tell(name: &str, port: u16, begin: Instant) {
    println!("{name} on port {port} after {:.2} s", begin.elapsed().as_secs_f64());
}

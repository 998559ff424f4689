//! PgBouncer before a PostgreSQL server.
//!
//! # Prepared statements
//! In transaction mode the next statement of a client may run on another connection to the server, which knows
//! nothing of what the client prepared before. From 1.21 on PgBouncer notices and prepares it there too
//! (`max_prepared_statements`, set to 200 here); Debian 12 has 1.18, which does not. With it, named statements
//! that outlive their transaction fail with "prepared statement does not exist" or "already exists": clients must
//! use unnamed ones. `sqlx` does so for queries that are not `persistent`, or with
//! `statement_cache_capacity(0)`, by preparing and closing within one exchange.

use std::{net::TcpStream, path::Path, process::Command, time::Duration};

use crate::{
    Error, Postgres,
    folder::{self, Temporary},
    login::{POSTGRES_ADMIN, USER},
    packages,
    process::{self, Guarded, Signal},
};

/// As whom it runs: it refuses to be root.
const SYSTEM_USER: &str = "postgres";

/// A private PgBouncer on 127.0.0.1, before a server of this machine, for databases of any name. Logins are those
/// of the server. Gone when this is dropped or the process dies.
#[derive(Debug)]
pub struct PgBouncer {
    server: Option<Guarded>,
    version: String,
    port: u16,
    folder: Temporary,
}

/// How long a client keeps a connection to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolMode {
    /// As long as it is connected.
    Session,
    /// For a transaction.
    Transaction,
    /// For a statement: transactions of several are refused.
    Statement,
}

impl PgBouncer {
    /// Starts it.
    pub fn start(postgres: &Postgres, mode: PoolMode) -> Result<Self, Error> {
        packages::ensure(&["pgbouncer"])?;
        // "PgBouncer 1.18.0" and further lines about libraries.
        let text = process::output(Command::new("/usr/sbin/pgbouncer").arg("--version"), "")?;
        let version = text.split_whitespace().nth(1).unwrap_or("unknown").to_owned();
        let folder = Temporary::new("pgbouncer")?;
        let port = process::free_port()?;
        let users = [USER, POSTGRES_ADMIN].map(|login| format!("\"{}\" \"{}\"\n", login.name, login.password));
        folder::write_for(SYSTEM_USER, &folder.path().join("users"), &users.concat())?;
        let settings = settings(&version, port, postgres.port(), mode);
        folder::write_for(SYSTEM_USER, &folder.path().join("settings"), &settings)?;
        let mut pgbouncer = Self { server: None, version, port, folder };
        pgbouncer.start_again()?;
        Ok(pgbouncer)
    }

    /// Ends it at once, with all connections.
    pub fn stop(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.end(Signal::Terminate);
        }
    }

    /// Starts it after a stop, on the same port.
    pub fn start_again(&mut self) -> Result<(), Error> {
        if self.server.is_none() {
            let mut command = process::as_user(SYSTEM_USER, "/usr/sbin/pgbouncer");
            command.arg("settings");
            let ready = || TcpStream::connect_timeout(&process::local(self.port), Duration::from_secs(1)).is_ok();
            self.server = Some(Guarded::start(&command, self.folder.path(), Signal::Terminate, ready)?);
        }
        Ok(())
    }

    /// The URL of a database, for [`USER`].
    pub fn url(&self, database: &str) -> String {
        USER.url("postgres", self.port, database)
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder of its data and its log, which goes with it.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The version, as it tells it.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Whether a statement prepared in one transaction can be used in the next: from 1.21 on.
    pub fn keeps_prepared_statements(&self) -> bool {
        keeps_prepared_statements(&self.version)
    }
}

fn settings(version: &str, port: u16, server: u16, mode: PoolMode) -> String {
    let mode = match mode {
        PoolMode::Session => "session",
        PoolMode::Transaction => "transaction",
        PoolMode::Statement => "statement",
    };
    let prepared = if keeps_prepared_statements(version) { "max_prepared_statements = 200\n" } else { "" };
    // Drivers for PostgreSQL ask for extra_float_digits at the start, and every guide to PgBouncer ignores it.
    format!(
        "[databases]\n* = host=127.0.0.1 port={server}\n\
         [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
         auth_type = scram-sha-256\nauth_file = users\nadmin_users = {}\n\
         pool_mode = {mode}\nmax_client_conn = 1000\ndefault_pool_size = 20\n\
         ignore_startup_parameters = extra_float_digits\n{prepared}",
        POSTGRES_ADMIN.name
    )
}

fn keeps_prepared_statements(version: &str) -> bool {
    let mut numbers = version.split('.').map_while(|part| part.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(1), Some(21))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_kept_from_1_21_on() {
        let cases = [("1.18.0", false), ("1.20.1", false), ("1.21.0", true), ("1.24.1", true), ("unknown", false)];
        for (version, kept) in cases {
            assert_eq!(keeps_prepared_statements(version), kept, "{version}");
        }
    }
}

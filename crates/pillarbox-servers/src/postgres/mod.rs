//! PostgreSQL servers.

mod programs;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

pub use programs::Version;
use programs::{PSQL, Programs, USER};

use crate::{
    Database, Error,
    folder::{self, Temporary},
    login::{self, Login},
    process::{self, Guarded, Signal},
    tls::Certificate,
};

/// A private PostgreSQL server on 127.0.0.1 and on a unix socket, gone when this is dropped or the process dies.
///
/// Passwords are asked for, by SCRAM. There is the superuser [`login::POSTGRES_ADMIN`], and a role that may
/// create databases and nothing else that is special, [`login::USER`].
#[derive(Debug)]
pub struct Postgres {
    server: Option<Guarded>,
    options: Options,
    programs: Programs,
    certificate: Option<Certificate>,
    port: u16,
    folder: Temporary,
}

/// What a server is started with.
#[derive(Clone, Debug)]
pub struct Options {
    version: Version,
    durable: bool,
    tls: bool,
    settings: Vec<(String, String)>,
}

/// How a server is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Ends the sessions, writes everything out.
    Fast,
    /// Leaves everything as it is, to be recovered at the next start.
    Immediate,
}

impl Postgres {
    /// Starts a server with the settings for tests: 300 connections, and nothing waits for the disk. Killing the
    /// server loses no commit; only killing the machine would.
    pub fn start(version: Version) -> Result<Self, Error> {
        Self::options(version).start()
    }

    /// A server with other settings.
    pub fn options(version: Version) -> Options {
        Options { version, durable: false, tls: false, settings: Vec::new() }
    }

    /// Stops the server; its data stay.
    pub fn stop(&mut self, how: Stop) {
        if let Some(mut server) = self.server.take() {
            server.end(match how {
                Stop::Fast => Signal::Interrupt,
                Stop::Immediate => Signal::Quit,
            });
        }
    }

    /// Kills the server and all its processes with SIGKILL; what was on disk stays.
    pub fn kill_9(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.end(Signal::Kill);
        }
    }

    /// Starts the server that was stopped or killed, on the same port with the same data.
    pub fn start_again(&mut self) -> Result<(), Error> {
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.server.is_none() {
            match self.run() {
                Ok(server) => self.server = Some(server),
                // The last of the processes that were killed with it have not quite gone yet.
                Err(error) if error.to_string().contains("is still in use") && Instant::now() < deadline => {
                    thread::sleep(Duration::from_millis(50));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Stops the server and starts it again.
    pub fn restart(&mut self, how: Stop) -> Result<(), Error> {
        self.stop(how);
        self.start_again()
    }

    /// Stops the server, and starts it as a standby whose primary never comes: it only reads.
    pub fn restart_as_standby(&mut self) -> Result<(), Error> {
        self.stop(Stop::Fast);
        folder::write_for(USER, &self.folder.path().join("data/standby.signal"), "")?;
        self.start_again()
    }

    /// Makes a standby a server that takes writes, without a restart.
    pub fn promote(&self) -> Result<(), Error> {
        self.admin_psql("postgres", "select pg_promote()").map(drop)
    }

    /// The URL of a database, for the role without special rights.
    pub fn url(&self, database: &str) -> String {
        login::USER.url("postgres", self.port, database)
    }

    /// The URL of a database, for the superuser.
    pub fn admin_url(&self, database: &str) -> String {
        login::POSTGRES_ADMIN.url("postgres", self.port, database)
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder of the unix socket.
    pub fn socket_folder(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// The folder of its data and its log, which goes with it.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The certificate that signed the server's, for `sslrootcert`; none without [`Options::tls`].
    pub fn root_certificate(&self) -> Option<&Path> {
        self.certificate.as_ref().map(|certificate| certificate.root.as_path())
    }

    /// The version, as the server tells it.
    pub fn version(&self) -> &str {
        &self.programs.version
    }

    /// Creates a database of this name that belongs to [`login::USER`].
    pub fn create_database(&self, name: &str) -> Result<(), Error> {
        self.psql("postgres", &format!("create database \"{name}\"")).map(drop)
    }

    /// Creates a database with a random name, which is dropped with the value.
    pub fn database(&self) -> Database {
        Database::on(&self.url("postgres"))
    }

    /// Runs statements as [`login::USER`] with the psql client, and returns the bare rows.
    pub fn psql(&self, database: &str, statements: &str) -> Result<String, Error> {
        psql(login::USER, self.port, database, statements)
    }

    /// Runs statements as the superuser.
    pub fn admin_psql(&self, database: &str, statements: &str) -> Result<String, Error> {
        psql(login::POSTGRES_ADMIN, self.port, database, statements)
    }

    fn run(&self) -> Result<Guarded, Error> {
        let data = self.folder.path().join("data");
        let mut command = process::as_user(USER, self.programs.bin.join("postgres"));
        command.arg("-D").arg(&data);
        for (name, value) in self.settings() {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        let pid_file = data.join("postmaster.pid");
        // The last line of this file tells what the server is doing. One that was killed leaves its file behind,
        // with other numbers in it.
        let stale = fs::read_to_string(&pid_file).unwrap_or_default();
        let is_ready = |text: &str| ["ready", "standby"].iter().any(|word| text.trim_end().ends_with(word));
        let ready = || fs::read_to_string(&pid_file).is_ok_and(|text| text != stale && is_ready(&text));
        Guarded::start(&command, self.folder.path(), Signal::Quit, ready)
    }

    fn settings(&self) -> Vec<(String, String)> {
        let mut settings = vec![
            ("listen_addresses".to_owned(), "127.0.0.1".to_owned()),
            ("port".to_owned(), self.port.to_string()),
            ("unix_socket_directories".to_owned(), self.socket_folder().display().to_string()),
            ("max_connections".to_owned(), "300".to_owned()),
        ];
        if !self.options.durable {
            // Commits still reach the operating system, so that a killed server loses none.
            for name in ["fsync", "full_page_writes"] {
                settings.push((name.to_owned(), "off".to_owned()));
            }
        }
        if let Some(certificate) = &self.certificate {
            settings.push(("ssl".to_owned(), "on".to_owned()));
            settings.push(("ssl_cert_file".to_owned(), certificate.file.display().to_string()));
            settings.push(("ssl_key_file".to_owned(), certificate.key.display().to_string()));
        }
        settings.extend(self.options.settings.iter().cloned());
        settings
    }
}

impl Options {
    /// Commits wait for the disk, as they do by default in production.
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Encrypted connections are offered, with a certificate for `localhost` and 127.0.0.1.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// A setting as in postgresql.conf; it wins over the others.
    #[must_use]
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Starts the server.
    pub fn start(self) -> Result<Postgres, Error> {
        let programs = Programs::of(self.version)?;
        let folder = Temporary::new("postgres")?;
        folder::copy(&programs.cluster()?, &folder.path().join("data"))?;
        folder::create_for(USER, &folder.path().join("socket"))?;
        let certificate = self.tls.then(|| Certificate::create_for(USER, folder.path())).transpose()?;
        let port = process::free_port()?;
        let mut postgres = Postgres { server: None, options: self, programs, certificate, port, folder };
        postgres.start_again()?;
        Ok(postgres)
    }
}

/// Runs statements with the psql client on a server of this machine, and returns the bare rows.
pub(crate) fn psql(login: Login, port: u16, database: &str, statements: &str) -> Result<String, Error> {
    let mut command = Command::new(PSQL.as_path());
    command
        .env("PGPASSWORD", login.password)
        .args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set", "ON_ERROR_STOP=1"])
        .args(["--host", "127.0.0.1", "--port", &port.to_string(), "--username", login.name])
        .args(["--dbname", database]);
    process::output(&mut command, statements)
}

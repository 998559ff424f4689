//! MariaDB and MySQL servers, which differ in how they are installed and hardly in how they are used.

mod mariadb;
mod oracle;

use std::{
    io::Read,
    net::TcpStream,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

pub use mariadb::MariaDb;
pub use oracle::MySql;

use crate::{
    Database, Error,
    folder::{self, Temporary},
    login::{BLIND, Login, MYSQL_ADMIN, USER},
    process::{self, Guarded, Signal},
    tls::Certificate,
};

/// The user as whom servers run; MariaDB's package brings it.
const SYSTEM_USER: &str = "mysql";

/// A private server on 127.0.0.1 and on a unix socket, gone when this is dropped or the process dies.
///
/// There is [`crate::login::MYSQL_ADMIN`], who may do everything; [`crate::login::USER`] with all rights on databases named
/// `pb_...` and PROCESS; and [`crate::login::BLIND`], the same without PROCESS.
#[derive(Debug)]
pub struct Server {
    running: Option<Guarded>,
    options: Options,
    programs: Programs,
    certificate: Option<Certificate>,
    port: u16,
    folder: Temporary,
}

/// What a server is started with.
#[derive(Clone, Debug, Default)]
pub struct Options {
    durable: bool,
    tls: bool,
    settings: Vec<(String, String)>,
}

/// How the server of a family member is run.
#[derive(Clone, Debug)]
struct Programs {
    name: &'static str,
    version: String,
    /// The program, and the arguments that it needs whatever it is to do.
    server: Vec<PathBuf>,
    /// The data of a server that was never started.
    data: PathBuf,
}

impl Server {
    fn start(programs: Programs, options: Options) -> Result<Self, Error> {
        let folder = Temporary::new(programs.name)?;
        folder::copy(&programs.data, &folder.path().join("data"))?;
        folder::create_for(SYSTEM_USER, &folder.path().join("socket"))?;
        folder::write_for(SYSTEM_USER, &folder.path().join("accounts.sql"), &accounts())?;
        let certificate = options.tls.then(|| Certificate::create_for(SYSTEM_USER, folder.path())).transpose()?;
        let port = process::free_port()?;
        let mut server = Self { running: None, options, programs, certificate, port, folder };
        server.start_again()?;
        Ok(server)
    }

    /// Stops the server in good order; its data stay.
    pub fn stop(&mut self) {
        if let Some(mut server) = self.running.take() {
            server.end(Signal::Terminate);
        }
    }

    /// Kills the server with SIGKILL; what was on disk stays.
    pub fn kill_9(&mut self) {
        if let Some(mut server) = self.running.take() {
            server.end(Signal::Kill);
        }
    }

    /// Starts the server that was stopped or killed, on the same port with the same data.
    pub fn start_again(&mut self) -> Result<(), Error> {
        if self.running.is_none() {
            self.running = Some(self.run()?);
        }
        Ok(())
    }

    /// Stops the server in good order and starts it again.
    pub fn restart(&mut self) -> Result<(), Error> {
        self.stop();
        self.start_again()
    }

    /// The URL of a database, for [`crate::login::USER`].
    pub fn url(&self, database: &str) -> String {
        USER.url("mysql", self.port, database)
    }

    /// The URL of a database, for who may do everything.
    pub fn admin_url(&self, database: &str) -> String {
        MYSQL_ADMIN.url("mysql", self.port, database)
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The unix socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket/server")
    }

    /// The folder of its data and its log, which goes with it.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The certificate that signed the server's, for `ssl-ca`; none without [`Options::tls`].
    pub fn root_certificate(&self) -> Option<&Path> {
        self.certificate.as_ref().map(|certificate| certificate.root.as_path())
    }

    /// The version, as the server tells it.
    pub fn version(&self) -> &str {
        &self.programs.version
    }

    /// Creates a database of this name, to which [`crate::login::USER`] has rights if it begins with `pb_`.
    pub fn create_database(&self, name: &str) -> Result<(), Error> {
        self.admin_client("", &format!("create database `{name}`")).map(drop)
    }

    /// Creates a database with a random name, which is dropped with the value.
    pub fn database(&self) -> Database {
        Database::on(&self.url(""))
    }

    /// Runs statements as [`crate::login::USER`] with the client program, and returns the bare rows.
    pub fn client(&self, database: &str, statements: &str) -> Result<String, Error> {
        client(USER, self.port, database, statements)
    }

    /// Runs statements as who may do everything.
    pub fn admin_client(&self, database: &str, statements: &str) -> Result<String, Error> {
        client(MYSQL_ADMIN, self.port, database, statements)
    }

    fn run(&self) -> Result<Guarded, Error> {
        let mut command = self.programs.command();
        let at = |option: &str, path: &Path| format!("--{option}={}", path.display());
        let folder = self.folder.path();
        command
            .arg(at("datadir", &folder.join("data")))
            .arg(at("socket", &self.socket()))
            .arg(at("pid-file", &folder.join("socket/pid")))
            .arg(at("init-file", &folder.join("accounts.sql")))
            .arg(format!("--port={}", self.port))
            .args(["--bind-address=127.0.0.1", "--skip-name-resolve", "--max-connections=300"]);
        if !self.options.durable {
            command.args(RELAXED);
        }
        if let Some(certificate) = &self.certificate {
            command.arg(at("ssl-cert", &certificate.file)).arg(at("ssl-key", &certificate.key));
        }
        command.args(self.options.settings.iter().map(|(name, value)| format!("--{name}={value}")));
        Guarded::start(&command, folder, Signal::Kill, || greets(self.port))
    }
}

/// Nothing waits for the disk. Commits still reach the operating system, so that a killed server loses none.
const RELAXED: [&str; 4] = [
    "--innodb-flush-log-at-trx-commit=2",
    "--innodb-doublewrite=OFF",
    "--skip-log-bin",
    "--innodb-flush-method=nosync",
];

impl Options {
    /// Commits wait for the disk, as they do by default in production.
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Encrypted connections are offered, with a certificate for `localhost` and 127.0.0.1. MySQL offers them without
    /// this too, with a certificate that nobody has signed.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// A setting as in the configuration file; it wins over the others.
    #[must_use]
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }
}

impl Programs {
    fn command(&self) -> Command {
        let (program, args) = self.server.split_first().expect("there is a program to start");
        let mut command = process::as_user(SYSTEM_USER, program);
        command.args(args);
        command
    }
}

/// Runs statements with the client program on a server of this machine, and returns the bare rows.
pub(crate) fn client(login: Login, port: u16, database: &str, statements: &str) -> Result<String, Error> {
    let mut command = Command::new("mariadb");
    command
        .env("MYSQL_PWD", login.password)
        .args(["--no-defaults", "--batch", "--skip-column-names", "--protocol=tcp", "--host=127.0.0.1"])
        .arg(format!("--port={port}"))
        .arg(format!("--user={}", login.name))
        .arg(database);
    process::output(&mut command, statements)
}

/// Drops a database, and ends its connections first: a transaction still open would make the drop wait.
pub(crate) fn drop_database(port: u16, name: &str) -> Result<String, Error> {
    let sessions = format!("select concat('kill ', id, ';') from information_schema.processlist where db = '{name}'");
    let kills = client(MYSQL_ADMIN, port, "", &sessions)?;
    for kill in kills.lines() {
        // It may have ended meanwhile.
        let _ = client(MYSQL_ADMIN, port, "", kill);
    }
    client(MYSQL_ADMIN, port, "", &format!("set lock_wait_timeout = 10; drop database if exists {name}"))
}

/// The logins. Read at every start, and right whether they are there already or not; one statement a line.
fn accounts() -> String {
    let users = [MYSQL_ADMIN, USER, BLIND].map(|Login { name, password }| {
        format!("create user if not exists '{name}'@'127.0.0.1' identified by '{password}';\n")
    });
    let rights = [
        ("all privileges on *.*", MYSQL_ADMIN, " with grant option"),
        (r"all privileges on `pb\_%`.*", USER, ""),
        ("process on *.*", USER, ""),
        (r"all privileges on `pb\_%`.*", BLIND, ""),
    ];
    let grants = rights.map(|(right, login, more)| format!("grant {right} to '{}'@'127.0.0.1'{more};\n", login.name));
    users.concat() + &grants.concat()
}

/// Whether a server answers: it speaks first, with the version of its protocol.
fn greets(port: u16) -> bool {
    let mut head = [0; 5];
    TcpStream::connect_timeout(&process::local(port), Duration::from_secs(1))
        .and_then(|mut stream| {
            stream.set_read_timeout(Some(Duration::from_secs(1)))?;
            stream.read_exact(&mut head)
        })
        .is_ok()
        && head[4] == 10
}

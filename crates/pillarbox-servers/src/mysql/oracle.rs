//! MySQL, from Debian's unstable suite: the stable releases have none.
//!
//! The packages are unpacked into a folder of their own, and the server runs with the libraries that it was built
//! with. The suite moves, so this may break: tests of MySQL are an extra, and say so when they can't run.

use std::{
    fs,
    ops::{Deref, DerefMut},
    path::{Path, PathBuf},
    process::Command,
};

use super::{Options, Programs, SYSTEM_USER, Server};
use crate::{Error, folder, packages, process};

const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// A private MySQL server, of the version that the unstable suite had when it was first used on this machine.
#[derive(Debug)]
pub struct MySql(Server);

impl MySql {
    /// Starts a server with the settings for tests: 300 connections, and nothing waits for the disk. Killing the
    /// server loses no commit; only killing the machine would.
    pub fn start() -> Result<Self, Error> {
        Self::start_with(Options::default())
    }

    /// Starts a server with other settings.
    pub fn start_with(options: Options) -> Result<Self, Error> {
        Ok(Self(Server::start(programs()?, options)?))
    }

    /// Whether a server can be started on this machine; the error says why not. The first time it takes a
    /// download.
    pub fn available() -> Result<(), Error> {
        programs().map(drop)
    }
}

impl Deref for MySql {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

impl DerefMut for MySql {
    fn deref_mut(&mut self) -> &mut Server {
        &mut self.0
    }
}

fn programs() -> Result<Programs, Error> {
    // The client and the user of the servers are MariaDB's.
    packages::ensure(&["mariadb-server", "mariadb-client"])?;
    let root = folder::cached("mysql", unpack)?.join("root");
    let server = command(&root);
    // ".../mysqld  Ver 9.7.4-2 for Linux on x86_64 ((Debian))"
    let text = process::output(Command::new(&server[0]).args(&server[1..]).arg("--version"), "")?;
    let version = text.split_whitespace().nth(2).unwrap_or("unknown").to_owned();
    let mut programs = Programs { name: "mysql", version, server, data: PathBuf::new() };
    let kept = folder::cached(&format!("mysql-{}-data", programs.version), |draft| {
        let data = draft.join("data");
        folder::create_for(SYSTEM_USER, &data)?;
        let mut initialize = programs.command();
        initialize.args(["--initialize-insecure", "--innodb-flush-method=nosync"]);
        process::output(initialize.arg(format!("--datadir={}", data.display())), "").map(drop)
    })?;
    programs.data = kept.join("data");
    Ok(programs)
}

/// The server, started by the loader and with the libraries of its own suite.
fn command(root: &Path) -> Vec<PathBuf> {
    let at = |option: &str, path: &str| PathBuf::from(format!("--{option}={}", root.join(path).display()));
    vec![
        root.join(LIBRARIES).join("ld-linux-x86-64.so.2"),
        "--library-path".into(),
        root.join(LIBRARIES),
        root.join("usr/sbin/mysqld"),
        "--no-defaults".into(),
        at("basedir", "usr"),
        at("lc-messages-dir", "usr/share/mysql"),
        at("plugin-dir", "usr/lib/mysql/plugin"),
        "--secure-file-priv=NULL".into(),
        "--mysqlx=OFF".into(),
    ]
}

/// Downloads the server and everything that it needs, by a package manager that believes that nothing is
/// installed, and knows no other suite.
fn unpack(folder: &Path) -> Result<(), Error> {
    let root = folder.join("root");
    let work = folder.join("work");
    for path in [root.clone(), work.join("lists/partial"), work.join("cache/archives/partial")] {
        fs::create_dir_all(&path).map_err(Error::of("create", &path))?;
    }
    let keys = "/usr/share/keyrings/debian-archive-keyring.gpg";
    let source = format!("deb [signed-by={keys}] {} unstable main\n", packages::mirror()?);
    let settings = format!(
        "Dir::Etc::SourceList \"{0}/sources.list\";\nDir::Etc::SourceParts \"/dev/null\";\n\
         Dir::State::Lists \"{0}/lists\";\nDir::State::Status \"{0}/status\";\nDir::Cache \"{0}/cache\";\n\
         Debug::NoLocking \"true\";\nAcquire::Languages \"none\";\nAcquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n",
        work.display()
    );
    for (name, text) in [("sources.list", source), ("apt.conf", settings), ("status", String::new())] {
        fs::write(work.join(name), text).map_err(Error::of("write", &work.join(name)))?;
    }
    let apt = |args: &[&str]| {
        let mut command = Command::new("apt-get");
        command.env("APT_CONFIG", work.join("apt.conf")).args(["--quiet", "--yes", "--no-install-recommends"]);
        process::output(command.args(args), "")
    };
    apt(&["update"])?;
    apt(&["install", "--download-only", "mysql-server-core"])?;
    let archives = work.join("cache/archives");
    for entry in fs::read_dir(&archives).map_err(Error::of("list", &archives))?.flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "deb") {
            process::output(Command::new("dpkg-deb").arg("--extract").arg(entry.path()).arg(&root), "")?;
        }
    }
    fs::remove_dir_all(&work).map_err(Error::of("remove", &work))
}

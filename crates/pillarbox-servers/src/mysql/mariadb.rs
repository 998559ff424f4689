//! MariaDB from Debian's package.

use std::{
    ops::{Deref, DerefMut},
    path::PathBuf,
    process::Command,
};

use super::{Options, Programs, SYSTEM_USER, Server};
use crate::{Error, folder, packages, process};

/// A private MariaDB server, of the version of the Debian release: 10.11 on Debian 12.
#[derive(Debug)]
pub struct MariaDb(Server);

impl MariaDb {
    /// Starts a server with the settings for tests: 300 connections, and nothing waits for the disk. Killing the
    /// server loses no commit; only killing the machine would.
    pub fn start() -> Result<Self, Error> {
        Self::start_with(Options::default())
    }

    /// Starts a server with other settings.
    pub fn start_with(options: Options) -> Result<Self, Error> {
        packages::ensure(&["mariadb-server", "mariadb-client"])?;
        Ok(Self(Server::start(programs()?, options)?))
    }
}

impl Deref for MariaDb {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

impl DerefMut for MariaDb {
    fn deref_mut(&mut self) -> &mut Server {
        &mut self.0
    }
}

fn programs() -> Result<Programs, Error> {
    let program = PathBuf::from("/usr/sbin/mariadbd");
    // "mariadbd  Ver 10.11.14-MariaDB-0+deb12u2 for debian-linux-gnu on x86_64 (Debian 12)"
    let text = process::output(Command::new(&program).args(["--no-defaults", "--version"]), "")?;
    let version = text.split_whitespace().nth(2).unwrap_or("unknown").to_owned();
    let kept = folder::cached(&format!("mariadb-{version}-data"), |draft| {
        let data = draft.join("data");
        folder::create_for(SYSTEM_USER, &data)?;
        let mut install = process::as_user(SYSTEM_USER, "mariadb-install-db");
        install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-log-bin"]);
        install.arg("--innodb-flush-method=nosync").arg(format!("--datadir={}", data.display()));
        process::output(&mut install, "").map(drop)
    })?;
    Ok(Programs {
        name: "mariadb",
        version,
        server: vec![program, PathBuf::from("--no-defaults")],
        data: kept.join("data"),
    })
}

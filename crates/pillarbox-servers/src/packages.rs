//! Debian packages that servers come from.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{Error, folder, process};

/// Makes sure that these packages are installed: root installs what is missing, everyone else is told its names.
/// Safe to call from several processes at once. No package starts a server of its own.
pub fn ensure(names: &[&str]) -> Result<(), Error> {
    if missing(names).is_empty() {
        return Ok(());
    }
    let lock = process::is_root().then(|| folder::lock("packages")).transpose()?;
    let missing = missing(names);
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if lock.is_none() {
        return Err(Error::new(format!("packages are missing, install them first: apt-get install {list}")));
    }
    let _nothing_starts = Policy::deny()?;
    // The lists may be absent, as in a fresh image, or older than what the mirror still has.
    if apt(&["install"], &missing).is_ok() {
        return Ok(());
    }
    apt(&["update"], &[])?;
    apt(&["install"], &missing)
}

/// The address from which this machine gets its Debian packages.
pub(crate) fn mirror() -> Result<String, Error> {
    let find = || {
        let mut command = Command::new("apt-get");
        command.args(["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian"]);
        let printed = process::output(&mut command, "")?;
        Ok(printed.lines().next().map(str::to_owned))
    };
    if let Some(address) = find()? {
        return Ok(address);
    }
    // It is told by the lists, and a fresh image has none.
    if process::is_root() {
        let _lock = folder::lock("packages")?;
        apt(&["update"], &[])?;
    }
    find()?.ok_or_else(|| Error::new("the package manager knows no mirror: run `apt-get update` first"))
}

/// Those of the packages that are not installed.
fn missing<'a>(names: &[&'a str]) -> Vec<&'a str> {
    // It fails when it does not know one of the names, and prints the others all the same.
    let known = Command::new("dpkg-query")
        .args(["--show", "--showformat", "${db:Status-Status} ${Package}\n"])
        .args(names)
        .output()
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .unwrap_or_default();
    names.iter().filter(|name| !known.lines().any(|line| line == format!("installed {name}"))).copied().collect()
}

fn apt(verb: &[&str], names: &[&str]) -> Result<(), Error> {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command.args(["--quiet", "--yes", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"]);
    process::output(command.args(verb).args(names), "").map(drop)
}

/// What packages ask before they start a server. The machine's own answer is left alone.
struct Policy(Option<PathBuf>);

impl Policy {
    fn deny() -> Result<Self, Error> {
        let path = Path::new("/usr/sbin/policy-rc.d");
        if path.exists() {
            return Ok(Self(None));
        }
        fs::write(path, "#!/bin/sh\nexit 101\n").map_err(Error::of("write", path))?;
        let policy = Self(Some(path.to_owned()));
        fs::set_permissions(path, Permissions::from_mode(0o755)).map_err(Error::of("make executable", path))?;
        Ok(policy)
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

//! Where things lie in the checkout.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use crate::step::{Failed, Quiet};

/// The root of the checkout.
pub(crate) fn root() -> PathBuf {
    let xtask = env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    xtask.parent().map(Path::to_path_buf).unwrap_or(xtask)
}

/// The text of a file of the checkout.
pub(crate) fn read(path: impl AsRef<Path>) -> Result<String, Failed> {
    let path = path.as_ref();
    fs::read_to_string(root().join(path)).map_err(|error| Failed::new(format!("{}: {error}", path.display())))
}

/// What lies in a folder of the checkout, sorted; nothing if there is no such folder.
pub(crate) fn list(folder: impl AsRef<Path>) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(root().join(folder)) else {
        return Vec::new();
    };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Every Rust file under a folder of the checkout, build output apart.
pub(crate) fn rust_files(folder: impl AsRef<Path>) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in list(folder) {
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                found.extend(rust_files(&path));
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// The name of the package in a folder, by its manifest.
pub(crate) fn package(folder: &Path) -> Option<String> {
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).ok()?;
    let section = manifest.split("[package]").nth(1)?;
    let name = section.lines().find_map(|line| line.strip_prefix("name = \""))?;
    name.strip_suffix('"').map(str::to_owned)
}

/// Whether `cargo NAME` is installed.
pub(crate) fn has_tool(name: &str) -> bool {
    crate::step::Command::cargo([name, "--version"]).quiet() == Quiet::Passed
}

#[cfg(test)]
mod tests {
    use crate::step::Command;

    /// W7. What a person takes for one driver and one database must not bring another one. diesel-async for PostgreSQL is
    /// made of tokio-postgres, so that one comes with it.
    #[test]
    fn no_driver_pulls_another_in() {
        const ALL: [&str; 14] = [
            "sea-orm",
            "diesel",
            "diesel-async",
            "tokio-postgres",
            "mysql_async",
            "sqlx-postgres",
            "sqlx-mysql",
            "sqlx-sqlite",
            "pillarbox-sea-orm",
            "pillarbox-diesel",
            "pillarbox-tokio-postgres",
            "pillarbox-postgres",
            "pillarbox-mysql",
            "pillarbox-sqlite",
        ];
        const POSTGRES: [&str; 2] = ["pillarbox-postgres", "sqlx-postgres"];
        const MYSQL: [&str; 2] = ["pillarbox-mysql", "sqlx-mysql"];
        const SQLITE: [&str; 2] = ["pillarbox-sqlite", "sqlx-sqlite"];
        const DIESEL: [&str; 2] = ["diesel", "diesel-async"];
        for (package, features, own) in [
            ("pillarbox-sea-orm", "postgres", [&["sea-orm"][..], &POSTGRES].concat()),
            ("pillarbox-sea-orm", "mysql", [&["sea-orm"][..], &MYSQL].concat()),
            ("pillarbox-sea-orm", "sqlite", [&["sea-orm"][..], &SQLITE].concat()),
            ("pillarbox-diesel", "postgres", [&DIESEL[..], &POSTGRES, &["tokio-postgres"]].concat()),
            ("pillarbox-diesel", "mysql", [&DIESEL[..], &MYSQL, &["mysql_async"]].concat()),
            ("pillarbox-diesel", "sqlite", [&DIESEL[..], &SQLITE].concat()),
            ("pillarbox-tokio-postgres", "", [&["tokio-postgres"][..], &POSTGRES].concat()),
            ("pillarbox-postgres", "", POSTGRES.to_vec()),
            ("pillarbox-mysql", "", MYSQL.to_vec()),
            ("pillarbox-sqlite", "", SQLITE.to_vec()),
            ("pillarbox", "mysql,postgres,sqlite", [POSTGRES, MYSQL, SQLITE].concat()),
        ] {
            let tree = ["tree", "--package", package, "--edges", "normal", "--prefix", "none", "--no-default-features"];
            let tree = Command::cargo(tree.into_iter().chain(["--features", features])).output().unwrap();
            let pulled: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
            assert!(own.iter().all(|name| pulled.contains(name)), "{package} with `{features}`: {tree}");
            for other in ALL.iter().filter(|name| **name != package && !own.contains(name)) {
                assert!(!pulled.contains(other), "{package} with `{features}` pulls {other} in");
            }
        }
    }
}

//! `cargo x examples`: every example is built and run. An example ends by itself, with code 0.
//!
//! Each has an empty PostgreSQL database of its own, which DATABASE_URL names. Its manifest may say more, under
//! `[package.metadata.example]`: `args`, with which one ends that would serve for ever, and `databases`, on each of which
//! it is run: `postgres`, `mariadb`, and `sqlite` for a run without DATABASE_URL.

use std::path::Path;

use pillarbox_servers::{Database, Shared};

use crate::{
    servers,
    step::{Command, Failed},
    workspace,
};

/// Builds them all, then runs them one after another.
pub(crate) fn run() -> Result<(), Failed> {
    // All at once, as the tests were built: one after another, each would build its dependencies anew.
    Command::cargo(["build", "--workspace", "--bins", "--examples"]).run()?;
    servers::start()?;
    let mut count = 0;
    for (command, kind) in commands() {
        println!("· {command} on {kind}");
        let server = match kind.as_str() {
            "sqlite" => None,
            "postgres" => Some(Shared::Postgres),
            "mariadb" => Some(Shared::MariaDb),
            _ => return Err(Failed::new(format!("`{command}` asks for {kind}: name postgres, mariadb or sqlite"))),
        };
        match server {
            Some(server) => {
                let url =
                    servers::url(server).ok_or_else(|| Failed::new(format!("there is no {kind} for examples")))?;
                let database = Database::on(&url);
                command.env("DATABASE_URL", database.url()).run()?;
            }
            None => command.run()?,
        }
        count += 1;
    }
    println!("{count} runs of examples came to their end");
    Ok(())
}

/// What runs each example, and on which database: the packages under `examples/`, and the example targets of the crates.
fn commands() -> Vec<(Command, String)> {
    let postgres = || "postgres".to_owned();
    let mut commands = Vec::new();
    for folder in workspace::list("examples") {
        if let Some(package) = workspace::package(&folder) {
            let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
            let command = Command::built(package).args(&named(&manifest, "args"));
            let databases = named(&manifest, "databases");
            let databases = if databases.is_empty() { vec![postgres()] } else { databases };
            commands.extend(databases.into_iter().map(|database| (command.clone(), database)));
        }
    }
    for folder in workspace::list("crates") {
        for target in workspace::list(folder.join("examples")) {
            let is_target =
                target.extension().is_some_and(|extension| extension == "rs") || target.join("main.rs").exists();
            if let Some(name) = target.file_stem().and_then(|stem| stem.to_str()).filter(|_| is_target) {
                commands.push((Command::built(Path::new("examples").join(name)), postgres()));
            }
        }
    }
    commands
}

/// The words of a list that an example's manifest has for the gate.
fn named(manifest: &str, list: &str) -> Vec<String> {
    let section = manifest.split("[package.metadata.example]").nth(1).and_then(|rest| rest.split("\n[").next());
    let start = format!("{list} = [");
    let words = section.and_then(|section| section.lines().find_map(|line| line.strip_prefix(&start)));
    let words = words.and_then(|words| words.strip_suffix(']')).unwrap_or_default();
    words.split(',').map(|word| word.trim().trim_matches('"').to_owned()).filter(|word| !word.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_and_databases_come_from_the_manifest() {
        let manifest = "[package]\nname = \"a\"\n\n[package.metadata.example]\nargs = [\"--demo\", \"x\"]\n\
             databases = [\"sqlite\"]\n\n[dependencies]\nother = [\"y\"]\n";
        assert_eq!(named(manifest, "args"), ["--demo", "x"]);
        assert_eq!(named(manifest, "databases"), ["sqlite"]);
        assert_eq!(named(manifest, "other"), [""; 0]);
        assert_eq!(named("[package]\nname = \"a\"\n", "args"), [""; 0]);
    }

    /// What `cargo x examples` runs is every folder, so that none is forgotten.
    #[test]
    fn every_folder_is_an_example() {
        let run: Vec<_> = commands().iter().map(|(command, _)| command.to_string()).collect();
        for folder in workspace::list("examples") {
            let name = folder.file_name().and_then(|name| name.to_str()).unwrap();
            assert!(run.iter().any(|line| line.split(' ').next().unwrap().ends_with(name)), "{name}: {run:?}");
        }
    }
}

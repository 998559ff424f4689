//! `cargo x examples`: every example is built and run. An example ends by itself, with code 0.
//!
//! Each has an empty PostgreSQL database of its own, which DATABASE_URL names. One that would serve for ever says in its
//! manifest with which arguments it ends: `args` under `[package.metadata.example]`.

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
    let postgres = servers::url(Shared::Postgres).ok_or_else(|| Failed::new("there is no PostgreSQL for examples"))?;
    let mut count = 0;
    for command in commands() {
        println!("· {command}");
        let database = Database::on(&postgres);
        command.env("DATABASE_URL", database.url()).run()?;
        count += 1;
    }
    println!("{count} examples ran to their end");
    Ok(())
}

/// What runs each example: the packages under `examples/`, and the example targets of the crates.
fn commands() -> Vec<Command> {
    let mut commands = Vec::new();
    for folder in workspace::list("examples") {
        if let Some(package) = workspace::package(&folder) {
            commands.push(Command::built(package).args(&arguments(&folder)));
        }
    }
    for folder in workspace::list("crates") {
        for target in workspace::list(folder.join("examples")) {
            let is_target =
                target.extension().is_some_and(|extension| extension == "rs") || target.join("main.rs").exists();
            if let Some(name) = target.file_stem().and_then(|stem| stem.to_str()).filter(|_| is_target) {
                commands.push(Command::built(Path::new("examples").join(name)));
            }
        }
    }
    commands
}

/// The arguments that an example's manifest asks for.
fn arguments(folder: &Path) -> Vec<String> {
    std::fs::read_to_string(folder.join("Cargo.toml")).map(|manifest| named(&manifest)).unwrap_or_default()
}

fn named(manifest: &str) -> Vec<String> {
    let section = manifest.split("[package.metadata.example]").nth(1);
    let args = section.and_then(|section| section.lines().find_map(|line| line.strip_prefix("args = [")));
    let args = args.and_then(|args| args.strip_suffix(']')).unwrap_or_default();
    args.split(',').map(|arg| arg.trim().trim_matches('"').to_owned()).filter(|arg| !arg.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_come_from_the_manifest() {
        let manifest =
            "[package]\nname = \"a\"\n\n[package.metadata.example]\nargs = [\"--demo\", \"x\"]\n\n[dependencies]\n";
        assert_eq!(named(manifest), ["--demo", "x"]);
        assert_eq!(named("[package]\nname = \"a\"\n"), [""; 0]);
    }

    /// What `cargo x examples` runs is every folder, so that none is forgotten.
    #[test]
    fn every_folder_is_an_example() {
        let run: Vec<_> = commands().iter().map(ToString::to_string).collect();
        for folder in workspace::list("examples") {
            let name = folder.file_name().and_then(|name| name.to_str()).unwrap();
            assert!(run.iter().any(|line| line.split(' ').next().unwrap().ends_with(name)), "{name}: {run:?}");
        }
    }
}

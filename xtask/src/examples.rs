//! `cargo x examples`: every example is built and run. An example ends by itself, with code 0.
//!
//! Each has an empty PostgreSQL database of its own, which DATABASE_URL names.

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
            commands.push(Command::built(package));
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

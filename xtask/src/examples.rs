//! `cargo x examples`: every example is built and run. An example ends by itself, with code 0.

use crate::{
    step::{Command, Failed},
    workspace,
};

/// Builds them all, then runs them one after another.
pub(crate) fn run() -> Result<(), Failed> {
    Command::cargo(["build", "--workspace", "--examples"]).run()?;
    let mut count = 0;
    for command in commands() {
        println!("· {command}");
        command.run()?;
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
            commands.push(Command::cargo(["run", "--quiet", "--package", package.as_str()]));
        }
    }
    for folder in workspace::list("crates") {
        let Some(package) = workspace::package(&folder) else {
            continue;
        };
        for target in workspace::list(folder.join("examples")) {
            let is_target =
                target.extension().is_some_and(|extension| extension == "rs") || target.join("main.rs").exists();
            if let Some(name) = target.file_stem().and_then(|stem| stem.to_str()).filter(|_| is_target) {
                commands.push(Command::cargo(["run", "--quiet", "--package", package.as_str(), "--example", name]));
            }
        }
    }
    commands
}

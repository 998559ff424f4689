//! `cargo x test`: every test, from a fresh checkout.

use crate::{
    servers,
    step::{Command, Failed},
    workspace,
};

/// Runs the tests, then the doctests. With arguments, only the tests, and they go to the runner.
pub(crate) fn run(args: &[String]) -> Result<(), Failed> {
    servers::start()?;
    runner().args(args).run()?;
    if args.is_empty() {
        doctests().run()?;
    }
    Ok(())
}

/// The command that runs all tests but the doctests: with cargo-nextest where it is installed.
pub(crate) fn runner() -> Command {
    if has_nextest() {
        return Command::cargo(["nextest", "run", "--workspace"]);
    }
    println!("cargo-nextest is not installed: running `cargo test`, without limits of time for each test");
    Command::cargo(["test", "--workspace", "--lib", "--bins", "--tests"])
}

/// The command that runs the doctests, which cargo-nextest leaves out.
pub(crate) fn doctests() -> Command {
    Command::cargo(["test", "--workspace", "--doc"])
}

/// Whether cargo-nextest is installed.
pub(crate) fn has_nextest() -> bool {
    workspace::has_tool("nextest")
}

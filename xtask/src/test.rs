//! `cargo x test`: every test, from a fresh checkout.

use crate::{
    servers,
    step::{Command, Failed},
    workspace,
};

/// Runs the tests, then the doctests. With arguments, only the tests, and they go to the runner.
pub(crate) fn run(args: &[String]) -> Result<(), Failed> {
    servers::start()?;
    runner(args).run()?;
    if args.is_empty() {
        doctests().run()?;
    }
    Ok(())
}

/// The command that runs all tests but the doctests: with cargo-nextest where it is installed. Arguments may
/// name packages; without them it is the workspace.
pub(crate) fn runner(args: &[String]) -> Command {
    let names_packages = args
        .iter()
        .take_while(|arg| *arg != "--")
        .any(|arg| arg.starts_with("-p") || arg == "--package" || arg.starts_with("--package="));
    let what: &[&str] = if names_packages { &[] } else { &["--workspace"] };
    let (verb, kinds): (&[&str], &[&str]) = if has_nextest() {
        (&["nextest", "run"], &[])
    } else {
        println!("cargo-nextest is not installed: running `cargo test`, without limits of time for each test");
        (&["test"], &["--lib", "--bins", "--tests"])
    };
    Command::cargo([verb, what, kinds].concat()).args(args)
}

/// The command that runs the doctests, which cargo-nextest leaves out.
pub(crate) fn doctests() -> Command {
    Command::cargo(["test", "--workspace", "--doc"])
}

/// Whether cargo-nextest is installed.
pub(crate) fn has_nextest() -> bool {
    workspace::has_tool("nextest")
}

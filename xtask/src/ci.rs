//! `cargo x ci`: the one gate.

use crate::{
    acceptance, book, build_figures, examples, readme, servers,
    step::{Command, Failed, Step, Work, run_all},
    test, workspace,
};

const DENY_WARNINGS: &str = "-D warnings";

/// Runs every step, cheap ones first; the first failure ends it.
pub(crate) fn run() -> Result<(), Failed> {
    let profile: &[&str] = if test::has_nextest() { &["--profile", "ci"] } else { &[] };
    let tests = test::runner(&profile.iter().map(|&arg| arg.to_owned()).collect::<Vec<_>>());
    let deny = if workspace::has_tool("deny") {
        Work::Run(Command::cargo(["deny", "check", "licenses", "bans", "sources"]))
    } else {
        Work::Skip("cargo-deny is not installed")
    };
    run_all(&[
        Step::new("format", Work::Run(Command::cargo(["fmt", "--all", "--check"]))),
        Step::new("acceptance", Work::Own("cargo x acceptance", || acceptance::run(&[]))),
        Step::new("book", Work::Own("cargo x book", book::run)),
        Step::new("crates", Work::Own("cargo x build-figures --crates", build_figures::count)),
        Step::new("licences", deny),
        // What is built from here on, and the servers of the tests, come from them.
        Step::new("packages", Work::Own("cargo x servers", servers::packages)),
        Step::new(
            "lints",
            Work::Run(Command::cargo([
                "clippy",
                "--workspace",
                "--all-targets",
                "--all-features",
                "--",
                "-D",
                "warnings",
            ])),
        ),
        Step::new(
            "docs",
            Work::Run(
                Command::cargo(["doc", "--workspace", "--no-deps", "--all-features", "--document-private-items"])
                    .env("RUSTDOCFLAGS", DENY_WARNINGS),
            ),
        ),
        // From here on, every step has them.
        Step::new("servers", Work::Own("cargo x servers", servers::start)),
        Step::new("tests", Work::Run(tests)),
        Step::new("tests named", named()),
        Step::new("doctests", Work::Run(test::doctests())),
        Step::new("readme", Work::Own("cargo x readme", readme::run)),
        Step::new("examples", Work::Own("cargo x examples", examples::run)),
        Step::new(
            "demo",
            Work::Run(Command::cargo(["run", "--package", "pillarbox-cli", "--", "demo", "--events", "500"])),
        ),
    ])
}

/// After the tests are built, what the runner lists costs seconds and can't be fooled by a function that is
/// no test.
fn named() -> Work {
    if test::has_nextest() {
        Work::Own("cargo x acceptance --listed", || acceptance::run(&["--listed".to_owned()]))
    } else {
        Work::Skip("cargo-nextest is not installed")
    }
}

//! The project's own commands, run as `cargo x NAME`.

mod acceptance;
mod book;
mod build_figures;
mod chaos;
mod ci;
mod examples;
#[cfg(test)]
mod metric_names;
mod readme;
mod servers;
mod step;
mod test;
mod workspace;

use std::process::ExitCode;

use step::{Command, Failed};

const HELP: &str = "\
The project's own commands.

Usage: cargo x COMMAND [ARGS]

Commands:
  test [ARGS]    every test of the workspace, then the doctests, with the database servers that they need;
                 ARGS go to the test runner and leave the doctests out
  servers        starts the database servers for tests, and keeps them until Ctrl-C
  ci             the gate: format, lints, docs, tests, examples, README, acceptance
  examples       builds and runs every example
  readme         compiles and runs the snippets of README.md
  book           checks the pages: chapters, links, anchors, code blocks; builds the book where mdBook is installed
  build-figures  builds examples/quickstart from clean, and tells how long it took and what of; --crates only counts
  acceptance     checks docs/acceptance.md against the tests in the sources;
                 with --listed, against what the test runner lists
  bench [ARGS]   the benchmarks, in release mode; ARGS go to them (--help shows them):
                 --backend sqlite|postgres|mysql|oracle-mysql, --url URL, --peers, --relay, --consumer, --quick, ...
  chaos [ARGS]   processes in a storm, and the proof that nothing was lost (--help shows more):
                 --minutes N, --seed S, --backend postgres|mysql|sqlite
  help           this text";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (name, rest) = match args.split_first() {
        Some((name, rest)) => (name.as_str(), rest),
        None => ("help", &[][..]),
    };
    let done = match name {
        "test" => test::run(rest),
        "servers" => no_args(rest).and_then(|()| servers::run()),
        "ci" => no_args(rest).and_then(|()| ci::run()),
        "examples" => no_args(rest).and_then(|()| examples::run()),
        "readme" => no_args(rest).and_then(|()| readme::run()),
        "book" => no_args(rest).and_then(|()| book::run()),
        "build-figures" => build_figures::run(rest),
        "acceptance" => acceptance::run(rest),
        "bench" => bench(rest),
        "chaos" => chaos::run(rest),
        "help" | "--help" | "-h" => {
            println!("{HELP}");
            Ok(())
        }
        other => Err(Failed::new(format!("there is no command `{other}`\n\n{HELP}"))),
    };
    servers::stop();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => {
            eprintln!("error: {failed}");
            ExitCode::FAILURE
        }
    }
}

fn bench(args: &[String]) -> Result<(), Failed> {
    // Only who asks for Kafka waits for its client to be built.
    let features = if args.iter().any(|arg| arg == "kafka" || arg == "--only=kafka") { "kafka" } else { "" };
    let run = ["run", "--release", "--quiet", "--package", "pillarbox-bench", "--features", features, "--"];
    Command::cargo(run).args(args).run()
}

fn no_args(args: &[String]) -> Result<(), Failed> {
    match args.first() {
        Some(arg) => Err(Failed::new(format!("this command takes no argument, but got `{arg}`"))),
        None => Ok(()),
    }
}

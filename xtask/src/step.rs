//! Running other programs, and telling how it went.

use std::{
    env,
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
    process,
    time::{Duration, Instant},
};

use crate::{servers, workspace};

/// Why a command of this program failed, in words for a person.
#[derive(Debug)]
pub(crate) struct Failed(String);

impl Failed {
    pub(crate) fn new(words: impl Into<String>) -> Self {
        Self(words.into())
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How a command without output ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quiet {
    Passed,
    Failed,
}

/// A command line, run in the root of the checkout.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    // Cargo, if none is named.
    program: Option<PathBuf>,
    env: Vec<(&'static str, String)>,
    args: Vec<String>,
}

impl Command {
    /// `cargo` with these arguments.
    pub(crate) fn cargo<'a>(args: impl IntoIterator<Item = &'a str>) -> Self {
        Self { program: None, env: Vec::new(), args: args.into_iter().map(str::to_owned).collect() }
    }

    /// A program that this build made, by its path beside this one.
    pub(crate) fn built(path: impl AsRef<Path>) -> Self {
        let folder = env::current_exe().ok().and_then(|own| own.parent().map(Path::to_path_buf)).unwrap_or_default();
        Self { program: Some(folder.join(path)), env: Vec::new(), args: Vec::new() }
    }

    /// Another program, found as the shell finds it.
    pub(crate) fn program(name: &str) -> Self {
        Self { program: Some(name.into()), env: Vec::new(), args: Vec::new() }
    }

    /// Adds arguments.
    pub(crate) fn args(mut self, args: &[String]) -> Self {
        self.args.extend_from_slice(args);
        self
    }

    /// Sets a variable of the environment.
    pub(crate) fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    /// Runs it with the terminal's input and output.
    pub(crate) fn run(&self) -> Result<(), Failed> {
        let status = self.process().status().map_err(|error| self.unstartable(&error))?;
        if status.success() {
            return Ok(());
        }
        Err(self.ended(status))
    }

    /// Runs it and returns what it printed, without colours; on failure that is shown.
    pub(crate) fn output(&self) -> Result<String, Failed> {
        let output = self
            .process()
            .env("CARGO_TERM_COLOR", "never")
            .stderr(process::Stdio::inherit())
            .output()
            .map_err(|error| self.unstartable(&error))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(text);
        }
        print!("{text}");
        Err(self.ended(output.status))
    }

    /// Runs it, shows nothing, and tells whether it passed.
    pub(crate) fn quiet(&self) -> Quiet {
        match self.process().output() {
            Ok(output) if output.status.success() => Quiet::Passed,
            _ => Quiet::Failed,
        }
    }

    fn process(&self) -> process::Command {
        // Cargo names itself here, so that the toolchain in use stays in use.
        let cargo = || env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        let mut process = process::Command::new(self.program.clone().map_or_else(cargo, Into::into));
        process
            .args(&self.args)
            .envs(servers::environment())
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .current_dir(workspace::root());
        // `cargo run` tells this program about its own package. Handed on, it would make build scripts that
        // look at these variables run again.
        for (name, _) in env::vars_os() {
            let text = name.to_string_lossy();
            if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|prefix| text.starts_with(prefix)) {
                process.env_remove(name);
            }
        }
        process
    }

    fn unstartable(&self, error: &std::io::Error) -> Failed {
        Failed::new(format!("`{self}` could not be started: {error}"))
    }

    fn ended(&self, status: process::ExitStatus) -> Failed {
        Failed::new(format!("`{self}` ended with {status}"))
    }
}

/// The command as a person would type it.
impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.env {
            let quote = if value.contains(' ') { "'" } else { "" };
            write!(f, "{name}={quote}{value}{quote} ")?;
        }
        match &self.program {
            Some(program) => write!(f, "{}", program.display())?,
            None => f.write_str("cargo")?,
        }
        for arg in &self.args {
            let quote = if arg.contains(' ') { "'" } else { "" };
            write!(f, " {quote}{arg}{quote}")?;
        }
        Ok(())
    }
}

/// One step of a longer run.
#[derive(Debug)]
pub(crate) struct Step {
    name: &'static str,
    work: Work,
}

/// What a step does.
#[derive(Debug)]
pub(crate) enum Work {
    /// Runs a command.
    Run(Command),
    /// Runs a command of this program; the words repeat it.
    Own(&'static str, fn() -> Result<(), Failed>),
    /// Is left out, for this reason.
    Skip(&'static str),
}

impl Step {
    pub(crate) fn new(name: &'static str, work: Work) -> Self {
        Self { name, work }
    }
}

/// Runs the steps until one fails, then shows a table of all.
pub(crate) fn run_all(steps: &[Step]) -> Result<(), Failed> {
    let mut results = Vec::new();
    let mut failure = None;
    for step in steps {
        if failure.is_some() {
            results.push(("not run".to_owned(), None));
            continue;
        }
        let begin = Instant::now();
        let (repeat, outcome) = match &step.work {
            Work::Run(command) => {
                announce(step.name, &command.to_string());
                (command.to_string(), command.run())
            }
            Work::Own(repeat, work) => {
                announce(step.name, repeat);
                ((*repeat).to_owned(), work())
            }
            Work::Skip(reason) => {
                results.push((format!("skipped: {reason}"), None));
                continue;
            }
        };
        let word = if outcome.is_ok() { "ok" } else { "FAILED" };
        results.push((word.to_owned(), Some(begin.elapsed())));
        if let Err(failed) = outcome {
            failure = Some((step.name, failed, repeat));
        }
    }
    show(steps, &results);
    match failure {
        None => Ok(()),
        Some((name, failed, repeat)) => {
            Err(Failed::new(format!("step `{name}`: {failed}\nto repeat this step alone:\n\n    {repeat}\n")))
        }
    }
}

fn announce(name: &str, command: &str) {
    println!("\n── {name} ── {command}");
}

fn show(steps: &[Step], results: &[(String, Option<Duration>)]) {
    let width = steps.iter().map(|step| step.name.len()).max().unwrap_or(0);
    println!("\n{:width$}  {:>8}  result", "step", "time");
    for (step, (word, time)) in steps.iter().zip(results) {
        let time = time.map_or_else(|| "-".to_owned(), |time| format!("{:.1} s", time.as_secs_f64()));
        println!("{:width$}  {time:>8}  {word}", step.name);
    }
    let total: Duration = results.iter().filter_map(|(_, time)| *time).sum();
    println!("{:width$}  {:>8}", "total", format!("{:.1} s", total.as_secs_f64()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_reads_as_it_is_typed() {
        let command = Command::cargo(["doc", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(command.to_string(), "RUSTDOCFLAGS='-D warnings' cargo doc --no-deps");
    }

    #[test]
    fn the_first_failure_ends_the_run_and_names_what_repeats_it() {
        let steps = [
            Step::new("first", Work::Own("cargo x first", || Ok(()))),
            Step::new("left out", Work::Skip("for a reason")),
            Step::new("second", Work::Own("cargo x second", || Err(Failed::new("broken")))),
            Step::new("third", Work::Own("cargo x third", || panic!("must not run"))),
        ];
        let words = run_all(&steps).unwrap_err().to_string();
        assert!(words.contains("`second`: broken") && words.contains("cargo x second"), "{words}");
    }
}

//! `cargo x build-figures`: what it costs to build `examples/quickstart`, which is Pillarbox on SQLite and little more.
//!
//! The gate counts the crates alone: a new one is a choice, made by raising [`MOST`] with a reason in the commit.

use std::{collections::BTreeMap, fs, time::Instant};

use crate::{
    step::{Command, Failed},
    workspace,
};

const PACKAGE: &str = "quickstart";
/// The most crates that its dependency tree may have, with those that only its build needs.
const MOST: usize = 131;
/// Cargo's own profiles, as a new project has them, and not this workspace's.
const PROFILES: [&str; 4] = [
    "profile.dev.debug=true",
    "profile.dev.package.\"*\".debug=true",
    "profile.dev.package.\"*\".opt-level=0",
    "profile.release.debug=false",
];
/// A folder under `target` that is removed before each build.
const FOLDER: &str = "target/build-figures";

/// Counts the crates and builds, in debug and in release; with `--crates`, only counts.
pub(crate) fn run(args: &[String]) -> Result<(), Failed> {
    match args {
        [] => {}
        [flag] if flag == "--crates" => return count(),
        _ => return Err(Failed::new("usage: cargo x build-figures [--crates]")),
    }
    count()?;
    // So that the network is no part of the figures.
    Command::cargo(["fetch", "--quiet"]).run()?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("{}, {cores} cores", Command::cargo(["--version"]).output()?.trim());
    for profile in ["dev", "release"] {
        println!("\n{profile}, load average before: {}", load());
        let (seconds, cpu) = build(profile)?;
        println!("{PACKAGE} from clean: {seconds:.1} s, {cpu:.1} s of all cores together; the longest of its crates:");
        for (name, seconds) in longest(&timings()?).into_iter().take(10) {
            println!("{seconds:7.1} s  {name}");
        }
    }
    Ok(())
}

/// Counts the crates of the tree; more than [`MOST`] is an error.
pub(crate) fn count() -> Result<(), Failed> {
    let tree = ["tree", "--locked", "--package", PACKAGE, "--edges", "normal,build", "--prefix", "none"];
    let count = crates(&Command::cargo(tree).output()?);
    println!("{PACKAGE} is made of {count} crates, itself and what only its build needs among them; at most {MOST}");
    if count > MOST {
        return Err(Failed::new(format!(
            "{PACKAGE} has {count} crates, {} more than it may: drop some, or raise the number in {}",
            count - MOST,
            file!()
        )));
    }
    Ok(())
}

/// How many different crates a tree of `cargo tree --prefix none` has.
fn crates(tree: &str) -> usize {
    let named = tree.lines().filter_map(|line| {
        let mut words = line.split(' ');
        Some((words.next()?, words.next()?))
    });
    let mut named: Vec<_> = named.collect();
    named.sort_unstable();
    named.dedup();
    named.len()
}

/// Builds it from clean: the seconds that it took, and those of the cores.
fn build(profile: &str) -> Result<(f64, f64), Failed> {
    let folder = workspace::root().join(FOLDER);
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| Failed::new(format!("{FOLDER}: {error}")))?;
    }
    let (begin, cpu) = (Instant::now(), children());
    let profiles: Vec<_> = PROFILES.iter().flat_map(|setting| ["--config".to_owned(), (*setting).to_owned()]).collect();
    Command::cargo(["build", "--quiet", "--locked", "--timings", "--package", PACKAGE, "--profile", profile])
        .args(&profiles)
        .env("CARGO_TARGET_DIR", FOLDER)
        .run()?;
    Ok((begin.elapsed().as_secs_f64(), children() - cpu))
}

fn timings() -> Result<String, Failed> {
    workspace::read(format!("{FOLDER}/cargo-timings/cargo-timing.html"))
}

/// The crates of a page of `cargo build --timings`, those that took longest first; build scripts count to their crate.
fn longest(page: &str) -> Vec<(String, f64)> {
    let units = page.split("const UNIT_DATA = ").nth(1).and_then(|rest| rest.split("];").next()).unwrap_or_default();
    let mut crates: BTreeMap<String, f64> = BTreeMap::new();
    for unit in units.split("\"i\":").skip(1) {
        let field = |name: &str| {
            let rest = unit.split(&format!("\"{name}\":")).nth(1)?.trim_start();
            rest.split([',', '\n', '}']).next().map(|value| value.trim().trim_matches('"').to_owned())
        };
        if let (Some(name), Some(Ok(seconds))) = (field("name"), field("duration").map(|it| it.parse::<f64>())) {
            *crates.entry(name).or_default() += seconds;
        }
    }
    let mut crates: Vec<_> = crates.into_iter().collect();
    crates.sort_by(|a, b| b.1.total_cmp(&a.1));
    crates
}

/// What the cores have done for the programs that this one has run, in seconds. It hardly changes with what else the
/// machine does.
fn children() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name, which may hold anything: user and system time of children are the 14th and 15th, in 1/100 s.
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ').skip(13).take(2);
    fields.filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// What else the machine did.
fn load() -> String {
    let words = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    words.split(' ').next().filter(|word| !word.is_empty()).unwrap_or("unknown").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_counts_once_and_its_versions_apart() {
        let tree = "quickstart v0.1.0 (/somewhere)\nsyn v2.0.1\nquote v1.0.0\nsyn v2.0.1 (*)\nsyn v3.0.0\n\n\
                    serde_derive v1.0.0 (proc-macro)\nserde_derive v1.0.0 (proc-macro) (*)\n";
        assert_eq!(crates(tree), 5);
    }

    #[test]
    fn the_longest_crates_come_first_with_their_build_scripts() {
        let page = "const UNIT_DATA = [\n  {\n    \"i\": 0,\n    \"name\": \"small\",\n    \"mode\": \"todo\",\n    \
                    \"duration\": 0.5,\n    \"unblocked_units\": []\n  },\n  {\n    \"i\": 1,\n    \"name\": \"large\",\n    \
                    \"duration\": 2.25\n  },\n  {\n    \"i\": 2,\n    \"name\": \"small\",\n    \"duration\": 1.0\n  }\n];\n";
        assert_eq!(longest(page), [("large".to_owned(), 2.25), ("small".to_owned(), 1.5)]);
        assert_eq!(longest("nothing"), []);
    }

    /// The number in the docs is that of the gate.
    #[test]
    fn the_docs_name_the_number_of_crates() {
        let page = workspace::read("docs/benchmarks.md").unwrap();
        assert!(page.contains(&format!("{MOST} crates")), "docs/benchmarks.md does not name {MOST} crates");
    }
}

//! Peers from crates.io, in rounds with Pillarbox and the limit. They live in a workspace of their own, whose program
//! measures one of them a call: see `bench/peers/README.md` for its contract.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde::Deserialize;

use crate::{
    Result, Sizes,
    backend::{Backend as _, Counted, Database as _, Finish, PAGES, postgres},
    drain,
    report::{Figure, Peer, Report},
    rounds::{Rounds, Spread, float},
};

const ROUNDS: usize = 3;
/// Programs beside the main one, of peers that can't be built together with the others.
const APART: [(&str, &str); 1] = [("pillarbox-peers-obix", "obix")];

/// What the program prints.
#[derive(Clone, Debug, Deserialize)]
struct Measured {
    version: String,
    events_per_second: f64,
    wal_bytes_per_event: f64,
    commits_per_event: f64,
    row_writes_per_event: f64,
    settings: String,
}

pub(crate) async fn run(bed: &postgres::Bed, sizes: &Sizes, report: &mut Report) -> Result<()> {
    report.begin("peers (and builds them)");
    let program = build()?;
    let names = list(&program)?;
    let events = sizes.peers;
    let template = bed.filled(events).await?;
    let (mut limit, mut pillarbox) = (Vec::new(), Vec::new());
    let mut peers: Vec<(String, Vec<Measured>)> = names.into_iter().map(|name| (name, Vec::new())).collect();
    for round in 0..ROUNDS {
        report.begin(&format!("peers, round {} of {ROUNDS}", round + 1));
        let mut fastest = 0.0_f64;
        for page in PAGES {
            let database = bed.copy(&template).await?;
            fastest = fastest.max(float(events) / database.drain(events, page, Finish::Delete).await?);
        }
        limit.push(fastest);
        let database = bed.copy(&template).await?;
        pillarbox.push(drain::rate(&database, events, Finish::Delete).await?);
        for (name, measured) in &mut peers {
            match measure(&program, bed.url(), name, events) {
                Ok(one) => measured.push(one),
                // One that fails says so, and the others go on.
                Err(error) => eprintln!("{name} has no figure in round {}: {error}", round + 1),
            }
        }
    }

    let mut fastest: Option<(f64, String, Rounds)> = None;
    for (name, measured) in peers {
        if measured.len() < ROUNDS {
            continue;
        }
        let rates: Vec<f64> = measured.iter().map(|one| one.events_per_second).collect();
        let beside = |other: &[f64]| Rounds { limit: other.to_vec(), pillarbox: rates.clone() };
        let against = Rounds { limit: rates.clone(), pillarbox: pillarbox.clone() };
        let median = |value: fn(&Measured) -> f64| Spread::of(measured.iter().map(value)).median;
        let spread = Spread::of(rates.iter().copied());
        report.add_peer(Peer {
            version: measured[0].version.clone(),
            settings: measured[0].settings.clone(),
            rates: spread,
            to_limit: beside(&limit).ratios(),
            pillarbox: against.ratios(),
            counted: Counted {
                round_trips: None,
                row_writes: median(|one| one.row_writes_per_event),
                log_bytes: median(|one| one.wal_bytes_per_event),
                commits: median(|one| one.commits_per_event),
            },
            name: name.clone(),
        });
        if fastest.as_ref().is_none_or(|(rate, ..)| spread.median > *rate) {
            fastest = Some((spread.median, name, against));
        }
    }
    let Some((_, name, rounds)) = fastest else {
        return Err("no peer was measured".into());
    };
    let figure = Figure::of_rounds("peers", "events/s", &rounds, postgres::Bed::TARGETS.peers);
    report.add(figure.note(format!("drain_delete of {events} events; not the limit, but the fastest peer: {name}")));
    Ok(())
}

/// Builds the programs, and returns the main one.
fn build() -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
    cargo(&folder, &[])?;
    for (program, feature) in APART {
        cargo(&folder, &["--no-default-features", "--features", feature, "--bin", program])?;
    }
    let program = folder.join("target/release/pillarbox-peers");
    if program.exists() { Ok(program) } else { Err("the build of bench/peers has left no program".into()) }
}

fn cargo(folder: &Path, more: &[&str]) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--release", "--locked", "--quiet"])
        .args(more)
        .arg("--target-dir")
        .arg(folder.join("target"))
        .current_dir(folder)
        .stdout(Stdio::null())
        .status()?;
    if built.success() { Ok(()) } else { Err("bench/peers does not build".into()) }
}

fn list(program: &Path) -> Result<Vec<String>> {
    let listed = Command::new(program).arg("--list").stderr(Stdio::inherit()).output()?;
    let names = String::from_utf8(listed.stdout)?;
    Ok(names.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect())
}

fn measure(program: &Path, url: &str, name: &str, events: usize) -> Result<Measured> {
    let run = Command::new(program)
        .args(["--url", url, "--peer", name, "--events", &events.to_string()])
        .stderr(Stdio::inherit())
        .output()?;
    if !run.status.success() {
        return Err(format!("it ended with {}", run.status).into());
    }
    Ok(serde_json::from_slice(&run.stdout)?)
}

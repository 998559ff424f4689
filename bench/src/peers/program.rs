//! The programs of bench/peers, which measure one round of one peer a call.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use serde::Deserialize;
use tokio::{process::Command, time::timeout};

use crate::Result;

/// A round may take so long, with its filling.
pub(super) const LIMIT: Duration = Duration::from_mins(3);
/// The program minds the limit itself, and drops its database then. One that doesn't is killed after so much more.
const GRACE: Duration = Duration::from_secs(30);

/// What is built: a program, and how. The second is for a peer that can't be built together with the others.
pub(super) const PROGRAMS: [(&str, &[&str]); 2] = [
    ("pillarbox-peers", &[]),
    ("pillarbox-peers-obix", &["--no-default-features", "--features", "obix", "--bin", "pillarbox-peers-obix"]),
];

/// What a program prints.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Measured {
    pub(super) version: String,
    pub(super) seconds: f64,
    pub(super) events_per_second: f64,
    pub(super) wal_bytes_per_event: f64,
    pub(super) commits_per_event: f64,
    pub(super) row_writes_per_event: f64,
    pub(super) settings: String,
}

/// Builds a program, and says where it is.
pub(super) async fn build(name: &str, how: &[&str]) -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
    let target = folder.join("target");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--release", "--locked", "--quiet"])
        .args(how)
        .arg("--target-dir")
        .arg(&target)
        .current_dir(&folder)
        .stdout(Stdio::null())
        .status()
        .await?;
    if built.success() { Ok(target.join("release").join(name)) } else { Err("it does not build".into()) }
}

/// The names of the peers in a program.
pub(super) async fn list(program: &Path) -> Result<Vec<String>> {
    let listed = Command::new(program).arg("--list").stderr(Stdio::inherit()).output().await?;
    let names = String::from_utf8(listed.stdout)?;
    Ok(names.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect())
}

/// Measures one round.
pub(super) async fn measure(program: &Path, url: &str, name: &str, events: usize) -> Result<Measured> {
    let run = Command::new(program)
        .args(["--url", url, "--peer", name])
        .args(["--events", &events.to_string(), "--limit", &LIMIT.as_secs().to_string()])
        .kill_on_drop(true)
        .output();
    let run = timeout(LIMIT + GRACE, run).await.map_err(|_| format!("it was killed after {:?}", LIMIT + GRACE))??;
    if !run.status.success() {
        let said = String::from_utf8_lossy(&run.stderr);
        let last = said.lines().rfind(|line| !line.trim().is_empty());
        let reason = last.map_or_else(|| run.status.to_string(), |line| line.trim_start_matches("error: ").to_owned());
        return Err(reason.into());
    }
    Ok(serde_json::from_slice(&run.stdout)?)
}

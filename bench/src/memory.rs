//! Memory: how much more a process has while it drains a large backlog than while it idles.

use std::{
    fs,
    mem::ManuallyDrop,
    path::Path,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use pillarbox::{Delivery, Outbox};

use crate::{
    Result, Sizes,
    bed::{Bed, Database, EVENT_TYPE},
    drain::{self, Drained},
    report::{Figure, Report, Target},
    rounds::{Spread, float},
};

const ROUNDS: usize = 3;

pub(crate) async fn run(bed: &Bed, sizes: &Sizes, report: &mut Report) -> Result<()> {
    report.begin("memory");
    let template = bed.filled(sizes.many).await?;
    let mut grown = Vec::new();
    for _ in 0..ROUNDS.min(sizes.rounds) {
        let file = bed.copy(&template)?;
        let child = std::process::Command::new(std::env::current_exe()?)
            .arg("--drain-and-tell-memory")
            .arg(file.path())
            .arg("--events")
            .arg(sizes.many.to_string())
            .stderr(Stdio::inherit())
            .output()?;
        let told = String::from_utf8(child.stdout)?;
        let told = told.trim().parse::<f64>();
        grown.push(told.map_err(|_| "the process that drains for the bench of memory failed")?);
    }
    let spread = Spread::of(grown);
    let note = format!("{} events; the most of {} runs counts", sizes.many, spread.count);
    report.add(Figure::of_value("memory", "MiB", spread.max, Target::AtMost(64.0)).note(note));
    Ok(())
}

/// Idles on an empty outbox, drains the file, and prints the difference in MiB.
pub(crate) async fn child(file: &Path, events: usize) -> Result<()> {
    let folder = tempfile::tempdir_in(file.parent().unwrap_or(file))?;
    let empty = Database::at(&folder.path().join("idle.db"));
    let outbox = Outbox::single_node(empty.store().await?).handle(EVENT_TYPE, |_: Delivery| async {}).start().await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let idle = resident()?;
    outbox.shutdown().await;

    let (peak, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let watch = {
        let (peak, over) = (peak.clone(), over.clone());
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                peak.fetch_max(resident().unwrap_or(u64::MAX), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
        })
    };
    // The file is the parent's, who removes it.
    let file = ManuallyDrop::new(Database::at(file));
    let drained = Drained::start(file.store().await?, events, drain::KEEP).await?;
    over.store(true, Ordering::Relaxed);
    let _ = watch.join();
    drained.check().await?;
    println!("{:.1}", float(peak.load(Ordering::Relaxed).saturating_sub(idle)) / 1024.0);
    Ok(())
}

/// The resident memory of this process in KiB.
fn resident() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.ok_or("the resident memory is not in /proc/self/status")?.parse()?)
}

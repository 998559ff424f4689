//! Memory: how much more a process has while it drains a large backlog than while it idles.

use std::{
    fs,
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
    backend::{Backend, Database, EVENT_TYPE, Finish},
    drain::Drained,
    report::{Figure, Report},
    rounds::{Spread, float},
};

const ROUNDS: usize = 3;

pub(crate) async fn run<B: Backend>(bed: &B, sizes: &Sizes, report: &mut Report) -> Result<()> {
    report.begin("memory");
    let template = bed.filled(sizes.backlog).await?;
    let mut grown = Vec::new();
    for _ in 0..ROUNDS.min(sizes.rounds) {
        let (idle, full) = (bed.empty().await?, bed.copy(&template).await?);
        let child = tokio::process::Command::new(std::env::current_exe()?)
            .args(["--backend", B::NAME, "--as-memory", &idle.address(), &full.address()])
            .args(["--events", &sizes.backlog.to_string()])
            .stderr(Stdio::inherit())
            .output()
            .await?;
        let told = String::from_utf8(child.stdout)?;
        let told = told.trim().parse::<f64>();
        grown.push(told.map_err(|_| "the process that drains for the bench of memory failed")?);
    }
    let spread = Spread::of(grown);
    let note = format!("{} events; the most of {} runs counts", sizes.backlog, spread.count);
    report.add(Figure::of_value("memory", "MiB", spread.max, B::TARGETS.memory).note(note));
    Ok(())
}

/// Idles on an empty outbox, drains a full one, and prints the difference in MiB.
pub(crate) async fn child<B: Backend>(idle: &str, full: &str, events: usize) -> Result<()> {
    let (idle, full) = (B::Database::at(idle), B::Database::at(full));
    let outbox = Outbox::single_node(idle.store().await?).route(EVENT_TYPE, |_: Delivery| async {}).start().await?;
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
    let drained = Drained::start(&full, events, Finish::Keep).await?;
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

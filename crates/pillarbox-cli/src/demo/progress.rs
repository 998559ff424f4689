//! What is seen while the demo runs: bars on a terminal, a line a second elsewhere, nothing where a program reads.

use std::{
    io::{IsTerminal as _, Write as _},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use tokio::time::{MissedTickBehavior, interval};

use super::{ledger::Ledger, shop::Counters, summary::grouped};

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Show {
    Bars,
    Lines,
    Nothing,
}

impl Show {
    pub(super) fn choose(json: bool, quiet_logs: bool) -> Self {
        if json {
            Self::Nothing
        } else if quiet_logs && std::io::stderr().is_terminal() {
            Self::Bars
        } else {
            Self::Lines
        }
    }
}

/// What progress is read from.
#[derive(Clone, Debug)]
pub(super) struct Watched {
    pub(super) events: u64,
    pub(super) counters: Arc<Counters>,
    pub(super) ledger: Arc<Ledger>,
}

/// Shows progress until it is dropped.
pub(super) async fn run(show: Show, watched: Watched) {
    match show {
        Show::Bars => bars(&watched).await,
        Show::Lines => lines(&watched).await,
        Show::Nothing => std::future::pending().await,
    }
}

async fn bars(watched: &Watched) {
    let bars = Bars::new(watched.events);
    let mut tick = every(Duration::from_millis(100));
    loop {
        tick.tick().await;
        let (written, rolled_back) = watched.written();
        let standing = watched.ledger.standing();
        bars.written.set_position(written);
        bars.delivered.set_position(standing.delivered);
        bars.notes.set_message(format!(
            "{} rolled back · {} failed attempts",
            grouped(rolled_back),
            grouped(standing.failures)
        ));
    }
}

async fn lines(watched: &Watched) {
    let mut tick = every(Duration::from_secs(1));
    tick.tick().await;
    loop {
        tick.tick().await;
        let (written, rolled_back) = watched.written();
        let standing = watched.ledger.standing();
        // A closed stderr is no reason to stop.
        let _ = writeln!(
            std::io::stderr(),
            "{} of {} written, {} rolled back, {} delivered, {} failed attempts",
            grouped(written),
            grouped(watched.events),
            grouped(rolled_back),
            grouped(standing.delivered),
            grouped(standing.failures)
        );
    }
}

impl Watched {
    fn written(&self) -> (u64, u64) {
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        (count(&self.counters.written), count(&self.counters.rolled_back))
    }
}

/// Gone from the screen when dropped: the summary takes their place.
struct Bars {
    all: MultiProgress,
    written: ProgressBar,
    delivered: ProgressBar,
    notes: ProgressBar,
}

impl Bars {
    fn new(events: u64) -> Self {
        let all = MultiProgress::new();
        let bar = |name: &'static str, colour: &str| {
            let template =
                format!("  {{prefix:<10}} {{bar:40.{colour}/238}} {{human_pos:>9}} of {{human_len}}  {{per_sec}}");
            let bar = all.add(ProgressBar::new(events));
            bar.set_style(style(&template));
            bar.set_prefix(name);
            bar
        };
        let written = bar("written", "cyan");
        let delivered = bar("delivered", "green");
        let notes = all.add(ProgressBar::new_spinner());
        notes.set_style(style("             {msg:.dim}"));
        Self { all, written, delivered, notes }
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        for bar in [&self.written, &self.delivered, &self.notes] {
            bar.finish_and_clear();
        }
        let _ = self.all.clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    // A template is a constant of this file; a mistake in it costs the looks alone.
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .with_key("per_sec", |state: &indicatif::ProgressState, out: &mut dyn std::fmt::Write| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a rate for the eye, and never negative"
            )]
            let rate = state.per_sec() as u64;
            let _ = write!(out, "{}/s", grouped(rate));
        })
        .progress_chars("━╸━")
}

fn every(period: Duration) -> tokio::time::Interval {
    let mut tick = interval(period);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tick
}

//! The figures, for people and for programs.

mod json;

use std::{fs, path::Path, thread::available_parallelism};

use crate::{
    Result,
    backend::{Backend, Counted},
    rounds::{Rounds, Spread},
};

/// What is to be reached.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
}

impl Target {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(least) => value >= least,
            Self::AtMost(most) => value <= most,
        }
    }

    /// The word on a value, and on the values of single rounds around it.
    fn verdict(self, value: f64, spread: Option<Spread>) -> &'static str {
        // Rounds on both sides of the target: the median alone proves little.
        let unsure = spread.is_some_and(|spread| self.is_met(spread.min) != self.is_met(spread.max));
        match (self.is_met(value), unsure) {
            (true, false) => "ok",
            (true, true) => "ok?",
            (false, false) => "MISSED",
            (false, true) => "MISSED?",
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtLeast(least) => f.pad(&format!(">= {least}")),
            Self::AtMost(most) => f.pad(&format!("<= {most}")),
        }
    }
}

/// One measured figure.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    bench: &'static str,
    unit: &'static str,
    limit: Option<f64>,
    pillarbox: f64,
    /// Of the ratios of single rounds.
    ratios: Option<Spread>,
    /// Of the values of single rounds, where the figure is no ratio.
    values: Option<Spread>,
    target: Option<Target>,
    note: Option<String>,
    of_itself: bool,
    /// Pillarbox over the limit, where the other side is a peer.
    to_limit: Option<Spread>,
}

impl Figure {
    /// Medians of both sides; the target is for the ratio.
    pub(crate) fn of_rounds(bench: &'static str, unit: &'static str, rounds: &Rounds, target: Option<Target>) -> Self {
        let median = |values: &[f64]| Spread::of(values.iter().copied()).median;
        Self {
            limit: Some(median(&rounds.limit)),
            ratios: Some(rounds.ratios()),
            ..Self::of_value(bench, unit, median(&rounds.pillarbox), target)
        }
    }

    /// A value that is no ratio; the target is for the value.
    pub(crate) fn of_value(bench: &'static str, unit: &'static str, value: f64, target: Option<Target>) -> Self {
        Self {
            bench,
            unit,
            limit: None,
            pillarbox: value,
            ratios: None,
            values: None,
            target,
            note: None,
            of_itself: false,
            to_limit: None,
        }
    }

    /// The median of values that are no ratios; the target is for it.
    pub(crate) fn of_spread(bench: &'static str, unit: &'static str, values: Spread, target: Option<Target>) -> Self {
        Self { values: Some(values), ..Self::of_value(bench, unit, values.median, target) }
    }

    /// Both sides are Pillarbox: the ratio is the figure.
    pub(crate) fn of_itself(mut self) -> Self {
        self.of_itself = true;
        self
    }

    /// The other side is a peer, which has lines of its own; this is Pillarbox over the limit.
    pub(crate) fn beside_peer(mut self, to_limit: Spread) -> Self {
        self.to_limit = Some(to_limit);
        self
    }

    pub(crate) fn note(mut self, note: String) -> Self {
        self.note = Some(note);
        self
    }

    fn decisive(&self) -> f64 {
        self.ratios.map_or(self.pillarbox, |ratios| ratios.median)
    }
}

/// A peer beside Pillarbox and the limit, in the same rounds.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) settings: String,
    /// How many it has drained.
    pub(crate) events: usize,
    pub(crate) rates: Spread,
    /// The peer over the limit.
    pub(crate) to_limit: Spread,
    /// Pillarbox over the peer.
    pub(crate) pillarbox: Spread,
    pub(crate) counted: Counted,
}

/// Everything a run has found.
#[derive(Debug)]
pub(crate) struct Report {
    quick: bool,
    backend: &'static str,
    place: String,
    /// What the limit is, and what else is to be known.
    limit: String,
    load_before: String,
    figures: Vec<Figure>,
    counts: Vec<(&'static str, &'static str, Counted)>,
    peers: Vec<Peer>,
    /// Peers without a figure, and why.
    failed_peers: Vec<(String, String)>,
}

impl Report {
    pub(crate) fn new<B: Backend>(quick: bool, bed: &B) -> Self {
        let limit = format!(
            "The limit is a hand-written sqlx loop on the same table and settings. {} hot_latency: the p99 of the same \
             transactions' commits.",
            B::LIMIT
        );
        Self::with_limit(quick, B::NAME, bed.place(), limit)
    }

    /// Of the relay, which takes its events from this PostgreSQL.
    pub(crate) fn of_relay<B: Backend>(quick: bool, bed: &B) -> Self {
        let limit = "The limit is the smaller of two: the broker's client in a loop of its own, without a database, that has the \
                     broker's\nword on every message, and drain_delete of as many events on the same PostgreSQL. The relay \
                     is the released program\nin a process of its own with its default settings and on_success = delete; \
                     10,000 keys, each in order, which every\nround has proved.";
        Self::with_limit(quick, "relay", bed.place(), limit.into())
    }

    /// Of the consumer's half, on these databases.
    pub(crate) fn of_consumer(quick: bool, place: String) -> Self {
        let limit = "The limit is the same by hand: of guard_ the bare statement, of inbox_ the same transaction with a bare insert in \
                     place\nof the inbox, of consumer_ the client's own loop without a database. Every round has proved that each \
                     message was\nmarked, entered or handled exactly once, and acknowledged.";
        Self::with_limit(quick, "consumer", place, limit.into())
    }

    fn with_limit(quick: bool, backend: &'static str, place: String, limit: String) -> Self {
        Self {
            quick,
            backend,
            place,
            limit,
            load_before: load(),
            figures: Vec::new(),
            counts: Vec::new(),
            peers: Vec::new(),
            failed_peers: Vec::new(),
        }
    }

    /// Says what is measured now.
    #[expect(clippy::unused_self, reason = "progress belongs to the report, and needs nothing of it yet")]
    pub(crate) fn begin(&self, bench: &str) {
        eprintln!("measuring {bench} ...");
    }

    /// Also tells it at once, so that a run which is cut off has told what it found.
    pub(crate) fn add(&mut self, figure: Figure) {
        eprintln!("{}", row(&figure));
        self.figures.push(figure);
    }

    pub(crate) fn count(&mut self, bench: &'static str, system: &'static str, counted: Counted) {
        self.counts.push((bench, system, counted));
    }

    pub(crate) fn add_peer(&mut self, peer: Peer) {
        self.peers.push(peer);
    }

    pub(crate) fn fail_peer(&mut self, name: String, reason: String) {
        eprintln!("{name} has no figure: {reason}");
        self.failed_peers.push((name, reason));
    }

    pub(crate) fn print(&self) {
        let cores = available_parallelism().map_or(0, usize::from);
        println!("\nPillarbox beside the limit: {}, {cores} cores, {}", self.backend, self.place);
        println!("load average before {}, after {}", self.load_before, load());
        if self.quick {
            println!("QUICK: small sizes and few rounds; these figures are not for quoting");
        }
        if !self.figures.is_empty() {
            println!(
                "\n{:<18} {:>11} {:>11} {:<10} {:>6} {:>15} {:>7}  ",
                "bench", "limit", "pillarbox", "unit", "ratio", "min .. max", "target"
            );
        }
        for figure in &self.figures {
            println!("{}", row(figure));
        }
        if !self.peers.is_empty() || !self.failed_peers.is_empty() {
            println!(
                "\n{:<42} {:>9} {:>9} {:>9} {:>6} {:>15} {:>8}",
                "peer", "events/s", "of limit", "pillarbox", "ratio", "min .. max", "events"
            );
        }
        for peer in &self.peers {
            let Spread { median, min, max, .. } = peer.pillarbox;
            println!(
                "{:<42} {:>9.0} {:>9.2} {:>9.0} {median:>6.2} {:>15} {:>8}",
                format!("{} {}", peer.name, peer.version),
                peer.rates.median,
                peer.to_limit.median,
                peer.rates.median * median,
                format!("{min:.2} .. {max:.2}"),
                peer.events,
            );
        }
        for (name, reason) in &self.failed_peers {
            println!("{name:<42} no figure: {reason}");
        }
        if !self.counts.is_empty() || !self.peers.is_empty() {
            println!(
                "\n{:<13} {:<24} {:>12} {:>11} {:>11} {:>9}",
                "per event", "system", "round trips", "row writes", "log bytes", "commits"
            );
        }
        let peers = self.peers.iter().map(|peer| ("peers", peer.name.as_str(), peer.counted));
        for (bench, system, counted) in self.counts.iter().copied().chain(peers) {
            let round_trips = counted.round_trips.map_or_else(|| "-".into(), |trips| format!("{trips:.4}"));
            println!(
                "{bench:<13} {system:<24} {round_trips:>12} {:>11.3} {:>11.1} {:>9.5}",
                counted.row_writes, counted.log_bytes, counted.commits
            );
        }
        println!(
            "\n{} Ratios are medians of the ratios\nof rounds in which both ran one after the other; a \
             ? says that single rounds lie on both sides of the target.",
            self.limit
        );
    }

    pub(crate) fn write_json(&self, file: &Path) -> Result<()> {
        Ok(fs::write(file, json::text(self)?)?)
    }
}

fn row(figure: &Figure) -> String {
    let limit = figure.limit.map_or_else(String::new, |limit| format!("{limit:.0}"));
    let ratio = figure.ratios.map_or_else(String::new, |ratios| format!("{:.2}", ratios.median));
    let single = figure.ratios.or(figure.values);
    let spread = single.map_or_else(String::new, |spread| format!("{:.2} .. {:.2}", spread.min, spread.max));
    let target = figure.target.map_or_else(|| "-".into(), |target| target.to_string());
    let met = figure.target.map_or("", |target| target.verdict(figure.decisive(), single));
    let note = figure.note.as_deref().unwrap_or_default();
    // Milliseconds and the like: a figure below 10 loses too much without its digits.
    let digits = if figure.pillarbox.abs() < 10.0 { 2 } else { 0 };
    format!(
        "{:<18} {limit:>11} {:>11.digits$} {:<10} {ratio:>6} {spread:>15} {target:>7}  {met:<7}  {note}",
        figure.bench, figure.pillarbox, figure.unit
    )
}

/// The load average, which tells how much others were at work.
fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').next().unwrap_or("unknown").to_owned()
}

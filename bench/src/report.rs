//! The figures, for people and for programs.

use std::{fs, path::Path, thread::available_parallelism};

use serde::Serialize;

use crate::{
    Result,
    bed::{Bed, file_system},
    counts::Counted,
    rounds::{Rounds, Spread},
};

const BACKEND: &str = "sqlite";

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
}

/// One measured figure.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    bench: &'static str,
    unit: &'static str,
    limit: Option<f64>,
    pillarbox: f64,
    ratios: Option<Spread>,
    target: Target,
    note: Option<String>,
    of_itself: bool,
}

impl Figure {
    /// Medians of both sides; the target is for the ratio.
    pub(crate) fn of_rounds(bench: &'static str, unit: &'static str, rounds: &Rounds, target: Target) -> Self {
        let median = |values: &[f64]| Spread::of(values.iter().copied()).median;
        Self {
            bench,
            unit,
            limit: Some(median(&rounds.limit)),
            pillarbox: median(&rounds.pillarbox),
            ratios: Some(rounds.ratios()),
            target,
            note: None,
            of_itself: false,
        }
    }

    /// A value that is no ratio; the target is for the value.
    pub(crate) fn of_value(bench: &'static str, unit: &'static str, value: f64, target: Target) -> Self {
        Self { bench, unit, limit: None, pillarbox: value, ratios: None, target, note: None, of_itself: false }
    }

    /// Both sides are Pillarbox: the ratio is the figure.
    pub(crate) fn of_itself(mut self) -> Self {
        self.of_itself = true;
        self
    }

    pub(crate) fn note(mut self, note: String) -> Self {
        self.note = Some(note);
        self
    }

    fn decisive(&self) -> f64 {
        self.ratios.map_or(self.pillarbox, |ratios| ratios.median)
    }

    fn lines(&self, quick: bool) -> Vec<Line<'_>> {
        let line = |system, value, unit| Line {
            bench: self.bench,
            measure: None,
            system,
            backend: BACKEND,
            value,
            unit,
            ratio_to_limit: None,
            ratio_min: None,
            ratio_max: None,
            rounds: self.ratios.map(|ratios| ratios.count),
            note: self.note.as_deref(),
            quick,
        };
        let mut pillarbox = line("pillarbox", self.pillarbox, self.unit);
        if let Some(ratios) = self.ratios {
            pillarbox.ratio_to_limit = Some(ratios.median);
            pillarbox.ratio_min = Some(ratios.min);
            pillarbox.ratio_max = Some(ratios.max);
        }
        if self.of_itself {
            pillarbox.value = self.decisive();
            pillarbox.unit = "ratio";
            return vec![pillarbox];
        }
        let limit = self.limit.map(|value| Line { ratio_to_limit: Some(1.0), ..line("limit", value, self.unit) });
        limit.into_iter().chain([pillarbox]).collect()
    }
}

/// A line of JSON.
#[derive(Debug, Serialize)]
struct Line<'a> {
    bench: &'a str,
    /// What was counted, where it is not the bench's own figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    measure: Option<&'a str>,
    system: &'a str,
    backend: &'a str,
    value: f64,
    unit: &'a str,
    ratio_to_limit: Option<f64>,
    ratio_min: Option<f64>,
    ratio_max: Option<f64>,
    rounds: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'a str>,
    quick: bool,
}

/// Everything a run has found.
#[derive(Debug)]
pub(crate) struct Report {
    quick: bool,
    place: String,
    load_before: String,
    figures: Vec<Figure>,
    counts: Vec<(&'static str, &'static str, Counted)>,
}

impl Report {
    pub(crate) fn new(quick: bool, bed: &Bed) -> Self {
        Self {
            quick,
            place: format!("{} on {}", bed.folder().display(), file_system(bed.folder())),
            load_before: load(),
            figures: Vec::new(),
            counts: Vec::new(),
        }
    }

    /// Says what is measured now.
    #[expect(clippy::unused_self, reason = "progress belongs to the report, and needs nothing of it yet")]
    pub(crate) fn begin(&self, bench: &str) {
        eprintln!("measuring {bench} ...");
    }

    pub(crate) fn add(&mut self, figure: Figure) {
        self.figures.push(figure);
    }

    pub(crate) fn count(&mut self, bench: &'static str, system: &'static str, counted: Counted) {
        self.counts.push((bench, system, counted));
    }

    pub(crate) fn print(&self) {
        let cores = available_parallelism().map_or(0, usize::from);
        println!("\nPillarbox beside the limit: {BACKEND}, {cores} cores, {}", self.place);
        println!("load average before {}, after {}", self.load_before, load());
        if self.quick {
            println!("QUICK: small sizes and few rounds; these figures are not for quoting");
        }
        println!(
            "\n{:<13} {:>11} {:>11} {:<9} {:>6} {:>15} {:>7}  ",
            "bench", "limit", "pillarbox", "unit", "ratio", "min .. max", "target"
        );
        for figure in &self.figures {
            println!("{}", row(figure));
        }
        if !self.counts.is_empty() {
            println!(
                "\n{:<13} {:<10} {:>12} {:>11} {:>11} {:>9}",
                "per event", "system", "round trips", "row writes", "log bytes", "commits"
            );
        }
        for (bench, system, counted) in &self.counts {
            println!(
                "{bench:<13} {system:<10} {:>12.4} {:>11.3} {:>11.1} {:>9.5}",
                counted.round_trips, counted.row_writes, counted.log_bytes, counted.commits
            );
        }
        println!(
            "\nThe limit is a hand-written sqlx loop on the same table and settings. Write: begin immediate, one \
             prepared\ninsert, commit. Drain: select a page by primary key, finish exactly its rows by range in one \
             statement that is\nits own transaction. hot_latency: the p99 of the same transactions' commits. \
             Ratios are medians of the ratios\nof rounds in which both ran one after the other; a ? says that \
             single rounds lie on both sides of the target."
        );
    }

    pub(crate) fn write_json(&self, file: &Path) -> Result<()> {
        let mut text = String::new();
        for line in self.figures.iter().flat_map(|figure| figure.lines(self.quick)) {
            text += &serde_json::to_string(&line)?;
            text.push('\n');
        }
        for (bench, system, counted) in &self.counts {
            for (measure, value, unit) in [
                ("round_trips", counted.round_trips, "round trips/event"),
                ("row_writes", counted.row_writes, "rows/event"),
                ("log_bytes", counted.log_bytes, "bytes/event"),
                ("commits", counted.commits, "commits/event"),
            ] {
                let line = Line {
                    bench,
                    measure: Some(measure),
                    system,
                    backend: BACKEND,
                    value,
                    unit,
                    ratio_to_limit: None,
                    ratio_min: None,
                    ratio_max: None,
                    rounds: None,
                    note: None,
                    quick: self.quick,
                };
                text += &serde_json::to_string(&line)?;
                text.push('\n');
            }
        }
        Ok(fs::write(file, text)?)
    }
}

fn row(figure: &Figure) -> String {
    let limit = figure.limit.map_or_else(String::new, |limit| format!("{limit:.0}"));
    let (ratio, spread) = figure.ratios.map_or_else(Default::default, |ratios| {
        (format!("{:.2}", ratios.median), format!("{:.2} .. {:.2}", ratios.min, ratios.max))
    });
    let target = match figure.target {
        Target::AtLeast(least) => format!(">= {least}"),
        Target::AtMost(most) => format!("<= {most}"),
    };
    let met = figure.target.is_met(figure.decisive());
    // Rounds on both sides of the target: the median alone proves little.
    let unsure =
        figure.ratios.is_some_and(|ratios| figure.target.is_met(ratios.min) != figure.target.is_met(ratios.max));
    let met = match (met, unsure) {
        (true, false) => "ok",
        (true, true) => "ok?",
        (false, false) => "MISSED",
        (false, true) => "MISSED?",
    };
    let note = figure.note.as_deref().unwrap_or_default();
    format!(
        "{:<13} {limit:>11} {:>11.0} {:<9} {ratio:>6} {spread:>15} {target:>7}  {met:<7}  {note}",
        figure.bench, figure.pillarbox, figure.unit
    )
}

/// The load average, which tells how much others were at work.
fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').next().unwrap_or("unknown").to_owned()
}

//! Reads a story, and says what is wrong with it.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    time::Duration,
};

use super::{Line, Order, pause::Pause};

/// Everything that is known about a run.
#[derive(Clone, Debug, Default)]
pub struct Story {
    /// What is committed, by number: the application's word, not the outbox's.
    pub orders: Vec<Order>,
    /// The lines of all ledgers.
    pub lines: Vec<Line>,
    /// Events that were to be given up: their keys go on without them.
    pub dead: HashSet<String>,
    /// By how much the ends of two processes' lines may be wrong, on a busy machine.
    pub slack: Duration,
}

/// What must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Committed, and never delivered.
    Lost(Order),
    /// A writer was told that it is committed, and it is not there.
    Undone(Line),
    /// Delivered, and never committed.
    Ghost(Line),
    /// Began before an earlier event of its key had succeeded.
    OutOfOrder {
        /// The delivery.
        began: Line,
        /// What it should have waited for.
        before: Order,
    },
    /// Delivered again, and no fault explains it.
    Doubled {
        /// The delivery that succeeded.
        first: Line,
        /// The one that should not have been.
        again: Line,
    },
    /// Two deliveries of one key ran at once, and the node of the earlier one was not paused.
    TwoAtOnce {
        /// The earlier one.
        one: Line,
        /// The later one.
        other: Line,
    },
    /// An outcome took effect under an epoch that was over.
    StaleSettle {
        /// The outcome.
        settled: Line,
        /// What ended its epoch.
        took: Line,
    },
    /// A process ended by itself, or stopped with an error.
    Broke(Line),
    /// Something is left in the database that should not be.
    Unclean(String),
}

/// Why an event was delivered again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// Its node was killed.
    Killed,
    /// Its node was paused past its lease.
    Paused,
    /// Its node stopped.
    Left,
    /// The server was restarted.
    Restarted,
    /// The node's lease lapsed by itself: the machine was too busy.
    Lapsed,
    /// What its node had under way took longer than the node waits when it gives a partition up.
    Slow,
}

/// The checker's word.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What is wrong; empty if all is well.
    pub violations: Vec<Violation>,
    /// How many orders were committed.
    pub committed: usize,
    /// How many deliveries began.
    pub begun: usize,
    /// How often each word was written by whoever causes the faults, and by handlers that failed.
    pub faults: BTreeMap<&'static str, usize>,
    /// How many deliveries of what had succeeded already, by their cause.
    pub repeats: BTreeMap<Cause, usize>,
}

/// Reads the story.
pub fn check(mut story: Story) -> Report {
    // Of one process they are in order; a stable sort keeps that.
    story.lines.sort_by_key(|line| line.at);
    let mut report = Report { committed: story.orders.len(), ..Report::default() };
    for line in &story.lines {
        if let Some(word) = FAULTS.iter().find(|word| **word == line.what) {
            *report.faults.entry(word).or_default() += 1;
        }
    }
    report.begun = story.of("begin").count();
    report.violations.extend(story.of("broke").cloned().map(Violation::Broke));
    story.losses(&mut report);
    story.order(&mut report);
    story.repeats(&mut report);
    story.overlaps(&mut report);
    story.stale_settles(&mut report);
    report
}

const FAULTS: [&str; 15] = [
    "slow",
    "killed",
    "paused",
    "left",
    "restarted",
    "cut",
    "failed",
    "panicked",
    "hung",
    "dropped",
    "rolled-back",
    "lapsed",
    "refused",
    "unknown",
    "late",
];

/// How a delivery ends.
const ENDS: [&str; 4] = ["end", "failed", "panicked", "dropped"];

impl Story {
    fn of<'a>(&'a self, what: &'a str) -> impl Iterator<Item = &'a Line> {
        self.lines.iter().filter(move |line| line.what == what)
    }

    /// Delivered is what was committed, all of it and nothing else.
    fn losses(&self, report: &mut Report) {
        let ids: HashSet<&str> = self.orders.iter().map(|order| order.id.as_str()).collect();
        let delivered: HashSet<&str> = self.of("end").map(|line| line.id.as_str()).collect();
        let lost = self.orders.iter().filter(|order| !delivered.contains(order.id.as_str()));
        let lost = lost.filter(|order| !self.dead.contains(&order.id));
        report.violations.extend(lost.cloned().map(Violation::Lost));
        let ghosts = self.of("begin").filter(|line| !ids.contains(line.id.as_str()));
        report.violations.extend(ghosts.cloned().map(Violation::Ghost));
        let undone = self.of("committed").filter(|line| !ids.contains(line.id.as_str()));
        report.violations.extend(undone.cloned().map(Violation::Undone));
    }

    /// An event begins only when all before it in its key have succeeded: what comes later than that is a repeat.
    fn order(&self, report: &mut Report) {
        let mut lanes: HashMap<&str, Vec<&Order>> = HashMap::new();
        for order in self.orders.iter().filter(|order| !self.dead.contains(&order.id)) {
            if let Some(key) = &order.key {
                lanes.entry(key).or_default().push(order);
            }
        }
        // How many of a lane have succeeded, from its first on: only these and the next may begin.
        let mut come: HashMap<&str, usize> = HashMap::new();
        for line in &self.lines {
            let Some(lane) = line.key.as_deref().and_then(|key| lanes.get_key_value(key)) else { continue };
            let come = come.entry(lane.0).or_default();
            let next = lane.1.get(*come);
            match (line.what.as_str(), next) {
                ("begin", Some(next)) if next.number < line.order && !self.dead.contains(&line.id) => {
                    report.violations.push(Violation::OutOfOrder { began: line.clone(), before: Order::clone(next) });
                }
                ("end", Some(next)) if next.id == line.id => *come += 1,
                _ => {}
            }
        }
    }

    /// What succeeded is delivered again only after a fault.
    fn repeats(&self, report: &mut Report) {
        let pauses = Pause::all(&self.lines);
        let mut succeeded: HashMap<&str, &Line> = HashMap::new();
        for line in &self.lines {
            match line.what.as_str() {
                "begin" => {
                    let Some(first) = succeeded.get(line.id.as_str()) else { continue };
                    match self.cause(first, line, &pauses) {
                        Some(cause) => *report.repeats.entry(cause).or_default() += 1,
                        None => report
                            .violations
                            .push(Violation::Doubled { first: Line::clone(first), again: line.clone() }),
                    }
                }
                "end" => {
                    succeeded.insert(&line.id, line);
                }
                _ => {}
            }
        }
    }

    /// The fault between a success and its repeat. Within one epoch there is none: the owner knows what it has done. A cut
    /// connection is none either: what was on it is sent again, and the lease and its epoch are what they were.
    fn cause(&self, first: &Line, again: &Line, pauses: &[Pause<'_>]) -> Option<Cause> {
        if first.partition == again.partition && first.epoch == again.epoch {
            return None;
        }
        let is_same =
            |took: &&Line| (&took.node, took.partition, took.epoch) == (&first.node, first.partition, first.epoch);
        let took = self.of("took").find(is_same).map_or(0, |took| took.at);
        // It may have been paused before it succeeded: what ran through that is settled too late.
        let paused = pauses.iter().any(|pause| pause.repeats(first, took, again)).then_some(Cause::Paused);
        let between = self.lines.iter().filter(|line| line.at >= first.at && line.at <= again.at);
        let causes = between.filter_map(|line| {
            let of_node = line.node == first.node;
            match line.what.as_str() {
                "killed" if of_node => Some(Cause::Killed),
                "lapsed" if of_node => Some(Cause::Lapsed),
                "slow" if of_node => Some(Cause::Slow),
                "left" if of_node => Some(Cause::Left),
                "away" | "restarted" => Some(Cause::Restarted),
                _ => None,
            }
        });
        causes.chain(paused).min()
    }

    /// Deliveries of one key follow one another.
    fn overlaps(&self, report: &mut Report) {
        let pauses = Pause::all(&self.lines);
        let mut running: HashMap<&str, Vec<&Line>> = HashMap::new();
        let slack = self.slack.as_micros();
        // A lease that lapsed is no excuse: its node knows when it does, also without the database.
        let excused = |begun: &Line, other: &Line| pauses.iter().any(|pause| pause.excuses(begun, other, slack));
        for line in &self.lines {
            if matches!(line.what.as_str(), "killed" | "left") {
                running.values_mut().for_each(|lines| lines.retain(|begun| begun.node != line.node));
            }
            let Some(key) = line.key.as_deref() else { continue };
            let lane = running.entry(key).or_default();
            match line.what.as_str() {
                "begin" => {
                    for begun in lane.iter() {
                        if !excused(begun, line) && !self.ends_within(begun, line.at + slack) {
                            let (one, other) = (Line::clone(begun), line.clone());
                            report.violations.push(Violation::TwoAtOnce { one, other });
                        }
                    }
                    lane.push(line);
                }
                what if ENDS.contains(&what) => {
                    if let Some(place) = lane.iter().position(|begun| begun.node == line.node && begun.id == line.id) {
                        lane.remove(place);
                    }
                }
                _ => {}
            }
        }
    }

    fn ends_within(&self, begun: &Line, by: u128) -> bool {
        let after = self.lines.iter().filter(|line| line.node == begun.node && line.at >= begun.at && line.at <= by);
        let mut ends = after.filter(|line| match line.what.as_str() {
            "killed" | "left" => true,
            what => ENDS.contains(&what) && line.id == begun.id,
        });
        ends.next().is_some()
    }

    /// No outcome takes effect that was sent after its partition had been taken by another.
    fn stale_settles(&self, report: &mut Report) {
        let mut taken: HashMap<u8, Vec<&Line>> = HashMap::new();
        for line in self.of("took") {
            taken.entry(line.partition).or_default().push(line);
        }
        for settled in self.of("settled") {
            let begun = u128::try_from(settled.order).unwrap_or_default();
            let took = taken.get(&settled.partition).into_iter().flatten();
            let over = took.filter(|took| took.epoch > settled.epoch).find(|took| took.at < begun);
            if let Some(took) = over {
                let (settled, took) = (settled.clone(), Line::clone(took));
                report.violations.push(Violation::StaleSettle { settled, took });
            }
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = |f: &mut fmt::Formatter<'_>, title: &str, counts: &[(String, usize)]| {
            write!(f, "{title}:")?;
            if counts.is_empty() {
                write!(f, " none")?;
            }
            counts.iter().try_for_each(|(name, count)| write!(f, " {name} {count}"))?;
            writeln!(f)
        };
        writeln!(f, "committed: {}, deliveries begun: {}", self.committed, self.begun)?;
        let faults: Vec<_> = self.faults.iter().map(|(name, count)| (name.to_string(), *count)).collect();
        counts(f, "faults", &faults)?;
        let named = |(cause, count): (&Cause, &usize)| (format!("{cause:?}").to_lowercase(), *count);
        let repeats: Vec<_> = self.repeats.iter().map(named).collect();
        counts(f, "delivered again, by cause", &repeats)?;
        write!(f, "violations: {}", self.violations.len())?;
        // The first ones tell; a thousand would only hide them.
        self.violations.iter().take(20).try_for_each(|violation| write!(f, "\n  {violation:?}"))
    }
}

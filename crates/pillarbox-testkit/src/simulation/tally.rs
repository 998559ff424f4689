//! The sum of many schedules.

use std::{collections::BTreeMap, fmt};

use super::Outcome;
use crate::proof::Cause;

/// What many schedules were made of.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// How many schedules.
    pub schedules: usize,
    /// How many events were committed in them.
    pub committed: usize,
    /// How many deliveries began.
    pub begun: usize,
    /// What went wrong, by its name.
    pub faults: BTreeMap<&'static str, usize>,
    /// What was delivered again, by its cause.
    pub repeats: BTreeMap<Cause, usize>,
}

impl Tally {
    /// Adds a schedule.
    pub fn add(&mut self, outcome: &Outcome) {
        let report = &outcome.report;
        self.schedules += 1;
        self.committed += report.committed;
        self.begun += report.begun;
        for (name, count) in report.faults.iter().chain(&outcome.struck) {
            *self.faults.entry(name).or_default() += count;
        }
        for (cause, count) in &report.repeats {
            *self.repeats.entry(*cause).or_default() += count;
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { schedules, committed, begun, faults, repeats } = self;
        writeln!(f, "{schedules} schedules, {committed} events, {begun} deliveries")?;
        write!(f, "faults:")?;
        faults.iter().try_for_each(|(name, count)| write!(f, " {name} {count},"))?;
        write!(f, "\ndelivered again, by cause:")?;
        let mut counts = repeats.iter();
        counts.try_for_each(|(cause, count)| write!(f, " {} {count},", format!("{cause:?}").to_lowercase()))
    }
}

//! What is meant to happen: which events fail, which die, and what each writer writes. Pure.

use serde::{Deserialize, Serialize};

/// How often a handler is called for an event that always fails.
pub(super) const MAX_ATTEMPTS: u32 = 4;

/// What is planned for an event. Travels in its payload, where the handlers find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Fate {
    /// Delivered at the first attempt.
    Fine,
    /// Its first attempts fail, this many.
    Flaky(u32),
    /// Every attempt fails, until there are no more: dead.
    Hopeless,
    /// The first attempt fails with an error that no retry can mend: dead.
    Invalid,
}

impl Fate {
    /// How many attempts fail.
    pub(super) fn failures(self) -> u32 {
        match self {
            Self::Fine => 0,
            Self::Flaky(times) => times,
            Self::Hopeless => MAX_ATTEMPTS,
            Self::Invalid => 1,
        }
    }

    pub(super) fn is_dead(self) -> bool {
        match self {
            Self::Fine | Self::Flaky(_) => false,
            Self::Hopeless | Self::Invalid => true,
        }
    }
}

/// The plan of a run: each committed event has an index, and the index has a fate.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    events: u64,
    writers: u64,
    dead: Vec<u64>,
}

impl Plan {
    /// One event in 37 is flaky. Some die: one in a small run, a few in a large one, none where there is
    /// only one event.
    pub(super) fn new(events: u64, writers: u64) -> Self {
        let dead = if events < 2 { 0 } else { 1 + (events / 5_000).min(24) };
        Self { events, writers, dead: (1..=dead).map(|nth| nth * events / (dead + 1)).collect() }
    }

    /// How many events are to be committed.
    pub(super) fn events(&self) -> u64 {
        self.events
    }

    /// How many of them are to die.
    pub(super) fn dead(&self) -> u64 {
        self.dead.len() as u64
    }

    /// How many events a writer commits.
    pub(super) fn share(&self, writer: u64) -> u64 {
        (self.events + self.writers - 1 - writer) / self.writers
    }

    /// The fate of a writer's event, counted from 0.
    pub(super) fn fate(&self, writer: u64, nth: u64) -> Fate {
        let index = nth * self.writers + writer;
        match self.dead.binary_search(&index) {
            Ok(place) if place % 2 == 0 => Fate::Hopeless,
            Ok(_) => Fate::Invalid,
            Err(_) if index % 37 == 0 => Fate::Flaky(if index % 2 == 0 { 1 } else { 2 }),
            Err(_) => Fate::Fine,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fates(events: u64, writers: u64) -> Vec<Fate> {
        let plan = Plan::new(events, writers);
        (0..writers)
            .flat_map(|writer| (0..plan.share(writer)).map(move |nth| (writer, nth)))
            .map(|(writer, nth)| plan.fate(writer, nth))
            .collect()
    }

    #[test]
    fn every_size_has_its_events_and_exactly_the_planned_dead() {
        for events in (1..200).chain([4_999, 5_000, 20_000, 123_457]) {
            for writers in [1, 3, 4] {
                let fates = fates(events, writers);
                assert_eq!(fates.len() as u64, events);
                let dead = fates.iter().filter(|fate| fate.is_dead()).count();
                assert_eq!(dead as u64, Plan::new(events, writers).dead(), "{events} events");
            }
        }
    }

    #[test]
    fn tiny_runs_show_a_retry_and_as_soon_as_they_can_a_dead_event() {
        assert_eq!(fates(1, 4), [Fate::Flaky(1)]);
        assert_eq!(fates(2, 4), [Fate::Flaky(1), Fate::Hopeless]);
    }
}

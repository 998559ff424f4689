//! From the evidence to the figures of the summary. Pure.

use std::collections::{HashMap, HashSet};

use pillarbox::EventId;
use serde::Serialize;

use super::{check::Evidence, ledger::Attempt};

/// A run in numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Figures {
    /// Events committed, and the transactions they came in.
    pub(super) written: u64,
    pub(super) transactions: u64,
    pub(super) orders: u64,
    /// Events whose transaction was rolled back, and how many transactions that were.
    pub(super) rolled_back: u64,
    pub(super) rolled_back_transactions: u64,
    /// Different events that a handler dealt with.
    pub(super) delivered: u64,
    /// Attempts after a failed one.
    pub(super) retried: u64,
    pub(super) dead: u64,
    pub(super) dead_planned: u64,
    /// Dead events whose key waited until the operator let it go on.
    pub(super) dead_skipped: u64,
    /// Deliveries of an event that a handler had dealt with before.
    pub(super) duplicates: u64,
    /// Committed, and neither delivered nor dead.
    pub(super) waiting: u64,
    /// Events that had to wait because an earlier one of their key failed. They are not in the latency.
    pub(super) held_back: u64,
    /// Events of earlier runs in this database that were delivered now.
    pub(super) leftovers: u64,
    /// From the commit to the first call of the handler.
    pub(super) latency_ms: Latency,
    pub(super) seconds: f64,
    /// Events delivered or dead, a second.
    pub(super) per_second: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Latency {
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
}

impl Figures {
    /// `skipped` says when the operator let the key of a dead event go on.
    pub(super) fn of(evidence: &Evidence, skipped: &HashMap<EventId, u64>) -> Self {
        let calls = Calls::of(&evidence.attempts);
        let (latencies, held_back) = latencies(evidence, &calls, skipped);
        let dead = evidence.stored.iter().filter(|stored| stored.status == "DEAD").count() as u64;
        let delivered = calls.delivered.len() as u64;
        let settled = delivered + dead;
        let seconds = evidence.attempts.last().map_or(0.0, |last| nanos(last.at) / 1e9);
        Self {
            written: evidence.committed.len() as u64,
            orders: evidence.shop.orders.len() as u64,
            rolled_back: evidence.rolled_back.len() as u64,
            delivered,
            retried: calls.retried,
            dead,
            dead_planned: evidence.committed.iter().filter(|event| event.fate.is_dead()).count() as u64,
            dead_skipped: skipped.len() as u64,
            duplicates: calls.duplicates,
            waiting: (evidence.committed.len() as u64).saturating_sub(settled),
            held_back,
            latency_ms: Latency::of(latencies),
            seconds,
            per_second: if seconds > 0.0 { nanos(settled) / seconds } else { 0.0 },
            ..Self::default()
        }
    }
}

/// The ledger, event by event.
#[derive(Debug, Default)]
struct Calls {
    first: HashMap<EventId, u64>,
    last: HashMap<EventId, u64>,
    failed: HashSet<EventId>,
    delivered: HashSet<EventId>,
    retried: u64,
    duplicates: u64,
}

impl Calls {
    fn of(attempts: &[Attempt]) -> Self {
        let mut calls = Self::default();
        for Attempt { id, ok, at, .. } in attempts {
            calls.first.entry(*id).or_insert(*at);
            calls.last.insert(*id, *at);
            if calls.delivered.contains(id) {
                calls.duplicates += 1;
            } else {
                calls.retried += u64::from(calls.failed.contains(id));
                if *ok {
                    calls.delivered.insert(*id);
                } else {
                    calls.failed.insert(*id);
                }
            }
        }
        calls
    }
}

/// The latency of each event that nothing held back, and how many were held back.
fn latencies(evidence: &Evidence, calls: &Calls, skipped: &HashMap<EventId, u64>) -> (Vec<u64>, u64) {
    let mut events: Vec<_> = evidence.committed.iter().collect();
    events.sort_unstable_by_key(|event| event.place.map(|place| (place.customer, place.nth)));
    let mut latencies = Vec::with_capacity(events.len());
    let mut held_back = 0;
    let mut lane = None;
    let mut blocked_until = 0;
    for event in events {
        let customer = event.place.map(|place| place.customer);
        if customer != lane || customer.is_none() {
            (lane, blocked_until) = (customer, 0);
        }
        if event.at < blocked_until {
            held_back += 1;
        } else if let Some(first) = calls.first.get(&event.id) {
            // A handler may be faster than the writer's return from its commit.
            latencies.push(first.saturating_sub(event.at));
        }
        if calls.failed.contains(&event.id) {
            let end = skipped.get(&event.id).or_else(|| calls.last.get(&event.id));
            blocked_until = blocked_until.max(end.copied().unwrap_or(u64::MAX));
        }
    }
    (latencies, held_back)
}

impl Latency {
    fn of(mut nanoseconds: Vec<u64>) -> Self {
        nanoseconds.sort_unstable();
        let at = |percent: usize| {
            let last = nanoseconds.len().saturating_sub(1);
            let place = (nanoseconds.len() * percent).div_ceil(100).saturating_sub(1).min(last);
            nanoseconds.get(place).map_or(0.0, |value| nanos(*value) / 1e6)
        };
        Self { p50: at(50), p99: at(99), max: at(100) }
    }
}

#[expect(clippy::cast_precision_loss, reason = "2^53 nanoseconds are 104 days")]
fn nanos(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::{
        check::Committed,
        ledger::{Place, Step, What},
        plan::Fate,
    };

    #[test]
    fn percentiles_are_taken_from_the_values_themselves() {
        let latency = Latency::of((1..=100).map(|ms| ms * 1_000_000).collect());
        assert_eq!(latency, Latency { p50: 50.0, p99: 99.0, max: 100.0 });
        assert_eq!(Latency::of(vec![]), Latency::default());
        assert!((Latency::of(vec![3_000_000]).p99 - 3.0).abs() < 1e-9);
    }

    #[test]
    fn what_waits_behind_a_failure_of_its_key_is_counted_apart() {
        let mut run = Evidence::default();
        let mut call = |customer, nth, committed, calls: &[(u64, bool)]| {
            let id = pillarbox::new_id();
            let what = What::Order(nth, Step::Placed);
            let place = Some(Place { customer, nth });
            let fate = Fate::Fine;
            run.committed.push(Committed { id, what, place, fate, at: committed });
            run.attempts.extend(calls.iter().map(|(at, ok)| Attempt { id, what, place, ok: *ok, at: *at }));
        };
        call(1, 1, 10, &[(11, false), (50, true)]);
        call(1, 2, 20, &[(51, true)]);
        call(1, 3, 60, &[(62, true)]);
        call(2, 1, 20, &[(23, true)]);
        let figures = Figures::of(&run, &HashMap::new());
        assert_eq!((figures.held_back, figures.retried, figures.delivered, figures.duplicates), (1, 1, 4, 0));
        assert!((figures.latency_ms.max - 3e-6).abs() < 1e-12, "{figures:?}");
    }
}

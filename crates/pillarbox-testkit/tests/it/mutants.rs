//! The checker can fail: with one safety taken out of the store, some schedule shows it, as the right fault; with it,
//! the same schedules show nothing.

use std::time::Duration;

use pillarbox_testkit::{
    MemoryStore,
    proof::{Layer, Violation},
    simulation::{
        Sound, Weather,
        mutants::{NoDeadline, NoEpoch, NoLane, NoReservation, OldSnapshot, Sweep, UnlockedFence},
        run_with,
    },
};

/// How many schedules a mutant may survive.
const SEEDS: u64 = 500;

/// Searches for a schedule in which the checker says this, and nothing else.
fn is_caught<L: Layer<MemoryStore>>(weather: Weather, mutant: impl Fn() -> L, says: impl Fn(&Violation) -> bool) {
    let caught = |seed: &u64| {
        let violations = run_with(*seed, Some(weather), &mutant).report.violations;
        !violations.is_empty() && violations.iter().all(&says)
    };
    let seed = (0..SEEDS).find(caught).unwrap_or_else(|| panic!("{SEEDS} schedules, and the mutant is alive"));
    println!("caught by seed {seed}");
    for seed in 0..=seed {
        let outcome = run_with(seed, Some(weather), || Sound);
        assert!(outcome.report.violations.is_empty(), "without the mutant: {outcome}");
    }
}

/// Nodes come and go, and settles are slow.
fn rough() -> Weather {
    Weather {
        delay: 0.2,
        longest_delay: Duration::from_millis(900),
        slow_settle: 0.4,
        crash: 0.2,
        pause: 0.2,
        stop: 0.4,
        ..Weather::calm()
    }
}

/// Nodes are shut down before their settles are through, and take long to leave.
fn hasty() -> Weather {
    Weather {
        lasts: Some(Duration::from_secs(6)),
        delay: 0.08,
        longest_delay: Duration::from_millis(600),
        slow_settle: 0.8,
        stop: 0.4,
        slow_leave: 1.0,
        ..Weather::calm()
    }
}

/// Calls are late and handlers hang, and nobody is killed, stopped or paused.
fn slow() -> Weather {
    Weather {
        lasts: Some(Duration::from_secs(6)),
        delay: 0.2,
        longest_delay: Duration::from_millis(900),
        bad_handler: 0.8,
        ..Weather::calm()
    }
}

/// Nothing is wrong but that handlers fail and transactions stay open.
fn calm() -> Weather {
    Weather { long_transaction: 0.5, ..Weather::calm() }
}

#[test]
fn without_the_lock_of_the_fence_an_outcome_takes_effect_after_the_takeover() {
    is_caught(rough(), || UnlockedFence, |violation| matches!(violation, Violation::StaleSettle { .. }));
}

#[test]
fn without_the_epoch_an_outcome_takes_effect_after_the_partition_was_given_away() {
    is_caught(hasty(), || NoEpoch, |violation| matches!(violation, Violation::StaleSettle { .. }));
}

#[test]
fn without_its_deadline_a_healthy_node_delivers_beside_the_next_owner() {
    is_caught(slow(), || NoDeadline, |violation| matches!(violation, Violation::TwoAtOnce { .. }));
}

#[test]
fn without_the_lane_an_event_overtakes_the_one_before_it() {
    is_caught(calm(), || NoLane, |violation| matches!(violation, Violation::OutOfOrder { .. }));
}

#[test]
fn without_the_single_snapshot_a_late_commit_is_overtaken() {
    is_caught(calm(), Sweep::new, |violation| matches!(violation, Violation::OutOfOrder { .. }));
}

#[test]
fn without_tombstones_that_hold_what_was_settled_is_delivered_again() {
    is_caught(calm(), OldSnapshot::default, |violation| matches!(violation, Violation::Doubled { .. }));
}

#[test]
fn without_the_reservation_an_event_is_delivered_by_two_ways() {
    is_caught(calm(), || NoReservation, |violation| matches!(violation, Violation::Doubled { .. }));
}

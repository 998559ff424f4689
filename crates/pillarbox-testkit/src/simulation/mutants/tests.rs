//! What the tests of mutants from outside can't see.

use std::time::Duration;

use super::{NoDeadline, UnlockedFence};
use crate::{
    proof::Violation,
    simulation::{Outcome, Sound, Weather, run_with},
};

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

fn rough() -> Weather {
    Weather { slow_settle: 0.4, crash: 0.2, pause: 0.2, stop: 0.4, ..Weather::calm() }
}

#[test]
fn without_its_deadline_a_healthy_node_delivers_beside_the_next_owner() {
    let is_caught = |seed: &u64| {
        let violations = run_with(*seed, Some(slow()), |_| NoDeadline).report.violations;
        !violations.is_empty() && violations.iter().all(|one| matches!(one, Violation::TwoAtOnce { .. }))
    };
    let seed = (0..500).find(is_caught).expect("the mutant is alive");
    println!("caught by seed {seed}");
    for seed in 0..=seed {
        let outcome = run_with(seed, Some(slow()), |_| Sound);
        assert!(outcome.report.violations.is_empty(), "without the mutant: {outcome}");
    }
}

/// The mutant adds no line of its own: it is judged by what the store says of a sound one, too.
#[test]
fn outcomes_are_stamped_when_they_take_effect_by_the_store_of_sound_and_mutant_alike() {
    let settled = |outcome: &Outcome| {
        let settled: Vec<_> = outcome.lines.iter().filter(|line| line.what == "settled").cloned().collect();
        assert!(!settled.is_empty(), "{outcome}");
        for line in &settled {
            assert_eq!(u128::try_from(line.order).unwrap() + 1, line.at, "{line} was not written at once");
        }
    };
    for seed in 0..10 {
        settled(&run_with(seed, Some(rough()), |_| Sound));
        settled(&run_with(seed, Some(rough()), |_| UnlockedFence));
    }
}

//! What the tests of mutants from outside can't see.

use super::UnlockedFence;
use crate::simulation::{Outcome, Sound, Weather, run_with};

fn rough() -> Weather {
    Weather { slow_settle: 0.4, crash: 0.2, pause: 0.2, stop: 0.4, ..Weather::calm() }
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
        settled(&run_with(seed, Some(rough()), || Sound));
        settled(&run_with(seed, Some(rough()), || UnlockedFence));
    }
}

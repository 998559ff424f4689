//! The simulation: the engine on the store in memory, in virtual time, with everything that happens drawn from a seed.
//!
//! A **schedule** is one seed: two to four nodes on one database, each with its own settings, its writers and its
//! handlers. Transactions stay open, so that lower numbers commit after higher ones, or are rolled back. Handlers fail,
//! panic and hang. Calls to the store fail, are late, or take effect and lose their answer; a settle that is on its
//! way arrives, also when its node has given up. Nodes crash, stand still past their lease, are shut down, and are
//! started again under new names. All of them write into one ledger. At the end nothing goes wrong any more, a healthy
//! node delivers the rest, and the checker of [`proof`](crate::proof) reads the ledger.
//!
//! ```
//! let outcome = pillarbox_testkit::simulation::run(7);
//! assert!(outcome.report.violations.is_empty(), "{outcome}");
//! ```

mod handler;
mod ledger;
mod life;
pub mod mutants;
mod node;
mod schedule;
mod tally;
mod weather;
mod wire;
mod writer;

use std::{collections::BTreeMap, fmt, time::Duration};

use crate::{
    MemoryStore,
    proof::{Layer, Line, Report},
};
use schedule::Schedule;

pub use ledger::{Ledger, Pen};
pub use tally::Tally;
pub use weather::Weather;

/// What became of a schedule.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Its seed.
    pub seed: u64,
    /// Everything that was written down.
    pub lines: Vec<Line>,
    /// The checker's word.
    pub report: Report,
    /// What went wrong, and how often.
    pub struck: BTreeMap<&'static str, usize>,
}

/// A store that is as it should be.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sound;

impl Layer<MemoryStore> for Sound {}

/// No schedule takes longer, in virtual time.
const LONGEST: Duration = Duration::from_mins(3);

/// Runs the schedule of a seed.
pub fn run(seed: u64) -> Outcome {
    run_with(seed, None, || Sound)
}

/// Runs the schedule of a seed in a weather (or that of the seed), on stores that each have a layer in front of them.
pub fn run_with<L: Layer<MemoryStore>>(seed: u64, weather: Option<Weather>, layer: impl Fn() -> L) -> Outcome {
    // The engine draws from the thread's generator, too: what is random is so by the seed alone.
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime without I/O needs nothing that could be missing");
    let outcome = runtime.block_on(async move {
        ledger::reset_clock();
        let drawn = Weather::drawn();
        let play = Schedule::new(weather.unwrap_or(drawn), layer).play(seed);
        tokio::time::timeout(LONGEST, play).await.unwrap_or_else(|_| panic!("the schedule of seed {seed} does not end"))
    });
    drop(runtime);
    outcome
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, lines, report, struck } = self;
        writeln!(f, "seed {seed}: run it again with PILLARBOX_SIM_SEED={seed}")?;
        writeln!(f, "{report}\nstruck: {struck:?}")?;
        lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

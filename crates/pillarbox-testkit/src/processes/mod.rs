//! Several processes on one database, and what is left when one of them is killed, paused or cut off.
//!
//! The processes are real: a test binary starts itself again (see [`Task`]). What was committed is read from a
//! table of the application's own, what was delivered from a ledger, a file that the handlers append to; the
//! outbox's tables are never asked about either.
//!
//! A store's crate implements [`Site`] and runs all cases in one line, at the root of a test binary:
//!
//! ```ignore
//! pillarbox_testkit::processes!(MySite);
//! ```
//!
//! A case is a public function, generic over the site. Those in [`server`], [`clock`], [`wire`] and [`late`] want
//! a [`Served`] site: a database behind a server, which can be reached through a [`Proxy`](crate::servers::Proxy).

#![expect(clippy::unwrap_used, reason = "a case fails by a panic, in its steps as well")]

mod child;
pub mod kill;
mod ledger;
pub mod pause;
pub mod poison;
mod process;
pub mod share;
mod site;
mod stage;

pub use child::Task;
pub use ledger::{Ledger, Line, Pen, now};
pub use process::Process;
pub use site::{Application, Failure, Order, Site};
pub use stage::{Stage, wait};

/// What the test `child` of every binary does: nothing, unless the binary was started with a task.
pub fn child<A: Application>() {
    child::run::<A>();
}

/// Makes a test of every case, for a type that implements [`Site`], and the test `child` that the processes are.
/// It stands at the root of a test binary.
#[macro_export]
macro_rules! processes {
    ($site:ty) => {
        #[test]
        fn child() {
            $crate::processes::child::<<$site as $crate::processes::Site>::App>();
        }

        $crate::processes!(@group $site, kill:
            nodes_killed_again_and_again_lose_nothing_and_the_survivor_takes_over,
            a_single_node_started_again_after_a_kill_delivers_within_seconds,
            a_killed_writers_event_is_delivered_if_and_only_if_it_was_committed,
        );
        $crate::processes!(@group $site, pause:
            a_node_that_wakes_after_its_lease_settles_nothing_and_starts_nothing_old,
        );
        $crate::processes!(@group $site, poison:
            a_poison_event_without_a_key_dies_alone_on_the_cold_path,
            a_poison_event_with_a_key_dies_alone_and_holds_its_key,
            poison_events_on_the_hot_and_the_cold_path_die_without_their_neighbours,
        );
        $crate::processes!(@group $site, share:
            three_single_nodes_on_one_database_deliver_each_event_once_and_in_order,
            eight_processes_migrate_one_database_once,
        );
    };
    (@group $site:ty, $group:ident: $($case:ident),+ $(,)?) => {
        mod $group {
            #[allow(unused_imports, reason = "the site may be named by a full path")]
            use super::*;

            $(
                #[test]
                fn $case() {
                    $crate::processes::$group::$case::<$site>();
                }
            )+
        }
    };
}

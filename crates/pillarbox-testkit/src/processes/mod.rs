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
//! A case is a public function, generic over the site. `processes!(@served MySite)` adds those that want a
//! [`Served`] site, a database behind a server; `processes!(@private MySite)` those for a [`Private`] one, whose
//! server is restarted; `processes!(@stormy MySite)` the [`chaos`] run. `processes!(@telling newest: MyOtherSite)` runs
//! in a module of this name those cases that tell most about a server, where another one has had them all.

#![expect(clippy::unwrap_used, reason = "a case fails by a panic, in its steps as well")]

pub mod chaos;
mod child;
pub mod clock;
pub mod crowd;
pub mod kill;
pub mod late;
mod ledger;
pub mod pause;
pub mod poison;
mod process;
pub mod server;
pub mod share;
mod site;
mod stage;
pub mod wake;
pub mod wire;

pub use child::Task;
pub use ledger::{Ledger, Pen, now};
pub use process::Process;
pub use site::{Application, Failure, Held, Private, Restart, Served, Site};
pub use stage::{Stage, wait};

pub use crate::proof::{Line, Order};

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
            a_writer_killed_between_a_dedup_key_and_its_event_leaves_neither,
        );
        $crate::processes!(@group $site, pause:
            a_node_that_wakes_after_its_lease_settles_nothing_and_starts_nothing_old,
        );
        $crate::processes!(@group $site, crowd:
            a_million_waiting_events_of_a_key_starve_nobody_and_fill_no_memory,
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
    (@served $site:ty) => {
        mod served {
            #[allow(unused_imports, reason = "the site may be named by a full path")]
            use super::*;

            $crate::processes!(@group $site, server:
                connections_ended_at_random_lose_no_event_and_use_up_no_attempt,
            );
            $crate::processes!(@group $site, clock:
                nodes_an_hour_ahead_and_behind_neither_steal_nor_stall,
            );
            $crate::processes!(@group $site, wire:
                a_commit_of_unknown_outcome_is_delivered_if_and_only_if_it_was_committed,
                a_node_that_loses_commits_and_their_answers_loses_no_event_and_counts_no_attempt,
                a_connection_lost_between_handler_and_settle_counts_no_failure,
            );
            $crate::processes!(@group $site, late:
                writers_that_commit_late_are_delivered_in_the_order_of_their_keys,
                transactions_held_open_elsewhere_neither_stop_nor_slow_delivery,
            );
            $crate::processes!(@group $site, pause:
                a_node_paused_in_the_middle_of_a_settle_takes_no_other_node_along,
            );
            $crate::processes!(@group $site, wake:
                a_commit_in_another_process_wakes_the_reader,
            );
        }
    };
    (@telling $module:ident: $site:ty) => {
        mod $module {
            #[allow(unused_imports, reason = "the site may be named by a full path")]
            use super::*;

            $crate::processes!(@group $site, kill:
                nodes_killed_again_and_again_lose_nothing_and_the_survivor_takes_over,
                a_killed_writers_event_is_delivered_if_and_only_if_it_was_committed,
            );
            $crate::processes!(@group $site, pause:
                a_node_that_wakes_after_its_lease_settles_nothing_and_starts_nothing_old,
            );
            $crate::processes!(@group $site, late:
                writers_that_commit_late_are_delivered_in_the_order_of_their_keys,
            );
            $crate::processes!(@group $site, wire:
                a_commit_of_unknown_outcome_is_delivered_if_and_only_if_it_was_committed,
            );
        }
    };
    (@private $site:ty) => {
        mod private {
            #[allow(unused_imports, reason = "the site may be named by a full path")]
            use super::*;

            $crate::processes!(@group $site, server:
                a_server_that_restarts_or_is_killed_loses_no_event_and_uses_up_no_attempt,
            );
        }
    };
    (@stormy $site:ty) => {
        mod storm {
            #[allow(unused_imports, reason = "the site may be named by a full path")]
            use super::*;

            $crate::processes!(@group $site, chaos:
                processes_in_a_storm_lose_nothing_and_keep_each_keys_order,
            );
        }
    };
    (@group $site:ty, $group:ident: $($case:ident),+ $(,)?) => {
        mod $group {
            #[allow(unused_imports, reason = "the site may be named by a full path")]
            use super::*;

            $(
                #[test]
                fn $case() {
                    match <$site as $crate::processes::Site>::missing() {
                        Some(missing) => eprintln!("left out: {missing}"),
                        None => $crate::processes::$group::$case::<$site>(),
                    }
                }
            )+
        }
    };
}

//! The exam that every store passes.
//!
//! A backend implements [`Backend`] and runs all cases in one line, each as a test of its own:
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use pillarbox_core::domain::Seq;
//! use pillarbox_testkit::{ManualClock, MemoryConnection, MemoryStore, conformance::{Backend, Executed}};
//!
//! struct Memory(MemoryStore, Arc<ManualClock>);
//!
//! impl Backend for Memory {
//!     type Store = MemoryStore;
//!
//!     async fn fresh() -> Self {
//!         let clock = Arc::new(ManualClock::new());
//!         Self(MemoryStore::with_clock(clock.clone()), clock)
//!     }
//!     fn store(&self) -> &MemoryStore {
//!         &self.0
//!     }
//!     async fn second_handle(&self) -> MemoryStore {
//!         self.0.another_process()
//!     }
//!     async fn break_row(&self, seq: Seq) {
//!         assert!(self.0.break_row(seq));
//!     }
//!     async fn pass(&self, span: Duration) {
//!         self.1.advance(span);
//!     }
//!     async fn add_work(connection: &mut MemoryConnection, value: String) -> Executed {
//!         connection.put("work", value);
//!         Ok(())
//!     }
//!     async fn work(&self) -> Vec<String> {
//!         let mut work = self.0.table("work");
//!         work.sort();
//!         work
//!     }
//! }
//!
//! pillarbox_testkit::conformance!(Memory);
//! # fn main() {}
//! ```
//!
//! Each case asserts sentences of the ports' contracts, on a fresh database. A case is a public function, so
//! that one can be run alone; its doc names the rows of the acceptance list that it proves.

pub mod action;
pub mod admin;
pub mod batch;
pub mod deliver;
pub mod fence;
pub mod find;
pub mod handlers;
pub mod hold;
pub mod in_tx;
pub mod nodes;
pub mod order;
pub mod own;
pub mod page;
pub mod race;
mod scene;
pub mod settle;
mod stage;
pub mod upkeep;
pub mod write;

use std::{future::Future, time::Duration};

use pillarbox_core::{
    domain::Seq,
    port::{SettleStore, Store, TransactStore},
};

/// What a statement of a handler's own gives.
pub type Executed = Result<(), pillarbox_core::HandlerError>;

/// A database under examination.
pub trait Backend: Sized + Send + Sync + 'static {
    /// The store.
    type Store: Store + SettleStore;

    /// Whether two transactions may write events at the same time, so that a lower number can commit after a
    /// higher one. If not, the cases about late commits have nothing to ask.
    const OVERLAPPING_WRITERS: bool = true;

    /// Why the database can't be had on this machine; the cases then say so and do nothing. Only for databases whose
    /// tests are extra.
    fn missing() -> Option<String> {
        None
    }

    /// An empty, migrated database of its own: cases run side by side.
    fn fresh() -> impl Future<Output = Self> + Send;

    /// The store.
    fn store(&self) -> &Self::Store;

    /// Another store on the same database, as another process would have it: with connections of its own.
    fn second_handle(&self) -> impl Future<Output = Self::Store> + Send;

    /// Damages a row so that it can't be decoded as an event; its number, partition and key stay.
    fn break_row(&self, seq: Seq) -> impl Future<Output = ()> + Send;

    /// Lets this much time pass for the database: moves its clock on, or moves every stored time (due times,
    /// inserts, ends, leases) back by as much, or really waits. Cases ask for some seconds.
    fn pass(&self, span: Duration) -> impl Future<Output = ()> + Send;

    /// Adds a value to a table of the application's, `work`, which is there and empty in a fresh database: what a
    /// transactional handler does.
    fn add_work(
        connection: &mut <Self::Store as TransactStore>::Connection,
        value: String,
    ) -> impl Future<Output = Executed> + Send;

    /// What the table has, sorted.
    fn work(&self) -> impl Future<Output = Vec<String>> + Send;
}

/// Runs a case to its end; what the tests that [`conformance!`](crate::conformance!) makes are made of.
pub fn run(case: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(case);
}

/// Makes a test of every case, for a type that implements [`Backend`](trait@crate::conformance::Backend).
///
/// A new case is a `pub async fn sentence<B: Backend>()` in a file of this module, and a line in the list here.
#[macro_export]
macro_rules! conformance {
    ($backend:ty) => {
        $crate::conformance!(@store $backend);
        $crate::conformance!(@engine $backend);
    };
    (@store $backend:ty) => {
        $crate::conformance!(@group $backend, write:
            an_event_is_seen_by_others_once_its_transaction_has_committed,
            a_rolled_back_transaction_leaves_no_row,
            the_numbers_of_a_batch_rise_in_the_order_of_its_rows,
            numbers_rise_within_a_transaction_and_from_one_to_the_next,
            an_empty_batch_touches_nothing,
            every_field_comes_back_as_it_was_written,
            payloads_come_back_byte_for_byte,
            the_largest_event_passes,
            hostile_text_is_kept_as_text,
            a_delayed_event_is_read_once_it_is_due,
            an_event_due_exactly_now_is_due,
            an_event_may_be_delayed_beyond_all_times,
            a_dedup_key_stands_for_its_window,
            a_rollback_frees_the_dedup_keys_it_had_entered,
            of_racing_writers_of_a_dedup_key_one_enters_it,
        );
        $crate::conformance!(@group $backend, page:
            an_empty_outbox_gives_an_empty_page,
            pages_give_every_row_once_in_sequence_order,
            a_page_that_ends_at_its_limit_says_that_there_is_more,
            only_the_partitions_asked_for_are_read,
            refused_rows_neither_fill_a_page_nor_stop_it,
            the_owner_is_asked_about_each_row_in_order_with_its_partition_and_key,
            a_page_has_only_new_rows_without_a_due_time,
            rows_above_a_lowered_position_are_read_again,
            the_position_moves_past_what_was_read_and_settled,
            recent_rows_are_skipped_and_found_later,
            a_late_commit_of_a_lower_number_is_read,
            the_order_of_a_key_survives_a_late_commit,
            a_broken_row_is_told_and_its_neighbours_come_through,
        );
        $crate::conformance!(@group $backend, find:
            due_rows_come_by_their_due_time,
            due_takes_what_is_picked_up_to_its_limit,
            due_reads_only_the_partitions_asked_for,
            a_failed_row_is_due_again_after_its_delay,
            a_lane_has_the_pending_due_rows_of_one_key_from_a_number_on,
            rows_by_number_are_those_that_are_pending_and_due,
            thousands_of_rows_are_read_by_number,
            a_row_comes_back_with_its_attempts_and_progress,
            recall_names_the_failing_heads_of_keys,
            recall_tells_only_of_the_partitions_that_were_taken,
            suspects_are_the_oldest_and_the_newest_pending_rows,
            among_the_oldest_suspects_a_key_counts_with_its_head_alone,
            due_tells_which_keys_an_operator_has_freed,
        );
        $crate::conformance!(@group $backend, settle:
            done_keeps_the_row_and_delete_removes_it,
            a_failure_is_kept_with_its_attempts_and_error,
            a_deferral_keeps_the_former_error_and_progress,
            a_dead_row_keeps_its_attempts_and_error,
            the_longest_error_is_kept,
            an_interrupted_delivery_leaves_its_row_as_it_was,
            starts_are_counted_and_cleared_by_every_outcome,
            a_late_outcome_changes_nothing_that_is_finished,
            the_same_batch_twice_is_harmless,
            an_empty_batch_is_applied,
            a_large_mixed_batch_is_settled_in_one_go,
            outcomes_of_an_old_epoch_are_left_out_and_counted,
        );
        $crate::conformance!(@group $backend, fence:
            nothing_is_written_once_the_lease_has_lapsed,
            nothing_is_written_once_the_node_was_expelled,
            nothing_is_written_by_a_former_life_of_the_node,
        );
        $crate::conformance!(@group $backend, hold:
            a_dead_head_holds_its_key_if_it_shall,
            a_hold_is_entered_replaced_and_cleared,
            changes_to_holds_are_applied_in_order,
            an_overflow_never_replaces_a_dead_head,
            a_dead_head_replaces_an_overflow,
            a_clear_in_the_same_batch_undoes_the_hold_of_a_dead_head,
            a_replayed_head_holds_its_key_until_the_owner_clears_it,
            the_next_head_that_dies_takes_the_hold_over,
            keys_that_look_alike_are_held_apart,
        );
        $crate::conformance!(@group $backend, own:
            a_renewal_shows_every_node_and_owner,
            a_renewal_extends_the_lease,
            what_a_node_publishes_is_seen_by_others,
            a_lapsed_lease_is_not_revived_and_its_node_can_do_nothing,
            only_lapsed_nodes_are_expelled,
            the_partitions_of_an_expelled_node_are_taken_with_a_raised_epoch_and_suspects,
            a_partition_taken_late_does_not_inherit_the_mark_of_its_dead_owner,
            a_released_partition_is_free_at_once_with_its_mark_and_suspects,
            a_node_that_leaves_hands_over_without_suspects,
            a_node_of_the_same_name_replaces_the_former,
            a_later_life_has_a_higher_incarnation,
            every_take_raises_the_epoch,
            nodes_that_take_at_once_get_disjoint_partitions,
            a_node_is_expelled_by_one_of_those_that_try,
        );
        $crate::conformance!(@group $backend, upkeep:
            migrating_twice_and_at_once_is_harmless,
            a_purge_removes_what_was_finished_long_enough_ago,
            a_purge_goes_in_batches_to_its_end,
            a_dead_head_that_holds_its_key_is_not_purged,
            a_purge_by_age_removes_rows_of_every_status,
            a_purge_needs_the_lease_it_names,
            hints_are_taken_and_a_wait_for_news_can_be_dropped,
            a_change_among_the_nodes_is_news_to_the_others,
        );
        $crate::conformance!(@group $backend, admin:
            events_are_found_by_every_field,
            events_are_found_by_the_time_of_their_insert,
            events_are_found_by_text_in_payload_or_error,
            a_listing_goes_on_where_the_last_page_ended,
            a_replayed_event_is_due_now_as_if_new,
            only_dead_events_can_be_acted_upon,
            of_two_concurrent_replays_one_gets_each_event,
            a_discarded_event_is_gone_and_frees_its_key,
            a_skipped_event_stays_dead_and_frees_its_key,
            the_outbox_in_numbers,
            the_nodes_and_what_they_own,
        );
        $crate::conformance!(@group $backend, action:
            a_dead_events_payload_is_replaced_and_the_old_one_kept,
            an_edit_may_turn_text_into_bytes_and_back,
            only_a_dead_event_can_be_edited,
            actions_are_listed_newest_first_and_by_event_and_actor,
            old_actions_are_purged_in_batches,
            a_listing_can_begin_with_the_newest,
        );
        $crate::conformance!(@group $backend, race:
            every_event_of_racing_writers_is_read_once_and_in_order_per_key,
            a_settle_is_through_before_its_node_is_replaced_or_writes_nothing,
        );
    };
    (@engine $backend:ty) => {
        $crate::conformance!(@group $backend, deliver:
            what_is_committed_is_delivered_and_what_is_rolled_back_is_not,
            a_receipt_that_is_forgotten_costs_latency_only,
            a_failing_event_is_tried_again_until_it_succeeds_or_is_dead,
            a_deferral_counts_no_attempt_and_a_failure_with_a_delay_does,
            panics_and_hanging_handlers_are_failures_and_the_workers_live_on,
            a_handlers_own_policy_goes_first,
            an_event_without_a_route_is_dead_at_once,
            a_delayed_event_is_delivered_when_due_and_holds_back_nothing,
            a_retry_does_not_wait_for_the_next_poll,
            hot_and_cold_delivery_hand_out_the_same_bytes,
            a_broken_row_is_dead_and_its_neighbours_are_delivered,
            delete_on_success_leaves_no_row,
            the_purge_removes_finished_rows_on_schedule,
            a_purge_by_age_needs_no_delivery,
            dead_events_are_replayed_and_discarded,
            a_replay_survives_a_restart_and_is_delivered_once,
            a_shutdown_drops_what_hangs_and_counts_no_attempt,
            a_shutdown_lets_running_handlers_finish,
            a_backlog_is_read_page_after_page,
            an_ordered_outbox_wants_keys,
            each_of_many_events_is_delivered_exactly_once,
            a_second_event_with_a_dedup_key_is_told_apart_and_not_delivered,
        );
        $crate::conformance!(@group $backend, handlers:
            a_typed_handler_is_given_its_event_and_all_that_is_known_of_it,
            handlers_of_the_type_run_first_and_each_as_registered,
            a_retry_runs_only_the_handlers_that_have_not_succeeded,
            a_replay_runs_only_the_handlers_that_have_not_succeeded,
            a_fallback_runs_once_and_its_success_is_the_end,
            a_fallback_that_fails_leaves_the_event_dead_with_both_errors,
            a_payload_that_can_not_be_read_is_dead_and_blocks_nobody,
            an_older_schema_is_read_as_the_newer_type,
            a_raw_handler_has_a_fallback_and_an_id_of_its_own,
            a_destination_that_is_down_uses_up_no_attempts,
        );
        $crate::conformance!(@group $backend, batch:
            a_batch_is_answered_for_event_by_event,
            a_batch_never_has_two_events_of_a_key,
            a_panic_a_timeout_or_a_wrong_number_of_answers_fails_the_whole_batch,
            a_payload_that_can_not_be_read_never_comes_to_a_batch,
            a_batchs_destination_that_is_down_uses_up_no_attempts,
        );
        $crate::conformance!(@group $backend, in_tx:
            the_work_of_a_transactional_handler_commits_with_the_outcome,
            a_failed_transactional_handler_undoes_its_own_work_alone,
            a_transactional_handlers_destination_that_is_down_uses_up_no_attempts,
            a_panic_or_a_timeout_voids_the_transaction_and_counts_for_the_culprit_alone,
            the_work_of_a_fenced_node_leaves_no_trace,
            a_commit_of_unknown_outcome_is_repeated_only_if_it_has_no_effect,
            the_effect_is_there_once_wherever_the_process_dies,
            events_of_the_work_are_delivered_if_it_commits,
            a_transaction_takes_on_no_more_after_a_quarter_of_a_second,
            transactional_handlers_keep_the_order_of_each_key,
            a_replayed_head_frees_its_key_with_its_work,
            a_transactional_handler_may_defer_or_fail_for_good,
        );
        $crate::conformance!(@group $backend, order:
            keys_run_side_by_side_and_each_in_order,
            a_failed_event_holds_back_its_key_alone,
            later_events_go_on_where_failures_do_not_stop_them,
            a_dead_head_holds_its_key_until_it_is_replayed,
            skipping_or_discarding_a_dead_head_frees_its_key,
            a_key_goes_on_past_its_dead_head_if_so_set,
            a_held_key_goes_on_with_a_node_that_waits_for_no_dead_head,
            a_failing_head_holds_its_key_over_a_restart,
            a_key_with_a_long_queue_starves_nobody_and_keeps_its_order,
        );
        $crate::conformance!(@group $backend, nodes:
            two_nodes_share_the_partitions_and_deliver_each_event_once,
            a_single_node_started_twice_neither_loses_nor_doubles,
            a_clean_stop_hands_over_at_once,
            a_clean_stop_hands_over_what_has_settled_while_a_handler_still_runs,
            a_rebalancing_hands_over_each_partition_when_it_has_settled,
            a_handler_that_outlasts_the_graceful_time_does_not_keep_its_partition,
            a_handler_that_blocks_does_not_starve_the_renewal,
            the_events_of_a_dead_node_are_delivered_when_its_lease_has_lapsed,
            a_node_whose_clock_is_an_hour_off_neither_steals_nor_stalls,
            a_node_that_lost_its_lease_settles_nothing,
            an_event_whose_route_only_another_node_has_is_deferred,
            an_event_that_kills_its_process_is_dead_and_its_neighbours_are_not,
        );
    };
    (@group $backend:ty, $group:ident: $($case:ident),+ $(,)?) => {
        mod $group {
            #[allow(unused_imports, reason = "the backend may be named by a full path")]
            use super::*;

            $(
                #[test]
                fn $case() {
                    if let Some(why) = <$backend as $crate::conformance::Backend>::missing() {
                        eprintln!("left out: {why}");
                        return;
                    }
                    $crate::conformance::run($crate::conformance::$group::$case::<$backend>());
                }
            )+
        }
    };
}

//! The promises of `Store`, kept by every database that Tintype runs on.
//!
//! A case is a function that gets an empty database; its ledger is audited when it returns. Each case is listed once in
//! `cases!` and runs on every backend under its own name. The compiler reports a case that is not listed as dead code.

use crate::rigs::service::Backend;

mod accounts;
mod claims;
mod completed;
mod damage;
mod drift;
mod ends;
mod files;
mod fixture;
mod keys;
mod leases;
mod partitions;
mod postgres_locks;
mod postgres_reads;
mod postgres_server;
mod postgres_tls;
mod processes;
mod removals;
mod sqlite_file;
mod strikes;
mod submits;
mod workers;

/// The whole suite on one backend.
macro_rules! suite {
    ($name:ident, $backend:expr) => {
        mod $name {
            use super::*;

            cases! { $backend;
                accounts {
                    a_new_account_holds_its_opening_grant,
                    an_account_without_credits_has_no_entries,
                    a_taken_name_changes_nothing,
                    an_opening_balance_below_zero_is_an_error_and_makes_no_account,
                    an_account_is_found_by_name_and_by_id,
                    no_account_is_named_like_anothers_id,
                    accounts_are_listed_by_name,
                    the_first_account_comes_with_its_credits_and_key,
                    there_is_only_one_first_account,
                    a_grant_adds_to_the_balance_and_keeps_its_note,
                    a_grant_to_nobody_changes_nothing,
                    a_grant_that_the_books_cannot_hold_is_an_error_and_changes_nothing,
                    a_refund_fits_into_the_fullest_account,
                    history_runs_newest_first_with_the_balance_after_each_entry,
                    pages_of_history_meet_without_gap_or_overlap,
                }
                keys {
                    a_key_is_found_by_its_hash_and_by_its_id,
                    a_key_for_nobody_is_not_made,
                    one_secret_is_never_two_keys,
                    keys_are_listed_oldest_first_of_one_account_or_of_all,
                    a_disabled_key_can_be_enabled_again,
                    a_revoked_key_stays_revoked,
                    a_leaked_key_works_and_keeps_the_time_of_its_first_leak,
                    one_key_changes_and_the_others_stay,
                    a_key_expires_to_the_millisecond,
                    the_last_use_of_a_key_is_noted_and_never_moves_back,
                    uses_of_revoked_and_unknown_keys_do_no_harm,
                    a_rotated_key_hands_on_everything_but_its_secret,
                    a_disabled_key_is_followed_by_a_disabled_one,
                    rotating_without_an_overlap_ends_the_old_key_at_once,
                    an_overlap_never_extends_an_earlier_expiry,
                    an_overlap_brings_a_later_expiry_forward,
                    a_revoked_or_unknown_key_is_not_rotated,
                    rotating_to_a_secret_in_use_is_an_error_and_leaves_the_old_key_alone,
                }
                submits {
                    a_submit_that_is_late_or_whose_caller_has_gone_never_begins,
                    a_submit_charges_two_credits_an_image,
                    a_task_is_readable_everywhere_as_soon_as_it_is_accepted,
                    what_was_asked_for_reaches_the_worker_unchanged,
                    the_last_credit_can_be_spent_and_no_more,
                    a_submit_without_enough_credits_changes_nothing,
                    a_submit_beyond_the_limit_of_unfinished_tasks_changes_nothing,
                    a_task_that_ends_makes_room_for_one_more,
                    a_limit_of_zero_unfinished_tasks_is_none,
                    a_submit_for_nobody_is_an_error_and_changes_nothing,
                    ids_rise_within_a_millisecond,
                    a_thousand_tasks_of_one_millisecond_all_say_so,
                    a_task_is_found_by_its_account_on_its_surface_only,
                    a_list_holds_one_account_and_one_surface_newest_first,
                    pages_of_a_list_meet_without_gap_or_overlap,
                    a_page_may_begin_at_any_id,
                    the_operator_sees_the_newest_tasks_of_every_surface,
                }
                claims {
                    claims_go_round_the_accounts_and_oldest_first_within_one,
                    the_next_claim_goes_on_where_the_last_one_ended,
                    a_busy_account_does_not_make_another_wait,
                    a_claim_says_whose_task_it_is,
                    accounts_that_are_passed_over_wait_while_others_go_on,
                    an_account_that_was_passed_over_keeps_its_turn,
                    passing_over_all_that_wait_claims_nothing,
                    an_account_behind_hundreds_that_are_passed_over_is_served,
                    a_claim_takes_no_more_than_was_asked_for,
                    a_leased_task_is_not_claimed_again,
                    tasks_of_both_surfaces_are_claimed,
                    a_released_task_is_claimed_again_at_once,
                    a_task_queued_again_without_a_delay_is_claimable_whatever_the_clock,
                    a_delayed_task_that_is_released_is_claimable_whatever_the_clock,
                    a_delayed_task_waits_to_the_millisecond,
                    a_delayed_task_lets_younger_ones_pass,
                    a_finished_task_is_never_claimed,
                    every_claim_raises_the_epoch_whatever_ended_the_one_before,
                    a_rescue_does_not_reset_the_epoch,
                    the_depth_of_the_queue_counts_waiting_and_leased_tasks,
                }
                leases {
                    a_lease_that_ends_later_than_any_lease_can_is_lost,
                    a_rescued_lease_writes_nothing,
                    a_released_lease_writes_nothing,
                    a_lease_given_up_for_a_retry_writes_nothing,
                    the_lease_of_a_completed_task_writes_nothing,
                    the_lease_of_a_failed_task_writes_nothing,
                    the_lease_of_a_task_failed_by_the_operator_writes_nothing,
                    the_lease_of_an_expired_task_writes_nothing,
                    a_lease_that_was_never_given_writes_nothing,
                    a_renewed_lease_lasts_longer,
                    renewing_returns_the_lost_leases_and_no_others,
                    a_lease_past_its_time_is_held_until_it_is_taken_away,
                    a_release_does_not_count_as_a_lost_lease,
                    the_last_retry_fails_and_refunds_with_its_own_sentence,
                    the_last_rescue_fails_and_refunds_with_its_own_sentence,
                    retries_and_rescues_count_together,
                    a_rescue_takes_exactly_the_leases_whose_time_has_come,
                    a_rescue_of_all_takes_every_lease_and_leaves_what_waits,
                }
                damage {
                    a_task_that_cannot_be_read_keeps_no_other_from_being_claimed,
                    a_task_that_cannot_be_read_fails_no_other_poll,
                }
                ends {
                    completing_without_images_is_an_error_and_changes_nothing,
                    a_completed_task_keeps_its_images_and_its_charge,
                    a_failed_task_is_refunded_once,
                    refunded_credits_can_be_spent_again,
                    a_waiting_task_can_be_failed_without_a_lease,
                    a_leased_task_can_be_failed_by_someone_else,
                    failing_a_task_that_does_not_exist_does_nothing,
                    a_task_that_wore_out_its_leases_is_final,
                    an_expired_task_is_final,
                    expiry_fails_leased_and_waiting_tasks_up_to_the_cutoff_and_no_other,
                    expiry_leaves_tasks_that_have_ended,
                    nothing_but_its_end_moves_the_time_of_a_task,
                    a_task_is_never_updated_before_it_was_created,
                }
                strikes {
                    a_refused_task_is_failed_and_refunded_once,
                    a_lost_lease_makes_no_strike,
                    the_last_strike_suspends_the_key_and_says_why,
                    a_strike_counts_for_its_window_to_the_millisecond,
                    strikes_of_one_key_are_no_others,
                    enabling_a_suspended_key_forgets_its_strikes,
                    a_suspended_key_is_followed_by_a_suspended_one,
                    the_strikes_of_a_key_count_for_the_one_that_follows_it,
                    strikes_grow_old_whatever_key_they_were_made_with,
                    a_rotation_that_fails_leaves_the_strikes_where_they_are,
                    without_a_rule_or_a_key_nothing_is_held_against_anyone,
                    tasks_that_fail_otherwise_are_no_strikes,
                }
                removals {
                    a_removal_takes_what_ended_before_the_cutoff_and_nothing_else,
                    a_removed_task_is_seen_by_the_operator_alone,
                    a_removal_leaves_the_books_as_they_are,
                    an_unfinished_task_is_never_removed,
                    a_removal_of_many_tasks_removes_each_once,
                    pages_meet_where_tasks_were_removed,
                    a_removed_task_cannot_end_again,
                    submits_go_on_while_tasks_are_removed,
                }
                partitions {
                    dropping_partitions_changes_nothing_that_callers_see,
                }
                completed {
                    completed_tasks_of_every_account_and_surface_are_walked_oldest_first,
                    pages_of_completed_tasks_meet_without_gap_or_overlap,
                    a_walk_over_completed_tasks_begins_above_any_id,
                }
                files {
                    what_decides_about_files_is_told_of_each_task_that_there_is,
                    a_sweep_is_one_process_at_a_time,
                    one_of_many_that_want_a_sweep_at_once_gets_it,
                    a_sweep_that_was_put_off_is_due_in_time,
                    what_was_put_off_before_the_clock_was_set_back_is_due,
                    forgetting_a_day_that_is_gone_changes_no_other,
                    the_first_marker_of_the_result_files_stands_until_another_store_is_adopted,
                }
                workers {
                    a_worker_knows_of_the_others_what_they_said_last,
                    a_worker_that_withdrew_or_is_silent_is_not_counted_on,
                    what_a_worker_said_before_the_clock_was_set_back_does_not_count_for_long,
                }
                processes {
                    a_task_is_claimable_at_once_by_a_process_whose_clock_is_behind,
                    concurrent_submits_never_overspend,
                    concurrent_submits_of_several_accounts_are_charged_to_their_own,
                    concurrent_submits_never_pass_the_limit_of_unfinished_tasks,
                    two_processes_submitting_at_once_never_overspend,
                    a_grant_by_another_process_while_submits_run_is_not_lost,
                    a_write_that_fails_spares_those_beside_it,
                    a_submit_whose_caller_goes_away_is_whole_or_absent,
                    concurrent_workers_never_claim_the_same_task,
                    a_task_ended_by_two_processes_at_once_ends_once,
                    a_name_wanted_twice_at_once_is_given_once,
                    processes_starting_at_once_make_one_first_account,
                    a_process_whose_clock_is_behind_keeps_the_order_of_its_own_tasks,
                    all_processes_of_one_database_share_its_cursor_secret,
                    a_ping_succeeds_and_changes_nothing,
                }
            }
        }
    };
}

/// One test for each case.
macro_rules! cases {
    ($backend:expr; $($module:ident { $($case:ident,)+ })+) => {
        $($(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                fixture::check($backend, $module::$case).await;
            }
        )+)+
    };
}

suite!(sqlite, Backend::Sqlite);
suite!(postgres, Backend::Postgres);

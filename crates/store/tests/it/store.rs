//! The conformance suite of `Store`: each driver passes every case.
//!
//! A case is a function that gets an empty database; its ledger is audited when it returns. Each case is listed once in
//! `cases!` and runs on every backend under its own name. The compiler reports a case that is not listed as dead code.

use tintype_rigs::database::Backend;

mod account_walk;
mod accounts;
mod audit_log;
mod budgets;
mod calls;
mod cancellations;
mod claims;
mod completed;
mod damage;
mod deliveries;
mod drift;
mod endpoints;
mod ends;
mod engines;
mod failed_prompts;
mod files;
mod fixture;
mod gallery;
mod grants;
mod identities;
mod invitations;
mod keys;
mod leases;
mod low_credits;
mod people;
mod postgres_locks;
mod postgres_plans;
mod postgres_pooler;
mod postgres_reads;
mod postgres_schema;
mod postgres_server;
mod postgres_tls;
mod processes;
mod progress;
mod removals;
mod rights;
mod schema;
mod second_factor;
mod shared_links;
mod sign_ups;
mod sqlite_file;
mod strikes;
mod submits;
mod uploads;
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
                    creating_an_account_with_a_taken_name_changes_nothing,
                    a_negative_opening_balance_is_an_error_and_creates_no_account,
                    an_account_is_found_by_name_and_by_id,
                    the_id_of_an_account_is_refused_as_a_name,
                    accounts_are_listed_by_name,
                    create_first_account_creates_account_credits_and_key,
                    create_first_account_changes_nothing_if_an_account_exists,
                    a_grant_adds_to_the_balance_and_stores_its_note,
                    credits_are_taken_down_to_none_and_never_further,
                    a_disabled_account_has_no_valid_key_and_a_deleted_one_never_again,
                    an_account_with_unfinished_tasks_is_not_deleted_and_a_deleted_one_takes_no_submit,
                    the_tasks_of_one_account_are_removed_and_no_others,
                    a_grant_to_a_missing_account_changes_nothing,
                    a_grant_outside_the_allowed_range_is_an_error_and_changes_nothing,
                    a_refund_fits_into_an_account_with_the_maximum_balance,
                    history_lists_entries_newest_first_with_the_balance_after_each,
                    pages_of_history_have_no_gap_and_no_overlap,
                }
                budgets {
                    a_key_spends_its_budget_and_no_more,
                    a_refusal_names_the_smaller_of_balance_and_budget,
                    a_budget_starts_anew_at_the_exact_begin_of_a_period,
                    a_refund_returns_to_the_period_of_its_task,
                    a_budget_is_set_changed_and_ended,
                    a_rotated_key_shares_the_budget_of_the_key_before_it,
                    concurrent_submits_never_exceed_a_budget,
                    keys_of_one_batch_have_budgets_of_their_own,
                    usage_adds_up_to_the_ledger,
                }
                low_credits {
                    low_credits_are_told_once_until_the_balance_is_above_the_threshold_again,
                    of_many_submits_at_once_one_tells_of_low_credits,
                }
                grants {
                    credits_are_spent_soonest_expiring_first_and_lasting_ones_last,
                    a_grant_that_is_made_twice_at_once_after_the_same_one_is_made_once,
                    a_grant_lapses_at_its_exact_millisecond_with_one_entry,
                    a_spent_grant_lapses_without_an_entry,
                    an_expired_grant_is_not_spent_even_before_it_lapses,
                    a_refund_goes_back_to_its_grants,
                    a_refund_after_its_grant_has_expired_can_be_spent_for_a_day,
                    a_refund_extends_only_the_part_that_was_not_extended_before,
                    a_clock_that_was_set_back_extends_no_refund_again,
                    a_damaged_account_delays_the_lapse_of_no_other,
                    a_refund_to_an_expired_grant_that_has_not_lapsed_is_kept_apart,
                    what_a_completed_task_took_never_comes_back,
                    taken_credits_are_lasting_ones_first_and_then_those_that_expire_last,
                    concurrent_submits_and_lapses_keep_grants_and_balance_together,
                    a_grant_of_a_deleted_account_lapses,
                    the_audit_finds_damaged_grants,
                }
                audit_log {
                    changes_to_accounts_and_credits_are_recorded_with_their_actor,
                    changes_to_keys_and_people_are_recorded_without_secrets,
                    changes_to_the_queue_and_to_tasks_are_recorded,
                    nothing_is_recorded_of_a_change_that_did_not_happen_or_without_an_actor,
                    the_audit_log_is_read_by_account_and_in_pages_and_old_entries_are_deleted,
                }
                keys {
                    a_key_is_found_by_its_hash_and_by_its_id,
                    create_key_for_a_missing_account_creates_nothing,
                    creating_a_key_with_a_hash_in_use_is_an_error,
                    list_keys_returns_one_account_or_all_oldest_first,
                    a_disabled_key_can_be_enabled_again,
                    a_revoked_key_stays_revoked,
                    a_leaked_key_stays_valid_and_keeps_the_time_of_its_first_leak,
                    a_key_change_affects_no_other_key,
                    a_key_expires_at_its_exact_millisecond,
                    the_last_use_of_a_key_is_recorded_and_never_moves_back,
                    touch_keys_records_revoked_keys_and_ignores_unknown_keys,
                    a_rotated_key_keeps_its_settings,
                    rotating_a_disabled_key_gives_a_disabled_key,
                    rotating_without_an_overlap_ends_the_old_key_at_once,
                    an_overlap_never_extends_an_earlier_expiry,
                    an_overlap_brings_a_later_expiry_forward,
                    a_key_that_is_rotated_again_gives_a_key_with_the_expiry_that_was_set,
                    a_revoked_or_unknown_key_is_not_rotated,
                    rotating_a_key_to_a_hash_in_use_is_an_error_and_changes_nothing,
                    a_deleted_account_is_given_no_key,
                    revoked_and_expired_keys_make_room_for_others,
                    keys_that_are_made_and_rotated_at_once_keep_to_the_limit,
                }
                people {
                    owners_whom_a_rule_demotes_at_once_leave_one,
                    a_person_is_found_by_name_and_by_id,
                    people_are_found_by_a_part_of_their_name_in_pages,
                    a_name_of_a_person_is_taken_once,
                    the_live_ones_of_many_sessions_are_found_at_once,
                    an_account_has_a_limited_number_of_people_and_a_deleted_one_none,
                    a_link_signs_one_person_in_once,
                    a_link_expires_at_its_exact_millisecond,
                    of_several_processes_that_use_a_link_one_signs_in,
                    a_session_ends_at_its_exact_millisecond_unless_it_is_used,
                    a_person_ends_one_session_or_all_others_and_those_of_nobody_else,
                    a_new_password_ends_every_session,
                    a_disabled_account_signs_nobody_in,
                    expired_links_and_sessions_are_deleted_and_no_others,
                    the_first_account_is_an_administrator_and_others_only_by_rank,
                }
                identities {
                    an_identity_is_that_of_one_person_who_has_one_of_each_provider,
                    an_identity_goes_with_its_person_and_its_account,
                    somebody_signs_up_with_an_identity_under_any_name,
                    somebody_joins_an_account_with_an_identity_under_any_name,
                    somebody_who_is_shut_out_has_no_way_in_but_a_new_one,
                }
                invitations {
                    an_invitation_lets_as_many_people_in_as_it_has_places,
                    of_several_processes_no_more_people_join_than_there_are_places,
                    people_join_while_the_rights_of_the_maker_end,
                    an_invitation_works_while_its_maker_may_invite,
                    invitations_are_limited_listed_and_revoked_by_account,
                    nobody_joins_an_account_that_is_full,
                }
                sign_ups {
                    somebody_who_signs_up_owns_an_account_with_credits,
                    a_taken_name_opens_no_account_and_counts,
                    the_name_of_an_account_keeps_no_person_out,
                    attempts_are_limited_by_source_and_day_and_then_forgotten,
                    of_several_processes_one_opens_an_account_of_a_name,
                    of_several_processes_one_opens_an_account_of_an_identity,
                }
                rights {
                    a_store_with_the_right_of_a_session_writes_only_while_that_holds,
                    a_store_with_the_right_of_an_operator_writes_only_while_that_holds,
                    a_task_is_submitted_only_while_the_right_of_its_caller_holds,
                    a_session_begins_only_with_a_proof_that_still_holds,
                    a_new_password_and_the_end_of_all_sessions_end_sign_in_links,
                    a_new_password_and_the_end_of_all_sessions_end_journeys,
                }
                second_factor {
                    a_code_works_once_and_none_of_an_earlier_step_after_it,
                    of_several_processes_that_use_a_code_one_succeeds,
                    a_password_is_not_enough_for_a_person_with_a_second_factor,
                    a_link_is_used_up_only_with_the_code,
                    turning_a_second_factor_on_or_off_ends_other_sessions_and_links,
                    recovery_codes_are_replaced_and_go_with_the_person,
                }
                uploads {
                    an_upload_is_seen_by_its_account_and_surface_once_it_is_finished,
                    an_account_has_a_limited_number_of_uploads,
                    an_upload_keeps_its_author_and_others_remove_it_on_the_record,
                    a_removed_upload_is_held_until_its_file_is_gone,
                    old_uploads_are_removed_and_unfinished_ones_sooner,
                    the_uploads_of_a_deleted_account_are_removed,
                    sweeps_and_backups_see_the_files_of_uploads,
                }
                calls {
                    a_repeated_call_takes_the_task_over_and_is_not_charged,
                    a_first_attempt_and_another_key_and_other_choices_make_tasks_of_their_own,
                    a_task_that_nobody_holds_is_taken_first_and_the_oldest_before_others,
                    a_call_of_a_client_that_does_not_count_takes_what_was_given_up_for_a_short_time,
                    an_idempotency_key_names_one_task_whatever_becomes_of_it,
                    of_attempts_at_once_in_several_processes_each_takes_another_task,
                    old_calls_are_not_found_and_deleted_and_so_are_those_of_a_deleted_account,
                }
                gallery {
                    a_search_finds_the_words_and_beginnings_of_an_account_alone,
                    a_search_finds_short_words_and_symbols,
                    the_gallery_shows_what_fits_every_filter,
                    pages_of_the_gallery_have_no_gap_and_no_overlap,
                    a_page_looks_at_a_limited_number_of_tasks_and_says_where_to_go_on,
                    marks_are_set_on_tasks_of_the_account_in_the_studio_alone,
                    boards_have_a_name_each_and_a_limited_number,
                    a_private_board_is_its_owners_alone_until_it_is_published,
                    boards_changed_at_once_keep_their_rules,
                    a_search_finds_tasks_from_after_the_clock_was_set_back,
                    words_of_many_old_tasks_are_found_page_by_page,
                    a_deleted_task_is_hidden_at_once_and_comes_back,
                    a_task_keeps_its_author_and_others_delete_it_on_the_record,
                    the_bin_holds_deleted_tasks_until_they_are_purged,
                    tasks_with_long_prompts_are_erased_and_removed_to_the_last,
                    an_erased_task_leaves_nothing_but_its_ledger_and_files,
                    a_removal_and_a_deleted_account_leave_nothing_in_the_gallery,
                }
                shared_links {
                    a_shared_link_shows_its_task_or_what_is_on_its_board,
                    shared_links_are_listed_for_their_maker_or_the_account,
                    a_shared_link_ends_with_what_it_needs,
                }
                submits {
                    a_submit_past_its_deadline_or_after_its_caller_hung_up_does_not_start,
                    a_submit_charges_two_credits_per_image,
                    every_process_reads_a_task_as_soon_as_it_is_accepted,
                    a_claim_returns_the_request_unchanged,
                    a_submit_can_spend_the_last_credit_and_no_more,
                    a_submit_without_enough_credits_changes_nothing,
                    a_submit_beyond_the_limit_of_unfinished_tasks_changes_nothing,
                    a_task_that_ends_allows_one_more_unfinished_task,
                    an_unfinished_limit_of_zero_means_no_limit,
                    a_submit_for_a_missing_account_is_an_error_and_changes_nothing,
                    task_ids_increase_within_a_millisecond,
                    a_thousand_tasks_of_one_millisecond_have_distinct_ids_with_that_time,
                    find_task_requires_the_account_and_surface_of_the_task,
                    list_tasks_returns_one_account_and_one_surface_newest_first,
                    count_unfinished_counts_one_account_and_one_surface_until_each_task_ends,
                    pages_of_a_list_have_no_gap_and_no_overlap,
                    a_page_may_start_at_an_id_of_no_task,
                    recent_tasks_returns_the_newest_tasks_of_every_surface,
                }
                claims {
                    claims_take_accounts_round_robin_and_the_oldest_task_of_each,
                    a_claim_continues_the_round_robin_of_the_previous_claim,
                    an_account_with_many_tasks_does_not_delay_another,
                    a_claim_names_the_account_of_its_task,
                    a_task_postponed_before_the_clock_was_set_back_is_claimed,
                    a_claim_skips_the_given_accounts,
                    a_skipped_account_keeps_its_turn,
                    a_claim_that_skips_every_waiting_account_takes_nothing,
                    a_claim_finds_an_account_behind_hundreds_of_skipped_ones,
                    a_claim_takes_at_most_the_given_number_of_tasks,
                    a_leased_task_is_not_claimed_again,
                    tasks_of_both_surfaces_are_claimed,
                    a_released_task_is_claimed_again_at_once,
                    a_requeued_task_is_claimable_by_a_process_whose_clock_is_behind,
                    a_released_delayed_task_is_claimable_by_a_process_whose_clock_is_behind,
                    a_delayed_task_is_claimable_at_its_exact_millisecond,
                    a_delayed_task_does_not_delay_younger_tasks,
                    a_finished_task_is_never_claimed,
                    every_claim_raises_the_lease_epoch,
                    a_rescue_does_not_reset_the_lease_epoch,
                    queue_depth_counts_waiting_and_leased_tasks,
                    waiting_tasks_returns_the_oldest_in_order,
                    no_process_claims_from_a_paused_queue,
                    a_claim_takes_only_tasks_with_as_few_references_as_it_says,
                    claims_with_different_limits_of_references_take_turns_of_their_own,
                    fail_beyond_fails_the_waiting_tasks_with_more_references_and_no_other,
                    a_claim_passes_over_very_many_tasks_that_it_cannot_take,
                    the_audit_finds_a_wrong_number_of_references_in_the_queue,
                }
                engines {
                    a_claim_takes_tasks_of_its_engine_and_of_none,
                    claims_for_different_engines_take_turns_of_their_own,
                    fail_unmatched_fails_the_waiting_tasks_whose_engine_nobody_has_and_no_other,
                }
                leases {
                    a_rescue_takes_a_lease_that_ends_later_than_the_longest_lease,
                    a_write_under_a_rescued_lease_is_refused,
                    a_write_under_a_released_lease_is_refused,
                    a_write_under_a_lease_given_up_for_a_retry_is_refused,
                    a_write_under_a_lease_that_was_never_granted_is_refused,
                    renewing_a_lease_extends_it,
                    renew_returns_exactly_the_lost_leases,
                    an_expired_lease_is_held_until_a_rescue_takes_it,
                    a_release_does_not_count_as_a_lost_lease,
                    the_last_retry_fails_and_refunds_the_task_with_its_error,
                    the_last_rescue_fails_and_refunds_the_task_with_its_error,
                    retries_and_rescues_count_toward_one_limit_of_lost_leases,
                    a_rescue_takes_exactly_the_expired_leases,
                    a_rescue_of_all_takes_every_lease_and_leaves_waiting_tasks,
                }
                progress {
                    the_owner_of_a_task_reads_the_latest_progress,
                    progress_is_reported_for_many_attempts_at_once,
                    progress_under_a_lost_lease_is_not_written,
                    progress_ends_with_its_lease,
                    the_owner_of_a_task_sees_the_latest_preview,
                    a_preview_ends_with_its_lease,
                    a_preview_is_found_by_its_owner_once_it_is_due_and_not_yet_seen,
                    a_sweep_leaves_the_progress_of_running_attempts,
                }
                damage {
                    an_unreadable_task_does_not_block_claims_of_other_tasks,
                    an_unreadable_task_fails_no_lookup_of_another_task,
                }
                ends {
                    completing_without_images_is_an_error_and_changes_nothing,
                    a_completed_task_keeps_its_images_and_its_charge,
                    a_failed_task_keeps_its_cause_and_one_of_another_release_is_read,
                    a_failed_task_is_refunded_once,
                    refunded_credits_can_be_spent_again,
                    fail_unleased_fails_a_waiting_task,
                    fail_unleased_fails_a_leased_task,
                    fail_unleased_of_a_missing_task_changes_nothing,
                    records_of_a_list_have_the_requests_of_its_tasks,
                    a_task_that_failed_at_its_last_retry_is_final,
                    an_expired_task_is_final,
                    expire_fails_exactly_the_unfinished_tasks_up_to_the_cutoff,
                    only_the_end_of_a_task_changes_its_updated_at,
                    updated_at_is_never_before_created_at,
                }
                cancellations {
                    a_waiting_task_is_cancelled_and_refunded_once,
                    a_task_that_a_worker_holds_is_cancelled_and_its_result_discarded,
                    only_its_account_and_its_author_cancel_a_task_and_only_on_its_surface,
                    stopped_tasks_return_40_credits_or_a_quarter_of_what_was_completed,
                    of_two_stops_at_once_only_as_many_as_fit_take_place,
                    a_cancelled_task_ends_once_whatever_happens_at_the_same_time,
                    a_cancelled_task_counts_as_no_failure,
                }
                strikes {
                    a_refused_task_is_failed_and_refunded_once,
                    a_refusal_under_a_lost_lease_adds_no_strike,
                    the_last_strike_suspends_the_key_and_records_the_reason,
                    a_strike_expires_at_the_exact_end_of_its_window,
                    strikes_of_one_key_do_not_count_for_another,
                    enabling_a_suspended_key_deletes_its_strikes,
                    a_key_that_its_owner_enables_keeps_its_strikes_and_its_suspension,
                    rotating_a_suspended_key_gives_a_suspended_key,
                    a_rotated_key_keeps_its_strikes,
                    strikes_of_an_old_key_count_with_those_of_the_new_one,
                    strikes_keep_their_age_across_rotations,
                    a_failed_rotation_leaves_the_strikes_on_the_old_key,
                    strikes_of_a_key_count_for_the_person_who_made_it_and_follow_its_rotation,
                    a_refusal_without_a_rule_or_a_key_adds_no_strike,
                    a_failed_task_adds_no_strike,
                }
                endpoints {
                    every_end_of_a_task_of_the_api_is_told_in_its_commit,
                    an_event_says_how_its_task_ended_and_nothing_of_the_request,
                    only_enabled_endpoints_that_subscribe_are_told,
                    a_suspended_key_is_told_once,
                    both_secrets_sign_until_the_end_of_the_overlap,
                    an_account_has_a_limited_number_of_endpoints_and_a_deleted_one_none,
                    changes_to_endpoints_are_recorded_without_secrets,
                }
                deliveries {
                    an_attempt_belongs_to_one_process_until_its_lease_ends,
                    of_several_processes_one_claims_each_delivery,
                    a_failed_attempt_is_made_again_until_it_is_given_up,
                    an_endpoint_waits_as_long_as_its_receiver_asks,
                    an_endpoint_that_is_gone_or_dead_is_disabled,
                    claims_take_the_oldest_of_each_endpoint_up_to_its_share,
                    a_delivery_postponed_before_the_clock_was_set_back_is_due,
                    a_test_and_a_replay_go_first_and_do_not_wait_for_an_endpoint,
                    what_waits_to_be_sent_at_once_is_not_added_again,
                    old_deliveries_are_deleted_and_the_oldest_of_too_many_given_up,
                }
                removals {
                    remove_tasks_removes_exactly_the_tasks_that_ended_before_the_cutoff,
                    only_the_operator_sees_a_removed_task,
                    a_removal_changes_no_balance_and_no_ledger_entry,
                    an_unfinished_task_is_never_removed,
                    a_removal_of_many_tasks_removes_each_once,
                    pages_of_a_list_skip_removed_tasks,
                    a_removed_task_cannot_end_again,
                    submits_succeed_during_a_removal,
                }
                failed_prompts {
                    old_prompts_of_failed_tasks_are_erased_and_their_tasks_stay,
                    the_prompts_of_failed_tasks_have_a_limited_space_for_each_account,
                    many_prompts_of_failed_tasks_are_erased_in_parts,
                    a_removed_or_deleted_task_is_no_longer_among_the_failed_prompts,
                    the_failures_of_an_account_are_counted_from_the_latest,
                }
                completed {
                    completed_tasks_returns_every_account_and_surface_oldest_first,
                    pages_of_completed_tasks_have_no_gap_and_no_overlap,
                    a_page_of_completed_tasks_may_start_at_an_id_of_no_task,
                }
                files {
                    task_files_returns_each_existing_task,
                    a_sweep_is_claimed_by_one_process_at_a_time,
                    one_of_several_processes_takes_a_due_sweep,
                    a_postponed_sweep_is_due_after_its_pause,
                    a_sweep_postponed_before_the_clock_was_set_back_is_due,
                    deleting_an_old_sweep_changes_no_other,
                    the_first_files_marker_stays_until_another_is_adopted,
                }
                workers {
                    other_workers_returns_the_last_report_of_each,
                    other_workers_omits_workers_without_an_engine_and_silent_ones,
                    an_engine_is_remembered_for_a_day_after_its_last_report,
                    a_report_replaces_those_of_silent_workers_with_the_same_engine,
                    other_workers_omits_a_report_from_before_the_clock_was_set_back,
                }
                processes {
                    a_task_is_claimable_at_once_by_a_process_whose_clock_is_behind,
                    concurrent_submits_never_overspend,
                    concurrent_submits_charge_the_account_of_each_task,
                    concurrent_submits_never_exceed_the_limit_of_unfinished_tasks,
                    two_processes_submitting_at_once_never_overspend,
                    a_grant_by_another_process_during_submits_is_not_lost,
                    a_failure_by_a_command_reaches_callers_that_wait,
                    a_failed_write_affects_no_other_write_of_its_batch,
                    a_cancelled_submit_is_committed_entirely_or_not_at_all,
                    concurrent_workers_never_claim_the_same_task,
                    a_task_ended_by_two_processes_at_once_ends_once,
                    concurrent_creations_of_one_account_name_create_one_account,
                    concurrent_first_starts_create_one_first_account,
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

//! The suite every engine passes.
//!
//! One list of promises, each a test of its own, so that a failing engine is told which promise it broke:
//!
//! ```text
//! test postgres::a_swap_that_expects_an_old_revision_is_lost ... FAILED
//! ```
//!
//! An engine's author enables the feature `conformance` in the dev-dependencies and writes, in a test:
//!
//! ```
//! mod memory {
//!     use onlyonce_store::memory::Memory;
//!
//!     onlyonce_store::conformance!(async { Memory::new() });
//! }
//! # fn main() {}
//! ```
//!
//! 1. The expression makes **a fresh, empty store for each case**: a schema, a file or a prefix of its own. The cases
//!    run concurrently.
//! 2. The suite never sleeps for luck. It uses short spans and polls until the store's own clock says that they have
//!    passed, so the store's clock must be moving. It gives up after [`PATIENCE`].
//! 3. Random input follows from a seed, which a failing case prints; `ONLYONCE_SEED` repeats it.
//! 4. A case that an engine does not promise is left out by name: `conformance!(make, without: [reap::no_more_than_the_limit_is_deleted])`.
//!    Leaving out a case fails if [`Store::promises`] does promise it.
//! 5. A case fails by panicking. `tests/it/broken.rs` in this crate runs the suite on broken engines: each is caught by the
//!    case that is named for it. A promise that no broken engine breaks is not tested.

pub mod accepted;
pub mod agreement;
pub mod alive;
pub mod audit;
pub mod clock;
pub mod epoch;
pub mod erase;
pub mod outbox;
pub mod random;
pub mod reap;
pub mod record;
pub mod results;
pub mod scan;
pub mod search;
pub mod story;
pub mod swap;
mod world;

use std::sync::Arc;
use std::time::Duration;

use crate::Store;
use crate::promises::{Clock, Expiry, Listing};

/// How long the suite waits for a store's clock, or for a case to end, before it fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Makes every case of the suite a test of the store that the given future makes; see the
/// [module](mod@crate::conformance).
#[macro_export]
macro_rules! conformance {
    ($make:expr) => {
        $crate::conformance!($make, without: []);
    };
    ($make:expr, without: [$($left_out:path),* $(,)?]) => {
        $crate::conformance!(@each $make, [$(stringify!($left_out)),*] =>
            swap::an_absent_record_is_inserted
            swap::an_insert_over_an_existing_record_is_lost_and_shows_it
            swap::a_swap_that_expects_an_old_revision_is_lost
            swap::a_swap_of_a_record_that_is_gone_is_lost
            swap::a_lost_swap_changes_nothing
            swap::the_revision_is_the_one_the_caller_minted
            swap::a_swap_that_is_sent_twice_is_recognised_by_its_revision
            swap::of_many_concurrent_inserts_exactly_one_applies
            swap::of_many_concurrent_swaps_exactly_one_applies
            swap::no_update_is_lost_among_concurrent_writers
            swap::records_of_different_keys_do_not_disturb_each_other
            swap::keys_that_look_alike_stay_apart
            swap::keys_of_another_scope_stay_apart
            swap::preparing_again_and_at_once_changes_nothing
            clock::moments_after_the_write_are_stamped_by_the_stores_clock
            clock::known_moments_are_kept_to_the_microsecond
            clock::now_never_runs_backwards
            clock::a_look_does_not_restamp
            record::every_field_of_every_state_survives
            record::header_values_that_are_not_text_survive
            record::bodies_of_any_size_survive
            record::a_long_history_survives
            record::random_records_survive
            reap::what_has_finished_and_expired_is_deleted
            reap::what_has_not_expired_is_kept
            reap::running_pending_and_unknown_records_are_never_deleted
            reap::a_retryable_record_that_is_due_but_not_expired_is_kept
            reap::no_more_than_the_limit_is_deleted
            reap::a_key_that_is_used_again_is_never_deleted
            reap::a_revision_never_comes_back
            scan::a_listing_by_state_shows_that_state_only
            scan::records_are_counted_by_their_state
            scan::a_listing_by_scope_shows_that_scope_only
            scan::a_listing_by_route_shows_that_route_only
            scan::pages_show_each_record_once
            scan::what_is_due_comes_in_the_order_it_fell_due
            scan::pages_of_what_is_due_show_each_record_once
            scan::what_is_not_due_is_not_shown
            scan::what_is_due_follows_the_last_write
            scan::unknown_records_come_oldest_first
            scan::pending_records_come_oldest_first
            scan::the_archive_is_listed
            scan::a_cursor_of_somebody_elses_is_refused
            scan::an_empty_store_has_one_empty_page
            search::a_search_finds_a_key_and_the_beginning_of_one
            search::a_search_takes_its_text_as_it_is
            search::a_search_finds_a_label
            search::a_search_finds_a_scope_in_hex
            search::a_search_finds_an_id_in_hex
            search::a_search_goes_with_every_other_filter
            search::dead_letters_are_listed_alone
            alive::records_that_have_not_expired_are_counted_by_scope_and_in_all
            alive::records_are_counted_up_to_the_limit
            alive::a_record_that_expires_is_no_longer_counted
            alive::preparing_to_count_again_and_at_once_changes_nothing
            audit::an_entry_is_written_with_its_change
            audit::an_entry_of_a_lost_swap_is_not_written
            audit::an_entry_that_is_sent_twice_is_written_once
            audit::an_entry_can_be_written_by_itself
            audit::the_log_comes_newest_first
            audit::the_log_is_narrowed_by_every_filter
            audit::the_log_is_narrowed_by_time
            audit::pages_of_the_log_show_each_entry_once_while_more_are_written
            audit::entries_are_deleted_by_age
            audit::entries_outlive_their_records
            audit::a_foreign_cursor_of_the_log_is_refused
            erase::an_erased_scope_leaves_no_expired_record
            erase::erasing_leaves_what_has_not_expired
            erase::erasing_deletes_no_more_than_the_limit
            erase::erasing_reaches_the_archive
            erase::erasing_takes_keys_and_labels_out_of_the_log
            epoch::the_epoch_stays_until_it_is_raised
            epoch::an_epoch_that_was_raised_is_seen_by_the_next_look
            epoch::of_many_who_raise_it_each_sees_a_higher_one
            epoch::an_epoch_is_never_behind_the_clock_it_was_raised_at
            epoch::a_store_keeps_its_name
            story::a_completed_attempt_is_replayed
            story::a_renewal_in_between_does_not_lose_the_completion
            story::a_superseded_attempt_cannot_complete
            story::the_late_truth_counts
            story::a_verdict_settles_what_nobody_knew
            story::the_sweeper_finds_a_lapsed_lease
            story::accepted_work_is_claimed_once
            story::an_expired_key_runs_anew
            story::a_forgotten_record_is_gone_after_reaping
            outbox::messages_are_stored_with_an_applied_swap
            outbox::messages_of_a_lost_swap_are_not_stored
            outbox::a_store_without_an_outbox_refuses_messages
            outbox::a_claimed_message_is_nobody_elses_until_the_claim_lapses
            outbox::a_lapsed_claim_is_fenced
            outbox::deliveries_that_end_together_are_each_settled
            outbox::a_late_settlement_counts_while_nobody_else_has_the_message
            outbox::a_failed_delivery_comes_again_after_its_pause
            outbox::a_delivered_message_keeps_the_providers_id
            outbox::a_message_with_a_delay_waits_for_it
            outbox::a_delivered_message_never_comes_again
            outbox::dead_letters_keep_every_error
            outbox::only_failures_that_count_are_counted
            outbox::no_more_is_claimed_than_is_wanted_of_each_destination
            outbox::of_a_group_one_is_claimed_at_a_time_in_the_order_of_numbers
            outbox::a_message_holds_up_those_behind_it_and_nobody_else
            outbox::a_dead_letter_blocks_its_group_or_is_passed
            outbox::a_redriven_dead_letter_keeps_its_key_and_its_place
            outbox::a_discarded_message_is_gone_and_frees_its_group
            outbox::messages_are_listed_by_state_and_destination
            outbox::the_oldest_message_counts_from_when_it_was_first_due
            outbox::only_delivered_messages_are_pruned_and_by_age
            outbox::concurrent_relays_never_share_a_message
            outbox::concurrent_relays_keep_the_order_of_groups
            results::a_result_is_written_with_its_recovery_point
            results::a_result_of_a_lost_swap_is_not_written
            results::results_belong_to_one_use_of_a_key
            results::results_go_with_their_record
            results::half_done_work_is_never_deleted
            accepted::a_request_is_stored_with_its_record
            accepted::a_request_goes_with_the_write_that_ends_the_work
            accepted::a_request_of_a_lost_swap_is_not_stored
            accepted::a_request_belongs_to_one_use_of_a_key
            accepted::a_request_goes_with_its_record
            agreement::random_operations_agree_with_memory
        );
    };
    (@each $make:expr, $left_out:expr => $($part:ident::$case:ident)*) => {
        $(
            #[test]
            fn $case() {
                let left_out: &[&str] = &$left_out;
                if left_out.contains(&concat!(stringify!($part), "::", stringify!($case))) {
                    $crate::conformance::leave_out($make, stringify!($part));
                } else {
                    $crate::conformance::run($make, $crate::conformance::$part::$case);
                }
            }
        )*
    };
}

/// Leaves out a case of this part. Called by the macro.
///
/// # Panics
///
/// If the store promises what the case tests.
pub fn leave_out<S: Store>(make: impl Future<Output = S>, part: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let promises = runtime.expect("a runtime for the case").block_on(async { make.await.promises() });
    let is_promised = match part {
        "reap" => promises.expiry == Expiry::Ours,
        "scan" | "search" => promises.listing == Listing::Immediate,
        "clock" => promises.clock == Clock::One,
        _ => true,
    };
    assert!(!is_promised, "a case of \"{part}\" is left out, and {promises:?} promises it");
}

/// Runs one case on the store that `make` makes. Called by the macro.
///
/// # Panics
///
/// If the store breaks the promise.
pub fn run<S: Store, C: Future<Output = ()>>(
    make: impl Future<Output = S>,
    case: impl FnOnce(Arc<dyn Store>) -> C,
) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime for the case").block_on(async {
        let store = make.await;
        store.prepare().await.expect("the store can be prepared");
        let case = tokio::time::timeout(PATIENCE, case(Arc::new(store)));
        case.await.expect("the case ends in good time");
    });
}

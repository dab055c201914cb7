//! Every interleaving of a small world around the machine, searched by a model checker.
//!
//! # What is modelled
//! * The functions of [`onlyonce_core::machine`] themselves ([`rules`]); nothing of them is written a second time.
//! * A store with one row, compare and swap, and its own clock ([`row`]). Moments are kept relative to now, so the
//!   clock runs on for ever and the search is still finite.
//! * Clients that decide on what they see, at once or some time later; a lost swap looks again.
//! * Attempts that send, wait, renew, pause for as long as they like, crash between any two steps, give up, and write
//!   down how they ended: late, twice, or without hearing that it was written.
//! * Downstream, where a request takes effect at any moment until the attempt's deadline plus the horizon, also when
//!   nobody waits for it any more. *Keyed* downstream deduplicates while it remembers; *local* work commits in one
//!   step with the completion.
//! * Sweeper, reaper, the worker that claims accepted work; a reconciler that looks, asks and writes, as a probe
//!   (queryable) or a person (keyed, opaque); truthful webhooks (queryable, opaque); and the next use of the key.
//!
//! # What is left out
//! Phases, forced verdicts and forgetting, fingerprints, answers without a body, the reconciler's back-off (it may ask
//! at any moment), `on_expired = "gone"`: `tests/it/machine.rs` has those. The bound of the search is
//! [`world::TOKENS_MAX`] tokens in one world; nothing else is cut off.
//!
//! # What it shows
//! Each promise of [`promises`] holds in every reachable world, for each kind of effects; the worlds that matter were
//! really reached ([`world::Met`]); and each deliberate [`rules::Fault`] breaks a promise that is named here.

use std::collections::BTreeSet;

use onlyonce_core::record::Effects;
use stateright::{Checker, HasDiscoveries, Model};

mod promises;
mod row;
mod rules;
mod world;

use row::Spans;
use rules::{Fault, Rules};
use world::{Met, Universe};

const THREADS: usize = 2;

const SPANS: Spans = Spans { lease: 2, deadline: 3, horizon: 1, retention: 3, downstream_retention: 3 };
/// Keyed worlds also tell how long ago the key was first reserved; shorter spans keep them as few.
/// Downstream remembers for as long as a rerun takes, and for the few ticks in which one may begin.
const KEYED_SPANS: Spans = Spans { lease: 1, deadline: 2, horizon: 1, retention: 1, downstream_retention: 5 };

fn universe(effects: Effects, fault: Option<Fault>) -> Universe {
    let spans = match (effects, fault) {
        // Accepted work must wait long enough for downstream to forget.
        (Effects::Keyed, Some(Fault::ClaimTrustsMemory)) => Spans { retention: 5, ..KEYED_SPANS },
        (Effects::Keyed, _) => KEYED_SPANS,
        (Effects::Local | Effects::Queryable | Effects::Opaque, _) => SPANS,
    };
    Universe::new(Rules::new(effects, spans, fault))
}

/// Searches every world, and demands that each promise held and that these were met.
fn holds(effects: Effects, met: &[Met]) {
    let checker = universe(effects, None).checker().threads(THREADS).spawn_bfs().join();
    println!(
        "{effects:?}: {} worlds, {} steps, up to {} steps deep",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth()
    );
    assert!(checker.is_done(), "the search was cut off");
    checker.assert_properties();
    for expected in met {
        assert!(checker.model().has_met(*expected), "{expected:?} was never met: the model proves little");
    }
}

/// Demands that a deliberate fault breaks the promise, and shows how.
fn breaks(effects: Effects, fault: Fault, promise: &'static str) {
    let checker = universe(effects, Some(fault))
        .checker()
        .finish_when(HasDiscoveries::AnyOf(BTreeSet::from([promise])))
        .spawn_bfs()
        .join();
    let path = checker.assert_any_discovery(promise);
    println!("{fault:?} breaks: {promise}\n{:?}", path.into_actions());
}

/// R02, R05, U01, U04: local work is done exactly once for each stored answer, whatever crashes.
#[test]
fn local_work_happens_exactly_once() {
    holds(Effects::Local, &[Met::Superseded, Met::Rerun, Met::KeyUsedAnew, Met::GivenUp, Met::LostSwap]);
}

/// R02, R05, U01, U04: keyed work is done at most once while downstream keeps its word.
#[test]
fn keyed_work_happens_at_most_once_while_downstream_remembers() {
    holds(
        Effects::Keyed,
        &[
            Met::LateTruth,
            Met::Superseded,
            Met::Rerun,
            Met::Deduplicated,
            Met::Unknown,
            Met::VerdictHappened,
            Met::VerdictDidNotHappen,
            Met::KeyUsedAnew,
            Met::GivenUp,
            Met::LostSwap,
            Met::EffectAfterGivenUp,
            Met::OldDoubtRan,
            Met::OldDoubtUnknown,
        ],
    );
}

const UNREPEATABLE: [Met; 11] = [
    Met::LateTruth,
    Met::Superseded,
    Met::Rerun,
    Met::Unknown,
    Met::VerdictHappened,
    Met::VerdictDidNotHappen,
    Met::EvidenceApplied,
    Met::KeyUsedAnew,
    Met::GivenUp,
    Met::LostSwap,
    Met::EffectAfterGivenUp,
];

/// R02, R05, U03, U04, U06: queryable work is done at most once, and its probe's word is believed only in time.
#[test]
fn queryable_work_happens_at_most_once() {
    holds(Effects::Queryable, &UNREPEATABLE);
}

/// R02, R05, U03, U04, U06: opaque work is done at most once, and a person's word is believed only in time.
#[test]
fn opaque_work_happens_at_most_once() {
    holds(Effects::Opaque, &UNREPEATABLE);
}

/// R05
#[test]
fn without_the_token_a_superseded_attempt_would_write() {
    breaks(Effects::Keyed, Fault::FinishWithoutToken, promises::FENCED);
}

/// R05
#[test]
fn without_the_late_truth_what_is_known_would_be_lost() {
    breaks(Effects::Opaque, Fault::LateTruthDiscarded, promises::TRUTH_COUNTS);
}

/// U06
#[test]
fn not_found_believed_at_once_would_do_the_work_twice() {
    breaks(Effects::Queryable, Fault::NotFoundBelievedAtOnce, promises::AT_MOST_ONCE);
}

/// U03, U04
#[test]
fn rerunning_lapsed_opaque_work_would_do_it_twice() {
    breaks(Effects::Opaque, Fault::LapsedAlwaysReruns, promises::AT_MOST_ONCE);
}

/// R05
#[test]
fn a_token_that_comes_back_would_let_a_ghost_write() {
    breaks(Effects::Opaque, Fault::TokenUsedAgain, promises::FENCED);
}

/// R01, R02
#[test]
fn a_swap_that_compares_nothing_would_run_two_at_once() {
    breaks(Effects::Opaque, Fault::SwapWithoutRevision, promises::ONE_LIVE_LEASE);
}

/// P01
#[test]
fn a_swap_that_compares_nothing_would_change_an_answer() {
    breaks(Effects::Local, Fault::SwapWithoutRevision, promises::ANSWER_STANDS);
}

/// U03
#[test]
fn a_swap_that_compares_nothing_would_run_what_is_unknown() {
    breaks(Effects::Opaque, Fault::SwapWithoutRevision, promises::UNKNOWN_WAITS);
}

/// U04
#[test]
fn keyed_reruns_without_end_would_do_the_work_twice() {
    breaks(Effects::Keyed, Fault::KeyedRerunsForever, promises::AT_MOST_ONCE);
}

/// U04, W07
#[test]
fn accepted_work_claimed_past_downstream_memory_would_be_done_twice() {
    breaks(Effects::Keyed, Fault::ClaimTrustsMemory, promises::AT_MOST_ONCE);
}

/// T03
#[test]
fn a_reaper_that_judges_by_age_would_delete_what_is_open() {
    breaks(Effects::Opaque, Fault::ReaperJudgesByAge, promises::ONLY_SETTLED_GOES);
}

/// T03
#[test]
fn doubt_that_expires_would_be_deleted_or_run_as_a_new_key() {
    breaks(Effects::Keyed, Fault::DoubtExpires, promises::ONLY_SETTLED_GOES);
}

/// R08
#[test]
fn a_node_whose_clock_is_ahead_would_take_a_live_lease() {
    breaks(Effects::Local, Fault::NodeClockAhead, promises::ONE_LIVE_LEASE);
}

/// U06
#[test]
fn an_answer_judged_when_it_is_written_would_do_the_work_twice() {
    breaks(Effects::Queryable, Fault::AnswerJudgedWhenWritten, promises::AT_MOST_ONCE);
}

/// U05, U06
#[test]
fn old_evidence_that_nothing_happened_would_do_the_work_twice() {
    breaks(Effects::Opaque, Fault::OldEvidenceBelieved, promises::AT_MOST_ONCE);
}

/// T04
#[test]
fn giving_up_in_doubt_would_call_done_work_undone() {
    breaks(Effects::Keyed, Fault::GivenUpInDoubt, promises::GIVEN_UP_MEANS_NOTHING);
}

/// U06
#[test]
fn not_found_believed_at_once_would_free_what_was_done() {
    breaks(Effects::Opaque, Fault::NotFoundBelievedAtOnce, promises::FREE_MEANS_NOTHING);
}

/// U03
#[test]
fn doubt_taken_for_done_would_store_an_answer_to_nothing() {
    breaks(Effects::Opaque, Fault::DoubtTakenForDone, promises::DONE_MEANS_DONE);
}

/// U04
#[test]
fn local_work_taken_for_opaque_would_become_unknown() {
    breaks(Effects::Local, Fault::LocalTakenForOpaque, promises::LOCAL_IS_CERTAIN);
}

/// U04, W01: what we ask of those who call their work local.
#[test]
fn local_work_must_commit_with_its_completion() {
    breaks(Effects::Local, Fault::LocalEffectOutside, promises::AT_MOST_ONCE);
}

/// U04
#[test]
fn a_last_rerun_that_outlives_downstream_memory_would_do_the_work_twice() {
    breaks(Effects::Keyed, Fault::NoTimeForTheLastRerun, promises::AT_MOST_ONCE);
}

/// U04: what we ask of a layer: a slow store shortens the last rerun, and must not prolong it.
#[test]
fn an_attempt_must_count_its_deadline_from_before_it_asked() {
    breaks(Effects::Keyed, Fault::DeadlineFromWrite, promises::AT_MOST_ONCE);
}

/// U04: what we ask of the setting `downstream_retention`: what downstream promises is enough, and no less is.
#[test]
fn downstream_must_remember_while_the_last_rerun_is_under_way() {
    breaks(Effects::Keyed, Fault::DownstreamForgetsEarly, promises::AT_MOST_ONCE);
}

/// U06: what we ask of the setting `horizon`.
#[test]
fn the_horizon_must_cover_every_effect() {
    breaks(Effects::Queryable, Fault::EffectPastHorizon, promises::AT_MOST_ONCE);
}

/// U06: a webhook that may be late must say "did not happen" only when that is final.
#[test]
fn a_webhook_that_dawdles_must_be_final() {
    breaks(Effects::Queryable, Fault::WebhookDawdles, promises::AT_MOST_ONCE);
}

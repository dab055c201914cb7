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
//!   (queryable) or a person (keyed, opaque); truthful webhooks about the work; and the next use of the key.
//! * Letters: webhooks that name one attempt, of this use of the key or of an earlier one. A letter says what was true of
//!   its attempt when it was sent (it happened; it did not; it never will, from when on downstream refuses the attempt). It
//!   arrives early, late, twice, after and against what came since, or never.
//! * A person who insists, against a live lease and against the hour, and who has records forgotten, with force and
//!   without.
//!
//! Not everybody is in every world: see [`world::Cast`].
//!
//! # What is asked of those who speak
//! Webhooks, letters, probes and persons say what is true when they say it. A letter that is not final arrives while its
//! attempt may still act, if it has become untrue ([`Fault::WebhookDawdles`]); a final one is kept to
//! ([`Fault::FinalWordBroken`]).
//!
//! A person who insists that the work was *not* done may be wrong: it was done, or an attempt that is under way does it
//! later. Such worlds are searched too, and all that follows is done at that person's word: in that use of the key "at most
//! once", "a stored 408 means nothing was done" and "free means nothing was done" are not promised any more
//! ([`world::World::mistaken`]). Every other promise still is. A person who insists that it happened is right.
//!
//! # What is left out
//! Fingerprints, answers without a body and declined ones, the reconciler's back-off (it may ask at any moment),
//! `on_expired = "gone"`, the history: `tests/it` has those. The bound of the search is [`world::TOKENS_MAX`] tokens in one
//! world; nothing else is cut off.
//!
//! Phases have a small world of their own, in [`phases`].
//!
//! # What it shows
//! Each promise of [`promises`] holds in every reachable world, for each kind of effects; the worlds that matter were
//! really reached ([`world::Met`]); and each deliberate [`rules::Fault`] breaks a promise that is named here.

use std::collections::BTreeSet;

use onlyonce_core::record::Effects;
use stateright::{Checker, HasDiscoveries, Model};

mod attempts;
mod phases;
mod promises;
mod row;
mod rules;
mod statements;
mod world;

use row::Spans;
use rules::{Fault, Rules};
use world::{Cast, Met, Universe};

const THREADS: usize = 2;

const SPANS: Spans = Spans { lease: 2, deadline: 3, horizon: 1, retention: 3, downstream_retention: 3 };
/// Keyed worlds also tell how long ago the key was first reserved; shorter spans keep them as few.
/// Downstream remembers for as long as a rerun takes, and for the few ticks in which one may begin.
const KEYED_SPANS: Spans = Spans { lease: 1, deadline: 2, horizon: 1, retention: 1, downstream_retention: 5 };

/// Where there is much to be said, time is short.
const SHORT_SPANS: Spans = Spans { lease: 1, deadline: 2, horizon: 1, retention: 1, downstream_retention: 3 };

/// Everybody is slow, and nobody names an attempt or insists.
const SLOW: Cast = Cast { slow: true, accepted: true, letters: false, force: false, tokens: 3 };
/// Letters about one attempt, early, late, twice and out of order.
const LETTERS: Cast = Cast { slow: false, accepted: true, letters: true, force: false, tokens: 3 };
/// Letters, and a person who insists and has records forgotten.
const FORCE: Cast = Cast { slow: false, accepted: false, letters: true, force: true, tokens: 3 };

fn universe(effects: Effects, cast: Cast, fault: Option<Fault>) -> Universe {
    let spans = match (effects, fault) {
        // Accepted work must wait long enough for downstream to forget.
        (Effects::Keyed, Some(Fault::ClaimTrustsMemory)) => Spans { retention: 5, ..KEYED_SPANS },
        (Effects::Keyed, _) => KEYED_SPANS,
        (Effects::Local | Effects::Queryable | Effects::Opaque, _) if cast.force => SHORT_SPANS,
        (Effects::Local | Effects::Queryable | Effects::Opaque, _) => SPANS,
    };
    Universe::new(Rules::new(effects, spans, fault), cast)
}

/// Searches every world, and demands that each promise held and that these were met.
fn holds(effects: Effects, cast: Cast, met: &[Met]) {
    let checker = universe(effects, cast, None).checker().threads(THREADS).spawn_bfs().join();
    println!(
        "{effects:?}, {cast:?}: {} worlds, {} steps, up to {} steps deep",
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
fn breaks(effects: Effects, cast: Cast, fault: Fault, promise: &'static str) {
    let checker = universe(effects, cast, Some(fault))
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
    holds(
        Effects::Local,
        SLOW,
        &[Met::Superseded, Met::Rerun, Met::KeyUsedAnew, Met::GivenUp, Met::LostSwap],
    );
}

/// R02, R05, U01, U04: keyed work is done at most once while downstream keeps its word.
#[test]
fn keyed_work_happens_at_most_once_while_downstream_remembers() {
    holds(
        Effects::Keyed,
        SLOW,
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
    holds(Effects::Queryable, SLOW, &UNREPEATABLE);
}

/// R02, R05, U03, U04, U06: opaque work is done at most once, and a person's word is believed only in time.
#[test]
fn opaque_work_happens_at_most_once() {
    holds(Effects::Opaque, SLOW, &UNREPEATABLE);
}

/// R05
#[test]
fn without_the_token_a_superseded_attempt_would_write() {
    breaks(Effects::Keyed, SLOW, Fault::FinishWithoutToken, promises::FENCED);
}

/// R05
#[test]
fn without_the_late_truth_what_is_known_would_be_lost() {
    breaks(Effects::Opaque, SLOW, Fault::LateTruthDiscarded, promises::TRUTH_COUNTS);
}

/// U06
#[test]
fn not_found_believed_at_once_would_do_the_work_twice() {
    breaks(Effects::Queryable, SLOW, Fault::NotFoundBelievedAtOnce, promises::AT_MOST_ONCE);
}

/// U03, U04
#[test]
fn rerunning_lapsed_opaque_work_would_do_it_twice() {
    breaks(Effects::Opaque, SLOW, Fault::LapsedAlwaysReruns, promises::AT_MOST_ONCE);
}

/// R05
#[test]
fn a_token_that_comes_back_would_let_a_ghost_write() {
    breaks(Effects::Opaque, SLOW, Fault::TokenUsedAgain, promises::FENCED);
}

/// R01, R02
#[test]
fn a_swap_that_compares_nothing_would_run_two_at_once() {
    breaks(Effects::Opaque, SLOW, Fault::SwapWithoutRevision, promises::ONE_LIVE_LEASE);
}

/// P01
#[test]
fn a_swap_that_compares_nothing_would_change_an_answer() {
    breaks(Effects::Local, SLOW, Fault::SwapWithoutRevision, promises::ANSWER_STANDS);
}

/// U03
#[test]
fn a_swap_that_compares_nothing_would_run_what_is_unknown() {
    breaks(Effects::Opaque, SLOW, Fault::SwapWithoutRevision, promises::UNKNOWN_WAITS);
}

/// U04
#[test]
fn keyed_reruns_without_end_would_do_the_work_twice() {
    breaks(Effects::Keyed, SLOW, Fault::KeyedRerunsForever, promises::AT_MOST_ONCE);
}

/// U04, W07
#[test]
fn accepted_work_claimed_past_downstream_memory_would_be_done_twice() {
    breaks(Effects::Keyed, SLOW, Fault::ClaimTrustsMemory, promises::AT_MOST_ONCE);
}

/// T03
#[test]
fn a_reaper_that_judges_by_age_would_delete_what_is_open() {
    breaks(Effects::Opaque, SLOW, Fault::ReaperJudgesByAge, promises::ONLY_SETTLED_GOES);
}

/// T03
#[test]
fn doubt_that_expires_would_be_deleted_or_run_as_a_new_key() {
    breaks(Effects::Keyed, SLOW, Fault::DoubtExpires, promises::ONLY_SETTLED_GOES);
}

/// R08
#[test]
fn a_node_whose_clock_is_ahead_would_take_a_live_lease() {
    breaks(Effects::Local, SLOW, Fault::NodeClockAhead, promises::ONE_LIVE_LEASE);
}

/// U06
#[test]
fn an_answer_judged_when_it_is_written_would_do_the_work_twice() {
    breaks(Effects::Queryable, SLOW, Fault::AnswerJudgedWhenWritten, promises::AT_MOST_ONCE);
}

/// U05, U06
#[test]
fn old_evidence_that_nothing_happened_would_do_the_work_twice() {
    breaks(Effects::Opaque, SLOW, Fault::OldEvidenceBelieved, promises::AT_MOST_ONCE);
}

/// T04
#[test]
fn giving_up_in_doubt_would_call_done_work_undone() {
    breaks(Effects::Keyed, SLOW, Fault::GivenUpInDoubt, promises::GIVEN_UP_MEANS_NOTHING);
}

/// U06
#[test]
fn not_found_believed_at_once_would_free_what_was_done() {
    breaks(Effects::Opaque, SLOW, Fault::NotFoundBelievedAtOnce, promises::FREE_MEANS_NOTHING);
}

/// U03
#[test]
fn doubt_taken_for_done_would_store_an_answer_to_nothing() {
    breaks(Effects::Opaque, SLOW, Fault::DoubtTakenForDone, promises::DONE_MEANS_DONE);
}

/// U04
#[test]
fn local_work_taken_for_opaque_would_become_unknown() {
    breaks(Effects::Local, SLOW, Fault::LocalTakenForOpaque, promises::LOCAL_IS_CERTAIN);
}

/// U04, W01: what we ask of those who call their work local.
#[test]
fn local_work_must_commit_with_its_completion() {
    breaks(Effects::Local, SLOW, Fault::LocalEffectOutside, promises::AT_MOST_ONCE);
}

/// U04
#[test]
fn a_last_rerun_that_outlives_downstream_memory_would_do_the_work_twice() {
    breaks(Effects::Keyed, SLOW, Fault::NoTimeForTheLastRerun, promises::AT_MOST_ONCE);
}

/// U04: what we ask of a layer: a slow store shortens the last rerun, and must not prolong it.
#[test]
fn an_attempt_must_count_its_deadline_from_before_it_asked() {
    breaks(Effects::Keyed, SLOW, Fault::DeadlineFromWrite, promises::AT_MOST_ONCE);
}

/// U04: what we ask of the setting `downstream_retention`: what downstream promises is enough, and no less is.
#[test]
fn downstream_must_remember_while_the_last_rerun_is_under_way() {
    breaks(Effects::Keyed, SLOW, Fault::DownstreamForgetsEarly, promises::AT_MOST_ONCE);
}

/// U06: what we ask of the setting `horizon`.
#[test]
fn the_horizon_must_cover_every_effect() {
    breaks(Effects::Queryable, SLOW, Fault::EffectPastHorizon, promises::AT_MOST_ONCE);
}

/// U06: a webhook that may be late must say "did not happen" only when that is final.
#[test]
fn a_webhook_that_dawdles_must_be_final() {
    breaks(Effects::Queryable, LETTERS, Fault::WebhookDawdles, promises::AT_MOST_ONCE);
}

/// What letters about attempts must have led to.
const SAID: [Met; 11] = [
    Met::AboutEarlierAttempt,
    Met::AboutEarlierUse,
    Met::Strengthened,
    Met::WeakerCameLater,
    Met::VerdictHappened,
    Met::VerdictDidNotHappen,
    Met::EvidenceApplied,
    Met::KeyUsedAnew,
    Met::EffectAfterGivenUp,
    Met::Contradicted,
    Met::Rerun,
];

/// U05, U06, U09: letters that come early, late, twice, out of order and against each other.
#[test]
fn opaque_work_happens_at_most_once_whatever_letters_come() {
    holds(Effects::Opaque, LETTERS, &[&SAID[..], &[Met::FinalWordApplied]].concat());
}

/// U04, U05, U06, U09
#[test]
fn keyed_work_happens_at_most_once_whatever_letters_come() {
    holds(Effects::Keyed, LETTERS, &[&SAID[..], &[Met::FreeCompleted, Met::Deduplicated]].concat());
}

const INSISTED: [Met; 4] = [Met::Overruled, Met::Insisted, Met::PersonMistaken, Met::ForgottenByForce];

/// U05, U06, U09
#[test]
fn opaque_work_happens_at_most_once_unless_a_person_insists_wrongly() {
    holds(Effects::Opaque, FORCE, &INSISTED);
}

/// U04, U05, U06, U09
#[test]
fn keyed_work_happens_at_most_once_unless_a_person_insists_wrongly() {
    holds(Effects::Keyed, Cast { tokens: 2, ..FORCE }, &INSISTED);
}

/// U04, U05
#[test]
fn local_work_happens_exactly_once_also_where_a_person_insists() {
    holds(Effects::Local, Cast { letters: false, ..FORCE }, &[Met::Overruled, Met::ForgottenByForce]);
}

/// U04, U06: an attempt lost before has another token, and may still act.
#[test]
fn a_stale_final_word_about_a_rerun_would_free_the_attempt_before_it() {
    breaks(Effects::Keyed, LETTERS, Fault::StaleFinalWordBelieved, promises::FREE_MEANS_NOTHING);
}

/// U04, U06
#[test]
fn a_stale_final_word_about_a_rerun_would_do_the_work_twice() {
    breaks(Effects::Keyed, LETTERS, Fault::StaleFinalWordBelieved, promises::AT_MOST_ONCE);
}

/// U04, U06: nothing came of the rerun because downstream had done the work before.
#[test]
fn a_rerun_that_did_nothing_taken_for_the_work_would_free_what_was_done() {
    breaks(Effects::Keyed, LETTERS, Fault::OneAttemptTakenForTheWork, promises::FREE_MEANS_NOTHING);
}

/// U06
#[test]
fn a_word_about_an_earlier_attempt_would_free_the_last() {
    breaks(Effects::Opaque, LETTERS, Fault::EarlierAttemptTakenForTheLast, promises::FREE_MEANS_NOTHING);
}

/// U06
#[test]
fn a_letter_about_an_earlier_use_of_the_key_would_settle_the_next() {
    breaks(Effects::Opaque, LETTERS, Fault::EarlierUseTakenForThis, promises::DONE_MEANS_DONE);
}

/// U09
#[test]
fn the_last_word_instead_of_the_strongest_would_replace_what_is_certain() {
    breaks(Effects::Opaque, LETTERS, Fault::LastEvidenceKept, promises::STRONGEST_STANDS);
}

/// U05
#[test]
fn evidence_dropped_before_a_rerun_would_run_what_is_known_to_be_done() {
    breaks(Effects::Keyed, LETTERS, Fault::HappenedDroppedBeforeRerun, promises::KNOWN_RESTS);
}

/// U05, U09
#[test]
fn a_word_judged_before_the_evidence_would_run_what_is_known_to_be_done() {
    breaks(Effects::Keyed, LETTERS, Fault::LaterWordBeatsEvidence, promises::KNOWN_RESTS);
}

/// U05
#[test]
fn a_record_that_may_run_again_and_does_not_listen_would_run_what_is_known_to_be_done() {
    breaks(Effects::Keyed, LETTERS, Fault::FreeRecordsDeaf, promises::KNOWN_RESTS);
}

/// U05, U09
#[test]
fn an_attempt_that_did_not_run_would_hide_the_one_before_it_that_did() {
    breaks(Effects::Keyed, LETTERS, Fault::DidNotRunBeatsHappened, promises::KNOWN_RESTS);
}

/// U09
#[test]
fn a_settled_record_judged_anew_would_change_its_answer() {
    breaks(Effects::Opaque, LETTERS, Fault::SettledJudgedAnew, promises::ANSWER_STANDS);
}

/// U09
#[test]
fn a_settled_record_judged_anew_would_lose_its_doubt() {
    breaks(Effects::Keyed, LETTERS, Fault::SettledJudgedAnew, promises::SETTLED_STANDS);
}

/// U06
#[test]
fn an_early_word_applied_later_would_do_the_work_twice() {
    breaks(Effects::Opaque, LETTERS, Fault::EarlyWordAppliedLater, promises::AT_MOST_ONCE);
}

/// U05, U09
#[test]
fn a_person_who_overrules_a_webhook_would_run_what_is_known_to_be_done() {
    breaks(Effects::Opaque, FORCE, Fault::PersonOverrulesEvidence, promises::KNOWN_RESTS);
}

/// R05, U05
#[test]
fn an_overruled_attempt_that_keeps_its_token_would_write() {
    breaks(Effects::Opaque, FORCE, Fault::OverruledKeepsToken, promises::FENCED);
}

/// T03, U05
#[test]
fn without_force_what_is_unknown_would_be_forgotten_by_a_slip() {
    breaks(Effects::Opaque, FORCE, Fault::UnknownForgottenFreely, promises::FORGETTING_NEEDS_FORCE);
}

/// U06: what we ask of a webhook that says "final".
#[test]
fn a_final_word_must_be_kept() {
    breaks(Effects::Opaque, LETTERS, Fault::FinalWordBroken, promises::AT_MOST_ONCE);
}

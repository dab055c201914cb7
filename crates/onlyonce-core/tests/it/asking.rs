//! When the reconciler asks about an unknown record, when it asks again, and when it gives up.

use std::time::Duration;

use onlyonce_core::history::{Said, What};
use onlyonce_core::machine::{self, About, Backoff, Ruled, Ruling};
use onlyonce_core::outcome::Outcome;
use onlyonce_core::policy::Policy;
use onlyonce_core::record::{Draft, Effects, Reason, Record, Seen, Source, State};
use onlyonce_core::time::{Timestamp, When};
use proptest::prelude::*;

use crate::sample::{
    BACKOFF, BELIEVED, HOUR, OWN, at, completed, pending, policy, retryable, ruling, running, said, seen,
    unknown, written,
};

/// How long after its write a draft is asked about; none where it is not.
fn pause(draft: &Draft) -> Option<Duration> {
    let State::Unknown { ask_at, .. } = &draft.state else { panic!("{:?} is not asked about", draft.state) };
    ask_at.map(|ask_at| match ask_at {
        When::AfterWrite(pause) => pause,
        When::At(moment) => panic!("asked at {moment:?}, whenever it is written"),
    })
}

fn is_dead_letter(draft: &Draft) -> bool {
    machine::facts(&draft.clone().stamp(at(0))).dead_letter
}

/// The probe answers that it does not know.
fn shrug(now: &Seen, backoff: Backoff) -> Box<Draft> {
    let ruling = Ruling { probe: Some(backoff), ..ruling(Source::Probe, said("unknown")) };
    let ruled = machine::verdict(now, &ruling);
    let Ruled::Notes(draft, None) = ruled else { panic!("{ruled:?}") };
    draft
}

fn fail(now: &Seen, backoff: Backoff) -> Box<Draft> {
    machine::probe_failed(now, backoff, "503 in 4 ms").expect("it is unknown")
}

/// What the reconciler does with a record that nobody else touches, until it gives up: the pauses, in seconds.
fn pauses(backoff: Backoff, answer: impl Fn(&Seen, Backoff) -> Box<Draft>) -> Vec<u64> {
    let mut now = seen(unknown(Effects::Queryable), at(0));
    let mut pauses = Vec::new();
    loop {
        let draft = answer(&now, backoff);
        let Some(pause) = pause(&draft) else {
            assert!(is_dead_letter(&draft));
            return pauses;
        };
        pauses.push(pause.as_secs());
        let later = now.now.plus(pause);
        now = seen(draft.stamp(now.now), later);
    }
}

/// U05, M03
#[test]
fn the_probe_is_first_asked_so_long_after_the_outcome_became_unknown() {
    for (reconcile_first, expected) in [(Some(Duration::from_secs(7)), Some(7)), (None, None)] {
        let terms = Policy { reconcile_first, ..policy(Effects::Queryable) }.terms();
        let record = Record { terms, ..running(Effects::Queryable) };
        let in_doubt = Outcome::Unknown(Reason::ConnectionLost);
        let machine::Finish::Write(draft) = machine::finish(Some(&seen(record, at(0))), OWN, &in_doubt)
        else {
            panic!("written");
        };
        assert_eq!(pause(&draft).map(|pause| pause.as_secs()), expected);
        let due = machine::due(&draft).stamp(at(0));
        assert_eq!(due, expected.map(|_| at(7)), "without a probe it is never due");
    }
}

/// U05, M03
#[test]
fn pauses_double_up_to_the_longest() {
    let six = Backoff { tries_max: 9, ..BACKOFF };
    assert_eq!(pauses(six, shrug), [10, 20, 40, 80, 160, 300, 300, 300]);
}

/// M03: many records that became unknown together are not asked about together.
#[test]
fn pauses_are_stretched_as_the_caller_drew() {
    let now = seen(unknown(Effects::Queryable), at(0));
    for (jitter_permille, millis) in [(800, 8_000), (1000, 10_000), (1200, 12_000)] {
        let backoff = Backoff { jitter_permille, ..BACKOFF };
        assert_eq!(pause(&shrug(&now, backoff)), Some(Duration::from_millis(millis)));
        assert_eq!(pause(&fail(&now, backoff)), Some(Duration::from_millis(millis)));
    }
}

/// U05: only answers are tries.
#[test]
fn a_record_is_a_dead_letter_after_so_many_answers_that_said_unknown() {
    let mut now = seen(unknown(Effects::Queryable), at(0));
    for answers in 1..=20 {
        let draft = shrug(&written(fail(&now, BACKOFF), at(0)), BACKOFF);
        assert_eq!(is_dead_letter(&draft), answers == 20, "after {answers}");
        assert_eq!(pause(&draft).is_none(), answers == 20);
        now = written(draft, at(0));
    }
    // Whoever had asked before may answer yet.
    let now = written(shrug(&written(fail(&now, BACKOFF), at(0)), BACKOFF), at(0));
    let flagged = now.record.history.entries.iter().filter(|entry| entry.what == What::DeadLetter).count();
    assert_eq!(flagged, 1);
}

/// U05, M03: an outage of the probe flags nothing, as long as it does not last for `reconcile_max` × `reconcile_tries_max`.
#[test]
fn failures_flag_a_record_only_by_time() {
    let mut now = seen(unknown(Effects::Queryable), at(0));
    for _ in 0..1_000 {
        now = written(fail(&now, BACKOFF), at(0));
    }
    assert!(!is_dead_letter(&now.record.draft()));
    // It became unknown 10 s before.
    for (since, is_flagged) in [(6_000 - 11, false), (6_000 - 10, true)] {
        let later = seen(Record::clone(&now.record), at(since));
        assert_eq!(is_dead_letter(&fail(&later, BACKOFF)), is_flagged, "{since}");
        assert_eq!(is_dead_letter(&shrug(&later, BACKOFF)), is_flagged, "{since}");
    }
    let spent: u64 = pauses(BACKOFF, fail).iter().sum();
    assert!((5_990..=6_290).contains(&spent), "{spent} s");
}

/// M03: five in a row are told to people, and the first answer ends the row.
#[test]
fn failures_are_counted_in_a_row() {
    let mut now = seen(unknown(Effects::Queryable), at(0));
    for failures in 1..=5 {
        now = written(fail(&now, BACKOFF), at(0));
        assert_eq!(machine::facts(&now.record).asking.failures, failures);
    }
    let entry = now.record.history.entries.last().unwrap();
    assert_eq!((entry.what, entry.said, entry.by), (What::Probe, Some(Said::Failed), Source::Probe));
    assert_eq!(entry.detail.as_deref(), Some("503 in 4 ms"));
    let shrugged = shrug(&now, BACKOFF).stamp(at(0));
    assert_eq!(machine::facts(&shrugged).asking.failures, 0);
    let early = machine::verdict(&now, &ruling(Source::Probe, said("did not")));
    let Ruled::Notes(early, _) = early else { panic!("too early to believe") };
    assert_eq!(machine::facts(&early.stamp(at(0))).asking.failures, 0);
}

/// U06: "did not happen" before it may be believed is no try: the probe is asked again once it may.
#[test]
fn an_early_did_not_happen_is_asked_about_once_it_may_be_believed() {
    let now = seen(unknown(Effects::Queryable), at(0));
    let believed_at = now.record.began_at.plus(Duration::from_secs(BELIEVED.unsigned_abs()));
    for by in [Source::Probe, Source::Webhook] {
        let Ruled::Notes(draft, earliest) = machine::verdict(&now, &ruling(by, said("did not"))) else {
            panic!("{by:?}");
        };
        assert_eq!(earliest, Some(believed_at));
        let facts = draft.stamp(at(0));
        let facts = machine::facts(&facts);
        assert_eq!((facts.ask_at, facts.asking.answers, facts.dead_letter), (Some(believed_at), 0, false));
    }
    // Nobody is asked where there is nobody to ask.
    let without = Ruling { probe: None, ..ruling(Source::Webhook, said("did not")) };
    let Ruled::Notes(draft, Some(_)) = machine::verdict(&now, &without) else { panic!("noted") };
    assert_eq!(machine::due(&draft).stamp(at(0)), None);
}

/// U05: a webhook that does not know is in the history, and nobody is asked sooner or later for it.
#[test]
fn a_webhook_that_does_not_know_leaves_the_schedule_alone() {
    let now = seen(unknown(Effects::Queryable), at(0));
    let Ruled::Notes(draft, None) = machine::verdict(&now, &ruling(Source::Webhook, said("unknown"))) else {
        panic!("noted");
    };
    assert_eq!(draft.state, now.record.draft().state);
}

/// U05: an operator has it asked at once; all tries count anew, and it is no dead letter any more.
#[test]
fn an_operator_has_the_probe_asked_anew() {
    let mut now = seen(unknown(Effects::Queryable), at(0));
    while !is_dead_letter(&now.record.draft()) {
        now = written(shrug(&now, BACKOFF), at(0));
    }
    let much_later = seen(Record::clone(&now.record), at(10 * HOUR));
    let anew = Ruling { about: About::Work, ..ruling(Source::Operator, said("unknown")) };
    let Ruled::Notes(draft, None) = machine::verdict(&much_later, &anew) else { panic!("noted") };
    assert_eq!(pause(&draft), Some(Duration::ZERO));
    let asked = draft.stamp(at(10 * HOUR));
    let facts = machine::facts(&asked);
    assert_eq!((facts.dead_letter, facts.asking.answers, facts.asking.failures), (false, 0, 0));
    assert_eq!(facts.since, Some(at(-10)), "it has been unknown since then all the same");
    // Both bounds count from here: the tries, and the time.
    let again = shrug(&seen(asked.clone(), at(10 * HOUR)), BACKOFF);
    assert_eq!((is_dead_letter(&again), pause(&again)), (false, Some(Duration::from_secs(10))));
    for (seconds, is_flagged) in [(5_999, false), (6_000, true)] {
        let later = seen(asked.clone(), at(10 * HOUR + seconds));
        assert_eq!(is_dead_letter(&fail(&later, BACKOFF)), is_flagged, "{seconds}");
    }
}

/// M03: asking is claimed: who loses the swap does not ask, and a node that dies is asked for later.
#[test]
fn a_question_is_claimed_for_a_while() {
    let twenty = Duration::from_secs(20);
    let record = unknown(Effects::Queryable);
    let (asked_at, early) = (at(1), Timestamp::from_micros(at(1).as_micros() - 1));
    assert_eq!(machine::ask(&seen(record.clone(), early), twenty), None, "not due yet");
    let draft = machine::ask(&seen(record.clone(), asked_at), twenty).expect("due");
    assert_eq!(pause(&draft), Some(twenty));
    let claimed = draft.stamp(asked_at);
    assert_eq!(claimed.history, record.history, "a claim is nothing to tell");
    assert_eq!(machine::ask(&seen(claimed.clone(), asked_at), twenty), None, "claimed");
    assert!(machine::ask(&seen(claimed, asked_at.plus(twenty)), twenty).is_some(), "the claim is over");
}

/// M03: what is settled, or runs, is asked about by nobody.
#[test]
fn only_unknown_records_are_asked_about() {
    for effects in Effects::ALL {
        for record in [pending(effects), running(effects), retryable(effects), completed(effects, None)] {
            let now = seen(record, at(HOUR));
            assert_eq!(machine::ask(&now, Duration::ZERO), None);
            assert_eq!(machine::probe_failed(&now, BACKOFF, "late"), None);
            assert_eq!(machine::schedule(&now, None), None);
            assert_eq!(machine::schedule(&now, Some(BACKOFF)), None);
        }
    }
}

/// M03: the settings changed, and the route has no probe any more.
#[test]
fn a_record_whose_probe_is_gone_is_not_due_any_more() {
    let now = seen(unknown(Effects::Queryable), at(5));
    let draft = machine::schedule(&now, None).expect("it is unknown");
    assert_eq!(machine::due(&draft).stamp(at(5)), None);
    assert!(!is_dead_letter(&draft), "nobody has given up: there is nobody to ask");
    let stopped = written(draft, at(5));
    assert_eq!(machine::ask(&stopped, Duration::ZERO), None);
    assert_eq!(machine::schedule(&stopped, None), None, "nothing is left to do");
}

/// M03: the settings changed, and the route has a probe by now. Dead letters wait for a person.
#[test]
fn a_record_whose_route_has_got_a_probe_is_asked_about() {
    let now = seen(unknown(Effects::Queryable), at(5));
    assert_eq!(machine::schedule(&now, Some(BACKOFF)), None, "it is asked about already");
    let stopped = written(machine::schedule(&now, None).expect("it is unknown"), at(5));
    let draft = machine::schedule(&stopped, Some(BACKOFF)).expect("it can be asked about");
    assert_eq!(pause(&draft), Some(BACKOFF.first));
    assert_eq!(draft.history, stopped.record.history, "a question to come is nothing to tell");
    let tried = Backoff { tries_max: 0, ..BACKOFF };
    let given_up = written(fail(&now, tried), at(5));
    assert_eq!(machine::schedule(&given_up, Some(BACKOFF)), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// U05, M03: whatever the probe does, and whatever was set, it is asked in the end for the last time.
    #[test]
    fn asking_comes_to_an_end(
        first in 1_u64..100, max in 1_u64..1_000, tries_max in 1_u32..30, jitter in 800_u32..1_200,
        fails in prop::collection::vec(any::<bool>(), 1..8),
    ) {
        let (first, max) = (Duration::from_secs(first), Duration::from_secs(max));
        let backoff = Backoff { first, max, tries_max, jitter_permille: jitter };
        let mut now = seen(unknown(Effects::Queryable), at(0));
        let mut ended = false;
        for turn in 0..10_000 {
            let draft = if fails[turn % fails.len()] { fail(&now, backoff) } else { shrug(&now, backoff) };
            let Some(pause) = pause(&draft) else {
                prop_assert!(is_dead_letter(&draft));
                ended = true;
                break;
            };
            prop_assert!(pause <= max.saturating_mul(jitter) / 1000);
            let later = now.now.plus(pause);
            now = seen(draft.stamp(now.now), later);
        }
        prop_assert!(ended, "asked for ever");
    }
}

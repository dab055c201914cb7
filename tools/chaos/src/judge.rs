//! Whether the promise was kept for a key: the checker of histories, and the ledger beside it, which must agree.

use std::collections::BTreeSet;

use onlyonce_testkit::history::{Effects, History, Stored, What, check};

use crate::final_state::FinalState;

/// What is broken; nothing where the promise was kept.
pub(crate) fn judge(history: &History, charges: usize, end: FinalState) -> Vec<String> {
    let mut broken: Vec<_> = check(history).iter().map(ToString::to_string).collect();
    let executed = history.events.iter().filter(|event| matches!(event.what, What::Executed { .. })).count();
    if executed != charges {
        broken.push(format!("the history has {executed} effects, and the ledger {charges}"));
    }
    let uses = 1 + history.events.iter().filter(|event| event.what == What::Expired).count();
    if charges > uses {
        broken.push(format!("the ledger has {charges} effects for {uses} uses of the key"));
    }
    match (end, charges) {
        (FinalState::Completed(200..=299) | FinalState::CompletedUnkept, 0) => {
            broken.push(format!("{end:?}, and no effect"));
        }
        (FinalState::Completed(402), 1..) => broken.push("declined, and an effect".to_owned()),
        _ => {}
    }
    if history.effects == Effects::Local {
        broken.extend(local(history, charges, end));
    }
    if end == FinalState::Unknown && history.effects == Effects::Keyed {
        broken.push("keyed work is unknown, though the service remembers its key".to_owned());
    }
    if end == FinalState::Unknown && history.effects == Effects::Queryable {
        broken.push("queryable work is unknown, though its probe can be asked".to_owned());
    }
    broken
}

/// Local work: whoever was told that it is done has its row, and everybody was told the same.
fn local(history: &History, rows: usize, end: FinalState) -> Vec<String> {
    let mut broken = Vec::new();
    let answers = history.events.iter().filter_map(|event| {
        let What::Answered { answer, .. } = &event.what else { return None };
        answer.code.is_none().then_some(answer)
    });
    let told: Vec<_> =
        answers.filter(|answer| answer.stored == Stored::Yes || answer.said.status == 201).collect();
    if told.iter().any(|answer| answer.said.status == 201) && rows != 1 {
        broken.push(format!("a client was told that it is done, and there are {rows} rows"));
    }
    if told.iter().any(|answer| answer.said != told[0].said) {
        let told: BTreeSet<_> = told.iter().map(|answer| (answer.said.status, &answer.said.body)).collect();
        broken.push(format!("clients were told {told:?}"));
    }
    if end == FinalState::Unknown {
        broken.push("local work is unknown, though its transaction says what became of it".to_owned());
    }
    broken
}

#[cfg(test)]
mod tests {
    use onlyonce_testkit::history::{Answer, Event, Meaning, Said};

    use super::*;

    const KEPT: FinalState = FinalState::Completed(201);

    fn said(body: &str) -> Said {
        Said { status: 201, body: body.to_owned() }
    }

    fn sent(request: u32, body: u32) -> What {
        What::Sent { request, body }
    }

    fn began(request: u32, token: u32) -> What {
        What::Began { request, token }
    }

    fn executed(token: u32, body: &str) -> What {
        What::Executed { token, said: said(body) }
    }

    fn ended(token: u32, body: &str) -> What {
        What::Ended { token, meaning: Meaning::Completed, said: Some(said(body)) }
    }

    fn answered(request: u32, body: &str, is_replay: bool) -> What {
        let answer = Answer { said: said(body), code: None, is_replay, stored: Stored::Yes };
        What::Answered { request, answer }
    }

    fn refused(request: u32, code: &str) -> What {
        let answer = Answer {
            said: Said { status: 409, body: String::new() },
            code: Some(code.to_owned()),
            is_replay: false,
            stored: Stored::Silent,
        };
        What::Answered { request, answer }
    }

    /// Sent, run, and told; then what follows.
    fn after_told(effects: Effects, then: &[What]) -> History {
        let told = [sent(1, 1), began(1, 1), executed(1, "a"), ended(1, "a"), answered(1, "a", false)];
        let events = told.iter().chain(then).zip(0..);
        let events = events.map(|(what, at)| Event { at, what: what.clone() }).collect();
        let (remembers_ms, swept_within_ms, deadline_ms) = (1_000_000, 10_000, 6_000);
        History { effects, remembers_ms, swept_within_ms, deadline_ms, is_over: true, events }
    }

    #[test]
    fn a_key_that_ran_and_is_replayed_is_in_order() {
        let history = after_told(Effects::Opaque, &[sent(2, 1), answered(2, "a", true)]);
        assert_eq!(judge(&history, 1, KEPT), [""; 0]);
        let unknown = after_told(Effects::Opaque, &[]);
        assert_eq!(
            judge(&unknown, 1, FinalState::Unknown),
            [""; 0],
            "whether it may be unknown is the history's to say"
        );
    }

    #[test]
    fn a_key_that_expired_may_be_used_anew_and_only_then() {
        let again = [sent(2, 2), began(2, 2), executed(2, "b"), ended(2, "b"), answered(2, "b", false)];
        let anew: Vec<_> = [What::Expired].iter().chain(&again).cloned().collect();
        assert_eq!(judge(&after_told(Effects::Opaque, &anew), 2, KEPT), [""; 0]);
        assert!(!judge(&after_told(Effects::Opaque, &again), 2, KEPT).is_empty());
        let twice: Vec<_> = anew.iter().cloned().chain([executed(2, "c")]).collect();
        assert!(!judge(&after_told(Effects::Opaque, &twice), 3, KEPT).is_empty());
    }

    /// Each is planted, and each is found.
    #[test]
    fn planted_violations_are_found() {
        let planted = [
            ("RanTwice", Effects::Opaque, 2, vec![executed(1, "b")]),
            (
                "RanAfterCompleted",
                Effects::Opaque,
                1,
                vec![sent(2, 1), began(2, 2), What::HungUp { request: 2 }],
            ),
            ("CommittedTwice", Effects::Local, 2, vec![executed(1, "b")]),
            ("DoubtedLocal", Effects::Local, 1, vec![sent(2, 1), refused(2, "idempotency_outcome_unknown")]),
            ("ForgotTooSoon", Effects::Keyed, 2, vec![executed(1, "b")]),
            ("ReplayDiffers", Effects::Opaque, 1, vec![ended(1, "b"), sent(2, 1), answered(2, "b", true)]),
            ("ForeignAnswer", Effects::Opaque, 1, vec![sent(2, 1), answered(2, "bob's", true)]),
            ("WentBack", Effects::Queryable, 1, vec![sent(2, 1), refused(2, "idempotency_outcome_unknown")]),
            (
                "OtherBodyRan",
                Effects::Keyed,
                1,
                vec![sent(2, 2), began(2, 2), ended(2, "a"), answered(2, "a", true)],
            ),
            (
                "OtherBodyToldElse",
                Effects::Opaque,
                1,
                vec![sent(2, 2), refused(2, "idempotency_key_in_progress")],
            ),
            (
                "RefusedYetRan",
                Effects::Opaque,
                1,
                vec![sent(2, 1), began(2, 2), refused(2, "upstream_unreachable")],
            ),
            ("NotItsOwn", Effects::Opaque, 1, vec![sent(2, 1), answered(2, "internal error", false)]),
            ("NeverServed", Effects::Opaque, 1, vec![What::GaveUp { request: 1 }]),
            ("Unanswered", Effects::Opaque, 1, vec![sent(2, 1)]),
        ];
        for (name, effects, charges, then) in planted {
            let broken = judge(&after_told(effects, &then), charges, KEPT);
            assert!(broken.iter().any(|broken| broken.starts_with(name)), "{name}: {broken:?}");
        }
    }

    /// W01
    #[test]
    fn local_work_that_is_told_as_done_has_one_row_and_one_answer() {
        let again = [sent(2, 1), answered(2, "a", true)];
        assert_eq!(judge(&after_told(Effects::Local, &again), 1, KEPT), [""; 0]);
        let found = |then: &[What], rows, end, words: &str| {
            let broken = judge(&after_told(Effects::Local, then), rows, end);
            assert!(broken.iter().any(|broken| broken.contains(words)), "{words}: {broken:?}");
        };
        found(&again, 0, KEPT, "and there are 0 rows");
        found(&again, 2, KEPT, "and there are 2 rows");
        found(&[sent(2, 1), answered(2, "b", true)], 1, KEPT, "clients were told {");
        found(&again, 1, FinalState::Unknown, "local work is unknown");
    }

    /// W01
    #[test]
    fn a_superseded_attempt_of_local_work_is_told_what_the_other_committed_and_nothing_else() {
        let told = |body: &str| {
            let superseded = [sent(1, 1), began(1, 1), sent(2, 1), began(2, 2), executed(2, "a")];
            let then = [ended(1, "own"), answered(1, body, false), What::HungUp { request: 2 }];
            let events = superseded.into_iter().chain(then).zip(0..);
            let events = events.map(|(what, at)| Event { at, what }).collect();
            judge(&History { events, ..after_told(Effects::Local, &[]) }, 1, KEPT)
        };
        assert_eq!(told("a"), [""; 0]);
        assert!(told("z").iter().any(|broken| broken.starts_with("NotItsOwn")), "{:?}", told("z"));
    }

    #[test]
    fn a_ledger_that_disagrees_is_found() {
        let history = after_told(Effects::Opaque, &[]);
        assert!(!judge(&history, 2, KEPT).is_empty(), "an effect that is in no history");
        assert!(!judge(&history, 0, KEPT).is_empty(), "a success without an effect");
        assert!(!judge(&history, 1, FinalState::Completed(402)).is_empty(), "declined, and charged");
        assert!(
            !judge(&after_told(Effects::Keyed, &[]), 1, FinalState::Unknown).is_empty(),
            "keyed, and in doubt"
        );
    }
}

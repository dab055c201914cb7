//! Whether the promise was kept for a key: the checker of histories, and the ledger beside it, which must agree.

use onlyonce_testkit::history::{Effects, History, What, check};

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
    if end == FinalState::Unknown && history.effects == Effects::Keyed {
        broken.push("keyed work is unknown, though the service remembers its key".to_owned());
    }
    if end == FinalState::Unknown && history.effects == Effects::Queryable {
        broken.push("queryable work is unknown, though its probe can be asked".to_owned());
    }
    broken
}

#[cfg(test)]
mod tests {
    use onlyonce_testkit::history::{Answer, Event, Meaning, Said, Stored};

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

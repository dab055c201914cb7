//! The checker checked: small histories in which one promise is broken, and some in which none is.
//!
//! Each is a script, one event a line: the moment, what happened, to whom. `s1` is request 1, `t1` the first token.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use super::{
    Answer, Broken, By, Effects, Event, History, Meaning, Said, State, Stored, Verdict, What, Written, check,
};

/// A run, completed and told: the beginning of most stories.
const COMPLETED: &str = "
    0 sent 1 body 1
    1 wrote t1 attempt 1 running until 4000
    2 began 1 t1
    3 executed t1 a
    4 ended t1 completed a
    5 wrote t1 attempt 1 completed a expires 60000
    6 own 1 a stored
";

/// R01, R02, R05, P01, U03: what is no violation.
#[test]
fn clean_histories_pass() {
    let clean: [(&str, Effects, &str); 11] = [
        ("run and replay", Effects::Opaque, "7 sent 2 body 1; 8 replay 2 a"),
        ("the other body is refused", Effects::Opaque, "7 sent 2 body 2; 8 refused 2 idempotency_key_reused"),
        (
            "used anew",
            Effects::Opaque,
            "60000 expired; 60001 sent 2 body 2; 60002 wrote t2 attempt 1 running until 64000; 60003 began 2 t2; 60004 executed t2 b; 60005 ended t2 completed b; 60006 wrote t2 attempt 1 completed b expires 99000; 60007 own 2 b stored",
        ),
        (
            "a replay that was asked for in time",
            Effects::Opaque,
            "59999 sent 2 body 1; 60000 expired; 60001 replay 2 a",
        ),
        ("hung up", Effects::Opaque, "7 sent 2 body 1; 8 hung up 2"),
        (
            "a local handler that goes on after its commit",
            Effects::Local,
            "60000 expired; 60000 healed; 60001 sent 2 body 1; 60002 wrote t2 attempt 1 running until 64000; 60003 began 2 t2; 60004 executed t2 b; 60004 wrote t2 attempt 1 completed b expires 99000; 60005 sent 3 body 1; 61900 refused 3 idempotency_key_in_progress; 62000 ended t2 completed b; 62001 own 2 b stored",
        ),
        (
            "lost with its node after its commit, and not past its deadline",
            Effects::Local,
            "60000 expired; 60001 sent 2 body 1; 60002 wrote t2 attempt 1 running until 64000; 60003 began 2 t2; 60004 executed t2 b; 60004 wrote t2 attempt 1 completed b expires 99000; 60005 hung up 2; 60006 healed; 70000 sent 3 body 1; 73003 refused 3 idempotency_key_in_progress",
        ),
        (
            "the late truth",
            Effects::Opaque,
            "60000 expired; 60001 sent 2 body 1; 60002 wrote t2 attempt 1 running until 64000; 60003 began 2 t2; 64001 wrote t2 attempt 1 unknown; 64002 executed t2 b; 64003 ended t2 completed b; 64004 wrote t2 attempt 1 completed b expires 99000; 64005 own 2 b stored",
        ),
        (
            "a verdict, then again",
            Effects::Queryable,
            "60000 expired; 60001 sent 2 body 1; 60002 wrote t2 attempt 1 running until 64000; 60003 began 2 t2; 64001 wrote t2 attempt 1 unknown; 64002 hung up 2; 90000 did not happen; 90000 wrote t2 attempt 1 retryable expires 99000; 90001 sent 3 body 1; 90001 wrote t3 attempt 2 running until 94000; 90002 began 3 t3; 90003 executed t3 b; 90004 ended t3 completed b; 90005 wrote t3 attempt 2 completed b expires 199000; 90006 own 3 b stored",
        ),
        (
            "keyed, lapsed and run again",
            Effects::Keyed,
            "160000 expired; 160001 sent 2 body 1; 160002 wrote t2 attempt 1 running until 164000; 160003 began 2 t2; 160004 executed t2 b; 164000 sent 3 body 1; 164000 wrote t3 attempt 2 running until 168000; 164001 began 3 t3; 164002 ended t3 completed b; 164003 wrote t3 attempt 2 completed b expires 199000; 164004 own 3 b stored; 164005 ended t2 completed b; 164006 replay 2 b",
        ),
        (
            "known by a verdict without its answer",
            Effects::Opaque,
            "60000 expired; 60001 sent 2 body 1; 60002 wrote t2 attempt 1 running until 64000; 60003 began 2 t2; 60004 executed t2 b; 64001 wrote t2 attempt 1 unknown; 64002 upstream 2; 64003 happened; 64003 wrote t2 attempt 1 completed - verdict expires 99000; 64004 sent 3 body 1; 64005 refused 3 idempotency_response_not_stored",
        ),
    ];
    for (name, effects, then) in clean {
        let history = history(effects, &format!("{COMPLETED}{}", then.replace("; ", "\n")));
        assert_eq!(check(&history), [], "{name}");
    }
    let unwatched = "0 sent 1 body 1\n1 began 1 t1\n2 executed t1 a\n3 ended t1 completed a\n4 own 1 a stored\n5 sent 2 body 1\n6 replay 2 a";
    assert_eq!(check(&history(Effects::Opaque, unwatched)), [], "without a look into the store");
}

/// What comes after [`COMPLETED`], and what is broken by it.
const AFTER_COMPLETED: &[(Broken, Effects, &str)] = &[
    (Broken::RanTwice, Effects::Opaque, "7 executed t1 b"),
    (Broken::RanTwice, Effects::Keyed, "55555 executed t1 b"),
    (Broken::CommittedTwice, Effects::Local, "7 executed t1 b"),
    (Broken::ForgotTooSoon, Effects::Keyed, "7 executed t1 b"),
    (Broken::ExecutedUnasked, Effects::Opaque, "7 executed t9 b"),
    (
        Broken::RanUnreserved,
        Effects::Opaque,
        "60000 expired; 60001 sent 2 body 1; 60002 began 2 t2; 60003 hung up 2",
    ),
    (Broken::BeganTwice, Effects::Keyed, "7 began 1 t1"),
    (
        Broken::RanAfterCompleted,
        Effects::Local,
        "7 wrote t2 attempt 2 running until 4007; 8 wrote t2 attempt 2 retryable expires 9000",
    ),
    (
        Broken::TokenReused,
        Effects::Keyed,
        "60000 expired; 60001 wrote t1 attempt 1 running until 64000; 64001 wrote t1 attempt 1 retryable expires 99000",
    ),
    (
        Broken::AttemptOutOfOrder,
        Effects::Keyed,
        "60000 expired; 60001 wrote t2 attempt 2 running until 64000; 64001 wrote t2 attempt 2 retryable expires 99000",
    ),
    (
        Broken::SupersededWrote,
        Effects::Keyed,
        "60000 expired; 60001 wrote t1 attempt 1 retryable expires 99000",
    ),
    (Broken::AnswerChanged, Effects::Opaque, "7 wrote t1 attempt 1 completed b expires 70000"),
    (Broken::AnswerChanged, Effects::Opaque, "7 wrote t1 attempt 1 unknown"),
    (Broken::DeletedAlive, Effects::Opaque, "59999 expired"),
    (Broken::ReplayDiffers, Effects::Opaque, "7 ended t1 completed b; 7 sent 2 body 1; 8 replay 2 b"),
    (Broken::ForeignAnswer, Effects::Opaque, "7 sent 2 body 1; 8 replay 2 theirs"),
    (Broken::ReplayedPastExpiry, Effects::Opaque, "60000 sent 2 body 1; 60001 replay 2 a"),
    (Broken::AnsweredOtherBody, Effects::Opaque, "7 sent 2 body 2; 8 replay 2 a"),
    (Broken::OtherBodyToldElse, Effects::Opaque, "7 sent 2 body 2; 8 refused 2 idempotency_key_in_progress"),
    (Broken::RefusedOwnBody, Effects::Opaque, "7 sent 2 body 1; 8 refused 2 idempotency_key_reused"),
    (Broken::NotItsOwn, Effects::Opaque, "7 sent 2 body 1; 8 own 2 a stored"),
    (Broken::DoubtWithoutCause, Effects::Opaque, "7 sent 2 body 1; 8 refused 2 idempotency_outcome_unknown"),
    (Broken::DoubtedLocal, Effects::Local, "7 sent 2 body 1; 8 refused 2 idempotency_outcome_unknown"),
    (
        Broken::NotStoredOfNothing,
        Effects::Opaque,
        "7 sent 2 body 1; 8 refused 2 idempotency_response_not_stored",
    ),
    (
        Broken::InProgressOfNothing,
        Effects::Opaque,
        "60000 expired; 60001 sent 2 body 1; 60002 refused 2 idempotency_key_in_progress",
    ),
    (Broken::Unanswered, Effects::Opaque, "7 sent 2 body 1"),
    (Broken::NeverServed, Effects::Opaque, "7 gave up 1"),
    (
        Broken::WaitedInVain,
        Effects::Opaque,
        "6 healed; 7 sent 2 body 1; 1006 refused 2 idempotency_key_in_progress",
    ),
    (
        Broken::WaitedInVain,
        Effects::Local,
        "6 healed; 3007 sent 2 body 1; 4006 refused 2 idempotency_key_in_progress",
    ),
    // Lost with its node after its commit: it cannot be running any more.
    (
        Broken::WaitedInVain,
        Effects::Local,
        "60000 expired; 60001 sent 2 body 1; 60002 wrote t2 attempt 1 running until 64000; 60003 began 2 t2; 60004 executed t2 b; 60004 wrote t2 attempt 1 completed b expires 99000; 60005 hung up 2; 60006 healed; 70000 sent 3 body 1; 73004 refused 3 idempotency_key_in_progress",
    ),
    (
        Broken::LapsedAlive,
        Effects::Opaque,
        "60000 expired; 60000 healed; 60001 sent 2 body 1; 60002 wrote t2 attempt 1 running until 64000; 60003 began 2 t2; 64001 wrote t2 attempt 1 unknown; 64002 ended t2 doubt; 64003 hung up 2",
    ),
    (
        Broken::Abandoned,
        Effects::Keyed,
        "60000 expired; 60000 healed; 60001 sent 2 body 1; 60002 wrote t2 attempt 1 running until 64000; 60003 began 2 t2; 60004 hung up 2; 60005 wrote t2 attempt 1 retryable expires 99000",
    ),
    (Broken::VerdictUntrue, Effects::Opaque, "60000 expired; 60001 happened"),
];

/// What comes after a reservation of token 2 in a new use of the key, and what is broken by it.
const AFTER_RESERVED: &[(Broken, Effects, &str)] = &[
    (
        Broken::OtherBodyRan,
        Effects::Keyed,
        "4 ended t2 doubt; 5 wrote t2 attempt 1 retryable expires 99999; 6 sent 3 body 2; 7 wrote t3 attempt 2 running until 4007; 8 began 3 t3; 9 ended t3 didnotrun; 10 wrote t3 attempt 2 retryable expires 99999; 11 hung up 3",
    ),
    (
        Broken::RanWithoutVerdict,
        Effects::Opaque,
        "4001 wrote t3 attempt 2 running until 8001; 8002 wrote t3 attempt 2 unknown",
    ),
    (
        Broken::RanWithoutVerdict,
        Effects::Queryable,
        "4001 wrote t2 attempt 1 unknown; 4002 wrote t3 attempt 2 running until 8002; 8003 wrote t3 attempt 2 unknown",
    ),
    (
        Broken::SupersededAlive,
        Effects::Local,
        "3999 wrote t3 attempt 2 running until 7999; 8000 wrote t3 attempt 2 retryable expires 99999",
    ),
    (Broken::ReleasedInDoubt, Effects::Opaque, "4001 wrote t2 attempt 1 retryable expires 99999"),
    (
        Broken::ReleasedInDoubt,
        Effects::Keyed,
        "4001 wrote t2 attempt 1 unknown; 4002 wrote t2 attempt 1 retryable expires 99999",
    ),
    (Broken::DoubtedLocal, Effects::Local, "4001 wrote t2 attempt 1 unknown"),
    (
        Broken::VerdictBelied,
        Effects::Queryable,
        "4001 wrote t2 attempt 1 unknown; 4002 did not happen; 4002 wrote t2 attempt 1 retryable expires 99999; 4003 executed t2 b",
    ),
    (
        Broken::VerdictUntrue,
        Effects::Queryable,
        "5 executed t2 b; 4001 wrote t2 attempt 1 unknown; 4002 did not happen; 4002 wrote t2 attempt 1 retryable expires 99999",
    ),
    (
        Broken::HandlerLied,
        Effects::Opaque,
        "4 ended t2 didnotrun; 5 wrote t2 attempt 1 retryable expires 99999; 6 executed t2 b",
    ),
    (
        Broken::SupersededWrote,
        Effects::Keyed,
        "4000 wrote t3 attempt 2 running until 8000; 4001 executed t2 b; 4002 ended t2 completed b; 4003 wrote t3 attempt 2 completed b expires 99999",
    ),
    (
        Broken::CompletedWithoutTruth,
        Effects::Opaque,
        "4 executed t2 b; 5 wrote t2 attempt 1 completed c expires 99999",
    ),
    (
        Broken::CompletedWithoutTruth,
        Effects::Opaque,
        "4 executed t2 b; 4001 wrote t2 attempt 1 unknown; 4002 wrote t2 attempt 1 completed - verdict expires 99999",
    ),
    (
        Broken::CompletedUnexecuted,
        Effects::Opaque,
        "4 ended t2 completed b; 5 wrote t2 attempt 1 completed b expires 99999",
    ),
    (Broken::DeletedAlive, Effects::Opaque, "4 expired"),
    (Broken::DeletedAlive, Effects::Opaque, "4001 wrote t2 attempt 1 unknown; 99999 expired"),
    (
        Broken::ReplayedNothing,
        Effects::Opaque,
        "4 executed t2 b; 5 ended t2 completed b; 6 sent 3 body 1; 7 replay 3 b; 4001 wrote t2 attempt 1 unknown",
    ),
    (
        Broken::NotDurable,
        Effects::Opaque,
        "4 executed t2 b; 5 ended t2 completed b; 6 own 2 b stored; 7 wrote t2 attempt 1 completed b expires 99999",
    ),
    (
        Broken::Unmarked,
        Effects::Opaque,
        "4 ended t2 didnotrun b; 5 wrote t2 attempt 1 retryable expires 99999; 6 own 2 b silent",
    ),
    (
        Broken::RefusedYetRan,
        Effects::Opaque,
        "4 ended t2 didnotrun; 5 wrote t2 attempt 1 retryable expires 99999; 6 refused 2 idempotency_store_unavailable",
    ),
    (
        Broken::WentBack,
        Effects::Opaque,
        "4 wrote t2 attempt 1 unknown; 5 executed t2 b; 6 ended t2 completed b; 7 wrote t2 attempt 1 completed b expires 99999; 8 sent 3 body 1; 9 refused 3 idempotency_outcome_unknown",
    ),
    (Broken::NeverEnded, Effects::Opaque, "4 ended t2 doubt"),
    (Broken::Unswept, Effects::Opaque, "3000 healed; 20000 wrote t2 attempt 1 unknown"),
    (
        Broken::TokenReused,
        Effects::Keyed,
        "4 ended t2 doubt; 5 wrote t2 attempt 1 retryable expires 99999; 6 wrote t2 attempt 1 running until 4006; 4007 wrote t2 attempt 1 retryable expires 99999",
    ),
];

/// R01, R02, R05, P01, F06, T03, U03: every one is flagged, by its name and by no other.
#[test]
fn planted_violations_are_flagged_by_name() {
    let reserved = "0 sent 2 body 1\n1 wrote t2 attempt 1 running until 4000\n2 began 2 t2\n3 hung up 2\n";
    let mut missed = Vec::new();
    let mut after = |base: &str, planted: &[(Broken, Effects, &str)]| {
        for (name, effects, then) in planted {
            let history = history(*effects, &format!("{base}{}", then.replace("; ", "\n")));
            let found: Vec<_> = check(&history).into_iter().map(|violation| violation.name).collect();
            if found != [*name] {
                missed.push(format!("{effects:?}: {then}: {found:?}, not {name:?}"));
            }
        }
    };
    after(COMPLETED, AFTER_COMPLETED);
    after(reserved, AFTER_RESERVED);
    assert_eq!(missed, [""; 0]);
    let planted = AFTER_COMPLETED.iter().chain(AFTER_RESERVED);
    let names: std::collections::BTreeSet<_> = planted.map(|(name, ..)| name).collect();
    assert_eq!(names.len(), Broken::Unswept as usize + 1, "a rule that nothing was planted against");
}

/// Without a look into the store, an answer is of the use that it was given in, however late it comes.
#[test]
fn an_answer_that_comes_after_its_use_of_the_key_is_no_violation() {
    let anew = "11 sent 3 body 1; 12 began 3 t3; 13 executed t3 b; 14 ended t3 completed b; 15 own 3 b stored; 16 sent 4 body 1; 17 replay 4 b";
    let run = "0 sent 1 body 1; 1 began 1 t1; 2 executed t1 a; 3 ended t1 completed a; 4 sent 2 body 1";
    for late in ["9 expired; 10 own 1 a stored; 10 replay 2 a", "9 expired; 10 replay 2 a; 10 own 1 a stored"]
    {
        let script = format!("{run}; {late}; {anew}").replace("; ", "\n");
        assert_eq!(check(&history(Effects::Opaque, &script)), [], "{late}");
    }
    // Two that wait for the second use, one of which has seen the first.
    let told = "0 sent 1 body 1; 1 began 1 t1; 2 executed t1 a; 3 ended t1 completed a; 4 own 1 a stored; 5 sent 2 body 1; 6 expired; \
                7 sent 3 body 1; 8 began 3 t3; 9 executed t3 b; 10 ended t3 completed b; 11 replay 2 b; 12 own 3 b stored";
    assert_eq!(check(&history(Effects::Opaque, &told.replace("; ", "\n"))), []);
}

/// U05: a probe settles what an attempt has left unknown before the attempt's own client was answered. The client is told the
/// probe's answer, and no other.
#[test]
fn an_attempt_in_doubt_may_be_answered_by_a_verdict() {
    let told = |answer: &str| {
        let script = format!(
            "0 sent 1 body 1; 1 began 1 t1; 2 executed t1 a; 3 ended t1 doubt; 4 happened a; 5 own 1 {answer} stored"
        );
        let history = history(Effects::Queryable, &script.replace("; ", "\n"));
        check(&history).into_iter().map(|violation| violation.name).collect::<Vec<_>>()
    };
    assert_eq!(told("a"), []);
    assert_eq!(told("b"), [Broken::NotItsOwn]);
}

/// Without a look into the store, what clients and the ledger saw must be enough.
#[test]
fn planted_violations_show_without_a_look_into_the_store() {
    let told = "0 sent 1 body 1\n1 began 1 t1\n2 executed t1 a\n3 ended t1 completed a\n4 own 1 a stored\n";
    for (name, then) in [
        (Broken::RanTwice, "5 executed t1 b"),
        (Broken::RanAfterCompleted, "5 sent 2 body 1; 6 began 2 t2; 7 hung up 2"),
        (Broken::ReplayDiffers, "5 ended t1 completed b; 5 sent 2 body 1; 6 replay 2 b"),
        (Broken::ForeignAnswer, "5 sent 2 body 1; 6 replay 2 theirs"),
        (Broken::WentBack, "5 sent 2 body 1; 6 refused 2 idempotency_outcome_unknown"),
        (Broken::AnsweredOtherBody, "5 sent 2 body 2; 6 replay 2 a"),
        (Broken::OtherBodyToldElse, "5 sent 2 body 2; 6 refused 2 idempotency_key_in_progress"),
        (Broken::NotItsOwn, "5 sent 2 body 1; 6 own 2 a stored"),
        (Broken::NeverServed, "5 gave up 1"),
        (Broken::ReplayedPastExpiry, "5 expired; 6 sent 2 body 1; 7 replay 2 a"),
        (
            Broken::RanAfterCompleted,
            "5 expired; 6 sent 2 body 1; 7 began 2 t2; 8 executed t2 b; 9 ended t2 completed b; 10 own 2 b stored; 11 sent 3 body 1; 12 began 3 t3; 13 hung up 3",
        ),
    ] {
        let history = history(Effects::Opaque, &format!("{told}{}", then.replace("; ", "\n")));
        let found: Vec<_> = check(&history).into_iter().map(|violation| violation.name).collect();
        assert_eq!(found, [name], "{then}");
    }
}

fn history(effects: Effects, script: &str) -> History {
    let lines = script.lines().map(str::trim).filter(|line| !line.is_empty());
    let events = lines.map(event).collect();
    History {
        effects,
        remembers_ms: 50_000,
        swept_within_ms: 10_000,
        deadline_ms: 12_000,
        is_over: true,
        events,
    }
}

fn event(line: &str) -> Event {
    let words: Vec<_> = line.split(' ').collect();
    let number = |index: usize| words[index].trim_start_matches('t').parse().unwrap();
    let said = |index: usize| said(words[index]);
    let what = match words[1..] {
        ["sent", ..] => What::Sent { request: number(2), body: number(4) },
        ["hung", "up", _] => What::HungUp { request: number(3) },
        ["gave", "up", _] => What::GaveUp { request: number(3) },
        ["began", ..] => What::Began { request: number(2), token: number(3) },
        ["executed", ..] => What::Executed { token: number(2), said: said(3) },
        ["ended", _, meaning, ..] => {
            What::Ended { token: number(2), meaning: meant(meaning), said: words.get(4).map(|_| said(4)) }
        }
        ["happened"] => What::Ruled(Verdict::Happened(None)),
        ["happened", _] => What::Ruled(Verdict::Happened(Some(said(2)))),
        ["did", ..] => What::Ruled(Verdict::DidNotHappen),
        ["wrote", ..] => {
            What::Wrote(Written { token: number(2), attempt: number(4), state: state(&words[5..]) })
        }
        ["expired"] => What::Expired,
        ["healed"] => What::Healed,
        ["refused", _, code] => told(number(2), said(3), Some(code), false, Stored::Silent),
        ["upstream", _] => told(number(2), said(1), Some("upstream_outcome_unknown"), false, Stored::No),
        ["replay", ..] => told(number(2), said(3), None, true, Stored::Yes),
        ["own", _, _, stored] => {
            let stored = if stored == "stored" { Stored::Yes } else { Stored::Silent };
            told(number(2), said(3), None, false, stored)
        }
        _ => panic!("no event: {line}"),
    };
    Event { at: words[0].parse().unwrap(), what }
}

fn told(request: u32, said: Said, code: Option<&str>, is_replay: bool, stored: Stored) -> What {
    What::Answered { request, answer: Answer { said, code: code.map(str::to_owned), is_replay, stored } }
}

fn said(body: &str) -> Said {
    Said { status: 201, body: body.to_owned() }
}

fn meant(word: &str) -> Meaning {
    match word {
        "completed" => Meaning::Completed,
        "didnotrun" => Meaning::DidNotRun,
        _ => Meaning::Doubt,
    }
}

fn state(words: &[&str]) -> State {
    let last = || words[words.len() - 1].parse().unwrap();
    match words[0] {
        "running" => State::Running { until: last() },
        "retryable" => State::Retryable { expires_at: last() },
        "unknown" => State::Unknown,
        "completed" => State::Completed {
            said: Some(said(words[1])).filter(|said| said.body != "-"),
            by: if words[2] == "verdict" { By::Verdict } else { By::Attempt },
            expires_at: last(),
        },
        other => panic!("no state: {other}"),
    }
}

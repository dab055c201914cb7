//! What becomes of a statement, by record and by what is said: the tables of the operators' contract, cell by cell.
//!
//! A table has a line for each record and a column for each statement. Unless its test says otherwise, a statement is about
//! the record's last attempt, on a route with a probe, and that attempt can act for some minutes yet.

use onlyonce_core::history::{Entry, What};
use onlyonce_core::key::Key;
use onlyonce_core::machine::{
    self, About, Admission, Decision, Finish, Force, Forget, Ignored, Request, Ruled, Ruling,
};
use onlyonce_core::outcome::Outcome;
use onlyonce_core::record::{
    Asking, Calling, Draft, Effects, Progress, Reason, Record, Seen, Source, State, Verdict, call_token,
};
use onlyonce_core::scope::Scope;

use crate::sample::{
    BELIEVED, EARLIER, FOREIGN, FRESH, HOUR, OWN, answer, at, completed, heard, in_doubt, lapsed, pending,
    policy, print, record, retryable, ruling, running, said, second, seen, unknown, written,
};

const UNREPEATABLE: [Effects; 2] = [Effects::Queryable, Effects::Opaque];

/// Judges every cell of a table and compares.
fn check(table: &str, judge: impl Fn(&str, &str) -> String) {
    let mut lines = table.lines().map(str::trim).filter(|line| !line.is_empty()).map(cells);
    let head = lines.next().expect("a table has a head");
    let mut wrong = Vec::new();
    for line in lines {
        assert_eq!(line.len(), head.len(), "{line:?}");
        for (word, expected) in head.iter().zip(&line).skip(1) {
            let result = judge(line[0], word);
            if result != *expected {
                wrong.push(format!("{} | {word}: expected {expected:?}, is {result:?}", line[0]));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}

fn cells(line: &str) -> Vec<&str> {
    line.split('|').map(str::trim).collect()
}

/// The records that the tables name.
fn named(name: &str, effects: Effects) -> Record {
    let time_over = |record: Record| Record { began_at: at(-BELIEVED), ..record };
    let expired = |mut record: Record| {
        match &mut record.state {
            State::Completed { expires_at, .. } | State::Retryable { expires_at, .. } => *expires_at = at(0),
            State::Pending { .. } | State::Running { .. } | State::Unknown { .. } => panic!("cannot expire"),
        }
        record
    };
    match name {
        "pending" => pending(effects),
        "pending after an attempt" => Record { attempt: 1, ..second(pending(effects)) },
        "running" => running(effects),
        "lapsed" => lapsed(effects),
        "lapsed, heard happened" => heard(lapsed(effects), said("happened")),
        "lapsed, heard never will" => heard(lapsed(effects), said("never will")),
        "unknown" => unknown(effects),
        "unknown, time over" => time_over(unknown(effects)),
        "unknown in doubt" => in_doubt(unknown(effects)),
        "unknown in doubt, time over" => time_over(in_doubt(unknown(effects))),
        "unknown, dead letter" => dead_letter(effects),
        "retryable" => retryable(effects),
        "retryable in doubt" => in_doubt(retryable(effects)),
        "retryable, expired" => expired(retryable(effects)),
        "completed 201" => completed(effects, Some(answer(201))),
        "completed 402" => completed(effects, Some(answer(402))),
        "completed bare" => completed(effects, None),
        "completed, expired" => expired(completed(effects, None)),
        other => panic!("no record {other:?}"),
    }
}

fn dead_letter(effects: Effects) -> Record {
    let state = State::Unknown {
        reason: Reason::Lapsed,
        since: at(-HOUR),
        asking: Asking { answers: 20, failures: 0, anew_at: None },
        ask_at: None,
        dead_letter: true,
    };
    record(effects, 60, state)
}

/// What became of a statement, in the words of the contract.
fn result(ruled: &Ruled) -> String {
    match ruled {
        Ruled::Settles(draft) => format!("applied: {}", state(draft)),
        Ruled::Keeps(_) => "evidence".into(),
        Ruled::Notes(draft, None) => format!("noted: {}", state(draft)),
        Ruled::Notes(draft, Some(earliest)) => {
            let began_at = draft.began_at.stamp(at(0));
            assert_eq!(earliest.since(began_at).as_secs(), BELIEVED.unsigned_abs());
            format!("noted: {}, early", state(draft))
        }
        Ruled::Contradicts(draft) => format!("contradiction: {}", state(draft)),
        Ruled::Ignores(Ignored::EarlierAttempt, Some(_)) => "ignored, kept".into(),
        Ruled::Ignores(Ignored::EarlierAttempt, None) => "ignored".into(),
        Ruled::Ignores(Ignored::AnyCall, draft) => {
            assert!(draft.is_some(), "a person may want to know");
            "ignored, any call".into()
        }
        Ruled::Ignores(Ignored::EarlierUse, draft) => {
            assert_eq!(*draft, None, "an earlier use leaves no trace in the next");
            "ignored, earlier use".into()
        }
        Ruled::Already => "already".into(),
        Ruled::StillRunning => "running".into(),
        Ruled::TooEarly(_) => "too early".into(),
        Ruled::Settled => "settled".into(),
        Ruled::NothingToAsk => "nothing to ask".into(),
        Ruled::Absent => "absent".into(),
    }
}

fn state(draft: &Draft) -> String {
    let doubt = if draft.relies_on_memory { " in doubt" } else { "" };
    match &draft.state {
        State::Pending { .. } => "pending".into(),
        State::Running { .. } => "running".into(),
        State::Completed { response: Some(response), .. } => format!("completed {}", response.status),
        State::Completed { response: None, .. } => "completed bare".into(),
        State::Retryable { .. } => format!("retryable{doubt}"),
        State::Unknown { .. } => format!("unknown{doubt}"),
    }
}

/// The draft that a statement leads to, where it leads to one.
fn draft(ruled: Ruled) -> Option<Box<Draft>> {
    match ruled {
        Ruled::Settles(draft) | Ruled::Keeps(draft) | Ruled::Notes(draft, _) | Ruled::Contradicts(draft) => {
            Some(draft)
        }
        Ruled::Ignores(_, draft) => draft,
        Ruled::Already
        | Ruled::StillRunning
        | Ruled::TooEarly(_)
        | Ruled::Settled
        | Ruled::NothingToAsk
        | Ruled::Absent => None,
    }
}

/// What becomes of a statement about a record that the tables name; the same for all these effects.
fn judged(kinds: &[Effects], name: &str, ruling: &Ruling) -> String {
    let results: Vec<String> = kinds
        .iter()
        .map(|effects| result(&machine::verdict(&seen(named(name, *effects), at(0)), ruling)))
        .collect();
    assert!(results.iter().all(|result| *result == results[0]), "{name}: {results:?} for {kinds:?}");
    results[0].clone()
}

fn by_operator(word: &str) -> Ruling {
    Ruling { about: About::Work, ..ruling(Source::Operator, said(word)) }
}

fn by_webhook(word: &str) -> Ruling {
    ruling(Source::Webhook, said(word))
}

/// U05, U06
#[test]
fn an_operators_verdict_is_judged_by_the_table_of_the_contract() {
    check(
        "
                             | happened                | never will         | did not            | unknown
        unknown              | applied: completed 201  | applied: retryable | too early          | noted: unknown
        unknown, time over   | applied: completed 201  | applied: retryable | applied: retryable | noted: unknown
        unknown, dead letter | applied: completed 201  | applied: retryable | too early          | noted: unknown
        unknown in doubt     | applied: completed 201  | too early          | too early          | noted: unknown in doubt
        unknown in doubt, time over | applied: completed 201 | applied: retryable | applied: retryable | noted: unknown in doubt
        running              | running                 | running            | running            | running
        lapsed               | applied: completed 201  | applied: retryable | too early          | noted: unknown
        pending              | settled                 | settled            | settled            | settled
        pending after an attempt | settled             | settled            | settled            | settled
        completed 201        | settled                 | settled            | settled            | settled
        completed bare       | settled                 | settled            | settled            | settled
        retryable            | settled                 | settled            | settled            | settled
        retryable in doubt   | settled                 | settled            | settled            | settled
        completed, expired   | absent                  | absent             | absent             | absent
        retryable, expired   | absent                  | absent             | absent             | absent
        ",
        |record, word| judged(&UNREPEATABLE, record, &by_operator(word)),
    );
}

/// U04, U05: what a lapsed attempt of local or keyed work is taken for while nobody has come for it.
#[test]
fn a_lapsed_attempt_that_may_run_again_takes_a_verdict_too() {
    check(
        "
                | happened               | never will         | did not   | unknown
        lapsed  | applied: completed 201 | applied: retryable | too early | noted: retryable
        ",
        |record, word| judged(&[Effects::Local], record, &by_operator(word)),
    );
    check(
        "
                | happened               | never will         | did not   | unknown
        lapsed  | applied: completed 201 | applied: retryable | too early | noted: retryable in doubt
        ",
        |record, word| judged(&[Effects::Keyed], record, &by_operator(word)),
    );
}

/// U05: a verdict on a retryable record says otherwise than the service did, so it names the attempt.
#[test]
fn on_a_retryable_record_an_operator_names_the_attempt() {
    check(
        "
                           | happened               | happened bare           | never will | did not | unknown
        retryable          | applied: completed 201 | applied: completed bare | settled    | settled | settled
        retryable in doubt | applied: completed 201 | applied: completed bare | settled    | settled | settled
        ",
        |record, word| judged(&Effects::ALL, record, &ruling(Source::Operator, said(word))),
    );
}

/// U05: naming another attempt than the last is a slip, and changes nothing, not even the history.
#[test]
fn an_operator_cannot_settle_by_a_token_that_is_not_the_last() {
    for word in ["happened", "never will", "did not", "unknown"] {
        for name in ["unknown", "lapsed", "retryable in doubt", "completed 201", "running"] {
            for force in [Force::No, Force::Yes] {
                let record = second(named(name, Effects::Opaque));
                let about = |token| Ruling { about: About::Attempt(token), force, ..by_operator(word) };
                let judged = |token| machine::verdict(&seen(record.clone(), at(0)), &about(token));
                assert_eq!(judged(EARLIER), Ruled::Ignores(Ignored::EarlierAttempt, None), "{name} {word}");
                assert_eq!(judged(FOREIGN), Ruled::Ignores(Ignored::EarlierUse, None), "{name} {word}");
            }
        }
    }
}

/// U05: force passes the live lease and the hour, and nothing else.
#[test]
fn force_passes_the_lease_and_the_hour_and_nothing_else() {
    check(
        "
                               | happened                | never will         | did not            | unknown
        unknown                | applied: completed 201  | applied: retryable | applied: retryable | noted: unknown
        unknown in doubt       | applied: completed 201  | applied: retryable | applied: retryable | noted: unknown in doubt
        running                | applied: completed 201  | applied: retryable | applied: retryable | noted: unknown
        lapsed                 | applied: completed 201  | applied: retryable | applied: retryable | noted: unknown
        lapsed, heard happened | applied: completed 201  | settled            | settled            | settled
        pending                | settled                 | settled            | settled            | settled
        completed 201          | settled                 | settled            | settled            | settled
        retryable              | settled                 | settled            | settled            | settled
        completed, expired     | absent                  | absent             | absent             | absent
        ",
        |record, word| {
            judged(&UNREPEATABLE, record, &Ruling { force: Force::Yes, ..by_operator(word) })
        },
    );
}

/// U05, R05: who was overruled writes nothing more; who only lost its lease may still bring the truth.
#[test]
fn a_forced_verdict_takes_the_token_and_a_forced_unknown_does_not() {
    let done = Outcome::Completed { response: Some(answer(201)), keep_for: None };
    for (word, is_overruled) in
        [("happened", true), ("never will", true), ("did not", true), ("unknown", false)]
    {
        for name in ["running", "lapsed"] {
            let forced = Ruling { force: Force::Yes, ..by_operator(word) };
            let ruled = machine::verdict(&seen(named(name, Effects::Opaque), at(0)), &forced);
            let after = written(draft(ruled).unwrap(), at(0));
            let is_superseded = machine::finish(Some(&after), OWN, &done) == Finish::Superseded;
            assert_eq!(is_superseded, is_overruled, "{word}, {name}");
            assert_eq!(after.record.token, if is_overruled { FRESH } else { OWN });
            assert_eq!(after.record.history.tokens, if is_overruled { vec![OWN] } else { vec![] });
        }
    }
}

/// U05: what a webhook knows better, it tells about the attempt that was overruled too.
#[test]
fn a_webhook_about_an_overruled_attempt_still_completes_the_record() {
    let forced = Ruling { force: Force::Yes, ..by_operator("did not") };
    let ruled = machine::verdict(&seen(running(Effects::Opaque), at(0)), &forced);
    let freed = written(draft(ruled).unwrap(), at(0));
    assert_eq!(result(&machine::verdict(&freed, &by_webhook("happened"))), "applied: completed 201");
    // An attempt that began meanwhile: the work is done twice, perhaps, and somebody has to be told.
    let later = Record { token: FRESH, attempt: 2, ..running(Effects::Opaque) };
    let later = Record { history: freed.record.history.clone(), ..later };
    let Ruled::Keeps(kept) = machine::verdict(&seen(later, at(0)), &by_webhook("happened")) else {
        panic!("kept as evidence");
    };
    assert!(last(&kept).contradicts);
    // The rerun of one that was lost expected as much.
    let rerun = in_doubt(running(Effects::Keyed));
    let about_lost = Ruling { about: About::Attempt(EARLIER), ..by_webhook("happened") };
    let Ruled::Keeps(kept) = machine::verdict(&seen(rerun, at(0)), &about_lost) else {
        panic!("kept as evidence");
    };
    assert!(!last(&kept).contradicts);
}

/// U05: there is no probe, so "ask again" would be a promise to nobody.
#[test]
fn nothing_is_asked_where_there_is_no_probe() {
    for name in ["unknown", "unknown, dead letter", "lapsed", "unknown in doubt"] {
        for effects in Effects::ALL {
            let without = Ruling { probe: None, ..by_operator("unknown") };
            assert_eq!(judged(&[effects], name, &without), "nothing to ask", "{name}");
        }
    }
}

/// U05, U06, U07, U09: what a webhook leads to that names the last attempt.
#[test]
fn a_webhook_is_judged_by_the_table_of_the_contract() {
    check(
        "
                                    | happened               | declined               | never will         | did not               | unknown
        unknown                     | applied: completed 201 | applied: completed 402 | applied: retryable | noted: unknown, early | noted: unknown
        unknown, time over          | applied: completed 201 | applied: completed 402 | applied: retryable | applied: retryable    | noted: unknown
        unknown, dead letter        | applied: completed 201 | applied: completed 402 | applied: retryable | noted: unknown, early | noted: unknown
        unknown in doubt            | applied: completed 201 | applied: completed 402 | noted: unknown in doubt, early | noted: unknown in doubt, early | noted: unknown in doubt
        unknown in doubt, time over | applied: completed 201 | applied: completed 402 | noted: unknown in doubt | noted: unknown in doubt | noted: unknown in doubt
        running                     | evidence               | evidence               | evidence           | evidence              | evidence
        lapsed                      | applied: completed 201 | applied: completed 402 | applied: retryable | noted: unknown, early | noted: unknown
        lapsed, heard happened      | applied: completed 201 | applied: completed 402 | contradiction: completed 201 | contradiction: completed 201 | already
        pending                     | ignored, earlier use   | ignored, earlier use   | ignored, earlier use | ignored, earlier use | ignored, earlier use
        completed 201               | already                | contradiction: completed 201 | contradiction: completed 201 | contradiction: completed 201 | already
        completed bare              | already                | contradiction: completed bare | contradiction: completed bare | contradiction: completed bare | already
        completed 402               | contradiction: completed 402 | already          | already            | already               | already
        retryable                   | applied: completed 201 | applied: completed 402 | already            | already               | already
        retryable in doubt          | applied: completed 201 | applied: completed 402 | already            | already               | already
        completed, expired          | absent                 | absent                 | absent             | absent                | absent
        retryable, expired          | absent                 | absent                 | absent             | absent                | absent
        ",
        |record, word| judged(&UNREPEATABLE, record, &by_webhook(word)),
    );
}

/// U04, U06: a probe and a person are asked about the work, also where they name its last attempt.
#[test]
fn a_probe_and_a_person_speak_of_the_work() {
    let table = "
                                    | never will                     | did not
        unknown in doubt, time over | applied: retryable             | applied: retryable
        unknown, time over          | applied: retryable             | applied: retryable
        ";
    for by in [Source::Probe, Source::Operator] {
        check(table, |record, word| judged(&Effects::ALL, record, &ruling(by, said(word))));
    }
}

/// U06: by scope and key the work is meant, whichever attempt did it.
#[test]
fn a_webhook_by_scope_and_key_is_about_the_work() {
    check(
        "
                                    | happened               | never will         | did not               | unknown
        unknown                     | applied: completed 201 | applied: retryable | noted: unknown, early | noted: unknown
        unknown in doubt            | applied: completed 201 | noted: unknown in doubt, early | noted: unknown in doubt, early | noted: unknown in doubt
        unknown in doubt, time over | applied: completed 201 | applied: retryable | applied: retryable    | noted: unknown in doubt
        running                     | evidence               | evidence           | evidence              | evidence
        pending                     | ignored, earlier use   | ignored, earlier use | ignored, earlier use | ignored, earlier use
        pending after an attempt    | applied: completed 201 | already            | already               | already
        completed 201               | already                | contradiction: completed 201 | contradiction: completed 201 | already
        retryable                   | applied: completed 201 | already            | already               | already
        ",
        |record, word| {
            judged(&UNREPEATABLE, record, &Ruling { about: About::Work, ..by_webhook(word) })
        },
    );
}

/// U06: of an earlier attempt only success counts, since then the work is done. Nothing else frees or ends the last one.
#[test]
fn of_an_earlier_attempt_only_success_counts() {
    let table = "
                                 | happened                     | happened bare                | declined      | never will    | did not       | unknown
        unknown                  | applied: completed 201       | applied: completed bare      | ignored, kept | ignored, kept | ignored, kept | ignored, kept
        unknown, time over       | applied: completed 201       | applied: completed bare      | ignored, kept | ignored, kept | ignored, kept | ignored, kept
        running                  | evidence                     | evidence                     | ignored, kept | ignored, kept | ignored, kept | ignored, kept
        lapsed                   | applied: completed 201       | applied: completed bare      | ignored, kept | ignored, kept | ignored, kept | ignored, kept
        pending after an attempt | applied: completed 201       | applied: completed bare      | ignored, kept | ignored, kept | ignored, kept | ignored, kept
        retryable                | applied: completed 201       | applied: completed bare      | ignored, kept | ignored, kept | ignored, kept | ignored, kept
        completed 402            | contradiction: completed 402 | contradiction: completed 402 | ignored, kept | ignored, kept | ignored, kept | ignored, kept
        completed, expired       | absent                       | absent                       | absent        | absent        | absent        | absent
        ";
    let about_earlier = |record: Record, word: &str| {
        let ruling = Ruling { about: About::Attempt(EARLIER), ..by_webhook(word) };
        result(&machine::verdict(&seen(record, at(0)), &ruling))
    };
    for effects in Effects::ALL {
        check(table, |record, word| about_earlier(second(named(record, effects)), word));
    }
    // The earlier one was taken not to have run, and the later one did the work: done twice.
    let twice = second(named("completed 201", Effects::Opaque));
    assert_eq!(about_earlier(twice, "happened"), "contradiction: completed 201");
    // The earlier one was lost, and downstream answered the later one with what it had done.
    let once = in_doubt(named("completed 201", Effects::Keyed));
    assert_eq!(about_earlier(once, "happened"), "ignored, kept");
}

/// U06: a token that this use of the key never had is of another use: nothing changes, not even the history.
#[test]
fn a_statement_about_an_earlier_use_of_the_key_counts_for_nothing() {
    for name in ["pending", "running", "lapsed", "unknown", "retryable", "completed 201"] {
        for word in ["happened", "declined", "never will", "did not", "unknown"] {
            for effects in Effects::ALL {
                for by in [Source::Webhook, Source::Probe, Source::Operator] {
                    let ruling = Ruling { about: About::Attempt(FOREIGN), ..ruling(by, said(word)) };
                    let record = second(named(name, effects));
                    let ruled = machine::verdict(&seen(record, at(0)), &ruling);
                    assert_eq!(ruled, Ruled::Ignores(Ignored::EarlierUse, None), "{name} {word}");
                }
            }
        }
    }
}

/// U09: whatever is said, a completed record keeps its answer, its token and its expiry.
#[test]
fn a_contradiction_changes_nothing_but_the_history() {
    for (record, word) in
        [("completed 201", "declined"), ("completed 402", "happened"), ("completed bare", "never will")]
    {
        let record = named(record, Effects::Opaque);
        let before = seen(record.clone(), at(0));
        let Ruled::Contradicts(draft) = machine::verdict(&before, &by_webhook(word)) else {
            panic!("{word}")
        };
        let after = draft.stamp(at(0));
        assert_eq!(after.state, record.state);
        let entry = after.history.entries.last().unwrap();
        assert!(entry.contradicts && entry.what == What::Webhook, "{entry:?}");
        // When it was completed was told by the moment of the last write, which is another one now.
        let told = after.history.entries.iter().find(|entry| entry.what == What::Completed).unwrap();
        assert_eq!(told.at, record.written_at);
    }
}

/// What is kept of two statements that come one after the other while the attempt runs.
fn kept(first: &str, then: &str) -> (Verdict, bool) {
    let mut now = seen(running(Effects::Opaque), at(0));
    let mut contradicts = false;
    for word in [first, then] {
        let Ruled::Keeps(draft) = machine::verdict(&now, &by_webhook(word)) else { panic!("{word}") };
        contradicts = last(&draft).contradicts;
        now = written(draft, at(0));
    }
    let evidence = now.record.evidence.as_ref().expect("something is kept");
    (evidence.verdict.clone(), contradicts)
}

fn last(draft: &Draft) -> &Entry {
    draft.history.entries.last().expect("it has a history")
}

/// U05, U09: the strongest evidence is kept, not the last; of two as strong the first. Two that cannot both be true of one
/// attempt are a contradiction; that the effect turned up after somebody looked is none.
#[test]
fn a_stronger_statement_replaces_a_weaker_one_and_never_the_other_way() {
    const WORDS: [&str; 5] = ["unknown", "did not", "never will", "happened", "declined"];
    let strength = |word: &str| WORDS.iter().position(|each| *each == word).map(|place| place.min(3));
    for first in WORDS {
        for then in WORDS {
            let (verdict, _) = kept(first, then);
            let stronger = if strength(then) > strength(first) { then } else { first };
            assert_eq!(verdict, said(stronger), "{first}, then {then}");
        }
    }
    for (first, then, contradicts) in [
        ("unknown", "happened", false),
        ("did not", "happened", false),
        ("never will", "happened", true),
        ("happened", "did not", true),
        ("happened", "never will", true),
        ("happened", "declined", true),
        ("declined", "happened", true),
        ("happened", "happened", false),
        ("happened", "unknown", false),
        ("never will", "did not", false),
    ] {
        assert_eq!(kept(first, then).1, contradicts, "{first}, then {then}");
    }
}

/// U05, U09: who said what, when, and about which attempt.
#[test]
fn evidence_says_where_it_came_from() {
    let mut ruling = by_webhook("happened");
    ruling.statement.source = Some("stripe".into());
    ruling.statement.detail = Some("payment_intent.succeeded evt_1".into());
    let Ruled::Keeps(draft) = machine::verdict(&seen(running(Effects::Opaque), at(3)), &ruling) else {
        panic!("kept");
    };
    let evidence = draft.evidence.as_ref().unwrap();
    assert_eq!((evidence.by, evidence.at, evidence.attempt), (Source::Webhook, at(3), 1));
    assert_eq!(evidence.source.as_deref(), Some("stripe"));
    let entry = last(&draft);
    assert_eq!((entry.what, entry.at, entry.source.as_deref()), (What::Webhook, at(3), Some("stripe")));
    assert_eq!(entry.detail.as_deref(), Some("payment_intent.succeeded evt_1"));
}

/// Everything that finds an attempt lost, and what it writes.
fn losses(lost: &Record) -> Vec<(&'static str, Box<Draft>)> {
    let now = seen(lost.clone(), at(0));
    let in_doubt = Outcome::Unknown(Reason::ConnectionLost);
    let Finish::Write(ended) = machine::finish(Some(&now), lost.token, &in_doubt) else { panic!("written") };
    vec![
        ("sweep", machine::sweep(&now).expect("its lease has lapsed")),
        ("abandon", machine::abandon(&now).expect("its process is dead")),
        ("in doubt", ended),
        ("decide", settled_by_decide(&now)),
    ]
}

fn settled_by_decide(now: &Seen) -> Box<Draft> {
    let decision = decide(now);
    let Decision::Settle(draft) = decision else { panic!("{decision:?}") };
    draft
}

fn decide(now: &Seen) -> Decision {
    let policy = policy(now.record.terms.effects);
    let (scope, key) = (Scope::stored([7; 32], None), Key::stored("order-42"));
    let request = Request {
        scope: &scope,
        key: &key,
        route: None,
        fingerprint: &print(1),
        policy: &policy,
        token: FRESH,
        admission: Admission::Run,
        trace: None,
    };
    machine::decide(Some(now), &request)
}

/// U05: known to be done is not run again, also where downstream would deduplicate it or nothing foreign was touched.
#[test]
fn a_lost_attempt_of_any_kind_is_completed_by_evidence_that_it_happened() {
    for effects in Effects::ALL {
        for record in [lapsed(effects), in_doubt(lapsed(effects))] {
            for (who, draft) in losses(&heard(record, said("happened"))) {
                assert_eq!(state(&draft), "completed 201", "{who}, {effects:?}");
                assert!(matches!(draft.state, State::Completed { by: Source::Webhook, .. }), "{who}");
                assert_eq!(decide(&written(draft, at(0))), Decision::Replay);
            }
        }
    }
}

/// U05: a decline is an answer too.
#[test]
fn a_lost_attempt_is_completed_by_evidence_that_it_was_declined() {
    for (who, draft) in losses(&heard(lapsed(Effects::Keyed), said("declined"))) {
        assert_eq!(state(&draft), "completed 402", "{who}");
    }
}

/// U04, U06: a final word is about one token. Where an earlier attempt was lost, that one may still act or have acted.
#[test]
fn a_final_word_about_one_attempt_does_not_clear_another_that_was_lost() {
    for effects in UNREPEATABLE {
        for (who, draft) in losses(&heard(lapsed(effects), said("never will"))) {
            assert_eq!(state(&draft), "retryable", "{who}, {effects:?}");
        }
        for (who, draft) in losses(&heard(in_doubt(lapsed(effects)), said("never will"))) {
            assert_eq!(state(&draft), "unknown in doubt", "{who}, {effects:?}");
        }
    }
    let swept = |record: Record| state(&machine::sweep(&seen(record, at(0))).unwrap());
    let keyed = heard(lapsed(Effects::Keyed), said("never will"));
    assert_eq!(
        swept(keyed.clone()),
        "retryable in doubt",
        "it runs again, and relies on downstream's memory"
    );
    let forgotten = Record { created_at: at(-23 * HOUR), ..keyed };
    assert_eq!(swept(forgotten.clone()), "retryable", "no other attempt was lost");
    assert_eq!(swept(in_doubt(forgotten)), "unknown in doubt");
}

/// U06: what nothing had come of by then may have come of since.
#[test]
fn an_early_did_not_happen_is_never_applied_later() {
    for effects in UNREPEATABLE {
        for (who, draft) in losses(&heard(lapsed(effects), said("did not"))) {
            assert_eq!(state(&draft), "unknown", "{who}");
        }
        let Ruled::Notes(draft, _) = machine::verdict(&seen(unknown(effects), at(0)), &by_webhook("did not"))
        else {
            panic!("noted");
        };
        let later = seen(draft.stamp(at(0)), at(HOUR));
        assert_eq!(machine::sweep(&later), None);
        assert!(machine::is_unknown(&later.record));
    }
}

/// U05, U09: an attempt that says that it did not run, and a webhook that it happened.
#[test]
fn an_attempt_that_did_not_run_is_completed_where_it_is_known_to_have_happened() {
    let did_not_run = Outcome::DidNotRun { retry_after: None, keep_for: None };
    let ended = |record: Record| {
        let record = heard(record, said("happened"));
        let finish = machine::finish(Some(&seen(record, at(0))), OWN, &did_not_run);
        let Finish::Write(draft) = finish else { panic!("{finish:?}") };
        draft
    };
    for effects in Effects::ALL {
        for record in [running(effects), lapsed(effects)] {
            let draft = ended(record.clone());
            assert_eq!(state(&draft), "completed 201", "{effects:?}");
            let contradictions: Vec<_> =
                draft.history.entries.iter().filter(|entry| entry.contradicts).collect();
            assert_eq!(contradictions.len(), 1);
            assert_eq!((contradictions[0].what, contradictions[0].by), (What::Retryable, Source::Attempt));
            // A rerun that downstream refused because the lost attempt was under way there.
            let rerun = ended(in_doubt(record));
            assert_eq!(state(&rerun), "completed 201");
            assert!(rerun.history.entries.iter().all(|entry| !entry.contradicts), "both are right");
        }
    }
}

/// R05: an attempt that ends by itself says how it ended, whatever was heard before.
#[test]
fn an_attempts_own_completion_counts_whatever_was_heard() {
    let done = Outcome::Completed { response: Some(answer(200)), keep_for: None };
    for word in ["happened", "declined", "never will", "did not", "unknown"] {
        let record = heard(running(Effects::Opaque), said(word));
        let Finish::Write(draft) = machine::finish(Some(&seen(record, at(0))), OWN, &done) else {
            panic!("{word}");
        };
        assert_eq!(state(&draft), "completed 200", "{word}");
        assert_eq!(draft.evidence, None);
    }
}

/// T03, U05: what nobody knows is not forgotten by a slip: the next retry would run it again.
#[test]
fn forgetting_what_runs_or_is_unknown_needs_force() {
    let forget = |record: &Record, force| match machine::forget(&seen(record.clone(), at(0)), FRESH, force) {
        Forget::Write(_) => "forgotten",
        Forget::StillRunning => "running",
        Forget::Unknown => "unknown",
        Forget::Absent => "absent",
    };
    for (name, plainly) in [
        ("pending", "forgotten"),
        ("running", "running"),
        ("lapsed", "unknown"),
        ("unknown", "unknown"),
        ("unknown, dead letter", "unknown"),
        ("unknown in doubt", "unknown"),
        ("retryable", "forgotten"),
        ("completed 201", "forgotten"),
        ("completed, expired", "absent"),
        ("retryable, expired", "absent"),
    ] {
        let record = named(name, Effects::Opaque);
        assert_eq!(forget(&record, Force::No), plainly, "{name}");
        let forced = if plainly == "absent" { "absent" } else { "forgotten" };
        assert_eq!(forget(&record, Force::Yes), forced, "{name}, forced");
    }
    // Keyed work that downstream would deduplicate is no riddle, until downstream may have forgotten.
    let keyed = in_doubt(retryable(Effects::Keyed));
    assert_eq!(forget(&keyed, Force::No), "forgotten");
    assert_eq!(forget(&Record { created_at: at(-23 * HOUR), ..keyed }, Force::No), "unknown");
}

/// R05, U09: nothing of a forgotten record stays behind to be mistaken for the next use's.
#[test]
fn a_forgotten_record_leaves_nothing_to_the_next_use() {
    let record = in_doubt(heard(running(Effects::Keyed), said("happened")));
    let Forget::Write(draft) = machine::forget(&seen(record, at(0)), FRESH, Force::Yes) else {
        panic!("forced");
    };
    assert!(draft.history.is_empty());
    assert_eq!((draft.evidence.as_ref(), draft.relies_on_memory, draft.token), (None, false, FRESH));
    assert_eq!(draft.progress, Progress::default());
}

/// A handler made of phases: its last attempt with a call under way, or between two calls.
fn phased(record: Record, recovery_point: Option<&str>, calling: Option<&str>) -> Record {
    let calling = calling.map(|phase| Calling { phase: phase.into(), effects: record.terms.effects });
    let progress = Progress { recovery_point: recovery_point.map(Into::into), calling, found: None };
    Record { progress, ..record }
}

/// W04, U05: of a handler made of phases a webhook tells about one call. The rest is still to be done.
#[test]
fn happened_about_a_call_goes_on_behind_it_and_is_told_twice_without_harm() {
    let before = phased(lapsed(Effects::Keyed), None, Some("charge"));
    let lost = written(machine::sweep(&seen(before, at(0))).unwrap(), at(0));
    assert_eq!(state(&lost.record.draft()), "retryable in doubt");
    let Ruled::Settles(draft) = machine::verdict(&lost, &by_webhook("happened")) else { panic!("settled") };
    assert_eq!(state(&draft), "retryable");
    assert_eq!(draft.progress.recovery_point.as_deref(), Some("charge"));
    assert_eq!(draft.progress.found, Some(answer(201)));
    let behind = written(draft, at(0));
    assert_eq!(machine::verdict(&behind, &by_webhook("happened")), Ruled::Already);
    assert_eq!(machine::verdict(&behind, &ruling(Source::Operator, said("happened"))), Ruled::Settled);
}

/// W04, U05: between two calls everything a webhook can speak of is on record.
#[test]
fn a_webhook_between_two_calls_settles_nothing() {
    for effects in Effects::ALL {
        for record in [running(effects), lapsed(effects), unknown(effects), retryable(effects)] {
            for word in ["happened", "never will", "did not"] {
                let record = phased(record.clone(), Some("charge"), None);
                let ruled = machine::verdict(&seen(record, at(0)), &by_webhook(word));
                assert_eq!(ruled, Ruled::Already, "{word}");
            }
        }
    }
}

/// W04, U03, U05: behind a recovery point a word that names no call may be a late one about an earlier call. Believed, "happened"
/// would leave a call out, and "never will" would make one twice.
#[test]
fn a_webhook_that_names_no_call_settles_none_behind_a_recovery_point() {
    for effects in Effects::ALL {
        for record in [running(effects), lapsed(effects), unknown(effects), retryable(effects)] {
            for word in ["happened", "never will", "did not"] {
                for about in [About::Attempt(OWN), About::Work] {
                    let record = phased(record.clone(), Some("charge"), Some("ship"));
                    let ruling = Ruling { about, ..by_webhook(word) };
                    let before = seen(record, at(0));
                    let ruled = machine::verdict(&before, &ruling);
                    assert_eq!(result(&ruled), "ignored, any call", "{word}");
                    let Ruled::Ignores(_, Some(draft)) = ruled else { panic!("kept") };
                    assert_eq!(draft.state.name(), before.record.state.name());
                    assert_eq!(draft.evidence, before.record.evidence);
                }
            }
        }
    }
}

/// W04, U05: a webhook that names a call by its own token settles that call, as this attempt or an earlier one made it.
#[test]
fn a_webhook_that_names_a_call_settles_that_call() {
    for attempt in [OWN, EARLIER] {
        let about = About::Attempt(call_token(attempt, "ship"));
        let ruling = Ruling { about, ..by_webhook("happened") };
        let running = phased(second(running(Effects::Opaque)), Some("charge"), Some("ship"));
        assert_eq!(result(&machine::verdict(&seen(running, at(0)), &ruling)), "evidence");
        for record in [unknown(Effects::Opaque), lapsed(Effects::Opaque), retryable(Effects::Opaque)] {
            let record = phased(second(record), Some("charge"), Some("ship"));
            let Ruled::Settles(draft) = machine::verdict(&seen(record, at(0)), &ruling) else {
                panic!("settled")
            };
            assert_eq!(draft.progress.recovery_point.as_deref(), Some("ship"));
            assert_eq!(draft.progress.found, Some(answer(201)));
        }
    }
    // Of an earlier attempt's call anything but success says nothing about the last one's.
    let ruling = Ruling { about: About::Attempt(call_token(EARLIER, "ship")), ..by_webhook("never will") };
    let record = phased(second(unknown(Effects::Opaque)), Some("charge"), Some("ship"));
    assert_eq!(result(&machine::verdict(&seen(record.clone(), at(0)), &ruling)), "ignored, kept");
    let ruling = Ruling { about: About::Attempt(call_token(OWN, "ship")), ..ruling };
    assert_eq!(result(&machine::verdict(&seen(record, at(0)), &ruling)), "applied: retryable");
}

/// W04, U05: a late webhook about a call whose result is on record says nothing about the next call.
#[test]
fn a_late_webhook_about_an_earlier_call_changes_nothing() {
    for effects in Effects::ALL {
        for record in [running(effects), lapsed(effects), unknown(effects), retryable(effects)] {
            for calling in [None, Some("ship")] {
                for word in ["happened", "never will", "did not"] {
                    let record = phased(second(record.clone()), Some("charge"), calling);
                    let judged = |token| {
                        let ruling = Ruling { about: About::Attempt(token), ..by_webhook(word) };
                        result(&machine::verdict(&seen(record.clone(), at(0)), &ruling))
                    };
                    for attempt in [OWN, EARLIER] {
                        assert_eq!(judged(call_token(attempt, "charge")), "already", "{word}");
                        assert_eq!(judged(call_token(attempt, "order")), "ignored, earlier use", "{word}");
                    }
                    assert_eq!(judged(call_token(FOREIGN, "ship")), "ignored, earlier use", "{word}");
                }
            }
        }
    }
}

/// W04: an attempt before the recovery point had another call under way.
#[test]
fn an_earlier_attempt_does_not_settle_the_call_of_a_later_phase() {
    for record in [unknown(Effects::Local), running(Effects::Local), retryable(Effects::Local)] {
        let record = phased(second(record), Some("charge"), Some("ship"));
        let ruling = Ruling { about: About::Attempt(EARLIER), ..by_webhook("happened") };
        let ruled = machine::verdict(&seen(record, at(0)), &ruling);
        assert_eq!(result(&ruled), "ignored, kept");
    }
}

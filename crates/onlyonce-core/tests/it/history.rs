//! What a record tells of itself: its history, its time line, a sentence, and what may be done about it.

use onlyonce_core::history::{Entry, FIRST_KEPT, LAST_KEPT, Said, What};
use onlyonce_core::machine::{
    self, About, Action, Admission, Decision, Finish, Force, Refused, Request, Ruled, Ruling,
};
use onlyonce_core::outcome::Outcome;
use onlyonce_core::record::{Draft, Effects, Reason, Record, Seen, Source, State, Token};
use onlyonce_core::scope::Scope;
use onlyonce_core::time::Timestamp;

use crate::sample::{
    BACKOFF, BELIEVED, EARLIER, HOUR, NOW, OWN, PAUSE_MAX, answer, at, completed, heard, in_doubt, lapsed,
    pending, policy, print, record, retryable, ruling, running, said, second, seen, unknown, written,
};

/// An entry in one line: when, which attempt, what, by whom, and what was said.
fn line(entry: &Entry) -> String {
    let seconds = entry.at.as_micros() / 1_000_000 - NOW;
    let mut line = format!("{seconds} #{} {} by {}", entry.attempt, entry.what.as_str(), entry.by.as_str());
    for (label, text) in [
        ("says", entry.said.map(Said::as_str)),
        ("of", entry.source.as_deref()),
        ("who", entry.who.as_deref()),
        ("detail", entry.detail.as_deref().filter(|_| entry.what != What::Lapsed)),
    ] {
        if let Some(text) = text {
            line = format!("{line}, {label} {text}");
        }
    }
    if entry.contradicts { format!("{line}, contradicts") } else { line }
}

fn lines(record: &Record) -> Vec<String> {
    machine::time_line(record).iter().map(line).collect()
}

/// One record's story: each step is judged on what stands there, and written.
struct Story {
    now: Seen,
}

impl Story {
    fn of(record: Record) -> Self {
        Self { now: seen(record, at(0)) }
    }

    fn at(&mut self, seconds: i64) -> &mut Self {
        self.now.now = at(seconds);
        self
    }

    fn write(&mut self, draft: Box<Draft>) -> &mut Self {
        self.now = written(draft, self.now.now);
        self
    }

    fn says(&mut self, ruling: &Ruling) -> &mut Self {
        let draft = match machine::verdict(&self.now, ruling) {
            Ruled::Settles(draft)
            | Ruled::Keeps(draft)
            | Ruled::Notes(draft, _)
            | Ruled::Contradicts(draft)
            | Ruled::Ignores(_, Some(draft)) => draft,
            other @ (Ruled::Ignores(_, None)
            | Ruled::Already
            | Ruled::StillRunning
            | Ruled::TooEarly(_)
            | Ruled::Settled
            | Ruled::NothingToAsk
            | Ruled::Absent) => panic!("{other:?} writes nothing"),
        };
        self.write(draft)
    }

    fn ends(&mut self, outcome: &Outcome) -> &mut Self {
        match machine::finish(Some(&self.now), self.now.record.token, outcome) {
            Finish::Write(draft) => self.write(draft),
            other @ (Finish::Already | Finish::Known | Finish::Superseded) => panic!("{other:?}"),
        }
    }

    fn swept(&mut self) -> &mut Self {
        let draft = machine::sweep(&self.now).expect("there is something to sweep");
        self.write(draft)
    }

    fn requested(&mut self, token: Token, admission: Admission) -> &mut Self {
        let policy = policy(self.now.record.terms.effects);
        let request = Request {
            scope: &Scope::stored([7; 32], None),
            key: &self.now.record.key.clone(),
            route: None,
            fingerprint: &print(1),
            policy: &policy,
            token,
            admission,
            trace: None,
        };
        match machine::decide(Some(&self.now), &request) {
            Decision::Begin(draft) | Decision::Settle(draft) => self.write(draft),
            other @ (Decision::Replay | Decision::Refuse(_)) => panic!("{other:?}"),
        }
    }

    fn tells(&self, expected: &[&str]) {
        assert_eq!(lines(&self.now.record), expected);
    }
}

fn did_not_run() -> Outcome {
    Outcome::DidNotRun { retry_after: None, keep_for: None }
}

fn done() -> Outcome {
    Outcome::Completed { response: Some(answer(201)), keep_for: None }
}

/// By Ann, who checked with the bank.
fn anns(word: &str, force: Force) -> Ruling {
    let mut ruling = Ruling { force, about: About::Work, ..ruling(Source::Operator, said(word)) };
    ruling.statement.who = Some("ann".into());
    ruling.statement.detail = Some("checked".into());
    ruling
}

fn stripes(word: &str) -> Ruling {
    let mut ruling = ruling(Source::Webhook, said(word));
    ruling.statement.source = Some("stripe".into());
    ruling.statement.detail = Some("evt_1".into());
    ruling
}

/// U09: it costs the ordinary request nothing, and is told all the same.
#[test]
fn an_ordinary_record_has_no_history_and_still_a_time_line() {
    let mut story = Story::of(running(Effects::Opaque));
    story.at(3).ends(&done());
    assert!(story.now.record.history.is_empty());
    story.tells(&["-10 #1 attempt by attempt", "3 #1 completed by attempt"]);
    let accepted = pending(Effects::Opaque);
    assert_eq!(lines(&accepted), Vec::<String>::new(), "no attempt has begun");
}

/// U09
#[test]
fn doubt_questions_and_a_verdict_are_told_in_the_order_of_time() {
    let mut story = Story::of(running(Effects::Queryable));
    story.at(1).ends(&Outcome::Unknown(Reason::ConnectionLost));
    story.at(6).says(&ruling(Source::Probe, said("unknown")));
    let failed = machine::probe_failed(&story.at(9).now, BACKOFF, "time-out").unwrap();
    story.write(failed);
    story.at(12).says(&ruling(Source::Probe, said("did not")));
    story.at(15).says(&stripes("unknown"));
    story.at(20).says(&anns("happened", Force::No));
    story.tells(&[
        "-10 #1 attempt by attempt",
        "1 #1 unknown by attempt, detail the connection broke after the request was sent",
        "6 #1 probe by probe, says unknown",
        "9 #1 probe by probe, says failed, detail time-out",
        "12 #1 probe by probe, says did-not-happen",
        "15 #1 webhook by webhook, says unknown, of stripe, detail evt_1",
        "20 #1 verdict by operator, says happened, who ann, detail checked",
        "20 #1 completed by operator",
    ]);
}

/// U09
#[test]
fn a_lost_attempt_and_the_one_after_it_are_told_apart() {
    let mut story = Story::of(lapsed(Effects::Keyed));
    story.swept();
    story.at(5).requested(Token([9; 16]), Admission::Run);
    story.at(6).ends(&did_not_run());
    story.at(7).requested(Token([10; 16]), Admission::Run);
    story.at(8).ends(&done());
    story.tells(&[
        "-30 #1 attempt by attempt",
        "0 #1 lapsed by sweeper",
        "5 #2 attempt by attempt",
        "6 #2 retryable by attempt",
        "7 #3 attempt by attempt",
        "8 #3 completed by attempt",
    ]);
    assert_eq!(story.now.record.history.tokens, [OWN, Token([9; 16])]);
}

/// U09: a request that finds the attempt lapsed runs at once, and the lost one is told too.
#[test]
fn an_attempt_that_the_next_request_finds_lost_has_its_place() {
    let mut story = Story::of(lapsed(Effects::Local));
    story.requested(Token([9; 16]), Admission::Run);
    story.tells(&["-30 #1 attempt by attempt", "0 #2 attempt by attempt"]);
}

/// U09: accepted work that is claimed has one attempt, not two.
#[test]
fn accepted_work_that_was_never_claimed_is_no_attempt() {
    let mut story = Story::of(retryable(Effects::Opaque));
    story.requested(Token([9; 16]), Admission::Accept);
    let claimed = machine::claim(&story.at(4).now, Token([10; 16]), PAUSE_MAX).unwrap();
    story.write(claimed);
    story.tells(&["-60 #1 attempt by attempt", "4 #2 attempt by attempt"]);
    assert_eq!(story.now.record.history.tokens, [OWN], "nobody ever held the token of an acceptance");
}

/// U09: what a webhook said while the attempt ran, and what it led to.
#[test]
fn evidence_is_told_before_what_it_led_to() {
    let mut story = Story::of(running(Effects::Keyed));
    story.at(1).says(&stripes("did not"));
    story.at(2).says(&stripes("happened"));
    story.at(3).says(&stripes("never will"));
    story.at(40).swept();
    story.tells(&[
        "-10 #1 attempt by attempt",
        "1 #1 webhook by webhook, says did-not-happen, of stripe, detail evt_1",
        "2 #1 webhook by webhook, says happened, of stripe, detail evt_1",
        "3 #1 webhook by webhook, says did-not-happen-final, of stripe, detail evt_1, contradicts",
        "40 #1 lapsed by sweeper",
        "40 #1 completed by webhook",
    ]);
    let mut story = Story::of(running(Effects::Opaque));
    story.at(1).says(&stripes("never will"));
    story.at(40).swept();
    story.tells(&[
        "-10 #1 attempt by attempt",
        "1 #1 webhook by webhook, says did-not-happen-final, of stripe, detail evt_1",
        "40 #1 lapsed by sweeper",
        "40 #1 retryable by webhook",
    ]);
}

/// U09: that somebody insisted, and whom it overruled.
#[test]
fn force_and_who_was_overruled_are_told() {
    let mut story = Story::of(running(Effects::Opaque));
    story.at(2).says(&anns("did not", Force::Yes));
    let happened = Ruling { about: About::Attempt(OWN), ..stripes("happened") };
    story.at(9).says(&happened);
    story.tells(&[
        "-10 #1 attempt by attempt",
        "2 #1 superseded by operator, who ann",
        "2 #1 forced by operator, who ann",
        "2 #1 verdict by operator, says did-not-happen, who ann, detail checked",
        "2 #1 retryable by operator",
        "9 #1 webhook by webhook, says happened, of stripe, detail evt_1, contradicts",
        "9 #1 completed by webhook",
    ]);
}

/// U09: a settled record is told otherwise, and by whom.
#[test]
fn a_contradiction_is_told_and_so_is_when_the_record_was_completed() {
    let mut story = Story::of(running(Effects::Opaque));
    story.at(3).ends(&done());
    story.at(5).says(&stripes("declined"));
    story.at(7).says(&stripes("never will"));
    story.tells(&[
        "-10 #1 attempt by attempt",
        "3 #1 completed by attempt",
        "5 #1 webhook by webhook, says happened, of stripe, detail evt_1, contradicts",
        "7 #1 webhook by webhook, says did-not-happen-final, of stripe, detail evt_1, contradicts",
    ]);
}

/// U09: of somebody who says it again and again, the first and the last are kept; nothing is told at a wrong time.
#[test]
fn a_webhook_that_repeats_itself_does_not_fill_the_record() {
    let mut story = Story::of(running(Effects::Opaque));
    story.at(3).ends(&done());
    for seconds in 4..204 {
        story.at(seconds).says(&stripes("declined"));
    }
    let history = &story.now.record.history;
    assert_eq!(history.entries.len(), FIRST_KEPT + LAST_KEPT);
    assert_eq!(history.left_out, 201 - 64);
    let told = lines(&story.now.record);
    assert_eq!(told[..2], ["-10 #1 attempt by attempt", "3 #1 completed by attempt"]);
    // When it was completed is never left out.
    let mut story = Story::of(unknown(Effects::Opaque));
    for seconds in 1..100 {
        story.at(seconds).says(&stripes("unknown"));
    }
    story.at(100).says(&anns("happened", Force::No));
    for seconds in 101..301 {
        story.at(seconds).says(&stripes("declined"));
    }
    let told = lines(&story.now.record);
    assert_eq!(
        told.iter().filter(|line| line.contains("completed")).collect::<Vec<_>>(),
        ["100 #1 completed by operator"]
    );
    assert_eq!(story.now.record.history.entries.len(), FIRST_KEPT + LAST_KEPT);
}

/// U09, W09: an attempt that completes after much was said leaves its history as it was, and the moment is told all the same.
#[test]
fn a_completion_by_the_attempt_is_told_by_the_record_itself() {
    let mut story = Story::of(running(Effects::Opaque));
    for seconds in 1..100 {
        story.at(seconds).says(&stripes("unknown"));
    }
    let before = story.now.record.history.clone();
    story.at(100).ends(&done());
    assert_eq!(story.now.record.history, before);
    assert_eq!(lines(&story.now.record).last().unwrap(), "100 #1 completed by attempt");
    for seconds in 101..301 {
        story.at(seconds).says(&stripes("declined"));
    }
    let told = lines(&story.now.record);
    assert!(told.contains(&"100 #1 completed by attempt".to_owned()), "{told:?}");
}

/// U09: of an earlier attempt, and of an earlier use.
#[test]
fn what_does_not_count_is_told_as_ignored_or_not_at_all() {
    let mut story = Story::of(second(unknown(Effects::Opaque)));
    story.at(1).says(&Ruling { about: About::Attempt(EARLIER), ..stripes("never will") });
    let told = lines(&story.now.record);
    assert_eq!(told[1..], ["1 #2 webhook by webhook, says ignored, of stripe, detail evt_1"]);
}

/// U09: accepted work in doubt that nobody claimed.
#[test]
fn accepted_work_that_goes_back_to_retryable_says_so() {
    let record = in_doubt(record(Effects::Keyed, 60, State::Pending { expires_at: at(0) }));
    let mut story = Story::of(record);
    story.swept();
    let told = lines(&story.now.record);
    assert_eq!(told.last().unwrap(), "0 #2 retryable by sweeper");
}

/// U09: a microsecond is long enough for everything, and an attempt begins first.
#[test]
fn what_happens_in_one_moment_is_told_in_its_order() {
    let record = Record { began_at: at(0), ..running(Effects::Keyed) };
    let mut story = Story::of(record);
    story.ends(&Outcome::Unknown(Reason::Stopped));
    story.requested(Token([9; 16]), Admission::Run);
    story.ends(&did_not_run());
    let told: Vec<_> =
        machine::time_line(&story.now.record).iter().map(|entry| (entry.attempt, entry.what)).collect();
    let expected = [(1, What::Attempt), (1, What::Unknown), (2, What::Attempt), (2, What::Retryable)];
    assert_eq!(told, expected);
}

/// U09: somebody else's text never makes a record larger than it may be.
#[test]
fn text_from_outside_is_shortened() {
    let long = "é".repeat(5_000);
    let now = seen(unknown(Effects::Queryable), at(0));
    let draft = machine::probe_failed(&now, BACKOFF, &long).unwrap();
    let detail = draft.history.entries.last().unwrap().detail.clone().unwrap();
    assert_eq!(detail.chars().count(), 1_000);
}

fn clock(moment: Timestamp) -> String {
    format!("{:+}", moment.as_micros() / 1_000_000 - NOW)
}

/// U09, O09: one sentence for a person, whatever the state.
#[test]
fn why_says_how_a_record_stands() {
    let silent = |mut record: Record| {
        if let State::Unknown { ask_at, .. } = &mut record.state {
            *ask_at = None;
        }
        record
    };
    let dead = |mut record: Record| {
        if let State::Unknown { dead_letter, .. } = &mut record.state {
            *dead_letter = true;
        }
        record
    };
    let opaque = Effects::Opaque;
    for (record, expected) in [
        (
            pending(opaque),
            "The request was accepted and has not begun. If it has not run by +3600, it is given up.",
        ),
        (running(opaque), "Attempt 1 is running. It is presumed alive until +20."),
        (lapsed(opaque), "Attempt 1 neither ended nor renewed its lease by +0. The sweeper settles it next."),
        (completed(opaque, Some(answer(201))), "The work is done. Retries get the stored answer, 201."),
        (
            completed(opaque, None),
            "The work is done, but its answer was not stored. Retries get 409, and nothing runs again.",
        ),
        (
            retryable(opaque),
            "Attempt 1 did not do the work, or may safely be run again. The next retry runs it.",
        ),
        (
            unknown(opaque),
            "It is unknown whether attempt 1 did the work: the node that ran it died, was paused, or was cut off from the store. The next probe call is at +1.",
        ),
        (
            silent(unknown(opaque)),
            "It is unknown whether attempt 1 did the work: the node that ran it died, was paused, or was cut off from the store. The route has no probe; a webhook or a person has to settle it.",
        ),
        (
            dead(silent(unknown(opaque))),
            "It is unknown whether attempt 1 did the work: the node that ran it died, was paused, or was cut off from the store. The probe is not called any more; a person has to decide.",
        ),
    ] {
        assert_eq!(machine::why(&seen(record, at(0)), clock), expected);
    }
}

/// What may be done now, in the order of [`machine::actions`]; `yes` or why not.
fn actions(record: Record, has_probe: bool) -> [String; 4] {
    machine::actions(&seen(record, at(0)), has_probe.then_some(BACKOFF)).map(|Action { name, refused }| {
        let why = match refused {
            None => "yes".to_owned(),
            Some(Refused::StillRunning) => "running".to_owned(),
            Some(Refused::TooEarly(from)) => format!("from {}", clock(from)),
            Some(Refused::Settled) => "settled".to_owned(),
            Some(Refused::Unknown) => "unknown".to_owned(),
            Some(Refused::NothingToAsk) => "no probe".to_owned(),
        };
        format!("{}: {why}", name.as_str())
    })
}

/// U05, U09: the page and the commands need no rule of their own.
#[test]
fn actions_say_what_may_be_done_in_each_state() {
    let opaque = Effects::Opaque;
    let time_over = |record: Record| Record { began_at: at(-BELIEVED), ..record };
    for (record, has_probe, expected) in [
        (pending(opaque), true, ["settled", "settled", "settled", "yes"]),
        (running(opaque), true, ["running", "running", "running", "running"]),
        (lapsed(opaque), true, ["yes", "from +300", "yes", "unknown"]),
        (lapsed(Effects::Keyed), true, ["yes", "from +300", "yes", "yes"]),
        (heard(lapsed(opaque), said("happened")), true, ["yes", "settled", "settled", "unknown"]),
        (unknown(opaque), true, ["yes", "from +270", "yes", "unknown"]),
        (unknown(opaque), false, ["yes", "from +270", "no probe", "unknown"]),
        (time_over(unknown(opaque)), true, ["yes", "yes", "yes", "unknown"]),
        (retryable(opaque), true, ["yes", "settled", "settled", "yes"]),
        (completed(opaque, Some(answer(201))), true, ["settled", "settled", "settled", "yes"]),
    ] {
        let names = ["happened", "did-not-happen", "ask", "forget"];
        let expected: Vec<String> =
            names.iter().zip(expected).map(|(name, why)| format!("{name}: {why}")).collect();
        assert_eq!(actions(record, has_probe), expected[..]);
    }
}

/// O09: what each state has that is worth telling, and nothing that it does not have.
#[test]
fn facts_are_those_of_the_state() {
    let unknown = unknown(Effects::Opaque);
    let facts = machine::facts(&unknown);
    assert_eq!((facts.reason, facts.since, facts.ask_at), (Some(Reason::Lapsed), Some(at(-10)), Some(at(1))));
    assert_eq!((facts.deadline_at, facts.believed_at), (Some(at(240)), Some(at(270))));
    assert_eq!((facts.expires_at, facts.lapses_at, facts.by), (None, None, None));
    let done = completed(Effects::Opaque, Some(answer(201)));
    let facts = machine::facts(&done);
    assert_eq!(facts.response.map(|response| response.status), Some(201));
    assert_eq!((facts.by, facts.expires_at), (Some(Source::Attempt), Some(at(HOUR))));
    assert_eq!((facts.reason, facts.believed_at), (None, None));
    let running = running(Effects::Opaque);
    let facts = machine::facts(&running);
    assert_eq!((facts.lapses_at, facts.believed_at), (Some(at(20)), Some(at(320))));
    let doubtful = in_doubt(retryable(Effects::Keyed));
    assert_eq!(machine::facts(&doubtful).expires_at, None, "doubt does not expire");
}

//! Stories of one key, told line by line against the pure machine and a store of one row.
//!
//! A line reads `t=SECONDS WHO DOES -> RESULT`. Clients are capital letters; a client that begins becomes an attempt
//! and keeps its token. Lease 30 s, deadline 300 s, horizon 30 s; retention and downstream retention by story. The last
//! rerun of keyed work begins 330 s before downstream forgets.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use onlyonce_core::fingerprint::Fingerprint;
use onlyonce_core::key::Key;
use onlyonce_core::machine::{
    self, About, Admission, Backoff, Decision, Finish, Force, Forget, Renewal, Request, Ruled, Ruling,
    Statement,
};
use onlyonce_core::outcome::Outcome;
use onlyonce_core::policy::{OnExpired, Policy};
use onlyonce_core::record::{
    Calling, Draft, Effects, Reason, Record, Response, Revision, Seen, Source, State, Token, Verdict,
};
use onlyonce_core::refusal::Refusal;
use onlyonce_core::scope::Scope;
use onlyonce_core::time::Timestamp;

use crate::sample::PAUSE_MAX;

/// Tells a story under the default policy with these effects.
fn check(effects: Effects, story: &str) {
    check_with(Policy { effects, retention: Duration::from_secs(1_000), ..Policy::default() }, story);
}

fn check_with(policy: Policy, story: &str) {
    let mut stage =
        Stage { policy, row: None, tokens: HashMap::new(), minted: 0, now: Timestamp::from_micros(0) };
    for line in story.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (left, expected) = line.split_once("->").unwrap_or_else(|| panic!("no result in {line:?}"));
        let mut words = left.split_whitespace();
        let time = words
            .next()
            .and_then(|word| word.strip_prefix("t="))
            .unwrap_or_else(|| panic!("no time in {line:?}"));
        let seconds: i64 = time.parse().unwrap_or_else(|_| panic!("no time in {line:?}"));
        stage.now = Timestamp::from_micros(seconds * 1_000_000);
        let who = words.next().unwrap_or_default();
        let does = words.collect::<Vec<_>>().join(" ");
        assert_eq!(stage.play(who, &does), expected.trim(), "in {line:?}");
    }
}

/// A store of one row and everyone who writes to it.
struct Stage {
    policy: Policy,
    row: Option<(Record, Revision)>,
    tokens: HashMap<String, Token>,
    minted: u8,
    now: Timestamp,
}

impl Stage {
    fn play(&mut self, who: &str, does: &str) -> String {
        match (who, does) {
            (_, "begins") => self.begin(who, 1, Admission::Run),
            (_, "begins with another body") => self.begin(who, 2, Admission::Run),
            (_, "asks to be accepted") => self.begin(who, 1, Admission::Accept),
            ("worker", claims) => self.claim(claims.trim_start_matches("claims for ")),
            ("caller", _) => {
                let seen = self.seen().expect("accepted work has a record");
                self.swap_or(machine::cancel(&seen), "not cancelled")
            }
            ("sweeper", _) => self.sweep(),
            ("reaper", _) => self.reap(),
            ("probe", says) => self.rule(says, Source::Probe, Force::No),
            ("webhook", says) => self.rule(says, Source::Webhook, Force::No),
            ("operator", "forgets") => self.forget(Force::No),
            ("operator", "forgets by force") => self.forget(Force::Yes),
            ("operator", says) => match says.strip_suffix(" by force") {
                Some(says) => self.rule(says, Source::Operator, Force::Yes),
                None => self.rule(says, Source::Operator, Force::No),
            },
            (_, "renews") => match machine::renew(self.seen().as_ref(), self.tokens[who]) {
                Renewal::Write(draft) => self.swap(draft),
                Renewal::Completed => "completed".into(),
                Renewal::Lost => "lost".into(),
            },
            (_, "commits charge") => {
                let seen = self.seen().expect("a phase has a record");
                self.swap_or(machine::commit_phase(&seen, self.tokens[who], &"charge".into()), "fenced")
            }
            (_, "calls charge") => self.call(who),
            (_, ends) => self.finish(who, ends),
        }
    }

    fn seen(&self) -> Option<Seen> {
        let (record, revision) = self.row.clone()?;
        Some(Seen { record: Arc::new(record), revision, now: self.now })
    }

    /// Compare and swap; a story is told one line at a time, so it never loses.
    fn swap(&mut self, draft: Box<Draft>) -> String {
        let revision = self.row.as_ref().map_or(0, |(_, revision)| revision.0) + 1;
        let record = draft.stamp(self.now);
        let words = words(&record);
        self.row = Some((record, Revision(revision)));
        words
    }

    fn swap_or(&mut self, draft: Option<Box<Draft>>, otherwise: &str) -> String {
        draft.map_or_else(|| otherwise.into(), |draft| self.swap(draft))
    }

    fn mint(&mut self) -> Token {
        self.minted += 1;
        Token([self.minted; 16])
    }

    fn begin(&mut self, who: &str, body: u8, admission: Admission) -> String {
        let token = self.mint();
        let (scope, key) = (Scope::stored([7; 32], None), Key::stored("order-42"));
        let fingerprint = Fingerprint { version: 1, raw: [body; 32], canonical: None };
        let policy = self.policy.clone();
        let request = Request {
            scope: &scope,
            key: &key,
            route: None,
            fingerprint: &fingerprint,
            policy: &policy,
            token,
            admission,
            trace: None,
        };
        match machine::decide(self.seen().as_ref(), &request) {
            Decision::Begin(draft) => {
                self.tokens.insert(who.into(), token);
                self.swap(draft)
            }
            Decision::Settle(draft) => {
                self.swap(draft);
                self.begin(who, body, admission)
            }
            Decision::Replay => {
                let seen = self.seen().expect("a replay has a record");
                let (response, _) = machine::stored(&seen.record).expect("a replay has an answer");
                format!("replay {}", response.status)
            }
            Decision::Refuse(refusal) => format!("refuse {}", refused(&refusal)),
        }
    }

    fn claim(&mut self, whom: &str) -> String {
        let token = self.mint();
        self.tokens.insert(whom.into(), token);
        let seen = self.seen().expect("accepted work has a record");
        self.swap_or(machine::claim(&seen, token, PAUSE_MAX), "nothing to claim")
    }

    fn call(&mut self, who: &str) -> String {
        let seen = self.seen().expect("a phase has a record");
        let calling = Calling { phase: "charge".into(), effects: Effects::Keyed };
        self.swap_or(machine::call(&seen, self.tokens[who], calling), "fenced")
    }

    fn finish(&mut self, who: &str, ends: &str) -> String {
        let outcome = match ends.split_once(' ') {
            Some(("completes", status)) => Outcome::Completed {
                response: Some(answer(status.parse().expect("a status"))),
                keep_for: None,
            },
            Some(("is", "denied")) => {
                Outcome::DidNotRun { retry_after: None, keep_for: Some(Duration::from_secs(10)) }
            }
            Some(("did", "not run")) => Outcome::DidNotRun { retry_after: None, keep_for: None },
            Some(("does", "not know")) => Outcome::Unknown(Reason::ConnectionLost),
            _ => panic!("nobody {ends:?}"),
        };
        match machine::finish(self.seen().as_ref(), self.tokens[who], &outcome) {
            Finish::Write(draft) => self.swap(draft),
            Finish::Already => "already".into(),
            Finish::Known => "known".into(),
            Finish::Superseded => "superseded".into(),
        }
    }

    fn sweep(&mut self) -> String {
        let draft = self.seen().and_then(|seen| machine::sweep(&seen));
        self.swap_or(draft, "nothing")
    }

    fn reap(&mut self) -> String {
        let may_go = self.row.as_ref().is_some_and(|(record, _)| machine::may_reap(record, self.now));
        if may_go {
            self.row = None;
        }
        if may_go { "deleted" } else { "kept" }.into()
    }

    fn forget(&mut self, force: Force) -> String {
        let token = self.mint();
        let Some(seen) = self.seen() else { return "nothing there".into() };
        match machine::forget(&seen, token, force) {
            Forget::Write(draft) => {
                self.swap(draft);
                "forgotten".into()
            }
            Forget::StillRunning => "still running".into(),
            Forget::Unknown => "outcome unknown".into(),
            Forget::Absent => "nothing there".into(),
        }
    }

    /// A statement; `about A` names the attempt of client A, without it the work is meant.
    fn rule(&mut self, says: &str, by: Source, force: Force) -> String {
        let (says, about) = match says.split_once(" about ") {
            Some((says, whom)) => (says, About::Attempt(self.tokens[whom])),
            None => (says, About::Work),
        };
        let verdict = match says {
            "says happened 201" => Verdict::Happened(Some(answer(201))),
            "says declined" => Verdict::Happened(Some(answer(402))),
            "says happened" => Verdict::Happened(None),
            "says did not happen" => Verdict::DidNotHappen { never_will: false },
            "says never will" => Verdict::DidNotHappen { never_will: true },
            "cannot say" => Verdict::StillUnknown,
            other => panic!("nobody {other:?}"),
        };
        let probe = Backoff {
            first: Duration::from_secs(1),
            max: Duration::from_secs(300),
            tries_max: 2,
            jitter_permille: 1000,
        };
        let statement = Statement::by(by);
        let ruling = Ruling { verdict, about, statement, force, token: self.mint(), probe: Some(probe) };
        match machine::verdict(&self.seen().expect("a verdict is about a record"), &ruling) {
            Ruled::Settles(draft) => self.swap(draft),
            Ruled::Keeps(draft) => format!("evidence, {}", self.swap(draft)),
            Ruled::Notes(draft, _) => format!("noted, {}", self.swap(draft)),
            Ruled::Contradicts(draft) => format!("contradiction, {}", self.swap(draft)),
            Ruled::Ignores(_, draft) => {
                draft.map(|draft| self.swap(draft));
                "ignored".into()
            }
            Ruled::Already => "already".into(),
            Ruled::StillRunning => "still running".into(),
            Ruled::TooEarly(at) => format!("too early, from {}", at.as_secs_ceil()),
            Ruled::Settled => "settled".into(),
            Ruled::NothingToAsk => "nothing to ask".into(),
            Ruled::Absent => "nothing there".into(),
        }
    }
}

fn answer(status: u16) -> Arc<Response> {
    Arc::new(Response { status, headers: Vec::new(), body: Bytes::new() })
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the machine gives no other refusals")]
fn refused(refusal: &Refusal) -> String {
    match refusal {
        Refusal::KeyReused { .. } => "key reused".into(),
        Refusal::InProgress { retry_after } => format!("in progress, retry after {}", retry_after.as_secs()),
        Refusal::OutcomeUnknown { .. } => "outcome unknown".into(),
        Refusal::ResponseNotStored => "response not stored".into(),
        Refusal::Expired => "expired".into(),
        other => panic!("the machine does not refuse so: {other:?}"),
    }
}

fn words(record: &Record) -> String {
    let mut words = match &record.state {
        State::Pending { .. } => "pending".into(),
        State::Running { .. } => format!("attempt {}", record.attempt),
        State::Completed { response: Some(response), .. } => format!("completed {}", response.status),
        State::Completed { response: None, .. } => "completed bare".into(),
        State::Retryable { .. } => "retryable".into(),
        State::Unknown { dead_letter: true, .. } => "dead letter".into(),
        State::Unknown { .. } => "unknown".into(),
    };
    if let Some(phase) = &record.progress.recovery_point {
        words = format!("{words} after {phase}");
    }
    words
}

/// R05, P01
#[test]
fn a_superseded_attempt_cannot_complete() {
    check(
        Effects::Local,
        "
        t=0    A begins        -> attempt 1
        t=5    B begins        -> refuse in progress, retry after 5
        t=30   B begins        -> attempt 2
        t=31   A completes 201 -> superseded
        t=32   B completes 201 -> completed 201
        t=33   C begins        -> replay 201
        ",
    );
}

/// R05, U03
#[test]
fn the_late_truth_settles_an_unknown() {
    check(
        Effects::Opaque,
        "
        t=0    A begins        -> attempt 1
        t=30   B begins        -> refuse outcome unknown
        t=90   A renews        -> lost
        t=91   A completes 201 -> completed 201
        t=92   B begins        -> replay 201
        t=93   A completes 201 -> already
        ",
    );
}

/// R06
#[test]
fn renewals_keep_an_attempt_until_its_deadline() {
    check(
        Effects::Opaque,
        "
        t=0    A begins        -> attempt 1
        t=20   A renews        -> attempt 1
        t=45   sweeper sweeps  -> nothing
        t=55   A renews        -> attempt 1
        t=299  A renews        -> attempt 1
        t=300  A renews        -> lost
        t=300  sweeper sweeps  -> unknown
        t=301  A completes 201 -> completed 201
        ",
    );
}

/// R05, T02
#[test]
fn a_key_that_was_reaped_and_used_anew_is_fenced_from_its_past() {
    check(
        Effects::Local,
        "
        t=0    A begins        -> attempt 1
        t=30   sweeper sweeps  -> retryable
        t=1029 reaper reaps    -> kept
        t=1030 reaper reaps    -> deleted
        t=1031 B begins        -> attempt 1
        t=1032 A completes 201 -> superseded
        t=1033 A did not run   -> superseded
        t=1034 B completes 202 -> completed 202
        ",
    );
}

fn keyed(retention: u64, downstream: u64) -> Policy {
    Policy {
        effects: Effects::Keyed,
        retention: Duration::from_secs(retention),
        downstream_retention: Duration::from_secs(downstream),
        ..Policy::default()
    }
}

/// U04
#[test]
fn keyed_work_is_not_sent_again_once_downstream_may_have_forgotten_it() {
    check_with(
        keyed(1_000, 430),
        "
        t=0    A begins        -> attempt 1
        t=40   B begins        -> attempt 2
        t=60   B did not run   -> retryable
        t=99   C begins        -> attempt 3
        t=100  C did not run   -> retryable
        t=101  D begins        -> refuse outcome unknown
        t=102  reaper reaps    -> kept
        t=500  operator says did not happen -> retryable
        t=501  D begins        -> attempt 4
        ",
    );
}

/// U04: a rerun begun at the last moment acts until its deadline and the horizon are over, and no later.
#[test]
fn the_last_rerun_ends_before_downstream_forgets() {
    check_with(
        keyed(10_000, 1_000),
        "
        t=0    A begins        -> attempt 1
        t=30   sweeper sweeps  -> retryable
        t=669  B begins        -> attempt 2
        t=968  B renews        -> attempt 2
        t=969  B renews        -> lost
        t=999  B completes 201 -> completed 201
        ",
    );
    check_with(
        keyed(10_000, 1_000),
        "
        t=0    A begins        -> attempt 1
        t=30   sweeper sweeps  -> retryable
        t=669  sweeper sweeps  -> nothing
        t=670  B begins        -> refuse outcome unknown
        ",
    );
    check_with(
        keyed(10_000, 1_000),
        "
        t=0    A begins        -> attempt 1
        t=669  A does not know -> retryable
        t=670  sweeper sweeps  -> unknown
        ",
    );
    check_with(
        keyed(10_000, 1_000),
        "
        t=0    A begins        -> attempt 1
        t=670  A does not know -> unknown
        ",
    );
}

/// U04: no policy passes its check with this, but a record may have been reserved so before there was the check.
#[test]
fn a_downstream_that_forgets_within_one_attempt_is_never_relied_on() {
    check_with(
        keyed(1_000, 330),
        "
        t=0    A begins        -> attempt 1
        t=0    A does not know -> unknown
        t=1    B begins        -> refuse outcome unknown
        ",
    );
}

/// U04, T03
#[test]
fn a_denial_does_not_shorten_how_long_doubt_is_kept() {
    check_with(
        keyed(1_000, 1_230),
        "
        t=0    A begins        -> attempt 1
        t=40   B begins        -> attempt 2
        t=41   B is denied     -> retryable
        t=60   reaper reaps    -> kept
        t=899  sweeper sweeps  -> nothing
        t=900  sweeper sweeps  -> unknown
        ",
    );
}

/// U04, T03: the retention is over at 70, and downstream's memory, as far as a rerun can use it, at 670.
#[test]
fn doubt_outlives_the_retention() {
    check_with(
        keyed(40, 1_000),
        "
        t=0    A begins                    -> attempt 1
        t=30   sweeper sweeps              -> retryable
        t=300  reaper reaps                -> kept
        t=300  sweeper sweeps              -> nothing
        t=300  B begins with another body  -> refuse key reused
        t=301  B begins                    -> attempt 2
        t=302  B completes 201             -> completed 201
        t=342  reaper reaps                -> deleted
        ",
    );
    check_with(
        keyed(40, 1_000),
        "
        t=0    A begins                    -> attempt 1
        t=30   sweeper sweeps              -> retryable
        t=9999 reaper reaps                -> kept
        t=9999 B begins                    -> refuse outcome unknown
        t=9999 A completes 201             -> completed 201
        ",
    );
    check_with(
        keyed(40, 1_000),
        "
        t=0    A begins                    -> attempt 1
        t=30   B begins                    -> attempt 2
        t=31   B is denied                 -> retryable
        t=669  sweeper sweeps              -> nothing
        t=670  sweeper sweeps              -> unknown
        t=9999 reaper reaps                -> kept
        t=9999 operator says did not happen -> retryable
        t=10038 reaper reaps               -> kept
        t=10039 reaper reaps               -> deleted
        ",
    );
}

/// T03: where the work surely was not done there is no doubt to keep.
#[test]
fn keyed_work_that_surely_did_not_run_expires_by_age() {
    check_with(
        keyed(40, 1_000),
        "
        t=0    A begins        -> attempt 1
        t=5    A did not run   -> retryable
        t=44   reaper reaps    -> kept
        t=45   sweeper sweeps  -> nothing
        t=45   reaper reaps    -> deleted
        ",
    );
    check_with(
        keyed(40, 1_000),
        "
        t=0    A begins          -> attempt 1
        t=30   sweeper sweeps    -> retryable
        t=99   operator forgets  -> forgotten
        t=99   reaper reaps      -> deleted
        ",
    );
}

/// U04, W07, T04
#[test]
fn accepted_work_in_doubt_is_neither_claimed_late_nor_given_up() {
    check_with(
        keyed(1_000, 430),
        "
        t=0    A begins              -> attempt 1
        t=40   B asks to be accepted -> pending
        t=100  worker claims for C   -> nothing to claim
        t=101  sweeper sweeps        -> unknown
        ",
    );
    check_with(
        keyed(50, 1_000),
        "
        t=0    A begins              -> attempt 1
        t=40   B asks to be accepted -> pending
        t=90   sweeper sweeps        -> retryable
        t=91   B begins              -> attempt 2
        ",
    );
}

/// T04
#[test]
fn accepted_work_that_nobody_ran_in_time_is_answered_with_408() {
    check(
        Effects::Opaque,
        "
        t=0    A asks to be accepted -> pending
        t=9    B begins              -> refuse in progress, retry after 9
        t=999  reaper reaps          -> kept
        t=1000 worker claims for A   -> nothing to claim
        t=1000 sweeper sweeps        -> completed 408
        t=1001 B begins              -> replay 408
        t=2000 reaper reaps          -> deleted
        ",
    );
    check(
        Effects::Opaque,
        "
        t=0    A asks to be accepted -> pending
        t=1    worker claims for A   -> attempt 1
        t=2    worker claims for B   -> nothing to claim
        t=3    A completes 201       -> completed 201
        ",
    );
}

/// W07, T04: what did not run is run again after a pause that doubles up to its bound, until the acceptance has run out.
#[test]
fn accepted_work_that_did_not_run_is_run_again_by_a_worker() {
    check(
        Effects::Opaque,
        "
        t=0    A asks to be accepted -> pending
        t=1    worker claims for W   -> attempt 1
        t=2    W did not run         -> retryable
        t=2    worker claims for W   -> nothing to claim
        t=2    A asks to be accepted -> refuse in progress, retry after 1
        t=3    worker claims for W   -> attempt 2
        t=4    W did not run         -> retryable
        t=5    worker claims for W   -> nothing to claim
        t=6    worker claims for W   -> attempt 3
        t=7    W did not run         -> retryable
        t=11   worker claims for W   -> attempt 4
        t=12   W did not run         -> retryable
        t=15   worker claims for W   -> nothing to claim
        t=16   worker claims for W   -> attempt 5
        t=17   W did not run         -> retryable
        t=18   A begins              -> attempt 6
        t=19   A did not run         -> retryable
        t=999  reaper reaps          -> kept
        t=1000 worker claims for W   -> nothing to claim
        t=1000 sweeper sweeps        -> completed 408
        ",
    );
}

/// W07: a lost attempt of accepted work runs again by itself where that is safe, and is unknown elsewhere.
#[test]
fn lost_accepted_work_runs_again_by_itself_only_where_that_is_safe() {
    for effects in [Effects::Local, Effects::Keyed] {
        check(
            effects,
            "
            t=0    A asks to be accepted -> pending
            t=1    worker claims for W   -> attempt 1
            t=31   sweeper sweeps        -> retryable
            t=32   worker claims for V   -> attempt 2
            t=33   V completes 201       -> completed 201
            t=34   W completes 201       -> superseded
            ",
        );
    }
    for effects in [Effects::Queryable, Effects::Opaque] {
        check(
            effects,
            "
            t=0    A asks to be accepted -> pending
            t=1    worker claims for W   -> attempt 1
            t=31   sweeper sweeps        -> unknown
            t=32   worker claims for V   -> nothing to claim
            t=33   W completes 201       -> completed 201
            ",
        );
    }
}

/// W07: only what has not begun, or did not run, is cancelled.
#[test]
fn a_caller_cancels_what_waits_and_nothing_else() {
    check(
        Effects::Opaque,
        "
        t=0    A asks to be accepted -> pending
        t=1    caller cancels        -> completed 408
        t=2    caller cancels        -> not cancelled
        t=2    worker claims for W   -> nothing to claim
        t=3    A begins              -> replay 408
        ",
    );
    check(
        Effects::Keyed,
        "
        t=0    A asks to be accepted -> pending
        t=1    worker claims for W   -> attempt 1
        t=2    caller cancels        -> not cancelled
        t=3    W did not run         -> retryable
        t=4    caller cancels        -> completed 408
        ",
    );
    check(
        Effects::Keyed,
        "
        t=0    A asks to be accepted -> pending
        t=1    worker claims for W   -> attempt 1
        t=31   sweeper sweeps        -> retryable
        t=32   caller cancels        -> not cancelled
        ",
    );
}

/// W03, W04, U06
#[test]
fn a_phase_that_committed_is_where_the_next_attempt_starts() {
    check(
        Effects::Local,
        "
        t=0    A begins           -> attempt 1
        t=1    A calls charge     -> attempt 1
        t=2    A commits charge   -> attempt 1 after charge
        t=32   B begins           -> attempt 2 after charge
        t=33   A commits charge   -> fenced
        t=34   A calls charge     -> fenced
        t=35   B completes 201    -> completed 201 after charge
        ",
    );
    check(
        Effects::Local,
        "
        t=0    A begins                   -> attempt 1
        t=1    A calls charge             -> attempt 1
        t=31   probe says happened 201    -> retryable after charge
        t=32   B begins                   -> attempt 2 after charge
        ",
    );
}

/// W03, U04
#[test]
fn a_local_route_remembers_that_a_keyed_phase_is_open() {
    let policy = Policy { effects: Effects::Local, ..keyed(1_000, 390) };
    check_with(
        policy,
        "
        t=0    A begins        -> attempt 1
        t=1    A calls charge  -> attempt 1
        t=40   B begins        -> attempt 2
        t=80   C begins        -> refuse outcome unknown
        ",
    );
}

/// U05, U06
#[test]
fn evidence_that_came_while_the_attempt_ran_settles_what_becomes_unknown() {
    check(
        Effects::Opaque,
        "
        t=0    A begins                   -> attempt 1
        t=9    webhook says happened 201  -> evidence, attempt 1
        t=20   A renews                   -> attempt 1
        t=50   sweeper sweeps             -> completed 201
        t=51   A completes 201            -> already
        ",
    );
}

/// U06
#[test]
fn evidence_that_nothing_had_happened_yet_is_not_believed_later() {
    check(
        Effects::Opaque,
        "
        t=0    A begins                     -> attempt 1
        t=9    webhook says did not happen  -> evidence, attempt 1
        t=600  sweeper sweeps               -> unknown
        ",
    );
    check(
        Effects::Opaque,
        "
        t=0    A begins                     -> attempt 1
        t=9    webhook says never will      -> evidence, attempt 1
        t=600  sweeper sweeps               -> retryable
        ",
    );
}

/// U05, W04
#[test]
fn evidence_about_one_phase_does_not_settle_the_next() {
    check(
        Effects::Opaque,
        "
        t=0    A begins                   -> attempt 1
        t=1    A calls charge             -> attempt 1
        t=2    webhook says happened 201  -> evidence, attempt 1
        t=3    A commits charge           -> attempt 1 after charge
        t=60   sweeper sweeps             -> unknown after charge
        ",
    );
}

/// U05, U06
#[test]
fn did_not_happen_is_believed_only_after_the_deadline_and_the_horizon() {
    check(
        Effects::Queryable,
        "
        t=0    A begins                      -> attempt 1
        t=10   operator says did not happen  -> still running
        t=30   sweeper sweeps                -> unknown
        t=31   probe says did not happen     -> noted, unknown
        t=32   operator says did not happen  -> too early, from 330
        t=330  probe says did not happen     -> retryable
        t=331  B begins                      -> attempt 2
        ",
    );
}

/// U05
#[test]
fn a_dead_letter_still_takes_a_verdict() {
    check(
        Effects::Queryable,
        "
        t=0    A begins                     -> attempt 1
        t=5    A does not know              -> unknown
        t=6    probe cannot say             -> noted, unknown
        t=8    probe cannot say             -> noted, dead letter
        t=9    B begins                     -> refuse outcome unknown
        t=9999 reaper reaps                 -> kept
        t=9999 operator says happened       -> completed bare
        t=9999 B begins                     -> refuse response not stored
        ",
    );
}

/// U05
#[test]
fn a_forced_verdict_supersedes_the_attempt_that_runs() {
    check(
        Effects::Opaque,
        "
        t=0    A begins                               -> attempt 1
        t=1    operator says did not happen by force  -> retryable
        t=2    A completes 201                        -> superseded
        t=3    B begins                               -> attempt 2
        ",
    );
}

/// U05: insisting that nobody knows ends the lease, and not the attempt.
#[test]
fn a_forced_unknown_leaves_the_attempt_its_late_truth() {
    check(
        Effects::Queryable,
        "
        t=0    A begins                     -> attempt 1
        t=1    operator cannot say by force -> noted, unknown
        t=2    A renews                     -> lost
        t=3    A completes 201              -> completed 201
        ",
    );
}

/// U05, U09: a webhook about an attempt that a person had overruled.
#[test]
fn a_forced_verdict_that_was_wrong_is_put_right_while_nothing_has_begun() {
    check(
        Effects::Opaque,
        "
        t=0    A begins                               -> attempt 1
        t=1    operator says did not happen by force  -> retryable
        t=2    webhook says happened 201 about A      -> completed 201
        t=3    B begins                               -> replay 201
        ",
    );
    check(
        Effects::Opaque,
        "
        t=0    A begins                               -> attempt 1
        t=1    operator says did not happen by force  -> retryable
        t=2    B begins                               -> attempt 2
        t=3    B completes 201                        -> completed 201
        t=4    webhook says happened 201 about A      -> contradiction, completed 201
        ",
    );
}

/// U04, U05: known to be done is not run again, also where downstream would deduplicate it.
#[test]
fn a_rerun_is_spared_where_the_lost_attempt_is_known_to_have_happened() {
    check_with(
        keyed(1_000, 10_000),
        "
        t=0    A begins                           -> attempt 1
        t=5    webhook says happened 201 about A  -> evidence, attempt 1
        t=40   B begins                           -> replay 201
        ",
    );
    check_with(
        keyed(1_000, 10_000),
        "
        t=0    A begins                           -> attempt 1
        t=40   B begins                           -> attempt 2
        t=41   webhook says happened 201 about A  -> evidence, attempt 2
        t=42   B did not run                      -> completed 201
        ",
    );
    check_with(
        keyed(1_000, 10_000),
        "
        t=0    A begins                           -> attempt 1
        t=40   sweeper sweeps                     -> retryable
        t=41   B asks to be accepted              -> pending
        t=42   webhook says happened 201 about A  -> completed 201
        t=43   worker claims for C                -> nothing to claim
        ",
    );
}

/// U04, U06: "it never will" is about one token, and an attempt that was lost before has another.
#[test]
fn a_final_word_about_a_rerun_does_not_clear_the_attempt_before_it() {
    check_with(
        keyed(1_000, 400),
        "
        t=0    A begins                              -> attempt 1
        t=40   B begins                              -> attempt 2
        t=75   C begins                              -> refuse outcome unknown
        t=76   webhook says never will about B       -> noted, unknown
        t=77   operator says never will              -> too early, from 370
        t=371  webhook says did not happen about B   -> noted, unknown
        t=372  probe says did not happen             -> retryable
        ",
    );
}

/// U06: what is said of one attempt frees no other.
#[test]
fn a_word_about_an_earlier_attempt_does_not_free_the_last() {
    check(
        Effects::Opaque,
        "
        t=0    A begins                         -> attempt 1
        t=1    A did not run                    -> retryable
        t=2    B begins                         -> attempt 2
        t=3    B does not know                  -> unknown
        t=4    webhook says never will about A  -> ignored
        t=5    webhook says declined about A    -> ignored
        t=6    webhook says declined about B    -> completed 402
        ",
    );
}

/// U06: a captured webhook does not settle the next use of the key.
#[test]
fn a_word_about_an_earlier_use_of_the_key_counts_for_nothing() {
    check(
        Effects::Opaque,
        "
        t=0    A begins                           -> attempt 1
        t=1    A completes 201                    -> completed 201
        t=1001 webhook says happened 201 about A  -> nothing there
        t=1002 B begins                           -> attempt 1
        t=1003 B does not know                    -> unknown
        t=1004 webhook says happened 201 about A  -> ignored
        t=1005 webhook says never will about A    -> ignored
        t=1006 C begins                           -> refuse outcome unknown
        ",
    );
}

/// U05, U07, U09: events come in any order and more than once; the first that settles it counts.
#[test]
fn webhooks_in_any_order_settle_a_record_once() {
    check(
        Effects::Opaque,
        "
        t=0    A begins                              -> attempt 1
        t=1    webhook says happened 201 about A     -> evidence, attempt 1
        t=2    webhook says did not happen about A   -> evidence, attempt 1
        t=3    webhook says declined about A         -> evidence, attempt 1
        t=40   webhook says never will about A       -> contradiction, completed 201
        t=41   webhook says happened 201 about A     -> already
        t=42   webhook says declined about A         -> contradiction, completed 201
        t=43   B begins                              -> replay 201
        ",
    );
    check(
        Effects::Opaque,
        "
        t=0    A begins                              -> attempt 1
        t=1    A did not run                         -> retryable
        t=2    webhook says happened 201 about A     -> completed 201
        t=3    operator says did not happen by force -> settled
        ",
    );
}

/// T02
#[test]
fn an_expired_answer_is_gone_where_the_policy_says_so() {
    let policy = Policy {
        effects: Effects::Local,
        on_expired: OnExpired::Gone,
        retention: Duration::from_secs(100),
        ..Policy::default()
    };
    check_with(
        policy,
        "
        t=0    A begins                    -> attempt 1
        t=5    A completes 201             -> completed 201
        t=104  B begins                    -> replay 201
        t=105  B begins                    -> refuse expired
        t=105  B begins with another body  -> refuse expired
        t=106  reaper reaps                -> deleted
        t=107  B begins                    -> attempt 1
        ",
    );
}

/// F06, F07, C04
#[test]
fn another_body_is_refused_first_and_changes_nothing() {
    check(
        Effects::Opaque,
        "
        t=0    A begins                    -> attempt 1
        t=1    B begins with another body  -> refuse key reused
        t=2    A did not run               -> retryable
        t=3    B begins with another body  -> refuse key reused
        t=4    A begins                    -> attempt 2
        t=5    A does not know             -> unknown
        t=6    B begins with another body  -> refuse key reused
        ",
    );
}

/// R05
#[test]
fn what_is_forgotten_may_be_used_anew_and_its_attempt_is_fenced() {
    check(
        Effects::Opaque,
        "
        t=0    A begins                    -> attempt 1
        t=1    operator forgets            -> still running
        t=2    operator forgets by force   -> forgotten
        t=3    A completes 201             -> superseded
        t=4    B begins with another body  -> attempt 1
        t=5    A completes 201             -> superseded
        t=40   sweeper sweeps              -> unknown
        t=41   operator forgets            -> outcome unknown
        t=41   operator forgets by force   -> forgotten
        t=41   reaper reaps                -> deleted
        t=41   operator forgets by force   -> nothing there
        ",
    );
}

//! Handlers of several steps: recovery points, calls that are on record before they are made, deaths in between, and attempts
//! that resume. A small world of its own; the rules are the machine's.
//!
//! ```text
//!   step 0  "created"   rows and recovery point, one transaction
//!   step 1  "charged"   "calling" is written ── the call ── its result and the recovery point are written
//!   step 2              rows and completion, one transaction
//! ```
//!
//! Attempts do what the handler of the layer does (`phase.rs`), pause, die, are superseded, and resume behind the last
//! committed step. A call takes effect at any moment until its attempt's deadline plus the horizon, also when nobody waits for
//! it any more; keyed downstream remembers it for ever. Probes and persons say what is true when they say it.

use std::collections::BTreeSet;
use std::sync::Arc;

use onlyonce_core::machine::{
    self, About, Admission, Decision, Finish, Force, Renewal, Request, Ruled, Ruling, Statement,
};
use onlyonce_core::outcome::Outcome;
use onlyonce_core::policy::Policy;
use onlyonce_core::record::{Calling, Draft, Effects, Progress, Reason, Seen, Source, Terms};
use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::row::{BLANK, DONE, Heard, NOBODY, Row, Spans, Ticks, Where, answer, token};
use crate::rules::BACKOFF;

const SPANS: Spans = Spans { lease: 1, deadline: 2, horizon: 1, retention: 1, downstream_retention: 5 };
const TOKENS_MAX: usize = 3;
const CREATED: &str = "created";
const CHARGED: &str = "charged";

const ROWS_ONCE: &str = "the rows of each step are committed once";
const CALLED_ONCE: &str = "the call takes effect once";
const NOT_CALLED_AGAIN: &str = "nobody sets out to call behind a result";
const ANNOUNCED: &str = "a call that may be under way is on record";
const DONE_MEANS_ALL: &str = "completed means that every step is done";
const NEVER_DELETED: &str = "half-done work is never deleted";

/// What is deliberately wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A resumed attempt runs every step again.
    ResumesAtTheStart,
    /// The call is made without being on record first.
    CallsUnannounced,
    /// The rows of a step commit before its recovery point, not with it.
    RowsBesideTheirPoint,
    /// Whoever holds the record, an attempt may commit its step.
    StepWithoutToken,
    /// The effects of a call are taken for those of its route.
    CallTakenForLocal,
    /// A resumed attempt does not look whether a verdict has found its call.
    FoundIsIgnored,
}

struct Phased {
    /// Of the call.
    effects: Effects,
    fault: Option<Fault>,
    policy: Policy,
}

/// One moment of everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Story {
    row: Option<Row>,
    point: Point,
    attempts: Vec<Attempt>,
    /// How often the rows of steps 0 and 2 were committed.
    rows: [u8; 2],
    /// How often the call took effect.
    charged: u8,
    /// The result of the call is on record, or was.
    has_result: bool,
    /// An attempt set out to call although the result was on record.
    is_called_again: bool,
    /// Half-done work was deleted.
    is_deleted: bool,
}

/// How far the record is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Point {
    /// The steps that have committed.
    steps: u8,
    calling: bool,
    /// The last of them by a verdict.
    found: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Attempt {
    token: u8,
    age: Ticks,
    step: Step,
    /// Its call is under way and may still take effect.
    in_flight: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    /// Before this step.
    At(u8),
    /// Its rows are committed, and its recovery point is not. Only with a fault.
    Beside,
    /// "Calling" is on record, and the call not made.
    Announced,
    Called,
    /// The call has answered.
    Answered,
    /// What is to be written of the attempt.
    Lost,
    DidNotRun,
    /// Finished, fenced or dead.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Tick,
    Request,
    Sweep,
    Reap,
    /// A probe or a person says what is true now.
    Verdict,
    Renew(usize),
    /// The next step of the handler.
    Next(usize),
    /// The call takes effect; its answer arrives or not.
    Act(usize, bool),
    /// Downstream refuses the call: nothing was done.
    Decline(usize),
    /// The handler fails, or stops waiting for its call.
    GiveUp(usize),
    Crash(usize),
}

impl Model for Phased {
    type State = Story;
    type Action = Action;

    fn init_states(&self) -> Vec<Story> {
        vec![Story {
            row: None,
            point: Point::default(),
            attempts: Vec::new(),
            rows: [0; 2],
            charged: 0,
            has_result: false,
            is_called_again: false,
            is_deleted: false,
        }]
    }

    fn actions(&self, story: &Story, actions: &mut Vec<Action>) {
        actions.extend([Action::Tick, Action::Request, Action::Sweep, Action::Reap, Action::Verdict]);
        for (index, attempt) in story.attempts.iter().enumerate() {
            if attempt.in_flight {
                actions.extend([Action::Act(index, true), Action::Act(index, false), Action::Decline(index)]);
            }
            match attempt.step {
                Step::Gone => continue,
                // It waits for the answer.
                Step::Called => {}
                Step::At(_)
                | Step::Beside
                | Step::Announced
                | Step::Answered
                | Step::Lost
                | Step::DidNotRun => {
                    actions.push(Action::Next(index));
                }
            }
            actions.extend([Action::Renew(index), Action::GiveUp(index), Action::Crash(index)]);
        }
    }

    fn next_state(&self, story: &Story, action: Action) -> Option<Story> {
        let mut next = story.clone();
        match action {
            Action::Tick => next.tick(),
            Action::Request => self.request(&mut next)?,
            Action::Sweep => next.write(machine::sweep(&self.seen(story)?)?),
            Action::Reap => self.reap(&mut next)?,
            Action::Verdict => self.verdict(&mut next)?,
            Action::Renew(index) => {
                match machine::renew(self.seen(story).as_ref(), token(story.attempts[index].token)) {
                    Renewal::Write(draft) => next.write(draft),
                    Renewal::Completed | Renewal::Lost => return None,
                }
            }
            Action::Next(index) => self.next(&mut next, index)?,
            Action::Act(index, is_answered) => self.act(&mut next, index, is_answered),
            Action::Decline(index) => {
                let attempt = &mut next.attempts[index];
                attempt.in_flight = false;
                if attempt.step == Step::Called {
                    attempt.step = Step::DidNotRun;
                }
            }
            Action::GiveUp(index) => next.attempts[index].give_up(),
            Action::Crash(index) => next.attempts[index].step = Step::Gone,
        }
        next.forget_what_no_longer_matters();
        (next != *story).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(ROWS_ONCE, |_, story: &Story| story.rows.iter().all(|times| *times <= 1)),
            Property::always(CALLED_ONCE, |_, story: &Story| story.charged <= 1),
            Property::always(NOT_CALLED_AGAIN, |_, story: &Story| !story.is_called_again),
            Property::always(ANNOUNCED, |_, story: &Story| story.is_announced()),
            Property::always(DONE_MEANS_ALL, |_, story: &Story| {
                !story.is_done() || (story.rows == [1, 1] && story.charged == 1)
            }),
            Property::always(NEVER_DELETED, |_, story: &Story| !story.is_deleted),
        ];
        // A search that has not met these proves little.
        if self.fault.is_none() {
            properties.extend([
                Property::sometimes("resumed and completed", |_, story: &Story| {
                    story.is_done() && story.row.as_ref().is_some_and(|row| row.attempt == 3)
                }),
                Property::sometimes("two attempts at once", |_, story: &Story| {
                    story.attempts.iter().filter(|attempt| attempt.step != Step::Gone).count() > 1
                }),
                Property::sometimes("a call is in doubt", |_, story: &Story| {
                    story.point.calling && (story.is_unknown() || story.charged > 0)
                }),
            ]);
            if self.effects == Effects::Opaque {
                properties.push(Property::sometimes("a verdict has found the call", |_, story: &Story| {
                    story.point.found
                }));
            }
        }
        properties
    }
}

impl Phased {
    fn new(effects: Effects, fault: Option<Fault>) -> Self {
        let terms = SPANS.terms(Effects::Local);
        let policy = Policy {
            effects: Effects::Local,
            lease: terms.lease,
            deadline: terms.deadline,
            horizon: terms.horizon,
            retention: terms.retention,
            downstream_retention: terms.downstream_retention,
            ..Policy::default()
        };
        Self { effects, fault, policy }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn terms(&self) -> Terms {
        SPANS.terms(Effects::Local)
    }

    fn calling(&self) -> Calling {
        let effects = if self.has(Fault::CallTakenForLocal) { Effects::Local } else { self.effects };
        Calling { phase: CHARGED.into(), effects }
    }

    /// The record as the machine sees it.
    fn seen(&self, story: &Story) -> Option<Seen> {
        let mut seen = story.row.as_ref()?.seen(self.terms(), 0);
        let Point { steps, calling, found } = story.point;
        let recovery_point = match steps {
            0 => None,
            1 => Some(CREATED.into()),
            _ => Some(CHARGED.into()),
        };
        Arc::make_mut(&mut seen.record).progress = Progress {
            recovery_point,
            calling: calling.then(|| self.calling()),
            found: found.then(|| answer(DONE)),
        };
        Some(seen)
    }

    fn request(&self, story: &mut Story) -> Option<()> {
        // One use of the key: what is done stays.
        if story.attempts.len() == TOKENS_MAX || story.is_done_and_expired() {
            return None;
        }
        let number = u8::try_from(story.attempts.len() + 1).ok()?;
        let request = Request {
            scope: &BLANK.scope,
            key: &BLANK.key,
            route: None,
            fingerprint: &BLANK.fingerprint,
            policy: &self.policy,
            token: token(number),
            admission: Admission::Run,
            trace: None,
        };
        match machine::decide(self.seen(story).as_ref(), &request) {
            Decision::Begin(draft) => {
                story.write(draft);
                let behind = match story.point {
                    Point { found: true, steps, .. } if self.has(Fault::FoundIsIgnored) => steps - 1,
                    Point { steps, .. } => steps,
                };
                let step = Step::At(if self.has(Fault::ResumesAtTheStart) { 0 } else { behind });
                story.attempts.push(Attempt { token: number, age: 0, step, in_flight: false });
            }
            Decision::Settle(draft) => story.write(draft),
            Decision::Replay | Decision::Refuse(_) => return None,
        }
        Some(())
    }

    /// What the attempt's handler does next.
    fn next(&self, story: &mut Story, index: usize) -> Option<()> {
        let Attempt { token: number, step, age, .. } = story.attempts[index];
        let seen = self.seen(story);
        let number = match &story.row {
            Some(row) if self.has(Fault::StepWithoutToken) => row.token,
            Some(_) | None => number,
        };
        let committed = |phase: &str| {
            seen.as_ref().and_then(|seen| machine::commit_phase(seen, token(number), &phase.into()))
        };
        let next = match step {
            Step::At(0) if self.has(Fault::RowsBesideTheirPoint) => {
                story.rows[0] += 1;
                Step::Beside
            }
            Step::At(0) | Step::Beside => match committed(CREATED) {
                Some(draft) => {
                    story.rows[0] += u8::from(step != Step::Beside);
                    story.write(draft);
                    Step::At(1)
                }
                None => Step::Gone,
            },
            Step::At(1) if self.has(Fault::CallsUnannounced) => Step::Announced,
            Step::At(1) => match machine::call(seen.as_ref()?, token(number), self.calling()) {
                Some(draft) => {
                    story.is_called_again |= story.has_result;
                    story.write(draft);
                    Step::Announced
                }
                None => Step::Gone,
            },
            // What it sends past its deadline does not arrive.
            Step::Announced if age >= SPANS.deadline => Step::Lost,
            Step::Announced => {
                story.attempts[index].in_flight = true;
                Step::Called
            }
            Step::Answered => match committed(CHARGED) {
                Some(draft) => {
                    story.write(draft);
                    Step::At(2)
                }
                None => Step::Gone,
            },
            Step::At(_) => {
                let done = Outcome::Completed { response: Some(answer(DONE)), keep_for: None };
                if let Finish::Write(draft) = machine::finish(seen.as_ref(), token(number), &done) {
                    story.write(draft);
                    story.rows[1] += 1;
                }
                Step::Gone
            }
            Step::Lost => story.end(seen.as_ref(), number, &Outcome::Unknown(Reason::Said)),
            Step::DidNotRun => {
                let outcome = Outcome::DidNotRun { retry_after: None, keep_for: None };
                story.end(seen.as_ref(), number, &outcome)
            }
            Step::Called | Step::Gone => return None,
        };
        story.attempts[index].step = next;
        Some(())
    }

    fn act(&self, story: &mut Story, index: usize, is_answered: bool) {
        let attempt = &mut story.attempts[index];
        attempt.in_flight = false;
        if attempt.step == Step::Called {
            attempt.step = if is_answered { Step::Answered } else { Step::Lost };
        }
        if self.effects != Effects::Keyed || story.charged == 0 {
            story.charged += 1;
        }
    }

    fn reap(&self, story: &mut Story) -> Option<()> {
        let seen = self.seen(story)?;
        if story.is_done_and_expired() || !machine::may_reap(&seen.record, seen.now) {
            return None;
        }
        story.is_deleted |= story.point.steps > 0 || story.point.calling;
        (story.row, story.point) = (None, Point::default());
        Some(())
    }

    /// Of a record that is unknown: whether the call has happened, so far.
    fn verdict(&self, story: &mut Story) -> Option<()> {
        if !story.is_unknown() {
            return None;
        }
        let heard = if story.charged > 0 { Heard::Happened } else { Heard::DidNotHappen };
        let ruling = Ruling {
            verdict: heard.verdict(),
            about: About::Work,
            statement: Statement::by(Source::Probe),
            force: Force::No,
            token: token(NOBODY),
            probe: Some(BACKOFF),
        };
        match machine::verdict(&self.seen(story)?, &ruling) {
            Ruled::Settles(draft) => {
                story.write(draft);
                Some(())
            }
            Ruled::Keeps(_)
            | Ruled::Notes(..)
            | Ruled::Contradicts(_)
            | Ruled::Ignores(..)
            | Ruled::Already
            | Ruled::StillRunning
            | Ruled::TooEarly(_)
            | Ruled::Settled
            | Ruled::NothingToAsk
            | Ruled::Absent => None,
        }
    }
}

impl Story {
    fn write(&mut self, draft: Box<Draft>) {
        let progress = &draft.progress;
        self.point = Point {
            steps: match progress.recovery_point.as_deref() {
                None => 0,
                Some(CREATED) => 1,
                Some(_) => 2,
            },
            calling: progress.calling.is_some(),
            found: progress.found.is_some(),
        };
        self.has_result |= self.point.steps > 1;
        let mut row = Row::written(draft, 0, 0);
        // Nobody names an attempt.
        row.earlier = 0;
        self.row = Some(row);
    }

    /// The attempt writes down how it ended.
    fn end(&mut self, seen: Option<&Seen>, number: u8, outcome: &Outcome) -> Step {
        if let Finish::Write(draft) = machine::finish(seen, token(number), outcome) {
            self.write(draft);
        }
        Step::Gone
    }

    fn tick(&mut self) {
        if let Some(row) = &mut self.row {
            row.age(SPANS);
        }
        for attempt in &mut self.attempts {
            attempt.age = (attempt.age + 1).min(SPANS.settled_after());
            // Whatever was not done by now never will be.
            attempt.in_flight &= attempt.age < SPANS.settled_after();
        }
    }

    fn is_done(&self) -> bool {
        self.row.as_ref().is_some_and(|row| matches!(row.state, Where::Completed { status: DONE, .. }))
    }

    fn is_unknown(&self) -> bool {
        self.row.as_ref().is_some_and(|row| row.state == Where::Unknown)
    }

    fn is_done_and_expired(&self) -> bool {
        self.row.as_ref().is_some_and(|row| matches!(row.state, Where::Completed { .. }) && row.has_expired())
    }

    /// A call that may take effect, or has and is not known to, is on record, whoever looks.
    fn is_announced(&self) -> bool {
        let is_out = self.attempts.iter().any(|attempt| attempt.in_flight);
        let is_known = self.point.calling || self.point.steps > 1;
        is_known || (!is_out && self.charged == 0)
    }

    fn forget_what_no_longer_matters(&mut self) {
        for attempt in &mut self.attempts {
            if attempt.step == Step::Called && !attempt.in_flight {
                // No answer will come.
                attempt.step = Step::Lost;
            }
            if attempt.step == Step::Gone {
                attempt.token = 0;
                if !attempt.in_flight {
                    attempt.age = SPANS.settled_after();
                }
            }
        }
    }
}

impl Attempt {
    fn give_up(&mut self) {
        self.step = match self.step {
            Step::At(_) | Step::Beside => Step::DidNotRun,
            Step::Announced | Step::Called | Step::Answered => Step::Lost,
            step @ (Step::Lost | Step::DidNotRun | Step::Gone) => step,
        };
    }
}

fn holds(effects: Effects) {
    let checker = Phased::new(effects, None).checker().threads(crate::THREADS).spawn_bfs().join();
    println!(
        "{effects:?}: {} worlds, {} steps, up to {} steps deep",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth()
    );
    assert!(checker.is_done(), "the search was cut off");
    checker.assert_properties();
}

fn breaks(effects: Effects, fault: Fault, promise: &'static str) {
    let checker = Phased::new(effects, Some(fault))
        .checker()
        .finish_when(HasDiscoveries::AnyOf(BTreeSet::from([promise])))
        .spawn_bfs()
        .join();
    let path = checker.assert_any_discovery(promise);
    println!("{fault:?} breaks: {promise}\n{:?}", path.into_actions());
}

/// W03, W04, U04, W10: a handler whose call is keyed is done once, wherever its attempts die.
#[test]
fn phases_with_a_keyed_call_are_done_once() {
    holds(Effects::Keyed);
}

/// W03, W04, U03, U04, W10: a handler whose call cannot be repeated is done at most once, and nobody calls again in doubt.
#[test]
fn phases_with_an_opaque_call_are_done_at_most_once() {
    holds(Effects::Opaque);
}

/// W03
#[test]
fn resuming_at_the_start_would_commit_rows_twice() {
    breaks(Effects::Keyed, Fault::ResumesAtTheStart, ROWS_ONCE);
}

/// W03, W04
#[test]
fn resuming_at_the_start_would_call_behind_a_result() {
    breaks(Effects::Opaque, Fault::ResumesAtTheStart, NOT_CALLED_AGAIN);
}

/// W04
#[test]
fn a_call_that_is_not_on_record_first_would_be_made_twice() {
    breaks(Effects::Opaque, Fault::CallsUnannounced, CALLED_ONCE);
}

/// W04
#[test]
fn a_call_that_is_not_on_record_first_could_be_under_way_unseen() {
    breaks(Effects::Keyed, Fault::CallsUnannounced, ANNOUNCED);
}

/// W03: what we ask of a phase's transaction.
#[test]
fn rows_that_commit_beside_their_recovery_point_would_be_there_twice() {
    breaks(Effects::Keyed, Fault::RowsBesideTheirPoint, ROWS_ONCE);
}

/// W03, R05
#[test]
fn a_step_that_is_not_fenced_would_commit_rows_twice() {
    breaks(Effects::Keyed, Fault::StepWithoutToken, ROWS_ONCE);
}

/// W04, U04
#[test]
fn a_call_judged_by_its_routes_effects_would_be_made_twice() {
    breaks(Effects::Opaque, Fault::CallTakenForLocal, CALLED_ONCE);
}

/// W04, U05
#[test]
fn a_call_that_a_verdict_has_found_would_be_made_again() {
    breaks(Effects::Opaque, Fault::FoundIsIgnored, CALLED_ONCE);
}

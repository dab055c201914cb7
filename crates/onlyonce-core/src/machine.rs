//! Every transition of a record, as pure functions. Only this file and its modules compare a record's state.
//!
//! A store shows what it has ([`Seen`]); a rule answers with what to write, or why nothing is written. Engines carry
//! the answer out by compare and swap and, where they lose, ask again on what they then see.
//!
//! 1. [`decide`]: may this request run, is it answered from the record, or is it refused? [`answer_from_copy`]: what of
//!    that a node may answer from a copy of its own.
//! 2. [`renew`], [`finish`]: what an attempt may write. Its token fences both: once a *later attempt* has begun, it
//!    is superseded and nothing it says is written.
//! 3. The late truth counts. An attempt that comes back after its lease lapsed, with no later attempt in between,
//!    settles the record with what really happened.
//! 4. [`sweep`]: what becomes of a record nobody came back for.
//! 5. [`verdict()`]: what reconciling found out. An unknown record runs again only after one. [`ask`], [`probe_failed`]: when
//!    the reconciler asks, and asks again. [`time_line`], [`why`], [`actions`]: the same, for people.
//! 6. [`claim`], [`cancel`], [`withdraw`]: accepted work. [`commit_phase`], [`call`]: phases. [`forget`]: the operator's eraser.
//! 7. [`due`], [`expires`] and [`may_reap`]: when a record wants attention, and when it may be deleted. [`SWEPT`],
//!    [`ABANDONED`] and [`EXPIRING`] say in which states to look for such records.
//!
//! A lost attempt that is known to have happened is completed, whatever the work touches. Otherwise what it leads to depends
//! on what the work touches, and on nothing else:
//!
//! | effects | lost attempt |
//! |---|---|
//! | local | retryable: its transaction was rolled back, or its completion stands |
//! | keyed | retryable while a rerun would end before downstream may forget the key, then unknown |
//! | queryable, opaque | unknown |
//!
//! Only what is settled expires; doubt does not, however old:
//!
//! | state | past its retention |
//! |---|---|
//! | completed | expired: deleted, or its key used anew |
//! | retryable, nothing was done | expired, likewise |
//! | retryable, relies on downstream's memory | as before: runs again while downstream remembers, then unknown |
//! | retryable, stopped at a recovery point | as before, and flagged: a person decides |
//! | pending, or accepted and retryable | completed with 408; where it relies on downstream's memory, retryable or unknown |
//! | running, unknown | as before |

mod verdict;
mod view;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, header};

use crate::fingerprint::Fingerprint;
use crate::history::{Entry, History, What};
use crate::key::Key;
use crate::outcome::Outcome;
use crate::policy::{OnExpired, Policy};
use crate::record::{
    Accepted, Asking, Calling, Draft, Effects, Progress, Reason, Record, Response, Seen, Source, State,
    StateName, StateSet, Terms, Token, TraceId, Verdict,
};
use crate::refusal::Refusal;
use crate::scope::Scope;
use crate::time::{Due, Timestamp, When};

pub use self::verdict::{
    About, Backoff, Force, Ignored, Ruled, Ruling, Statement, ask, note, probe_failed, schedule, verdict,
};
pub use self::view::{Action, ActionName, Facts, Refused, actions, facts, time_line, why};

/// The shortest wait a client is told: a header in whole seconds cannot say less.
const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);
/// What a client is told to wait where only a person can settle the record.
const RETRY_AFTER_UNKNOWN: Duration = Duration::from_secs(60);
/// The pause after the first attempt of accepted work that did not run; it doubles with each further one.
const PAUSE_FIRST: Duration = Duration::from_secs(1);

/// A keyed request, as [`decide`] needs it.
pub struct Request<'a> {
    /// The namespace of the key.
    pub scope: &'a Scope,
    /// The key.
    pub key: &'a Key,
    /// The route it came in on.
    pub route: Option<&'a Arc<str>>,
    /// The request's fingerprint.
    pub fingerprint: &'a dyn Prints,
    /// What the policy says about it.
    pub policy: &'a Policy,
    /// A token nobody has used before, for the attempt this request may become.
    pub token: Token,
    /// Whether it is to run now or to be accepted for later.
    pub admission: Admission,
    /// The trace that it is part of, where it is traced.
    pub trace: Option<TraceId>,
}

/// How a request gives its fingerprint: computing it costs, so it is asked only for what is needed.
pub trait Prints: Sync {
    /// The fingerprint to store with a new record.
    fn fingerprint(&self) -> Fingerprint;
    /// Whether a stored fingerprint is of this very request.
    fn matches(&self, stored: &Fingerprint) -> bool;
}

impl Prints for Fingerprint {
    fn fingerprint(&self) -> Fingerprint {
        self.clone()
    }

    fn matches(&self, stored: &Fingerprint) -> bool {
        self == stored
    }
}

/// Whether the caller wants the work run now or accepted for later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Run now.
    Run,
    /// Accept: reserve the key, run in the background.
    Accept,
}

/// What a request may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Write this, then run as its attempt (or, accepted, leave it pending).
    Begin(Box<Draft>),
    /// Answer with the stored response.
    Replay,
    /// Answer why nothing runs.
    Refuse(Refusal),
    /// The attempt is lost: write this, then decide again on what stands there.
    Settle(Box<Draft>),
}

/// May this request run?
pub fn decide(seen: Option<&Seen>, request: &Request<'_>) -> Decision {
    let Some(seen) = seen else { return Decision::Begin(reserve(request)) };
    let (record, now) = (&*seen.record, seen.now);
    if has_expired(record, now) {
        return if is_gone(record, request.policy) {
            Decision::Refuse(Refusal::Expired)
        } else {
            Decision::Begin(reserve(request))
        };
    }
    if !request.fingerprint.matches(&record.fingerprint) {
        return Decision::Refuse(Refusal::KeyReused {
            other_endpoint: request.route != record.route.as_ref(),
        });
    }
    match &record.state {
        State::Completed { response: Some(_), .. } => Decision::Replay,
        State::Completed { response: None, .. } => Decision::Refuse(Refusal::ResponseNotStored),
        State::Pending { .. } => Decision::Refuse(in_progress(record, now)),
        State::Running { .. } if !has_lapsed(record, now) => Decision::Refuse(in_progress(record, now)),
        State::Running { .. } => match lost(record, now) {
            // What is known to be done is not run again, also where downstream would deduplicate it.
            Lost::Rerun if has_happened_evidence(record) => {
                Decision::Settle(lose(seen, lapse_reason(record, now), Source::Sweeper))
            }
            Lost::Rerun => Decision::Begin(again(record, request.token, request.admission, request.trace)),
            Lost::Doubt(_) => Decision::Settle(lose(seen, lapse_reason(record, now), Source::Sweeper)),
        },
        State::Retryable { .. } => match (rerun(record, now), record.accepted) {
            (Lost::Doubt(reason), _) => Decision::Settle(unknown(seen, reason, Source::Sweeper)),
            (Lost::Rerun, Some(accepted)) if now >= accepted.until => Decision::Settle(ran_out(seen)),
            // A worker runs it again: it need not be accepted twice.
            (Lost::Rerun, Some(_)) if request.admission == Admission::Accept => {
                Decision::Refuse(in_progress(record, now))
            }
            (Lost::Rerun, _) => {
                Decision::Begin(again(record, request.token, request.admission, request.trace))
            }
        },
        State::Unknown { .. } => Decision::Refuse(outcome_unknown(record, now)),
    }
}

/// What a node may answer from its own copy of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromCopy {
    /// Answer with the stored response.
    Replay,
    /// Answer why nothing runs.
    Refuse(Refusal),
    /// Only the store can tell.
    AskStore,
}

/// What a node may answer from its own copy of a record, by the rules of [`decide`] and without asking the store.
///
/// `copy.now` is the store's clock as the node reckons it, and never behind the store's own. A copy answers only what the
/// store would answer as well: a record that is completed does not change while it is kept, and one that runs stays this
/// attempt's while its lease lasts. To run anything, or to call a key expired, needs the record itself.
pub fn answer_from_copy(copy: &Seen, request: &Request<'_>) -> FromCopy {
    match decide(Some(copy), request) {
        Decision::Replay => FromCopy::Replay,
        Decision::Refuse(Refusal::Expired) | Decision::Begin(_) | Decision::Settle(_) => FromCopy::AskStore,
        Decision::Refuse(refusal) => FromCopy::Refuse(refusal),
    }
}

/// What a request may be told whose record another transaction holds, so that nothing can be written now.
///
/// As [`answer_from_copy`], but an attempt that runs is in progress also past its lease: nobody begins another one while the
/// record is held, and whoever holds it may be that attempt's own transaction, about to complete it.
pub fn answer_while_held(seen: &Seen, request: &Request<'_>) -> FromCopy {
    match (answer_from_copy(seen, request), &seen.record.state) {
        (FromCopy::AskStore, State::Running { .. }) => FromCopy::Refuse(in_progress(&seen.record, seen.now)),
        (answer @ (FromCopy::Replay | FromCopy::Refuse(_) | FromCopy::AskStore), _) => answer,
    }
}

/// Whether a draft begins a new use of its key, and not another attempt of a use that is on record.
pub fn is_new_use(draft: &Draft) -> bool {
    draft.created_at == When::WRITE
}

/// The first attempt of a key, or its acceptance.
fn reserve(request: &Request<'_>) -> Box<Draft> {
    let terms = request.policy.terms();
    let (attempt, state) = match request.admission {
        Admission::Run => (1, State::Running { lapses_at: When::AfterWrite(terms.lease) }),
        Admission::Accept => (0, State::Pending { expires_at: When::AfterWrite(terms.retention) }),
    };
    Box::new(Record {
        scope: request.scope.clone(),
        key: request.key.clone(),
        route: request.route.cloned(),
        fingerprint: request.fingerprint.fingerprint(),
        terms,
        attempt,
        token: request.token,
        relies_on_memory: false,
        created_at: When::WRITE,
        began_at: When::WRITE,
        written_at: When::WRITE,
        progress: Progress::default(),
        evidence: None,
        accepted: None,
        history: History::default(),
        trace: request.trace,
        state,
    })
}

/// The next attempt of a record, from its recovery point.
fn again(record: &Record, token: Token, admission: Admission, trace: Option<TraceId>) -> Box<Draft> {
    let mut draft = record.draft();
    (draft.token, draft.trace) = (token, trace);
    draft.began_at = When::WRITE;
    draft.relies_on_memory |= was_lost_while_keyed(record);
    draft.evidence = None;
    // A call that may have reached downstream stays on record until its result does: it is made again under its own name.
    if !draft.relies_on_memory {
        draft.progress.calling = None;
    }
    // An acceptance that was never claimed is no attempt.
    if !matches!(record.state, State::Pending { .. }) {
        draft.history.push_token(record.token);
        draft.history.push(Entry::new(record.began_at, record.attempt, What::Attempt, Source::Attempt));
    }
    draft.state = match admission {
        Admission::Run => {
            draft.attempt = record.attempt.saturating_add(1);
            State::Running { lapses_at: When::AfterWrite(record.terms.lease) }
        }
        Admission::Accept => {
            draft.accepted = None;
            State::Pending { expires_at: When::AfterWrite(record.terms.retention) }
        }
    };
    draft
}

/// What an attempt that asks to live on may write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The lease from now on.
    Write(Box<Draft>),
    /// This attempt's completion stands, by its own transaction or by a verdict, and its answer is stored: nobody needs to
    /// wait for the attempt.
    Completed,
    /// The record is no longer this attempt's to renew. It may still bring the truth.
    Lost,
}

/// The lease counts anew from this write; past the deadline, or once the record has moved on, it does not.
pub fn renew(seen: Option<&Seen>, token: Token) -> Renewal {
    let Some(seen) = seen else { return Renewal::Lost };
    let record = &*seen.record;
    if record.token == token && stored(record).is_some() {
        return Renewal::Completed;
    }
    let is_ours = record.token == token && matches!(record.state, State::Running { .. });
    if !is_ours || seen.now >= record.deadline_at() {
        return Renewal::Lost;
    }
    let mut draft = record.draft();
    draft.state = State::Running { lapses_at: When::AfterWrite(record.terms.lease) };
    Renewal::Write(draft)
}

/// What becomes of an attempt's outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// Write this.
    Write(Box<Draft>),
    /// This attempt's completion stands already, by its own transaction or by a verdict: the stored answer counts.
    Already,
    /// This attempt's doubt is on record already.
    Known,
    /// A later attempt has begun, or the record is gone: nothing is written.
    Superseded,
}

/// An attempt has ended with `outcome`.
pub fn finish(seen: Option<&Seen>, token: Token, outcome: &Outcome) -> Finish {
    let Some(seen) = seen else { return Finish::Superseded };
    let (record, now) = (&*seen.record, seen.now);
    if record.token != token {
        return Finish::Superseded;
    }
    match (&record.state, outcome) {
        (State::Completed { .. }, _) => Finish::Already,
        // A pending record's token is not an attempt's.
        (State::Pending { .. }, _) => Finish::Superseded,
        // The doubt is on record; what it led to stands.
        (State::Unknown { .. } | State::Retryable { .. }, Outcome::Unknown(_)) => Finish::Known,
        (
            State::Running { .. } | State::Unknown { .. } | State::Retryable { .. },
            Outcome::Completed { response, keep_for },
        ) => Finish::Write(complete(seen, response.clone(), Source::Attempt, *keep_for)),
        // Two statements that disagree: what happened cannot be undone, and must not be run again.
        (State::Running { .. }, Outcome::DidNotRun { .. }) if has_happened_evidence(record) => {
            let said = Entry::new(now, record.attempt, What::Retryable, Source::Attempt)
                .with_detail("the attempt reported that it did not run, but a webhook that it happened");
            // Where an earlier attempt was lost, that one did it, and both are right.
            let seen = noting(seen, Entry { contradicts: !record.relies_on_memory, ..said });
            Finish::Write(by_evidence(&seen).expect("there is evidence that it happened"))
        }
        (
            State::Running { .. } | State::Unknown { .. } | State::Retryable { .. },
            Outcome::DidNotRun { retry_after, keep_for },
        ) => {
            let mut draft = retryable(record, *retry_after, *keep_for);
            draft.history.push(Entry::new(now, record.attempt, What::Retryable, Source::Attempt));
            Finish::Write(draft)
        }
        (State::Running { .. }, Outcome::Unknown(reason)) => {
            Finish::Write(lose(seen, *reason, Source::Attempt))
        }
    }
}

/// The reservation of a request and its completion as one write, for work that commits with both: `begun` is what [`decide`]
/// would have written.
pub fn complete_at_once(
    mut begun: Box<Draft>,
    response: Option<Arc<Response>>,
    keep_for: Option<Duration>,
) -> Box<Draft> {
    let expires_at = When::AfterWrite(keep_for.unwrap_or(begun.terms.retention));
    begun.accepted = None;
    begun.state = State::Completed { response, by: Source::Attempt, expires_at };
    begun
}

/// What becomes of a record nobody came back for; none where there is nothing to do.
pub fn sweep(seen: &Seen) -> Option<Box<Draft>> {
    let (record, now) = (&*seen.record, seen.now);
    match &record.state {
        State::Running { .. } if has_lapsed(record, now) => {
            Some(lose(seen, lapse_reason(record, now), Source::Sweeper))
        }
        State::Pending { expires_at } => match rerun(record, now) {
            Lost::Doubt(reason) => Some(unknown(seen, reason, Source::Sweeper)),
            Lost::Rerun if now < *expires_at => None,
            Lost::Rerun => Some(ran_out(seen)),
        },
        // Keyed work that may have run must not be sent again once downstream may have forgotten it.
        State::Retryable { expires_at, stuck_since, .. } => match rerun(record, now) {
            Lost::Rerun if record.accepted.is_some_and(|accepted| now >= accepted.until) => {
                Some(ran_out(seen))
            }
            Lost::Rerun if is_half_done(record) && stuck_since.is_none() && now >= *expires_at => {
                Some(flagged(seen))
            }
            Lost::Rerun => None,
            Lost::Doubt(reason) => Some(unknown(seen, reason, Source::Sweeper)),
        },
        State::Running { .. } | State::Completed { .. } | State::Unknown { .. } => None,
    }
}

/// Accepted work that was not run in time: its client is told so. Where an attempt may have reached downstream, or has done a
/// part, a 408 would be a guess: then the next request with its key runs it.
fn ran_out(seen: &Seen) -> Box<Draft> {
    let (record, now) = (&*seen.record, seen.now);
    if !record.relies_on_memory && !is_half_done(record) {
        return complete(seen, Some(given_up(record)), Source::Sweeper, None);
    }
    let mut draft = retryable(&Record { accepted: None, ..record.clone() }, None, None);
    draft.history.push(Entry::new(now, record.attempt, What::Retryable, Source::Sweeper));
    draft
}

/// Half-done work that nobody came back for: kept, and flagged for a person.
fn flagged(seen: &Seen) -> Box<Draft> {
    let mut draft = seen.record.draft();
    if let State::Retryable { stuck_since, .. } = &mut draft.state {
        *stuck_since = Some(When::WRITE);
    }
    draft.history.push(Entry::new(seen.now, seen.record.attempt, What::DeadLetter, Source::Sweeper));
    draft
}

/// Accepted work begins its attempt; none where it is not to run now. Pending work may begin at once. Work whose last attempt
/// did not run, or was lost and may run again, begins after a pause, which doubles up to `pause_max`.
pub fn claim(seen: &Seen, token: Token, pause_max: Duration) -> Option<Box<Draft>> {
    let (record, now) = (&*seen.record, seen.now);
    let until = match (&record.state, record.accepted) {
        (State::Pending { expires_at }, _) => *expires_at,
        (State::Retryable { .. }, Some(accepted)) if now >= runs_again_at(record, accepted) => accepted.until,
        (State::Retryable { .. }, _)
        | (State::Running { .. } | State::Completed { .. } | State::Unknown { .. }, _) => return None,
    };
    match rerun(record, now) {
        Lost::Rerun if now < until => {
            let mut draft = again(record, token, Admission::Run, None);
            draft.accepted = Some(Accepted { until, pause_max });
            Some(draft)
        }
        Lost::Rerun | Lost::Doubt(_) => None,
    }
}

/// When a worker runs accepted work again, whose last attempt did not run.
fn runs_again_at(record: &Record, accepted: Accepted) -> Timestamp {
    record.written_at.plus(pause(record, accepted))
}

/// 1 s after the first attempt, then twice as long each time; longer where the service asked for it.
fn pause<T>(record: &Record<T>, accepted: Accepted) -> Duration {
    let asked = match &record.state {
        State::Retryable { retry_after, .. } => retry_after.unwrap_or_default(),
        State::Pending { .. } | State::Running { .. } | State::Completed { .. } | State::Unknown { .. } => {
            Duration::ZERO
        }
    };
    let doublings = record.attempt.saturating_sub(1).min(31);
    PAUSE_FIRST.saturating_mul(1 << doublings).max(asked).min(accepted.pause_max)
}

/// The caller cancels accepted work; none where it runs, has ended, or may have done something.
pub fn cancel(seen: &Seen) -> Option<Box<Draft>> {
    let record = &*seen.record;
    let waits = match (&record.state, record.accepted) {
        (State::Pending { .. }, _) | (State::Retryable { .. }, Some(_)) => true,
        (State::Retryable { .. }, None)
        | (State::Running { .. } | State::Completed { .. } | State::Unknown { .. }, _) => false,
    };
    let is_untouched = !record.relies_on_memory && !is_half_done(record);
    (waits && is_untouched).then(|| complete(seen, Some(cancelled(record)), Source::Caller, None))
}

/// Takes back an acceptance whose client was told that it did not count: the record is as if it had never been. None where
/// it is not this acceptance that stands there.
pub fn withdraw(seen: &Seen, token: Token) -> Option<Box<Draft>> {
    let record = &*seen.record;
    let is_ours = record.token == token && matches!(record.state, State::Pending { .. });
    is_ours.then(|| {
        let mut draft = retryable(record, None, Some(Duration::ZERO));
        draft.history.push(Entry::new(seen.now, record.attempt, What::Retryable, Source::Attempt));
        draft
    })
}

/// Whether a write of `draft` ends the accepted work that was seen, so that its request goes with it.
pub fn ends_acceptance(seen: Option<&Seen>, draft: &Draft) -> bool {
    let has_request = seen.is_some_and(|seen| is_accepted(&*seen.record));
    has_request && !is_accepted(draft)
}

/// Whether a record is of accepted work that has not ended: then its request is stored.
pub fn is_accepted<T>(record: &Record<T>) -> bool {
    record.accepted.is_some() || matches!(record.state, State::Pending { .. })
}

/// A phase has committed: the next attempt starts after it. None where the attempt is fenced.
pub fn commit_phase(seen: &Seen, token: Token, phase: &Arc<str>) -> Option<Box<Draft>> {
    let mut draft = own_running(seen, token)?;
    draft.progress = Progress { recovery_point: Some(phase.clone()), calling: None, found: None };
    // The call of this phase, made again or not, has its result on record now.
    draft.relies_on_memory = false;
    draft.evidence = None;
    Some(draft)
}

/// A phase is about to call a foreign system: written before the call. None where the attempt is fenced, or its deadline has
/// passed: what is believed about its calls supposes that none begins later.
pub fn call(seen: &Seen, token: Token, calling: Calling) -> Option<Box<Draft>> {
    let mut draft = own_running(seen, token).filter(|_| seen.now < seen.record.deadline_at())?;
    draft.progress.calling = Some(calling);
    // What was heard before this call is not about it.
    draft.evidence = None;
    Some(draft)
}

/// Whether a write of `draft` ends the use of the key that was seen, so that the results of its phases go with it.
pub fn ends_progress(seen: Option<&Seen>, draft: &Draft) -> bool {
    let had = seen.is_some_and(|seen| seen.record.progress.recovery_point.is_some());
    had && draft.progress.recovery_point.is_none()
}

fn own_running(seen: &Seen, token: Token) -> Option<Box<Draft>> {
    let is_ours = seen.record.token == token && matches!(seen.record.state, State::Running { .. });
    is_ours.then(|| seen.record.draft())
}

/// What becomes of an order to forget a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forget {
    /// Write this.
    Write(Box<Draft>),
    /// An attempt's lease lives; only force goes past it.
    StillRunning,
    /// Nobody knows whether the work ran, or a part of it is done, and a retry would run all of it again; only force goes past
    /// it.
    Unknown,
    /// There is nothing: it has expired.
    Absent,
}

/// Makes a record as if it had never been: it expires with this write and its key may be used anew. Whoever held the
/// record is superseded by `token`, which nobody has used.
pub fn forget(seen: &Seen, token: Token, force: Force) -> Forget {
    let record = &*seen.record;
    if has_expired(record, seen.now) {
        return Forget::Absent;
    }
    let refused = match (&record.state, force) {
        (_, Force::Yes) => None,
        (State::Running { .. }, Force::No) if !has_lapsed(record, seen.now) => Some(Forget::StillRunning),
        (State::Running { .. }, Force::No) => match lost(record, seen.now) {
            Lost::Doubt(_) => Some(Forget::Unknown),
            Lost::Rerun => None,
        },
        (State::Unknown { .. }, Force::No) => Some(Forget::Unknown),
        // Of half-done work a retry does the rest; forgotten, it would do all of it again.
        (State::Pending { .. } | State::Retryable { .. }, Force::No) => match rerun(record, seen.now) {
            Lost::Doubt(_) => Some(Forget::Unknown),
            Lost::Rerun if is_half_done(record) => Some(Forget::Unknown),
            Lost::Rerun => None,
        },
        (State::Completed { .. }, Force::No) => None,
    };
    if let Some(refused) = refused {
        return refused;
    }
    let mut draft = record.draft();
    draft.token = token;
    draft.relies_on_memory = false;
    draft.evidence = None;
    draft.accepted = None;
    draft.progress = Progress::default();
    draft.history = History::default();
    draft.state = State::Retryable { retry_after: None, expires_at: When::WRITE, stuck_since: None };
    Forget::Write(draft)
}

/// States in which a record waits for somebody who may never come back: all that [`sweep`] is ever about.
pub const SWEPT: StateSet = StateSet::of(&[StateName::Running, StateName::Pending, StateName::Retryable]);
/// The state in which an attempt's process may have died: all that [`abandon`] is ever about.
pub const ABANDONED: StateSet = StateSet::of(&[StateName::Running]);
/// The state in which the reconciler asks: all that [`ask`] is ever about.
pub const ASKED: StateSet = StateSet::of(&[StateName::Unknown]);
/// States in which a record may expire: all that [`may_reap`] ever allows.
pub const EXPIRING: StateSet = StateSet::of(&[StateName::Completed, StateName::Retryable]);
/// The state in which accepted work waits for another attempt, beside that of all that is pending.
pub const RERUN: StateSet = StateSet::of(&[StateName::Retryable]);

/// Until when the row must stand if nobody writes it again; none while age alone may not delete it. For engines whose
/// server deletes rows by itself.
pub fn expires(draft: &Draft) -> Option<When> {
    match &draft.state {
        State::Retryable { .. } if is_kept(draft) => None,
        State::Completed { expires_at, .. } | State::Retryable { expires_at, .. } => Some(*expires_at),
        State::Pending { .. } | State::Running { .. } | State::Unknown { .. } => None,
    }
}

/// When a record wants attention next.
pub fn due(draft: &Draft) -> Due {
    let forgets_at = draft.created_at.plus(reruns_for(&draft.terms));
    match &draft.state {
        State::Completed { expires_at, .. } => Due::default().or_at(*expires_at),
        State::Running { lapses_at } => {
            Due::default().or_at(*lapses_at).or_at(draft.began_at.plus(draft.terms.deadline))
        }
        State::Pending { expires_at } if draft.relies_on_memory => {
            Due::default().or_at(*expires_at).or_at(forgets_at)
        }
        State::Retryable { expires_at, stuck_since, .. } if is_kept(draft) => {
            let mut due = Due::default();
            if let Some(accepted) = draft.accepted {
                let pause = pause(draft, accepted);
                due = due.or_at(draft.written_at.plus(pause)).or_at(When::At(accepted.until));
            }
            if draft.relies_on_memory {
                due = due.or_at(forgets_at);
            }
            if is_half_done(draft) && stuck_since.is_none() {
                due = due.or_at(*expires_at);
            }
            due
        }
        State::Pending { expires_at } | State::Retryable { expires_at, .. } => {
            Due::default().or_at(*expires_at)
        }
        State::Unknown { ask_at, .. } => {
            ask_at.map_or_else(Due::default, |ask_at| Due::default().or_at(ask_at))
        }
    }
}

/// Whether the row may be deleted: settled and expired. A running, pending or unknown one never is, by age alone, nor
/// is a retryable one whose work, or a part of it, may have been done.
pub fn may_reap(record: &Record, now: Timestamp) -> bool {
    has_expired(record, now)
}

/// The stored answer and until when it is kept, where there is one.
pub fn stored(record: &Record) -> Option<(&Response, Timestamp)> {
    match &record.state {
        State::Completed { response: Some(response), expires_at, .. } => Some((response, *expires_at)),
        State::Completed { response: None, .. }
        | State::Pending { .. }
        | State::Running { .. }
        | State::Retryable { .. }
        | State::Unknown { .. } => None,
    }
}

/// Whether the record's answer may be replayed now: stored, and not expired.
pub fn is_replayable(seen: &Seen) -> bool {
    stored(&seen.record).is_some() && !has_expired(&seen.record, seen.now)
}

/// What a caller who asks about its own key is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Pending or running: ask again after so long.
    InProgress(Duration),
    /// Completed, retryable or unknown; until when it is kept, where that is known.
    Ended(Option<Timestamp>),
    /// Expired and still kept, where the policy tells clients so.
    Gone,
    /// Nothing that a caller may know of.
    Absent,
}

/// What a caller who asks about its own key is told.
pub fn standing(seen: Option<&Seen>, policy: &Policy) -> Standing {
    let Some(seen) = seen else { return Standing::Absent };
    let (record, now) = (&*seen.record, seen.now);
    if has_expired(record, now) {
        return if is_gone(record, policy) { Standing::Gone } else { Standing::Absent };
    }
    match &record.state {
        State::Pending { .. } | State::Running { .. } => Standing::InProgress(progress_pause(record, now)),
        // A worker runs it again.
        State::Retryable { .. } if record.accepted.is_some() => {
            Standing::InProgress(progress_pause(record, now))
        }
        State::Retryable { .. } if is_kept(record) => Standing::Ended(None),
        State::Completed { expires_at, .. } | State::Retryable { expires_at, .. } => {
            Standing::Ended(Some(*expires_at))
        }
        State::Unknown { .. } => Standing::Ended(None),
    }
}

/// The state of the record that a refusal is about, where the refusal says it.
pub fn state_refused(refusal: &Refusal) -> Option<StateName> {
    matches!(refusal, Refusal::OutcomeUnknown { .. }).then_some(StateName::Unknown)
}

/// Since when nobody knows what became of the work, or since when half-done work is flagged; none otherwise.
pub fn unknown_since(record: &Record) -> Option<Timestamp> {
    match &record.state {
        State::Unknown { since, .. } => Some(*since),
        State::Retryable { stuck_since, .. } => *stuck_since,
        State::Pending { .. } | State::Running { .. } | State::Completed { .. } => None,
    }
}

/// Since when work that was accepted waits to begin; none where it does not.
pub fn pending_since(record: &Record) -> Option<Timestamp> {
    match &record.state {
        State::Pending { .. } => Some(record.created_at),
        State::Running { .. } | State::Completed { .. } | State::Retryable { .. } | State::Unknown { .. } => {
            None
        }
    }
}

/// Whether half-done work waits for a person: nobody came back for it within its retention.
pub fn is_flagged(record: &Record) -> bool {
    !is_unknown(record) && unknown_since(record).is_some()
}

/// Whether the last write of a record is the one that made it unknown.
pub fn became_unknown(record: &Record) -> bool {
    is_unknown(record) && unknown_since(record) == Some(record.written_at)
}

/// The answer that a draft stores, where it stores one.
pub fn stored_in(draft: &Draft) -> Option<&Response> {
    match &draft.state {
        State::Completed { response, .. } => response.as_deref(),
        State::Pending { .. } | State::Running { .. } | State::Retryable { .. } | State::Unknown { .. } => {
            None
        }
    }
}

/// Whether an attempt is under way, or was lost and is not settled.
pub fn is_running(record: &Record) -> bool {
    matches!(record.state, State::Running { .. })
}

/// Whether nobody knows what became of the work.
pub fn is_unknown(record: &Record) -> bool {
    matches!(record.state, State::Unknown { .. })
}

/// Why a caller who asks for the stored answer of an ended record gets none, where there is more to say than "none".
pub fn withheld(seen: &Seen) -> Option<Refusal> {
    match &seen.record.state {
        State::Completed { response: None, .. } => Some(Refusal::ResponseNotStored),
        State::Unknown { .. } => Some(outcome_unknown(&seen.record, seen.now)),
        State::Completed { response: Some(_), .. }
        | State::Retryable { .. }
        | State::Pending { .. }
        | State::Running { .. } => None,
    }
}

/// What a lost attempt leads to.
enum Lost {
    Rerun,
    Doubt(Reason),
}

/// A running record whose attempt is gone.
fn lost(record: &Record, now: Timestamp) -> Lost {
    match record.effects() {
        // A keyed call of an earlier attempt may still be open.
        Effects::Local => rerun(record, now),
        Effects::Keyed if remembers(record, now) => Lost::Rerun,
        Effects::Keyed => Lost::Doubt(Reason::DownstreamForgot),
        Effects::Queryable | Effects::Opaque => Lost::Doubt(lapse_reason(record, now)),
    }
}

/// A retryable or pending record: it runs again, unless that would need a memory downstream may no longer have.
fn rerun(record: &Record, now: Timestamp) -> Lost {
    if record.relies_on_memory && !remembers(record, now) {
        Lost::Doubt(Reason::DownstreamForgot)
    } else {
        Lost::Rerun
    }
}

/// A lost attempt may have reached downstream: the next one is safe only because downstream knows the key.
fn was_lost_while_keyed(record: &Record) -> bool {
    matches!(record.state, State::Running { .. }) && record.effects() == Effects::Keyed
}

/// Whether downstream surely still knows the key when a rerun that is decided now acts for the last time.
fn remembers(record: &Record, now: Timestamp) -> bool {
    now < record.created_at.plus(reruns_for(&record.terms))
}

/// For how long after its first reservation keyed work may be run again.
///
/// Downstream counts its memory from when it first saw the key, which is not before that reservation. The last rerun
/// must fit into it whole: an attempt acts downstream for up to its deadline and the horizon. That margin is taken off
/// here, so `downstream_retention` is what downstream promises.
///
/// The margin counts from the look that was decided on; a record's deadline counts from the write of the reservation,
/// up to `store_timeout` later. The margin does not cover that time: whoever runs the attempt must. The layer counts
/// the attempt's deadline from before it asked for the swap, so that a slow write shortens the attempt and does not
/// prolong it, and sends nothing once half the lease is used. What it does not count is the look's own way back.
fn reruns_for(terms: &Terms) -> Duration {
    terms.downstream_retention.saturating_sub(terms.deadline).saturating_sub(terms.horizon)
}

/// A running record whose attempt is gone or does not know: completed, where it is known to have happened; otherwise
/// retryable or unknown, by its effects. `by` is who found out.
fn lose(seen: &Seen, reason: Reason, by: Source) -> Box<Draft> {
    let (record, now) = (&*seen.record, seen.now);
    if let Some(draft) = by_evidence(&noting(seen, doubt(seen, reason, by))) {
        return draft;
    }
    // Nothing is run by phases that are not those of the record, safe as it would be otherwise.
    if reason == Reason::Changed {
        return unknown(seen, reason, by);
    }
    match lost(record, now) {
        Lost::Rerun => {
            let mut draft = retryable(record, None, None);
            draft.relies_on_memory |= was_lost_while_keyed(record);
            draft.history.push(doubt(seen, reason, by));
            draft
        }
        Lost::Doubt(Reason::DownstreamForgot) => unknown(seen, Reason::DownstreamForgot, by),
        Lost::Doubt(_) => unknown(seen, reason, by),
    }
}

fn has_happened_evidence(record: &Record) -> bool {
    record.evidence.as_ref().is_some_and(|evidence| matches!(evidence.verdict, Verdict::Happened(_)))
}

/// Whether an attempt is known to have done its work, and its answer is not: once the attempt is lost, its record would be
/// completed without one.
pub fn lacks_answer(record: &Record) -> bool {
    let is_running = matches!(record.state, State::Running { .. });
    let evidence = record.evidence.as_ref().map(|evidence| &evidence.verdict);
    is_running && matches!(evidence, Some(Verdict::Happened(None)))
}

/// The same of an attempt that nobody came back for.
pub fn is_lost_without_answer(seen: &Seen) -> bool {
    lacks_answer(&seen.record) && has_lapsed(&seen.record, seen.now)
}

/// The record as if whoever told that the work happened had brought this answer too.
pub fn answered(seen: &Seen, response: Arc<Response>) -> Seen {
    let mut record = Record::clone(&seen.record);
    if let Some(evidence) = &mut record.evidence {
        evidence.verdict = Verdict::Happened(Some(response));
    }
    Seen { record: Arc::new(record), ..seen.clone() }
}

/// The record of an attempt that is known to have done its work, by what was heard while it ran.
fn by_evidence(seen: &Seen) -> Option<Box<Draft>> {
    let evidence = seen.record.evidence.as_ref()?;
    match &evidence.verdict {
        Verdict::Happened(response) => Some(happened(seen, response.clone(), evidence.by)),
        Verdict::DidNotHappen { .. } | Verdict::StillUnknown => None,
    }
}

/// The record with an entry in its history: what is made of it next comes after that entry.
fn noting(seen: &Seen, entry: Entry) -> Seen {
    let mut record = Record::clone(&seen.record);
    record.history.push(entry);
    Seen { record: Arc::new(record), ..seen.clone() }
}

/// How it is told that an attempt was lost.
fn doubt(seen: &Seen, reason: Reason, by: Source) -> Entry {
    let what = match reason {
        Reason::Lapsed | Reason::Deadline => What::Lapsed,
        Reason::Panicked
        | Reason::ConnectionLost
        | Reason::AnswerBroken
        | Reason::Status(_)
        | Reason::Said
        | Reason::Stopped
        | Reason::DownstreamForgot
        | Reason::Changed => What::Unknown,
    };
    Entry::new(seen.now, seen.record.attempt, what, by).with_detail(&reason.says())
}

fn complete(
    seen: &Seen,
    response: Option<Arc<Response>>,
    by: Source,
    keep_for: Option<Duration>,
) -> Box<Draft> {
    let record = &*seen.record;
    let mut draft = record.draft();
    draft.evidence = None;
    draft.accepted = None;
    // Of a record that its attempt completed, its own columns tell when and by whom. So a SQL function can complete it without
    // understanding its history.
    if by != Source::Attempt {
        draft.history.push(Entry::new(seen.now, record.attempt, What::Completed, by));
    }
    draft.state = State::Completed {
        response,
        by,
        expires_at: When::AfterWrite(keep_for.unwrap_or(record.terms.retention)),
    };
    draft
}

fn retryable(record: &Record, retry_after: Option<Duration>, keep_for: Option<Duration>) -> Box<Draft> {
    let mut draft = record.draft();
    draft.evidence = None;
    // The call that was under way stays on record until the next attempt: "happened" may still be said about it.
    let expires_at = match record.accepted {
        Some(accepted) => When::At(accepted.until),
        None => When::AfterWrite(keep_for.unwrap_or(record.terms.retention)),
    };
    draft.state = State::Retryable { retry_after, expires_at, stuck_since: None };
    draft
}

/// Nobody knows; unless a verdict that came while the attempt ran already settles it.
fn unknown(seen: &Seen, reason: Reason, by: Source) -> Box<Draft> {
    let seen = &noting(seen, doubt(seen, reason, by));
    let record = &*seen.record;
    if let Some(evidence) = &record.evidence {
        match &evidence.verdict {
            Verdict::Happened(response) => return happened(seen, response.clone(), evidence.by),
            // It is about this attempt alone: not where an earlier one was lost too.
            Verdict::DidNotHappen { never_will: true } if !record.relies_on_memory => {
                return did_not_happen(seen, evidence.by);
            }
            // It came while the attempt lived: whatever the time now, the effect may have turned up since.
            Verdict::DidNotHappen { .. } | Verdict::StillUnknown => {}
        }
    }
    let mut draft = record.draft();
    draft.accepted = None;
    draft.state = State::Unknown {
        reason,
        since: When::WRITE,
        asking: Asking::default(),
        ask_at: record.terms.reconcile_first.map(When::AfterWrite),
        dead_letter: false,
    };
    draft
}

/// The whole work happened, or the foreign call of one phase: then the next attempt goes on behind that phase.
fn happened(seen: &Seen, response: Option<Arc<Response>>, by: Source) -> Box<Draft> {
    let record = &*seen.record;
    let Some(calling) = &record.progress.calling else { return complete(seen, response, by, None) };
    let mut draft = retryable(record, None, None);
    draft.relies_on_memory = false;
    draft.history.push(Entry::new(seen.now, record.attempt, What::Retryable, by));
    draft.progress = Progress { recovery_point: Some(calling.phase.clone()), calling: None, found: response };
    draft
}

fn did_not_happen(seen: &Seen, by: Source) -> Box<Draft> {
    let mut draft = retryable(&seen.record, None, None);
    draft.relies_on_memory = false;
    draft.history.push(Entry::new(seen.now, seen.record.attempt, What::Retryable, by));
    draft
}

fn has_lapsed(record: &Record, now: Timestamp) -> bool {
    match &record.state {
        State::Running { lapses_at } => now >= *lapses_at || now >= record.deadline_at(),
        State::Pending { .. } | State::Completed { .. } | State::Retryable { .. } | State::Unknown { .. } => {
            false
        }
    }
}

fn lapse_reason(record: &Record, now: Timestamp) -> Reason {
    if now >= record.deadline_at() { Reason::Deadline } else { Reason::Lapsed }
}

/// Work that stopped at a recovery point: a part of it is done, and its request alone can do the rest.
fn is_half_done<T>(record: &Record<T>) -> bool {
    record.progress.recovery_point.is_some()
}

/// A retryable record that age alone does not delete: its work, or a part of it, may have been done, or a worker runs it again.
fn is_kept<T>(record: &Record<T>) -> bool {
    record.relies_on_memory || is_half_done(record) || record.accepted.is_some()
}

/// Only what is settled expires. A retryable record whose work, or a part of it, may have been done is not settled, however
/// old: gone, its key would be a new one, and the work be done twice.
fn has_expired(record: &Record, now: Timestamp) -> bool {
    match &record.state {
        State::Retryable { .. } if is_kept(record) => false,
        State::Completed { expires_at, .. } | State::Retryable { expires_at, .. } => now >= *expires_at,
        State::Pending { .. } | State::Running { .. } | State::Unknown { .. } => false,
    }
}

/// An expired record that the policy still answers for: what was completed, not what may run again.
fn is_gone(record: &Record, policy: &Policy) -> bool {
    policy.on_expired == OnExpired::Gone && matches!(record.state, State::Completed { .. })
}

fn in_progress(record: &Record, now: Timestamp) -> Refusal {
    Refusal::InProgress { retry_after: progress_pause(record, now) }
}

/// As long again as it has already taken: short for short work, never a hammer for long work. For work that waits for its next
/// attempt, until then.
fn progress_pause(record: &Record, now: Timestamp) -> Duration {
    if let (State::Retryable { .. }, Some(accepted)) = (&record.state, record.accepted) {
        return runs_again_at(record, accepted).since(now).max(RETRY_AFTER_MIN);
    }
    now.since(record.began_at).clamp(RETRY_AFTER_MIN, record.terms.lease.max(RETRY_AFTER_MIN))
}

fn outcome_unknown(record: &Record, now: Timestamp) -> Refusal {
    let retry_after = match &record.state {
        State::Unknown { ask_at: Some(ask_at), .. } => ask_at.since(now).max(RETRY_AFTER_MIN),
        State::Unknown { ask_at: None, .. }
        | State::Pending { .. }
        | State::Running { .. }
        | State::Completed { .. }
        | State::Retryable { .. } => RETRY_AFTER_UNKNOWN,
    };
    Refusal::OutcomeUnknown { retry_after }
}

/// What accepted work is answered with that did not end in time.
fn given_up(record: &Record) -> Arc<Response> {
    not_run(match record.attempt {
        0 => "The request was accepted but not run in time; nothing was run. Send it again with a new key.",
        _ => {
            "The request was accepted, but no attempt succeeded in time: the service could not be reached, or refused or failed each attempt. Send it again with a new key."
        }
    })
}

/// What accepted work is answered with that its caller cancelled.
fn cancelled(record: &Record) -> Arc<Response> {
    not_run(match record.attempt {
        0 => {
            "The request was accepted and cancelled before it ran; nothing was run. Send it again with a new key."
        }
        _ => {
            "The request was accepted and cancelled, and no attempt had succeeded: the service could not be reached, or refused or failed each attempt. Send it again with a new key."
        }
    })
}

fn not_run(detail: &str) -> Arc<Response> {
    let body = format!(
        r#"{{"type":"https://onlyonce.dev/problems/idempotency-not-run","title":"The request was not run","status":408,"detail":"{detail}","code":"idempotency_not_run","retryable":false}}"#
    );
    let content_type = HeaderValue::from_static("application/problem+json");
    let headers = vec![(header::CONTENT_TYPE, content_type)];
    Arc::new(Response { status: 408, headers, body: Bytes::from(body) })
}

/// What becomes of a record whose attempt's process is known to be dead, whatever its lease says: an embedded store
/// has one owner, so its next owner knows. None where no attempt runs.
pub fn abandon(seen: &Seen) -> Option<Box<Draft>> {
    let (record, now) = (&*seen.record, seen.now);
    match &record.state {
        State::Running { .. } => Some(lose(seen, lapse_reason(record, now), Source::Sweeper)),
        State::Pending { .. } | State::Completed { .. } | State::Retryable { .. } | State::Unknown { .. } => {
            None
        }
    }
}

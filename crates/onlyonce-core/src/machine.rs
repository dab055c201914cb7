//! Every transition of a record, as pure functions. This is the only file that compares a record's state.
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
//! 5. [`verdict`]: what reconciling found out. An unknown record runs again only after one.
//! 6. [`claim`], [`commit_phase`], [`call`], [`forget`]: accepted work, phases, and the operator's eraser.
//! 7. [`due`], [`expires`] and [`may_reap`]: when a record wants attention, and when it may be deleted. [`SWEPT`],
//!    [`ABANDONED`] and [`EXPIRING`] say in which states to look for such records.
//!
//! What a lost attempt leads to depends on what the work touches, and on nothing else:
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
//! | pending | completed with 408; where it relies on downstream's memory, retryable or unknown |
//! | running, unknown | as before |

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::outcome::Outcome;
use crate::policy::{OnExpired, Policy};
use crate::record::{
    Calling, Draft, Effects, Evidence, Progress, Reason, Record, Response, Seen, Source, State, StateName,
    StateSet, Terms, Token, Verdict,
};
use crate::refusal::Refusal;
use crate::scope::Scope;
use crate::time::{Due, Timestamp, When};

/// The shortest wait a client is told: a header in whole seconds cannot say less.
const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);
/// What a client is told to wait where only a person can settle the record.
const RETRY_AFTER_UNKNOWN: Duration = Duration::from_secs(60);
/// How soon after a record became unknown the reconciler may first ask about it.
const ASK_FIRST: Duration = Duration::from_secs(1);

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
            Lost::Rerun => Decision::Begin(again(record, request.token, request.admission)),
            Lost::Doubt(reason) => Decision::Settle(unknown(record, reason)),
        },
        State::Retryable { .. } => match rerun(record, now) {
            Lost::Rerun => Decision::Begin(again(record, request.token, request.admission)),
            Lost::Doubt(reason) => Decision::Settle(unknown(record, reason)),
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
        state,
    })
}

/// The next attempt of a record, from its recovery point.
fn again(record: &Record, token: Token, admission: Admission) -> Box<Draft> {
    let mut draft = record.draft();
    draft.token = token;
    draft.began_at = When::WRITE;
    draft.relies_on_memory |= was_lost_while_keyed(record);
    draft.evidence = None;
    draft.progress.calling = None;
    draft.state = match admission {
        Admission::Run => {
            draft.attempt = record.attempt.saturating_add(1);
            State::Running { lapses_at: When::AfterWrite(record.terms.lease) }
        }
        Admission::Accept => State::Pending { expires_at: When::AfterWrite(record.terms.retention) },
    };
    draft
}

/// What an attempt that asks to live on may write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The lease from now on.
    Write(Box<Draft>),
    /// The record is no longer this attempt's to renew. It may still bring the truth.
    Lost,
}

/// The lease counts anew from this write; past the deadline, or once the record has moved on, it does not.
pub fn renew(seen: Option<&Seen>, token: Token) -> Renewal {
    let Some(seen) = seen else { return Renewal::Lost };
    let record = &*seen.record;
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
        ) => Finish::Write(complete(record, response.clone(), Source::Attempt, *keep_for)),
        (
            State::Running { .. } | State::Unknown { .. } | State::Retryable { .. },
            Outcome::DidNotRun { retry_after, keep_for },
        ) => Finish::Write(retryable(record, *retry_after, *keep_for)),
        (State::Running { .. }, Outcome::Unknown(reason)) => Finish::Write(lose(record, *reason, now)),
    }
}

/// What becomes of a record nobody came back for; none where there is nothing to do.
pub fn sweep(seen: &Seen) -> Option<Box<Draft>> {
    let (record, now) = (&*seen.record, seen.now);
    match &record.state {
        State::Running { .. } if has_lapsed(record, now) => {
            Some(lose(record, lapse_reason(record, now), now))
        }
        State::Pending { expires_at } => match rerun(record, now) {
            Lost::Doubt(reason) => Some(unknown(record, reason)),
            Lost::Rerun if now < *expires_at => None,
            // An attempt before it may have reached downstream: a 408 would be a guess.
            Lost::Rerun if record.relies_on_memory => Some(retryable(record, None, None)),
            Lost::Rerun => Some(complete(record, Some(given_up()), Source::Sweeper, None)),
        },
        // Keyed work that may have run must not be sent again once downstream may have forgotten it.
        State::Retryable { .. } => match rerun(record, now) {
            Lost::Rerun => None,
            Lost::Doubt(reason) => Some(unknown(record, reason)),
        },
        State::Running { .. } | State::Completed { .. } | State::Unknown { .. } => None,
    }
}

/// How insistently the reconciler asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The first pause.
    pub first: Duration,
    /// The longest pause.
    pub max: Duration,
    /// After so many questions the record is a dead letter.
    pub tries_max: u32,
}

/// A verdict that is about to be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruling {
    /// What was found.
    pub verdict: Verdict,
    /// By whom.
    pub by: Source,
    /// Whether a person insists.
    pub force: Force,
    /// A token nobody has used before: forced, it supersedes an attempt that still runs.
    pub token: Token,
    /// How insistently to ask again.
    pub backoff: Backoff,
}

/// Whether a person insists: then neither a live lease nor an early hour stands in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// The rules decide.
    No,
    /// The person decides.
    Yes,
}

/// What becomes of a verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ruled {
    /// Write this.
    Write(Box<Draft>),
    /// The attempt still runs; only force goes past it.
    StillRunning,
    /// "Did not happen" cannot be believed before then.
    TooEarly(Timestamp),
    /// The record is settled already.
    Settled,
}

/// What reconciling found out about a record.
pub fn verdict(seen: &Seen, ruling: &Ruling) -> Ruled {
    let (record, now) = (&*seen.record, seen.now);
    match (&record.state, ruling.force) {
        (State::Completed { .. } | State::Retryable { .. } | State::Pending { .. }, _) => Ruled::Settled,
        (State::Running { .. }, Force::Yes) => {
            let mut superseding = record.clone();
            superseding.token = ruling.token;
            rule(&superseding, ruling, now)
        }
        (State::Running { .. }, Force::No) if has_lapsed(record, now) => rule(record, ruling, now),
        (State::Running { .. }, Force::No) => match ruling.by {
            Source::Webhook => Ruled::Write(with_evidence(record, ruling)),
            Source::Operator | Source::Probe | Source::Attempt | Source::Sweeper => Ruled::StillRunning,
        },
        (State::Unknown { .. }, _) => rule(record, ruling, now),
    }
}

fn rule(record: &Record, ruling: &Ruling, now: Timestamp) -> Ruled {
    let believed_at = record.deadline_at().plus(record.terms.horizon);
    match &ruling.verdict {
        Verdict::Happened(response) => Ruled::Write(happened(record, response.clone(), ruling.by)),
        Verdict::DidNotHappen { never_will } => {
            if *never_will || ruling.force == Force::Yes || now >= believed_at {
                return Ruled::Write(did_not_happen(record));
            }
            match ruling.by {
                Source::Operator => Ruled::TooEarly(believed_at),
                Source::Probe | Source::Webhook | Source::Attempt | Source::Sweeper => {
                    Ruled::Write(ask_at(record, When::At(believed_at), now))
                }
            }
        }
        Verdict::StillUnknown => Ruled::Write(ask_later(record, ruling.backoff, now)),
    }
}

fn with_evidence(record: &Record, ruling: &Ruling) -> Box<Draft> {
    let mut draft = record.draft();
    draft.evidence = Some(Box::new(Evidence { verdict: ruling.verdict.clone(), by: ruling.by }));
    draft
}

/// Accepted work begins its attempt; none where it is no longer pending, or may no longer run.
pub fn claim(seen: &Seen, token: Token) -> Option<Box<Draft>> {
    match &seen.record.state {
        State::Pending { expires_at } if seen.now < *expires_at => match rerun(&seen.record, seen.now) {
            Lost::Rerun => Some(again(&seen.record, token, Admission::Run)),
            Lost::Doubt(_) => None,
        },
        State::Pending { .. }
        | State::Running { .. }
        | State::Completed { .. }
        | State::Retryable { .. }
        | State::Unknown { .. } => None,
    }
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

/// A phase is about to call a foreign system: written before the call. None where the attempt is fenced.
pub fn call(seen: &Seen, token: Token, calling: Calling) -> Option<Box<Draft>> {
    let mut draft = own_running(seen, token)?;
    draft.progress.calling = Some(calling);
    // What was heard before this call is not about it.
    draft.evidence = None;
    Some(draft)
}

fn own_running(seen: &Seen, token: Token) -> Option<Box<Draft>> {
    let is_ours = seen.record.token == token && matches!(seen.record.state, State::Running { .. });
    is_ours.then(|| seen.record.draft())
}

/// Makes a record as if it had never been: it expires with this write and its key may be used anew. None while an
/// attempt's lease lives, unless forced. Whoever held the record is superseded by `token`, which nobody has used.
pub fn forget(seen: &Seen, token: Token, force: Force) -> Option<Box<Draft>> {
    let record = &*seen.record;
    let lives = matches!(record.state, State::Running { .. }) && !has_lapsed(record, seen.now);
    if lives && force == Force::No {
        return None;
    }
    let mut draft = record.draft();
    draft.token = token;
    draft.relies_on_memory = false;
    draft.evidence = None;
    draft.state = State::Retryable { retry_after: None, expires_at: When::WRITE };
    Some(draft)
}

/// States in which a record waits for somebody who may never come back: all that [`sweep`] is ever about.
pub const SWEPT: StateSet = StateSet::of(&[StateName::Running, StateName::Pending, StateName::Retryable]);
/// The state in which an attempt's process may have died: all that [`abandon`] is ever about.
pub const ABANDONED: StateSet = StateSet::of(&[StateName::Running]);
/// States in which a record may expire: all that [`may_reap`] ever allows.
pub const EXPIRING: StateSet = StateSet::of(&[StateName::Completed, StateName::Retryable]);

/// Until when the row must stand if nobody writes it again; none while age alone may not delete it. For engines whose
/// server deletes rows by itself.
pub fn expires(draft: &Draft) -> Option<When> {
    match &draft.state {
        State::Retryable { .. } if draft.relies_on_memory => None,
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
        State::Retryable { .. } if draft.relies_on_memory => Due::default().or_at(forgets_at),
        State::Pending { expires_at } | State::Retryable { expires_at, .. } => {
            Due::default().or_at(*expires_at)
        }
        State::Unknown { ask_at, .. } => {
            ask_at.map_or_else(Due::default, |ask_at| Due::default().or_at(ask_at))
        }
    }
}

/// Whether the row may be deleted: settled and expired. A running, pending or unknown one never is, by age alone, nor
/// is a retryable one whose work may have been done.
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
        State::Retryable { .. } if record.relies_on_memory => Standing::Ended(None),
        State::Completed { expires_at, .. } | State::Retryable { expires_at, .. } => {
            Standing::Ended(Some(*expires_at))
        }
        State::Unknown { .. } => Standing::Ended(None),
    }
}

/// Since when nobody knows what became of the work; none where somebody does.
pub fn unknown_since(record: &Record) -> Option<Timestamp> {
    match &record.state {
        State::Unknown { since, .. } => Some(*since),
        State::Pending { .. } | State::Running { .. } | State::Completed { .. } | State::Retryable { .. } => {
            None
        }
    }
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

/// A running record whose attempt is gone or does not know: retryable or unknown, by its effects.
fn lose(record: &Record, reason: Reason, now: Timestamp) -> Box<Draft> {
    match lost(record, now) {
        Lost::Rerun => {
            let mut draft = retryable(record, None, None);
            draft.relies_on_memory |= was_lost_while_keyed(record);
            draft
        }
        Lost::Doubt(Reason::DownstreamForgot) => unknown(record, Reason::DownstreamForgot),
        Lost::Doubt(_) => unknown(record, reason),
    }
}

fn complete(
    record: &Record,
    response: Option<Arc<Response>>,
    by: Source,
    keep_for: Option<Duration>,
) -> Box<Draft> {
    let mut draft = record.draft();
    draft.evidence = None;
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
    draft.progress.calling = None;
    draft.state = State::Retryable {
        retry_after,
        expires_at: When::AfterWrite(keep_for.unwrap_or(record.terms.retention)),
    };
    draft
}

/// Nobody knows; unless a verdict that came while the attempt ran already settles it.
fn unknown(record: &Record, reason: Reason) -> Box<Draft> {
    let mut draft = record.draft();
    draft.state = State::Unknown {
        reason,
        since: When::WRITE,
        asked: 0,
        ask_at: Some(When::AfterWrite(ASK_FIRST)),
        dead_letter: false,
    };
    let Some(evidence) = &record.evidence else { return draft };
    match &evidence.verdict {
        Verdict::Happened(response) => happened(record, response.clone(), evidence.by),
        Verdict::DidNotHappen { never_will: true } => did_not_happen(record),
        // It came while the attempt lived: whatever the time now, the effect may have turned up since.
        Verdict::DidNotHappen { never_will: false } | Verdict::StillUnknown => draft,
    }
}

/// The whole work happened, or the foreign call of one phase: then the next attempt goes on behind that phase.
fn happened(record: &Record, response: Option<Arc<Response>>, by: Source) -> Box<Draft> {
    let Some(calling) = &record.progress.calling else { return complete(record, response, by, None) };
    let mut draft = retryable(record, None, None);
    draft.relies_on_memory = false;
    draft.progress = Progress { recovery_point: Some(calling.phase.clone()), calling: None, found: response };
    draft
}

fn did_not_happen(record: &Record) -> Box<Draft> {
    let mut draft = retryable(record, None, None);
    draft.relies_on_memory = false;
    draft
}

fn ask_at(record: &Record, at: When, now: Timestamp) -> Box<Draft> {
    let mut draft = match &record.state {
        State::Unknown { .. } => record.draft(),
        State::Pending { .. } | State::Running { .. } | State::Completed { .. } | State::Retryable { .. } => {
            lose(record, lapse_reason(record, now), now)
        }
    };
    if let State::Unknown { ask_at, asked, .. } = &mut draft.state {
        *ask_at = Some(at);
        *asked = asked.saturating_add(1);
    }
    draft
}

fn ask_later(record: &Record, backoff: Backoff, now: Timestamp) -> Box<Draft> {
    let mut draft = ask_at(record, When::WRITE, now);
    if let State::Unknown { ask_at, asked, dead_letter, .. } = &mut draft.state {
        *dead_letter |= *asked >= backoff.tries_max;
        let pause = backoff.first.saturating_mul(1 << asked.saturating_sub(1).min(20)).min(backoff.max);
        *ask_at = (!*dead_letter).then_some(When::AfterWrite(pause));
    }
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

/// Only what is settled expires. A retryable record whose work may have been done is in doubt, however old: gone, its
/// key would be a new one, and the work be done twice.
fn has_expired(record: &Record, now: Timestamp) -> bool {
    match &record.state {
        State::Retryable { .. } if record.relies_on_memory => false,
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

/// As long again as it has already taken: short for short work, never a hammer for long work.
fn progress_pause(record: &Record, now: Timestamp) -> Duration {
    now.since(record.began_at).clamp(RETRY_AFTER_MIN, record.terms.lease.max(RETRY_AFTER_MIN))
}

fn outcome_unknown(record: &Record, now: Timestamp) -> Refusal {
    let retry_after = match (&record.state, record.effects()) {
        (State::Unknown { ask_at: Some(ask_at), .. }, Effects::Queryable) => {
            ask_at.since(now).max(RETRY_AFTER_MIN)
        }
        _ => RETRY_AFTER_UNKNOWN,
    };
    Refusal::OutcomeUnknown { retry_after }
}

/// What accepted work that nobody ran in time is answered with.
fn given_up() -> Arc<Response> {
    Arc::new(Response { status: 408, headers: Vec::new(), body: Bytes::new() })
}

/// What becomes of a record whose attempt's process is known to be dead, whatever its lease says: an embedded store
/// has one owner, so its next owner knows. None where no attempt runs.
pub fn abandon(seen: &Seen) -> Option<Box<Draft>> {
    let (record, now) = (&*seen.record, seen.now);
    match &record.state {
        State::Running { .. } => Some(lose(record, lapse_reason(record, now), now)),
        State::Pending { .. } | State::Completed { .. } | State::Retryable { .. } | State::Unknown { .. } => {
            None
        }
    }
}

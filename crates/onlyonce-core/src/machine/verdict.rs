//! What becomes of a statement about a record: by a probe, a webhook, an operator.
//!
//! 1. A statement is about an attempt ([`About`]). One about an earlier use of the key counts for nothing; of one about an
//!    earlier attempt only success does: the work is done, whichever attempt did it.
//! 2. "Happened" settles a record whatever the time. "Did not happen" is believed once no attempt can act any more (the
//!    last one's deadline and the horizon are over), or where it is final. Where an earlier attempt was lost, a word about
//!    one attempt is not a word about the work: then neither a final word nor a webhook's that names a token frees it.
//! 3. While the attempt runs, a webhook's statement is kept as evidence: the strongest, not the last. Once the attempt is
//!    lost, evidence that it happened comes before anything said later, and before a person who insists.
//! 4. A settled record is not changed. A statement that says otherwise is kept as a contradiction. The one exception is
//!    "happened" about a record that may be tried again: the work is done, and trying again would do it twice.
//! 5. A person may insist, against a live lease and against the hour, and against nothing else. Insisting that it happened
//!    or did not supersedes the attempt; insisting that nobody knows only ends its lease, and its late truth still counts.
//! 6. Of a handler made of phases a webhook's word is about one call: the one whose token it names. A word that names none is
//!    about the call under way where that is the first step. Behind a recovery point it may be a late one about an earlier
//!    call: between two calls it changes nothing, and during one it is only kept in the history.
//!
//! ```text
//!             happened              did not happen        unknown
//!  pending    completed, where an earlier attempt did it
//!  running    evidence, or refused  the same              the same
//!  unknown    completed             retryable, in time    asked again
//!  retryable  completed             already               already
//!  completed  already, or a contradiction
//! ```

use std::sync::Arc;
use std::time::Duration;

use super::{
    did_not_happen, happened, has_expired, has_happened_evidence, has_lapsed, is_half_done, lapse_reason,
    lose, noting,
};
use crate::history::{Entry, Said, What};
use crate::record::{
    Asking, Draft, Evidence, Record, Response, Seen, Source, State, Token, Verdict, call_token,
};
use crate::time::{Timestamp, When};

/// How insistently the reconciler asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The first pause.
    pub first: Duration,
    /// The longest pause.
    pub max: Duration,
    /// After so many answers that said "unknown" the record is a dead letter; and after so many of the longest pauses, also
    /// where the probe never answered.
    pub tries_max: u32,
    /// By how many thousandths the next pause is stretched: drawn at random by the caller, so that many records that became
    /// unknown together are not asked about together. 1000 changes nothing.
    pub jitter_permille: u32,
}

impl Backoff {
    fn stretched(&self, pause: Duration) -> Duration {
        pause.saturating_mul(self.jitter_permille) / 1000
    }
}

/// A statement that is about to be judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruling {
    /// What is said.
    pub verdict: Verdict,
    /// About which attempt.
    pub about: About,
    /// Who says so.
    pub statement: Statement,
    /// Whether a person insists.
    pub force: Force,
    /// A token nobody has used before: forced, it supersedes an attempt that still runs.
    pub token: Token,
    /// How the record's probe is asked; none where it has none.
    pub probe: Option<Backoff>,
}

/// Which attempt a statement is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// The work of this scope and key, whichever attempt did it.
    Work,
    /// The attempt with this token, or the foreign call ([`call_token`]).
    Attempt(Token),
}

/// Who makes a statement, for the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// What kind of source.
    pub by: Source,
    /// The operator's name.
    pub who: Option<Arc<str>>,
    /// The webhook's name in the settings.
    pub source: Option<Arc<str>>,
    /// More about it: the operator's reason, the event, what the probe answered.
    pub detail: Option<Arc<str>>,
}

impl Statement {
    /// A statement without words.
    pub fn by(by: Source) -> Self {
        Self { by, who: None, source: None, detail: None }
    }
}

/// Whether a person insists: then neither a live lease nor an early hour stands in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// The rules decide.
    No,
    /// The person decides.
    Yes,
}

/// What becomes of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ruled {
    /// Write this: the record is settled.
    Settles(Box<Draft>),
    /// Write this: the attempt runs, and the statement is kept as evidence.
    Keeps(Box<Draft>),
    /// Write this: the statement settles nothing. The record stays unknown, or is what became of an attempt that was just
    /// found lost. "Did not happen" is believed from the given moment on.
    Notes(Box<Draft>, Option<Timestamp>),
    /// Write this: the record is settled and says otherwise. Only its history changes; unless its attempt was just found
    /// lost and is known to have happened: then it is completed too.
    Contradicts(Box<Draft>),
    /// The statement is not about the last attempt. Write this, where there is something to keep.
    Ignores(Ignored, Option<Box<Draft>>),
    /// The record says so already.
    Already,
    /// The attempt is still running; only force goes past it.
    StillRunning,
    /// "Did not happen" cannot be believed before then.
    TooEarly(Timestamp),
    /// The record is settled already, or nothing has begun.
    Settled,
    /// There is no probe that could be asked.
    NothingToAsk,
    /// There is no record: it has expired.
    Absent,
}

/// Why a statement counts for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// It is about an earlier attempt.
    EarlierAttempt,
    /// It is about an attempt that this use of the key never had, or about work of which none has begun.
    EarlierUse,
    /// It names none of the calls of a handler made of phases, and may be about an earlier one than the one under way.
    AnyCall,
}

/// What becomes of a statement about a record.
pub fn verdict(seen: &Seen, ruling: &Ruling) -> Ruled {
    let (record, now) = (&*seen.record, seen.now);
    if has_expired(record, now) {
        return Ruled::Absent;
    }
    let is_open = !matches!(record.state, State::Completed { .. });
    let may_be_late = is_half_done(record) && is_open && ruling.statement.by == Source::Webhook;
    match named(record, ruling.about) {
        // Between two calls there is none that it could settle.
        Named::Last if may_be_late && record.progress.calling.is_none() => return Ruled::Already,
        Named::Last if may_be_late => return ignored(seen, ruling, Ignored::AnyCall),
        Named::Last | Named::Call => {}
        Named::Earlier | Named::EarlierCall => return about_earlier(seen, ruling),
        Named::CallOnRecord => return Ruled::Already,
        Named::Nobody => return Ruled::Ignores(Ignored::EarlierUse, None),
    }
    match &record.state {
        State::Pending { .. } => about_pending(seen, ruling),
        State::Running { .. } => about_running(seen, ruling),
        State::Completed { response, .. } => about_completed(seen, ruling, response.as_deref()),
        State::Retryable { .. } => about_retryable(seen, ruling),
        State::Unknown { .. } => rule(seen, ruling),
    }
}

/// What a statement names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    /// The work, or its last attempt.
    Last,
    /// The call under way, as the last attempt makes it.
    Call,
    /// An earlier attempt.
    Earlier,
    /// The call under way, as an earlier attempt made it.
    EarlierCall,
    /// The call at the recovery point.
    CallOnRecord,
    /// No attempt or call that this use of the key is known to have had.
    Nobody,
}

fn named(record: &Record, about: About) -> Named {
    let About::Attempt(token) = about else { return Named::Last };
    let earlier = &record.history.tokens;
    if token == record.token {
        return Named::Last;
    }
    if earlier.contains(&token) {
        return Named::Earlier;
    }
    let is_of = |attempt: &Token, call: &str| token == call_token(*attempt, call);
    if let Some(calling) = &record.progress.calling {
        if is_of(&record.token, &calling.phase) {
            return Named::Call;
        }
        if earlier.iter().any(|attempt| is_of(attempt, &calling.phase)) {
            return Named::EarlierCall;
        }
    }
    match &record.progress.recovery_point {
        Some(phase) if [&record.token].into_iter().chain(earlier).any(|attempt| is_of(attempt, phase)) => {
            Named::CallOnRecord
        }
        Some(_) | None => Named::Nobody,
    }
}

/// Accepted work: no attempt runs, and an earlier one may have done it.
fn about_pending(seen: &Seen, ruling: &Ruling) -> Ruled {
    let has_begun = !seen.record.history.tokens.is_empty();
    match (ruling.statement.by, &ruling.verdict) {
        (Source::Webhook, _) if !has_begun => Ruled::Ignores(Ignored::EarlierUse, None),
        (Source::Webhook, Verdict::Happened(response)) => {
            Ruled::Settles(happened(&told(seen, ruling), response.clone(), Source::Webhook))
        }
        (Source::Webhook, Verdict::DidNotHappen { .. } | Verdict::StillUnknown) => Ruled::Already,
        (Source::Operator | Source::Probe | Source::Attempt | Source::Sweeper | Source::Caller, _) => {
            Ruled::Settled
        }
    }
}

fn about_running(seen: &Seen, ruling: &Ruling) -> Ruled {
    let record = &*seen.record;
    if ruling.force == Force::No && !has_lapsed(record, seen.now) {
        return match ruling.statement.by {
            Source::Webhook => Ruled::Keeps(with_evidence(seen, ruling)),
            Source::Operator | Source::Probe | Source::Attempt | Source::Sweeper | Source::Caller => {
                Ruled::StillRunning
            }
        };
    }
    match (&ruling.verdict, ruling.force) {
        // What is known to have happened counts first, also where the sweeper has not come yet.
        (Verdict::DidNotHappen { .. } | Verdict::StillUnknown, _) if has_happened_evidence(record) => {
            let draft = lose(seen, lapse_reason(record, seen.now), Source::Sweeper);
            let swept = Seen { record: Arc::new(draft.stamp(seen.now)), ..seen.clone() };
            verdict(&swept, ruling)
        }
        (Verdict::Happened(_) | Verdict::DidNotHappen { .. }, Force::Yes) => {
            rule(&superseded(seen, ruling), ruling)
        }
        // Its token stays: the attempt may bring the truth, and the probe is asked about no other.
        (Verdict::StillUnknown, Force::Yes) | (_, Force::No) => rule(seen, ruling),
    }
}

/// A record whose last attempt has ended without an outcome.
fn rule(seen: &Seen, ruling: &Ruling) -> Ruled {
    let (record, now) = (&*seen.record, seen.now);
    let believed_at = believed_at(record);
    match &ruling.verdict {
        Verdict::Happened(response) => {
            Ruled::Settles(happened(&told(seen, ruling), response.clone(), ruling.statement.by))
        }
        Verdict::DidNotHappen { never_will } => {
            // A final word is about one token: another attempt, lost before, may still act.
            let is_final = *never_will && !record.relies_on_memory;
            let is_believed = is_final || (now >= believed_at && !leaves_out_the_lost(record, ruling));
            if is_believed || ruling.force == Force::Yes {
                return Ruled::Settles(did_not_happen(&told(seen, ruling), ruling.statement.by));
            }
            match ruling.statement.by {
                Source::Operator => Ruled::TooEarly(believed_at),
                Source::Probe | Source::Webhook | Source::Attempt | Source::Sweeper | Source::Caller => {
                    Ruled::Notes(
                        not_believed(seen, ruling, believed_at),
                        (now < believed_at).then_some(believed_at),
                    )
                }
            }
        }
        Verdict::StillUnknown => still_unknown(seen, ruling),
    }
}

/// Whether a webhook speaks of one attempt where an earlier one was lost and may have done the work. A probe and a person are
/// asked about the work.
fn leaves_out_the_lost(record: &Record, ruling: &Ruling) -> bool {
    let names_attempt = matches!(ruling.about, About::Attempt(_));
    record.relies_on_memory && names_attempt && ruling.statement.by == Source::Webhook
}

/// "Did not happen" is kept in the history, and the probe is asked once it would be believed.
fn not_believed(seen: &Seen, ruling: &Ruling, believed_at: Timestamp) -> Box<Draft> {
    let mut draft = in_doubt(&told(seen, ruling));
    put_off(&mut draft, ruling.probe.map(|_| When::At(believed_at)));
    if let State::Unknown { asking, .. } = &mut draft.state
        && ruling.statement.by == Source::Probe
    {
        asking.failures = 0;
    }
    draft
}

fn still_unknown(seen: &Seen, ruling: &Ruling) -> Ruled {
    match (ruling.statement.by, ruling.probe) {
        (Source::Operator, None) => Ruled::NothingToAsk,
        (Source::Operator, Some(_)) => {
            let mut draft = in_doubt(&told(seen, ruling));
            if let State::Unknown { asking, ask_at, dead_letter, .. } = &mut draft.state {
                *asking = Asking { anew_at: Some(seen.now), ..Asking::default() };
                *ask_at = Some(When::WRITE);
                *dead_letter = false;
            }
            Ruled::Notes(draft, None)
        }
        (Source::Probe, Some(backoff)) => {
            let mut draft = in_doubt(&told(seen, ruling));
            if let State::Unknown { asking, .. } = &mut draft.state {
                asking.answers = asking.answers.saturating_add(1);
                asking.failures = 0;
            }
            ask_later(&mut draft, backoff, seen.now);
            Ruled::Notes(draft, None)
        }
        (Source::Probe, None) | (Source::Webhook | Source::Attempt | Source::Sweeper | Source::Caller, _) => {
            Ruled::Notes(in_doubt(&told(seen, ruling)), None)
        }
    }
}

fn about_completed(seen: &Seen, ruling: &Ruling, stored: Option<&Response>) -> Ruled {
    let agrees = match &ruling.verdict {
        Verdict::Happened(said) => succeeded(said.as_deref()) == succeeded(stored),
        // What was answered with a failure did not do the work.
        Verdict::DidNotHappen { .. } => !succeeded(stored),
        Verdict::StillUnknown => true,
    };
    match ruling.statement.by {
        Source::Webhook if agrees => Ruled::Already,
        Source::Webhook => Ruled::Contradicts(contradicted(seen, ruling)),
        Source::Probe | Source::Operator | Source::Attempt | Source::Sweeper | Source::Caller => {
            Ruled::Settled
        }
    }
}

fn about_retryable(seen: &Seen, ruling: &Ruling) -> Ruled {
    let names_attempt = matches!(ruling.about, About::Attempt(_));
    match (ruling.statement.by, &ruling.verdict) {
        (Source::Webhook, Verdict::Happened(response)) => {
            Ruled::Settles(happened(&told(seen, ruling), response.clone(), Source::Webhook))
        }
        (Source::Operator, Verdict::Happened(response))
            if names_attempt && !is_between_calls(&seen.record) =>
        {
            Ruled::Settles(happened(&told(seen, ruling), response.clone(), Source::Operator))
        }
        (Source::Webhook, Verdict::DidNotHappen { .. } | Verdict::StillUnknown) => Ruled::Already,
        (Source::Operator | Source::Probe | Source::Attempt | Source::Sweeper | Source::Caller, _) => {
            Ruled::Settled
        }
    }
}

/// The work is done, whichever attempt did it. Anything else about an earlier attempt, also that it was declined, says
/// nothing about the last one.
fn about_earlier(seen: &Seen, ruling: &Ruling) -> Ruled {
    let record = &*seen.record;
    let Source::Webhook = ruling.statement.by else {
        return Ruled::Ignores(Ignored::EarlierAttempt, None);
    };
    let ignored = || ignored(seen, ruling, Ignored::EarlierAttempt);
    let Verdict::Happened(response) = &ruling.verdict else { return ignored() };
    // An attempt before the recovery point may have been about another call, unless it names this one.
    let may_be_another = is_half_done(record) && named(record, ruling.about) == Named::Earlier;
    if !succeeded(response.as_deref()) || may_be_another {
        return ignored();
    }
    match &record.state {
        State::Running { .. } if !has_lapsed(record, seen.now) => Ruled::Keeps(with_evidence(seen, ruling)),
        State::Running { .. } | State::Pending { .. } | State::Retryable { .. } | State::Unknown { .. } => {
            Ruled::Settles(happened(&told(seen, ruling), response.clone(), Source::Webhook))
        }
        // Its client was told of a failure; or a later attempt ran because the earlier one was taken not to have run.
        State::Completed { response: stored, .. }
            if !record.relies_on_memory || !succeeded(stored.as_deref()) =>
        {
            Ruled::Contradicts(contradicted(seen, ruling))
        }
        State::Completed { .. } => ignored(),
    }
}

fn ignored(seen: &Seen, ruling: &Ruling, why: Ignored) -> Ruled {
    let mut draft = noted(seen);
    draft.history.push(Entry { said: Some(Said::Ignored), contradicts: false, ..entry(seen, ruling) });
    Ruled::Ignores(why, Some(draft))
}

/// A handler made of phases whose last call has its result on record.
fn is_between_calls(record: &Record) -> bool {
    is_half_done(record) && record.progress.calling.is_none()
}

/// From when on "did not happen" is believed: the attempt's deadline and the horizon are over.
pub(super) fn believed_at(record: &Record) -> Timestamp {
    record.deadline_at().plus(record.terms.horizon)
}

/// Whether an answer, or the news that there was one, stands for success.
fn succeeded(response: Option<&Response>) -> bool {
    response.is_none_or(|response| response.status < 400)
}

/// The record as if its attempt had been overruled: its token is nobody's.
fn superseded(seen: &Seen, ruling: &Ruling) -> Seen {
    let mut record = Record::clone(&seen.record);
    let attempt = record.attempt;
    record.history.push_token(record.token);
    record.token = ruling.token;
    let overruled = Entry::new(seen.now, attempt, What::Superseded, Source::Operator);
    record.history.push(Entry { who: ruling.statement.who.clone(), ..overruled });
    Seen { record: Arc::new(record), ..seen.clone() }
}

/// The record with the statement in its history: what is made of it next comes after it.
fn told(seen: &Seen, ruling: &Ruling) -> Seen {
    let statement = entry(seen, ruling);
    if ruling.force == Force::No {
        return noting(seen, statement);
    }
    let forced = Entry::new(seen.now, seen.record.attempt, What::Forced, ruling.statement.by);
    noting(&noting(seen, Entry { who: ruling.statement.who.clone(), ..forced }), statement)
}

fn entry(seen: &Seen, ruling: &Ruling) -> Entry {
    let Statement { by, who, source, detail } = ruling.statement.clone();
    let what = match by {
        Source::Probe => What::Probe,
        Source::Webhook => What::Webhook,
        Source::Operator | Source::Attempt | Source::Sweeper | Source::Caller => What::Verdict,
    };
    let said = Some(Said::from(&ruling.verdict));
    let contradicts = says_freed_attempt_happened(&seen.record, ruling);
    Entry { said, contradicts, who, source, detail, ..Entry::new(seen.now, seen.record.attempt, what, by) }
}

/// Whether an earlier attempt is said to have happened that was taken not to have run, and not only lost.
fn says_freed_attempt_happened(record: &Record, ruling: &Ruling) -> bool {
    let is_earlier = matches!(named(record, ruling.about), Named::Earlier | Named::EarlierCall);
    let Verdict::Happened(said) = &ruling.verdict else { return false };
    is_earlier && !record.relies_on_memory && succeeded(said.as_deref())
}

fn contradicted(seen: &Seen, ruling: &Ruling) -> Box<Draft> {
    let mut draft = noted(seen);
    draft.history.push(Entry { contradicts: true, ..entry(seen, ruling) });
    draft
}

/// The record as it is, for an entry to be added. Where its own columns told when it was completed, an entry does from now
/// on: this write changes them.
fn noted(seen: &Seen) -> Box<Draft> {
    let mut draft = seen.record.draft();
    if let Some(completed) = super::view::completed(&seen.record) {
        draft.history.push(completed);
    }
    draft
}

/// A stronger statement replaces a weaker one, and never the other way round.
fn with_evidence(seen: &Seen, ruling: &Ruling) -> Box<Draft> {
    let record = &*seen.record;
    let mut draft = record.draft();
    let kept = record.evidence.as_deref();
    let mut entry = entry(seen, ruling);
    entry.contradicts |= kept.is_some_and(|kept| !agree(&kept.verdict, &ruling.verdict));
    draft.history.push(entry);
    if kept.is_none_or(|kept| strength(&ruling.verdict) > strength(&kept.verdict)) {
        draft.evidence = Some(Box::new(Evidence {
            verdict: ruling.verdict.clone(),
            by: ruling.statement.by,
            at: seen.now,
            attempt: record.attempt,
            source: ruling.statement.source.clone(),
        }));
    }
    draft
}

fn strength(verdict: &Verdict) -> u8 {
    match verdict {
        Verdict::StillUnknown => 0,
        Verdict::DidNotHappen { never_will: false } => 1,
        Verdict::DidNotHappen { never_will: true } => 2,
        Verdict::Happened(_) => 3,
    }
}

/// Whether two statements can both be true of one attempt at different times: an effect may turn up after somebody looked.
fn agree(first: &Verdict, second: &Verdict) -> bool {
    match (first, second) {
        (Verdict::Happened(first), Verdict::Happened(second)) => {
            succeeded(first.as_deref()) == succeeded(second.as_deref())
        }
        (Verdict::Happened(_), Verdict::DidNotHappen { .. })
        | (Verdict::DidNotHappen { never_will: true }, Verdict::Happened(_)) => false,
        (Verdict::DidNotHappen { .. } | Verdict::StillUnknown, _)
        | (Verdict::Happened(_), Verdict::StillUnknown) => true,
    }
}

/// The unknown record itself, or what becomes of one whose attempt was lost.
fn in_doubt(seen: &Seen) -> Box<Draft> {
    let record = &*seen.record;
    match &record.state {
        State::Unknown { .. } => record.draft(),
        State::Pending { .. } | State::Running { .. } | State::Completed { .. } | State::Retryable { .. } => {
            lose(seen, lapse_reason(record, seen.now), Source::Sweeper)
        }
    }
}

fn put_off(draft: &mut Draft, until: Option<When>) {
    if let State::Unknown { ask_at, .. } = &mut draft.state {
        *ask_at = until;
    }
}

/// A webhook that says nothing about the outcome, kept in the history of an unknown record: a person may want to know. None
/// where nothing is to be kept.
pub fn note(seen: &Seen, about: About, statement: &Statement) -> Option<Box<Draft>> {
    let record = &*seen.record;
    let mut draft = still_asked(seen).filter(|_| named(record, about) != Named::Nobody)?;
    let Statement { by, who, source, detail } = statement.clone();
    let entry = Entry::new(seen.now, record.attempt, What::Webhook, by);
    draft.history.push(Entry { said: Some(Said::Ignored), who, source, detail, ..entry });
    Some(draft)
}

/// The reconciler is about to ask about this record: until `claimed_for` is over no other node does. None where it is not
/// due, or nobody asks about it.
pub fn ask(seen: &Seen, claimed_for: Duration) -> Option<Box<Draft>> {
    match &seen.record.state {
        State::Unknown { ask_at: Some(ask_at), .. } if *ask_at <= seen.now => {
            let mut draft = seen.record.draft();
            put_off(&mut draft, Some(When::AfterWrite(claimed_for)));
            Some(draft)
        }
        State::Unknown { .. }
        | State::Pending { .. }
        | State::Running { .. }
        | State::Completed { .. }
        | State::Retryable { .. } => None,
    }
}

/// The probe gave no usable answer. That decides nothing and is no try; it is asked again later. None where the record is no
/// longer unknown.
pub fn probe_failed(seen: &Seen, backoff: Backoff, detail: &str) -> Option<Box<Draft>> {
    let mut draft = still_asked(seen)?;
    let failed = Entry::new(seen.now, seen.record.attempt, What::Probe, Source::Probe).with_detail(detail);
    draft.history.push(Entry { said: Some(Said::Failed), ..failed });
    if let State::Unknown { asking, .. } = &mut draft.state {
        asking.failures = asking.failures.saturating_add(1);
    }
    ask_later(&mut draft, backoff, seen.now);
    Some(draft)
}

/// When the probe is asked next, after the settings have changed: a record whose route has one by now is asked about, and one
/// whose route has none any more is not. None where the record stays as it is. A dead letter does: a person has to decide.
pub fn schedule(seen: &Seen, probe: Option<Backoff>) -> Option<Box<Draft>> {
    let State::Unknown { ask_at, dead_letter, .. } = &seen.record.state else { return None };
    let until = match (probe, ask_at) {
        (Some(backoff), None) if !dead_letter => Some(When::AfterWrite(backoff.stretched(backoff.first))),
        (None, Some(_)) => None,
        (Some(_), None | Some(_)) | (None, None) => return None,
    };
    let mut draft = seen.record.draft();
    put_off(&mut draft, until);
    Some(draft)
}

fn still_asked(seen: &Seen) -> Option<Box<Draft>> {
    matches!(seen.record.state, State::Unknown { .. }).then(|| seen.record.draft())
}

/// Twice as long as the last time, up to the longest pause; or never, once it has been tried long enough.
fn ask_later(draft: &mut Draft, backoff: Backoff, now: Timestamp) {
    let attempt = draft.attempt;
    let State::Unknown { asking, ask_at, dead_letter, since, .. } = &mut draft.state else { return };
    let from = asking.anew_at.unwrap_or_else(|| since.stamp(now));
    let tried_for = now.since(from);
    let given_up =
        asking.answers >= backoff.tries_max || tried_for >= backoff.max.saturating_mul(backoff.tries_max);
    if given_up {
        *ask_at = None;
        if !*dead_letter {
            *dead_letter = true;
            draft.history.push(Entry::new(now, attempt, What::DeadLetter, Source::Probe));
        }
        return;
    }
    let doublings = asking.answers.saturating_add(asking.failures).min(20);
    let pause = backoff.first.saturating_mul(1 << doublings).min(backoff.max);
    *ask_at = Some(When::AfterWrite(backoff.stretched(pause)));
}

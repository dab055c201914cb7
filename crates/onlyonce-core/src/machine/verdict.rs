//! What becomes of a statement about a record: by a probe, a webhook, an operator.
//!
//! 1. A statement is about an attempt ([`About`]). One about an earlier use of the key counts for nothing; of one about an
//!    earlier attempt only "happened" does.
//! 2. "Happened" settles a record whatever the time. "Did not happen" is believed once the attempt can no longer act
//!    (its deadline and the horizon are over), or where it is final and no earlier attempt was lost.
//! 3. While the attempt runs, a webhook's statement is kept as evidence: the strongest, not the last.
//! 4. A settled record is not changed. A statement that says otherwise is kept as a contradiction. The one exception is
//!    "happened" about a record that may be tried again: the work is done, and trying again would do it twice.
//! 5. A person may insist, against a live lease and against the hour, and against nothing else.
//!
//! ```text
//!             happened              did not happen        unknown
//!  running    evidence, or refused  the same              the same
//!  unknown    completed             retryable, in time    asked again
//!  retryable  completed             already               already
//!  completed  already, or a contradiction
//! ```

use std::sync::Arc;
use std::time::Duration;

use super::{did_not_happen, happened, has_expired, has_lapsed, lapse_reason, lose};
use crate::history::{Entry, Said, What};
use crate::record::{Asking, Draft, Evidence, Record, Response, Seen, Source, State, Token, Verdict};
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
    /// The attempt with this token.
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
    /// Write this: the record stays unknown. "Did not happen" is believed from the given moment on.
    Notes(Box<Draft>, Option<Timestamp>),
    /// Write this: the record is settled and says otherwise. Only its history changes.
    Contradicts(Box<Draft>),
    /// The statement is not about the last attempt. Write this, where there is something to keep.
    Ignores(Ignored, Option<Box<Draft>>),
    /// The record says so already.
    Already,
    /// The attempt still runs; only force goes past it.
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
    /// It is about an attempt that this use of the key never had.
    EarlierUse,
}

/// What becomes of a statement about a record.
pub fn verdict(seen: &Seen, ruling: &Ruling) -> Ruled {
    let (record, now) = (&*seen.record, seen.now);
    if has_expired(record, now) {
        return Ruled::Absent;
    }
    match ruling.about {
        About::Attempt(token) if token == record.token => {}
        About::Attempt(token) if record.history.tokens.contains(&token) => {
            return about_earlier(seen, ruling);
        }
        About::Attempt(_) => return Ruled::Ignores(Ignored::EarlierUse, None),
        About::Work => {}
    }
    match (&record.state, ruling.force) {
        (State::Pending { .. }, _) => Ruled::Settled,
        (State::Completed { response, .. }, _) => about_completed(seen, ruling, response.as_deref()),
        (State::Retryable { .. }, _) => about_retryable(seen, ruling),
        (State::Running { .. }, Force::Yes) => rule(&superseded(seen, ruling), ruling),
        (State::Running { .. }, Force::No) if has_lapsed(record, now) => rule(seen, ruling),
        (State::Running { .. }, Force::No) => match ruling.statement.by {
            Source::Webhook => Ruled::Keeps(with_evidence(seen, ruling)),
            Source::Operator | Source::Probe | Source::Attempt | Source::Sweeper => Ruled::StillRunning,
        },
        (State::Unknown { .. }, _) => rule(seen, ruling),
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
            if is_final || ruling.force == Force::Yes || now >= believed_at {
                return Ruled::Settles(did_not_happen(&told(seen, ruling), ruling.statement.by));
            }
            match ruling.statement.by {
                Source::Operator => Ruled::TooEarly(believed_at),
                Source::Probe | Source::Webhook | Source::Attempt | Source::Sweeper => {
                    let mut draft = in_doubt(&told(seen, ruling));
                    put_off(&mut draft, ruling.probe.map(|_| When::At(believed_at)));
                    Ruled::Notes(draft, Some(believed_at))
                }
            }
        }
        Verdict::StillUnknown => still_unknown(seen, ruling),
    }
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
        (Source::Probe, None) | (Source::Webhook | Source::Attempt | Source::Sweeper, _) => {
            Ruled::Notes(in_doubt(&told(seen, ruling)), None)
        }
    }
}

fn about_completed(seen: &Seen, ruling: &Ruling, stored: Option<&Response>) -> Ruled {
    let agrees = match &ruling.verdict {
        Verdict::Happened(said) => succeeded(said.as_deref()) == succeeded(stored),
        Verdict::DidNotHappen { .. } => false,
        Verdict::StillUnknown => true,
    };
    match ruling.statement.by {
        Source::Webhook if agrees => Ruled::Already,
        Source::Webhook => Ruled::Contradicts(contradicted(seen, ruling)),
        Source::Probe | Source::Operator | Source::Attempt | Source::Sweeper => Ruled::Settled,
    }
}

fn about_retryable(seen: &Seen, ruling: &Ruling) -> Ruled {
    let names_attempt = matches!(ruling.about, About::Attempt(_));
    match (ruling.statement.by, &ruling.verdict) {
        (Source::Webhook, Verdict::Happened(response)) => {
            Ruled::Settles(happened(&told(seen, ruling), response.clone(), Source::Webhook))
        }
        (Source::Operator, Verdict::Happened(response)) if names_attempt => {
            Ruled::Settles(happened(&told(seen, ruling), response.clone(), Source::Operator))
        }
        (Source::Webhook, Verdict::DidNotHappen { .. } | Verdict::StillUnknown) => Ruled::Already,
        (Source::Operator | Source::Probe | Source::Attempt | Source::Sweeper, _) => Ruled::Settled,
    }
}

/// The work is done, whichever attempt did it. Anything else about an earlier attempt says nothing about the last one.
fn about_earlier(seen: &Seen, ruling: &Ruling) -> Ruled {
    let Source::Webhook = ruling.statement.by else {
        return Ruled::Ignores(Ignored::EarlierAttempt, None);
    };
    match (&seen.record.state, &ruling.verdict) {
        (State::Unknown { .. } | State::Retryable { .. }, Verdict::Happened(response)) => {
            Ruled::Settles(happened(&told(seen, ruling), response.clone(), Source::Webhook))
        }
        (State::Running { .. }, Verdict::Happened(_)) => Ruled::Keeps(with_evidence(seen, ruling)),
        (
            State::Pending { .. }
            | State::Running { .. }
            | State::Completed { .. }
            | State::Retryable { .. }
            | State::Unknown { .. },
            _,
        ) => {
            let mut draft = noted(seen);
            draft.history.push(Entry { said: Some(Said::Ignored), ..entry(seen, ruling) });
            Ruled::Ignores(Ignored::EarlierAttempt, Some(draft))
        }
    }
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
    record.evidence = None;
    record.history.push(Entry::new(seen.now, attempt, What::Superseded, Source::Operator));
    Seen { record: Arc::new(record), ..seen.clone() }
}

/// The record with the statement in its history: what is made of it next comes after it.
fn told(seen: &Seen, ruling: &Ruling) -> Seen {
    let mut record = Record::clone(&seen.record);
    if ruling.force == Force::Yes {
        record.history.push(Entry {
            who: ruling.statement.who.clone(),
            ..Entry::new(seen.now, record.attempt, What::Forced, ruling.statement.by)
        });
    }
    record.history.push(entry(seen, ruling));
    Seen { record: Arc::new(record), ..seen.clone() }
}

fn entry(seen: &Seen, ruling: &Ruling) -> Entry {
    let Statement { by, who, source, detail } = ruling.statement.clone();
    let what = match by {
        Source::Probe => What::Probe,
        Source::Webhook => What::Webhook,
        Source::Operator | Source::Attempt | Source::Sweeper => What::Verdict,
    };
    let said = Some(Said::from(&ruling.verdict));
    Entry { said, who, source, detail, ..Entry::new(seen.now, seen.record.attempt, what, by) }
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
    let contradicts = kept.is_some_and(|kept| !agree(&kept.verdict, &ruling.verdict));
    draft.history.push(Entry { contradicts, ..entry(seen, ruling) });
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
    let is_about = match about {
        About::Attempt(token) => token == record.token || record.history.tokens.contains(&token),
        About::Work => true,
    };
    let mut draft = still_asked(seen).filter(|_| is_about)?;
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

/// The record's route has no probe any more: nobody asks. None where the record is no longer unknown.
pub fn stop_asking(seen: &Seen) -> Option<Box<Draft>> {
    let mut draft = still_asked(seen)?;
    put_off(&mut draft, None);
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
    *ask_at = Some(When::AfterWrite(pause.saturating_mul(backoff.jitter_permille) / 1000));
}

//! A record as people are shown it: its facts, its time line, one sentence, and what may be done about it.
//!
//! What may be done is asked of the rules themselves, so that no page and no command needs a rule of its own.

use crate::history::{Entry, What};
use crate::record::{Asking, Reason, Record, Response, Seen, Source, State, Token, Verdict};
use crate::time::Timestamp;

use super::verdict::{About, Backoff, Force, Ruled, Ruling, Statement, believed_at, verdict};
use super::{Forget, forget, has_lapsed, is_half_done, runs_again_at};

/// What is worth telling of a record's state; empty where the state has no such thing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts<'a> {
    /// Why nobody knows whether the work ran.
    pub reason: Option<Reason>,
    /// Since when nobody knows, or since when half-done work is flagged.
    pub since: Option<Timestamp>,
    /// How the reconciler has fared.
    pub asking: Asking,
    /// When the probe is asked next.
    pub ask_at: Option<Timestamp>,
    /// A person has to decide: the reconciler has given up, or nobody came back for half-done work.
    pub dead_letter: bool,
    /// The stored answer.
    pub response: Option<&'a Response>,
    /// Who completed it.
    pub by: Option<Source>,
    /// When the attempt is no longer presumed alive.
    pub lapses_at: Option<Timestamp>,
    /// When the attempt must have ended.
    pub deadline_at: Option<Timestamp>,
    /// From when on "did not happen" is believed.
    pub believed_at: Option<Timestamp>,
    /// When the record may be deleted.
    pub expires_at: Option<Timestamp>,
}

/// What is worth telling of a record's state.
pub fn facts(record: &Record) -> Facts<'_> {
    let open = Facts {
        deadline_at: Some(record.deadline_at()),
        believed_at: Some(believed_at(record)),
        ..Facts::default()
    };
    match &record.state {
        State::Pending { expires_at } => Facts { expires_at: Some(*expires_at), ..Facts::default() },
        State::Running { lapses_at } => Facts { lapses_at: Some(*lapses_at), ..open },
        State::Completed { response, by, expires_at } => Facts {
            response: response.as_deref(),
            by: Some(*by),
            expires_at: Some(*expires_at),
            ..Facts::default()
        },
        State::Retryable { expires_at, stuck_since, .. } => {
            let is_kept = record.relies_on_memory || is_half_done(record);
            let expires_at = Some(*expires_at).filter(|_| !is_kept);
            let (since, dead_letter) = (*stuck_since, stuck_since.is_some());
            Facts { since, dead_letter, expires_at, ..Facts::default() }
        }
        State::Unknown { reason, since, asking, ask_at, dead_letter } => Facts {
            reason: Some(*reason),
            since: Some(*since),
            asking: *asking,
            ask_at: *ask_at,
            dead_letter: *dead_letter,
            ..open
        },
    }
}

/// What happened to a record, in the order of time.
pub fn time_line(record: &Record) -> Vec<Entry> {
    let mut entries = record.history.entries.clone();
    if record.attempt > 0 {
        entries.push(Entry::new(record.began_at, record.attempt, What::Attempt, Source::Attempt));
    }
    entries.extend(completed(record));
    // In one microsecond an attempt begins before anything else happens to it.
    entries.sort_by_key(|entry| (entry.at, entry.attempt, entry.what != What::Attempt));
    entries
}

/// When and by whom a record was completed, where only the record itself tells.
pub(super) fn completed(record: &Record) -> Option<Entry> {
    let State::Completed { by, .. } = &record.state else { return None };
    let is_told = record.history.entries.iter().any(|entry| entry.what == What::Completed);
    (!is_told).then(|| Entry::new(record.written_at, record.attempt, What::Completed, *by))
}

/// One sentence, or two, on how a record stands. `moment` puts a moment into words.
pub fn why(seen: &Seen, moment: impl Fn(Timestamp) -> String) -> String {
    let (record, now) = (&*seen.record, seen.now);
    let attempt = record.attempt;
    match &record.state {
        State::Pending { expires_at } => {
            format!(
                "The request was accepted and has not begun. If it has not run by {}, it is given up.",
                moment(*expires_at)
            )
        }
        State::Running { lapses_at } if has_lapsed(record, now) => format!(
            "Attempt {attempt} neither ended nor renewed its lease by {}. The sweeper settles it next.",
            moment((*lapses_at).min(record.deadline_at()))
        ),
        State::Running { lapses_at } => {
            format!("Attempt {attempt} is running. It is presumed alive until {}.", moment(*lapses_at))
        }
        State::Completed { response: Some(response), .. } => {
            format!("The work is done. Retries get the stored answer, {}.", response.status)
        }
        State::Completed { response: None, .. } => {
            "The work is done, but its answer was not stored. Retries get 409, and nothing runs again."
                .to_owned()
        }
        State::Retryable { stuck_since, .. } if is_half_done(record) => {
            let phase = record.progress.recovery_point.as_deref().unwrap_or_default();
            let next = match stuck_since {
                Some(_) => "There was no retry within its retention; a person has to decide.",
                None => "The record is kept until then, even past its retention.",
            };
            format!("The work stopped behind phase \"{phase}\". A retry with this key does the rest. {next}")
        }
        State::Retryable { .. } => match record.accepted {
            Some(accepted) => format!(
                "Attempt {attempt} did not do the work, or may safely be run again. It was accepted: a worker runs it again after \
                 {}. If nobody does by {}, it is given up.",
                moment(runs_again_at(record, accepted)),
                moment(accepted.until)
            ),
            None => format!(
                "Attempt {attempt} did not do the work, or may safely be run again. The next retry runs it."
            ),
        },
        State::Unknown { reason, ask_at, dead_letter, .. } => {
            let next = match ask_at {
                Some(ask_at) => format!("The next probe call is at {}.", moment(*ask_at)),
                None if *dead_letter => {
                    "The probe is not called any more; a person has to decide.".to_owned()
                }
                None => "The route has no probe; a webhook or a person has to settle it.".to_owned(),
            };
            format!("It is unknown whether attempt {attempt} did the work: {}. {next}", reason.says())
        }
    }
}

/// What an operator may do about a record now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    /// What it is.
    pub name: ActionName,
    /// Why it would be refused; none where it would be done.
    pub refused: Option<Refused>,
}

/// The four things an operator may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActionName {
    /// Say that the work happened.
    Happened,
    /// Say that it did not.
    DidNotHappen,
    /// Have the probe asked.
    Ask,
    /// Forget the record.
    Forget,
}

/// Why an operator's order is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The attempt is still running.
    StillRunning,
    /// "Did not happen" cannot be believed before then.
    TooEarly(Timestamp),
    /// The record is settled.
    Settled,
    /// Nobody knows whether the work ran.
    Unknown,
    /// There is no probe.
    NothingToAsk,
}

impl Refused {
    /// The code, as the API has it.
    pub const fn code(self) -> &'static str {
        match self {
            Self::StillRunning => "record_running",
            Self::TooEarly(_) => "verdict_too_early",
            Self::Settled => "record_settled",
            Self::Unknown => "record_unknown",
            Self::NothingToAsk => "nothing_to_ask",
        }
    }
}

impl ActionName {
    /// The word, as the API has it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Happened => "happened",
            Self::DidNotHappen => "did-not-happen",
            Self::Ask => "ask",
            Self::Forget => "forget",
        }
    }
}

/// What the rules would say now to each order that an operator may give, without force.
pub fn actions(seen: &Seen, probe: Option<Backoff>) -> [Action; 4] {
    let judged = |name, verdict| Action { name, refused: refused(seen, verdict, probe) };
    let forgotten = match forget(seen, NOBODYS, Force::No) {
        Forget::Write(_) => None,
        Forget::StillRunning => Some(Refused::StillRunning),
        Forget::Unknown => Some(Refused::Unknown),
        Forget::Absent => Some(Refused::Settled),
    };
    [
        judged(ActionName::Happened, Verdict::Happened(None)),
        judged(ActionName::DidNotHappen, Verdict::DidNotHappen { never_will: false }),
        judged(ActionName::Ask, Verdict::StillUnknown),
        Action { name: ActionName::Forget, refused: forgotten },
    ]
}

/// Nothing is written with it: it only stands in for a token.
const NOBODYS: Token = Token([0; 16]);

fn refused(seen: &Seen, said: Verdict, probe: Option<Backoff>) -> Option<Refused> {
    // A verdict on a retryable record names its attempt.
    let about = About::Attempt(seen.record.token);
    let statement = Statement::by(Source::Operator);
    let ruling = Ruling { verdict: said, about, statement, force: Force::No, token: NOBODYS, probe };
    match verdict(seen, &ruling) {
        Ruled::Settles(_) | Ruled::Keeps(_) | Ruled::Notes(..) => None,
        Ruled::StillRunning => Some(Refused::StillRunning),
        Ruled::TooEarly(believed_at) => Some(Refused::TooEarly(believed_at)),
        Ruled::NothingToAsk => Some(Refused::NothingToAsk),
        Ruled::Contradicts(_) | Ruled::Ignores(..) | Ruled::Already | Ruled::Settled | Ruled::Absent => {
            Some(Refused::Settled)
        }
    }
}

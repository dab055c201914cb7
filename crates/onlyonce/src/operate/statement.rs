//! A statement by a provider, as a verified webhook brings it. Nobody ordered it, so it is in the record's history and not
//! in the audit log; unless it disagrees with the record: then somebody has to look at it, on whichever node.

use std::sync::Arc;

use onlyonce_core::history::shortened;
use onlyonce_core::machine::{self, About, Force, Ignored, Ruled, Ruling};
use onlyonce_core::record::{Draft, Handle, Id, Seen, Source, StateName, Verdict};
use onlyonce_core::time::Timestamp;
use onlyonce_store::{Error, Swapped, audit, failpoint};

use super::order::standing;
use super::{STORE_TIMEOUT, SWAPS_MAX, entry_id};
use crate::counts;
use crate::engine::{Engine, contended, fresh_token};
use crate::events::Event;

/// How long before a record was created an event about it may seem to have happened: clocks differ.
const CLOCKS_DIFFER: std::time::Duration = std::time::Duration::from_secs(5);

/// What a provider says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// What became of the work.
    pub verdict: Verdict,
    /// Which record, and which of its attempts.
    pub about: Subject,
    /// When it happened, by the provider's clock: an event from before the record is about an earlier use of its key.
    pub at: Timestamp,
    /// The webhook's name in the settings.
    pub source: Arc<str>,
    /// The event, for people.
    pub detail: Arc<str>,
}

/// Which record a statement is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// An attempt, by its token.
    Attempt(Handle),
    /// The work of a scope and key.
    Work(Id),
}

impl Subject {
    fn id(self) -> Id {
        match self {
            Self::Attempt(handle) => handle.id,
            Self::Work(id) => id,
        }
    }

    fn as_ruled(self) -> About {
        match self {
            Self::Attempt(handle) => About::Attempt(handle.token),
            Self::Work(_) => About::Work,
        }
    }
}

/// What became of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It settled the record, which is now in this state.
    Applied(StateName),
    /// The attempt runs; the statement counts if the attempt is lost.
    Evidence,
    /// Kept, and nothing follows from it yet. The record is in this state; "did not happen" is believed from this moment on.
    Noted(StateName, Option<Timestamp>),
    /// The record says so already.
    Already(StateName),
    /// The record says otherwise. Nothing changed but its history.
    Contradiction(StateName),
    /// It counts for nothing.
    Ignored(&'static str),
}

const NO_RECORD: &str = "no record matches";
const EARLIER_USE: &str = "about an earlier use of the key";
const EARLIER_ATTEMPT: &str = "about an earlier attempt";
const ANY_CALL: &str = "it names none of the handler's calls, and may be about an earlier one";
const NOTHING_BEGUN: &str = "nothing has begun";

impl Engine {
    /// Judges a provider's statement and carries it out.
    ///
    /// # Errors
    ///
    /// Where the store does not answer: the provider sends it again.
    pub async fn hear(&self, statement: Statement) -> Result<Heard, Error> {
        let id = statement.about.id();
        let (mut verdict, mut has_asked) = (statement.verdict.clone(), false);
        let mut seen = self.find(id).await?;
        for _ in 0..SWAPS_MAX {
            let Some(found) = &seen else { return Ok(Heard::Ignored(NO_RECORD)) };
            // The key may have been used anew meanwhile.
            if is_too_early(found, statement.about, statement.at) {
                return Ok(Heard::Ignored(EARLIER_USE));
            }
            let mut ruling = self.statement_ruling(found, &statement, &verdict);
            if !has_asked {
                has_asked = self.has_asked_for_answer(found, &mut ruling).await;
                verdict = ruling.verdict.clone();
            }
            let (heard, draft) = judge(found, &ruling);
            let Some(draft) = draft else { return Ok(heard) };
            failpoint!("webhook.before");
            let swapped = self.swap_with(&id, Some(found), draft, None, STORE_TIMEOUT).await?;
            failpoint!("webhook.after");
            match swapped {
                Swapped::Applied(now) => {
                    self.tell_settled(id, found, &now, Source::Webhook, matches!(heard, Heard::Applied(_)));
                    return Ok(heard);
                }
                Swapped::Lost(now) => seen = now,
            }
        }
        Err(contended())
    }

    /// Keeps an event that says nothing about the outcome in the history of an unknown record. Best effort: of two that
    /// write at once, one is kept.
    ///
    /// # Errors
    ///
    /// Where the store does not answer.
    pub async fn note(
        &self,
        about: Subject,
        at: Timestamp,
        source: &Arc<str>,
        detail: &str,
    ) -> Result<(), Error> {
        let id = about.id();
        let seen = self.find(id).await?.filter(|seen| !is_too_early(seen, about, at));
        let Some(seen) = seen else { return Ok(()) };
        let statement = machine::Statement {
            source: Some(source.clone()),
            detail: Some(shortened(detail)),
            ..machine::Statement::by(Source::Webhook)
        };
        if let Some(draft) = machine::note(&seen, about.as_ruled(), &statement) {
            self.swap_with(&id, Some(&seen), draft, None, STORE_TIMEOUT).await?;
        }
        Ok(())
    }

    fn statement_ruling(&self, seen: &Seen, statement: &Statement, verdict: &Verdict) -> Ruling {
        Ruling {
            verdict: verdict.clone(),
            about: statement.about.as_ruled(),
            statement: machine::Statement {
                by: Source::Webhook,
                who: None,
                source: Some(statement.source.clone()),
                detail: Some(shortened(&statement.detail)),
            },
            force: Force::No,
            token: fresh_token(),
            probe: self.backoff(seen),
        }
    }
}

/// What the audit log calls it when two sources disagree about a record.
pub const CONTRADICTION: &str = "contradiction";

/// The entry of the audit log for a write that notes a contradiction.
pub(crate) fn contradiction(id: &Id, before: &Seen, next: &Draft) -> Option<Box<audit::Entry>> {
    let record = &before.record;
    let said = next.history.since(&record.history).iter().rfind(|entry| entry.contradicts)?;
    let by: Arc<str> = said.by.as_str().into();
    Some(Box::new(audit::Entry {
        id: entry_id(),
        who: said.source.clone().unwrap_or_else(|| by.clone()),
        role: "none".into(),
        via: by,
        action: CONTRADICTION.into(),
        scope: Some(*record.scope.digest()),
        scope_label: record.scope.label().map(Arc::from),
        key: Some(record.key.as_str().into()),
        record: Some(*id),
        reason: said.detail.clone(),
        before: Some(standing(record.state.name(), record.attempt, None)),
        after: Some(standing(next.state.name(), next.attempt, None)),
        result: "noted".into(),
        ..audit::Entry::default()
    }))
}

impl Engine {
    /// Two sources disagree about a record: counted, logged and told once, by whoever wrote it down.
    pub(crate) fn tell_contradiction(&self, id: Id, after: &Seen, entry: audit::Entry) {
        counts::contradiction();
        tracing::error!(
            record = %id.short(),
            route = after.record.route.as_deref().unwrap_or_default(),
            state = %after.record.state.name(),
            source = &*entry.who,
            "two sources disagree about the outcome of this request; its time line has both"
        );
        self.tell(Event::Change(audit::Written { at: after.now, entry }));
    }
}

/// A statement without a token is about whichever use of the key stood when it happened.
fn is_too_early(seen: &Seen, about: Subject, at: Timestamp) -> bool {
    match about {
        Subject::Attempt(_) => false,
        Subject::Work(_) => at.plus(CLOCKS_DIFFER) < seen.record.created_at,
    }
}

/// What the rules make of it, and what to write.
fn judge(seen: &Seen, ruling: &Ruling) -> (Heard, Option<Box<Draft>>) {
    let state = seen.record.state.name();
    match machine::verdict(seen, ruling) {
        Ruled::Settles(draft) => (Heard::Applied(draft.state.name()), Some(draft)),
        Ruled::Keeps(draft) => (Heard::Evidence, Some(draft)),
        Ruled::Notes(draft, believed_at) => (Heard::Noted(draft.state.name(), believed_at), Some(draft)),
        Ruled::Contradicts(draft) => (Heard::Contradiction(state), Some(draft)),
        Ruled::Ignores(Ignored::EarlierAttempt, draft) => (Heard::Ignored(EARLIER_ATTEMPT), draft),
        Ruled::Ignores(Ignored::EarlierUse, draft) => (Heard::Ignored(EARLIER_USE), draft),
        Ruled::Ignores(Ignored::AnyCall, draft) => (Heard::Ignored(ANY_CALL), draft),
        Ruled::Already => (Heard::Already(state), None),
        Ruled::Settled | Ruled::StillRunning | Ruled::TooEarly(_) | Ruled::NothingToAsk => {
            (Heard::Ignored(NOTHING_BEGUN), None)
        }
        Ruled::Absent => (Heard::Ignored(NO_RECORD), None),
    }
}

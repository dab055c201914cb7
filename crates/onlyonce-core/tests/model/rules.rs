//! The machine under test, as the world calls it; and the machine with one deliberate fault.
//!
//! Without a fault each function here is a plain call of its namesake in [`onlyonce_core::machine`].

use std::time::Duration;

use onlyonce_core::machine::{
    self, About, Admission, Backoff, Decision, Finish, Force, Forget, Renewal, Request, Ruled, Ruling,
    Statement,
};
use onlyonce_core::outcome::Outcome;
use onlyonce_core::policy::Policy;
use onlyonce_core::record::{Draft, Effects, Evidence, Reason, Seen, Source, Terms};

use crate::row::{BLANK, DONE, Heard, NOBODY, Row, Spans, Ticks, Where, answer, span, token};

/// What is deliberately wrong: with the rules, with the engine around them, or with the world they are told to expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Rules: any attempt may finish any record.
    FinishWithoutToken,
    /// Rules: an attempt whose record became unknown or retryable is not listened to.
    LateTruthDiscarded,
    /// Rules: "did not happen" is believed before the deadline and the horizon have passed.
    NotFoundBelievedAtOnce,
    /// Rules: a lapsed attempt of unrepeatable work is run again.
    LapsedAlwaysReruns,
    /// Rules: keyed work is run again however long ago downstream first saw the key.
    KeyedRerunsForever,
    /// Rules: the last rerun need not end before downstream forgets, only begin.
    NoTimeForTheLastRerun,
    /// Rules: what a webhook said before the effect turned up is believed after.
    OldEvidenceBelieved,
    /// Rules: accepted work is claimed without asking whether downstream still remembers.
    ClaimTrustsMemory,
    /// Rules: accepted work is given up with 408 though an earlier attempt may have done it.
    GivenUpInDoubt,
    /// Rules: what may have been done expires by age.
    DoubtExpires,
    /// Rules: local work is treated as opaque.
    LocalTakenForOpaque,
    /// Rules: the last statement about a running attempt is kept, not the strongest.
    LastEvidenceKept,
    /// Rules: a lost attempt is run again without a look at what was heard while it ran.
    HappenedDroppedBeforeRerun,
    /// Rules: "it never will" about one attempt is believed though an earlier one was lost.
    StaleFinalWordBelieved,
    /// Rules: "did not happen" about one attempt is taken for the work, though an earlier one was lost.
    OneAttemptTakenForTheWork,
    /// Rules: what is said about an earlier attempt is taken to be about the last.
    EarlierAttemptTakenForTheLast,
    /// Rules: what is said about an earlier use of the key is taken to be about this one.
    EarlierUseTakenForThis,
    /// Rules: a statement about a settled record is judged as if it were unknown.
    SettledJudgedAnew,
    /// Rules: what was too early to be believed is kept, and believed when somebody asks again.
    EarlyWordAppliedLater,
    /// Rules: a record that may run again does not listen to "it happened".
    FreeRecordsDeaf,
    /// Rules: an attempt's "did not run" counts for more than a webhook's "it happened".
    DidNotRunBeatsHappened,
    /// Rules: a person may overrule a webhook that said that it happened.
    PersonOverrulesEvidence,
    /// Rules: an attempt that a person overruled keeps its token.
    OverruledKeepsToken,
    /// Rules: what is unknown is forgotten without force.
    UnknownForgottenFreely,
    /// Rules: a statement about a lapsed attempt is judged before what was heard while it ran.
    LaterWordBeatsEvidence,
    /// Engine: an attempt that does not know how it ended says that it is done.
    DoubtTakenForDone,
    /// Engine: the token is the number of the attempt, so it comes back with the next use of the key.
    TokenUsedAgain,
    /// Engine: a swap does not compare revisions.
    SwapWithoutRevision,
    /// Engine: the reaper deletes what is old, whatever its state.
    ReaperJudgesByAge,
    /// Engine: leases and expiry are judged by a node's clock that is ahead.
    NodeClockAhead,
    /// Engine: a probe's answer is judged by the time of the write, not by the time before the question.
    AnswerJudgedWhenWritten,
    /// Engine: an attempt counts its deadline from the write of its reservation, and that comes long after the look.
    DeadlineFromWrite,
    /// World: "local" effects are committed beside the completion, not with it.
    LocalEffectOutside,
    /// World: downstream forgets a key before the downstream retention is over.
    DownstreamForgetsEarly,
    /// World: an effect turns up after the horizon.
    EffectPastHorizon,
    /// World: a webhook that is not final says what was true when it was sent, and arrives much later.
    WebhookDawdles,
    /// World: downstream does what it said it never would.
    FinalWordBroken,
}

/// The reconciler's back-off does not matter here: it may ask at any moment.
pub(crate) const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(1),
    max: Duration::from_secs(1),
    tries_max: u32::MAX,
    jitter_permille: 1000,
};

/// A statement about the work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word {
    pub by: Source,
    pub heard: Heard,
    /// The number of the token of the attempt it is about; none where it is about the work.
    pub about: Option<u8>,
    pub force: Force,
}

impl Word {
    /// About the work, without force.
    pub(crate) fn of(by: Source, heard: Heard) -> Self {
        Self { by, heard, about: None, force: Force::No }
    }
}

/// The rules for one kind of effects.
pub(crate) struct Rules {
    pub effects: Effects,
    pub spans: Spans,
    pub fault: Option<Fault>,
    policy: Policy,
}

impl Rules {
    pub(crate) fn new(effects: Effects, spans: Spans, fault: Option<Fault>) -> Self {
        let terms = spans.terms(effects);
        let policy = Policy {
            effects,
            lease: terms.lease,
            deadline: terms.deadline,
            horizon: terms.horizon,
            retention: terms.retention,
            downstream_retention: terms.downstream_retention,
            ..Policy::default()
        };
        Self { effects, spans, fault, policy }
    }

    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    pub(crate) fn decide(&self, row: Option<&Row>, now: Ticks, number: u8, admission: Admission) -> Decision {
        let now = if self.has(Fault::NodeClockAhead) { now + self.spans.lease } else { now };
        let seen = row.map(|row| self.seen(&self.deaf_to_the_past(row), now));
        let request = Request {
            scope: &BLANK.scope,
            key: &BLANK.key,
            route: None,
            fingerprint: &BLANK.fingerprint,
            policy: &self.policy,
            token: token(number),
            admission,
            trace: None,
        };
        machine::decide(seen.as_ref(), &request)
    }

    pub(crate) fn claim(&self, row: &Row, number: u8) -> Option<Box<Draft>> {
        let mut row = row.clone();
        row.relies_on_memory &= !self.has(Fault::ClaimTrustsMemory);
        machine::claim(&self.seen(&row, 0), token(number), Duration::ZERO)
    }

    pub(crate) fn renew(&self, row: Option<&Row>, number: u8) -> Option<Box<Draft>> {
        match machine::renew(row.map(|row| self.seen(row, 0)).as_ref(), token(number)) {
            Renewal::Write(draft) => Some(draft),
            Renewal::Completed | Renewal::Lost => None,
        }
    }

    pub(crate) fn finish(&self, row: Option<&Row>, number: u8, said: Said) -> Finish {
        let said = match said {
            Said::Unknown if self.has(Fault::DoubtTakenForDone) => Said::Done,
            Said::Done | Said::DidNotRun | Said::Unknown => said,
        };
        let Some(row) = row else { return machine::finish(None, token(number), &said.outcome()) };
        let deaf = Row { evidence: None, ..row.clone() };
        let row = if self.has(Fault::DidNotRunBeatsHappened) { &deaf } else { row };
        let is_late = matches!(row.state, Where::Unknown | Where::Retryable { .. });
        if is_late && self.has(Fault::LateTruthDiscarded) {
            return Finish::Superseded;
        }
        let number = if self.has(Fault::FinishWithoutToken) { row.token } else { number };
        machine::finish(Some(&self.seen(row, 0)), token(number), &said.outcome())
    }

    pub(crate) fn sweep(&self, row: &Row) -> Option<Box<Draft>> {
        let heard_nothing = row.evidence == Some(Heard::DidNotHappen);
        if self.has(Fault::OldEvidenceBelieved) && heard_nothing && !row.has_live_lease(self.spans) {
            return self.verdict(row, 0, Word::of(Source::Webhook, Heard::DidNotHappen));
        }
        let mut row = self.deaf_to_the_past(row);
        row.relies_on_memory &= !self.has(Fault::GivenUpInDoubt);
        machine::sweep(&self.seen(&row, 0))
    }

    fn deaf_to_the_past(&self, row: &Row) -> Row {
        let mut row = row.clone();
        if self.has(Fault::HappenedDroppedBeforeRerun) && !row.has_live_lease(self.spans) {
            row.evidence = None;
        }
        row
    }

    /// What a statement writes, judged on the row as it stood at `now`.
    pub(crate) fn verdict(&self, row: &Row, now: Ticks, word: Word) -> Option<Box<Draft>> {
        let is_free = matches!(row.state, Where::Retryable { .. } | Where::Pending { .. });
        if is_free && self.has(Fault::FreeRecordsDeaf) {
            return None;
        }
        let seen = self.seen(&self.misread(row, word), now);
        let ruling = Ruling {
            verdict: self.misheard(row, word).verdict(),
            about: self.about(row, word),
            statement: Statement::by(word.by),
            force: word.force,
            token: token(if self.has(Fault::OverruledKeepsToken) { row.token } else { NOBODY }),
            probe: Some(BACKOFF),
        };
        match machine::verdict(&seen, &ruling) {
            Ruled::Notes(mut draft, Some(_)) if self.has(Fault::EarlyWordAppliedLater) => {
                let verdict = word.heard.verdict();
                let at = seen.now;
                let early = Evidence { verdict, by: word.by, at, attempt: 0, source: None };
                draft.evidence = Some(Box::new(early));
                Some(draft)
            }
            Ruled::Settles(draft)
            | Ruled::Keeps(draft)
            | Ruled::Notes(draft, _)
            | Ruled::Contradicts(draft) => Some(draft),
            Ruled::Ignores(_, draft) => draft,
            Ruled::Already
            | Ruled::StillRunning
            | Ruled::TooEarly(_)
            | Ruled::Settled
            | Ruled::NothingToAsk
            | Ruled::Absent => None,
        }
    }

    /// What a faulty rule would take a statement for.
    fn misheard(&self, row: &Row, word: Word) -> Heard {
        let was_early = row.state == Where::Unknown && row.evidence == Some(Heard::DidNotHappen);
        match word.heard {
            Heard::DidNotHappen if self.has(Fault::NotFoundBelievedAtOnce) => Heard::NeverWill,
            Heard::Unknown if was_early && self.has(Fault::EarlyWordAppliedLater) => Heard::DidNotHappen,
            heard @ (Heard::Unknown | Heard::DidNotHappen | Heard::NeverWill | Heard::Happened) => heard,
        }
    }

    /// The row as a faulty rule would take it.
    fn misread(&self, row: &Row, word: Word) -> Row {
        let mut row = row.clone();
        let is_settled = matches!(row.state, Where::Completed { .. } | Where::Retryable { .. });
        if is_settled && !row.has_expired() && self.has(Fault::SettledJudgedAnew) {
            row.state = Where::Unknown;
        }
        let is_late = self.has(Fault::LaterWordBeatsEvidence) && !row.has_live_lease(self.spans);
        if is_late
            || self.has(Fault::LastEvidenceKept)
            || (self.has(Fault::PersonOverrulesEvidence) && word.force == Force::Yes)
        {
            row.evidence = None;
        }
        if self.has(Fault::StaleFinalWordBelieved) && word.heard == Heard::NeverWill {
            row.relies_on_memory = false;
        }
        row
    }

    fn about(&self, row: &Row, word: Word) -> About {
        match word.about {
            None => About::Work,
            Some(number) if number == row.token && self.has(Fault::OneAttemptTakenForTheWork) => About::Work,
            Some(number) if row.is_earlier(number) && self.has(Fault::EarlierAttemptTakenForTheLast) => {
                About::Attempt(token(row.token))
            }
            Some(number)
                if number != row.token
                    && !row.is_earlier(number)
                    && self.has(Fault::EarlierUseTakenForThis) =>
            {
                About::Work
            }
            Some(number) => About::Attempt(token(number)),
        }
    }

    pub(crate) fn forget(&self, row: &Row, force: Force) -> Option<Box<Draft>> {
        let force = if self.has(Fault::UnknownForgottenFreely) { Force::Yes } else { force };
        match machine::forget(&self.seen(row, 0), token(NOBODY), force) {
            Forget::Write(draft) => Some(draft),
            Forget::StillRunning | Forget::Unknown | Forget::Absent => None,
        }
    }

    pub(crate) fn may_reap(&self, row: &Row) -> bool {
        let is_old = row.began_at <= -self.spans.retention;
        machine::may_reap(&self.seen(row, 0).record, self.seen(row, 0).now)
            || (is_old && self.has(Fault::ReaperJudgesByAge))
    }

    fn seen(&self, row: &Row, now: Ticks) -> Seen {
        if self.has(Fault::DoubtExpires) && row.is_in_doubt() && row.is_past_retention() {
            let settled = Row { relies_on_memory: false, ..row.clone() };
            return settled.seen(self.terms(), now);
        }
        row.seen(self.terms(), now)
    }

    fn terms(&self) -> Terms {
        let mut terms = self.spans.terms(self.effects);
        if self.has(Fault::LapsedAlwaysReruns) {
            terms.effects = Effects::Local;
        }
        if self.has(Fault::LocalTakenForOpaque) {
            terms.effects = Effects::Opaque;
        }
        if self.has(Fault::KeyedRerunsForever) {
            terms.downstream_retention = span(Ticks::MAX);
        }
        if self.has(Fault::NoTimeForTheLastRerun) {
            terms.downstream_retention += span(self.spans.settled_after());
        }
        terms
    }
}

/// What an attempt says it ended with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Said {
    Done,
    DidNotRun,
    Unknown,
}

impl Said {
    fn outcome(self) -> Outcome {
        match self {
            Self::Done => Outcome::Completed { response: Some(answer(DONE)), keep_for: None },
            Self::DidNotRun => Outcome::DidNotRun { retry_after: None, keep_for: None },
            Self::Unknown => Outcome::Unknown(Reason::ConnectionLost),
        }
    }
}

//! The machine under test, as the world calls it; and the machine with one deliberate fault.
//!
//! Without a fault each function here is a plain call of its namesake in [`onlyonce_core::machine`].

use onlyonce_core::machine::{
    self, About, Admission, Backoff, Decision, Finish, Force, Renewal, Request, Ruled, Ruling, Statement,
};
use onlyonce_core::outcome::Outcome;
use onlyonce_core::policy::Policy;
use onlyonce_core::record::{Draft, Effects, Reason, Seen, Source, Terms, Verdict};

use crate::row::{BLANK, DONE, Heard, Row, Spans, Ticks, Where, answer, span, token};

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
        let seen = row.map(|row| self.seen(row, now));
        let request = Request {
            scope: &BLANK.scope,
            key: &BLANK.key,
            route: None,
            fingerprint: &BLANK.fingerprint,
            policy: &self.policy,
            token: token(number),
            admission,
        };
        machine::decide(seen.as_ref(), &request)
    }

    pub(crate) fn claim(&self, row: &Row, number: u8) -> Option<Box<Draft>> {
        let mut row = row.clone();
        row.relies_on_memory &= !self.has(Fault::ClaimTrustsMemory);
        machine::claim(&self.seen(&row, 0), token(number))
    }

    pub(crate) fn renew(&self, row: Option<&Row>, number: u8) -> Option<Box<Draft>> {
        match machine::renew(row.map(|row| self.seen(row, 0)).as_ref(), token(number)) {
            Renewal::Write(draft) => Some(draft),
            Renewal::Lost => None,
        }
    }

    pub(crate) fn finish(&self, row: Option<&Row>, number: u8, said: Said) -> Finish {
        let said = match said {
            Said::Unknown if self.has(Fault::DoubtTakenForDone) => Said::Done,
            Said::Done | Said::DidNotRun | Said::Unknown => said,
        };
        let Some(row) = row else { return machine::finish(None, token(number), &said.outcome()) };
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
            return self.verdict(row, 0, Heard::DidNotHappen.verdict(), Source::Webhook);
        }
        let mut row = row.clone();
        row.relies_on_memory &= !self.has(Fault::GivenUpInDoubt);
        machine::sweep(&self.seen(&row, 0))
    }

    /// What a verdict by `by` writes, judged on the row as it stood at `now`.
    pub(crate) fn verdict(&self, row: &Row, now: Ticks, verdict: Verdict, by: Source) -> Option<Box<Draft>> {
        let verdict = match verdict {
            Verdict::DidNotHappen { .. } if self.has(Fault::NotFoundBelievedAtOnce) => {
                Verdict::DidNotHappen { never_will: true }
            }
            Verdict::Happened(_) | Verdict::DidNotHappen { .. } | Verdict::StillUnknown => verdict,
        };
        let probe = Backoff { first: span(1), max: span(1), tries_max: u32::MAX, jitter_permille: 1000 };
        let statement = Statement::by(by);
        let about = About::Work;
        let ruling =
            Ruling { verdict, about, statement, force: Force::No, token: token(u8::MAX), probe: Some(probe) };
        match machine::verdict(&self.seen(row, now), &ruling) {
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

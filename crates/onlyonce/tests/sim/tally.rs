//! How often what went wrong: a run in which too little did proves nothing.

use std::collections::BTreeMap;
use std::fmt;

use crate::history::{By, History, State, What, Written};

/// What is counted: every kind of fault, and what the product must have been driven into by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Count {
    /// The store's answer came late, but in time.
    StoreSlow,
    /// The store failed before it wrote.
    StoreRefused,
    /// It wrote, and the answer was lost.
    StoreAnswerLost,
    /// It never answered, and wrote nothing.
    StoreStalled,
    /// It wrote long after the caller had given up.
    StoreLate,
    /// A swap was applied, and sent a second time.
    SwapRepeated,
    Partition,
    Pause,
    Crash,
    /// A client hung up.
    HangUp,
    OtherBody,
    /// The handler refused before it sent anything.
    HandlerRefused,
    HandlerPanicked,
    HandlerFailed,
    /// The handler never came back by itself.
    HandlerHung,
    /// Its answer broke off in the middle.
    AnswerBroken,
    AnswerTooLarge,
    /// Downstream never got the call.
    CallLost,
    /// Downstream acted long after it was called.
    ActedLate,
    /// It acted, and its answer was lost.
    AnswerLost,
    /// It died with the call in hand.
    DiedMidway,
    /// It knew the key already.
    Deduplicated,
    /// Local effects: the commit was fenced, and everything rolled back.
    RolledBack,
    /// A "did not happen" that came too early to be believed.
    EarlyVerdict,
    /// Downstream swore that a token can never happen later.
    Fenced,
    Webhook,
    // What these drove the product into.
    Renewed,
    Lapsed,
    Superseded,
    LateTruth,
    /// The completion was written only by trying on in the background.
    WrittenLate,
    GivenBack,
    RanAgain,
    BecameUnknown,
    VerdictTaken,
    Expired,
    Replayed,
    InProgress,
    KeyReused,
    StoreUnavailable,
}

/// Every kind, so that one that never fired is missed.
const ALL: [Count; 40] = {
    use Count::*;
    [
        StoreSlow,
        StoreRefused,
        StoreAnswerLost,
        StoreStalled,
        StoreLate,
        SwapRepeated,
        Partition,
        Pause,
        Crash,
        HangUp,
        OtherBody,
        HandlerRefused,
        HandlerPanicked,
        HandlerFailed,
        HandlerHung,
        AnswerBroken,
        AnswerTooLarge,
        CallLost,
        ActedLate,
        AnswerLost,
        DiedMidway,
        Deduplicated,
        RolledBack,
        EarlyVerdict,
        Fenced,
        Webhook,
        Renewed,
        Lapsed,
        Superseded,
        LateTruth,
        WrittenLate,
        GivenBack,
        RanAgain,
        BecameUnknown,
        VerdictTaken,
        Expired,
        Replayed,
        InProgress,
        KeyReused,
        StoreUnavailable,
    ]
};

/// Of a hundred seeds, at least so many must have met each kind, or the run is void.
const FIRED_PER_HUNDRED_MIN: u64 = 2;

/// The longest a write is under way: what is written later was sent again.
const LATE_MS_MAX: u64 = 5_000;

#[derive(Clone, Debug, Default)]
pub(crate) struct Tally(BTreeMap<Count, u64>);

impl Tally {
    pub(crate) fn add(&mut self, count: Count) {
        *self.0.entry(count).or_default() += 1;
    }

    pub(crate) fn add_all(&mut self, other: &Self) {
        for (count, times) in &other.0 {
            *self.0.entry(*count).or_default() += times;
        }
    }

    pub(crate) fn of(&self, count: Count) -> u64 {
        self.0.get(&count).copied().unwrap_or(0)
    }

    /// What fired too seldom for a run over so many seeds.
    pub(crate) fn missing(&self, seeds: u64) -> Vec<Count> {
        let floor = (seeds * FIRED_PER_HUNDRED_MIN).div_ceil(100);
        ALL.into_iter().filter(|count| self.of(*count) < floor).collect()
    }

    /// Counts what the product was driven into.
    pub(crate) fn read(&mut self, history: &History) {
        let mut before: Option<&Written> = None;
        let mut ended = BTreeMap::new();
        for event in &history.events {
            match &event.what {
                What::Ended { token, .. } if before.is_none_or(|now| now.token == *token) => {
                    ended.insert(*token, event.at);
                }
                What::Ended { .. } => self.add(Count::Superseded),
                What::Wrote(written) => {
                    self.read_write(before, written, event.at, &ended);
                    before = Some(written);
                }
                What::Expired => {
                    self.add(Count::Expired);
                    before = None;
                }
                What::Answered { answer, .. } if answer.is_replay => self.add(Count::Replayed),
                What::Answered { answer, .. } => match answer.code.as_deref() {
                    Some("idempotency_key_in_progress") => self.add(Count::InProgress),
                    Some("idempotency_key_reused") => self.add(Count::KeyReused),
                    Some("idempotency_store_unavailable") => self.add(Count::StoreUnavailable),
                    Some(_) | None => {}
                },
                What::Sent { .. }
                | What::HungUp { .. }
                | What::GaveUp { .. }
                | What::Began { .. }
                | What::Executed { .. }
                | What::Ruled(_)
                | What::Healed => {}
            }
        }
    }

    fn read_write(&mut self, before: Option<&Written>, now: &Written, at: u64, ended: &BTreeMap<u32, u64>) {
        let Some(before) = before else { return };
        let is_same = before.token == now.token;
        if matches!(before.state, State::Running { until } if until <= at) {
            self.add(Count::Lapsed);
        }
        let is_completed = matches!(now.state, State::Completed { by: By::Attempt, .. });
        if is_completed && ended.get(&now.token).is_some_and(|ended_at| ended_at + LATE_MS_MAX < at) {
            self.add(Count::WrittenLate);
        }
        match (&before.state, &now.state) {
            (State::Running { until: was }, State::Running { until }) if is_same && was < until => {
                self.add(Count::Renewed);
            }
            // Evidence is written into a running record too, and renews nothing.
            (State::Running { .. }, State::Running { .. }) if is_same => {}
            (_, State::Running { .. }) => self.add(Count::RanAgain),
            (State::Running { until }, State::Retryable { .. })
                if at < *until && !ended.contains_key(&now.token) =>
            {
                self.add(Count::GivenBack);
            }
            (State::Running { .. }, State::Unknown) => self.add(Count::BecameUnknown),
            (State::Unknown, State::Completed { by: By::Attempt, .. }) => self.add(Count::LateTruth),
            (_, State::Completed { by: By::Verdict, .. }) | (State::Unknown, State::Retryable { .. }) => {
                self.add(Count::VerdictTaken);
            }
            _ => {}
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for count in ALL {
            write!(f, "{count:?} {}  ", self.of(count))?;
        }
        Ok(())
    }
}

//! The one row of the store, in the few small numbers the rules read.
//!
//! The row is turned into a real [`Record`] before each call of the machine and back after it. Moments are ticks
//! counted from the store's now, so that a world an hour later is the same world: the clock needs no bound. A moment
//! further back than any rule looks is as good as that far back.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use onlyonce_core::fingerprint::Fingerprint;
use onlyonce_core::history::History;
use onlyonce_core::key::Key;
use onlyonce_core::record::{
    Accepted, Asking, Draft, Effects, Evidence, Progress, Reason, Record, Response, Revision, Seen, Source,
    State, Terms, Token, Verdict,
};
use onlyonce_core::scope::Scope;
use onlyonce_core::time::Timestamp;

use crate::world::VIEW_AGE_MAX;

/// Ticks after the store's now; negative before it.
pub(crate) type Ticks = i8;

/// What the store's clock shows in every world.
const NOW: i64 = 1_000;

/// The row: what the rules read of a record, and two notes of the model's own that no rule sees.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Row {
    /// Note: which use of the key this is, counted from 0.
    pub use_of_key: u8,
    /// Note: which attempt really wrote the token.
    pub owner: u8,
    pub token: u8,
    pub attempt: u8,
    pub relies_on_memory: bool,
    pub created_at: Ticks,
    pub began_at: Ticks,
    /// The tokens of earlier attempts of this use of the key, one bit each. Only where anybody names an attempt.
    pub earlier: u8,
    /// What a webhook said while the attempt ran.
    pub evidence: Option<Heard>,
    /// Until when accepted work that has begun is run again.
    pub accepted: Option<Ticks>,
    pub state: Where,
}

/// What is said about the work, the weaker first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Heard {
    Unknown,
    DidNotHappen,
    NeverWill,
    Happened,
}

/// The token, and the attempt, of nobody: what a person who overrules an attempt puts in its place.
pub(crate) const NOBODY: u8 = u8::MAX;

/// The five states, with what the rules read of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Where {
    Pending { expires_at: Ticks },
    Running { lapses_at: Ticks },
    Completed { status: u16, expires_at: Ticks },
    Retryable { expires_at: Ticks },
    Unknown,
}

/// The terms of the record, in ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spans {
    pub lease: Ticks,
    pub deadline: Ticks,
    pub horizon: Ticks,
    pub retention: Ticks,
    pub downstream_retention: Ticks,
}

impl Spans {
    /// How far back the first reservation can still matter.
    fn created_back(self) -> Ticks {
        self.downstream_retention + VIEW_AGE_MAX
    }

    /// How far back the last reservation can still matter.
    fn began_back(self) -> Ticks {
        self.settled_after() + VIEW_AGE_MAX
    }

    /// How long after an attempt began it can still act downstream.
    pub(crate) fn settled_after(self) -> Ticks {
        self.deadline + self.horizon
    }

    pub(crate) fn terms(self, effects: Effects) -> Terms {
        Terms {
            effects,
            lease: span(self.lease),
            deadline: span(self.deadline),
            horizon: span(self.horizon),
            retention: span(self.retention),
            downstream_retention: span(self.downstream_retention),
            reconcile_first: None,
        }
    }
}

impl Row {
    /// The row as the machine sees it, by a clock that shows `now`.
    pub(crate) fn seen(&self, terms: Terms, now: Ticks) -> Seen {
        let mut record = BLANK.clone();
        record.terms = terms;
        record.attempt = u32::from(self.attempt);
        record.token = token(self.token);
        record.relies_on_memory = self.relies_on_memory;
        record.created_at = moment(self.created_at);
        record.began_at = moment(self.began_at);
        record.evidence = self.evidence.map(|heard| {
            let verdict = heard.verdict();
            Box::new(Evidence { verdict, by: Source::Webhook, at: moment(0), attempt: 0, source: None })
        });
        // It is claimed again at any moment: the pauses do not matter here.
        let accepted = |until| Accepted { until: moment(until), pause_max: Duration::ZERO };
        record.accepted = self.accepted.map(accepted);
        record.history.tokens = (1..8).filter(|number| self.is_earlier(*number)).map(token).collect();
        record.state = self.state.state();
        Seen { record: Arc::new(record), revision: Revision(0), now: moment(now) }
    }

    /// What stands there once the store has written `draft`. The notes are the caller's.
    pub(crate) fn written(draft: Box<Draft>, use_of_key: u8, owner: u8) -> Self {
        let record = draft.stamp(moment(0));
        Self {
            use_of_key,
            owner,
            token: record.token.0[0],
            attempt: u8::try_from(record.attempt).expect("the model bounds the attempts"),
            relies_on_memory: record.relies_on_memory,
            created_at: ticks(record.created_at),
            began_at: ticks(record.began_at),
            earlier: record.history.tokens.iter().map(|token| bit(token.0[0])).fold(0, |all, bit| all | bit),
            evidence: record.evidence.and_then(|evidence| Heard::of(&evidence.verdict)),
            accepted: record.accepted.map(|accepted| ticks(accepted.until)),
            state: Where::of(&record.state),
        }
    }

    /// Whether the token of this number is of an earlier attempt of this use of the key.
    pub(crate) fn is_earlier(&self, number: u8) -> bool {
        self.earlier & bit(number) != 0
    }

    /// A tick has passed.
    pub(crate) fn age(&mut self, spans: Spans) {
        let age = |moment: &mut Ticks, back: Ticks| *moment = (*moment - 1).max(-back);
        age(&mut self.created_at, spans.created_back());
        age(&mut self.began_at, spans.began_back());
        if let Some(until) = &mut self.accepted {
            age(until, VIEW_AGE_MAX);
        }
        match &mut self.state {
            Where::Pending { expires_at: at }
            | Where::Running { lapses_at: at }
            | Where::Completed { expires_at: at, .. }
            | Where::Retryable { expires_at: at } => age(at, VIEW_AGE_MAX),
            Where::Unknown => {}
        }
    }

    /// By the store's clock, and without asking the machine: an attempt holds this row.
    pub(crate) fn has_live_lease(&self, spans: Spans) -> bool {
        matches!(self.state, Where::Running { lapses_at } if lapses_at > 0)
            && self.began_at + spans.deadline > 0
    }

    /// By the store's clock, and without asking the machine: this row is settled, and its time is over.
    pub(crate) fn has_expired(&self) -> bool {
        self.is_past_retention() && !self.is_in_doubt() && self.accepted.is_none()
    }

    /// It may run again, though the work may have been done.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.relies_on_memory && matches!(self.state, Where::Retryable { .. })
    }

    pub(crate) fn is_past_retention(&self) -> bool {
        match self.state {
            Where::Completed { expires_at, .. } | Where::Retryable { expires_at } => expires_at <= 0,
            Where::Pending { .. } | Where::Running { .. } | Where::Unknown => false,
        }
    }
}

impl Where {
    fn state(self) -> State {
        match self {
            Self::Pending { expires_at } => State::Pending { expires_at: moment(expires_at) },
            Self::Running { lapses_at } => State::Running { lapses_at: moment(lapses_at) },
            Self::Completed { status, expires_at } => State::Completed {
                response: Some(answer(status)),
                by: Source::Attempt,
                expires_at: moment(expires_at),
            },
            Self::Retryable { expires_at } => {
                State::Retryable { retry_after: None, expires_at: moment(expires_at), stuck_since: None }
            }
            Self::Unknown => State::Unknown {
                reason: Reason::Lapsed,
                since: moment(0),
                asking: Asking::default(),
                ask_at: None,
                dead_letter: false,
            },
        }
    }

    fn of(state: &State) -> Self {
        match state {
            State::Pending { expires_at } => Self::Pending { expires_at: ticks(*expires_at) },
            State::Running { lapses_at } => Self::Running { lapses_at: ticks(*lapses_at) },
            State::Completed { response, expires_at, .. } => Self::Completed {
                status: response.as_ref().expect("every answer of the model has a body").status,
                expires_at: ticks(*expires_at),
            },
            State::Retryable { expires_at, .. } => Self::Retryable { expires_at: ticks(*expires_at) },
            State::Unknown { .. } => Self::Unknown,
        }
    }
}

impl Heard {
    pub(crate) fn verdict(self) -> Verdict {
        match self {
            Self::Happened => Verdict::Happened(Some(answer(DONE))),
            Self::NeverWill => Verdict::DidNotHappen { never_will: true },
            Self::DidNotHappen => Verdict::DidNotHappen { never_will: false },
            Self::Unknown => Verdict::StillUnknown,
        }
    }

    fn of(verdict: &Verdict) -> Option<Self> {
        match verdict {
            Verdict::Happened(_) => Some(Self::Happened),
            Verdict::DidNotHappen { never_will: true } => Some(Self::NeverWill),
            Verdict::DidNotHappen { never_will: false } => Some(Self::DidNotHappen),
            // As good as nothing.
            Verdict::StillUnknown => None,
        }
    }
}

/// What the service answers when it has done the work.
pub(crate) const DONE: u16 = 201;

pub(crate) fn answer(status: u16) -> Arc<Response> {
    Arc::new(Response { status, headers: Vec::new(), body: Bytes::new() })
}

pub(crate) fn token(number: u8) -> Token {
    Token([number; 16])
}

/// The place of a token among the earlier ones; nobody's has none.
fn bit(number: u8) -> u8 {
    1_u8.checked_shl(u32::from(number)).unwrap_or(0)
}

pub(crate) fn span(ticks: Ticks) -> Duration {
    Duration::from_secs(u64::try_from(ticks).expect("spans are not negative"))
}

fn moment(ticks: Ticks) -> Timestamp {
    Timestamp::from_micros((NOW + i64::from(ticks)) * 1_000_000)
}

fn ticks(moment: Timestamp) -> Ticks {
    Ticks::try_from(moment.as_micros() / 1_000_000 - NOW).expect("no span of the model is that long")
}

/// Everything about a record that is the same in every world.
pub(crate) static BLANK: LazyLock<Record> = LazyLock::new(|| Record {
    scope: Scope::stored([7; 32], None),
    key: Key::stored("order-42"),
    route: None,
    fingerprint: Fingerprint { version: 1, raw: [1; 32], canonical: None },
    terms: Terms {
        effects: Effects::Opaque,
        lease: Duration::ZERO,
        deadline: Duration::ZERO,
        horizon: Duration::ZERO,
        retention: Duration::ZERO,
        downstream_retention: Duration::ZERO,
        reconcile_first: None,
    },
    attempt: 0,
    token: token(0),
    relies_on_memory: false,
    created_at: moment(0),
    began_at: moment(0),
    written_at: moment(0),
    progress: Progress::default(),
    evidence: None,
    accepted: None,
    history: History::default(),
    trace: None,
    state: State::Unknown {
        reason: Reason::Lapsed,
        since: moment(0),
        asking: Asking::default(),
        ask_at: None,
        dead_letter: false,
    },
});

//! The history of one key, and whether the promise was kept.
//!
//! A history is what happened to one (scope, key) in the order in which it happened: what clients sent and were told,
//! what ran and took effect downstream, what verdicts said, and, where the store can be watched, every write of the
//! record. [`check`] is pure: it reads the list and names what is broken.
//!
//! 1. Everything is judged within one *use* of the key: from its first reservation until it expires.
//! 2. An answer is judged against every use that its request overlapped: what a client is told may be as old as its
//!    question, never older.
//! 3. Rules about writes hold where writes were watched. A run against a server that cannot be watched has the same
//!    checker, with fewer rules.
//! 4. Where the history [`History::is_over`], liveness is judged too: everybody was answered, nothing is left running.
//!
//! Numbers stand for tokens and requests: the random bits of a token would make no two histories alike.

mod answers;
mod effects;
#[cfg(test)]
mod planted;
mod violation;
mod writes;

use std::collections::BTreeMap;
use std::fmt;

pub use violation::{Broken, Violation};

/// What the work touches, as `onlyonce::Effects` has it: the checker must not depend on what it checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effects {
    /// All of it commits in one transaction with the completion.
    Local,
    /// Downstream deduplicates by the key.
    Keyed,
    /// Downstream can be asked.
    Queryable,
    /// Neither.
    Opaque,
}

/// All that happened to one key.
#[derive(Clone, Debug)]
pub struct History {
    /// What the work touches.
    pub effects: Effects,
    /// Keyed effects: how long downstream keeps its word, in milliseconds.
    pub remembers_ms: u64,
    /// How soon a lapsed lease is found once the faults have stopped, in milliseconds.
    pub swept_within_ms: u64,
    /// How long an attempt may take, in milliseconds: then its node ends it.
    pub deadline_ms: u64,
    /// The faults have stopped, and everybody had the time to come to an end.
    pub is_over: bool,
    /// In the order in which they happened.
    pub events: Vec<Event>,
}

/// Something that happened, in milliseconds since the beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub at: u64,
    /// What.
    pub what: What,
}

/// What happened: by number which request, and by which attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are numbers of requests and tokens; each variant says the rest")]
pub enum What {
    /// A client sent a request; `body` tells different requests under one key apart.
    Sent { request: u32, body: u32 },
    /// It was answered.
    Answered { request: u32, answer: Answer },
    /// It will not be answered: the client hung up, the connection broke, or its node died.
    HungUp { request: u32 },
    /// A client that came back again and again was never served.
    GaveUp { request: u32 },
    /// The handler was given the work, as this attempt.
    Began { request: u32, token: u32 },
    /// The effect took place; local effects: was committed. What downstream answers from then on.
    Executed { token: u32, said: Said },
    /// The handler came back.
    Ended { token: u32, meaning: Meaning, said: Option<Said> },
    /// A verdict was given, and taken.
    Ruled(Verdict),
    /// The store wrote the record.
    Wrote(Written),
    /// The record expired: the key may be used anew.
    Expired,
    /// The faults have stopped.
    Healed,
}

/// What a client was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The answer itself.
    pub said: Said,
    /// The `code` of a refusal.
    pub code: Option<String>,
    /// Whether it is marked as a replay.
    pub is_replay: bool,
    /// Whether it says that it will be replayed.
    pub stored: Stored,
}

/// Whether an answer says that it will be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// It does.
    Yes,
    /// It says that it will not.
    No,
    /// It says neither.
    Silent,
}

/// A status and a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: String,
}

/// What a handler knows when it comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// It is done.
    Completed,
    /// It was not done, and will not be.
    DidNotRun,
    /// Nobody knows.
    Doubt,
}

/// What was found out about work in doubt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It happened; with what was answered, where that is known.
    Happened(Option<Said>),
    /// It did not happen.
    DidNotHappen,
}

/// A write of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Whose record it is.
    pub token: u32,
    /// Which attempt that is.
    pub attempt: u32,
    /// Where it stands.
    pub state: State,
}

/// Where the record stands, with its moments in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "what was answered, by whom, and moments")]
pub enum State {
    /// Presumed alive until then: the end of its lease, or its deadline.
    Running { until: u64 },
    /// Done.
    Completed { said: Option<Said>, by: By, expires_at: u64 },
    /// May run again.
    Retryable { expires_at: u64 },
    /// In doubt.
    Unknown,
}

/// Who completed a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The attempt itself.
    Attempt,
    /// Who found out later.
    Verdict,
}

/// What is broken in a history; nothing where the promise was kept.
pub fn check(history: &History) -> Vec<Violation> {
    let mut checker = Checker::new(history);
    for (index, event) in history.events.iter().enumerate() {
        (checker.index, checker.now) = (index, event.at);
        checker.see(&event.what);
    }
    checker.end();
    checker.violations
}

/// What is known so far.
struct Checker<'a> {
    history: &'a History,
    watches_store: bool,
    index: usize,
    now: u64,
    healed_at: Option<u64>,
    /// Every use of the key; the last one is the present.
    uses: Vec<Use>,
    attempts: BTreeMap<u32, Attempt>,
    requests: BTreeMap<u32, Request>,
    /// When the effect took place, in any use.
    executed_at: Vec<u64>,
    violations: Vec<Violation>,
}

/// One use of the key.
#[derive(Default)]
struct Use {
    /// The body of the request that has the key.
    owner: Option<u32>,
    /// Where in the history that was first seen.
    owned_at: Option<usize>,
    /// Which tokens took effect.
    executed: Vec<u32>,
    record: Option<Written>,
    was_running: bool,
    was_unknown: bool,
    completed: Option<Completed>,
    /// Since the record last became unknown.
    verdicts: Vec<Verdict>,
    /// Where in the history a client was first told that the answer is stored.
    told_at: Option<usize>,
}

#[derive(Clone)]
struct Completed {
    said: Option<Said>,
    at: u64,
    expires_at: u64,
}

struct Attempt {
    /// Which use it belongs to.
    use_index: usize,
    is_reserved: bool,
    has_begun: bool,
    began_at: u64,
    /// Begun after the faults had stopped: nothing is an excuse any more.
    is_calm: bool,
    is_released: bool,
    is_ruled_out: bool,
    ended: Vec<(Meaning, Option<Said>)>,
    executed: Vec<Said>,
}

struct Request {
    body: u32,
    sent_at: u64,
    sent_index: usize,
    use_index: usize,
    tokens: Vec<u32>,
    is_open: bool,
    is_told_reused: bool,
    /// The use it was last seen in.
    use_last: usize,
}

impl<'a> Checker<'a> {
    fn new(history: &'a History) -> Self {
        let watches_store = history.events.iter().any(|event| matches!(event.what, What::Wrote(_)));
        Self {
            history,
            watches_store,
            index: 0,
            now: 0,
            healed_at: None,
            uses: vec![Use::default()],
            attempts: BTreeMap::new(),
            requests: BTreeMap::new(),
            executed_at: Vec::new(),
            violations: Vec::new(),
        }
    }

    fn see(&mut self, what: &What) {
        match what {
            What::Sent { request, body } => self.sent(*request, *body),
            What::Answered { request, answer } => self.answered(*request, answer),
            What::HungUp { request } => self.close(*request),
            What::GaveUp { request } => self.broken(Broken::NeverServed, format!("request {request}")),
            What::Began { request, token } => self.began(*request, *token),
            What::Executed { token, said } => self.executed(*token, said),
            What::Ended { token, meaning, said } => self.ended(*token, *meaning, said.clone()),
            What::Ruled(verdict) => self.ruled(verdict),
            What::Wrote(written) => self.wrote(written),
            What::Expired => self.expired(),
            What::Healed => self.healed_at = Some(self.now),
        }
    }

    fn sent(&mut self, request: u32, body: u32) {
        let sent = Request {
            body,
            sent_at: self.now,
            sent_index: self.index,
            use_index: self.uses.len() - 1,
            tokens: Vec::new(),
            is_open: true,
            is_told_reused: false,
            use_last: self.uses.len() - 1,
        };
        self.requests.insert(request, sent);
    }

    fn close(&mut self, request: u32) {
        if let Some(request) = self.requests.get_mut(&request) {
            request.is_open = false;
        }
    }

    fn expired(&mut self) {
        let now = self.now;
        let may_expire = match self.present().record.as_ref().map(|record| &record.state) {
            Some(State::Completed { expires_at, .. } | State::Retryable { expires_at }) => now >= *expires_at,
            Some(State::Running { .. } | State::Unknown) => false,
            None => !self.watches_store,
        };
        if !may_expire {
            self.broken(Broken::DeletedAlive, format!("{:?}", self.present().record));
        }
        self.uses.push(Use::default());
    }

    /// What holds once nothing more happens.
    fn end(&mut self) {
        self.refused_as_reused();
        if !self.history.is_over {
            return;
        }
        let open: Vec<_> =
            self.requests.iter().filter(|(_, request)| request.is_open).map(|(id, _)| *id).collect();
        for request in open {
            self.broken(Broken::Unanswered, format!("request {request}"));
        }
        self.swept_in_time();
        // Local work that has committed is completed: its answer is stored, and nobody waits for its handler.
        let has_committed =
            |attempt: &Attempt| self.history.effects == Effects::Local && !attempt.executed.is_empty();
        let is_abandoned =
            |attempt: &Attempt| attempt.is_calm && attempt.ended.is_empty() && !has_committed(attempt);
        let abandoned = self.attempts.iter().filter(|(_, attempt)| is_abandoned(attempt));
        for token in abandoned.map(|(token, _)| *token).collect::<Vec<_>>() {
            self.broken(Broken::Abandoned, format!("token {token}"));
        }
        if let Some(Written { state: State::Running { until }, token, .. }) = &self.present().record {
            let says = format!("token {token} was presumed alive until {until}");
            self.broken(Broken::NeverEnded, says);
        }
    }

    fn present(&self) -> &Use {
        self.uses.last().expect("there is always a present use")
    }

    fn present_mut(&mut self) -> &mut Use {
        self.uses.last_mut().expect("there is always a present use")
    }

    /// Whether only a verdict, or the attempt itself, can release a record that is in doubt.
    fn is_doubtful(&self) -> bool {
        matches!(self.history.effects, Effects::Queryable | Effects::Opaque)
    }

    fn broken(&mut self, name: Broken, says: String) {
        self.violations.push(Violation { name, at: self.now, index: self.index, says });
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>7} ms  {:?}", self.at, self.what)
    }
}

//! What is stored for one (scope, key).
//!
//! A record is read as [`Record`], with moments the store has stamped, and written as [`Draft`], whose moments may
//! still count from the write itself ([`When`]). [`Draft::stamp`] turns one into the other, so the only clock that
//! ever judges a lease or an expiry is the store's.
//!
//! ```text
//!                 claim                      completed
//!     pending ───────────► running ─────────────────────────► completed
//!                          ▲     │ did not run                  ▲
//!      next request, worker│     ▼                              │ happened
//!                       retryable ◄──────────────────────── unknown
//!                                       did not happen          ▲
//!                                running ── lapsed, lost ───────┘
//! ```
//!
//! The rules of those arrows are in [`crate::machine`], and nowhere else.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use sha2::{Digest, Sha256};

use crate::fingerprint::Fingerprint;
use crate::history::History;
use crate::key::Key;
use crate::scope::Scope;
use crate::time::{Due, Timestamp, When};

/// All that is stored for one (scope, key), as a store showed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<T = Timestamp> {
    /// The namespace the key is unique in.
    pub scope: Scope,
    /// The client's key.
    pub key: Key,
    /// The route the request came in on, for operators.
    pub route: Option<Arc<str>>,
    /// Digest of the request that reserved the key.
    pub fingerprint: Fingerprint,
    /// What was promised when the key was reserved; later settings do not change it.
    pub terms: Terms,
    /// The number of the last attempt; 0 while none has begun.
    pub attempt: u32,
    /// The token of the last attempt.
    pub token: Token,
    /// An attempt that was lost may have reached downstream: running again is safe only while that remembers the key.
    pub relies_on_memory: bool,
    /// When this use of the key was first reserved.
    pub created_at: T,
    /// When the last attempt was reserved; its deadline counts from here.
    pub began_at: T,
    /// When the record was last written.
    pub written_at: T,
    /// How far a handler made of phases has come.
    pub progress: Progress,
    /// A verdict that came while the attempt still ran; it counts if the attempt is lost.
    pub evidence: Option<Box<Evidence>>,
    /// Accepted work that has begun and not ended: its request is stored, and workers run it. A pending record has this in
    /// its state.
    pub accepted: Option<Accepted>,
    /// What happened to this use of the key that is out of the ordinary.
    pub history: History,
    /// The trace that the last attempt was part of, where it was traced: a replay links to it.
    pub trace: Option<TraceId>,
    /// Where the record stands.
    pub state: State<T>,
}

/// A record about to be written: its moments may count from the write. It is boxed from the rule that makes it to the
/// engine that writes it: several hundred bytes, which each step in between would move.
pub type Draft = Record<When>;

/// Where a record stands. Only [`crate::machine`] compares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State<T = Timestamp> {
    /// Accepted, to be run in the background; no attempt has begun.
    Pending {
        /// When it is given up with a 408.
        expires_at: T,
    },
    /// An attempt holds the lease.
    Running {
        /// When the attempt is no longer presumed alive.
        lapses_at: T,
    },
    /// The work is done.
    Completed {
        /// The answer; none where it was too large, a stream, or known only by a verdict.
        response: Option<Arc<Response>>,
        /// Who said so.
        by: Source,
        /// When the record may be deleted, and its key used anew.
        expires_at: T,
    },
    /// Nothing stands in the way of another attempt.
    Retryable {
        /// What the client is told to wait.
        retry_after: Option<Duration>,
        /// When the record may be deleted, and its key used anew. One that stopped at a recovery point is not deleted then,
        /// but flagged.
        expires_at: T,
        /// Since when it is flagged: it stopped at a recovery point, and nobody came back within its retention. A person
        /// decides; a retry with its key still goes on behind the recovery point.
        stuck_since: Option<T>,
    },
    /// Nobody knows whether the work ran.
    Unknown {
        /// Why nobody knows.
        reason: Reason,
        /// Since when.
        since: T,
        /// How the reconciler has fared so far.
        asking: Asking,
        /// When it asks next; none where there is no probe, or once it has given up.
        ask_at: Option<T>,
        /// Given up: a person decides. Later verdicts still apply.
        dead_letter: bool,
    },
}

/// A trace of W3C Trace Context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(pub [u8; 16]);

/// Accepted work that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Until when it is run again where it did not run: its retention, counted from the acceptance.
    pub until: Timestamp,
    /// The longest pause between two attempts.
    pub pause_max: Duration,
}

/// How the reconciler has fared with an unknown record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asking {
    /// How often the probe answered that it does not know.
    pub answers: u32,
    /// How often in a row the probe gave no usable answer.
    pub failures: u32,
    /// Since when it counts, where an operator had it begin anew; otherwise since the record became unknown.
    pub anew_at: Option<Timestamp>,
}

/// What was promised to the attempts of a record, written down when its key was reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// What the work touches.
    pub effects: Effects,
    /// How long an attempt is presumed alive after its last renewal.
    pub lease: Duration,
    /// How long an attempt may take, renewed or not.
    pub deadline: Duration,
    /// How long after the deadline an effect may still turn up downstream.
    pub horizon: Duration,
    /// How long a finished record is kept.
    pub retention: Duration,
    /// Keyed effects: how long downstream surely remembers the key.
    pub downstream_retention: Duration,
    /// How long after the outcome became unknown the probe is first asked; none where there is no probe.
    pub reconcile_first: Option<Duration>,
}

/// What the work touches, and so what may be done when nobody knows whether it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effects {
    /// Every write commits in one transaction with the completion: run it again.
    Local,
    /// Downstream deduplicates the key it is given: run it again while it remembers.
    Keyed,
    /// Downstream can be asked: ask.
    Queryable,
    /// Neither: a person decides.
    Opaque,
}

/// How far a handler made of phases has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The last phase that committed.
    pub recovery_point: Option<Arc<str>>,
    /// The phase that is calling a foreign system right now, or was when the last attempt ended.
    pub calling: Option<Calling>,
    /// What a verdict found that the phase at the recovery point had answered.
    pub found: Option<Arc<Response>>,
}

/// A foreign call under way: committed before the call is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calling {
    /// The phase that calls.
    pub phase: Arc<str>,
    /// What the call touches.
    pub effects: Effects,
}

/// A stored answer. It is shared, never copied: by the attempt's outcome, the draft, the record and every replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The HTTP status.
    pub status: u16,
    /// The headers that are replayed, in order.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The body, byte for byte.
    pub body: Bytes,
}

/// Who brought the truth about a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The attempt itself.
    Attempt,
    /// A probe of ours.
    Probe,
    /// A signed webhook.
    Webhook,
    /// A person.
    Operator,
    /// The sweeper, for accepted work that nobody ran in time.
    Sweeper,
    /// The caller, for accepted work that it cancelled.
    Caller,
}

/// Why nobody knows whether the work ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The lease lapsed: the node died, was paused, or was cut off.
    Lapsed,
    /// The attempt reached its deadline.
    Deadline,
    /// The handler panicked.
    Panicked,
    /// The connection to the service broke after the request was sent.
    ConnectionLost,
    /// The answer broke off or could not be read.
    AnswerBroken,
    /// The answer's status means doubt.
    Status(u16),
    /// The handler said so.
    Said,
    /// The node stopped before the attempt ended.
    Stopped,
    /// Downstream may have forgotten the key, so it cannot be sent again.
    DownstreamForgot,
    /// The handler's phases are not those that the record stopped at: it was changed while the record was under way.
    Changed,
}

/// A verdict that came while the attempt still ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// What was found.
    pub verdict: Verdict,
    /// By whom.
    pub by: Source,
    /// When it came, by the store's clock.
    pub at: Timestamp,
    /// Which attempt ran then.
    pub attempt: u32,
    /// The webhook's name in the settings.
    pub source: Option<Arc<str>>,
}

/// What reconciling found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The work happened; with its answer where that is known.
    Happened(Option<Arc<Response>>),
    /// The work did not happen.
    DidNotHappen {
        /// It never will either: downstream refuses this token from now on.
        never_will: bool,
    },
    /// Nobody can say yet.
    StillUnknown,
}

/// 128 random bits minted for one attempt. They fence everything it writes and are never used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(pub [u8; 16]);

/// Changes with every write of a record, and never comes back: minted at random for each write, so that no old one fits
/// a record that was deleted and made anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Revision(pub u64);

/// The primary key of a record: SHA-256 of its scope and key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(pub [u8; 32]);

/// What a store showed: a record, its revision, and the store's own now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The record.
    pub record: Arc<Record>,
    /// Its revision.
    pub revision: Revision,
    /// The store's clock when it looked.
    pub now: Timestamp,
}

impl Effects {
    /// All four.
    pub const ALL: [Self; 4] = [Self::Local, Self::Keyed, Self::Queryable, Self::Opaque];

    /// The name, as settings, columns and the API have it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Keyed => "keyed",
            Self::Queryable => "queryable",
            Self::Opaque => "opaque",
        }
    }

    /// The effects of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|effects| effects.as_str() == name)
    }
}

impl Source {
    /// All six.
    pub const ALL: [Self; 6] =
        [Self::Attempt, Self::Probe, Self::Webhook, Self::Operator, Self::Sweeper, Self::Caller];

    /// The name, as columns, metrics and the API have it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Attempt => "attempt",
            Self::Probe => "probe",
            Self::Webhook => "webhook",
            Self::Operator => "operator",
            Self::Sweeper => "sweeper",
            Self::Caller => "caller",
        }
    }

    /// The source of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|source| source.as_str() == name)
    }
}

impl Reason {
    /// All that have no status.
    const PLAIN: [Self; 9] = [
        Self::Lapsed,
        Self::Deadline,
        Self::Panicked,
        Self::ConnectionLost,
        Self::AnswerBroken,
        Self::Said,
        Self::Stopped,
        Self::DownstreamForgot,
        Self::Changed,
    ];

    /// The name, as columns and the API have it; a status follows its name.
    const fn name(self) -> &'static str {
        match self {
            Self::Lapsed => "lapsed",
            Self::Deadline => "deadline",
            Self::Panicked => "panicked",
            Self::ConnectionLost => "connection_lost",
            Self::AnswerBroken => "answer_broken",
            Self::Status(_) => "status_",
            Self::Said => "said",
            Self::Stopped => "stopped",
            Self::DownstreamForgot => "downstream_forgot",
            Self::Changed => "changed",
        }
    }

    /// The reason in words, for people.
    pub fn says(self) -> String {
        match self {
            Self::Lapsed => "the node that ran it died, was paused, or was cut off from the store".to_owned(),
            Self::Deadline => "the attempt did not end before its deadline".to_owned(),
            Self::Panicked => "the handler panicked".to_owned(),
            Self::ConnectionLost => "the connection broke after the request was sent".to_owned(),
            Self::AnswerBroken => "the service's answer broke off, or could not be read".to_owned(),
            Self::Status(status) => format!("the service answered {status}, which leaves the outcome unknown"),
            Self::Said => "the service reported that the outcome is unknown".to_owned(),
            Self::Stopped => "the node was stopped before the attempt had ended".to_owned(),
            Self::DownstreamForgot => {
                "the attempt was lost, and downstream may no longer remember its key, so it cannot be sent again"
                    .to_owned()
            }
            Self::Changed => {
                "the attempt stopped at a recovery point, and the handler's phases have changed since; run the release that \
                 began it, or settle it"
                    .to_owned()
            }
        }
    }

    /// The reason of that name.
    pub fn named(name: &str) -> Option<Self> {
        let plain = Self::PLAIN.into_iter().find(|reason| reason.name() == name);
        let status = || name.strip_prefix(Self::Status(0).name())?.parse().ok().map(Self::Status);
        // One spelling for a reason: no sign, no leading zero.
        plain.or_else(status).filter(|reason| reason.to_string() == name)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "{}{status}", self.name()),
            Self::Lapsed
            | Self::Deadline
            | Self::Panicked
            | Self::ConnectionLost
            | Self::AnswerBroken
            | Self::Said
            | Self::Stopped
            | Self::DownstreamForgot
            | Self::Changed => f.write_str(self.name()),
        }
    }
}

impl Record {
    /// This record as a draft that changes nothing yet but the moment of writing.
    pub fn draft(&self) -> Box<Draft> {
        Box::new(Record {
            scope: self.scope.clone(),
            key: self.key.clone(),
            route: self.route.clone(),
            fingerprint: self.fingerprint.clone(),
            terms: self.terms,
            attempt: self.attempt,
            token: self.token,
            relies_on_memory: self.relies_on_memory,
            created_at: When::At(self.created_at),
            began_at: When::At(self.began_at),
            written_at: When::WRITE,
            progress: self.progress.clone(),
            evidence: self.evidence.clone(),
            accepted: self.accepted,
            history: self.history.clone(),
            trace: self.trace,
            state: self.state.clone().map(When::At),
        })
    }

    /// When the last attempt must have ended, renewed or not.
    pub fn deadline_at(&self) -> Timestamp {
        self.began_at.plus(self.terms.deadline)
    }

    /// What a lost attempt would leave behind: the effects of the call under way, else those of the route.
    pub fn effects(&self) -> Effects {
        self.progress.calling.as_ref().map_or(self.terms.effects, |calling| calling.effects)
    }
}

impl Draft {
    /// The record as it stands once the store has written it.
    pub fn stamp(self, written_at: Timestamp) -> Record {
        Record {
            scope: self.scope,
            key: self.key,
            route: self.route,
            fingerprint: self.fingerprint,
            terms: self.terms,
            attempt: self.attempt,
            token: self.token,
            relies_on_memory: self.relies_on_memory,
            created_at: self.created_at.stamp(written_at),
            began_at: self.began_at.stamp(written_at),
            written_at: self.written_at.stamp(written_at),
            progress: self.progress,
            evidence: self.evidence,
            accepted: self.accepted,
            history: self.history,
            trace: self.trace,
            state: self.state.map(|when| when.stamp(written_at)),
        }
    }

    /// When the record wants attention next.
    pub fn due(&self) -> Due {
        crate::machine::due(self)
    }

    /// Until when the row must stand if nobody writes it again; none while age alone may not delete it.
    pub fn expires(&self) -> Option<When> {
        crate::machine::expires(self)
    }
}

impl<T> State<T> {
    /// The same state with its moments told another way.
    pub fn map<U>(self, moment: impl Fn(T) -> U) -> State<U> {
        match self {
            Self::Pending { expires_at } => State::Pending { expires_at: moment(expires_at) },
            Self::Running { lapses_at } => State::Running { lapses_at: moment(lapses_at) },
            Self::Completed { response, by, expires_at } => {
                State::Completed { response, by, expires_at: moment(expires_at) }
            }
            Self::Retryable { retry_after, expires_at, stuck_since } => State::Retryable {
                retry_after,
                expires_at: moment(expires_at),
                stuck_since: stuck_since.map(moment),
            },
            Self::Unknown { reason, since, asking, ask_at, dead_letter } => State::Unknown {
                reason,
                since: moment(since),
                asking,
                ask_at: ask_at.map(moment),
                dead_letter,
            },
        }
    }

    /// The state's name, as operators and clients see it.
    pub fn name(&self) -> StateName {
        match self {
            Self::Pending { .. } => StateName::Pending,
            Self::Running { .. } => StateName::Running,
            Self::Completed { .. } => StateName::Completed,
            Self::Retryable { .. } => StateName::Retryable,
            Self::Unknown { .. } => StateName::Unknown,
        }
    }
}

/// The five states by name: what engines keep in a column for operators to search by, never to judge by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StateName {
    /// See [`State::Pending`].
    Pending,
    /// See [`State::Running`].
    Running,
    /// See [`State::Completed`].
    Completed,
    /// See [`State::Retryable`].
    Retryable,
    /// See [`State::Unknown`].
    Unknown,
}

impl StateName {
    /// All five.
    pub const ALL: [Self; 5] =
        [Self::Pending, Self::Running, Self::Completed, Self::Retryable, Self::Unknown];

    /// The state of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }

    /// The name in lower case.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Retryable => "retryable",
            Self::Unknown => "unknown",
        }
    }
}

/// Some of the five states, for listings. Which states a rule is about is [`crate::machine`]'s to say; an engine only
/// carries the set to where it searches.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct StateSet(u8);

impl StateSet {
    /// All five.
    pub const ALL: Self = Self::of(&StateName::ALL);

    /// These states.
    pub const fn of(names: &[StateName]) -> Self {
        let (mut bits, mut place) = (0, 0);
        while place < names.len() {
            bits |= 1 << names[place] as u8;
            place += 1;
        }
        Self(bits)
    }

    /// Whether a state is among them.
    pub const fn contains(self, name: StateName) -> bool {
        self.0 & (1 << name as u8) != 0
    }

    /// Each of them.
    pub fn iter(self) -> impl Iterator<Item = StateName> {
        StateName::ALL.into_iter().filter(move |name| self.contains(*name))
    }
}

impl From<StateName> for StateSet {
    fn from(name: StateName) -> Self {
        Self::of(&[name])
    }
}

impl fmt::Debug for StateSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl fmt::Display for StateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The first twelve hex digits of a record's id: what log lines call a record. Searching for them finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdShort([u8; 6]);

impl fmt::Display for IdShort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Id {
    /// Its beginning, for log lines.
    pub fn short(&self) -> IdShort {
        let [a, b, c, d, e, f, ..] = self.0;
        IdShort([a, b, c, d, e, f])
    }

    /// The id of `key` in `scope`.
    pub fn of(scope: &Scope, key: &Key) -> Self {
        // The scope is of fixed length, so nothing can be shifted between the two.
        Self(Sha256::new().chain_update(scope.digest()).chain_update(key.as_str()).finalize().into())
    }
}

/// A key for a foreign call named `call`: the same on every attempt of this (scope, key), and nobody else's.
pub fn downstream_key(scope: &Scope, key: &Key, call: &str) -> String {
    let key_bytes = u64::try_from(key.as_str().len()).expect("a key's length fits 64 bits");
    let digest = Sha256::new()
        .chain_update(b"onlyonce downstream key 1")
        .chain_update(scope.digest())
        .chain_update(key_bytes.to_be_bytes())
        .chain_update(key.as_str())
        .chain_update(call)
        .finalize();
    // Half the digest is plenty, and short enough for every provider's limit on keys.
    half(&digest.into()).to_string()
}

/// The token of one foreign call of an attempt. A webhook that names it speaks of that call and of no other: not of one before
/// or after it, and not of the same call as a later attempt makes it.
pub fn call_token(attempt: Token, call: &str) -> Token {
    let digest = Sha256::new()
        .chain_update(b"onlyonce call token 1")
        .chain_update(attempt.0)
        .chain_update(call)
        .finalize();
    half(&digest.into())
}

fn half(digest: &[u8; 32]) -> Token {
    let mut half = [0; 16];
    half.copy_from_slice(&digest[..16]);
    Token(half)
}

/// What identifies one attempt to the outside: `<id>.<token>` in hex. A probe, a webhook or the SQL function is given
/// this and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    /// The record.
    pub id: Id,
    /// The attempt.
    pub token: Token,
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.id, self.token)
    }
}

impl std::str::FromStr for Handle {
    type Err = MalformedHandle;

    fn from_str(text: &str) -> Result<Self, MalformedHandle> {
        let (id, token) = text.split_once('.').ok_or(MalformedHandle)?;
        Ok(Self {
            id: Id(unhex(id).ok_or(MalformedHandle)?),
            token: Token(unhex(token).ok_or(MalformedHandle)?),
        })
    }
}

/// The text is no handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedHandle;

impl fmt::Display for MalformedHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "not a handle: expected 64 hex digits, a dot and 32 hex digits, as sent in Onlyonce-Token",
        )
    }
}

impl std::error::Error for MalformedHandle {}

impl Token {
    /// The id of the span in which this attempt's work is traced. The token does not follow from it.
    pub fn span_id(&self) -> [u8; 8] {
        let digest = Sha256::new().chain_update(b"onlyonce span 1").chain_update(self.0).finalize();
        let mut id = [0; 8];
        id.copy_from_slice(&digest[..8]);
        id
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({self})")
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Id({self})")
    }
}

pub(crate) fn hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = u8::try_from(high * 16 + low).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_survives_being_told() {
        let handle = Handle { id: Id([0xa5; 32]), token: Token([0x0f; 16]) };
        assert_eq!(handle.to_string().parse(), Ok(handle));
    }

    #[test]
    fn every_name_names_itself_and_nothing_else() {
        for state in StateName::ALL {
            assert_eq!(StateName::named(state.as_str()), Some(state));
            assert!(StateSet::ALL.contains(state));
            assert_eq!(StateSet::from(state).iter().collect::<Vec<_>>(), [state]);
        }
        for effects in Effects::ALL {
            assert_eq!(Effects::named(effects.as_str()), Some(effects));
        }
        for source in Source::ALL {
            assert_eq!(Source::named(source.as_str()), Some(source));
        }
        for reason in Reason::PLAIN.into_iter().chain([Reason::Status(504), Reason::Status(0)]) {
            assert_eq!(Reason::named(&reason.to_string()), Some(reason));
        }
        for name in ["", "Running", "status_", "status_+504", "status_0504", "status_65536", "status"] {
            assert_eq!((StateName::named(name), Reason::named(name)), (None, None), "{name:?}");
        }
    }

    /// W04: services in other languages compute it too (docs/guide.md, "Choosing effects"), so it never changes.
    #[test]
    fn a_downstream_key_is_the_one_that_other_languages_compute() {
        let scope = unhex::<32>("a1bd6f6ec375d44a2ce879d9f944691928017227eef8e3cdda125ecfb0fbd0a3").unwrap();
        let (scope, key) = (Scope::stored(scope, None), Key::stored("k-same"));
        assert_eq!(downstream_key(&scope, &key, "charge"), "77b5d8a7da73180e7597a99145c60c8b");
    }

    /// W04: a token that was given to a provider has to be understood by later releases.
    #[test]
    fn the_token_of_a_call_is_its_own_and_stays_the_same() {
        let attempt = Token([1; 16]);
        assert_eq!(call_token(attempt, "charge").to_string(), "ae10c06b87aefa3014fd6f7ef9127cd0");
        let others = [attempt, call_token(attempt, "ship"), call_token(Token([2; 16]), "charge")];
        assert!(!others.contains(&call_token(attempt, "charge")));
    }

    #[test]
    fn a_malformed_handle_is_refused() {
        let good = Handle { id: Id([1; 32]), token: Token([2; 16]) }.to_string();
        for text in [
            "",
            ".",
            "abc",
            &good[1..],
            &good.replace('.', ":"),
            &good.replace('0', "g"),
            &good.replace('1', "é"),
        ] {
            assert_eq!(text.parse::<Handle>(), Err(MalformedHandle), "{text:?}");
        }
    }
}

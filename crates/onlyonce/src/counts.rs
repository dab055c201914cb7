//! What is counted, for whoever watches. The labels are routes, decisions and operations, never keys.
//!
//! | metric | what it counts |
//! |---|---|
//! | `onlyonce_requests_total{route,decision}` | Requests with a key, or without one where it is required; each once. |
//! | `onlyonce_observed_total{route,decision}` | Under `mode = "observe"`: what enforcing would have decided. |
//! | `onlyonce_limited_total{limit}` | Requests, and status requests for a key, refused because of a limit. |
//! | `onlyonce_added_latency_seconds{decision}` | What was added to the time the work itself took. |
//! | `onlyonce_completed_outside_total{route}` | Local work answered with a 2xx that its own transaction did not complete. |
//! | `onlyonce_accepted_total` | Requests that were accepted, to be run by a worker. |
//! | `onlyonce_unknown_opened_total` | Records that became unknown. |
//! | `onlyonce_superseded_total` | Attempts that ended after a later attempt had begun. |
//! | `onlyonce_lapsed_total`, `onlyonce_reaped_total` | What the sweeper settled, what the reaper deleted. |
//! | `onlyonce_reconcile_total{result,by}` | Questions scheduled, records settled and by whom, probes that failed. |
//! | `onlyonce_probes_total{result}`, `onlyonce_probe_seconds` | How probes answered, and what that took. |
//! | `onlyonce_contradictions_total` | Statements that contradict a settled record. |
//! | `onlyonce_admin_changes_total{action,result}` | What operators ordered. |
//! | `onlyonce_outbox_total{result,destination}` | Deliveries by their end, and what operators did to messages. |
//! | `onlyonce_undecryptable_total` | Reads of records or messages whose encryption key this node does not have. |
//! | `onlyonce_cache_total{result}` | Looks into the cache in front of the store: hit, missed, disbelieved, failed. |
//! | `onlyonce_store_seconds{operation}`, `onlyonce_store_errors_total{operation}` | How the store answered. |
//! | `onlyonce_store_failovers_total` | Redis: a replica was found to have taken over from its master. |
//!
//! A handle is looked up once and kept, so install the recorder before the first request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use http::Method;
use metrics::{Counter, Histogram, counter, histogram};
use onlyonce_core::record::{Source, Verdict};
use onlyonce_core::refusal::Refusal;

use crate::probe::{Answer, Failure};
use crate::traffic::Tally;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Executed,
    /// A later attempt of the same request.
    Retried,
    Replayed,
    /// Stored, to be run by a worker.
    Accepted,
    InProgress,
    KeyReused,
    Unknown,
    Missing,
    Invalid,
    ScopeMissing,
    Limited,
    NotStored,
    Expired,
    StoreUnavailable,
    /// Whatever enforcing would have decided.
    Observed,
}

pub(crate) const DECISIONS: usize = 15;

impl Decision {
    pub(crate) const ALL: [Self; DECISIONS] = [
        Self::Executed,
        Self::Retried,
        Self::Replayed,
        Self::Accepted,
        Self::InProgress,
        Self::KeyReused,
        Self::Unknown,
        Self::Missing,
        Self::Invalid,
        Self::ScopeMissing,
        Self::Limited,
        Self::NotStored,
        Self::Expired,
        Self::StoreUnavailable,
        Self::Observed,
    ];

    /// The word, as metrics and the decision log have it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Executed => "executed",
            Self::Retried => "retried",
            Self::Replayed => "replayed",
            Self::Accepted => "accepted",
            Self::InProgress => "in_progress",
            Self::KeyReused => "key_reused",
            Self::Unknown => "unknown",
            Self::Missing => "missing",
            Self::Invalid => "invalid",
            Self::ScopeMissing => "scope_missing",
            Self::Limited => "limited",
            Self::NotStored => "not_stored",
            Self::Expired => "expired",
            Self::StoreUnavailable => "store_unavailable",
            Self::Observed => "observed",
        }
    }

    /// Whether the request came before, and was answered without running anything.
    pub(crate) fn is_duplicate(self) -> bool {
        match self {
            Self::Replayed | Self::InProgress | Self::KeyReused | Self::Unknown | Self::NotStored => true,
            Self::Executed
            | Self::Retried
            | Self::Accepted
            | Self::Missing
            | Self::Invalid
            | Self::ScopeMissing
            | Self::Limited
            | Self::Expired
            | Self::StoreUnavailable
            | Self::Observed => false,
        }
    }

    /// A run, by the number of its attempt.
    pub(crate) fn run(attempt: u32) -> Self {
        if attempt > 1 { Self::Retried } else { Self::Executed }
    }
}

impl From<&Refusal> for Decision {
    fn from(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::KeyMissing { .. } => Self::Missing,
            Refusal::KeyInvalid(_) | Refusal::RequestTooOld(_) => Self::Invalid,
            Refusal::ScopeMissing { .. } => Self::ScopeMissing,
            Refusal::KeyReused { .. } => Self::KeyReused,
            Refusal::InProgress { .. } => Self::InProgress,
            Refusal::OutcomeUnknown { .. } => Self::Unknown,
            Refusal::ResponseNotStored => Self::NotStored,
            Refusal::Expired => Self::Expired,
            Refusal::StoreUnavailable { .. } => Self::StoreUnavailable,
            Refusal::LimitReached { .. } | Refusal::BodyTooLarge { .. } => Self::Limited,
            // How a run ended, and runs are counted as such.
            Refusal::UpstreamUnreachable(_) | Refusal::UpstreamOutcomeUnknown(..) => Self::Executed,
        }
    }
}

/// The counters of one route.
#[derive(Debug)]
pub(crate) struct Counts {
    /// What its requests are counted as: never more words than somebody has written.
    pub(crate) route: Arc<str>,
    requests: [OnceLock<Counter>; DECISIONS],
    observed: [OnceLock<Counter>; DECISIONS],
    outside: OnceLock<Counter>,
    /// When it was last said that local work is completed outside its transaction.
    outside_told: Mutex<Option<Instant>>,
}

/// How often at most it is said that local work is completed outside its transaction.
const OUTSIDE_TOLD_EVERY: Duration = Duration::from_secs(60);

impl Counts {
    fn new(route: Arc<str>) -> Self {
        let [requests, observed] = [(); 2].map(|()| [const { OnceLock::new() }; DECISIONS]);
        Self { route, requests, observed, outside: OnceLock::new(), outside_told: Mutex::default() }
    }

    /// Registers its counters at zero: an alert on a missing counter never fires.
    fn start_at_zero(&self) {
        for decision in Decision::ALL {
            counter!("onlyonce_requests_total", &self.labels(decision)).increment(0);
        }
        counter!("onlyonce_completed_outside_total", "route" => self.route.to_string()).increment(0);
    }

    /// Local work was done, and its own transaction did not complete its record: the service has a fault.
    pub(crate) fn completed_outside(&self) {
        let route = || self.route.to_string();
        kept(&self.outside, || counter!("onlyonce_completed_outside_total", "route" => route()));
        let mut told = self.outside_told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_some_and(|told| told.elapsed() < OUTSIDE_TOLD_EVERY) {
            return;
        }
        *told = Some(Instant::now());
        tracing::warn!(
            route = &*self.route,
            "local work was answered and its record not completed in its own transaction: a crash at the wrong moment would \
             run it twice; complete it in the transaction, and commit before answering"
        );
    }

    /// A request was decided on.
    pub(crate) fn request(&self, decision: Decision) {
        let labels = || self.labels(decision);
        kept(&self.requests[decision as usize], || counter!("onlyonce_requests_total", &labels()));
    }

    /// A request passed, and would have been decided on so.
    pub(crate) fn observed(&self, decision: Decision) {
        self.request(Decision::Observed);
        let labels = || self.labels(decision);
        kept(&self.observed[decision as usize], || counter!("onlyonce_observed_total", &labels()));
    }

    fn labels(&self, decision: Decision) -> [(&'static str, String); 2] {
        [("route", self.route.to_string()), ("decision", decision.name().to_owned())]
    }
}

fn kept(counter: &OnceLock<Counter>, new: impl FnOnce() -> Counter) {
    counter.get_or_init(new).increment(1);
}

/// The counters of every route of a layer.
#[derive(Debug)]
pub(crate) struct ByRoute {
    /// Where the layer is one route's.
    only: Option<Arc<Counts>>,
    known: RwLock<HashMap<Arc<str>, Arc<Counts>>>,
    /// What a router has named, by method and pattern: looked at without a lock, and put into words once.
    named: Box<[OnceLock<Named>]>,
}

/// A pattern of a router's, under one method.
#[derive(Debug)]
struct Named {
    method: Method,
    pattern: Box<str>,
    route: Arc<str>,
    counts: Arc<Counts>,
}

/// A router has no more patterns than somebody has written; what finds no place is put into words for each request.
const NAMED_MAX: usize = 64;
/// In how many places a pattern is looked for.
const PLACES: usize = 8;

/// What paths are counted as that no router has named: a label must not grow with the traffic.
const UNNAMED: &str = "other";

impl ByRoute {
    pub(crate) fn only(route: Arc<str>) -> Self {
        let counts = Counts::new(route);
        counts.start_at_zero();
        Self { only: Some(Arc::new(counts)), ..Self::default() }
    }

    /// The route that a router's pattern makes with a method, and its counters.
    pub(crate) fn named(&self, method: &Method, pattern: &str) -> (Arc<str>, Arc<Counts>) {
        let first =
            pattern.bytes().fold(method.as_str().len(), |sum, byte| sum * 31 % 8191 + usize::from(byte));
        for place in first..first + PLACES {
            let named = self.named[place % NAMED_MAX].get_or_init(|| self.name(method, pattern));
            if named.method == *method && *named.pattern == *pattern {
                return (named.route.clone(), named.counts.clone());
            }
        }
        let named = self.name(method, pattern);
        (named.route, named.counts)
    }

    fn name(&self, method: &Method, pattern: &str) -> Named {
        let route: Arc<str> = format!("{method} {pattern}").into();
        let counts = self.of(Some(&route));
        Named { method: method.clone(), pattern: pattern.into(), route, counts }
    }

    /// The counters of `route`, which a router has named; of everything it has not, where none.
    pub(crate) fn of(&self, route: Option<&Arc<str>>) -> Arc<Counts> {
        if let Some(only) = &self.only {
            return only.clone();
        }
        let name = route.map_or(UNNAMED, |route| route);
        if let Some(counts) = self.known.read().unwrap_or_else(PoisonError::into_inner).get(name) {
            return counts.clone();
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let name: Arc<str> = name.into();
        known.entry(name.clone()).or_insert_with(|| Arc::new(Counts::new(name))).clone()
    }
}

impl Default for ByRoute {
    fn default() -> Self {
        let named = (0..NAMED_MAX).map(|_| OnceLock::new()).collect();
        Self { only: None, known: RwLock::default(), named }
    }
}

/// A request was refused: counted where that is because of a limit.
pub(crate) fn limited(refusal: &Refusal) {
    if let Refusal::LimitReached { limit, .. } = refusal {
        counter!("onlyonce_limited_total", "limit" => limit.as_str()).increment(1);
    }
}

/// A record became unknown.
pub(crate) fn unknown_opened() {
    counter!("onlyonce_unknown_opened_total").increment(1);
}

/// A request was accepted.
pub(crate) fn accepted() {
    counter!("onlyonce_accepted_total").increment(1);
}

/// An attempt ended after a later one had begun.
pub(crate) fn superseded() {
    counter!("onlyonce_superseded_total").increment(1);
}

/// A question was scheduled, a record settled, or a probe failed.
pub(crate) fn reconcile(result: &'static str, by: Source) {
    counter!("onlyonce_reconcile_total", "result" => result, "by" => by.as_str()).increment(1);
}

/// A probe was asked.
pub(crate) fn probe(answered: &Result<Answer, Failure>, took: Duration) {
    if answered.is_err() {
        reconcile("failed", Source::Probe);
    }
    counter!("onlyonce_probes_total", "result" => verdict(answered)).increment(1);
    histogram!("onlyonce_probe_seconds").record(took);
}

/// What a probe answered, in a word.
pub(crate) fn verdict(answered: &Result<Answer, Failure>) -> &'static str {
    match answered.as_ref().map(|answer| &answer.verdict) {
        Ok(Verdict::Happened(_)) => "happened",
        Ok(Verdict::DidNotHappen { .. }) => "did_not_happen",
        Ok(Verdict::StillUnknown) => "unknown",
        Err(_) => "failed",
    }
}

/// A statement disagrees with a settled record.
pub(crate) fn contradiction() {
    counter!("onlyonce_contradictions_total").increment(1);
}

/// Something stored is encrypted with a key that this node does not have.
pub(crate) fn undecryptable() {
    counter!("onlyonce_undecryptable_total").increment(1);
}

/// How a look into the cache in front of the store ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Looked {
    /// It answered the request.
    Hit,
    Missed,
    /// What was there may not be used: of another epoch, expired, altered.
    Disbelieved,
    /// It did not answer.
    Failed,
}

impl Looked {
    const ALL: [Self; 4] = [Self::Hit, Self::Missed, Self::Disbelieved, Self::Failed];

    fn name(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Missed => "missed",
            Self::Disbelieved => "disbelieved",
            Self::Failed => "failed",
        }
    }
}

/// The counters of the cache in front of the store.
pub(crate) struct Looks([Counter; 4]);

impl Looks {
    /// Registers them at zero: an alert on a missing counter never fires.
    pub(crate) fn new() -> Self {
        let counters = Looked::ALL.map(|looked| counter!("onlyonce_cache_total", "result" => looked.name()));
        counters.iter().for_each(|counter| counter.increment(0));
        Self(counters)
    }

    pub(crate) fn count(&self, looked: Looked) {
        self.0[looked as usize].increment(1);
    }
}

impl std::fmt::Debug for Looks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Looks").finish_non_exhaustive()
    }
}

/// A delivery ended, or an operator ended a message.
pub(crate) fn message(result: &'static str, destination: &str) {
    let labels = [("result", result.to_owned()), ("destination", destination.to_owned())];
    counter!("onlyonce_outbox_total", &labels).increment(1);
}

/// Registers a destination's counters at zero: an alert on a missing counter never fires.
pub(crate) fn begin_messages(destination: &str) {
    for result in ["delivered", "retried", "dead", "superseded", "discarded", "redriven"] {
        let labels = [("result", result.to_owned()), ("destination", destination.to_owned())];
        counter!("onlyonce_outbox_total", &labels).increment(0);
    }
}

/// An operator ordered something.
pub(crate) fn admin_change(action: &str, result: &str) {
    let labels = [("action", action.to_owned()), ("result", result.to_owned())];
    counter!("onlyonce_admin_changes_total", &labels).increment(1);
}

/// How long things took.
#[derive(Debug, Default)]
pub(crate) struct Times {
    pub(crate) tally: Tally,
    added: [OnceLock<Histogram>; DECISIONS],
    store: [OnceLock<Histogram>; OPERATIONS],
    store_errors: [OnceLock<Counter>; OPERATIONS],
}

/// What is asked of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Load,
    Swap,
    Scan,
    Reap,
    Epoch,
    Outbox,
}

const OPERATIONS: usize = 6;

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Swap => "swap",
            Self::Scan => "scan",
            Self::Reap => "reap",
            Self::Epoch => "epoch",
            Self::Outbox => "outbox",
        }
    }
}

impl Times {
    /// What a request took beyond the work itself.
    pub(crate) fn added(&self, decision: Decision, span: Duration) {
        self.tally.added(span);
        let new = || histogram!("onlyonce_added_latency_seconds", "decision" => decision.name());
        self.added[decision as usize].get_or_init(new).record(span);
    }

    /// What a call of the store took.
    pub(crate) fn store(&self, operation: Operation, span: Duration) {
        let new = || histogram!("onlyonce_store_seconds", "operation" => operation.name());
        self.store[operation as usize].get_or_init(new).record(span);
    }

    /// The store failed.
    pub(crate) fn store_error(&self, operation: Operation) {
        let new = || counter!("onlyonce_store_errors_total", "operation" => operation.name());
        kept(&self.store_errors[operation as usize], new);
    }
}

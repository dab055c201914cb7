//! Asking whether work happened: the probe of a route, and how often it is asked.
//!
//! A [`Probe`] is the user's: a function, or a URL behind the gateway. It is asked about one attempt of one record and says
//! what it knows. What follows from its answer is the machine's to decide; see [`crate::worker`] for who asks.
//!
//! ```
//! use std::sync::Arc;
//! use onlyonce::probe::{Answer, Failure, Probes, Question, asking};
//! use onlyonce::record::Verdict;
//!
//! let bank = asking(|question: Question| async move {
//!     // Ask the bank by the token, or by scope and key: whichever it was given.
//!     match question.key.as_str() {
//!         "paid" => Ok(Answer::new(Verdict::Happened(None))),
//!         "down" => Err(Failure::new("the bank answered 503")),
//!         _ => Ok(Answer::new(Verdict::DidNotHappen { never_will: false })),
//!     }
//! });
//! let probes = Probes::default().with_route("POST /payments", Arc::new(bank));
//! ```

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use http::HeaderValue;
use onlyonce_core::history::{Said, What};
use onlyonce_core::key::Key;
use onlyonce_core::machine::Backoff;
use onlyonce_core::record::{Handle, Record, Seen, Verdict};
use onlyonce_core::scope::Scope;
use onlyonce_core::time::Timestamp;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

/// Says whether work happened.
#[async_trait]
pub trait Probe: Send + Sync + 'static {
    /// Whether the work of this attempt happened. An answer that cannot be relied on is a failure: it decides nothing, and
    /// the probe is asked again later.
    async fn ask(&self, question: Question) -> Result<Answer, Failure>;

    /// The places of those who may ask it at once, where that is bounded: one set for all probes of a host.
    fn places(&self) -> Option<Arc<Semaphore>> {
        None
    }
}

/// What a probe is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The caller's scope.
    pub scope: Scope,
    /// The client's key.
    pub key: Key,
    /// The attempt, as the service was told of it in `Onlyonce-Token`.
    pub handle: Handle,
    /// Its number.
    pub attempt: u32,
    /// The route it came in on.
    pub route: Option<Arc<str>>,
    /// The foreign call that it is about, with the key that was sent downstream; none where it is about the whole work.
    pub call: Option<Asked>,
    /// The header `traceparent` to ask with, where probes are traced.
    pub traceparent: Option<HeaderValue>,
}

/// The foreign call that a probe is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The call's name.
    pub name: Arc<str>,
    /// The key that was sent downstream.
    pub key: Arc<str>,
    /// What the call was told of as its own ([`Call::handle`](crate::phase::Call::handle)).
    pub handle: Handle,
}

/// What a probe found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What it found.
    pub verdict: Verdict,
    /// More about it, for people: `200 in 35 ms`.
    pub detail: Option<Arc<str>>,
}

impl Answer {
    /// An answer without words.
    pub fn new(verdict: Verdict) -> Self {
        Self { verdict, detail: None }
    }
}

/// A probe that gave no usable answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Why, for people.
    pub says: Arc<str>,
}

impl Failure {
    /// A failure for this reason.
    pub fn new(says: impl Into<Arc<str>>) -> Self {
        Self { says: says.into() }
    }
}

/// A probe made of a function.
pub fn asking<F, A>(ask: F) -> impl Probe
where
    F: Fn(Question) -> A + Send + Sync + 'static,
    A: Future<Output = Result<Answer, Failure>> + Send,
{
    Asking(ask)
}

struct Asking<F>(F);

#[async_trait]
impl<F, A> Probe for Asking<F>
where
    F: Fn(Question) -> A + Send + Sync + 'static,
    A: Future<Output = Result<Answer, Failure>> + Send,
{
    async fn ask(&self, question: Question) -> Result<Answer, Failure> {
        (self.0)(question).await
    }
}

/// Which routes have a probe, and how insistently probes are asked.
#[derive(Clone)]
pub struct Probes {
    by_route: HashMap<Arc<str>, Arc<dyn Probe>>,
    by_call: HashMap<(Arc<str>, Arc<str>), Arc<dyn Probe>>,
    /// The pause before the first question of records that were not reserved under one.
    pub first: Duration,
    /// The longest pause.
    pub max: Duration,
    /// After so many answers that said "unknown", or so many of the longest pauses, a record is a dead letter.
    pub tries_max: u32,
    /// How many questions this node asks at once.
    pub at_once: usize,
    /// The longest a probe may take. A question is claimed for twice as long.
    pub time_out: Duration,
}

impl Default for Probes {
    fn default() -> Self {
        Self {
            by_route: HashMap::new(),
            by_call: HashMap::new(),
            first: Duration::from_secs(1),
            max: Duration::from_secs(5 * 60),
            tries_max: 20,
            at_once: 16,
            time_out: Duration::from_secs(10),
        }
    }
}

impl Probes {
    /// The same, with a probe for records of this route.
    #[must_use]
    pub fn with_route(mut self, route: impl Into<Arc<str>>, probe: Arc<dyn Probe>) -> Self {
        self.by_route.insert(route.into(), probe);
        self
    }

    /// The same, with a probe for the [foreign call](crate::Attempt::foreign) of that name on this route. What it says is about
    /// that call alone: "happened", with the call's result as JSON in the answer's body, resumes the work behind it.
    #[must_use]
    pub fn with_call(
        mut self,
        route: impl Into<Arc<str>>,
        call: impl Into<Arc<str>>,
        probe: Arc<dyn Probe>,
    ) -> Self {
        self.by_call.insert((route.into(), call.into()), probe);
        self
    }

    /// The probe of the call under way, or of the record's route where none is.
    pub(crate) fn of(&self, record: &Record) -> Option<&Arc<dyn Probe>> {
        let route = record.route.as_ref()?;
        match &record.progress.calling {
            Some(calling) => self.by_call.get(&(route.clone(), calling.phase.clone())),
            None => self.by_route.get(route),
        }
    }

    /// Whether a route, or a call of it, has a probe.
    pub(crate) fn has(&self, route: &str) -> bool {
        self.by_route.contains_key(route) || self.by_call.keys().any(|(of, _)| &**of == route)
    }

    /// How a record's probe is asked; none where it has none.
    pub(crate) fn backoff(&self, record: &Record) -> Option<Backoff> {
        self.of(record).map(|_| Backoff {
            first: self.first,
            max: self.max,
            tries_max: self.tries_max,
            jitter_permille: rand::random_range(800..=1200),
        })
    }

    /// Whether no route has a probe.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_route.is_empty() && self.by_call.is_empty()
    }
}

impl fmt::Debug for Probes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probes").field("routes", &self.by_route.keys()).finish_non_exhaustive()
    }
}

/// The places of probes that bound how many may ask them at once, for one round of a worker. A probe without a free place for
/// too long is left out for the rest of the round, so that the records of other probes do not wait for it.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// By the address of their semaphore.
    crowded: Mutex<HashSet<usize>>,
}

/// How long a record waits for a place of its probe.
const PLACE_WITHIN: Duration = Duration::from_secs(2);

/// A probe has no free place.
pub(crate) struct Crowded;

impl Places {
    /// Waits for a place, where the probe has a bound.
    pub(crate) async fn wait_for(&self, probe: &dyn Probe) -> Result<Option<OwnedSemaphorePermit>, Crowded> {
        let Some(places) = probe.places() else { return Ok(None) };
        let address = Arc::as_ptr(&places).addr();
        if self.crowded().contains(&address) {
            return Err(Crowded);
        }
        match timeout(PLACE_WITHIN, places.acquire_owned()).await {
            Ok(place) => Ok(place.ok()),
            Err(_) => {
                self.crowded().insert(address);
                Err(Crowded)
            }
        }
    }

    /// Whether no probe at all is asked any more in this round.
    pub(crate) fn are_crowded(&self, probes: &Probes) -> bool {
        let crowded = self.crowded();
        let is_crowded = |places: Option<Arc<Semaphore>>| {
            places.is_some_and(|places| crowded.contains(&Arc::as_ptr(&places).addr()))
        };
        probes.by_route.values().chain(probes.by_call.values()).all(|probe| is_crowded(probe.places()))
    }

    fn crowded(&self) -> MutexGuard<'_, HashSet<usize>> {
        self.crowded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A probe that has failed several times in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    /// The route whose probe it is.
    pub route: Arc<str>,
    /// Since when, by the store's clock.
    pub since: Timestamp,
    /// How often in a row.
    pub failures: u32,
    /// What it said last.
    pub says: Arc<str>,
}

/// After so many failures in a row a probe is called failing.
const FAILING_AFTER: u32 = 5;

/// A failing probe is asked at least once in the longest pause, as long as this node asks it. After twice that and this much
/// it is not known whether it still fails: other nodes have settled what it was asked about, or people have.
const FAILING_FOR: Duration = Duration::from_secs(60);

/// How the probes of this node have answered lately.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// Those that failed last, and when.
    failed: HashMap<Arc<str>, (Failing, Instant)>,
    /// When each was asked what it answered last, by the store's clock.
    answered: HashMap<Arc<str>, Timestamp>,
}

impl Answers {
    pub(crate) fn answered(&mut self, route: &Arc<str>, now: Timestamp) {
        self.failed.remove(route);
        self.answered.insert(route.clone(), now);
    }

    pub(crate) fn failed(&mut self, route: &Arc<str>, now: Timestamp, says: &Arc<str>) {
        let first = || Failing { route: route.clone(), since: now, failures: 0, says: says.clone() };
        let (failing, last) = self.failed.entry(route.clone()).or_insert_with(|| (first(), Instant::now()));
        failing.failures = failing.failures.saturating_add(1);
        failing.says = says.clone();
        *last = Instant::now();
    }

    /// Keeps only those of these routes: the others have no probe any more.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.failed.retain(|route, _| is_kept(route));
        self.answered.retain(|route, _| is_kept(route));
    }

    pub(crate) fn failing(&self, pause_max: Duration) -> Vec<Failing> {
        let is_failing = |(failing, last): &&(Failing, Instant)| {
            failing.failures >= FAILING_AFTER && last.elapsed() <= kept_for(pause_max)
        };
        self.failed.values().filter(is_failing).map(|(failing, _)| failing.clone()).collect()
    }

    /// What the time line of an unknown record says of its probe, where that is failing and this node has not heard it answer
    /// since.
    pub(crate) fn failing_by(&self, seen: &Seen, pause_max: Duration) -> Option<Failing> {
        let route = seen.record.route.as_ref()?;
        let asked = seen.record.history.entries.iter().rev().filter(|entry| entry.what == What::Probe);
        let failed: Vec<_> = asked.take_while(|entry| entry.said == Some(Said::Failed)).collect();
        let (last, first) = (failed.first()?, failed.last()?);
        let failures = u32::try_from(failed.len()).unwrap_or(u32::MAX);
        let is_over = self.answered.get(route).is_some_and(|answered| *answered >= last.at);
        if failures < FAILING_AFTER || is_over || seen.now.since(last.at) > kept_for(pause_max) {
            return None;
        }
        let says = last.detail.clone().unwrap_or_default();
        Some(Failing { route: route.clone(), since: first.at, failures, says })
    }
}

/// For how long nothing is heard of a probe that is still called failing.
fn kept_for(pause_max: Duration) -> Duration {
    pause_max.saturating_mul(2).saturating_add(FAILING_FOR)
}

//! Begin, renew, finish: the machine's answers carried out on a store.
//!
//! The engine decides nothing. It asks [`onlyonce_core::machine`] what may happen, swaps, and where it loses asks again
//! on what is there now. What it adds is what a store cannot: time-outs, a circuit breaker, the cache of completed
//! records, and the table of requests in progress on this node.
//!
//! ```text
//!  begin ── cached? ── replay
//!    │  in progress here? ── refuse, or wait
//!    └─ loop { decide ─ swap } ── run │ replay │ refuse
//!  finish ─ loop { finish ─ swap }, while the token is its own
//! ```

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use onlyonce_core::machine::{self, Decision, Finish, FromCopy, Renewal, Request};
use onlyonce_core::outcome::Outcome;
use onlyonce_core::policy::Policy;
use onlyonce_core::record::{Draft, Handle, Id, Record, Revision, Seen, Source, Token};
use onlyonce_core::refusal::Refusal;
use onlyonce_store::{Change, Error, ErrorKind, Store, Swapped, audit, failpoint};
use tokio::time::{Instant, sleep, timeout};

use crate::breaker::Breaker;
use crate::cache::{Cache, reckoned};
use crate::counts::{self, Operation, Times};
use crate::epoch::Trust;
use crate::events::Events;
use crate::health::Trouble;
use crate::inflight::{InProgress, Inflight, Joined, Known, Leader};
use crate::lease::Lease;
use crate::operate::tell_contradiction;
use crate::probe::{Answers, Probes};
use crate::task::Tasks;
use crate::wait::Watches;
use crate::worker::Rounds;

/// How often a lost swap is tried again on what is there now, before the store is called contended.
const SWAPS_MAX: u32 = 16;
/// The pause between two tries at a store that does not answer.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// What a client is told to wait while the store does not answer.
const STORE_RETRY_AFTER: Duration = Duration::from_secs(1);

/// The machine's answers carried out on a store. Shared by every layer and every tool of a process.
#[derive(Debug)]
pub struct Engine {
    store: Arc<dyn Store>,
    /// Looks and writes have a breaker each: a store that answers looks may still take no writes.
    looks: Breaker,
    writes: Breaker,
    pub(crate) cache: Cache,
    pub(crate) trust: Trust,
    inflight: Inflight,
    pub(crate) watches: Watches,
    pub(crate) tasks: Tasks,
    pub(crate) times: Times,
    pub(crate) trouble: Trouble,
    /// The codes of what was found when the store was last examined.
    pub(crate) findings: Mutex<Vec<&'static str>>,
    probes: RwLock<Arc<Probes>>,
    probe_answers: Mutex<Answers>,
    pub(crate) events: Events,
    pub(crate) rounds: Rounds,
}

/// What became of a request.
pub(crate) enum Begun {
    /// It runs.
    Run(Box<Lease>),
    /// It is answered from this record.
    Replay(Arc<Record>),
    /// It is refused, on this revision where a record was seen.
    Refuse(Refusal, Option<Revision>),
}

/// What became of an outcome.
pub(crate) enum Finished {
    /// It is on record, as shown.
    Written(Seen),
    /// What is on record is not what the attempt said: its own transaction or a verdict completed it, or it is in doubt.
    Already(Seen),
    /// A later attempt has begun, or the record is gone; what is there now.
    Superseded(Option<Seen>),
    /// The store did not answer; the write is tried on in the background.
    NotWritten,
}

/// How an attempt ended, for as long as it takes to be written.
#[derive(Clone, Copy)]
pub(crate) struct Ending<'a> {
    pub(crate) handle: &'a Handle,
    pub(crate) outcome: &'a Outcome,
    /// The leader of its key on this node, where it has one.
    pub(crate) leader: Option<&'a Leader>,
    pub(crate) store_timeout: Duration,
}

/// What the store showed, and when this node asked it.
struct Look {
    seen: Option<Seen>,
    asked_at: Instant,
}

impl Look {
    /// Nobody has looked yet: the insert itself will.
    fn none(asked_at: Instant) -> Self {
        Self { seen: None, asked_at }
    }
}

impl Engine {
    /// An engine on `store`.
    pub fn new(store: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self {
            store,
            looks: Breaker::default(),
            writes: Breaker::default(),
            cache: Cache::new(),
            trust: Trust::none(),
            inflight: Inflight::new(),
            watches: Watches::default(),
            tasks: Tasks::default(),
            times: Times::default(),
            trouble: Trouble::default(),
            findings: Mutex::default(),
            probes: RwLock::default(),
            probe_answers: Mutex::default(),
            events: Events::default(),
            rounds: Rounds::default(),
        })
    }

    /// Has these probes asked about records whose outcome is unknown, from now on. Their routes' policies say when first, in
    /// [`Policy::reconcile_first`].
    pub fn use_probes(&self, probes: Probes) {
        *self.probes.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(probes);
    }

    pub(crate) fn probes(&self) -> Arc<Probes> {
        self.probes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn probe_answers(&self) -> MutexGuard<'_, Answers> {
        self.probe_answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store underneath.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Ready once no attempt goes on for a client that hung up, and nothing is left to be written. Call it after the
    /// server has stopped accepting, before the process ends.
    pub async fn idle(&self) {
        self.tasks.idle().await;
    }

    /// The request with this key that is in progress on this node.
    pub(crate) fn in_progress(&self, id: &Id) -> Option<Arc<InProgress>> {
        self.inflight.find(id)
    }

    /// May this request run? Asked now, at `asked_at`. `Err` where the store does not answer.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        id: &Id,
        request: &Request<'_>,
        asked_at: Instant,
    ) -> Result<Begun, Error> {
        let asked_at = self.learn_epoch(asked_at);
        if let Some(begun) = self.answer_from_cache(id, request, asked_at) {
            return Ok(begun);
        }
        match self.inflight.join(id) {
            Joined::Leader(leader) => self.lead(id, request, leader, asked_at).await,
            // Boxed, so that the future of a leader does not reserve space for it.
            Joined::Follower(in_progress) => Box::pin(self.follow(id, request, in_progress)).await,
        }
    }

    /// A request that finds another one with its key in progress on this node.
    async fn follow(
        self: &Arc<Self>,
        id: &Id,
        request: &Request<'_>,
        in_progress: Arc<InProgress>,
    ) -> Result<Begun, Error> {
        match in_progress.answered().await {
            // A record that was forgotten while it ran is free again, also on the node where it ran.
            Known::Running(_, at) if self.was_raised_since(at) => self.look_and_begin(id, request).await,
            Known::Running(seen, at) => match answer_from_copy(reckoned(seen, at, Instant::now()), request) {
                Some(begun) => Ok(begun),
                None => self.look_and_begin(id, request).await,
            },
            Known::Failed(refusal) => Ok(Begun::Refuse(refusal, None)),
            Known::Ended | Known::Asking => self.look_and_begin(id, request).await,
        }
    }

    /// The answer of a copy of a completed record, where there is one that may be used.
    fn answer_from_cache(self: &Arc<Self>, id: &Id, request: &Request<'_>, now: Instant) -> Option<Begun> {
        let copied = self.cache.find(id, now)?;
        if !self.may_trust(copied.asked_at, now) {
            return None;
        }
        answer_from_copy(copied.seen, request)
    }

    /// The first request with this key on this node. Where the one before it has ended since the cache was asked, the insert
    /// finds the record that it left.
    async fn lead(
        self: &Arc<Self>,
        id: &Id,
        request: &Request<'_>,
        leader: Leader,
        asked_at: Instant,
    ) -> Result<Begun, Error> {
        match self.reserve(id, request, Look::none(asked_at), Some(leader)).await {
            Err((error, Some(leader))) => {
                leader.failed(store_unavailable());
                Err(error)
            }
            Err((error, None)) => Err(error),
            Ok(begun) => Ok(begun),
        }
    }

    /// A follower whose leader has ended, or knows too little to answer it: it asks the store itself.
    async fn look_and_begin(self: &Arc<Self>, id: &Id, request: &Request<'_>) -> Result<Begun, Error> {
        let asked_at = Instant::now();
        if let Some(begun) = self.answer_from_cache(id, request, asked_at) {
            return Ok(begun);
        }
        let leader = match self.inflight.join(id) {
            Joined::Leader(leader) => Some(leader),
            Joined::Follower(_) => None,
        };
        let seen = self.load(id, request.policy.store_timeout).await?;
        if let Some(seen) = &seen {
            self.cache.keep(*id, seen, asked_at);
        }
        self.reserve(id, request, Look { seen, asked_at }, leader).await.map_err(|(error, _)| error)
    }

    /// Decides on what is seen and writes, until one or the other is final. The leader comes back with an error.
    #[expect(clippy::manual_async_fn, reason = "an async fn stores each of its arguments twice")]
    fn reserve(
        self: &Arc<Self>,
        id: &Id,
        request: &Request<'_>,
        mut look: Look,
        mut leader: Option<Leader>,
    ) -> impl Future<Output = Result<Begun, (Error, Option<Leader>)>> {
        async move {
            for _ in 0..SWAPS_MAX {
                let expected = look.seen.as_ref().map(|seen| seen.revision);
                let (draft, begins) = match machine::decide(look.seen.as_ref(), request) {
                    Decision::Begin(draft) => (draft, true),
                    Decision::Settle(draft) => (draft, false),
                    Decision::Replay => {
                        let seen = look.seen.expect("a replay is decided on a record that was seen");
                        return Ok(Begun::Replay(seen.record));
                    }
                    Decision::Refuse(refusal) => return Ok(Begun::Refuse(refusal, expected)),
                };
                // Where nobody has looked, this is the look, and nothing has taken any time yet.
                let asked_at = if expected.is_some() { Instant::now() } else { look.asked_at };
                self.look_at_epoch(asked_at);
                failpoint!("begin.before");
                let swapped = self.swap(id, look.seen.as_ref(), draft, request.policy.store_timeout).await;
                failpoint!("begin.after");
                match swapped {
                    Ok(Swapped::Applied(seen)) if begins => {
                        // The attempt's time counts from the look it was decided on: what that look allowed, such as one
                        // more try while downstream remembers, must still hold when the attempt ends.
                        return Ok(Begun::Run(Box::new(Lease::new(*id, seen, look.asked_at, leader))));
                    }
                    Ok(Swapped::Applied(seen)) => look = Look { seen: Some(seen), asked_at },
                    Ok(Swapped::Lost(seen)) => {
                        if let Some(seen) = &seen {
                            self.cache.keep(*id, seen, asked_at);
                        }
                        look = Look { seen, asked_at };
                    }
                    Err(error) => {
                        if begins && !error.wrote_nothing() {
                            self.give_back(
                                Handle { id: *id, token: request.token },
                                expected,
                                request.policy,
                            );
                        }
                        return Err((error, leader.take()));
                    }
                }
            }
            Err((contended(), leader))
        }
    }

    /// A reservation whose answer was lost may still have been written, or be written yet. Nothing was sent, and only
    /// this node knows it: so it looks for its own token and makes it retryable. It gives up once the store has shown
    /// for a whole lease that what the reservation expected still stands, or has not answered before the deadline.
    fn give_back(self: &Arc<Self>, handle: Handle, expected: Option<Revision>, policy: &Policy) {
        let (engine, store_timeout) = (self.clone(), policy.store_timeout);
        let (unchanged_after, over) = (Instant::now() + policy.lease, Instant::now() + policy.deadline);
        let outcome = Outcome::DidNotRun { retry_after: None, keep_for: None };
        self.tasks.spawn(async move {
            let mut pause = PAUSE;
            while Instant::now() < over {
                let given_back = match engine.load(&handle.id, store_timeout).await {
                    // As it was before: the reservation may be on its way still, or wait there for whoever holds the row.
                    Ok(seen) if seen.as_ref().map(|seen| seen.revision) == expected => {
                        Instant::now() >= unchanged_after
                    }
                    // Another's record, or our own that has been given back: either way nothing of ours is open.
                    Ok(seen) => {
                        let given =
                            Ending { handle: &handle, outcome: &outcome, leader: None, store_timeout };
                        engine.write_outcome(&given, seen, Instant::now()).await.is_ok()
                    }
                    Err(_) => false,
                };
                if given_back {
                    return;
                }
                sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        });
    }

    /// The lease counts anew. None where the record has moved on.
    pub(crate) async fn renew(
        &self,
        handle: &Handle,
        seen: Seen,
        store_timeout: Duration,
    ) -> Result<Option<Seen>, Error> {
        let mut seen = Some(seen);
        for _ in 0..SWAPS_MAX {
            let Renewal::Write(draft) = machine::renew(seen.as_ref(), handle.token) else { return Ok(None) };
            failpoint!("renew.before");
            let swapped = self.swap(&handle.id, seen.as_ref(), draft, store_timeout).await?;
            failpoint!("renew.after");
            match swapped {
                Swapped::Applied(now) => return Ok(Some(now)),
                Swapped::Lost(now) => seen = now,
            }
        }
        Err(contended())
    }

    /// An attempt has ended. Tried until `store_timeout`; then the caller goes on and the write is tried in the
    /// background until the attempt's deadline, after which the lease lapses and the record is unknown.
    pub(crate) async fn finish(
        self: &Arc<Self>,
        lease: Box<Lease>,
        outcome: Outcome,
        store_timeout: Duration,
        asked_at: Instant,
    ) -> Finished {
        let ending = lease.ending(&outcome, store_timeout);
        match self.write_outcome(&ending, Some(lease.seen()), asked_at).await {
            Ok(finished) => return finished,
            Err(error) => not_written(&ending, &error),
        }
        let left = store_timeout.saturating_sub(asked_at.elapsed());
        // Boxed: hardly any request needs it, and every future would reserve space for it.
        let tried = Box::pin(timeout(left, async {
            sleep(PAUSE).await;
            self.try_finish(ending, Instant::now()).await
        }));
        if let Ok(finished) = tried.await {
            return finished;
        }
        let engine = self.clone();
        self.tasks.spawn(async move {
            // To duplicates on this node it stays in progress until the outcome is written, or the deadline has passed.
            let asked_at = Instant::now();
            let left = lease.deadline.saturating_duration_since(asked_at);
            let tried = engine.try_finish(lease.ending(&outcome, store_timeout), asked_at);
            if timeout(left, tried).await.is_err() {
                tracing::error!(record = %lease.handle.id.short(), "the outcome could not be written before the deadline; it will be unknown");
            }
        });
        Finished::NotWritten
    }

    /// Looks and writes until the store has answered.
    async fn try_finish(&self, ending: Ending<'_>, mut asked_at: Instant) -> Finished {
        let mut pause = PAUSE;
        loop {
            let written = match self.load(&ending.handle.id, ending.store_timeout).await {
                Ok(seen) => self.write_outcome(&ending, seen, asked_at).await,
                Err(error) => Err(error),
            };
            match written {
                Ok(finished) => return finished,
                Err(error) => not_written(&ending, &error),
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
            asked_at = Instant::now();
        }
    }

    /// Writes the outcome while the token is still its own: a renewal in between is no reason to lose. All of it within
    /// `store_timeout`.
    async fn write_outcome(
        &self,
        ending: &Ending<'_>,
        mut seen: Option<Seen>,
        mut asked_at: Instant,
    ) -> Result<Finished, Error> {
        let Ending { handle, outcome, leader, store_timeout } = *ending;
        let over = Instant::now() + store_timeout;
        for _ in 0..SWAPS_MAX {
            let draft = match (machine::finish(seen.as_ref(), handle.token, outcome), seen.as_ref()) {
                (Finish::Write(draft), _) => draft,
                (Finish::Already, Some(now)) => return Ok(Finished::Already(now.clone())),
                (Finish::Known, Some(now)) => return Ok(Finished::Written(now.clone())),
                (Finish::Already | Finish::Known | Finish::Superseded, _) => {
                    self.tell_superseded(handle, seen.as_ref());
                    return Ok(Finished::Superseded(seen));
                }
            };
            failpoint!("finish.before");
            let left = over.saturating_duration_since(Instant::now());
            let swapped = self.swap(&handle.id, seen.as_ref(), draft, left).await?;
            failpoint!("finish.after");
            match swapped {
                Swapped::Applied(now) => {
                    if let Some(before) = &seen {
                        self.tell_ended(handle.id, before, &now);
                    }
                    // Most answers are never asked for again. Followers are about to ask for this one.
                    let has_followers =
                        leader.map_or_else(|| self.inflight.has_followers(&handle.id), Leader::has_followers);
                    if has_followers {
                        self.cache.keep(handle.id, &now, asked_at);
                    }
                    return Ok(match outcome {
                        // A verdict that came while it ran may settle this doubt: then the verdict's answer is the one
                        // on record, and not what the attempt would tell its client.
                        Outcome::Unknown(_) => Finished::Already(now),
                        Outcome::Completed { .. } | Outcome::DidNotRun { .. } => Finished::Written(now),
                    });
                }
                Swapped::Lost(now) => {
                    seen = now;
                    asked_at = Instant::now();
                }
            }
        }
        Err(contended())
    }

    /// The record as the store has it.
    pub(crate) async fn load(&self, id: &Id, store_timeout: Duration) -> Result<Option<Seen>, Error> {
        self.guarded(Operation::Load, store_timeout, self.store.load(*id)).await
    }

    /// Writes `next` where the record is still as it was seen, or still absent.
    pub(crate) async fn swap(
        &self,
        id: &Id,
        seen: Option<&Seen>,
        next: Box<Draft>,
        store_timeout: Duration,
    ) -> Result<Swapped, Error> {
        self.swap_with(id, seen, next, None, store_timeout).await
    }

    /// The same, with an entry of the audit log: both are written, or neither.
    pub(crate) async fn swap_with(
        &self,
        id: &Id,
        seen: Option<&Seen>,
        next: Box<Draft>,
        entry: Option<audit::Entry>,
        store_timeout: Duration,
    ) -> Result<Swapped, Error> {
        let revision = Revision(rand::random());
        let change = Change::new(seen.map(|seen| seen.revision), revision, next).with_audit(entry);
        let swapped = self.guarded(Operation::Swap, store_timeout, self.store.swap(*id, change)).await;
        self.trouble.heard(swapped.as_ref().err().filter(|error| error.kind() != ErrorKind::Busy));
        let swapped = match swapped? {
            // Sent twice, by a client library that lost the first answer. The revision is random: it is our own write.
            Swapped::Lost(Some(seen)) if seen.revision == revision => Swapped::Applied(seen),
            swapped @ (Swapped::Applied(_) | Swapped::Lost(_)) => swapped,
        };
        if let (Swapped::Applied(now), Some(seen)) = (&swapped, seen)
            && machine::became_unknown(&now.record)
        {
            self.tell_unknown(*id, seen.record.state.name(), &now.record);
        }
        Ok(swapped)
    }

    /// A store call with a time-out, behind the breaker.
    pub(crate) async fn guarded<T>(
        &self,
        operation: Operation,
        store_timeout: Duration,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let breaker = match operation {
            Operation::Load | Operation::Scan | Operation::Epoch => &self.looks,
            Operation::Swap | Operation::Reap => &self.writes,
        };
        if let Err(wait) = breaker.check() {
            self.times.store_error(operation);
            let message =
                format!("the store did not answer before; it is asked again in {} ms", wait.as_millis());
            return Err(Error::new(ErrorKind::Unavailable, message).having_written_nothing());
        }
        let asked_at = Instant::now();
        let answered = timeout(store_timeout, call).await.unwrap_or_else(|_| {
            let message = format!("the store did not answer within {} ms", store_timeout.as_millis());
            Err(Error::new(ErrorKind::Unavailable, message))
        });
        self.times.store(operation, asked_at.elapsed());
        if answered.is_err() {
            self.times.store_error(operation);
        }
        match &answered {
            Err(error) if error.kind() == ErrorKind::Unavailable => breaker.failed(),
            Ok(_) | Err(_) => breaker.succeeded(),
        }
        answered
    }
}

fn not_written(ending: &Ending<'_>, error: &Error) {
    tracing::warn!(record = %ending.handle.id.short(), error = %chain(error), "the outcome is not written yet");
}

impl Engine {
    /// An attempt's outcome is on record: told where it settles what was unknown, or where somebody else says otherwise.
    fn tell_ended(&self, id: Id, before: &Seen, after: &Seen) {
        tell_contradiction(id, before, after, "the attempt");
        self.tell_settled(id, before, after, Source::Attempt, machine::is_unknown(&before.record));
    }

    /// An attempt ended after a later one had begun: what it says is not written.
    fn tell_superseded(&self, handle: &Handle, seen: Option<&Seen>) {
        counts::superseded();
        let record = seen.map(|seen| &seen.record);
        tracing::warn!(
            record = %handle.id.short(),
            route = record.and_then(|record| record.route.as_deref()).unwrap_or_default(),
            last_attempt = record.map(|record| record.attempt),
            "an attempt ended after it was superseded, or its record forgotten; its outcome is not stored"
        );
    }
}

/// What a copy of a record answers without the store; none where the store must be asked.
fn answer_from_copy(copy: Seen, request: &Request<'_>) -> Option<Begun> {
    match machine::answer_from_copy(&copy, request) {
        FromCopy::Replay => Some(Begun::Replay(copy.record)),
        FromCopy::Refuse(refusal) => Some(Begun::Refuse(refusal, Some(copy.revision))),
        FromCopy::AskStore => None,
    }
}

/// What a client is told while the store does not answer.
pub(crate) fn store_unavailable() -> Refusal {
    Refusal::StoreUnavailable { retry_after: STORE_RETRY_AFTER }
}

pub(crate) fn contended() -> Error {
    Error::new(ErrorKind::Other, format!("the record changed {SWAPS_MAX} times under one request"))
}

/// An error and its causes on one line, for logs.
pub(crate) fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// A token nobody has used before.
pub(crate) fn fresh_token() -> Token {
    Token(rand::random())
}

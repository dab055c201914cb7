//! Begin, renew, finish: the machine's answers carried out on a store.
//!
//! The engine decides nothing. It asks [`onlyonce_core::machine`] what may happen, swaps, and where it loses asks again
//! on what is there now. What it adds is what a store cannot: time-outs, a circuit breaker, the cache of completed
//! records, and the table of requests in progress on this node.
//!
//! ```text
//!  begin ── cached? ── replay         (in this process, then in front of the store: `front.rs`)
//!    │  in progress here? ── refuse, or wait
//!    └─ loop { decide ─ admit ─ swap } ── run │ replay │ refuse
//!  finish ─ loop { finish ─ swap }, while the token is its own
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::thread::available_parallelism;
use std::time::Duration;

use bytes::Bytes;
use onlyonce_core::machine::{self, Decision, Finish, FromCopy, Renewal, Request};
use onlyonce_core::outcome::Outcome;
use onlyonce_core::policy::Policy;
use onlyonce_core::record::{Draft, Effects, Handle, Id, Record, Revision, Seen, Source, Token};
use onlyonce_core::refusal::Refusal;
use onlyonce_store::result::Results;
use onlyonce_store::{Change, Error, ErrorKind, Store, Swapped, accepted, audit, failpoint};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep, timeout};

use crate::accepted::{Accepted, Fresh};
use crate::breaker::Breaker;
use crate::buffered::Buffered;
use crate::cache::{Cache, reckoned};
use crate::counts::{self, Operation, Times};
use crate::epoch::Trust;
use crate::events::Events;
use crate::front::Front;
use crate::gate::{Counting, Gate};
use crate::health::Trouble;
use crate::inflight::{InProgress, Inflight, Joined, Known, Leader};
use crate::lease::Lease;
use crate::limiter::Limiter;
use crate::operate::contradiction;
use crate::probe::{Answers, Probes};
use crate::task::Tasks;
use crate::trace::Sink;
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
    /// The cache that all nodes share, where there is one.
    pub(crate) front: OnceLock<Front>,
    pub(crate) trust: Trust,
    inflight: Inflight,
    pub(crate) limiter: Arc<Limiter>,
    pub(crate) counting: Counting,
    pub(crate) watches: Watches,
    pub(crate) tasks: Tasks,
    pub(crate) times: Times,
    pub(crate) trouble: Trouble,
    /// The codes of what was found when the store was last examined.
    pub(crate) findings: Mutex<Vec<&'static str>>,
    probes: RwLock<Arc<Probes>>,
    probe_answers: Mutex<Answers>,
    /// Unknown records may have a probe and not be asked about, or the other way round: the reconciler looks.
    pub(crate) is_unscheduled: AtomicBool,
    pub(crate) events: Events,
    /// Who wants spans, if anybody does.
    pub(crate) spans: OnceLock<Sink>,
    pub(crate) rounds: Rounds,
    /// Bodies of keyed requests that are held in memory.
    pub(crate) buffered: Buffered,
    /// How many large bodies are read at once.
    pub(crate) large_bodies: Semaphore,
    /// This process has stored a message: the relay looks at once.
    pub(crate) stored: Notify,
    pub(crate) accepted: Arc<Accepted>,
}

/// What became of a request.
pub(crate) enum Begun {
    /// It runs.
    Run(Box<Lease>),
    /// It is stored, and pending.
    Accepted(Seen),
    /// It is answered from this record.
    Replay(Arc<Record>),
    /// It is refused, on this revision where a record was seen.
    Refuse(Refusal, Option<Revision>),
}

/// What became of a renewal.
pub(crate) enum Renewed {
    /// The lease counts anew, as shown.
    Until(Seen),
    /// This attempt is completed, and its answer stored.
    Completed,
    /// The record has moved on.
    Lost,
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

impl Finished {
    /// The record as it stands.
    pub(crate) fn seen(&self) -> Option<&Seen> {
        match self {
            Self::Written(seen) | Self::Already(seen) => Some(seen),
            Self::Superseded(seen) => seen.as_ref(),
            Self::NotWritten => None,
        }
    }
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
    /// Whether the store was asked at all.
    is_taken: bool,
}

impl Look {
    /// Nobody has looked yet: the insert itself will.
    fn none(asked_at: Instant) -> Self {
        Self { seen: None, asked_at, is_taken: false }
    }

    fn taken(seen: Option<Seen>, asked_at: Instant) -> Self {
        Self { seen, asked_at, is_taken: true }
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
            front: OnceLock::new(),
            trust: Trust::none(),
            inflight: Inflight::new(),
            limiter: Limiter::new(),
            counting: Counting::default(),
            watches: Watches::default(),
            tasks: Tasks::default(),
            times: Times::default(),
            trouble: Trouble::default(),
            findings: Mutex::default(),
            probes: RwLock::default(),
            probe_answers: Mutex::default(),
            is_unscheduled: AtomicBool::new(false),
            events: Events::default(),
            spans: OnceLock::new(),
            rounds: Rounds::default(),
            buffered: Buffered::default(),
            large_bodies: Semaphore::new(available_parallelism().map_or(1, usize::from)),
            stored: Notify::new(),
            accepted: Arc::default(),
        })
    }

    /// Holds at most so many bytes of bodies in memory, of all keyed requests under way together. Above, a request is refused
    /// with `idempotency_limit_reached`, and nothing is run. There is no bound until this is called.
    pub fn bound_buffered_bytes(&self, bytes_max: u64) {
        self.buffered.bound(bytes_max);
    }

    /// Has these probes asked about records whose outcome is unknown, from now on. Their routes' policies say when first, in
    /// [`Policy::reconcile_first`]. What is unknown already is asked about too, after [`Probes::first`].
    pub fn use_probes(&self, probes: Probes) {
        self.probe_answers().retain(|route| probes.has(route));
        *self.probes.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(probes);
        self.is_unscheduled.store(true, Ordering::SeqCst);
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

    /// Messages were stored in this process: the relay looks for them at once. Call it once they are committed; without it
    /// the relay finds them at its next round.
    pub fn wake_relay(&self) {
        self.stored.notify_one();
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

    /// May this request run, or be accepted? Asked now, at `asked_at`. `Err` where the store does not answer.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        id: &Id,
        request: &Request<'_>,
        gate: &Gate<'_>,
        asked_at: Instant,
    ) -> Result<Begun, Error> {
        let asked_at = self.learn_epoch(asked_at);
        if let Some(begun) = self.answer_from_cache(id, request, asked_at) {
            return Ok(gate.answer(begun));
        }
        match self.inflight.join(id) {
            Joined::Leader(leader) => self.lead(id, request, gate, leader, asked_at).await,
            // Boxed, so that the future of a leader does not reserve space for it.
            Joined::Follower(in_progress) => Box::pin(self.follow(id, request, gate, in_progress)).await,
        }
    }

    /// A request that finds another one with its key in progress on this node.
    async fn follow(
        self: &Arc<Self>,
        id: &Id,
        request: &Request<'_>,
        gate: &Gate<'_>,
        in_progress: Arc<InProgress>,
    ) -> Result<Begun, Error> {
        match in_progress.answered().await {
            // A record that was forgotten while it ran is free again, also on the node where it ran.
            Known::Running(_, at) if self.was_raised_since(at) => {
                self.look_and_begin(id, request, gate).await
            }
            Known::Running(seen, at) => {
                let now = Instant::now();
                // Local work completes its record in its own transaction, and this node hears of it at the next renewal.
                let may_be_completed = seen.record.terms.effects == Effects::Local;
                match answer_from_copy(reckoned(seen, at, now), request) {
                    Some(begun) if self.knows_epoch(now) && !may_be_completed => Ok(gate.answer(begun)),
                    // It may have ended or been forgotten: the store is asked, and while that does not answer, it runs.
                    Some(begun) => {
                        self.look_and_begin(id, request, gate).await.or_else(|_| Ok(gate.answer(begun)))
                    }
                    None => self.look_and_begin(id, request, gate).await,
                }
            }
            Known::Failed(refusal) => Ok(Begun::Refuse(refusal, None)),
            Known::Ended | Known::Asking => self.look_and_begin(id, request, gate).await,
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

    /// A copy of a completed record that may be used, with the store's clock as this node reckons it.
    #[cfg(any(feature = "_driver", feature = "sqlite"))]
    pub(crate) fn copy_of(self: &Arc<Self>, id: &Id, now: Instant) -> Option<Seen> {
        let now = self.learn_epoch(now);
        let copied = self.cache.find(id, now)?;
        self.may_trust(copied.asked_at, now).then_some(copied.seen)
    }

    /// Whether another request with this key is in progress on this node.
    pub(crate) fn join(&self, id: &Id) -> Joined {
        self.inflight.join(id)
    }

    /// The first request with this key on this node. Where the one before it has ended since the cache was asked, the insert
    /// finds the record that it left.
    async fn lead(
        self: &Arc<Self>,
        id: &Id,
        request: &Request<'_>,
        gate: &Gate<'_>,
        leader: Leader,
        mut asked_at: Instant,
    ) -> Result<Begun, Error> {
        if let Some(front) = self.front.get() {
            // Boxed, so that without such a cache no future reserves space for it.
            if let Some(begun) = Box::pin(self.answer_from_front(front, id, request)).await {
                return Ok(gate.answer(begun));
            }
            asked_at = Instant::now();
        }
        match self.reserve(id, request, gate, Look::none(asked_at), Some(leader)).await {
            Err((error, Some(leader))) => {
                leader.failed(store_unavailable());
                Err(error)
            }
            Err((error, None)) => Err(error),
            Ok(begun) => Ok(begun),
        }
    }

    /// A follower whose leader has ended, or knows too little to answer it: it asks the store itself.
    async fn look_and_begin(
        self: &Arc<Self>,
        id: &Id,
        request: &Request<'_>,
        gate: &Gate<'_>,
    ) -> Result<Begun, Error> {
        let asked_at = Instant::now();
        if let Some(begun) = self.answer_from_cache(id, request, asked_at) {
            return Ok(gate.answer(begun));
        }
        let leader = match self.inflight.join(id) {
            Joined::Leader(leader) => Some(leader),
            Joined::Follower(_) => None,
        };
        let look = self.take_look(id, request, asked_at).await?;
        self.reserve(id, request, gate, look, leader).await.map_err(|(error, _)| error)
    }

    async fn take_look(&self, id: &Id, request: &Request<'_>, asked_at: Instant) -> Result<Look, Error> {
        let seen = self.load(id, request.policy.store_timeout).await?;
        if let Some(seen) = &seen {
            self.cache.keep(*id, seen, asked_at);
        }
        Ok(Look::taken(seen, asked_at))
    }

    /// Decides on what is seen and writes, until one or the other is final. The leader comes back with an error.
    ///
    /// Most keys are new, so the insert is the look. Where that would not be admitted, the store is looked at first: the key
    /// may exist, and what exists is answered as ever.
    #[expect(clippy::manual_async_fn, reason = "an async fn stores each of its arguments twice")]
    fn reserve(
        self: &Arc<Self>,
        id: &Id,
        request: &Request<'_>,
        gate: &Gate<'_>,
        mut look: Look,
        mut leader: Option<Leader>,
    ) -> impl Future<Output = Result<Begun, (Error, Option<Leader>)>> {
        async move {
            // False once the store has not counted in time. A new key is refused then; what exists is answered as ever.
            let mut is_counted = true;
            let mut has_asked = false;
            for _ in 0..SWAPS_MAX {
                if let Some(seen) =
                    look.seen.take_if(|seen| !has_asked && machine::is_lost_without_answer(seen))
                {
                    // Boxed: hardly any request needs it, and every future would reserve space for it.
                    look.seen = Some(Box::pin(self.with_answer(seen)).await);
                    has_asked = true;
                }
                let expected = look.seen.as_ref().map(|seen| seen.revision);
                let (draft, pass) = match machine::decide(look.seen.as_ref(), request) {
                    Decision::Begin(draft) => {
                        if is_counted && gate.counts_records() && machine::is_new_use(&draft) {
                            is_counted = Box::pin(self.is_counted(gate)).await;
                        }
                        let admitted = if is_counted {
                            gate.admit(&draft, request.admission)
                        } else {
                            Err(store_unavailable())
                        };
                        match admitted {
                            Ok(pass) => (draft, Some(pass)),
                            Err(_) if !look.is_taken => {
                                match Box::pin(self.take_look(id, request, Instant::now())).await {
                                    Ok(taken) => look = taken,
                                    Err(error) => return Err((error, leader)),
                                }
                                continue;
                            }
                            Err(refusal) => return Ok(Begun::Refuse(refusal, expected)),
                        }
                    }
                    Decision::Settle(draft) => match gate.look_up() {
                        Ok(()) => (draft, None),
                        Err(refusal) => return Ok(Begun::Refuse(refusal, None)),
                    },
                    Decision::Replay => {
                        let seen = look.seen.expect("a replay is decided on a record that was seen");
                        self.fill_front(id, &seen, look.asked_at);
                        return Ok(gate.answer(Begun::Replay(seen.record)));
                    }
                    Decision::Refuse(refusal) => return Ok(gate.answer(Begun::Refuse(refusal, expected))),
                };
                // Where nobody has looked, this is the look, and nothing has taken any time yet.
                let asked_at = if expected.is_some() { Instant::now() } else { look.asked_at };
                self.look_at_epoch(asked_at);
                let accepting = gate.accepting.filter(|_| pass.is_some());
                failpoint!("begin.before");
                let swapped = match accepting {
                    None => self.swap(id, look.seen.as_ref(), draft, request.policy.store_timeout).await,
                    // Boxed, so that the future of a request that runs does not reserve space for it.
                    Some(accepting) => {
                        let (seen, time_out) = (look.seen.as_ref(), request.policy.store_timeout);
                        Box::pin(self.swap_accepting(id, seen, draft, accepting, time_out)).await
                    }
                };
                failpoint!("begin.after");
                match (swapped, pass) {
                    (Ok(Swapped::Applied(seen)), Some(pass)) if accepting.is_some() => {
                        drop(pass.used());
                        return Ok(Begun::Accepted(seen));
                    }
                    (Ok(Swapped::Applied(seen)), Some(pass)) => {
                        // The attempt's time counts from the look it was decided on: what that look allowed, such as one
                        // more try while downstream remembers, must still hold when the attempt ends.
                        let lease = Lease::new(*id, seen, look.asked_at, leader).counted(pass.used());
                        return Ok(Begun::Run(Box::new(lease)));
                    }
                    (Ok(Swapped::Applied(seen)), None) => look = Look::taken(Some(seen), asked_at),
                    (Ok(Swapped::Lost(seen)), _) => {
                        if let Some(seen) = &seen {
                            self.cache.keep(*id, seen, asked_at);
                        }
                        look = Look::taken(seen, asked_at);
                    }
                    (Err(error), pass) => {
                        if let Some(pass) = pass.filter(|_| !error.wrote_nothing()) {
                            // It may be reserved: what it took is not given back.
                            drop(pass.used());
                            self.give_back(*id, request.token, expected, request.policy);
                        }
                        // Boxed: hardly any request needs it, and every future would reserve space for it.
                        if error.kind() == ErrorKind::Busy
                            && let Some(begun) = Box::pin(self.answer_while_held(id, request)).await
                        {
                            return Ok(begun);
                        }
                        return Err((error, leader.take()));
                    }
                }
            }
            Err((contended(), leader))
        }
    }

    /// What a request is told while somebody's transaction holds its record: a look does not wait for that. None where only
    /// whoever holds it can tell.
    async fn answer_while_held(&self, id: &Id, request: &Request<'_>) -> Option<Begun> {
        let seen = self.load(id, request.policy.store_timeout).await.ok()??;
        begun(machine::answer_while_held(&seen, request), seen)
    }

    /// A reservation whose answer was lost may still have been written, or be written yet. Nothing was sent, and only
    /// this node knows it: so it looks for its own token and makes it retryable. It gives up once the store has shown
    /// for a whole lease that what the reservation expected still stands, or has not answered before the deadline.
    ///
    /// An acceptance is withdrawn in the same way: its client was told that it did not count.
    pub(crate) fn give_back(
        self: &Arc<Self>,
        id: Id,
        token: Token,
        expected: Option<Revision>,
        policy: &Policy,
    ) {
        let (engine, store_timeout) = (self.clone(), policy.store_timeout);
        let handle = Handle { id, token };
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
                    Ok(seen) => match seen.as_ref().and_then(|seen| machine::withdraw(seen, token)) {
                        Some(draft) => {
                            let withdrawn = engine.swap(&id, seen.as_ref(), draft, store_timeout).await;
                            matches!(withdrawn, Ok(Swapped::Applied(_)))
                        }
                        None => {
                            let given =
                                Ending { handle: &handle, outcome: &outcome, leader: None, store_timeout };
                            engine.write_outcome(&given, seen, Instant::now()).await.is_ok()
                        }
                    },
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

    /// The lease counts anew, unless the record has moved on.
    pub(crate) async fn renew(
        &self,
        handle: &Handle,
        seen: Seen,
        store_timeout: Duration,
    ) -> Result<Renewed, Error> {
        let mut seen = Some(seen);
        for _ in 0..SWAPS_MAX {
            let draft = match machine::renew(seen.as_ref(), handle.token) {
                Renewal::Write(draft) => draft,
                Renewal::Completed => return Ok(Renewed::Completed),
                Renewal::Lost => return Ok(Renewed::Lost),
            };
            failpoint!("renew.before");
            let swapped = self.swap(&handle.id, seen.as_ref(), draft, store_timeout).await?;
            failpoint!("renew.after");
            match swapped {
                Swapped::Applied(now) => return Ok(Renewed::Until(now)),
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
        let written = match self.last_seen(&lease, store_timeout).await {
            Ok(seen) => self.write_outcome(&ending, seen, asked_at).await,
            Err(error) => Err(error),
        };
        match written {
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
                tracing::error!(record = %lease.handle.id.short(), "the outcome could not be stored before the deadline; it will be unknown");
            }
        });
        Finished::NotWritten
    }

    /// What an outcome is decided on first. Local work completes its record in its own transaction: a swap on what this node
    /// knows would be lost, and cost a round trip more than a look.
    async fn last_seen(&self, lease: &Lease, store_timeout: Duration) -> Result<Option<Seen>, Error> {
        match lease.effects() {
            Effects::Local => Box::pin(self.load(&lease.handle.id, store_timeout)).await,
            Effects::Keyed | Effects::Queryable | Effects::Opaque => Ok(Some(lease.seen())),
        }
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
        let mut over = Instant::now() + store_timeout;
        let mut has_asked = false;
        for _ in 0..SWAPS_MAX {
            if let (Outcome::Unknown(_), Some(now), false) = (outcome, &seen, has_asked)
                && machine::lacks_answer(&now.record)
            {
                // Boxed: hardly any request needs it, and every future would reserve space for it.
                seen = Some(Box::pin(self.with_answer(now.clone())).await);
                (over, has_asked) = (Instant::now() + store_timeout, true);
            }
            let draft = match (machine::finish(seen.as_ref(), handle.token, outcome), seen.as_ref()) {
                (Finish::Write(draft), _) => draft,
                (Finish::Already, Some(now)) => {
                    // Its own transaction completed it, most likely, and may have stored messages too.
                    self.wake_relay();
                    return Ok(Finished::Already(now.clone()));
                }
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

    /// The same record, whose attempt is known to have done its work, with the answer that its probe has.
    pub(crate) async fn with_answer(&self, seen: Seen) -> Seen {
        match self.ask_for_answer(&seen).await {
            Some(response) => machine::answered(&seen, response),
            None => seen,
        }
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

    /// The same, with an entry of the audit log: both are written, or neither. That two sources disagree is in the log too.
    pub(crate) async fn swap_with(
        &self,
        id: &Id,
        seen: Option<&Seen>,
        next: Box<Draft>,
        entry: Option<audit::Entry>,
        store_timeout: Duration,
    ) -> Result<Swapped, Error> {
        let contradiction = seen.and_then(|seen| contradiction(id, seen, &next));
        let change = Change::after(seen, Revision(rand::random()), next);
        let change = change.with_audit(entry.or_else(|| contradiction.as_deref().cloned()));
        let swapped = self.swap_change(id, seen, change, store_timeout).await?;
        if let (Some(entry), Swapped::Applied(now)) = (contradiction, &swapped) {
            self.tell_contradiction(*id, now, *entry);
        }
        Ok(swapped)
    }

    /// The same for an acceptance, with the request that is accepted.
    async fn swap_accepting(
        &self,
        id: &Id,
        seen: Option<&Seen>,
        next: Box<Draft>,
        request: &Bytes,
        store_timeout: Duration,
    ) -> Result<Swapped, Error> {
        let change = Change::after(seen, Revision(rand::random()), next);
        let change = change.with_request(accepted::Request::Put(request.clone()));
        let asked_at = Instant::now();
        let swapped = self.swap_change(id, seen, change, store_timeout).await?;
        if let Swapped::Applied(now) = &swapped {
            counts::accepted();
            self.accepted.stored(*id, Fresh { seen: now.clone(), request: request.clone(), asked_at });
        }
        Ok(swapped)
    }

    /// The same for a phase, with what becomes of its results.
    pub(crate) async fn swap_phase(
        &self,
        id: &Id,
        seen: &Seen,
        next: Box<Draft>,
        results: Results,
        store_timeout: Duration,
    ) -> Result<Swapped, Error> {
        let change = Change::new(Some(seen.revision), Revision(rand::random()), next);
        self.swap_change(id, Some(seen), change.with_results(results), store_timeout).await
    }

    async fn swap_change(
        &self,
        id: &Id,
        seen: Option<&Seen>,
        change: Change,
        store_timeout: Duration,
    ) -> Result<Swapped, Error> {
        let (revision, ends_acceptance) = (change.revision, change.with.request == accepted::Request::Drop);
        let swapped = self.guarded(Operation::Swap, store_timeout, self.store.swap(*id, change)).await;
        // A locked record and a missing key are one record's, and no trouble of the store.
        let is_trouble = |error: &&Error| !matches!(error.kind(), ErrorKind::Busy | ErrorKind::Undecryptable);
        self.trouble.heard(swapped.as_ref().err().filter(is_trouble));
        let swapped = match swapped? {
            // Sent twice, by a client library that lost the first answer. The revision is random: it is our own write.
            Swapped::Lost(Some(seen)) if seen.revision == revision => Swapped::Applied(seen),
            swapped @ (Swapped::Applied(_) | Swapped::Lost(_)) => swapped,
        };
        if ends_acceptance && matches!(swapped, Swapped::Applied(_)) {
            self.accepted.ended();
        }
        if let (Swapped::Applied(now), Some(seen)) = (&swapped, seen)
            && machine::became_unknown(&now.record)
        {
            self.tell_unknown(*id, seen.record.state.name(), &now.record);
            // It was reserved before its route had a probe.
            if machine::schedule(now, self.backoff(now)).is_some() {
                self.is_unscheduled.store(true, Ordering::SeqCst);
            }
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
            Operation::Swap | Operation::Reap | Operation::Outbox => &self.writes,
        };
        if let Err((wait, met)) = breaker.check() {
            self.times.store_error(operation);
            let message = format!("the store cannot be used; it is called again in {} ms", wait.as_millis());
            return Err(Error::new(met, message).having_written_nothing());
        }
        let asked_at = Instant::now();
        let answered = timeout(store_timeout, call).await.unwrap_or_else(|_| {
            let message = format!("the store did not answer within {} ms", store_timeout.as_millis());
            Err(Error::new(ErrorKind::Unavailable, message))
        });
        self.times.store(operation, asked_at.elapsed());
        match &answered {
            Err(error) if error.kind() == ErrorKind::Undecryptable => counts::undecryptable(),
            Err(_) => self.times.store_error(operation),
            Ok(_) => {}
        }
        match &answered {
            // A login that is refused is refused to everybody, and some servers lock a user out who tries too often.
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Misconfigured) => {
                breaker.failed(error.kind());
            }
            Ok(_) | Err(_) => breaker.succeeded(),
        }
        answered
    }
}

fn not_written(ending: &Ending<'_>, error: &Error) {
    tracing::warn!(record = %ending.handle.id.short(), error = %chain(error), "the outcome is not stored yet");
}

impl Engine {
    /// An attempt's outcome is on record: told where it settles what was unknown.
    fn tell_ended(&self, id: Id, before: &Seen, after: &Seen) {
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
            "an attempt was superseded, or its record forgotten; its outcome is not stored"
        );
    }
}

/// What a copy of a record answers without the store; none where the store must be asked.
pub(crate) fn answer_from_copy(copy: Seen, request: &Request<'_>) -> Option<Begun> {
    begun(machine::answer_from_copy(&copy, request), copy)
}

/// What becomes of a request that is answered from what is seen.
fn begun(answer: FromCopy, seen: Seen) -> Option<Begun> {
    match answer {
        FromCopy::Replay => Some(Begun::Replay(seen.record)),
        FromCopy::Refuse(refusal) => Some(Begun::Refuse(refusal, Some(seen.revision))),
        FromCopy::AskStore => None,
    }
}

/// What a client is told while the store does not answer.
pub(crate) fn store_unavailable() -> Refusal {
    Refusal::StoreUnavailable { retry_after: STORE_RETRY_AFTER }
}

pub(crate) fn contended() -> Error {
    Error::new(ErrorKind::Other, format!("the record changed {SWAPS_MAX} times during one request"))
}

/// An error and its causes on one line, for logs. A cause that the text has already is not said again.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

/// A token nobody has used before.
pub(crate) fn fresh_token() -> Token {
    Token(rand::random())
}

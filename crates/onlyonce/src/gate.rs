//! What a request must pass before anything is reserved for it: its age, then the limits.
//!
//! | what is found | what it takes |
//! |---|---|
//! | nothing, or a use of the key that has expired | its age is judged; then a new key, and a place among what runs |
//! | a record whose attempt may run again | its age is judged; then a look-up, and a place among what runs |
//! | any other record | a look-up; it is answered however old the request is |
//!
//! A request that is to be accepted takes no place among what runs, but one among what waits.
//!
//! A request that waits and asks again takes its new key or its look-up once. A refusal takes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::HeaderMap;
use onlyonce_core::age;
use onlyonce_core::limits::{Limit, Limits};
use onlyonce_core::machine::{self, Admission};
use onlyonce_core::policy::Policy;
use onlyonce_core::record::Draft;
use onlyonce_core::refusal::Refusal;
use onlyonce_core::time::Timestamp;
use onlyonce_store::Error;
use tokio::time::Instant;

use crate::accepted::{Accepted, Slot};
use crate::counts::Operation;
use crate::engine::{Begun, Engine, chain};
use crate::limiter::{Digest, Grant, Limiter, Recount, Running, Takes, Wanted, Whose};

/// What a client is told to wait while too much accepted work waits.
const WAITING_RETRY_AFTER: Duration = Duration::from_secs(1);

/// What a request must pass before anything is reserved for it.
#[derive(Clone, Copy)]
pub(crate) struct Gate<'a> {
    pub(crate) limiter: &'a Arc<Limiter>,
    /// None where no limit is set.
    pub(crate) limits: Option<&'a Limits>,
    pub(crate) scope: &'a Digest,
    pub(crate) policy: &'a Policy,
    pub(crate) headers: &'a HeaderMap,
    /// Whether this request has taken its new key or its look-up.
    pub(crate) looked_up: &'a AtomicBool,
    pub(crate) accepted: &'a Arc<Accepted>,
    /// The request itself, where it is to be accepted.
    pub(crate) accepting: Option<&'a Bytes>,
}

/// That a request may begin. Dropped before it is used, it gives back what it took.
pub(crate) struct Pass<'a> {
    grant: Option<Grant<'a>>,
    looked_up: &'a AtomicBool,
    /// Held until the request is stored: it counts before it is there.
    _slot: Option<Slot>,
}

impl Pass<'_> {
    /// The request has begun. What is left is held for as long as its attempt runs.
    pub(crate) fn used(self) -> Option<Running> {
        self.looked_up.store(true, Ordering::Relaxed);
        self.grant.and_then(Grant::used)
    }
}

impl<'a> Gate<'a> {
    /// Whether this request may begin as `draft` says, now.
    pub(crate) fn admit(&self, draft: &Draft, admission: Admission) -> Result<Pass<'a>, Refusal> {
        self.judge_age()?;
        let slot = self.accepting.map(|_| self.accepted.admit().ok_or_else(too_much_waits)).transpose()?;
        let looked_up = self.looked_up;
        let Some(limits) = self.limits else { return Ok(Pass { grant: None, looked_up, _slot: slot }) };
        let takes = if machine::is_new_use(draft) { Takes::Key } else { self.lookup() };
        let runs = match admission {
            Admission::Run => true,
            Admission::Accept => false,
        };
        let grant = self.limiter.take(limits, self.scope, Wanted { takes, runs }, Instant::now())?;
        Ok(Pass { grant: Some(grant), looked_up, _slot: slot })
    }

    /// A place among what runs, for accepted work. Its key and its age were judged when it was accepted.
    pub(crate) fn run(&self) -> Result<Option<Running>, Refusal> {
        let Some(limits) = self.limits else { return Ok(None) };
        let wanted = Wanted { takes: Takes::Nothing, runs: true };
        Ok(self.limiter.take(limits, self.scope, wanted, Instant::now())?.used())
    }

    /// The key exists: this request takes a look-up, once.
    pub(crate) fn look_up(&self) -> Result<(), Refusal> {
        let Some(limits) = self.limits else { return Ok(()) };
        let wanted = Wanted { takes: self.lookup(), runs: false };
        let grant = self.limiter.take(limits, self.scope, wanted, Instant::now())?;
        drop(grant.used());
        self.looked_up.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The same for what a record answers.
    pub(crate) fn answer(&self, begun: Begun) -> Begun {
        match self.look_up() {
            Ok(()) => begun,
            Err(refusal) => Begun::Refuse(refusal, None),
        }
    }

    fn lookup(&self) -> Takes {
        if self.looked_up.load(Ordering::Relaxed) { Takes::Nothing } else { Takes::Lookup }
    }

    /// Whether the request is young enough to run, by this node's clock.
    pub(crate) fn judge_age(&self) -> Result<(), Refusal> {
        if self.policy.request_time_header.is_none() {
            return Ok(());
        }
        age::judge(self.headers, self.policy, now()).map_err(Refusal::RequestTooOld)
    }

    /// Whether the store is to be asked how many records there are, before a new key is admitted.
    pub(crate) fn counts_records(&self) -> bool {
        self.limits.is_some_and(Limits::counts_records)
    }
}

/// What a client is told while too much accepted work waits.
fn too_much_waits() -> Refusal {
    Refusal::LimitReached { limit: Limit::PendingMax, retry_after: WAITING_RETRY_AFTER }
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// Counts of records, for [`Limits::keys_alive`].
impl Engine {
    /// Makes counting fast. A store that cannot counts all the same, more slowly, and the log says why.
    ///
    /// [`Limits::keys_alive`] and its total ask the store how many records there are, and that takes an index. Call this at
    /// start; otherwise the index is made in the background from the first count on.
    pub async fn prepare_counting(&self) {
        if self.counting.is_prepared.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Err(error) = self.store().prepare_counting().await {
            tracing::warn!(error = %chain(&error), "records are counted without an index, which is slower");
        }
    }

    /// As [`Engine::count_records`]. False where the store did not count in time, which is logged.
    pub(crate) async fn is_counted(self: &Arc<Self>, gate: &Gate<'_>) -> bool {
        let counted = self.count_records(gate).await;
        if let Err(error) = &counted {
            tracing::warn!(error = %chain(error), "records were not counted: a new key is refused while limits.keys_alive is not known");
        }
        counted.is_ok()
    }

    /// Sees to it that this node knows how many records there are, well enough to admit a new key.
    pub(crate) async fn count_records(self: &Arc<Self>, gate: &Gate<'_>) -> Result<(), Error> {
        let Some(limits) = gate.limits else { return Ok(()) };
        let (is_shared, store_timeout) = (self.store().promises().shared, gate.policy.store_timeout);
        for whose in [Whose::Scope(*gate.scope), Whose::All] {
            let now = Instant::now();
            match self.limiter.recount(limits, whose, is_shared, now) {
                Recount::No => {}
                Recount::Soon => {
                    let (engine, limits) = (self.clone(), *limits);
                    self.tasks.spawn(async move {
                        // Where the store does not answer, a request sees to it once the count is too old.
                        let _ = engine.count_once(&limits, whose, store_timeout, now).await;
                    });
                }
                Recount::Now => self.count_once(limits, whose, store_timeout, now).await?,
            }
        }
        Ok(())
    }

    /// Asks the store, one at a time for the same; whoever waited finds the answer. `needed_at` is when a count was missed.
    async fn count_once(
        self: &Arc<Self>,
        limits: &Limits,
        whose: Whose,
        store_timeout: Duration,
        needed_at: Instant,
    ) -> Result<(), Error> {
        if !self.counting.is_prepared.load(Ordering::Relaxed) {
            let engine = self.clone();
            self.tasks.spawn(async move { engine.prepare_counting().await });
        }
        let (scope, turn, limit) = match whose {
            Whose::Scope(scope) => (Some(scope), usize::from(scope[0]) % TURNS, limits.keys_alive),
            Whose::All => (None, TURNS, limits.keys_alive_total),
        };
        let _turn = self.counting.turns[turn].lock().await;
        if self.limiter.was_counted_since(whose, needed_at) {
            return Ok(());
        }
        let asked_at = Instant::now();
        self.limiter.ask(whose, asked_at);
        let counting = self.store().count_alive(scope, limit.unwrap_or(u64::MAX));
        let alive = self.guarded(Operation::Scan, store_timeout, counting).await?;
        self.limiter.answered(whose, alive, asked_at);
        Ok(())
    }
}

/// So many scopes are counted at once.
const TURNS: usize = 16;

/// Who counts records, and whether the store is ready for it.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    is_prepared: AtomicBool,
    /// The last is for the count of all.
    turns: [tokio::sync::Mutex<()>; TURNS + 1],
}

//! A cache in front of the store, which all nodes share: copies of completed records for nodes that have none of their own.
//!
//! ```text
//!  first request for a key ── copy in this process? ── copy in the cache? ── store
//!  a replay that came from the store ─────────── beside it ──► the cache
//! ```
//!
//! Never the truth: whatever it loses, delays, mixes up or makes up changes no decision.
//!
//! 1. A copy carries the epoch that its node knew *before* it asked the store. Completed records do not change within an epoch, so
//!    the copy is as good as the store for whoever is in the same epoch, and is nothing to anybody else. A copy that arrives
//!    late carries an old epoch (`epoch.rs`).
//! 2. It is used while it expires later than the store's clock as this node reckons it, plus [`CLOCKS_APART`]; and
//!    [`machine::answer_from_copy`] says for what.
//! 3. It is put there by a replay that came from the store, and nobody waits. Most answers are never asked for again.
//! 4. A request waits [`WITHIN`] for it. After [`FAILURES_MAX`] failures in a row it is left alone for a second.
//! 5. Forgetting a key removes its copy, and then begins a new epoch: the first is for those who read the cache, the second for
//!    those who believe it.

use std::sync::Arc;
use std::time::Duration;

use onlyonce_core::machine::{self, Request};
use onlyonce_core::record::{Id, Seen};
use onlyonce_store::copies::{self, Copies, Copy, CopyOf};
use onlyonce_store::{Error, ErrorKind, Finding, Level};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::breaker::Breaker;
use crate::cache::reckoned;
use crate::counts::{Looked, Looks};
use crate::engine::{Begun, Engine, answer_from_copy, chain};
use crate::epoch::Standing;
use crate::task::Tasks;

/// By how much the clock of the store may be ahead of what this node reckons: it may run faster.
const CLOCKS_APART: Duration = Duration::from_secs(1);
/// How long a request waits for the cache.
const WITHIN: Duration = Duration::from_millis(20);
/// So many failures in a row, and the cache is left alone for a second.
const FAILURES_MAX: u32 = 3;
/// How many copies are on their way into the cache at once. Above that they are not kept.
const PUTS_MAX: usize = 32;
/// How long the examiner waits for the cache.
const EXAMINED_WITHIN: Duration = Duration::from_secs(5);

/// A cache in front of the store.
#[derive(Debug)]
pub(crate) struct Front {
    copies: Arc<dyn Copies>,
    breaker: Breaker,
    puts: Arc<Semaphore>,
    counts: Looks,
}

impl Front {
    pub(crate) fn new(copies: Arc<dyn Copies>) -> Self {
        let (breaker, puts) = (Breaker::after(FAILURES_MAX), Arc::new(Semaphore::new(PUTS_MAX)));
        Self { copies, breaker, puts, counts: Looks::new() }
    }

    /// What the cache answers in time. A call that is late goes on behind: it is the one that gives up a connection which is silent.
    async fn ask<T: Send + 'static>(
        &self,
        tasks: &Tasks,
        call: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let mut call = Box::pin(call);
        let answered = match timeout(WITHIN, &mut call).await {
            Ok(answered) => answered,
            Err(_) => {
                tasks.spawn_answering(call);
                let message = format!("the cache did not answer within {} ms", WITHIN.as_millis());
                Err(Error::new(ErrorKind::Unavailable, message))
            }
        };
        match &answered {
            Err(error) if !is_answer(error) => self.breaker.failed(error.kind()),
            Ok(_) | Err(_) => self.breaker.succeeded(),
        }
        answered
    }
}

/// Whether the cache has answered, with something that is of no use.
fn is_answer(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Undecryptable)
}

impl Engine {
    /// Puts a cache in front of the store: from now on, replays of records that this node has no copy of are looked for there
    /// first. Of several caches the first one stays.
    pub fn use_cache(&self, copies: Arc<dyn Copies>) {
        self.front.get_or_init(|| Front::new(copies));
    }

    /// The answer of a copy that another node has left in the cache, where that may be used.
    pub(crate) async fn answer_from_front(
        self: &Arc<Self>,
        front: &Front,
        id: &Id,
        request: &Request<'_>,
    ) -> Option<Begun> {
        let asked_at = Instant::now();
        self.look_at_epoch(asked_at);
        let standing = self.standing(asked_at, asked_at)?;
        front.breaker.check().ok()?;
        let (copies, of) = (front.copies.clone(), CopyOf { store: standing.store, id: *id });
        let found = front.ask(&self.tasks, async move { copies.find(of).await }).await;
        let (looked, begun) = match found {
            Ok(Some(copy)) => match self.believe(id, copy, standing, asked_at, request) {
                Some(begun) => (Looked::Hit, Some(begun)),
                None => (Looked::Disbelieved, None),
            },
            Ok(None) => (Looked::Missed, None),
            Err(error) if is_answer(&error) => (Looked::Disbelieved, None),
            Err(_) => (Looked::Failed, None),
        };
        front.counts.count(looked);
        begun
    }

    /// What a copy answers that was looked for at `asked_at`, by what was known then.
    fn believe(
        self: &Arc<Self>,
        id: &Id,
        copy: Copy,
        standing: Standing,
        asked_at: Instant,
        request: &Request<'_>,
    ) -> Option<Begun> {
        let Copy { epoch, record, revision } = copy;
        let now = Instant::now();
        let seen = Seen { record, revision, now: standing.now.plus(CLOCKS_APART) };
        let current = reckoned(seen.clone(), asked_at, now);
        // Looked at again: a new epoch may have been heard of meanwhile.
        let is_believed = self.standing(asked_at, now).is_some_and(|standing| standing.epoch == epoch)
            && Id::of(&seen.record.scope, &seen.record.key) == *id
            && machine::is_replayable(&current);
        let begun = is_believed.then(|| answer_from_copy(current, request)).flatten()?;
        self.cache.keep(*id, &seen, asked_at);
        Some(begun)
    }

    /// Leaves a copy for the other nodes of what the store has shown for a replay. `asked_at` is when it was asked.
    pub(crate) fn fill_front(&self, id: &Id, seen: &Seen, asked_at: Instant) {
        let Some(front) = self.front.get().filter(|front| front.breaker.is_closed()) else { return };
        let now = Instant::now();
        let Some(standing) = self.standing(asked_at, now) else { return };
        let current = reckoned(seen.clone(), asked_at, now);
        let Some(expires_at) = machine::facts(&current.record).expires_at else { return };
        let keep_for = expires_at.since(current.now).min(copies::KEPT_FOR_MAX);
        if !machine::is_replayable(&current) || keep_for <= CLOCKS_APART {
            return;
        }
        let Ok(permit) = front.puts.clone().try_acquire_owned() else { return };
        let of = CopyOf { store: standing.store, id: *id };
        let copy = Copy { epoch: standing.epoch, record: current.record, revision: current.revision };
        let copies = front.copies.clone();
        self.tasks.spawn(async move {
            if let Err(error) = copies.put(of, copy, keep_for).await {
                tracing::debug!(record = %of.id.short(), error = %chain(&error), "no copy was left in the cache");
            }
            drop(permit);
        });
    }

    /// Removes the copy of a record that was forgotten. Where the cache does not answer, it stays there for up to an hour, and the
    /// next epoch keeps everybody from using it.
    pub(crate) async fn drop_copy(&self, id: &Id) {
        let Some(front) = self.front.get() else { return };
        let Ok(store) = self.store_name().await else { return };
        if front.breaker.check().is_err() {
            return;
        }
        let (copies, of) = (front.copies.clone(), CopyOf { store, id: *id });
        if let Err(error) = front.ask(&self.tasks, async move { copies.remove(of).await }).await {
            tracing::warn!(record = %id.short(), error = %chain(&error), "the copy of a forgotten record may stay in the cache for up to an hour; no node uses it");
        }
    }

    /// What is risky or worth knowing about the cache. That it does not answer is a warning: requests are served without it.
    pub(crate) async fn examine_front(&self) -> Vec<Finding> {
        let Some(front) = self.front.get() else { return Vec::new() };
        let says = match timeout(EXAMINED_WITHIN, front.copies.examine()).await {
            Ok(Ok(findings)) => return findings,
            Ok(Err(error)) => chain(&error),
            Err(_) => format!("no answer within {} s", EXAMINED_WITHIN.as_secs()),
        };
        vec![Finding {
            level: Level::Warning,
            code: "cache.unavailable",
            says: format!("the cache does not answer, and every replay asks the store: {says}"),
            remedy: "bring it back, or unset cache".to_owned(),
        }]
    }
}

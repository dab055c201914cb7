//! Duplicates that wait for the answer.
//!
//! A duplicate of what runs on this node is woken when that has ended. For what runs on another node, or is unknown and
//! waits for a verdict, one task a key looks at the store, however many wait for it. Waiting holds no thread and no
//! connection, and no more than `WAITERS_MAX` wait at once. Looks go together in one round trip (an engine with a
//! server sees to that), and all of a node's looks stay below `LOOKS_PER_SECOND`: where very many keys are waited for,
//! each is looked at less often.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use onlyonce_core::record::{Id, Revision};
use onlyonce_store::hash::ById;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::engine::Engine;

/// So many duplicates may wait at once on one node; more are refused as if they had not asked to.
const WAITERS_MAX: usize = 20_000;
/// How often one task looks at a record that runs elsewhere.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// How many looks a node makes in all, about; 500 keys are looked at as often as one.
const LOOKS_PER_SECOND: u32 = 20_000;
/// How long one look may take.
const LOOK_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(crate) struct Watches {
    waiting: AtomicUsize,
    watches: Mutex<HashMap<Id, Arc<Watch>, ById>>,
}

#[derive(Debug)]
struct Watch {
    /// The revision that whoever waits was refused on.
    revision: Option<Revision>,
    changed: Notify,
}

/// What waiting came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// Something changed: look again.
    Changed,
    /// The time is up, or too many wait.
    Over,
}

impl Engine {
    /// Waits until the record may no longer be at the revision it was refused on.
    pub(crate) async fn wait(
        self: &Arc<Self>,
        id: &Id,
        refused_on: Option<Revision>,
        until: Instant,
    ) -> Waited {
        let Some(_waiter) = Waiter::new(&self.watches) else { return Waited::Over };
        let waited = match self.in_progress(id) {
            Some(in_progress) => timeout_at(until, in_progress.ended()).await,
            // Boxed, so that those who wait for what runs here do not reserve space for it.
            None => Box::pin(timeout_at(until, self.watch(*id, refused_on))).await,
        };
        match waited {
            Ok(()) => Waited::Changed,
            Err(_) => Waited::Over,
        }
    }

    /// Waits for the one task that looks at the store; begins it where there is none.
    async fn watch(self: &Arc<Self>, id: Id, refused_on: Option<Revision>) {
        let (watch, begins) = self.watches.join(id, refused_on);
        let changed = watch.changed.notified();
        // Whoever was refused on another revision than the one looked for looks again for itself, but no more often
        // than the one who looks for the others: at once, it would ask the store without a pause until that one wakes.
        if watch.revision != refused_on {
            let _ = timeout(LOOK_EVERY, changed).await;
            return;
        }
        // It may have been told between joining and listening: then it is no longer in the table.
        if !self.watches.is_current(&id, &watch) {
            return;
        }
        if begins {
            let engine = self.clone();
            self.tasks.spawn(async move { engine.look(id, refused_on).await });
        }
        changed.await;
    }

    async fn look(&self, id: Id, refused_on: Option<Revision>) {
        while self.watches.is_watched(&id) {
            let asked_at = Instant::now();
            // A store that does not answer is no news.
            if let Ok(seen) = self.load(&id, LOOK_TIMEOUT).await
                && seen.as_ref().map(|seen| seen.revision) != refused_on
            {
                // Everybody who waits is about to ask for it.
                if let Some(seen) = &seen {
                    self.cache.keep(id, seen, asked_at);
                }
                break;
            }
            sleep(self.watches.look_every()).await;
        }
        if let Some(watch) = self.watches.lock().remove(&id) {
            watch.changed.notify_waiters();
        }
    }
}

impl Watches {
    /// The watch of a key, and whether it has just begun.
    fn join(&self, id: Id, revision: Option<Revision>) -> (Arc<Watch>, bool) {
        match self.lock().entry(id) {
            Entry::Occupied(entry) => (entry.get().clone(), false),
            Entry::Vacant(entry) => {
                (entry.insert(Arc::new(Watch { revision, changed: Notify::new() })).clone(), true)
            }
        }
    }

    /// How often each key is looked at.
    fn look_every(&self) -> Duration {
        let keys = u32::try_from(self.lock().len()).unwrap_or(u32::MAX);
        LOOK_EVERY.max(Duration::from_secs(1) / LOOKS_PER_SECOND * keys)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Id, Arc<Watch>, ById>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_current(&self, id: &Id, watch: &Arc<Watch>) -> bool {
        self.lock().get(id).is_some_and(|current| Arc::ptr_eq(current, watch))
    }

    /// Whether anybody but the table still holds it.
    fn is_watched(&self, id: &Id) -> bool {
        self.lock().get(id).is_some_and(|watch| Arc::strong_count(watch) > 1)
    }
}

/// One who waits; counted.
struct Waiter<'a>(&'a Watches);

impl<'a> Waiter<'a> {
    fn new(watches: &'a Watches) -> Option<Self> {
        let waiter = Self(watches);
        // Counted first and given back by the drop below where it is one too many.
        (watches.waiting.fetch_add(1, Ordering::Relaxed) < WAITERS_MAX).then_some(waiter)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

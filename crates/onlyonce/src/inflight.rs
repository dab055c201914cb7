//! Requests in progress on this node, by key.
//!
//! Of the requests with one key, the first is the leader: it asks the store, and runs. Those that arrive while it is in
//! progress are followers: they find it here and do not ask. So a thousand duplicates at once cost one write, and those
//! that wait are woken when the leader is done. They do not poll.
//!
//! The table is never the truth. It spares the store questions whose answer this node knows already; where this node is
//! not sure, the store is asked.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onlyonce_core::record::{Id, Seen};
use onlyonce_core::refusal::Refusal;
use onlyonce_store::hash::ById;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Enough shards that two cores seldom need the same one.
const SHARDS: usize = 64;

/// The requests in progress whose ids begin alike. Each shard is reference-counted on its own: a count that all of them
/// share would be written by every request on every core.
type Shard = Arc<Mutex<HashMap<Id, Arc<InProgress>, ById>>>;

/// The table of requests in progress.
#[derive(Debug)]
pub(crate) struct Inflight {
    shards: Box<[Shard]>,
}

/// One request in progress on this node.
#[derive(Debug)]
pub(crate) struct InProgress {
    known: Mutex<Known>,
    changed: Notify,
}

/// What is known of a request in progress.
#[derive(Clone, Debug)]
pub(crate) enum Known {
    /// The store has not answered yet.
    Asking,
    /// It runs; what the store last showed, and when that was by this node's clock.
    Running(Seen, Instant),
    /// The store could not be asked.
    Failed(Refusal),
    /// It is no longer in progress: look again.
    Ended,
}

/// Which of the two a request is.
pub(crate) enum Joined {
    /// The first with this key: it asks the store.
    Leader(Leader),
    /// Another request with this key is in progress.
    Follower(Arc<InProgress>),
}

impl Inflight {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }

    pub(crate) fn join(&self, id: &Id) -> Joined {
        let shard = self.shard(id);
        match lock(shard).entry(*id) {
            Entry::Occupied(entry) => Joined::Follower(entry.get().clone()),
            Entry::Vacant(entry) => {
                let known = Mutex::new(Known::Asking);
                let in_progress = Arc::new(InProgress { known, changed: Notify::new() });
                entry.insert(in_progress.clone());
                Joined::Leader(Leader { shard: shard.clone(), id: *id, in_progress })
            }
        }
    }

    pub(crate) fn find(&self, id: &Id) -> Option<Arc<InProgress>> {
        lock(self.shard(id)).get(id).cloned()
    }

    /// Whether the request in progress with this key has followers.
    pub(crate) fn has_followers(&self, id: &Id) -> bool {
        lock(self.shard(id)).get(id).is_some_and(has_followers)
    }

    fn shard(&self, id: &Id) -> &Shard {
        // The hash of the table takes the last bytes; the shard takes the first.
        &self.shards[usize::from(id.0[0]) % SHARDS]
    }
}

/// Whether anybody but the leader and the table holds it.
fn has_followers(in_progress: &Arc<InProgress>) -> bool {
    Arc::strong_count(in_progress) > 2
}

impl InProgress {
    /// What is known, once the store has answered the leader.
    pub(crate) async fn answered(&self) -> Known {
        loop {
            let changed = self.changed.notified();
            let known = self.known();
            match known {
                Known::Asking => changed.await,
                Known::Running(..) | Known::Failed(_) | Known::Ended => return known,
            }
        }
    }

    /// Ready once it is no longer in progress.
    pub(crate) async fn ended(&self) {
        loop {
            let changed = self.changed.notified();
            if self.has_ended() {
                return;
            }
            changed.await;
        }
    }

    fn known(&self) -> Known {
        lock(&self.known).clone()
    }

    fn has_ended(&self) -> bool {
        match &*lock(&self.known) {
            Known::Asking | Known::Running(..) => false,
            Known::Failed(_) | Known::Ended => true,
        }
    }
}

/// Held by the request that asks the store and runs. Dropping it ends what is in progress, whatever became of it, so that
/// no follower waits in vain.
#[derive(Debug)]
pub(crate) struct Leader {
    shard: Shard,
    id: Id,
    in_progress: Arc<InProgress>,
}

impl Leader {
    /// The store has shown this: the reservation, or a renewal.
    pub(crate) fn runs(&self, seen: Seen, at: Instant) {
        let before = std::mem::replace(&mut *lock(&self.in_progress.known), Known::Running(seen, at));
        if matches!(before, Known::Asking) {
            self.in_progress.changed.notify_waiters();
        }
    }

    pub(crate) fn has_followers(&self) -> bool {
        has_followers(&self.in_progress)
    }

    /// The store could not be asked: followers that wait for its answer are refused with this.
    pub(crate) fn failed(self, refusal: Refusal) {
        self.end(Known::Failed(refusal));
    }

    fn end(&self, known: Known) {
        lock(&self.shard).remove(&self.id);
        *lock(&self.in_progress.known) = known;
        self.in_progress.changed.notify_waiters();
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if !self.in_progress.has_ended() {
            self.end(Known::Ended);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while it is held leaves no half-made change behind: every change is one assignment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

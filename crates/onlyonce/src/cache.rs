//! Completed records, kept in the process so that a replay costs no trip.
//!
//! Never the truth: only completed records are here, which do not change while they are kept, and none is used past
//! its expiry, nor after an operator had it changed (`epoch.rs`). Losing the cache, or never filling it, changes no
//! decision.

use std::time::Duration;

use onlyonce_core::machine;
use onlyonce_core::record::{Id, Seen};
use onlyonce_store::hash::ById;
use quick_cache::Weighter;
use quick_cache::sync::Cache as Entries;
use quick_cache::sync::DefaultLifecycle;
use tokio::time::Instant;

/// How much of answers is kept, in bytes.
const BYTES_MAX: u64 = 64 << 20;
/// What a record costs beside its body.
const RECORD_BYTES: u64 = 640;

#[derive(Debug)]
pub(crate) struct Cache(Entries<Id, Cached, Weight, ById>);

#[derive(Clone, Debug)]
struct Cached {
    seen: Seen,
    /// When this node asked for it.
    asked_at: Instant,
}

/// A copy of a completed record.
pub(crate) struct Copied {
    /// What the store showed, with its clock as this node reckons it now.
    pub(crate) seen: Seen,
    /// When this node asked for it.
    pub(crate) asked_at: Instant,
}

impl Cache {
    pub(crate) fn new() -> Self {
        let items = usize::try_from(BYTES_MAX / RECORD_BYTES).expect("fits every address space");
        Self(Entries::with(items, BYTES_MAX, Weight, ById::default(), DefaultLifecycle::default()))
    }

    /// Keeps what may be replayed. `asked_at` is when this node asked for it.
    pub(crate) fn keep(&self, id: Id, seen: &Seen, asked_at: Instant) {
        if machine::is_replayable(seen) {
            self.0.insert(id, Cached { seen: seen.clone(), asked_at });
        }
    }

    /// The copy of a record that may still be replayed.
    pub(crate) fn find(&self, id: &Id, now: Instant) -> Option<Copied> {
        let Cached { seen, asked_at } = self.0.get(id)?;
        let seen = reckoned(seen, asked_at, now);
        if machine::is_replayable(&seen) {
            return Some(Copied { seen, asked_at });
        }
        self.0.remove(id);
        None
    }

    /// Lets go of everything.
    pub(crate) fn clear(&self) {
        self.0.clear();
    }
}

#[derive(Clone, Debug)]
struct Weight;

impl Weighter<Id, Cached> for Weight {
    fn weight(&self, _id: &Id, cached: &Cached) -> u64 {
        let body = machine::stored(&cached.seen.record).map_or(0, |(response, _)| response.body.len() as u64);
        RECORD_BYTES + body
    }
}

/// What the store showed when it was asked at `asked_at`, with its clock as this node reckons it at `now`: counted from
/// before the question, it is never behind the store's own.
pub(crate) fn reckoned(seen: Seen, asked_at: Instant, now: Instant) -> Seen {
    // One more microsecond, which is what the store's clock may be past the moment it shows.
    let passed = now.saturating_duration_since(asked_at) + Duration::from_micros(1);
    Seen { now: seen.now.plus(passed), ..seen }
}

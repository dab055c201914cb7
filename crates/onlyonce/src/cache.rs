//! Completed records, kept in the process so that a replay costs no trip.
//!
//! Never the truth: only completed records are here, which do not change while they are kept, and none is used past
//! its expiry, nor after an operator had it changed (`epoch.rs`). Losing the cache, or never filling it, changes no
//! decision.

use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use onlyonce_core::machine;
use onlyonce_core::record::{Id, Record, Seen};
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
    record: Arc<Record>,
    /// When the look began that it came from.
    asked_at: Instant,
    /// By this node's monotonic clock, counted from before the look: never later than by the store's.
    until: Instant,
}

impl Cache {
    pub(crate) fn new() -> Self {
        let items = usize::try_from(BYTES_MAX / RECORD_BYTES).expect("fits every address space");
        Self(Entries::with(items, BYTES_MAX, Weight, ById::default(), DefaultLifecycle::default()))
    }

    /// Keeps what may be replayed. `asked_at` is when the look began that `seen` came from.
    pub(crate) fn keep(&self, id: Id, seen: &Seen, asked_at: Instant) {
        let Some((_, expires_at)) = machine::stored(&seen.record) else { return };
        let Some(until) = asked_at.checked_add(expires_at.since(seen.now)) else { return };
        self.0.insert(id, Cached { record: seen.record.clone(), asked_at, until });
    }

    /// A completed record that has not expired, and when the look began that it came from.
    pub(crate) fn find(&self, id: &Id, now: Instant) -> Option<(Arc<Record>, Instant)> {
        let cached = self.0.get(id)?;
        if now < cached.until {
            return Some((cached.record, cached.asked_at));
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
        let body = machine::stored(&cached.record).map_or(0, |(response, _)| response.body.len() as u64);
        RECORD_BYTES + body
    }
}

pub(crate) type ById = BuildHasherDefault<IdHasher>;

/// An id is a digest already: eight of its bytes are as good as any hash of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        let mut first = [0; 8];
        let length = bytes.len().min(8);
        first[..length].copy_from_slice(&bytes[..length]);
        self.0 ^= u64::from_le_bytes(first);
    }

    fn write_usize(&mut self, _length: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

//! How many bytes of bodies are held in memory, of all keyed requests together.
//!
//! A keyed request's body is held from its first byte until its answer is on the way. Answers that are to be stored are counted too, but never
//! refused: their work is done.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::Engine;

#[derive(Debug)]
pub(crate) struct Buffered {
    held: AtomicU64,
    max: AtomicU64,
}

impl Default for Buffered {
    fn default() -> Self {
        Self { held: AtomicU64::new(0), max: AtomicU64::new(u64::MAX) }
    }
}

impl Buffered {
    pub(crate) fn bound(&self, bytes_max: u64) {
        self.max.store(bytes_max, Ordering::Relaxed);
    }

    /// Counts so many more; not where that would be too many.
    fn take(&self, bytes: u64) -> bool {
        let held = self.held.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let fits = held <= self.max.load(Ordering::Relaxed);
        if !fits {
            self.give_back(bytes);
        }
        fits
    }

    fn give_back(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }
}

/// What one request holds. Whoever owns it gives it back.
#[derive(Debug, Default)]
pub(crate) struct Share(AtomicU64);

impl Share {
    /// Holds so many more; not where that would be too many.
    pub(crate) fn take(&self, of: &Buffered, bytes: u64) -> bool {
        let is_taken = of.take(bytes);
        if is_taken {
            self.0.fetch_add(bytes, Ordering::Relaxed);
        }
        is_taken
    }

    /// Holds so many more, whether or not that is too many.
    pub(crate) fn take_anyway(&self, of: &Buffered, bytes: u64) {
        of.held.fetch_add(bytes, Ordering::Relaxed);
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes over what another holds.
    pub(crate) fn add(&self, mut other: Self) {
        self.0.fetch_add(std::mem::take(other.0.get_mut()), Ordering::Relaxed);
    }

    pub(crate) fn give_back(&mut self, to: &Buffered) {
        let bytes = std::mem::take(self.0.get_mut());
        if bytes > 0 {
            to.give_back(bytes);
        }
    }
}

/// What is held of a request whose key is not known yet. It is given back unless it is handed on.
pub(crate) struct Held {
    engine: Arc<Engine>,
    share: Share,
}

impl Held {
    pub(crate) fn nothing(engine: Arc<Engine>) -> Self {
        Self { engine, share: Share::default() }
    }

    /// Holds so many more; not where that would be too many.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        self.share.take(&self.engine.buffered, bytes)
    }

    /// Hands it on to whoever gives it back.
    pub(crate) fn into_share(mut self) -> Share {
        std::mem::take(&mut self.share)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.share.give_back(&self.engine.buffered);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L06
    #[test]
    fn the_sum_is_bounded_and_given_back() {
        let buffered = Buffered::default();
        let (mut one, mut other) = (Share::default(), Share::default());
        assert!(one.take(&buffered, u64::MAX / 2), "nobody set a bound");
        one.give_back(&buffered);
        buffered.bound(10);
        assert!(one.take(&buffered, 6) && other.take(&buffered, 4));
        assert!(!other.take(&buffered, 1));
        other.take_anyway(&buffered, 5);
        one.give_back(&buffered);
        assert!(!one.take(&buffered, 2));
        assert!(one.take(&buffered, 1));
        other.give_back(&buffered);
        one.give_back(&buffered);
        assert_eq!(buffered.held(), 0);
    }
}

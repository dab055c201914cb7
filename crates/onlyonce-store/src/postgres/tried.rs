//! Keys that this node has tried to reserve lately, as far as it remembers.
//!
//! A retry often comes to the node that had the request before, a moment later. Who knows that takes a look along with the
//! insert, since that will be lost (`care.rs`). It is a guess: a key that was forgotten, for another in its place, costs
//! a trip and nothing else.

use std::sync::atomic::{AtomicU64, Ordering};

use onlyonce_core::record::Id;

/// Half a megabyte: some minutes of the requests of a node whose writes go alone.
const PLACES: usize = 1 << 16;

/// One key for each place: the last that fell on it.
pub(super) struct Tried(Box<[AtomicU64]>);

impl Tried {
    /// Remembers this one, and says whether it was remembered already.
    pub(super) fn again(&self, id: Id) -> bool {
        // An id is a digest: any of its bytes are as good as the others.
        let [low, high, ..] = id.0;
        let place = usize::from(u16::from_le_bytes([low, high]));
        let name = id.0.last_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        self.0[place].swap(name, Ordering::Relaxed) == name
    }
}

impl Default for Tried {
    fn default() -> Self {
        Self((0..PLACES).map(|_| AtomicU64::new(0)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_remembered_until_another_takes_its_place() {
        let tried = Tried::default();
        let [one, other] = [1, 2].map(|last| {
            let mut id = Id([7; 32]);
            id.0[31] = last;
            id
        });
        assert!(!tried.again(one));
        assert!(tried.again(one));
        assert!(!tried.again(other));
        assert!(!tried.again(one));
        let last = Id([u8::MAX; 32]);
        assert!(!tried.again(last));
        assert!(tried.again(last) && tried.again(one), "each in its own place");
    }
}

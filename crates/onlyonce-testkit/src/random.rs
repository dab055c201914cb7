//! Random numbers that follow from a seed, so that a run can be repeated.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A stream of numbers that follows from its seed (SplitMix64). If the tasks of one thread share it, the order in which
/// they draw follows from the seed too.
#[derive(Debug)]
pub struct Random(AtomicU64);

impl Random {
    /// The stream of this seed.
    pub fn new(seed: u64) -> Self {
        // Neighbouring seeds would give streams that overlap.
        Self(AtomicU64::new(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 0x5851_f42d_4c95_7f2d))
    }

    /// Any number.
    pub fn number(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let state = self.0.fetch_add(STEP, Ordering::SeqCst).wrapping_add(STEP);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number of this range.
    pub fn within(&self, range: RangeInclusive<u64>) -> u64 {
        range.start() + self.number() % (range.end() - range.start() + 1)
    }

    /// A duration of this range of milliseconds.
    pub fn millis(&self, range: RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.within(range))
    }

    /// True with this probability, in percent.
    pub fn percent(&self, percent: u64) -> bool {
        self.within(1..=100) <= percent
    }

    /// One of these. The list must not be empty.
    pub fn pick<T: Copy>(&self, from: &[T]) -> T {
        from[self.index(from.len())]
    }

    /// An index of a list of this length, which must not be 0.
    pub fn index(&self, length: usize) -> usize {
        let last = length as u64 - 1;
        usize::try_from(self.within(0..=last)).expect("an index of this list")
    }

    /// One of these, with a probability by its weight.
    pub fn weighed<T: Copy>(&self, from: &[(u64, T)]) -> T {
        let mut left = self.within(1..=from.iter().map(|(weight, _)| weight).sum());
        for (weight, one) in from {
            if left <= *weight {
                return *one;
            }
            left -= weight;
        }
        unreachable!("what is left is never above the sum of the weights")
    }
}

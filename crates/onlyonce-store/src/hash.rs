//! A keyed hash of ids.
//!
//! An id is a digest, so a few of its bytes would be a good hash, but clients choose the keys it is made from: an attacker
//! who knows which bytes count can make all ids collide. So the bytes are multiplied with two random numbers drawn with the
//! table, and both halves of the product count.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};

/// Hashes ids with two random numbers of its own: `HashMap<Id, _, ById>`.
#[derive(Clone)]
pub struct ById([u64; 2]);

impl Default for ById {
    fn default() -> Self {
        let random = RandomState::new();
        Self([random.hash_one(0_u8), random.hash_one(1_u8)])
    }
}

impl fmt::Debug for ById {
    /// Without the two numbers: they are secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ById")
    }
}

impl BuildHasher for ById {
    type Hasher = IdHasher;

    fn build_hasher(&self) -> IdHasher {
        IdHasher { drawn: self.0, hash: 0 }
    }
}

/// See [`ById`].
pub struct IdHasher {
    drawn: [u64; 2],
    hash: u64,
}

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        // The last bytes: in a sharded table, the first byte has chosen the shard.
        let (rest, last) = bytes.split_last_chunk().unwrap_or((bytes, &[0; 8]));
        let before = rest.last_chunk().unwrap_or(&[0; 8]);
        let factors = [before, last].map(|bytes| u64::from_le_bytes(*bytes));
        let product = u128::from(factors[0] ^ self.drawn[0]) * u128::from(factors[1] ^ self.drawn[1]);
        let [high, low] = [product >> 64, product & u128::from(u64::MAX)];
        self.hash ^= u64::try_from(high ^ low).expect("each half of the product is 64 bits");
    }

    /// Hashing an array writes its length first; all ids have the same.
    fn write_usize(&mut self, _length: usize) {}

    fn finish(&self) -> u64 {
        self.hash
    }
}

#[cfg(test)]
mod tests {
    use onlyonce_core::record::Id;

    use super::*;

    #[test]
    fn ids_that_differ_anywhere_in_their_last_half_hash_apart_and_each_table_in_its_own_way() {
        let (one, other) = (ById::default(), ById::default());
        let plain = Id([7; 32]);
        for byte in 16..32 {
            let mut id = plain;
            id.0[byte] ^= 1;
            assert_ne!(one.hash_one(id), one.hash_one(plain), "byte {byte}");
            assert_ne!(one.hash_one(id), other.hash_one(id), "byte {byte}");
        }
    }
}

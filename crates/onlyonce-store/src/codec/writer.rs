//! Encodes the primitive parts of a blob.

use std::time::Duration;

/// Enough for most, so that they take one allocation.
const CAPACITY: usize = 128;

pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn new(version: u8) -> Self {
        let mut out = Vec::with_capacity(CAPACITY);
        out.push(version);
        Self(out)
    }

    /// Behind what stands there already.
    #[cfg(feature = "redis")]
    pub(crate) fn after(parts: &[&[u8]], version: u8) -> Self {
        let mut out = Vec::with_capacity(parts.iter().map(|part| part.len()).sum::<usize>() + 2 * CAPACITY);
        parts.iter().for_each(|part| out.extend_from_slice(part));
        out.push(version);
        Self(out)
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }

    pub(crate) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub(crate) fn flag(&mut self, flag: bool) {
        self.byte(flag.into());
    }

    /// Seven bits a byte, the lowest first; the eighth says that more follow.
    pub(crate) fn integer(&mut self, mut integer: u64) {
        while integer >= 0x80 {
            self.byte(low_bits(integer) | 0x80);
            integer >>= 7;
        }
        self.byte(low_bits(integer));
    }

    /// Bytes of a fixed length.
    pub(crate) fn array(&mut self, array: &[u8]) {
        self.0.extend_from_slice(array);
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.integer(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    pub(crate) fn option<T>(&mut self, option: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.flag(option.is_some());
        if let Some(value) = option {
            write(self, value);
        }
    }

    pub(crate) fn span(&mut self, span: Duration) {
        self.integer(span.as_secs());
        self.integer(span.subsec_nanos().into());
    }
}

fn low_bits(integer: u64) -> u8 {
    integer.to_le_bytes()[0] & 0x7f
}

//! Encodes the primitive parts of a blob.

use std::time::Duration;

/// Enough for most, so that they take one allocation.
const CAPACITY: usize = 128;

pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn new(version: u8) -> Self {
        let mut out = Vec::with_capacity(CAPACITY);
        out.push(version);
        Self(out)
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.0
    }

    pub(super) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub(super) fn flag(&mut self, flag: bool) {
        self.byte(flag.into());
    }

    /// Seven bits a byte, the lowest first; the eighth says that more follow.
    pub(super) fn integer(&mut self, mut integer: u64) {
        while integer >= 0x80 {
            self.byte(low_bits(integer) | 0x80);
            integer >>= 7;
        }
        self.byte(low_bits(integer));
    }

    /// Bytes of a fixed length.
    pub(super) fn array(&mut self, array: &[u8]) {
        self.0.extend_from_slice(array);
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.integer(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    pub(super) fn option<T>(&mut self, option: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.flag(option.is_some());
        if let Some(value) = option {
            write(self, value);
        }
    }

    pub(super) fn span(&mut self, span: Duration) {
        self.integer(span.as_secs());
        self.integer(span.subsec_nanos().into());
    }
}

fn low_bits(integer: u64) -> u8 {
    integer.to_le_bytes()[0] & 0x7f
}

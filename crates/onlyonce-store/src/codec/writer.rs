//! The primitive parts of a blob, written.

use std::time::Duration;

use onlyonce_core::time::When;

/// Most records fit beside their answer, so that they are written with one allocation.
const CAPACITY: usize = 256;

pub(super) struct Writer(Vec<u8>);

impl Writer {
    /// With room for an answer of so many bytes.
    pub(super) fn new(version: u8, answer_bytes: usize) -> Self {
        let mut out = Vec::with_capacity(CAPACITY + answer_bytes);
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

    /// Bytes of a length that both sides know.
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

    pub(super) fn moment(&mut self, moment: When) {
        match moment {
            When::At(at) => {
                self.byte(0);
                self.integer(zigzag(at.as_micros()));
            }
            When::AfterWrite(span) => {
                self.byte(1);
                self.span(span);
            }
        }
    }
}

fn low_bits(integer: u64) -> u8 {
    integer.to_le_bytes()[0] & 0x7f
}

/// Small numbers of either sign become small numbers.
fn zigzag(number: i64) -> u64 {
    (number.cast_unsigned() << 1) ^ (number >> 63).cast_unsigned()
}

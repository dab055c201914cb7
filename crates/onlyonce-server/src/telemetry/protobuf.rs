//! The wire format of protobuf, as far as OTLP needs it to be written.

/// A message under way.
#[derive(Default)]
pub(super) struct Message(Vec<u8>);

/// How a field is written.
const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const BYTES: u32 = 2;

impl Message {
    /// The message of what `write` writes.
    pub(super) fn of(write: impl FnOnce(&mut Self)) -> Vec<u8> {
        let mut message = Self::default();
        write(&mut message);
        message.0
    }

    /// An `int64`, a `bool` or an enum.
    pub(super) fn integer(&mut self, field: u32, value: i64) {
        self.tag(field, VARINT);
        self.varint(value.cast_unsigned());
    }

    pub(super) fn fixed64(&mut self, field: u32, value: u64) {
        self.tag(field, FIXED64);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn double(&mut self, field: u32, value: f64) {
        self.fixed64(field, value.to_bits());
    }

    pub(super) fn bytes(&mut self, field: u32, value: &[u8]) {
        self.tag(field, BYTES);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
    }

    pub(super) fn text(&mut self, field: u32, value: &str) {
        self.bytes(field, value.as_bytes());
    }

    /// A message within this one.
    pub(super) fn message(&mut self, field: u32, write: impl FnOnce(&mut Self)) {
        self.bytes(field, &Self::of(write));
    }

    /// Numbers of 64 bits, as one field.
    pub(super) fn packed(&mut self, field: u32, values: impl Iterator<Item = u64>) {
        let bytes: Vec<u8> = values.flat_map(u64::to_le_bytes).collect();
        self.bytes(field, &bytes);
    }

    fn tag(&mut self, field: u32, kind: u32) {
        self.varint((field << 3 | kind).into());
    }

    /// Seven bits a byte, the lowest first; the eighth says that more follow.
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.0.push(value.to_le_bytes()[0]);
    }
}

//! A swap as it stands on a tape: everything that is needed to carry it over.
//!
//! | part | bytes |
//! |---|---|
//! | id | 32 |
//! | revision, written_at | 8 each |
//! | record | length (4), as `codec.rs` writes it |
//! | messages | number (4); of each key, destination and payload: length (4), bytes |
//!
//! Numbers are little-endian. The tape has a digest of it all, so what does not read is not what was written.

use std::str;
use std::sync::Arc;

use bytes::Bytes;
use onlyonce_core::record::{Id, Revision};
use onlyonce_core::time::Timestamp;

use super::fresh::{Round, Written};
use crate::outbox::Message;
use crate::{Error, ErrorKind, codec};

pub(super) fn write(out: &mut Vec<u8>, id: &Id, written: &Written, messages: &[Message]) {
    out.extend_from_slice(&id.0);
    out.extend_from_slice(&written.revision.0.to_le_bytes());
    out.extend_from_slice(&written.record.written_at.as_micros().to_le_bytes());
    bytes(out, &written.blob);
    number(out, messages.len());
    for message in messages {
        bytes(out, message.key.as_bytes());
        bytes(out, message.destination.as_bytes());
        bytes(out, &message.payload);
    }
}

/// Puts every swap of a batch into `round`.
pub(super) fn read_all(batch: &[u8], round: &mut Round) -> Result<(), Error> {
    let mut from = Reader(batch);
    while !from.0.is_empty() {
        let id = Id(from.array()?);
        let revision = Revision(u64::from_le_bytes(from.array()?));
        let now = Timestamp::from_micros(i64::from_le_bytes(from.array()?));
        let blob = from.bytes()?.to_vec();
        let next = codec::decode(&blob)?;
        let mut messages = Vec::new();
        for _ in 0..from.number()? {
            messages.push(Message {
                key: from.text()?,
                destination: from.text()?,
                payload: Bytes::copy_from_slice(from.bytes()?),
            });
        }
        round.put(id, Written::new(revision, next, blob, now), messages);
    }
    Ok(())
}

fn number(out: &mut Vec<u8>, number: usize) {
    // Longer than this no batch is: the tape refuses it.
    out.extend_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
}

fn bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    number(out, bytes.len());
    out.extend_from_slice(bytes);
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or_else(unreadable)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        self.take(N)?.try_into().map_err(|_| unreadable())
    }

    fn number(&mut self) -> Result<usize, Error> {
        usize::try_from(u32::from_le_bytes(self.array()?)).map_err(|_| unreadable())
    }

    fn bytes(&mut self) -> Result<&'a [u8], Error> {
        let count = self.number()?;
        self.take(count)
    }

    fn text(&mut self) -> Result<Arc<str>, Error> {
        str::from_utf8(self.bytes()?).map(Arc::from).map_err(|_| unreadable())
    }
}

fn unreadable() -> Error {
    Error::new(
        ErrorKind::Corrupt,
        "what stands on a tape of the store cannot be read; open it with the release that wrote it, or restore it from a backup",
    )
}

//! Decodes the primitive parts of a blob. Every step is checked, and errors name the field.

use std::sync::Arc;
use std::time::Duration;

use crate::{Error, ErrorKind};
use bytes::Bytes;
use http::{HeaderName, HeaderValue};

const NANOS_PER_SEC: u32 = 1_000_000_000;

pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(blob: &'a [u8]) -> Self {
        Self { rest: blob }
    }

    pub(crate) fn end(&self) -> Result<(), Error> {
        match self.rest.len() {
            0 => Ok(()),
            more => Err(corrupt(&format!("has {more} bytes after its end"))),
        }
    }

    fn take(&mut self, length: usize, what: &str) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or_else(|| cut_short(what))?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn byte(&mut self, what: &str) -> Result<u8, Error> {
        Ok(self.take(1, what)?[0])
    }

    /// The version, which must be this.
    #[cfg(any(feature = "dynamodb", feature = "redis"))]
    pub(crate) fn version(&mut self, version: u8) -> Result<(), Error> {
        match self.byte("version")? {
            read if read == version => Ok(()),
            other => Err(unknown_tag("version", other)),
        }
    }

    pub(crate) fn flag(&mut self, what: &str) -> Result<bool, Error> {
        match self.byte(what)? {
            0 => Ok(false),
            1 => Ok(true),
            tag => Err(unknown_tag(what, tag)),
        }
    }

    pub(crate) fn integer<T: TryFrom<u64>>(&mut self, what: &str) -> Result<T, Error> {
        let integer = self.varint(what)?;
        T::try_from(integer)
            .map_err(|_| corrupt(&format!("has {integer} for its {what}, which is out of range")))
    }

    fn varint(&mut self, what: &str) -> Result<u64, Error> {
        let mut integer = 0_u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte(what)?;
            let bits = u64::from(byte & 0x7f);
            let is_last = byte < 0x80;
            // Bits beyond the 64th, or a redundant last byte: not written by this codec.
            if bits << shift >> shift != bits || (is_last && byte == 0 && shift > 0) {
                break;
            }
            integer |= bits << shift;
            if is_last {
                return Ok(integer);
            }
        }
        Err(corrupt(&format!("has a malformed integer in its {what}")))
    }

    pub(crate) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Error> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N, what)?);
        Ok(array)
    }

    pub(crate) fn bytes(&mut self, what: &str) -> Result<&'a [u8], Error> {
        let length = self.integer(what)?;
        self.take(length, what)
    }

    pub(crate) fn shared_bytes(&mut self, what: &str) -> Result<Bytes, Error> {
        self.bytes(what).map(Bytes::copy_from_slice)
    }

    pub(crate) fn text(&mut self, what: &str) -> Result<&'a str, Error> {
        let bytes = self.bytes(what)?;
        str::from_utf8(bytes).map_err(|error| corrupt(&format!("has no text in its {what}")).because(error))
    }

    pub(crate) fn shared_text(&mut self, what: &str) -> Result<Arc<str>, Error> {
        self.text(what).map(Arc::from)
    }

    pub(crate) fn option<T>(
        &mut self,
        what: &str,
        read: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        self.flag(what)?.then(|| read(self)).transpose()
    }

    pub(crate) fn span(&mut self, what: &str) -> Result<Duration, Error> {
        let secs = self.integer(what)?;
        let nanos = self.integer(what)?;
        if nanos >= NANOS_PER_SEC {
            return Err(corrupt(&format!("has {nanos} nanoseconds in a second of its {what}")));
        }
        Ok(Duration::new(secs, nanos))
    }

    pub(crate) fn header(&mut self) -> Result<(HeaderName, HeaderValue), Error> {
        let name = HeaderName::from_lowercase(self.bytes("header name")?)
            .map_err(|error| corrupt("has an invalid header name").because(error))?;
        let value = HeaderValue::from_bytes(self.bytes("header value")?)
            .map_err(|error| corrupt(&format!("has an invalid value of header {name}")).because(error))?;
        Ok((name, value))
    }
}

pub(crate) fn unknown_tag(what: &str, tag: u8) -> Error {
    corrupt(&format!("has the unknown tag {tag} for its {what}"))
}

fn cut_short(what: &str) -> Error {
    corrupt(&format!("is cut short in its {what}"))
}

pub(crate) fn corrupt(how: &str) -> Error {
    let message = format!("column \"rest\" {how}; restore the record from a backup, or forget its key");
    Error::new(ErrorKind::Corrupt, message)
}

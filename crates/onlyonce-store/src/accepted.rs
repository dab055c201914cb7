//! Requests of accepted work: stored with the record that accepts them, so that a worker of any node can run them.
//!
//! A request is written in the commit that makes its record pending, is kept while the work is pending, running or waits for
//! another attempt, and is deleted in the commit that ends the work ([`machine::ends_acceptance`]) or with its record. To an
//! engine it is bytes.

use bytes::Bytes;
#[cfg(doc)]
use onlyonce_core::machine;

/// What a write of a record does to the stored request of its work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Request {
    /// It stays, where there is one.
    #[default]
    Keep,
    /// It is deleted: the work has ended.
    Drop,
    /// This is stored. One that was left by another use of the key is replaced.
    Put(Bytes),
}

#[cfg(any(feature = "mysql", feature = "sqlite", feature = "postgres"))]
impl Request {
    /// How many bytes are stored.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Keep | Self::Drop => 0,
            Self::Put(request) => request.len(),
        }
    }
}

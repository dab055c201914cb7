//! What can be told of a record whose encryption key is missing.

use std::sync::Arc;

use onlyonce_core::record::{Id, Record, Revision};
use onlyonce_core::time::Timestamp;

use crate::seal::KeyId;

/// A record that is encrypted with a key that this node does not have: what stands in clear. Nothing may be decided by it but
/// whether it has expired, and nothing may be written over it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The key that is missing.
    pub key_id: KeyId,
    /// The record without its stored answer and without the answers in its evidence.
    pub record: Arc<Record>,
    /// The status of the stored answer, where there is one.
    pub status: Option<u16>,
    /// The length of the stored answer's body.
    pub body_bytes: Option<usize>,
    /// Its revision.
    pub revision: Revision,
    /// The store's clock when it looked.
    pub now: Timestamp,
}

impl Unreadable {
    /// The record's id.
    pub fn id(&self) -> Id {
        Id::of(&self.record.scope, &self.record.key)
    }
}

/// A key that something in a store is encrypted with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyUse {
    /// The key.
    pub id: KeyId,
    /// How many rows are encrypted with it: records, archived ones, results of phases and messages.
    pub rows: u64,
    /// Whether this node has it.
    pub is_known: bool,
}

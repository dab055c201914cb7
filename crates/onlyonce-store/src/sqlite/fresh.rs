//! What is durable on the tapes and not yet in the database, by id: whoever looks, looks here first.
//!
//! ```text
//!   swap ─► tape, synced ─► open ──round is full──► behind ──carried over──► gone: the database has it
//! ```
//!
//! A record is here before anybody is told of it, and leaves only when the database shows it. So who looks here and then
//! in the database never misses it, in this order.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use onlyonce_core::record::{Draft, Id, Record, Revision, Seen};
use onlyonce_core::time::Timestamp;

use crate::outbox;

/// A record as it was last written.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) revision: Revision,
    pub(super) due_at: Option<Timestamp>,
    pub(super) record: Arc<Record>,
    /// The record, encoded.
    pub(super) blob: Vec<u8>,
}

impl Written {
    pub(super) fn new(revision: Revision, next: Draft, blob: Vec<u8>, now: Timestamp) -> Self {
        Self { revision, due_at: next.due().stamp(now), record: Arc::new(next.stamp(now)), blob }
    }

    pub(super) fn seen(&self, now: Timestamp) -> Seen {
        Seen { record: self.record.clone(), revision: self.revision, now }
    }
}

/// All that one round has written: of each record the last state, and every message.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub(super) written: HashMap<Id, Written>,
    pub(super) messages: Vec<(outbox::Message, Timestamp)>,
    /// About how much memory it takes.
    pub(super) bytes: usize,
}

impl Round {
    pub(super) fn put(&mut self, id: Id, written: Written, messages: Vec<outbox::Message>) {
        let now = written.record.written_at;
        self.bytes += written.blob.len() + size_of::<Record>();
        self.bytes += messages.iter().map(|message| message.payload.len()).sum::<usize>();
        self.messages.extend(messages.into_iter().map(|message| (message, now)));
        if let Some(before) = self.written.insert(id, written) {
            self.bytes -= before.blob.len() + size_of::<Record>();
        }
    }
}

/// The round under way, and the one that is being carried over.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    pub(super) open: Round,
    pub(super) behind: Option<Arc<Round>>,
}

impl Rounds {
    pub(super) fn get(&self, id: &Id) -> Option<&Written> {
        self.open.written.get(id).or_else(|| self.behind.as_ref()?.written.get(id))
    }
}

#[derive(Debug, Default)]
pub(super) struct Fresh(RwLock<Rounds>);

impl Fresh {
    /// While this is held nothing leaves for the database: who finds nothing here and then asks the database, holding it,
    /// has not missed anything in between.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, Rounds> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, Rounds> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The round under way is full: it is shown on, and a new one begins.
    pub(super) fn turn(&self) -> Arc<Round> {
        let mut rounds = self.write();
        let full = Arc::new(std::mem::take(&mut rounds.open));
        rounds.behind = Some(full.clone());
        full
    }

    /// The database shows all of the round that was behind.
    pub(super) fn carried(&self) {
        self.write().behind = None;
    }
}

//! A write of a record on its way to a server.

use std::sync::Arc;

use onlyonce_core::record::{Draft, Id, Revision, Seen};
use onlyonce_core::time::Timestamp;

use super::Sealing;
use crate::seal::Keyring;
use crate::{Attached, Change, Swapped, sql};

/// A write of a record.
#[derive(Debug)]
pub(crate) struct Swap {
    pub(crate) id: Id,
    pub(crate) expected: Option<i64>,
    pub(crate) revision: i64,
    pub(crate) next: Box<Draft>,
    pub(crate) with: Attached,
    pub(crate) sealing: Option<Box<Sealing>>,
}

impl Swap {
    /// What is to be encrypted is encrypted here, and not by the task that sends a batch.
    pub(crate) fn of(id: Id, change: Change, keyring: Option<&Keyring>) -> Self {
        let Change { expected, revision, next, mut with } = change;
        let expected = expected.map(|revision| revision.0.cast_signed());
        let sealing = Sealing::of(keyring, &id, &next, &mut with);
        Self { id, expected, revision: revision.0.cast_signed(), next, with, sealing }
    }

    /// About how many bytes are sent.
    pub(crate) fn bytes(&self) -> usize {
        sql::bytes(&self.next) + self.with.request.bytes()
    }

    pub(crate) fn applied(self, written_at: Timestamp) -> Swapped {
        let revision = Revision(self.revision.cast_unsigned());
        Swapped::Applied(Seen { record: Arc::new(self.next.stamp(written_at)), revision, now: written_at })
    }

    /// Whether what was seen is what this write expects, so that it may be sent again.
    pub(crate) fn expects(&self, seen: Option<&Seen>) -> bool {
        let revision = self.expected.map(|revision| Revision(revision.cast_unsigned()));
        seen.is_some_and(|seen| Some(seen.revision) == revision)
    }
}

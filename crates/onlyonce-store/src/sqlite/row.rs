//! A record as a row, and how it is read.
//!
//! The columns beside the record are for finding rows and for people with `sqlite3`; what counts is the record.

use std::sync::Arc;

use onlyonce_core::record::{Draft, Id, Record, Revision, Seen};
use onlyonce_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row};

use crate::{Change, Error, codec, outbox};

/// A write of a record, made ready on the caller's thread: the intake's time is everybody's.
pub(super) struct Swap {
    pub(super) id: Id,
    pub(super) expected: Option<Revision>,
    pub(super) revision: Revision,
    pub(super) next: Box<Draft>,
    /// What it becomes, encoded.
    pub(super) record: Vec<u8>,
    pub(super) messages: Vec<outbox::Message>,
}

/// What a row costs beside its record, about.
const ROW_BYTES: usize = 256;

impl Swap {
    pub(super) fn of(id: Id, change: Change) -> Self {
        let Change { expected, revision, next, messages } = change;
        Self { id, expected, revision, record: codec::encode(&next), next, messages }
    }

    /// About how much it writes.
    pub(super) fn bytes(&self) -> usize {
        let messages = self.messages.iter().map(|message| message.payload.len() + ROW_BYTES);
        self.record.len() + ROW_BYTES + messages.sum::<usize>()
    }
}

/// A row as it was read, not yet understood: decoding can fail, and that is no error of SQLite's.
pub(super) struct Stored {
    pub(super) id: Id,
    pub(super) revision: Revision,
    written_at: Timestamp,
    /// When it is due; where the statement asked for it.
    pub(super) due_at: Option<Timestamp>,
    draft: Result<Draft, Error>,
}

impl Stored {
    /// From the columns id, revision, written_at, record and due_at, in this order.
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: Id(row.get(0)?),
            revision: Revision(row.get::<_, i64>(1)?.cast_unsigned()),
            written_at: Timestamp::from_micros(row.get(2)?),
            draft: codec::decode(row.get_ref(3)?.as_blob()?),
            due_at: row.get::<_, Option<i64>>(4)?.map(Timestamp::from_micros),
        })
    }

    /// The record; `Corrupt` where it cannot be understood, and never absent.
    pub(super) fn record(self) -> Result<Record, Error> {
        let id = self.id;
        let draft = self.draft.map_err(|error| {
            Error::new(error.kind(), format!("record {id} cannot be read: {error}")).because(error)
        })?;
        Ok(draft.stamp(self.written_at))
    }

    pub(super) fn seen(self, now: Timestamp) -> Result<Seen, Error> {
        let revision = self.revision;
        Ok(Seen { record: Arc::new(self.record()?), revision, now })
    }
}

/// Relies on the unique index over ids.
pub(super) fn load(connection: &Connection, id: Id) -> rusqlite::Result<Option<Stored>> {
    const SQL: &str = "SELECT id, revision, written_at, record, due_at FROM record WHERE id = ?1";
    connection.prepare_cached(SQL)?.query_row([id.0], Stored::read).optional()
}

/// The revision alone, which a row has before its record. Relies on the unique index over ids.
pub(super) fn revision(connection: &Connection, id: Id) -> rusqlite::Result<Option<Revision>> {
    const SQL: &str = "SELECT revision FROM record WHERE id = ?1";
    let read = |row: &Row<'_>| Ok(Revision(row.get::<_, i64>(0)?.cast_unsigned()));
    connection.prepare_cached(SQL)?.query_row([id.0], read).optional()
}

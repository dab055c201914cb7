//! A record as a row: the statements that read and write it.
//!
//! The columns beside the record are for finding rows and for people with `sqlite3`; what counts is the record.

use std::sync::Arc;

use onlyonce_core::record::{Draft, Id, Record, Revision, Seen};
use onlyonce_core::time::{Due, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::letters;
use super::writer::{Refused, Size, Statements};
use crate::{Change, Error, Swapped, codec, outbox};

/// A write of a record, made ready on the caller's thread: the writer's time is everybody's.
pub(super) struct Swap {
    id: Id,
    expected: Option<Revision>,
    revision: Revision,
    next: Box<Draft>,
    due: Due,
    record: Vec<u8>,
    messages: Vec<outbox::Message>,
}

/// What the writer made of a swap.
pub(super) enum Done {
    /// Written, with this stamp.
    Applied(Timestamp),
    /// The record was at another revision; as it stands, where it exists.
    Lost(Option<Seen>),
}

/// What a row costs beside its record, about.
const ROW_BYTES: usize = 256;

impl Swap {
    pub(super) fn of(id: Id, change: Change) -> Self {
        let Change { expected, revision, next, messages } = change;
        Self { id, expected, revision, due: next.due(), record: codec::encode(&next), next, messages }
    }

    pub(super) fn size(&self) -> Size {
        // Several statements belong together where there are messages.
        let statements = if self.messages.is_empty() { Statements::One } else { Statements::Many };
        Size { rows: 1, bytes: self.bytes(), statements }
    }

    /// About how much it writes.
    pub(super) fn bytes(&self) -> usize {
        let messages = self.messages.iter().map(|message| message.payload.len() + ROW_BYTES);
        self.record.len() + ROW_BYTES + messages.sum::<usize>()
    }

    /// Carries it out in the writer's transaction.
    pub(super) fn run(&self, connection: &Connection, now: Timestamp) -> Result<Done, Refused> {
        let written = match self.expected {
            None => self.insert(connection, now)?,
            Some(expected) => self.update(connection, expected, now)?,
        };
        if written == 0 {
            let seen = load(connection, self.id)?.map(|stored| stored.seen(now));
            return Ok(Done::Lost(seen.transpose()?));
        }
        letters::store(connection, &self.messages, now)?;
        Ok(Done::Applied(now))
    }

    /// What its caller is told, once it is durable; again on the caller's thread.
    pub(super) fn swapped(self, done: Done) -> Swapped {
        match done {
            Done::Applied(now) => {
                let record = Arc::new(self.next.stamp(now));
                Swapped::Applied(Seen { record, revision: self.revision, now })
            }
            Done::Lost(seen) => Swapped::Lost(seen),
        }
    }

    /// Relies on the unique index over ids: where the id is taken, nothing is written.
    fn insert(&self, connection: &Connection, now: Timestamp) -> rusqlite::Result<usize> {
        const SQL: &str = "
            INSERT INTO record (id, revision, written_at, due_at, state, scope, label, key, route, record)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
            ON CONFLICT (id) DO NOTHING";
        connection.prepare_cached(SQL)?.execute(params![
            self.id.0,
            self.revision.0.cast_signed(),
            now.as_micros(),
            self.due.stamp(now).map(Timestamp::as_micros),
            self.next.state.name().as_str(),
            self.next.scope.digest(),
            self.next.scope.label(),
            self.next.key.as_str(),
            self.next.route.as_deref(),
            self.record,
        ])
    }

    /// Relies on the unique index over ids, and on there being one writer: the row it compares is the row it writes.
    /// Scope and key are the id's, and stay.
    fn update(&self, connection: &Connection, expected: Revision, now: Timestamp) -> rusqlite::Result<usize> {
        const SQL: &str = "
            UPDATE record
            SET revision = ?3, written_at = ?4, due_at = ?5, state = ?6, label = ?7, route = ?8, record = ?9
            WHERE id = ?1 AND revision = ?2";
        connection.prepare_cached(SQL)?.execute(params![
            self.id.0,
            expected.0.cast_signed(),
            self.revision.0.cast_signed(),
            now.as_micros(),
            self.due.stamp(now).map(Timestamp::as_micros),
            self.next.state.name().as_str(),
            self.next.scope.label(),
            self.next.route.as_deref(),
            self.record,
        ])
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

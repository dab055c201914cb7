//! A record as a row: the statements that read and write it. `crate::sql` knows what the columns mean.

use std::sync::{Arc, LazyLock};

use onlyonce_core::record::{Draft, Id, Record, Revision, Seen};
use onlyonce_core::time::{Timestamp, When};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::writer::{Refused, Size, Statements};
use super::{audit, outbox, request, result};
use crate::seal::Keyring;
use crate::sql::{self, COLUMNS, Columns, Sealing};
use crate::{Attached, Change, Error, Swapped};

/// A write of a record, on its way to the writer.
pub(super) struct Swap {
    id: Id,
    expected: Option<Revision>,
    revision: Revision,
    next: Box<Draft>,
    with: Attached,
    sealing: Option<Box<Sealing>>,
}

/// What the writer made of a swap.
pub(super) enum Done {
    /// Written, with this stamp.
    Applied(Timestamp),
    /// The record was at another revision; as it stands, where it exists.
    Lost(Option<Seen>),
}

impl Swap {
    /// What is to be encrypted is encrypted here, and not by the thread that writes.
    pub(super) fn of(id: Id, change: Change, keyring: Option<&Keyring>) -> Self {
        let Change { expected, revision, next, mut with } = change;
        let sealing = Sealing::of(keyring, &id, &next, &mut with);
        Self { id, expected, revision, next, with, sealing }
    }

    pub(super) fn size(&self) -> Size {
        let messages: usize = self.with.messages.iter().map(|message| message.payload.len()).sum();
        // Several statements belong together where something is written with the record.
        let statements = if self.with.is_empty() { Statements::One } else { Statements::Many };
        let rows = 1 + self.with.messages.len() + usize::from(self.with.audit.is_some());
        Size { rows, bytes: sql::bytes(&self.next) + messages + self.with.request.bytes(), statements }
    }

    /// Carries it out in the writer's transaction.
    pub(super) fn run(
        &self,
        connection: &Connection,
        keyring: Option<&Keyring>,
        now: Timestamp,
    ) -> Result<Done, Refused> {
        let written = match self.expected {
            None => self.insert(connection, now)?,
            Some(expected) => self.update(connection, expected, now)?,
        };
        if written == 0 {
            let seen = load(connection, self.id, keyring, || now)?;
            return Ok(Done::Lost(seen.transpose()?));
        }
        let sealing = self.sealing.as_deref();
        let payload_key = sealing.and_then(Sealing::payload_key);
        outbox::store(connection, self.id, &self.with.messages, payload_key, now)?;
        if let Some(entry) = &self.with.audit {
            audit::store(connection, entry, now)?;
        }
        let used_at = self.next.created_at.stamp(now);
        let sealed = sealing.and_then(|sealing| sealing.result.as_deref());
        result::change(connection, self.id, used_at, &self.with.results, sealed)?;
        let request_key = sealing.and_then(Sealing::request_key);
        request::change(connection, self.id, used_at, &self.with.request, request_key)?;
        Ok(Done::Applied(now))
    }

    /// What its caller is told, once it is durable.
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
        static SQL: LazyLock<String> = LazyLock::new(|| {
            let places: Vec<_> = (1..=COLUMNS.split(", ").count()).map(|place| format!("?{place}")).collect();
            let places = places.join(", ");
            format!("INSERT INTO onlyonce_record ({COLUMNS}) VALUES ({places}) ON CONFLICT (id) DO NOTHING")
        });
        self.execute(connection, &SQL, None, now)
    }

    /// Relies on the unique index over ids, and on there being one writer: the row it compares is the row it writes.
    fn update(&self, connection: &Connection, expected: Revision, now: Timestamp) -> rusqlite::Result<usize> {
        static SQL: LazyLock<String> = LazyLock::new(|| {
            let set: Vec<_> = (2..)
                .zip(COLUMNS.split(", ").skip(1))
                .map(|(place, column)| format!("{column} = ?{place}"))
                .collect();
            format!(
                "UPDATE onlyonce_record SET {} WHERE id = ?1 AND revision = ?{}",
                set.join(", "),
                set.len() + 2
            )
        });
        self.execute(connection, &SQL, Some(expected), now)
    }

    /// The parameters stand in the order of [`COLUMNS`]; the expected revision comes after them.
    fn execute(
        &self,
        connection: &Connection,
        sql: &str,
        expected: Option<Revision>,
        now: Timestamp,
    ) -> rusqlite::Result<usize> {
        let columns = Columns::of(&self.next, self.sealing.as_deref());
        let stamp = |when: When| when.stamp(now).as_micros();
        let mut statement = connection.prepare_cached(sql)?;
        let parameters = params![
            self.id.0,
            self.revision.0.cast_signed(),
            columns.scope,
            columns.label,
            columns.key,
            columns.route,
            columns.state,
            columns.attempt,
            columns.token,
            columns.effects,
            columns.retention_us,
            stamp(columns.created_at),
            stamp(columns.began_at),
            now.as_micros(),
            columns.due.stamp(now).map(Timestamp::as_micros),
            columns.lapses_at.map(stamp),
            columns.expires_at.map(stamp),
            columns.unknown_since.map(stamp),
            columns.reason.as_deref(),
            columns.dead_letter,
            columns.completed_by,
            columns.recovery_point,
            columns.status,
            columns.headers.as_deref(),
            columns.body,
            columns.rest,
            columns.key_id,
            columns.rest_key_id,
        ];
        match expected {
            None => statement.execute(parameters),
            Some(expected) => {
                let expected = expected.0.cast_signed();
                let all: Vec<&dyn rusqlite::ToSql> =
                    parameters.iter().copied().chain([&expected as &dyn rusqlite::ToSql]).collect();
                statement.execute(&all[..])
            }
        }
    }
}

/// A row in the order of [`COLUMNS`], handed to `understand`.
pub(super) fn read<R>(row: &Row<'_>, understand: impl FnOnce(&sql::Row<'_>) -> R) -> rusqlite::Result<R> {
    let text = |column| row.get_ref(column)?.as_str().map_err(rusqlite::Error::from);
    let text_or_null = |column| row.get_ref(column)?.as_str_or_null().map_err(rusqlite::Error::from);
    let blob = |column| row.get_ref(column)?.as_blob().map_err(rusqlite::Error::from);
    let blob_or_null = |column| row.get_ref(column)?.as_blob_or_null().map_err(rusqlite::Error::from);
    let read = sql::Row {
        id: blob(0)?,
        revision: row.get(1)?,
        scope: blob(2)?,
        label: text_or_null(3)?,
        key: text(4)?,
        route: text_or_null(5)?,
        state: text(6)?,
        attempt: row.get(7)?,
        token: blob(8)?,
        effects: text(9)?,
        retention_us: row.get(10)?,
        created_at: row.get(11)?,
        began_at: row.get(12)?,
        written_at: row.get(13)?,
        due_at: row.get(14)?,
        lapses_at: row.get(15)?,
        expires_at: row.get(16)?,
        unknown_since: row.get(17)?,
        reason: text_or_null(18)?,
        dead_letter: row.get(19)?,
        completed_by: text_or_null(20)?,
        recovery_point: text_or_null(21)?,
        status: row.get(22)?,
        headers: blob_or_null(23)?,
        body: blob_or_null(24)?,
        rest: blob(25)?,
        key_id: blob_or_null(26)?,
    };
    Ok(understand(&read))
}

/// The id of a row, which it has whether or not it can be understood.
pub(super) fn id(row: &Row<'_>) -> rusqlite::Result<Id> {
    row.get(0).map(Id)
}

/// Relies on the unique index over ids. The clock is read after the row: never before what it was stamped with. What cannot
/// be understood is no error of SQLite's, and never absent.
pub(super) fn load(
    connection: &Connection,
    id: Id,
    keyring: Option<&Keyring>,
    now: impl FnOnce() -> Timestamp,
) -> rusqlite::Result<Option<Result<Seen, Error>>> {
    static SQL: LazyLock<String> =
        LazyLock::new(|| format!("SELECT {COLUMNS} FROM onlyonce_record WHERE id = ?1"));
    let understand = |row: &Row<'_>| read(row, |row| row.seen(now(), keyring));
    connection.prepare_cached(&SQL)?.query_row([id.0], understand).optional()
}

/// The record of a row.
pub(super) fn record(row: &Row<'_>, keyring: Option<&Keyring>) -> rusqlite::Result<Result<Record, Error>> {
    read(row, |row| row.record(keyring))
}

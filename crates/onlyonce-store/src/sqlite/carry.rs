//! Carrying rounds over from the tapes into the database.
//!
//! A round is one transaction, and names itself in it: it is carried over wholly or not at all, and not twice. Of each record
//! only the last state is written: a request that was reserved and completed within a round costs one row, not two writes
//! of it. In the order of ids, so that those that stand on one page of the index meet there.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use onlyonce_core::record::Id;
use onlyonce_core::time::Timestamp;
use rusqlite::{Connection, Row, Statement, params};

use super::failure::{Failure, quoted};
use super::fresh::{Fresh, Round, Written};
use super::intake::Order;
use super::tape::{self, Beside, Found, Identity};
use super::writer::{Ended, Size, Statements, Work, keep_time};
use super::{file, letters, migration, slip};
use crate::{ErrorKind, failpoint};

/// A round on its way into the database.
pub(super) struct Carry {
    round: Arc<Round>,
    number: u64,
    fresh: Arc<Fresh>,
    /// Who wants to know how it ended, until they do.
    intake: Option<Sender<Order>>,
}

impl Carry {
    pub(super) fn new(round: Arc<Round>, number: u64, fresh: Arc<Fresh>, intake: Sender<Order>) -> Self {
        Self { round, number, fresh, intake: Some(intake) }
    }

    fn tell(&mut self, outcome: Result<(), Failure>) {
        if let Some(intake) = self.intake.take() {
            // An intake that is gone has died, and the tapes have everything.
            let _ = intake.send(Order::Carried(outcome));
        }
    }
}

impl Drop for Carry {
    /// A writer that has ended drops what it was handed.
    fn drop(&mut self) {
        self.tell(Err(Failure::new(
            ErrorKind::Unavailable,
            "the writer of the store has ended; open it again",
        )));
    }
}

impl Work for Carry {
    fn size(&self) -> Size {
        Size { rows: self.round.written.len(), bytes: self.round.bytes, statements: Statements::Whole }
    }

    fn run(&mut self, connection: &Connection, _: Timestamp) -> Ended {
        match put_all(connection, &self.round, self.number) {
            Ok(()) => Ended::Done,
            Err(error) => Ended::Failed(error),
        }
    }

    /// It never fails alone.
    fn fail(&mut self, _: &Failure) {}

    fn end(mut self: Box<Self>, outcome: &Result<(), Failure>) {
        if outcome.is_ok() {
            self.fresh.carried();
        }
        self.tell(outcome.clone());
    }
}

fn put_all(connection: &Connection, round: &Round, number: u64) -> rusqlite::Result<()> {
    let mut written: Vec<_> = round.written.iter().collect();
    written.sort_unstable_by_key(|(id, _)| *id);
    let mut put = connection.prepare_cached(PUT)?;
    for (id, written) in written {
        run_put(&mut put, *id, written)?;
    }
    for (message, now) in &round.messages {
        letters::store(connection, message, *now)?;
    }
    const SQL: &str = "UPDATE intake SET carried = ?1 WHERE one = 1";
    connection.prepare_cached(SQL)?.execute([number.cast_signed()]).map(drop)
}

/// Relies on the unique index over ids. Scope and key are the id's, and stay.
const PUT: &str = "
    INSERT INTO record (id, revision, written_at, due_at, state, scope, label, key, route, record)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
    ON CONFLICT (id) DO UPDATE
    SET revision = ?2, written_at = ?3, due_at = ?4, state = ?5, label = ?7, route = ?9, record = ?10";

/// Writes a record as it stands.
pub(super) fn put(connection: &Connection, id: Id, written: &Written) -> rusqlite::Result<()> {
    let mut put = connection.prepare_cached(PUT)?;
    run_put(&mut put, id, written)
}

fn run_put(put: &mut Statement<'_>, id: Id, written: &Written) -> rusqlite::Result<()> {
    let record = &written.record;
    let parameters = params![
        id.0,
        written.revision.0.cast_signed(),
        record.written_at.as_micros(),
        written.due_at.map(Timestamp::as_micros),
        record.state.name().as_str(),
        record.scope.digest(),
        record.scope.label(),
        record.key.as_str(),
        record.route.as_deref(),
        written.blob,
    ];
    put.execute(parameters).map(drop)
}

/// What the database says about its tapes.
pub(super) struct Intake {
    pub(super) identity: Identity,
    pub(super) carried: u64,
    is_open: bool,
}

impl Intake {
    /// None in a file that an earlier release made, and nobody has opened since.
    pub(super) fn of(connection: &Connection) -> rusqlite::Result<Option<Self>> {
        if migration::version(connection)? < migration::WITH_TAPES {
            return Ok(None);
        }
        let sql = "SELECT identity, carried, is_open FROM intake WHERE one = 1";
        let read = |row: &Row<'_>| {
            let carried = row.get::<_, i64>(1)?.cast_unsigned();
            Ok(Self { identity: row.get(0)?, carried, is_open: row.get(2)? })
        };
        connection.query_row(sql, [], read).map(Some)
    }
}

/// From now on the tapes belong to the database, and must be there; or no longer.
pub(super) fn set_open(connection: &Connection, is_open: bool) -> rusqlite::Result<()> {
    connection.execute("UPDATE intake SET is_open = ?1 WHERE one = 1", [is_open]).map(drop)
}

/// A copy has tapes of its own.
pub(super) fn set_apart(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute("UPDATE intake SET identity = randomblob(16), is_open = 0 WHERE one = 1", []).map(drop)
}

/// The rounds beside the database at `path` that are not in it.
pub(super) fn left(path: &Path, connection: &Connection) -> Result<Vec<Found>, Failure> {
    let intake = || Intake::of(connection).map_err(|error| Failure::of(path, &error));
    let Some(found) = intake()? else { return Ok(Vec::new()) };
    let Some(mut rounds) = rounds(path, &found)? else {
        // Its owner may have closed it in between: then everything is in the database.
        let is_open = intake()?.is_some_and(|intake| intake.is_open);
        return if is_open { Err(missing(path)) } else { Ok(Vec::new()) };
    };
    rounds.retain(|round| round.round > found.carried);
    Ok(rounds)
}

/// None where there are no tapes.
fn rounds(path: &Path, intake: &Intake) -> Result<Option<Vec<Found>>, Failure> {
    let read = tape::read(path, &intake.identity).map_err(|error| {
        let is_busy = error.kind() == io::ErrorKind::ResourceBusy;
        let remedy =
            if is_busy { "try again when less is written" } else { "let this process read and write them" };
        let message = format!("tapes of store file {} cannot be read: {error}; {remedy}", quoted(path));
        Failure::new(file::kind_of(&error), message)
    })?;
    match read {
        Beside::Rounds(rounds) => Ok(Some(rounds)),
        Beside::Missing => Ok(None),
        Beside::Foreign(tape) => Err(Failure::new(
            ErrorKind::Misconfigured,
            format!(
                "tape {} belongs to another store file than {}; move it away, and its twin with it",
                quoted(&tape),
                quoted(path)
            ),
        )),
    }
}

/// The file itself is whole.
fn missing(path: &Path) -> Failure {
    Failure::new(
        ErrorKind::Misconfigured,
        format!(
            "store file {} was in use when its process died, and its tapes (\"-tape0\", \"-tape1\") are not beside it: \
             what was written last is on them; put them back, or restore a backup",
            quoted(path)
        ),
    )
}

/// Carries over what is not in the database yet; which round was the last that was carried over.
pub(super) fn recover(
    connection: &mut Connection,
    path: &Path,
    carried: u64,
    rounds: Vec<Found>,
) -> Result<u64, Failure> {
    let failed = |error: rusqlite::Error| Failure::of(path, &error);
    let mut last = carried;
    for found in rounds.into_iter().filter(|found| found.round > carried) {
        let mut round = Round::default();
        for batch in &found.batches {
            slip::read_all(batch, &mut round)
                .map_err(|error| Failure::new(error.kind(), error.to_string()))?;
        }
        let transaction =
            connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).map_err(failed)?;
        put_all(&transaction, &round, found.round).map_err(failed)?;
        let latest = round.written.values().map(|written| written.record.written_at).max();
        if let Some(latest) = latest {
            keep_time(&transaction, latest).map_err(failed)?;
        }
        failpoint!("sqlite.recover.before");
        transaction.commit().map_err(failed)?;
        failpoint!("sqlite.recover.after");
        last = found.round;
    }
    Ok(last)
}

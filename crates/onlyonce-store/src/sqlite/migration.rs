//! The schema, step by step.
//!
//! 1. Each step is one transaction, with the version it leads to (`PRAGMA user_version`): killed in the middle, the
//!    file has either the old schema or the new.
//! 2. What was applied is written down with a checksum. A file whose steps differ from this release's was made by
//!    something else, and is refused.
//! 3. A released step is never edited; a change is a new step.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension, params};
use sha2::{Digest, Sha256};

use super::failure::{Failure, quoted};
use super::file::{self, APPLICATION_ID};
use crate::{ErrorKind, Migration, Schema, failpoint};

struct Step {
    name: &'static str,
    sql: &'static str,
}

macro_rules! step {
    ($name:literal) => {
        Step { name: $name, sql: include_str!(concat!("../migrations/sqlite/", $name, ".sql")) }
    };
}

/// In order; the first leads to version 1.
const ALL: [Step; 1] = [step!("0001-first")];

/// The version that this release writes.
#[allow(clippy::cast_possible_truncation, reason = "a handful of files")]
pub(super) const LATEST: u32 = ALL.len() as u32;

/// The schema of a file, and what it lacks. A file whose steps differ from this release's is refused, as [`run`] refuses it.
pub(super) fn schema(connection: &Connection, path: &Path) -> Result<Schema, Failure> {
    for (number, step) in (1..).zip(&ALL) {
        is_applied(connection, path, number, step)?;
    }
    let version = version(connection).map_err(|error| Failure::of(path, &error))?;
    Ok(lacking(version))
}

/// A file of that version, and what it lacks. An older release refuses a newer file, whatever the step.
pub(super) fn lacking(version: u32) -> Schema {
    let told = |(number, step): (u32, &Step)| Migration {
        number,
        name: step.name,
        sql: step.sql.to_owned(),
        needs: number,
    };
    let pending = (1..).zip(&ALL).filter(|(number, _)| *number > version).map(told);
    Schema { version, latest: LATEST, pending: pending.collect() }
}

/// Makes a file that was empty one of ours. It is marked as such before it is anything else, and outside the WAL, so
/// that a process killed right here leaves a file that the next one recognises.
pub(super) fn claim(connection: &Connection, page_bytes: u32) -> rusqlite::Result<()> {
    connection.pragma_update(None, "page_size", page_bytes)?;
    failpoint!("sqlite.create.before");
    connection.pragma_update(None, "application_id", APPLICATION_ID)?;
    failpoint!("sqlite.create.after");
    Ok(())
}

/// Brings the schema to this release's.
pub(super) fn run(connection: &mut Connection, path: &Path) -> Result<(), Failure> {
    let failed = |error: rusqlite::Error| Failure::of(path, &error);
    file::newer_is_refused(path, version(connection).map_err(failed)?)?;
    for (number, step) in (1..).zip(&ALL) {
        if !is_applied(connection, path, number, step)? {
            apply(connection, number, step).map_err(failed)?;
        }
    }
    Ok(())
}

/// Refuses a schema that is not this release's. It changes nothing.
pub(super) fn check(connection: &Connection, path: &Path) -> Result<(), Failure> {
    for (number, step) in (1..).zip(&ALL) {
        if !is_applied(connection, path, number, step)? {
            let message = format!(
                "store file {} lacks migration \"{}\"; run \"onlyonce migrate\" on it, or start its gateway",
                quoted(path),
                step.name
            );
            return Err(Failure::new(ErrorKind::Misconfigured, message));
        }
    }
    Ok(())
}

pub(super) fn version(connection: &Connection) -> rusqlite::Result<u32> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

fn is_applied(connection: &Connection, path: &Path, number: u32, step: &Step) -> Result<bool, Failure> {
    let failed = |error: rusqlite::Error| Failure::of(path, &error);
    if version(connection).map_err(failed)? < number {
        return Ok(false);
    }
    let sql = "SELECT checksum FROM onlyonce_migration WHERE number = ?1";
    let stored = connection.query_row(sql, [number], |row| row.get::<_, Vec<u8>>(0)).optional();
    if stored.map_err(failed)?.as_deref() == Some(&checksum(step)[..]) {
        return Ok(true);
    }
    let message = format!(
        "store file {} was not made by migration \"{}\" of this release; restore it from a backup, or use the release \
         that made it",
        quoted(path),
        step.name
    );
    Err(Failure::new(ErrorKind::Misconfigured, message))
}

/// One transaction that takes the write lock first: of two that come here at once, the second finds it done.
fn apply(connection: &mut Connection, number: u32, step: &Step) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    if version(&transaction)? >= number {
        return Ok(());
    }
    transaction.execute_batch(
        "CREATE TABLE IF NOT EXISTS onlyonce_migration (
             number   INTEGER PRIMARY KEY,
             name     TEXT NOT NULL,
             checksum BLOB NOT NULL
         ) STRICT;",
    )?;
    transaction.execute_batch(step.sql)?;
    let sql = "INSERT INTO onlyonce_migration (number, name, checksum) VALUES (?1, ?2, ?3)";
    transaction.execute(sql, params![number, step.name, checksum(step)])?;
    transaction.pragma_update(None, "user_version", number)?;
    failpoint!("sqlite.migrate.before");
    transaction.commit()?;
    failpoint!("sqlite.migrate.after");
    Ok(())
}

fn checksum(step: &Step) -> [u8; 32] {
    Sha256::digest(step.sql).into()
}

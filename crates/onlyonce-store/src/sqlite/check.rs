//! Is everything that is stored still what was stored?

use std::sync::LazyLock;

use onlyonce_core::record::Id;
use rusqlite::{Connection, Row, params};

use super::Sqlite;
use super::row;
use super::writer::Refused;
use crate::Error;
use crate::seal::Keyring;
use crate::sql::COLUMNS;

/// So many records are read at a time, so that no read transaction lasts.
const PAGE_ROWS: i64 = 500;
/// So many faults are listed; a file with more needs no longer list.
const FAULTS_MAX: usize = 100;

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Records that were read.
    pub records: usize,
    /// What is wrong, up to a hundred lines; empty where nothing is. A key that is missing is not wrong.
    pub faults: Vec<String>,
}

impl Sqlite {
    /// Reads the whole file: its structure and indexes by SQLite's own check, and every record. Nobody waits for it.
    ///
    /// # Errors
    ///
    /// Where the file cannot be read at all. What is wrong in it is no error, but [`Health::faults`].
    pub async fn check(&self) -> Result<Health, Error> {
        let keyring = self.keyring.clone();
        self.lists().run(move |connection| health(connection, keyring.as_ref())).await
    }
}

pub(super) fn health(connection: &Connection, keyring: Option<&Keyring>) -> Result<Health, Refused> {
    let mut health = Health { records: 0, faults: structure(connection)? };
    let mut after = None;
    while health.faults.len() < FAULTS_MAX {
        let checked = match page(connection, after, keyring) {
            // What is known already counts, also where nothing more can be read.
            Err(error) if !health.faults.is_empty() => {
                health.faults.push(error.to_string());
                break;
            }
            checked => checked?,
        };
        let Some((last, _)) = checked.last() else { break };
        after = Some(*last);
        health.records += checked.len();
        let faults = checked.into_iter().filter_map(|(_, checked)| checked.err());
        health.faults.extend(faults.map(|error| error.to_string()));
    }
    Ok(health)
}

/// SQLite's whole check: pages, constraints, and whether indexes and rows agree.
fn structure(connection: &Connection) -> Result<Vec<String>, Refused> {
    let mut statement = connection.prepare(&format!("PRAGMA integrity_check({FAULTS_MAX})"))?;
    let lines = statement.query_map([], |row| row.get::<_, String>(0))?;
    let lines = lines.collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(lines.into_iter().filter(|line| line != "ok").collect())
}

/// Relies on the unique index over ids.
fn page(
    connection: &Connection,
    after: Option<Id>,
    keyring: Option<&Keyring>,
) -> rusqlite::Result<Vec<(Id, Result<(), Error>)>> {
    static SQL: LazyLock<String> = LazyLock::new(|| {
        format!(
            "SELECT {COLUMNS} FROM onlyonce_record INDEXED BY onlyonce_record_by_id
             WHERE id > ?1 ORDER BY id LIMIT ?2"
        )
    });
    let after: &[u8] = after.as_ref().map_or(&[], |id| &id.0);
    let check = |row: &Row<'_>| Ok((row::id(row)?, row::read(row, |row| row.check(keyring))?));
    connection.prepare_cached(&SQL)?.query_map(params![after, PAGE_ROWS], check)?.collect()
}

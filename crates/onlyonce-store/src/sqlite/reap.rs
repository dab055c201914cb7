//! Deleting what has finished and expired.
//!
//! What may go is found beside the writer; the writer judges each again on the row that it deletes, in the
//! transaction that deletes it. A few at a time: whoever writes meanwhile waits for a few, not for a thousand.

use std::sync::LazyLock;

use onlyonce_core::machine;
use onlyonce_core::record::{Id, Record, Seen};
use onlyonce_core::time::Timestamp;
use rusqlite::{Connection, params};

use super::Expired;
use super::writer::Refused;
use super::{request, result, row};
use crate::seal::Keyring;
use crate::sql::COLUMNS;
use crate::{Error, failpoint};

/// So many are deleted in one transaction.
pub(super) const ROWS_MAX: usize = 64;

/// Up to `limit` records that may go by now, of all scopes or of one. Relies on the index by state and due time.
pub(super) fn candidates(
    connection: &Connection,
    scope: Option<[u8; 32]>,
    limit: usize,
    now: Timestamp,
) -> Result<Vec<Id>, Refused> {
    static SQL: LazyLock<String> = LazyLock::new(|| {
        format!(
            "SELECT {COLUMNS} FROM onlyonce_record INDEXED BY onlyonce_record_by_due
             WHERE state = ?1 AND due_at <= ?2 AND (?3 IS NULL OR scope = ?3) ORDER BY due_at"
        )
    });
    let mut statement = connection.prepare_cached(&SQL)?;
    let mut found = Vec::new();
    for state in machine::EXPIRING.iter() {
        let mut rows = statement.query(params![state.as_str(), now.as_micros(), scope])?;
        while found.len() < limit
            && let Some(row) = rows.next()?
        {
            // What cannot be understood is nobody's to delete, and must not keep the rest from being deleted.
            if may_go(&row::read(row, |row| row.seen(now, None))?) {
                found.push(row::id(row)?);
            }
        }
    }
    Ok(found)
}

/// Whether a record has expired is told without its key, and without decrypting it.
fn may_go(seen: &Result<Seen, Error>) -> bool {
    match seen {
        Ok(seen) => machine::may_reap(&seen.record, seen.now),
        Err(error) => {
            error.unreadable().is_some_and(|unreadable| machine::may_reap(&unreadable.record, unreadable.now))
        }
    }
}

/// Deletes those that still may go. Relies on the unique index over ids, and on there being one writer.
pub(super) fn delete(
    connection: &Connection,
    ids: &[Id],
    expired: Expired,
    now: Timestamp,
) -> Result<usize, Refused> {
    const DELETE: &str = "DELETE FROM onlyonce_record WHERE id = ?1";
    failpoint!("sqlite.reap.before");
    let mut deleted = 0;
    for id in ids {
        let Some(seen) = row::load(connection, *id, None, || now)? else { continue };
        if !may_go(&seen) {
            continue;
        }
        match expired {
            Expired::Delete => {}
            Expired::Keep => archive(connection, *id, now)?,
        }
        deleted += connection.prepare_cached(DELETE)?.execute([id.0])?;
        result::delete(connection, *id)?;
        request::delete(connection, *id)?;
    }
    failpoint!("sqlite.reap.after");
    Ok(deleted)
}

fn archive(connection: &Connection, id: Id, now: Timestamp) -> rusqlite::Result<()> {
    static SQL: LazyLock<String> = LazyLock::new(|| {
        format!(
            "INSERT INTO onlyonce_archive (archived_at, {COLUMNS})
             SELECT ?2, {COLUMNS} FROM onlyonce_record WHERE id = ?1"
        )
    });
    connection.prepare_cached(&SQL)?.execute(params![id.0, now.as_micros()]).map(drop)
}

/// The uses of a key that have expired and were kept, latest first. Relies on the archive's index over ids.
pub(super) fn archived(
    connection: &Connection,
    id: Id,
    limit: usize,
    keyring: Option<&Keyring>,
) -> Result<Vec<Record>, Refused> {
    static SQL: LazyLock<String> = LazyLock::new(|| {
        format!("SELECT {COLUMNS} FROM onlyonce_archive WHERE id = ?1 ORDER BY number DESC LIMIT ?2")
    });
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut statement = connection.prepare_cached(&SQL)?;
    let rows = statement.query_map(params![id.0, limit], |row| row::record(row, keyring))?;
    let records = rows.collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(records.into_iter().collect::<Result<_, Error>>()?)
}

//! Deleting what has finished and expired.
//!
//! What may go is found beside the writer; the writer judges each again on the row that it deletes, in the
//! transaction that deletes it. A few at a time: whoever writes meanwhile waits for a few, not for a thousand.

use onlyonce_core::machine;
use onlyonce_core::record::{Id, StateName};
use onlyonce_core::time::Timestamp;
use rusqlite::{Connection, params};

use super::Expired;
use super::row::{self, Stored};
use super::writer::Refused;
use crate::failpoint;

/// So many are deleted in one transaction.
pub(super) const ROWS_MAX: usize = 64;
/// Only these ever expire (T03). A sieve: `machine::may_reap` is the judge.
const MAY_EXPIRE: [StateName; 2] = [StateName::Completed, StateName::Retryable];

/// Up to `limit` records that may go by now. Relies on the index by state and due time.
pub(super) fn candidates(connection: &Connection, limit: usize, now: Timestamp) -> Result<Vec<Id>, Refused> {
    const SQL: &str = "
        SELECT id, revision, written_at, record, due_at FROM record INDEXED BY record_by_due
        WHERE state = ?1 AND due_at <= ?2 ORDER BY due_at";
    let mut statement = connection.prepare_cached(SQL)?;
    let mut found = Vec::new();
    for state in MAY_EXPIRE {
        let mut rows = statement.query(params![state.as_str(), now.as_micros()])?;
        while found.len() < limit
            && let Some(row) = rows.next()?
        {
            let stored = Stored::read(row)?;
            let id = stored.id;
            // What cannot be understood is nobody's to delete, and must not keep the rest from being deleted.
            if stored.record().is_ok_and(|record| machine::may_reap(&record, now)) {
                found.push(id);
            }
        }
    }
    Ok(found)
}

/// Deletes those that still may go. Relies on the unique index over ids, and on there being one writer.
pub(super) fn delete(
    connection: &Connection,
    ids: &[Id],
    expired: Expired,
    now: Timestamp,
) -> Result<usize, Refused> {
    const DELETE: &str = "DELETE FROM record WHERE id = ?1";
    failpoint!("sqlite.reap.before");
    let mut deleted = 0;
    for id in ids {
        let Some(stored) = row::load(connection, *id)? else { continue };
        if !machine::may_reap(&stored.record()?, now) {
            continue;
        }
        match expired {
            Expired::Delete => {}
            Expired::Keep => archive(connection, *id, now)?,
        }
        deleted += connection.prepare_cached(DELETE)?.execute([id.0])?;
    }
    failpoint!("sqlite.reap.after");
    Ok(deleted)
}

fn archive(connection: &Connection, id: Id, now: Timestamp) -> rusqlite::Result<()> {
    const SQL: &str = "
        INSERT INTO archive (archived_at, id, revision, written_at, state, scope, label, key, route, record)
        SELECT ?2, id, revision, written_at, state, scope, label, key, route, record
        FROM record WHERE id = ?1";
    connection.prepare_cached(SQL)?.execute(params![id.0, now.as_micros()]).map(drop)
}

/// The uses of a key that have expired and were kept, latest first. Relies on the archive's index over ids.
pub(super) fn archived(connection: &Connection, id: Id, limit: usize) -> Result<Vec<Stored>, Refused> {
    const SQL: &str = "
        SELECT id, revision, written_at, record, NULL FROM archive
        WHERE id = ?1 ORDER BY number DESC LIMIT ?2";
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut statement = connection.prepare_cached(SQL)?;
    let rows = statement.query_map(params![id.0, limit], Stored::read)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

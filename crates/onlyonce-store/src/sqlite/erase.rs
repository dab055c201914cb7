//! Erasing a scope: its expired records, what was kept of its earlier ones, and who it was in the audit log.
//!
//! In small batches, as in `reap.rs`: whoever writes meanwhile waits for one of them.

use rusqlite::{Connection, params};

use super::writer::{Size, Statements};
use super::{Expired, Sqlite, audit};
use crate::Error;

/// So many archived records are deleted in one transaction.
const ROWS_MAX: usize = 64;

/// As [`crate::Store::erase`].
pub(super) async fn erase(store: &Sqlite, scope: [u8; 32], limit: usize) -> Result<usize, Error> {
    let mut erased = store.delete_expired(Some(scope), limit, Expired::Delete).await?;
    // The archive after the records: what the reaper has moved there meanwhile goes too.
    erased += in_batches(store, limit - erased, ROWS_MAX, move |writer, rows| archived(writer, scope, rows))
        .await?;
    if erased < limit {
        in_batches(store, usize::MAX, audit::ROWS_MAX, move |writer, rows| audit::blank(writer, scope, rows))
            .await?;
    }
    Ok(erased)
}

/// Runs `work` on up to `at_once` rows at a time, until there are no more or `limit` is reached.
pub(super) async fn in_batches(
    store: &Sqlite,
    limit: usize,
    at_once: usize,
    work: impl Fn(&Connection, usize) -> rusqlite::Result<usize> + Clone + Send + 'static,
) -> Result<usize, Error> {
    let mut done = 0;
    while done < limit {
        let rows = at_once.min(limit - done);
        let size = Size { rows, bytes: 0, statements: Statements::One };
        let work = work.clone();
        let changed = store.writer.submit(size, move |writer, _| Ok(work(writer, rows)?)).await?;
        done += changed;
        if changed < rows {
            break;
        }
    }
    Ok(done)
}

/// Relies on the archive's index by scope.
fn archived(connection: &Connection, scope: [u8; 32], limit: usize) -> rusqlite::Result<usize> {
    const SQL: &str = "
        DELETE FROM onlyonce_archive WHERE number IN (
            SELECT number FROM onlyonce_archive INDEXED BY onlyonce_archive_by_scope WHERE scope = ?1 LIMIT ?2)";
    connection.prepare_cached(SQL)?.execute(params![scope, i64::try_from(limit).unwrap_or(i64::MAX)])
}

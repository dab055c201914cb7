//! Deletes finished records that have expired, and erases a scope.
//!
//! Candidates are found by the due index and judged here, by `machine::may_reap`; then exactly those are deleted, by id and
//! revision. A revision never comes back, so a key that was used again in between is not deleted. No row is locked while
//! records are judged. Batches are small: bodies may be large, and concurrent writers must not wait long.

use mysql_async::{Conn, Row, Value};
use onlyonce_core::machine;
use onlyonce_core::record::Id;

use super::pool::{Pool, Work, ask, begin, commit};
use super::statement::{filled, marks};
use super::{audit, row, scan};
use crate::{Error, Expired, Query, failpoint};

/// How many records are judged and deleted at once.
const AT_ONCE: usize = 96;

/// Deletes up to `limit` records, and returns how many. Locked rows and rows that cannot be decoded are skipped, and do not
/// block the rest.
pub(super) async fn reap(pool: &Pool, limit: usize, expired: Expired) -> Result<usize, Error> {
    delete_all(pool, Query::due(machine::EXPIRING, AT_ONCE), limit, expired, Locked::Skip).await
}

/// As [`crate::Store::erase`].
pub(super) async fn erase(pool: &Pool, scope: [u8; 32], limit: usize) -> Result<usize, Error> {
    const ARCHIVED: &str = "DELETE FROM onlyonce_archive WHERE scope = ? LIMIT ?";
    let query = Query { scope: Some(scope), ..Query::due(machine::EXPIRING, AT_ONCE) };
    let mut erased = delete_all(pool, query, limit, Expired::Delete, Locked::Wait).await?;
    // The archive after the records: what a reaper has moved there meanwhile goes too.
    erased += audit::in_batches(pool, ARCHIVED, scope.into(), limit - erased).await?;
    if erased < limit {
        audit::blank(pool, scope).await?;
    }
    Ok(erased)
}

/// What becomes of rows that somebody holds. Whoever erases waits for them: none may be left behind, nor be archived
/// meanwhile.
#[derive(Clone, Copy)]
enum Locked {
    Skip,
    Wait,
}

async fn delete_all(
    pool: &Pool,
    mut query: Query,
    limit: usize,
    expired: Expired,
    locked: Locked,
) -> Result<usize, Error> {
    let mut deleted = 0;
    while deleted < limit {
        let (rows, next) = scan::find(pool, &query).await?.page(query.limit);
        let judged: Vec<_> = rows.iter().filter_map(deletable).take(limit - deleted).collect();
        if !judged.is_empty() {
            failpoint!("mysql.reap.before");
            deleted += pool.write(&Delete { judged: &judged, expired, locked }).await?;
            failpoint!("mysql.reap.after");
        }
        if next.is_none() {
            break;
        }
        query.after = next;
    }
    Ok(deleted)
}

/// The id and revision of a row that may be deleted.
fn deletable(row: &Row) -> Option<(Id, i64)> {
    // Whether a record has expired can be told without its key.
    let (record, revision, now) = match row::seen(row, None) {
        Ok(seen) => (seen.record, seen.revision, seen.now),
        Err(error) => error
            .unreadable()
            .map(|unreadable| (unreadable.record.clone(), unreadable.revision, unreadable.now))?,
    };
    machine::may_reap(&record, now).then_some((row::id(row).ok()?, revision.0.cast_signed()))
}

/// Deletes exactly the rows that were judged, with their results and requests, and archives them where they are kept.
struct Delete<'a> {
    judged: &'a [(Id, i64)],
    expired: Expired,
    locked: Locked,
}

impl Work for Delete<'_> {
    type Answer = usize;

    /// Relies on the primary keys. The rows are locked first: what is archived is what is deleted.
    async fn run(&self, connection: &mut Conn) -> Result<usize, mysql_async::Error> {
        let skip = match self.locked {
            Locked::Skip => " SKIP LOCKED",
            Locked::Wait => "",
        };
        begin(connection).await?;
        let ids = marks(self.judged.len());
        let sql = format!(
            "SELECT id, revision FROM onlyonce_record WHERE id IN ({ids}) ORDER BY id FOR UPDATE{skip}"
        );
        let judged = self.judged.iter().map(|(id, _)| id.0.into()).collect();
        let rows = ask(connection, &sql, judged).await?.rows;
        let doomed: Vec<Value> = rows
            .iter()
            .filter_map(|row| Some((row::id(row).ok()?, row::column::<i64>(row, 1).ok()?)))
            .filter(|locked| self.judged.contains(locked))
            .map(|(id, _)| id.0.into())
            .collect();
        if !doomed.is_empty() {
            self.delete(connection, &doomed).await?;
        }
        commit(connection).await?;
        Ok(doomed.len())
    }
}

impl Delete<'_> {
    async fn delete(&self, connection: &mut Conn, doomed: &[Value]) -> Result<(), mysql_async::Error> {
        let ids = marks(doomed.len());
        let keep = filled(&format!(
            "INSERT INTO onlyonce_archive (archived_at, {{all}})
             SELECT {{now}}, {{all}} FROM onlyonce_record WHERE id IN ({ids})"
        ));
        let deletes =
            [("onlyonce_result", "record"), ("onlyonce_request", "record"), ("onlyonce_record", "id")];
        let deletes = deletes.map(|(table, id)| format!("DELETE FROM {table} WHERE {id} IN ({ids})"));
        let keep = match self.expired {
            Expired::Delete => None,
            Expired::Keep => Some(keep),
        };
        for sql in keep.into_iter().chain(deletes) {
            ask(connection, &sql, doomed.to_vec()).await?;
        }
        Ok(())
    }
}

//! Deletes finished records that have expired.
//!
//! Candidates are found by the due index and judged here, by `machine::may_reap`; then exactly those are deleted, by id and
//! revision. A revision never comes back, so a key that was used again in between is not deleted. No row is locked while
//! records are judged. Batches are small: bodies may be large, and concurrent writers must not wait long.

use onlyonce_core::machine;
use onlyonce_core::record::Id;
use tokio_postgres::Row;

use super::pool::{Asked, Pool};
use super::row::{self, column};
use super::scan;
use super::statement::Verb;
use crate::{Error, Expired, Query, failpoint};

/// How many records are judged and deleted at once.
const AT_ONCE: usize = 96;

/// Deletes up to `limit` records, and returns how many. Locked rows and rows that cannot be decoded are skipped, and do not
/// block the rest.
pub(super) async fn reap(pool: &Pool, limit: usize, expired: Expired) -> Result<usize, Error> {
    let verb = match expired {
        Expired::Delete => Verb::Delete,
        Expired::Keep => Verb::DeleteAndKeep,
    };
    delete_all(pool, Query::due(machine::EXPIRING, AT_ONCE), limit, verb).await
}

/// Deletes up to `limit` records of a scope, and waits for rows that somebody holds: none may be left behind, nor be archived
/// meanwhile.
pub(super) async fn erase(pool: &Pool, scope: [u8; 32], limit: usize) -> Result<usize, Error> {
    let query = Query { scope: Some(scope), ..Query::due(machine::EXPIRING, AT_ONCE) };
    delete_all(pool, query, limit, Verb::Erase).await
}

async fn delete_all(pool: &Pool, mut query: Query, limit: usize, verb: Verb) -> Result<usize, Error> {
    let mut deleted = 0;
    while deleted < limit {
        let (rows, next) = scan::find(pool, &query).await?.page(query.limit);
        let judged: Vec<_> = rows.iter().filter_map(deletable).take(limit - deleted).collect();
        deleted += delete(pool, &judged, verb).await?;
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

async fn delete(pool: &Pool, judged: &[(Id, i64)], verb: Verb) -> Result<usize, Error> {
    if judged.is_empty() {
        return Ok(0);
    }
    let ids: Vec<&[u8]> = judged.iter().map(|(id, _)| &id.0[..]).collect();
    let revisions: Vec<i64> = judged.iter().map(|(_, revision)| *revision).collect();
    failpoint!("postgres.reap.before");
    let rows = pool.write(Asked::Statement(verb, &[&ids, &revisions])).await?;
    failpoint!("postgres.reap.after");
    counted(&rows)
}

/// What a statement says that it has changed.
pub(super) fn counted(rows: &[Row]) -> Result<usize, Error> {
    let changed = rows.first().map_or(Ok(0), |row| column::<i64>(row, 0))?;
    Ok(usize::try_from(changed).unwrap_or(0))
}

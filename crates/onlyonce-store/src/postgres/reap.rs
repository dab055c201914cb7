//! Deleting what has finished and expired.
//!
//! What may go is found by the list of what is due and judged here, by `machine::may_reap`; then exactly what was judged
//! is deleted, by its revision. A revision never comes back, so a key that was used again in between is left alone. Nothing is
//! locked while we judge. A few at a time: a body may be large, and nobody who writes meanwhile waits for a thousand.

use std::collections::HashSet;

use onlyonce_core::machine;
use onlyonce_core::record::{Id, StateName};

use super::due;
use super::pool::Pool;
use super::row::{Stored, column};
use super::scan::{self, Listed};
use super::statement::Verb;
use crate::{Error, Expired, failpoint};

/// So many records are judged, and deleted, at once, and so many rows of the list that they are of: one row at least.
const RECORDS_MAX: usize = 96;
const ROWS_MAX: usize = 16;
/// Only these ever expire (T03). A sieve: `machine::may_reap` is the judge.
const MAY_EXPIRE: [StateName; 2] = [StateName::Completed, StateName::Retryable];

/// Deletes up to `limit` records, and says how many.
pub(super) async fn reap(pool: &Pool, limit: usize, expired: Expired) -> Result<usize, Error> {
    let deleted = delete_listed(pool, limit, expired).await?;
    if deleted == limit {
        return Ok(deleted);
    }
    // What is new may have expired by now, and so may what was settled late: nobody else looks at what was unknown.
    due::turn(pool).await?;
    due::in_order(pool, StateName::Unknown, None, None, usize::MAX).await?;
    Ok(deleted + delete_listed(pool, limit - deleted, expired).await?)
}

/// What is listed under a state that may expire.
async fn delete_listed(pool: &Pool, limit: usize, expired: Expired) -> Result<usize, Error> {
    let mut deleted = 0;
    for state in MAY_EXPIRE {
        let mut after = None;
        while deleted < limit {
            let mut rows = due::rows(pool, state.as_str(), after, ROWS_MAX).await?;
            let listed = rows.iter().scan(0, |listed, row| {
                *listed += row.ids.len();
                Some(*listed)
            });
            let count = listed.take_while(|listed| *listed <= RECORDS_MAX).count();
            rows.truncate(count.max(1));
            let Some(last) = rows.last() else { break };
            after = Some(last.place());
            let ids: Vec<Id> = rows.iter().flat_map(|row| &row.ids).copied().collect();
            let listed = scan::load_due(pool, &ids, &[state]).await?;
            let mut stands: HashSet<Id> = listed.iter().map(|listed| listed.id).collect();
            let judged = judged(listed, limit - deleted);
            for (id, _) in &judged {
                stands.remove(id);
            }
            let (wanted, gone) = (judged.len(), delete(pool, judged, expired).await?);
            deleted += gone;
            // What somebody holds stays where it is, for the next time: listed anew it would come up again right now.
            if gone == wanted {
                rows.retain(|row| row.ids.iter().any(|id| !stands.contains(id)));
                due::list_anew(pool, state.as_str(), &rows).await?;
            }
        }
    }
    Ok(deleted)
}

/// Up to `limit` of these that may go, by id and revision. What cannot be understood is nobody's to delete, and must not
/// keep the rest from being deleted.
fn judged(listed: Vec<Listed>, limit: usize) -> Vec<(Id, i64)> {
    let may_go = |listed: Listed| {
        let Listed { id, stored, .. } = listed;
        let seen = stored.seen().ok()?;
        machine::may_reap(&seen.record, seen.now).then_some((id, seen.revision.0.cast_signed()))
    };
    listed.into_iter().filter_map(may_go).take(limit).collect()
}

async fn delete(pool: &Pool, judged: Vec<(Id, i64)>, expired: Expired) -> Result<usize, Error> {
    if judged.is_empty() {
        return Ok(0);
    }
    let ids: Vec<&[u8]> = judged.iter().map(|(id, _)| &id.0[..]).collect();
    let revisions: Vec<i64> = judged.iter().map(|(_, revision)| *revision).collect();
    let verb = match expired {
        Expired::Delete => Verb::Delete,
        Expired::Keep => Verb::DeleteAndKeep,
    };
    failpoint!("postgres.reap.before");
    let rows = pool.write(verb, &[&ids, &revisions]).await?;
    failpoint!("postgres.reap.after");
    let deleted = rows.first().map_or(Ok(0), |row| column::<i64>(row, 0))?;
    Ok(usize::try_from(deleted).unwrap_or(0))
}

/// The uses of a key that have expired and were kept, latest first.
pub(super) async fn archived(pool: &Pool, id: Id, limit: usize) -> Result<Vec<Stored>, Error> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = pool.query(Verb::Archived, &[&&id.0[..], &limit]).await?;
    rows.iter().map(|row| Stored::read(id, row, 1)).collect()
}

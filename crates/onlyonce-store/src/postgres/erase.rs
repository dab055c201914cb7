//! Erasing a scope: its expired records, what was kept of its earlier ones, and who it was in the audit log.

use super::pool::Pool;
use super::statement::Verb;
use super::{audit, reap};
use crate::Error;

/// As [`crate::Store::erase`].
pub(super) async fn erase(pool: &Pool, scope: [u8; 32], limit: usize) -> Result<usize, Error> {
    let mut erased = reap::erase(pool, scope, limit).await?;
    // The archive after the records: what a reaper has moved there meanwhile goes too.
    erased += audit::in_batches(pool, Verb::EraseArchived, &&scope[..], limit - erased).await?;
    if erased < limit {
        audit::blank(pool, scope).await?;
    }
    Ok(erased)
}

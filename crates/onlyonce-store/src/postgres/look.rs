//! Reads: those that arrive while others are in flight are batched into one round trip.
//!
//! ```text
//!   load ──► batcher ──► one: the plain statement ─┐
//!                 └────► many: one for all ────────┤   the record, or absent
//!                                                  └─► large, unreadable, in doubt, or refused with others: read alone
//! ```
//!
//! A read returns what was committed when its statement began, which is after it was submitted. Two reads of one record may
//! share a batch. While there is a doubt (`doubt.rs`) each is sent alone, since it is a commit then.

use std::collections::HashMap;

use onlyonce_core::record::{Id, Seen};
use tokio_postgres::Row;

use super::failure::{Failure, Left};
use super::pool::{Asked, Pool};
use super::row;
use super::statement::Verb;
use crate::hash::ById;
use crate::seal::Keyring;
use crate::{Error, ErrorKind};

/// What a batch of reads returned for a record.
#[derive(Clone)]
pub(super) enum Looked {
    /// The record; `None` if absent.
    Seen(Option<Seen>),
    /// No answer: read it alone.
    Alone,
}

/// Reads all of these, each with its own answer.
pub(super) async fn together(
    pool: &Pool,
    keyring: Option<&Keyring>,
    ids: Vec<Id>,
) -> Vec<Result<Looked, Error>> {
    if let [id] = ids[..] {
        return vec![alone(pool, keyring, id).await.map(Looked::Seen)];
    }
    let each_alone = |ids: &[Id]| ids.iter().map(|_| Ok(Looked::Alone)).collect();
    if !pool.doubts.are_settled() {
        return each_alone(&ids);
    }
    let asked: Vec<&[u8]> = ids.iter().map(|id| &id.0[..]).collect();
    match pool.query(Verb::LoadMany, &[&asked]).await {
        // The query may have opened a connection, which raises a doubt.
        Ok(_) if !pool.doubts.are_settled() => each_alone(&ids),
        Ok(rows) => {
            let found: HashMap<Id, Looked, ById> =
                rows.iter().filter_map(|row| found(row, keyring)).collect();
            let looked = |id: Id| found.get(&id).cloned().unwrap_or(Looked::Seen(None));
            ids.into_iter().map(|id| Ok(looked(id))).collect()
        }
        Err(failure) => ids.iter().map(|_| refused(&failure)).collect(),
    }
}

/// Reads one record by the plain statement.
pub(super) async fn alone(pool: &Pool, keyring: Option<&Keyring>, id: Id) -> Result<Option<Seen>, Error> {
    let read = |rows: &[Row]| rows.first().map(|row| row::seen(row, keyring)).transpose();
    if pool.doubts.are_settled() {
        let rows = pool.query(Verb::Load, &[&&id.0[..]]).await?;
        // The query may have opened a connection, which raises a doubt.
        if pool.doubts.are_settled() {
            return read(&rows);
        }
    }
    let mark = pool.doubts.mark();
    let rows = pool.write(Asked::Statement(Verb::Confirm, &[&&id.0[..]])).await?;
    if !rows.is_empty() {
        pool.doubts.settle(mark);
    }
    read(&rows)
}

/// A row whose id cannot be read answers no read. A row that cannot be decoded, or is too large for a shared answer, is
/// read alone, so that it does not affect others.
fn found(row: &Row, keyring: Option<&Keyring>) -> Option<(Id, Looked)> {
    let looked = row::seen(row, keyring).map_or(Looked::Alone, |seen| Looked::Seen(Some(seen)));
    Some((row::id(row).ok()?, looked))
}

/// A damaged row must not fail the others, so each is read alone. If the server is in trouble, all fail at once.
fn refused(failure: &Failure) -> Result<Looked, Error> {
    let is_ones = matches!(failure.kind, ErrorKind::Other | ErrorKind::Corrupt);
    if failure.left != Left::Doubt && is_ones { Ok(Looked::Alone) } else { Err(failure.error()) }
}

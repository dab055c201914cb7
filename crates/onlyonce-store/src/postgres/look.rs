//! Looks: those that come while others are under way go together, in one round trip.
//!
//! ```text
//!   load ──► batcher ──► one: the plain statement ─┐
//!                 └────► many: one for all ────────┤   as it stands, or absent
//!                                                  └─► large, unreadable, in doubt, or refused with others: it goes alone
//! ```
//!
//! A look shows what was committed when its statement began, and that is after it was asked. Two looks at one record may
//! go together. While there is a doubt (`doubt.rs`) each goes alone: a look is a commit then.

use std::collections::HashMap;

use onlyonce_core::record::{Id, Seen};
use tokio_postgres::Row;

use super::failure::{Failure, Left};
use super::pool::{Asked, Pool};
use super::row;
use super::statement::Verb;
use crate::hash::ById;
use crate::{Error, ErrorKind};

/// What looking together has to say about a record.
#[derive(Clone)]
pub(super) enum Looked {
    /// As it stands; none where it is absent.
    Seen(Option<Seen>),
    /// Nothing. It is looked at alone.
    Alone,
}

/// Looks at all of these, each with an answer of its own.
pub(super) async fn together(pool: &Pool, ids: Vec<Id>) -> Vec<Result<Looked, Error>> {
    if let [id] = ids[..] {
        return vec![alone(pool, id).await.map(Looked::Seen)];
    }
    let each_alone = |ids: &[Id]| ids.iter().map(|_| Ok(Looked::Alone)).collect();
    if !pool.doubts.are_settled() {
        return each_alone(&ids);
    }
    let asked: Vec<&[u8]> = ids.iter().map(|id| &id.0[..]).collect();
    match pool.query(Verb::LoadMany, &[&asked]).await {
        // It may have taken a new connection, and that a doubt.
        Ok(_) if !pool.doubts.are_settled() => each_alone(&ids),
        Ok(rows) => {
            let found: HashMap<Id, Looked, ById> = rows.iter().filter_map(found).collect();
            let looked = |id: Id| found.get(&id).cloned().unwrap_or(Looked::Seen(None));
            ids.into_iter().map(|id| Ok(looked(id))).collect()
        }
        Err(failure) => ids.iter().map(|_| refused(&failure)).collect(),
    }
}

/// One record by the plain statement.
pub(super) async fn alone(pool: &Pool, id: Id) -> Result<Option<Seen>, Error> {
    let read = |rows: &[Row]| rows.first().map(row::seen).transpose();
    if pool.doubts.are_settled() {
        let rows = pool.query(Verb::Load, &[&&id.0[..]]).await?;
        // It may have taken a new connection, and that a doubt.
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

/// A row that names no record of ours answers for none. What cannot be understood, and what is too large to be shown with
/// others, is looked at alone, and so keeps nobody else from an answer.
fn found(row: &Row) -> Option<(Id, Looked)> {
    let looked = row::seen(row).map_or(Looked::Alone, |seen| Looked::Seen(Some(seen)));
    Some((row::id(row).ok()?, looked))
}

/// A damaged row must not take the others with it. A server in trouble would refuse each of them as well.
fn refused(failure: &Failure) -> Result<Looked, Error> {
    let is_ones = matches!(failure.kind, ErrorKind::Other | ErrorKind::Corrupt);
    if failure.left != Left::Doubt && is_ones { Ok(Looked::Alone) } else { Err(failure.error()) }
}

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
use super::pool::Pool;
use super::row::{self, Stored, column};
use super::statement::Verb;
use super::write;
use crate::{Epoch, Error, ErrorKind};

/// What is longer goes alone: an answer for a hundred looks must not hold a hundred large bodies.
const TOGETHER_BYTES_MAX: i32 = 64 << 10;

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
    match pool.query(Verb::LoadMany, &[&asked, &TOGETHER_BYTES_MAX]).await {
        // It may have taken a new connection, and that a doubt.
        Ok(_) if !pool.doubts.are_settled() => each_alone(&ids),
        Ok(rows) => {
            let found: HashMap<Id, Looked> = rows.iter().filter_map(found).collect();
            let looked = |id: Id| found.get(&id).cloned().unwrap_or(Looked::Seen(None));
            ids.into_iter().map(|id| Ok(looked(id))).collect()
        }
        Err(failure) => ids.iter().map(|_| refused(&failure)).collect(),
    }
}

/// One record by the plain statement.
pub(super) async fn alone(pool: &Pool, id: Id) -> Result<Option<Seen>, Error> {
    write::load(pool, id).await?.map(Stored::seen).transpose()
}

/// A row that names no record of ours answers for none. What cannot be understood is told by who looks at it alone, and
/// so keeps nobody else from an answer.
fn found(row: &Row) -> Option<(Id, Looked)> {
    let id = row::id(row, 0).ok()?;
    let is_here = matches!(column::<Option<&[u8]>>(row, 3), Ok(Some(_)));
    let seen = if is_here { Stored::read(id, row, 1).and_then(Stored::seen).ok() } else { None };
    Some((id, seen.map_or(Looked::Alone, |seen| Looked::Seen(Some(seen)))))
}

/// A damaged row must not take the others with it. A server in trouble would refuse each of them as well.
fn refused(failure: &Failure) -> Result<Looked, Error> {
    let is_ones = matches!(failure.kind, ErrorKind::Other | ErrorKind::Corrupt);
    if failure.left != Left::Doubt && is_ones { Ok(Looked::Alone) } else { Err(failure.error()) }
}

/// The epoch that a statement about it has answered with.
pub(super) fn epoch(row: Option<&Row>) -> Result<Epoch, Error> {
    let Some(row) = row else {
        let message = "table \"onlyonce_epoch\" has lost its row; write it anew with INSERT INTO onlyonce_epoch VALUES \
                       (1, N), where N is higher than it ever was";
        return Err(Error::new(ErrorKind::Corrupt, message));
    };
    Ok(Epoch(column::<i64>(row, 0)?.cast_unsigned()))
}

//! What is to be looked at, and when: the list of what is due.
//!
//! An index by when records are due would have to change with every completion, and with it the primary key's. So ids are
//! listed beside the records, many in a row, and the list follows them later:
//!
//! ```text
//!   a lone insert ──────────────────────► lists itself (`look_at`), due in ten seconds or when the record is
//!   a write that leaves a record open ──► new, due likewise
//!                                          │ told by the node that wrote it (`followed.rs`), or looked at when it
//!                                          │ is due, and listed by what has become of it
//!                     ┌────────────────────┼──────────────┐
//!                     ▼                    ▼              ▼
//!           running, unknown, …        completed       (gone: no longer listed)
//!           due when they are       due when they expire
//! ```
//!
//! 1. A record that is not completed lists itself, is listed as new, or is under its own state; not later than it is due.
//! 2. What has been completed is listed too, under whatever state it had when it was looked at: not later than it
//!    expires, but where it is kept for less time than the list meant to wait, an hour at most or a lease.
//! 3. A row may list what has changed since, and an id may be listed twice: what counts is the record.
//!
//! The first is kept by the writes themselves, in the statement that writes the record. Looking only moves what is listed,
//! in one statement, so nobody who dies in between leaves a record that is not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use onlyonce_core::record::{Id, StateName};
use onlyonce_core::time::Timestamp;
use tokio_postgres::types::ToSql;

use super::pool::Pool;
use super::row::{self, Moment, column};
use super::statement::Verb;
use crate::{Cursor, Error};

/// Under this a record is listed that nobody has looked at since it was written.
const NEW: &str = "new";
/// So many rows are read, and listed anew, at once.
const ROWS_MAX: usize = 64;
/// So many are told to be done at once: nobody looks into them. As many are worth a statement beside the requests; fewer are
/// told with the next sweep.
const DONE_MAX: usize = 256;
/// So many records that list themselves are listed with others at once: each is written once more for it.
const LONE_MAX: i64 = 128;
/// How much longer than looking at what is new the rest after it is. It is what nodes leave that died, and nobody waits for it.
const RESTS: u32 = 3;
/// How often in a row, for one who asks: those who wait for an answer are not kept by a million rows.
const TURNS_MAX: u32 = 64;
/// A row of open records lists what is due within one minute; of completed ones, which nobody pages through, maybe more.
const SPREAD_MICROS: i64 = 60_000_000;

/// A row of the list.
pub(super) struct Row {
    due_at: Timestamp,
    number: i64,
    pub(super) ids: Vec<Id>,
}

/// Where a row stands among those of its state.
pub(super) type Place = (Timestamp, i64);

impl Row {
    pub(super) fn place(&self) -> Place {
        (self.due_at, self.number)
    }

    fn read(row: &tokio_postgres::Row) -> Result<Self, Error> {
        let ids: Vec<&[u8]> = column(row, 2)?;
        let ids = ids.into_iter().map(row::id_of).collect::<Result<_, _>>()?;
        Ok(Self { due_at: column::<Moment>(row, 0)?.0, number: column(row, 1)?, ids })
    }
}

/// Tells the list which of its rows this node knows to be done; then looks at what has listed itself or is new, and is due, and
/// lists it by what has become of it.
pub(super) async fn turn(pool: &Pool) -> Result<(), Error> {
    tell_done(pool, 0).await?;
    list_lone(pool).await?;
    let mut after = None;
    for _ in 0..TURNS_MAX {
        let began = Instant::now();
        let rows = rows(pool, NEW, after, ROWS_MAX).await?;
        list_anew(pool, NEW, &rows).await?;
        if rows.len() < ROWS_MAX {
            break;
        }
        after = rows.last().map(Row::place);
        tokio::time::sleep(began.elapsed() * RESTS).await;
    }
    Ok(())
}

/// Tells the list which of its rows are done, where many are: a task of its own, and one at a time. What cannot be told
/// is looked at when it is due, like all that a node forgets.
pub(super) fn tell_beside(pool: &Arc<Pool>) {
    let Some(telling) = pool.followed.telling(DONE_MAX) else { return };
    let pool = pool.clone();
    tokio::spawn(async move {
        let _telling = telling;
        let _ = tell_done(&pool, DONE_MAX).await;
    });
}

/// As long as at least so many are done.
async fn tell_done(pool: &Pool, least: usize) -> Result<(), Error> {
    loop {
        let began = Instant::now();
        let done = pool.followed.take_done(least, DONE_MAX);
        let due_at = || done.iter().map(|done| done.due_at);
        let (Some(first), Some(last)) = (due_at().min(), due_at().max()) else { return Ok(()) };
        let expires_at = done.iter().map(|done| done.expires_at).min().unwrap_or(first);
        let numbers: Vec<i64> = done.iter().map(|done| done.number).collect();
        let parameters: [&(dyn ToSql + Sync); 4] =
            [&Moment(first), &Moment(last), &numbers, &Moment(expires_at)];
        pool.write(Verb::ListDone, &parameters).await?;
        tokio::time::sleep(began.elapsed()).await;
    }
}

/// Lists with others what has listed itself and is due. Looked for first: a store at rest is not written to.
async fn list_lone(pool: &Pool) -> Result<(), Error> {
    for _ in 0..TURNS_MAX {
        let began = Instant::now();
        if pool.query(Verb::LoneIsDue, &[]).await?.is_empty() {
            break;
        }
        let rows = pool.write(Verb::ListLone, &[&LONE_MAX]).await?;
        if rows.first().map_or(Ok(0), |row| column::<i64>(row, 0))? < LONE_MAX {
            break;
        }
        tokio::time::sleep(began.elapsed() * RESTS).await;
    }
    Ok(())
}

/// Up to `limit` ids in this state that are due, after the cursor, in the order they fell due. Rows that list anything
/// else are listed anew.
pub(super) async fn in_order(
    pool: &Pool,
    state: StateName,
    scope: Option<&[u8]>,
    cursor: Option<&Cursor>,
    limit: usize,
) -> Result<BTreeSet<(Timestamp, Id)>, Error> {
    let cursor = cursor.and_then(|cursor| Some((cursor.due_at?, cursor.id)));
    let from = |due_at: Timestamp| Timestamp::from_micros(due_at.as_micros().saturating_sub(SPREAD_MICROS));
    let mut after = cursor.map(|(due_at, _)| (from(due_at), i64::MIN));
    let mut found = BTreeSet::new();
    loop {
        let mut rows = rows(pool, state.as_str(), after, ROWS_MAX).await?;
        after = rows.last().map(Row::place);
        let edge = after.filter(|_| rows.len() == ROWS_MAX);
        let due = look(pool, state, scope, &rows).await?;
        rows.retain(|row| row.ids.iter().any(|id| !due.contains_key(id)));
        list_anew(pool, state.as_str(), &rows).await?;
        let wanted = due.iter().filter_map(|(id, (due_at, is_wanted))| is_wanted.then_some((*due_at, *id)));
        found.extend(wanted.filter(|place| cursor.is_none_or(|cursor| *place > cursor)));
        // What the next rows list is due no sooner than they are.
        let Some((edge, _)) = edge else { break };
        if found.range(..(edge, Id([0; 32]))).count() >= limit {
            break;
        }
    }
    while found.len() > limit {
        found.pop_last();
    }
    Ok(found)
}

/// Those of the ids that are in this state and due: when, and whether they are of the scope.
async fn look(
    pool: &Pool,
    state: StateName,
    scope: Option<&[u8]>,
    rows: &[Row],
) -> Result<BTreeMap<Id, (Timestamp, bool)>, Error> {
    if rows.is_empty() {
        return Ok(BTreeMap::new());
    }
    let ids: Vec<&[u8]> = rows.iter().flat_map(|row| &row.ids).map(|id| &id.0[..]).collect();
    let rows = pool.query(Verb::Due, &[&ids, &state.as_str(), &scope]).await?;
    let read = |row: &tokio_postgres::Row| {
        Ok((row::id(row, 0)?, (column::<Moment>(row, 1)?.0, column::<bool>(row, 2)?)))
    };
    rows.iter().map(read).collect()
}

/// The next rows that are due: of a state, or of what is new.
pub(super) async fn rows(
    pool: &Pool,
    state: &str,
    after: Option<Place>,
    limit: usize,
) -> Result<Vec<Row>, Error> {
    let (due_at, number) = after.map_or((None, 0), |(due_at, number)| (Some(Moment(due_at)), number));
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = pool.query(Verb::Listed, &[&state, &due_at, &number, &limit]).await?;
    rows.iter().map(Row::read).collect()
}

/// Lists the records of these rows anew, which stand in their order.
pub(super) async fn list_anew(pool: &Pool, state: &str, rows: &[Row]) -> Result<(), Error> {
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return Ok(()) };
    let (first, last) = (Moment(first.due_at), Moment(last.due_at));
    let numbers: Vec<i64> = rows.iter().map(|row| row.number).collect();
    pool.write(Verb::ListAnew, &[&state, &first, &last, &numbers]).await?;
    Ok(())
}

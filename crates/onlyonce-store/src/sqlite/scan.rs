//! Listings: by id, or what is due in the order it fell due.

use onlyonce_core::record::{Id, StateName};
use onlyonce_core::time::Timestamp;
use rusqlite::{Connection, params};

use super::row::Stored;
use super::writer::Refused;
use crate::clock::Clock;
use crate::{Cursor, Page, Query};

pub(super) fn list(connection: &Connection, clock: &dyn Clock, query: &Query) -> Result<Page, Refused> {
    let stored = match (query.only_due, query.state) {
        (true, Some(state)) => due(connection, query, state, clock.now())?,
        (true, None) => due_in_any_state(connection, query, clock.now())?,
        (false, Some(state)) => by_state(connection, query, state)?,
        (false, None) => by_id(connection, query)?,
    };
    page(stored, query, clock)
}

/// Relies on the index by state and due time, which is read without the records.
pub(super) fn count(connection: &Connection) -> Result<Vec<(StateName, u64)>, Refused> {
    const SQL: &str = "SELECT count(*) FROM record INDEXED BY record_by_due WHERE state = ?1";
    let mut statement = connection.prepare_cached(SQL)?;
    let mut counts = Vec::new();
    for state in StateName::ALL {
        let count: i64 = statement.query_row([state.as_str()], |row| row.get(0))?;
        counts.push((state, count.unsigned_abs()));
    }
    Ok(counts)
}

/// Relies on the unique index over ids, which is read in its order from the cursor on.
fn by_id(connection: &Connection, query: &Query) -> rusqlite::Result<Vec<Stored>> {
    const SQL: &str = "
        SELECT id, revision, written_at, record, due_at FROM record INDEXED BY record_by_id
        WHERE id > ?1 AND (?2 IS NULL OR scope = ?2)
        ORDER BY id LIMIT ?3";
    let mut statement = connection.prepare_cached(SQL)?;
    let rows = statement.query_map(params![after_id(query), query.scope, one_more(query)], Stored::read)?;
    rows.collect()
}

/// Relies on the index by state and due time for all states but one: those are few among many, and are sorted. Most
/// records are completed: those are read in the order of their ids.
fn by_state(connection: &Connection, query: &Query, state: StateName) -> rusqlite::Result<Vec<Stored>> {
    const OF_FEW: &str = "
        SELECT id, revision, written_at, record, due_at FROM record INDEXED BY record_by_due
        WHERE state = ?1 AND id > ?2 AND (?3 IS NULL OR scope = ?3)
        ORDER BY id LIMIT ?4";
    const OF_MANY: &str = "
        SELECT id, revision, written_at, record, due_at FROM record INDEXED BY record_by_id
        WHERE state = ?1 AND id > ?2 AND (?3 IS NULL OR scope = ?3)
        ORDER BY id LIMIT ?4";
    let sql = if state == StateName::Completed { OF_MANY } else { OF_FEW };
    let mut statement = connection.prepare_cached(sql)?;
    let parameters = params![state.as_str(), after_id(query), query.scope, one_more(query)];
    statement.query_map(parameters, Stored::read)?.collect()
}

/// Relies on the index by state and due time, read in its order from the cursor on; only what fell due at the very
/// same moment is sorted.
fn due(
    connection: &Connection,
    query: &Query,
    state: StateName,
    now: Timestamp,
) -> rusqlite::Result<Vec<Stored>> {
    const SQL: &str = "
        SELECT id, revision, written_at, record, due_at FROM record INDEXED BY record_by_due
        WHERE state = ?1 AND due_at <= ?2 AND due_at >= ?3 AND (due_at > ?3 OR id > ?4)
          AND (?5 IS NULL OR scope = ?5)
        ORDER BY due_at, id LIMIT ?6";
    let after_due = query.after.as_ref().and_then(|cursor| cursor.due_at);
    let after_due = after_due.map_or(i64::MIN, Timestamp::as_micros);
    let mut statement = connection.prepare_cached(SQL)?;
    let parameters =
        params![state.as_str(), now.as_micros(), after_due, after_id(query), query.scope, one_more(query)];
    statement.query_map(parameters, Stored::read)?.collect()
}

/// A page of each state, merged: the index has what is due state by state.
fn due_in_any_state(connection: &Connection, query: &Query, now: Timestamp) -> rusqlite::Result<Vec<Stored>> {
    let mut stored = Vec::new();
    for state in StateName::ALL {
        stored.extend(due(connection, query, state, now)?);
    }
    stored.sort_unstable_by_key(|stored| (stored.due_at, stored.id));
    stored.truncate(query.limit.saturating_add(1));
    Ok(stored)
}

fn page(mut stored: Vec<Stored>, query: &Query, clock: &dyn Clock) -> Result<Page, Refused> {
    let has_next = stored.len() > query.limit;
    stored.truncate(query.limit);
    let last = stored.last().filter(|_| has_next);
    let due_at = |stored: &Stored| stored.due_at.filter(|_| query.only_due);
    let next = last.map(|last| Cursor { due_at: due_at(last), id: last.id });
    // The clock after the look: never before what a row was stamped with.
    let now = clock.now();
    let records = stored.into_iter().map(|stored| Ok((stored.id, stored.seen(now)?)));
    Ok(Page { records: records.collect::<Result<_, crate::Error>>()?, next })
}

/// No id is smaller than the empty one.
fn after_id(query: &Query) -> &[u8] {
    query.after.as_ref().map_or(&[], |Cursor { id: Id(id), .. }| id)
}

/// A page and one record more, which only says that there is another page.
fn one_more(query: &Query) -> i64 {
    i64::try_from(query.limit).unwrap_or(i64::MAX).saturating_add(1)
}

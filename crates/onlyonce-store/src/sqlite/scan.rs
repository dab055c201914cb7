//! Listings: all, what is due in the order it fell due, what is unknown oldest first; and how many there are.

use std::sync::LazyLock;

use onlyonce_core::record::{Id, Seen, StateName};
use onlyonce_core::time::Timestamp;
use rusqlite::{Connection, Row, ToSql, params};

use super::row;
use super::writer::Refused;
use crate::clock::Clock;
use crate::listing::{self, Place};
use crate::sql::COLUMNS;
use crate::{Count, Error, Order, Page, Query};

/// Up to so many records of a state are counted one by one, and are sorted to be listed by id.
const FEW: i64 = 100_000;
/// What a listing by id has for a moment: the same for all.
const ALIKE: Timestamp = Timestamp::from_micros(0);

type Found = (Place, (Id, Result<Seen, Error>));

pub(super) fn list(connection: &Connection, clock: &dyn Clock, query: &Query) -> Result<Page, Refused> {
    let after = Place::of(query)?;
    let found = match query.order {
        Order::Any => by_id(connection, clock, query, after)?,
        Order::Due => due(connection, clock, query, Place::or_start(after))?,
        Order::UnknownSince => unknown(connection, clock, query, Place::or_start(after))?,
    };
    let (found, next) = listing::page(found, query.limit);
    let mut records = Vec::with_capacity(found.len());
    for (id, seen) in found {
        match seen {
            Ok(seen) => records.push((id, seen)),
            // A worker goes on with the rest; a person who lists everything is told.
            Err(error) if query.order != Order::Any => {
                tracing::warn!(record = %id, %error, "a record is left out of what workers look at");
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Page { records, next })
}

/// Up to [`FEW`] of each state exactly: by the index by state, which is read without the records. Of more, about as many as
/// there are row numbers left: those are given out in order, and what was deleted leaves gaps.
pub(super) fn count(connection: &Connection) -> Result<Vec<(StateName, Count)>, Refused> {
    const OF_STATE: &str = "
        SELECT count(*) FROM (
            SELECT 1 FROM onlyonce_record INDEXED BY onlyonce_record_by_due WHERE state = ?1 LIMIT ?2)";
    const NUMBERS: &str = "
        SELECT coalesce((SELECT max(number) FROM onlyonce_record) - (SELECT min(number) FROM onlyonce_record) + 1, 0)";
    let mut counts = Vec::new();
    for state in StateName::ALL {
        let of_state = params![state.as_str(), FEW + 1];
        let count: i64 = connection.prepare_cached(OF_STATE)?.query_row(of_state, |row| row.get(0))?;
        counts.push((state, count));
    }
    let numbers: i64 = connection.prepare_cached(NUMBERS)?.query_row([], |row| row.get(0))?;
    let few: i64 = counts.iter().map(|(_, count)| count).filter(|count| **count <= FEW).sum();
    let many = counts.iter().filter(|(_, count)| *count > FEW).count();
    let told = |count: i64| match i64::try_from(many) {
        Ok(many) if count > FEW => Count::About(((numbers - few) / many).max(count).unsigned_abs()),
        _ => Count::Exact(count.unsigned_abs()),
    };
    Ok(counts.into_iter().map(|(state, count)| (state, told(count))).collect())
}

/// What narrows a listing beside its states: scope and route.
const FILTER: &str = "(?1 IS NULL OR scope = ?1) AND (?2 IS NULL OR route = ?2)";

/// All states in the order of ids, which is the order of their index. A few states of which there are few records: those are
/// found by the index by state, and sorted.
fn by_id(
    connection: &Connection,
    clock: &dyn Clock,
    query: &Query,
    after: Option<Place>,
) -> Result<Vec<Found>, Refused> {
    static BY_ID: LazyLock<String> = LazyLock::new(|| {
        format!(
            "SELECT {COLUMNS} FROM onlyonce_record INDEXED BY onlyonce_record_by_id
             WHERE id > ?3 AND {FILTER} AND instr(?5, state || ',') > 0 ORDER BY id LIMIT ?4"
        )
    });
    static OF_STATE: LazyLock<String> = LazyLock::new(|| {
        format!(
            "SELECT {COLUMNS} FROM onlyonce_record INDEXED BY onlyonce_record_by_due
             WHERE state = ?5 AND id > ?3 AND {FILTER} ORDER BY id LIMIT ?4"
        )
    });
    // No id is smaller than the empty one.
    let after: &[u8] = after.as_ref().map_or(&[], |place| &place.id.0);
    let limit = limit(query);
    let place = |_: &Row<'_>| Ok(ALIKE);
    if !are_few(connection, query)? {
        let states: String = query.states.iter().map(|state| format!("{state},")).collect();
        let parameters = params![query.scope, query.route.as_deref(), after, limit, states];
        return Ok(find(connection, clock, &BY_ID, parameters, place)?);
    }
    let mut found = Vec::new();
    for state in query.states.iter() {
        let parameters = params![query.scope, query.route.as_deref(), after, limit, state.as_str()];
        found.extend(find(connection, clock, &OF_STATE, parameters, place)?);
    }
    Ok(first_of(found, query))
}

/// Whether the records of these states are few enough to be sorted.
fn are_few(connection: &Connection, query: &Query) -> Result<bool, Refused> {
    let counts = count(connection)?;
    let counted = counts.into_iter().filter(|(state, _)| query.states.contains(*state));
    Ok(counted.into_iter().all(|(_, count)| matches!(count, Count::Exact(_))))
}

/// A page of each state, merged. Relies on the index by state and due time, read in its order from the cursor on; only what
/// fell due at the very same moment is sorted.
fn due(
    connection: &Connection,
    clock: &dyn Clock,
    query: &Query,
    after: Place,
) -> Result<Vec<Found>, Refused> {
    static SQL: LazyLock<String> = LazyLock::new(|| {
        format!(
            "SELECT {COLUMNS} FROM onlyonce_record INDEXED BY onlyonce_record_by_due
             WHERE state = ?5 AND due_at <= ?6 AND due_at >= ?7 AND (due_at > ?7 OR id > ?3) AND {FILTER}
             ORDER BY due_at, id LIMIT ?4"
        )
    });
    let now = clock.now().as_micros();
    let mut found = Vec::new();
    for state in query.states.iter() {
        let parameters = params![
            query.scope,
            query.route.as_deref(),
            after.id.0,
            limit(query),
            state.as_str(),
            now,
            after.at.as_micros()
        ];
        found.extend(find(connection, clock, &SQL, parameters, moment("due_at"))?);
    }
    Ok(first_of(found, query))
}

/// Relies on the index of unknown records, read in its order from the cursor on.
fn unknown(
    connection: &Connection,
    clock: &dyn Clock,
    query: &Query,
    after: Place,
) -> Result<Vec<Found>, Refused> {
    static SQL: LazyLock<String> = LazyLock::new(|| {
        format!(
            "SELECT {COLUMNS} FROM onlyonce_record INDEXED BY onlyonce_record_by_unknown
             WHERE unknown_since IS NOT NULL AND (unknown_since, id) > (?5, ?3) AND {FILTER}
               AND instr(?6, state || ',') > 0
             ORDER BY unknown_since, id LIMIT ?4"
        )
    });
    let states: String = query.states.iter().map(|state| format!("{state},")).collect();
    let parameters =
        params![query.scope, query.route.as_deref(), after.id.0, limit(query), after.at.as_micros(), states];
    Ok(find(connection, clock, &SQL, parameters, moment("unknown_since"))?)
}

fn find(
    connection: &Connection,
    clock: &dyn Clock,
    sql: &str,
    parameters: &[&dyn ToSql],
    at: impl Fn(&Row<'_>) -> rusqlite::Result<Timestamp>,
) -> rusqlite::Result<Vec<Found>> {
    let understand = |row: &Row<'_>| {
        let id = row::id(row)?;
        // The clock after the row: never before what it was stamped with.
        let seen = row::read(row, |row| row.seen(clock.now()))?;
        Ok((Place { at: at(row)?, id }, (id, seen)))
    };
    connection.prepare_cached(sql)?.query_map(parameters, understand)?.collect()
}

fn moment(column: &'static str) -> impl Fn(&Row<'_>) -> rusqlite::Result<Timestamp> {
    move |row| row.get(column).map(Timestamp::from_micros)
}

fn first_of(mut found: Vec<Found>, query: &Query) -> Vec<Found> {
    found.sort_unstable_by_key(|(place, _)| *place);
    found.truncate(query.one_more());
    found
}

fn limit(query: &Query) -> i64 {
    i64::try_from(query.one_more()).unwrap_or(i64::MAX)
}

//! The audit log: entries written with their change or by themselves, listed newest first, deleted by age.

use std::sync::LazyLock;
use std::time::Duration;

use onlyonce_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, ToSql, named_params, params, params_from_iter};

use super::writer::Refused;
use crate::audit::table::{self, COLUMNS, EXAMINED_MAX, Part, Place, TEXTS};
use crate::audit::{Entry, Page, Query, Written};

/// So many are deleted, or changed, in one transaction.
pub(super) const ROWS_MAX: usize = 256;

/// In the transaction of its change. Relies on the unique index over ids: an entry that is there already is the same entry.
pub(super) fn store(connection: &Connection, entry: &Entry, now: Timestamp) -> rusqlite::Result<()> {
    static SQL: LazyLock<String> = LazyLock::new(|| {
        let places: Vec<_> = (1..=TEXTS + 2).map(|place| format!("?{place}")).collect();
        let places = places.join(", ");
        format!("INSERT INTO onlyonce_audit ({COLUMNS}, at) VALUES ({places}) ON CONFLICT (id) DO NOTHING")
    });
    let texts = table::texts(entry);
    let others: [&dyn ToSql; 2] = [&entry.forced, &now.as_micros()];
    let all = texts.iter().map(|text| text as &dyn ToSql).chain(others);
    connection.prepare_cached(&SQL)?.execute(params_from_iter(all)).map(drop)
}

/// A page. The connection is in a transaction: all that a page asks is one snapshot.
pub(super) fn list(connection: &Connection, query: &Query) -> Result<Page, Refused> {
    let part = Part::of(query)?;
    let examined = examined(connection, query, part)?;
    let found = find(connection, query, part.examined(examined))?;
    Ok(table::page(found, query.limit, examined))
}

/// The last place that is examined; none where that is all, or where everything passes.
fn examined(connection: &Connection, query: &Query, part: Part) -> rusqlite::Result<Option<Place>> {
    if !query.is_narrow() {
        return Ok(None);
    }
    let Part { before, from } = part;
    let max = at_most(EXAMINED_MAX);
    let values = params![before.at.as_micros(), before.number, from.at.as_micros(), from.number, max];
    connection.prepare_cached(sql::EXAMINED)?.query_row(values, place).optional()
}

fn find(connection: &Connection, query: &Query, part: Part) -> Result<Vec<(Place, Written)>, Refused> {
    let Part { before, from } = part;
    let values = named_params! {
        ":at": before.at.as_micros(),
        ":number": before.number,
        ":from": from.at.as_micros(),
        ":from_number": from.number,
        ":who": query.who,
        ":action": query.action,
        ":scope": query.scope.map(table::hex),
        ":key": query.key,
        ":limit": query.one_more(),
    };
    let mut statement = connection.prepare_cached(&sql::LIST)?;
    let mut rows = statement.query(values)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let place = place(row)?;
        let entry = table::entry::<Refused>(|text| Ok(row.get(text + 2)?), row.get("forced")?)?;
        found.push((place, Written { at: place.at, entry }));
    }
    Ok(found)
}

fn place(row: &Row<'_>) -> rusqlite::Result<Place> {
    Ok(Place { at: Timestamp::from_micros(row.get(0)?), number: row.get(1)? })
}

fn at_most(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// Before when an entry is older than `age`.
pub(super) fn older_than(age: Duration, now: Timestamp) -> Timestamp {
    let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
    Timestamp::from_micros(now.as_micros().saturating_sub(age))
}

/// Deletes up to `limit` entries from before a moment, the oldest first.
pub(super) fn delete(connection: &Connection, before: Timestamp, limit: usize) -> rusqlite::Result<usize> {
    connection.prepare_cached(sql::DELETE)?.execute(params![before.as_micros(), at_most(limit)])
}

/// Takes the key and the label out of up to `limit` entries of a scope.
pub(super) fn blank(connection: &Connection, scope: [u8; 32], limit: usize) -> rusqlite::Result<usize> {
    connection.prepare_cached(sql::BLANK)?.execute(params![table::hex(scope), at_most(limit)])
}

pub(super) mod sql {
    use super::{COLUMNS, LazyLock};

    /// Relies on the index by time, read backwards from the cursor on.
    pub(in super::super) static LIST: LazyLock<String> = LazyLock::new(|| {
        format!(
            "SELECT at, number, {COLUMNS} FROM onlyonce_audit INDEXED BY onlyonce_audit_by_time
             WHERE (at, number) < (:at, :number) AND (at, number) >= (:from, :from_number)
               AND (:who IS NULL OR who = :who) AND (:action IS NULL OR action = :action)
               AND (:scope IS NULL OR scope = :scope) AND (:key IS NULL OR key = :key)
             ORDER BY at DESC, number DESC LIMIT :limit"
        )
    });

    /// Relies on the index by time, and reads no entry.
    pub(in super::super) const EXAMINED: &str = "
        SELECT at, number FROM onlyonce_audit INDEXED BY onlyonce_audit_by_time
        WHERE (at, number) < (?1, ?2) AND (at, number) >= (?3, ?4)
        ORDER BY at DESC, number DESC LIMIT 1 OFFSET ?5 - 1";

    /// Relies on the index by time.
    pub(in super::super) const DELETE: &str = "
        DELETE FROM onlyonce_audit WHERE number IN (
            SELECT number FROM onlyonce_audit INDEXED BY onlyonce_audit_by_time
            WHERE at < ?1 ORDER BY at, number LIMIT ?2)";

    /// Relies on the index by scope.
    pub(in super::super) const BLANK: &str = "
        UPDATE onlyonce_audit SET key = NULL, scope_label = NULL WHERE number IN (
            SELECT number FROM onlyonce_audit INDEXED BY onlyonce_audit_by_scope
            WHERE scope = ?1 AND (key IS NOT NULL OR scope_label IS NOT NULL) LIMIT ?2)";
}

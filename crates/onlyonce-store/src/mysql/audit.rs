//! The audit log: entries written with their change (`write.rs`) or by themselves, listed newest first, deleted by age.

use std::sync::Arc;
use std::time::Duration;

use mysql_async::{Row, Value};

use super::pool::Pool;
use super::row::{at_most, column, moment, span};
use super::statement::{filled, marks};
use crate::Error;
use crate::audit::table::{self, EXAMINED_MAX, Part, Place, TEXTS};
use crate::audit::{Entry, Page, Query, Written};

/// How many entries are deleted, or changed, at once.
const AT_ONCE: usize = 1_000;

/// An entry whose id exists already is the same entry: it is written once. Relies on the log's unique ids.
///
/// the values of an entry
pub(super) fn note() -> String {
    let values = marks(TEXTS + 1);
    filled(&format!(
        "INSERT INTO onlyonce_audit ({{audit}}, at) VALUES ({values}, {{now}}) ON DUPLICATE KEY UPDATE number = number"
    ))
}

/// The values of an entry, in the order of its columns.
pub(super) fn values(entry: &Entry) -> Vec<Value> {
    let texts = table::texts(entry).into_iter().map(|text| text.as_deref().into());
    texts.chain([entry.forced.into()]).collect()
}

pub(super) async fn write(pool: &Pool, entry: &Entry) -> Result<(), Error> {
    pool.change(&note(), values(entry)).await?;
    Ok(())
}

/// Which entries a page is from. Relies on the log's index by time, read backwards from the cursor.
const PART: &str = "at <= ? AND (at < ? OR number < ?) AND at >= ? AND (at > ? OR number >= ?)";

fn part_values(Part { before, from }: Part) -> Vec<Value> {
    let [before_at, from_at] = [before.at.as_micros(), from.at.as_micros()];
    vec![
        before_at.into(),
        before_at.into(),
        before.number.into(),
        from_at.into(),
        from_at.into(),
        from.number.into(),
    ]
}

pub(super) async fn list(pool: &Pool, query: &Query) -> Result<Page, Error> {
    let part = Part::of(query)?;
    let examined = examined(pool, query, part).await?;
    let mut values = part_values(part.examined(examined));
    let mut filters = String::new();
    let scope = query.scope.map(table::hex);
    for (name, wanted) in [
        ("who", query.who.as_deref()),
        ("action", query.action.as_deref()),
        ("scope", scope.as_deref()),
        ("key", query.key.as_deref()),
    ] {
        if let Some(wanted) = wanted {
            filters.push_str(&format!(" AND `{name}` = ?"));
            values.push(wanted.into());
        }
    }
    values.push(query.one_more().into());
    let sql = filled(&format!(
        "SELECT at, number, {{audit}} FROM onlyonce_audit WHERE {PART}{filters} ORDER BY at DESC, number DESC LIMIT ?"
    ));
    let rows = pool.query(&sql, values).await?;
    let found = rows.iter().map(written).collect::<Result<Vec<_>, _>>()?;
    Ok(table::page(found, query.limit, examined))
}

/// The last place that is examined; none where that is all, or where everything passes. It reads no entry.
async fn examined(pool: &Pool, query: &Query, part: Part) -> Result<Option<Place>, Error> {
    if !query.is_narrow() {
        return Ok(None);
    }
    let mut values = part_values(part);
    values.push(at_most(EXAMINED_MAX - 1).into());
    let sql = format!(
        "SELECT at, number FROM onlyonce_audit WHERE {PART} ORDER BY at DESC, number DESC LIMIT 1 OFFSET ?"
    );
    pool.query(&sql, values).await?.first().map(place).transpose()
}

fn place(row: &Row) -> Result<Place, Error> {
    Ok(Place { at: moment(row, 0)?, number: column(row, 1)? })
}

fn written(row: &Row) -> Result<(Place, Written), Error> {
    let place = place(row)?;
    let text = |number: usize| Ok(column::<Option<&str>>(row, number + 2)?.map(Arc::from));
    let entry = table::entry::<Error>(text, column(row, TEXTS + 2)?)?;
    Ok((place, Written { at: place.at, entry }))
}

/// Deletes up to `limit` entries that are older than `age`, and returns how many. Relies on the log's index by time.
pub(super) async fn reap(pool: &Pool, age: Duration, limit: usize) -> Result<usize, Error> {
    const SQL: &str = "DELETE FROM onlyonce_audit WHERE at < {now} - ? ORDER BY at, number LIMIT ?";
    in_batches(pool, SQL, span(age).into(), limit).await
}

/// Takes keys and labels out of the entries of a scope. Relies on the log's index by scope.
pub(super) async fn blank(pool: &Pool, scope: [u8; 32]) -> Result<(), Error> {
    const SQL: &str = "
        UPDATE onlyonce_audit SET `key` = NULL, scope_label = NULL
        WHERE scope = ? AND (`key` IS NOT NULL OR scope_label IS NOT NULL) LIMIT ?";
    in_batches(pool, SQL, table::hex(scope).into(), usize::MAX).await.map(drop)
}

/// Runs a statement, whose second value is how many rows it may change, until there are no more or `limit` is reached. Returns
/// how many it changed.
pub(super) async fn in_batches(pool: &Pool, sql: &str, of: Value, limit: usize) -> Result<usize, Error> {
    let (sql, mut done) = (filled(sql), 0);
    while done < limit {
        let rows = AT_ONCE.min(limit - done);
        let changed = pool.change(&sql, vec![of.clone(), at_most(rows).into()]).await?;
        done += changed;
        if changed < rows {
            break;
        }
    }
    Ok(done)
}

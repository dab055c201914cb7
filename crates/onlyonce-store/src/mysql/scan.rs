//! Listings and counts.
//!
//! A listing of all goes by ids, which never change. A page of a narrowed listing examines at most [`EXAMINED_MAX`] of them:
//!
//! ```text
//!   the beginning of an id ──► by the primary key, first
//!   states with few records ─► by the index by state, sorted
//!   all else ────────────────► by the primary key, from the cursor on
//! ```

use std::time::Duration;

use mysql_async::{Row, Value};
use onlyonce_core::record::{Id, StateName, StateSet};
use onlyonce_core::time::Timestamp;

use super::pool::Pool;
use super::row::{self, CREATED_AT, DUE_AT, UNKNOWN_SINCE, at_most, column, moment};
use super::statement::{filled, marks};
use crate::listing::{Digests, Found, Place};
use crate::seal::Keyring;
use crate::{Alive, Count, Error, Order, Page, Query, Search};

/// Records of a state are counted up to this number; beyond it the server's statistics give an estimate.
const COUNTED_MAX: i64 = 100_000;
/// How many records a page of a narrowed listing examines.
const EXAMINED_MAX: usize = 2_000;
/// The moment in the places of a listing by id: the same for all.
const ALIKE: Timestamp = Timestamp::from_micros(0);
/// After every place.
const END: Place = Place { at: Timestamp::from_micros(i64::MAX), id: Id([0xff; 32]) };

/// A page of records.
pub(super) async fn list(pool: &Pool, keyring: Option<&Keyring>, query: &Query) -> Result<Page, Error> {
    find(pool, query).await?.read(query, |row| {
        let seen = row::seen(&row, keyring)?;
        Ok((row::id(&row)?, seen))
    })
}

/// Up to one row more than a page, in order, each with its place.
pub(super) async fn find(pool: &Pool, query: &Query) -> Result<Found<Row>, Error> {
    let after = Place::or_start(Place::of(query)?);
    match query.order {
        Order::Any => any(pool, query, after).await,
        Order::Due => due(pool, query, after).await,
        Order::UnknownSince => since(pool, query, after, &UNKNOWN).await,
        Order::PendingSince => since(pool, query, after, &PENDING).await,
        Order::Archived => archived(pool, query, after).await,
    }
}

/// All, by id. What the beginning of an id is looked for comes first: its places have the earliest moment.
async fn any(pool: &Pool, query: &Query, after: Place) -> Result<Found<Row>, Error> {
    let ids = query.search.as_ref().and_then(Search::digests);
    let mut first = match ids {
        Some(ids) if after.at == Place::START.at => by_id_alone(pool, query, ids, after.id).await?,
        Some(_) | None => Vec::new(),
    };
    if first.len() > query.limit {
        return Ok(Found::all(first));
    }
    // After what was found by its id, the listing begins anew.
    let after = if after.at == ALIKE { after.id } else { Place::START.id };
    let rest = if are_few(pool, query).await? {
        of_states(pool, query, after).await?
    } else {
        by_id(pool, query, after).await?
    };
    first.extend(rest.records);
    Ok(Found { records: first, examined: rest.examined })
}

async fn by_id_alone(
    pool: &Pool,
    query: &Query,
    ids: Digests,
    after: Id,
) -> Result<Vec<(Place, Row)>, Error> {
    let range = "id > ? AND id >= ? AND id <= ?";
    let values = vec![after.0.into(), ids.first.into(), ids.last.into()];
    let filter = Filter::of(&Query { search: None, ..query.clone() });
    placed(filter.select(pool, "", range, values, "id", query).await?, |_| Ok(Place::START.at))
}

/// Relies on the primary key, read in order from the cursor. Where it ends is looked up first, without the records.
async fn by_id(pool: &Pool, query: &Query, after: Id) -> Result<Found<Row>, Error> {
    const EXAMINED: &str = "SELECT id FROM onlyonce_record WHERE id > ? ORDER BY id LIMIT 1 OFFSET ?";
    let examined = match query.is_narrow() {
        true => pool.query(EXAMINED, vec![after.0.into(), skipped()]).await?,
        false => Vec::new(),
    };
    let examined = examined.first().map(row::id).transpose()?;
    let values = vec![after.0.into(), examined.unwrap_or(END.id).0.into()];
    let filter = Filter::of(query).without_ids(query);
    let rows = filter.select(pool, "", "id > ? AND id <= ?", values, "id", query).await?;
    Ok(Found { records: placed(rows, |_| Ok(ALIKE))?, examined: examined.map(|id| Place { at: ALIKE, id }) })
}

/// Whether only some states are asked for, and so few records are in them that they can be sorted.
async fn are_few(pool: &Pool, query: &Query) -> Result<bool, Error> {
    if query.states == StateSet::ALL {
        return Ok(false);
    }
    let examined = at_most(EXAMINED_MAX);
    let states: Vec<&str> = query.states.iter().map(StateName::as_str).collect();
    Ok(counts(pool, &RECORDS, &states, examined + 1).await?.iter().sum::<i64>() <= examined)
}

/// Relies on the index by state.
async fn of_states(pool: &Pool, query: &Query, after: Id) -> Result<Found<Row>, Error> {
    let hint = "FORCE INDEX (onlyonce_record_by_due)";
    let filter = Filter::of(query).without_ids(query);
    let rows = filter.select(pool, hint, "id > ?", vec![after.0.into()], "id", query).await?;
    Ok(Found::all(placed(rows, |_| Ok(ALIKE))?))
}

/// Relies on the index by state and due time, read in order from the cursor for each state: a million expired records are
/// not sorted to find a lapsed lease.
async fn due(pool: &Pool, query: &Query, after: Place) -> Result<Found<Row>, Error> {
    let filter = Filter::of(&Query { states: StateSet::ALL, ..query.clone() });
    let (mut parts, mut values) = (Vec::new(), Vec::new());
    for state in query.states.iter() {
        let filter = &filter.sql;
        parts.push(format!(
            "(SELECT {{all}}, {{seen at}} AS seen_at FROM onlyonce_record AS record FORCE INDEX (onlyonce_record_by_due)
              WHERE state = ? AND due_at <= {{now}} AND due_at >= ? AND (due_at > ? OR id > ?){filter}
              ORDER BY due_at, id LIMIT ?)"
        ));
        let at = after.at.as_micros();
        values.extend([state.as_str().into(), at.into(), at.into(), after.id.0.into()]);
        values.extend(filter_values(&Query { states: StateSet::ALL, ..query.clone() }));
        values.push(limit(query));
    }
    if parts.is_empty() {
        return Ok(Found::all(Vec::new()));
    }
    values.push(limit(query));
    let sql = filled(&format!("{} ORDER BY due_at, id LIMIT ?", parts.join(" UNION ALL ")));
    let rows = pool.query(&sql, values).await?;
    Ok(Found::all(placed(rows, |row| moment(row, DUE_AT))?))
}

/// A listing by a moment, and the id.
struct Since {
    column: &'static str,
    place: usize,
    index: &'static str,
    /// Which records it is about.
    which: &'static str,
}

const UNKNOWN: Since = Since {
    column: "unknown_since",
    place: UNKNOWN_SINCE,
    index: "FORCE INDEX (onlyonce_record_by_unknown)",
    which: "unknown_since IS NOT NULL",
};
const PENDING: Since = Since {
    column: "created_at",
    place: CREATED_AT,
    index: "FORCE INDEX (onlyonce_record_by_creation)",
    which: "state = 'pending'",
};

/// Relies on the index of its moment, read in order from the cursor. Where it ends is looked up first, without the records.
async fn since(pool: &Pool, query: &Query, after: Place, since: &Since) -> Result<Found<Row>, Error> {
    let Since { column: at, index, which, .. } = since;
    let from = format!("{which} AND {at} >= ? AND ({at} > ? OR id > ?)");
    let place = |place: Place| [place.at.as_micros().into(), place.at.as_micros().into(), place.id.0.into()];
    let examined = match query.is_narrow() {
        true => {
            let sql = format!(
                "SELECT id, {at} FROM onlyonce_record {index} WHERE {from} ORDER BY {at}, id LIMIT 1 OFFSET ?"
            );
            pool.query(&sql, place(after).into_iter().chain([skipped()]).collect()).await?
        }
        false => Vec::new(),
    };
    let read = |row: &Row| Ok::<_, Error>(Place { at: moment(row, 1)?, id: row::id(row)? });
    let examined = examined.first().map(read).transpose()?;
    let values = place(after).into_iter().chain(place(examined.unwrap_or(END))).collect();
    let range = format!("{from} AND {at} <= ? AND ({at} < ? OR id <= ?)");
    let order = format!("{at}, id");
    let rows = Filter::of(query).select(pool, index, &range, values, &order, query).await?;
    Ok(Found { records: placed(rows, |row| moment(row, since.place))?, examined })
}

/// Relies on the archive's primary key, read in order from the cursor. The number stands between the columns of a record and
/// the clock.
async fn archived(pool: &Pool, query: &Query, after: Place) -> Result<Found<Row>, Error> {
    const EXAMINED: &str =
        "SELECT number FROM onlyonce_archive WHERE number > ? ORDER BY number LIMIT 1 OFFSET ?";
    let after = after.at.as_micros().max(0);
    let examined = match query.is_narrow() {
        true => pool.query(EXAMINED, vec![after.into(), skipped()]).await?,
        false => Vec::new(),
    };
    let examined = examined.first().map(|row| column::<i64>(row, 0)).transpose()?;
    let filter = Filter::of(query);
    let sql = filled(&format!(
        "SELECT {{all}}, number, {{seen at}} FROM onlyonce_archive AS record
         WHERE number > ? AND number <= ?{} ORDER BY number LIMIT ?",
        filter.sql
    ));
    let mut values: Vec<Value> = vec![after.into(), examined.unwrap_or(i64::MAX).into()];
    values.extend(filter.values);
    values.push(limit(query));
    let rows = pool.query(&sql, values).await?;
    let examined = examined.map(|number| Place { at: Timestamp::from_micros(number), id: Place::START.id });
    Ok(Found { records: placed(rows, |row| moment(row, row.len() - 2))?, examined })
}

/// What narrows a listing. Text is compared byte by byte: nothing in it is a pattern.
struct Filter {
    /// Begins with `AND` where there is anything.
    sql: String,
    values: Vec<Value>,
}

impl Filter {
    fn of(query: &Query) -> Self {
        let mut sql = String::new();
        if query.states != StateSet::ALL {
            let states = marks(query.states.iter().count().max(1));
            sql.push_str(&format!(" AND state IN ({states})"));
        }
        if query.scope.is_some() {
            sql.push_str(" AND scope = ?");
        }
        if query.route.is_some() {
            sql.push_str(" AND route = ?");
        }
        if query.dead_letter {
            sql.push_str(" AND dead_letter");
        }
        if let Some(search) = &query.search {
            sql.push_str(" AND (`key` = ? OR label = ?");
            if search.key_prefix().is_some() {
                sql.push_str(" OR LEFT(`key`, ?) = ?");
            }
            if search.digests().is_some() {
                sql.push_str(" OR scope BETWEEN ? AND ? OR id BETWEEN ? AND ?");
            }
            sql.push(')');
        }
        Self { sql, values: filter_values(query) }
    }

    /// The same without what was found by its id, which has been shown before the rest.
    fn without_ids(mut self, query: &Query) -> Self {
        if let Some(ids) = query.search.as_ref().and_then(Search::digests) {
            self.sql.push_str(" AND id NOT BETWEEN ? AND ?");
            self.values.extend([ids.first.into(), ids.last.into()]);
        }
        self
    }

    /// The records of a range that pass.
    async fn select(
        self,
        pool: &Pool,
        hint: &str,
        range: &str,
        mut values: Vec<Value>,
        order: &str,
        query: &Query,
    ) -> Result<Vec<Row>, Error> {
        let sql = filled(&format!(
            "SELECT {{all}}, {{seen at}} FROM onlyonce_record AS record {hint}
             WHERE {range}{} ORDER BY {order} LIMIT ?",
            self.sql
        ));
        values.extend(self.values);
        values.push(limit(query));
        Ok(pool.query(&sql, values).await?)
    }
}

/// The values of a [`Filter`], in its order.
fn filter_values(query: &Query) -> Vec<Value> {
    let mut values: Vec<Value> = Vec::new();
    if query.states != StateSet::ALL {
        values.extend(query.states.iter().map(|state| Value::from(state.as_str())));
        if values.is_empty() {
            // No state: nothing passes.
            values.push(Value::NULL);
        }
    }
    values.extend(query.scope.map(Value::from));
    values.extend(query.route.as_deref().map(Value::from));
    if let Some(search) = &query.search {
        values.extend([search.text().into(), search.text().into()]);
        if let Some(prefix) = search.key_prefix() {
            values.extend([at_most(prefix.len()).into(), prefix.into()]);
        }
        if let Some(Digests { first, last }) = search.digests() {
            values.extend([first.into(), last.into(), first.into(), last.into()]);
        }
    }
    values
}

fn limit(query: &Query) -> Value {
    at_most(query.one_more()).into()
}

fn skipped() -> Value {
    at_most(EXAMINED_MAX - 1).into()
}

fn placed(rows: Vec<Row>, at: impl Fn(&Row) -> Result<Timestamp, Error>) -> Result<Vec<(Place, Row)>, Error> {
    rows.into_iter().map(|row| Ok((Place { at: at(&row)?, id: row::id(&row)? }, row))).collect()
}

/// A table whose rows have a state, and the index that counting them relies on.
pub(super) struct States {
    table: &'static str,
    index: &'static str,
}

const RECORDS: States = States { table: "onlyonce_record", index: "onlyonce_record_by_due" };
pub(super) const MESSAGES: States = States { table: "onlyonce_outbox", index: "onlyonce_outbox_by_state" };

/// How many rows there are of each state, counted up to `limit`. It reads the index, and no row.
async fn counts(pool: &Pool, of: &States, states: &[&str], limit: i64) -> Result<Vec<i64>, Error> {
    if states.is_empty() {
        return Ok(Vec::new());
    }
    let States { table, index } = of;
    let one = format!(
        "(SELECT count(*) FROM (
              SELECT 1 FROM {table} FORCE INDEX ({index}) WHERE state = ? LIMIT ?) AS counted)"
    );
    let sql = format!("SELECT {}", vec![one; states.len()].join(", "));
    let values = states.iter().flat_map(|state| [Value::from(*state), limit.into()]).collect();
    let rows = pool.query(&sql, values).await?;
    let row = super::only(&rows)?;
    (0..states.len()).map(|place| column(row, place)).collect()
}

/// The same, and of more than `exact_max` about as many as the server's statistics leave.
pub(super) async fn count_states(
    pool: &Pool,
    of: &States,
    states: &[&str],
    exact_max: i64,
) -> Result<Vec<Count>, Error> {
    const ROWS: &str = "
        SELECT CAST(table_rows AS SIGNED) FROM information_schema.tables
        WHERE table_schema = DATABASE() AND table_name = ?";
    let counts = counts(pool, of, states, exact_max + 1).await?;
    let many = at_most(counts.iter().filter(|count| **count > exact_max).count());
    let few: i64 = counts.iter().filter(|count| **count <= exact_max).sum();
    let all = match many {
        0 => 0,
        _ => {
            let rows = pool.query(ROWS, vec![of.table.into()]).await?;
            column::<Option<i64>>(super::only(&rows)?, 0)?.unwrap_or(0)
        }
    };
    let told = |count: i64| match count > exact_max {
        true => Count::About(((all - few) / many).max(count).unsigned_abs()),
        false => Count::Exact(count.unsigned_abs()),
    };
    Ok(counts.into_iter().map(told).collect())
}

/// How many records there are in each state.
pub(super) async fn count(pool: &Pool) -> Result<Vec<(StateName, Count)>, Error> {
    let states = StateName::ALL.map(StateName::as_str);
    let counts = count_states(pool, &RECORDS, &states, COUNTED_MAX).await?;
    Ok(StateName::ALL.into_iter().zip(counts).collect())
}

/// The index that counting relies on. Every write pays for it, so it is made only for those who count.
pub(super) const BY_SCOPE: &str =
    "CREATE INDEX onlyonce_record_by_scope ON onlyonce_record (scope, expires_at)";

/// How many records have not expired, counted up to `limit`. Relies on [`BY_SCOPE`], and is slow without it; in all, it reads
/// the whole index.
pub(super) async fn count_alive(pool: &Pool, scope: Option<[u8; 32]>, limit: u64) -> Result<Alive, Error> {
    const OF_SCOPE: &str = "
        SELECT (SELECT count(*) FROM (
                    SELECT 1 FROM onlyonce_record WHERE scope = ? AND expires_at IS NULL LIMIT ?) AS unsettled)
             + (SELECT count(*) FROM (
                    SELECT 1 FROM onlyonce_record WHERE scope = ? AND expires_at > {now} LIMIT ?) AS settled),
               (SELECT min(expires_at) - {now} FROM onlyonce_record WHERE scope = ? AND expires_at > {now})";
    const ALL: &str = "
        SELECT count(*), NULL FROM (
            SELECT 1 FROM onlyonce_record WHERE expires_at IS NULL OR expires_at > {now} LIMIT ?) AS alive";
    let most = Value::from(i64::try_from(limit).unwrap_or(i64::MAX));
    let (sql, values) = match scope {
        Some(scope) => {
            let scope = Value::from(scope);
            (OF_SCOPE, vec![scope.clone(), most.clone(), scope.clone(), most, scope])
        }
        None => (ALL, vec![most]),
    };
    let rows = pool.query(&filled(sql), values).await?;
    let row = super::only(&rows)?;
    let left: Option<i64> = column(row, 1)?;
    Ok(Alive {
        count: column::<i64>(row, 0)?.unsigned_abs().min(limit),
        next_expiry: left.map(|micros| Duration::from_micros(micros.max(0).unsigned_abs())),
    })
}

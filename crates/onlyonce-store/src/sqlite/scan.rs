//! Listings: all, what is due in the order it fell due, what is unknown or pending oldest first, the archive; and how many
//! there are.
//!
//! A listing of all goes by row numbers: a record keeps its number as long as it stands there, and rows lie in that order in
//! the file. A page of a narrowed listing examines at most [`EXAMINED_MAX`] of them:
//!
//! ```text
//!   the beginning of an id ──► by the index over ids, first
//!   states with few records ─► by the index by state, sorted
//!   all else ────────────────► row after row, from the cursor on
//! ```

use std::sync::{Arc, LazyLock};

use onlyonce_core::record::{Id, Seen, StateName, StateSet};
use onlyonce_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, ToSql, params};

use super::row;
use super::writer::Refused;
use crate::listing::{self, Digests, Place};
use crate::seal::Keyring;
use crate::sql::COLUMNS;
use crate::{Alive, Count, Error, Order, Page, Query, Search};

/// Up to so many records of a state are counted one by one.
const COUNTED_MAX: i64 = 100_000;
/// How many records a page of a narrowed listing examines: among a million some 5 ms, since rows lie in order.
const EXAMINED_MAX: usize = 10_000;

type Listed = (Id, Result<Seen, Error>);
type Found = listing::Found<Listed>;

/// A page. The connection is in a transaction: all that a page asks is one snapshot.
pub(super) fn list(
    connection: &Connection,
    now: &dyn Fn() -> Timestamp,
    keyring: Option<&Keyring>,
    query: &Query,
) -> Result<Page, Refused> {
    let after = Place::or_start(Place::of(query)?);
    let listing = Listing { connection, now, keyring, query, filter: Filter::of(query) };
    let found = match query.order {
        Order::Any => listing.any(after)?,
        Order::Due => listing.due(after)?,
        Order::UnknownSince => listing.since(after, &sql::UNKNOWN, "unknown_since")?,
        Order::PendingSince => listing.since(after, &sql::PENDING, "created_at")?,
        Order::Archived => listing.by_number(after.at.as_micros().max(0), &sql::ARCHIVED)?,
    };
    let (found, next) = found.page(query.limit);
    let (mut records, mut unreadable) = (Vec::with_capacity(found.len()), Vec::new());
    for (id, seen) in found {
        let unread = seen.as_ref().err().and_then(Error::unreadable).cloned();
        match seen {
            Ok(seen) => records.push((id, seen)),
            Err(_) if unread.is_some() => unreadable.extend(unread),
            // A worker goes on with the rest; a person who lists everything is told.
            Err(error) if matches!(query.order, Order::Due | Order::UnknownSince | Order::PendingSince) => {
                tracing::warn!(record = %id, %error, "a record cannot be read and is skipped by the workers");
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Page { records, unreadable, next })
}

/// Up to [`COUNTED_MAX`] of each state exactly: by the index by state, which is read without the records. Of more, about as
/// many as there are row numbers left: those are given out in order, and what was deleted leaves gaps.
pub(super) fn count(connection: &Connection) -> Result<Vec<(StateName, Count)>, Refused> {
    const NUMBERS: &str = "
        SELECT coalesce((SELECT max(number) FROM onlyonce_record) - (SELECT min(number) FROM onlyonce_record) + 1, 0)";
    let mut counts = Vec::new();
    for state in StateName::ALL {
        counts.push((state, count_of(connection, state, COUNTED_MAX + 1)?));
    }
    let numbers: i64 = connection.prepare_cached(NUMBERS)?.query_row([], |row| row.get(0))?;
    let few: i64 = counts.iter().map(|(_, count)| count).filter(|count| **count <= COUNTED_MAX).sum();
    let many = counts.iter().filter(|(_, count)| *count > COUNTED_MAX).count();
    let told = |count: i64| match i64::try_from(many) {
        Ok(many) if count > COUNTED_MAX => Count::About(((numbers - few) / many).max(count).unsigned_abs()),
        _ => Count::Exact(count.unsigned_abs()),
    };
    Ok(counts.into_iter().map(|(state, count)| (state, told(count))).collect())
}

/// How many records of a state there are, counted up to `limit`. Relies on the index by state, and reads no record.
fn count_of(connection: &Connection, state: StateName, limit: i64) -> rusqlite::Result<i64> {
    const SQL: &str = "
        SELECT count(*) FROM (
            SELECT 1 FROM onlyonce_record INDEXED BY onlyonce_record_by_due WHERE state = ?1 LIMIT ?2)";
    connection.prepare_cached(SQL)?.query_row(params![state.as_str(), limit], |row| row.get(0))
}

/// The index that counting relies on. Every write pays for it, so it is made only for those who count.
pub(super) const BY_SCOPE: &str =
    "CREATE INDEX IF NOT EXISTS onlyonce_record_by_scope ON onlyonce_record (scope, expires_at)";

/// scope, now, limit
const ALIVE_OF_SCOPE: &str = "
    SELECT (SELECT count(*) FROM (
                SELECT 1 FROM onlyonce_record WHERE scope = ?1 AND expires_at IS NULL LIMIT ?3))
         + (SELECT count(*) FROM (
                SELECT 1 FROM onlyonce_record WHERE scope = ?1 AND expires_at > ?2 LIMIT ?3)),
           (SELECT min(expires_at) FROM onlyonce_record WHERE scope = ?1 AND expires_at > ?2)";
const ALIVE: &str = "
    SELECT count(*), NULL FROM (
        SELECT 1 FROM onlyonce_record WHERE ?1 IS NULL AND (expires_at IS NULL OR expires_at > ?2) LIMIT ?3)";

/// How many records have not expired, counted up to `limit`. Relies on [`BY_SCOPE`], and is slow without it; in all, it
/// reads the whole index.
pub(super) fn count_alive(
    connection: &Connection,
    scope: Option<[u8; 32]>,
    limit: u64,
    now: Timestamp,
) -> rusqlite::Result<Alive> {
    let sql = if scope.is_some() { ALIVE_OF_SCOPE } else { ALIVE };
    let most = i64::try_from(limit).unwrap_or(i64::MAX);
    let read = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, Option<i64>>(1)?));
    let (count, next) =
        connection.prepare_cached(sql)?.query_row(params![scope, now.as_micros(), most], read)?;
    Ok(Alive {
        count: count.unsigned_abs().min(limit),
        next_expiry: next.map(|next| Timestamp::from_micros(next).since(now)),
    })
}

/// What narrows a listing. Text is compared byte by byte: nothing in it is a pattern.
const FILTER: &str = "
    instr(:states, state || ',') > 0 AND (:scope IS NULL OR scope = :scope) AND (:route IS NULL OR route = :route)
    AND (NOT :dead_letter OR dead_letter)
    AND (:text IS NULL OR key = :text OR label = :text
         OR substr(CAST(key AS BLOB), 1, length(:prefix)) = :prefix
         OR scope BETWEEN :first AND :last OR id BETWEEN :first AND :last)";

/// The values of [`FILTER`].
#[derive(Clone)]
struct Filter {
    states: String,
    scope: Option<[u8; 32]>,
    route: Option<Arc<str>>,
    dead_letter: bool,
    text: Option<String>,
    prefix: Option<Vec<u8>>,
    first: Option<[u8; 32]>,
    last: Option<[u8; 32]>,
}

impl Filter {
    fn of(query: &Query) -> Self {
        let search = query.search.as_ref();
        let digests = search.and_then(Search::digests);
        Self {
            states: query.states.iter().map(|state| format!("{state},")).collect(),
            scope: query.scope,
            route: query.route.clone(),
            dead_letter: query.dead_letter,
            text: search.map(|search| search.text().to_owned()),
            prefix: search.and_then(Search::key_prefix).map(|prefix| prefix.as_bytes().to_vec()),
            first: digests.map(|digests| digests.first),
            last: digests.map(|digests| digests.last),
        }
    }

    /// The same for whatever is searched for.
    fn without_search(&self) -> Self {
        Self { text: None, prefix: None, first: None, last: None, ..self.clone() }
    }

    fn values(&self) -> [(&str, &dyn ToSql); 8] {
        [
            (":states", &self.states),
            (":scope", &self.scope),
            (":route", &self.route),
            (":dead_letter", &self.dead_letter),
            (":text", &self.text),
            (":prefix", &self.prefix),
            (":first", &self.first),
            (":last", &self.last),
        ]
    }
}

/// A page that is being made.
struct Listing<'a> {
    connection: &'a Connection,
    now: &'a dyn Fn() -> Timestamp,
    keyring: Option<&'a Keyring>,
    query: &'a Query,
    filter: Filter,
}

impl Listing<'_> {
    /// All, by number. What the beginning of an id is looked for comes first, by id: its places have the earliest moment.
    fn any(&self, after: Place) -> Result<Found, Refused> {
        let ids = self.query.search.as_ref().and_then(Search::digests);
        let mut first = match ids {
            Some(ids) if after.at == Place::START.at => self.by_id(ids, after.id)?,
            Some(_) | None => Vec::new(),
        };
        if first.len() > self.query.limit {
            return Ok(Found::all(first));
        }
        let after = after.at.as_micros().max(0);
        let rest = match self.are_few()? {
            true => self.of_states(after)?,
            false => self.by_number(after, &sql::BY_NUMBER)?,
        };
        first.extend(rest.records);
        Ok(Found { records: first, examined: rest.examined })
    }

    /// Relies on the unique index over ids.
    fn by_id(&self, ids: Digests, after: Id) -> rusqlite::Result<Vec<(Place, Listed)>> {
        let filter = self.filter.without_search();
        let more: [(&str, &dyn ToSql); 3] = [(":from", &ids.first), (":to", &ids.last), (":after", &after.0)];
        self.find(&sql::BY_ID, &filter, &more, |_| Ok(Place::START.at))
    }

    /// Row after row. Where it ends is looked up first, without the filter: the file is read in its order.
    fn by_number(&self, after: i64, statement: &sql::Paged) -> rusqlite::Result<Found> {
        let examined = self.examined_by_number(after, statement)?;
        let until = examined.unwrap_or(i64::MAX);
        let more: [(&str, &dyn ToSql); 2] = [(":after", &after), (":until", &until)];
        let records = self.find(&statement.page, &self.filter, &more, by_number)?;
        Ok(Found { records, examined: examined.map(numbered) })
    }

    /// The number of the last record that is examined; none where that is all, or where everything passes.
    fn examined_by_number(&self, after: i64, statement: &sql::Paged) -> rusqlite::Result<Option<i64>> {
        if !self.query.is_narrow() {
            return Ok(None);
        }
        let mut statement = self.connection.prepare_cached(&statement.examined)?;
        statement.query_row(params![after, examined_max()], |row| row.get(0)).optional()
    }

    /// Whether only some states are asked for, and so few records are in them that they can be sorted.
    fn are_few(&self) -> rusqlite::Result<bool> {
        if self.query.states == StateSet::ALL {
            return Ok(false);
        }
        let mut left = examined_max();
        for state in self.query.states.iter() {
            left -= count_of(self.connection, state, left + 1)?;
            if left < 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn of_states(&self, after: i64) -> rusqlite::Result<Found> {
        let mut found = Vec::new();
        for state in self.query.states.iter() {
            let more: [(&str, &dyn ToSql); 2] = [(":after", &after), (":state", &state.as_str())];
            found.extend(self.find(&sql::OF_STATE, &self.filter, &more, by_number)?);
        }
        Ok(self.first_of(found))
    }

    /// A page of each state, merged.
    fn due(&self, after: Place) -> rusqlite::Result<Found> {
        let (now, at) = ((self.now)().as_micros(), after.at.as_micros());
        let mut found = Vec::new();
        for state in self.query.states.iter() {
            let more: [(&str, &dyn ToSql); 4] =
                [(":now", &now), (":at", &at), (":after", &after.id.0), (":state", &state.as_str())];
            found.extend(self.find(&sql::DUE, &self.filter, &more, moment("due_at"))?);
        }
        Ok(self.first_of(found))
    }

    /// By a moment of this column, and the id.
    fn since(&self, after: Place, statement: &sql::Paged, column: &'static str) -> rusqlite::Result<Found> {
        let examined = self.examined_since(after, statement)?;
        let last = Place { at: Timestamp::from_micros(i64::MAX), id: Id([0xff; 32]) };
        let until = examined.unwrap_or(last);
        let more: [(&str, &dyn ToSql); 4] = [
            (":at", &after.at.as_micros()),
            (":after", &after.id.0),
            (":until", &until.at.as_micros()),
            (":until_id", &until.id.0),
        ];
        let records = self.find(&statement.page, &self.filter, &more, moment(column))?;
        Ok(Found { records, examined })
    }

    /// As for a listing by number.
    fn examined_since(&self, after: Place, statement: &sql::Paged) -> rusqlite::Result<Option<Place>> {
        if !self.query.is_narrow() {
            return Ok(None);
        }
        let place =
            |row: &Row<'_>| Ok(Place { at: Timestamp::from_micros(row.get(0)?), id: row.get(1).map(Id)? });
        let mut statement = self.connection.prepare_cached(&statement.examined)?;
        let after = params![after.at.as_micros(), after.id.0, examined_max()];
        statement.query_row(after, place).optional()
    }

    /// Up to one record more than a page, each with its place, whose moment is `at`.
    fn find(
        &self,
        sql: &str,
        filter: &Filter,
        more: &[(&str, &dyn ToSql)],
        at: impl Fn(&Row<'_>) -> rusqlite::Result<Timestamp>,
    ) -> rusqlite::Result<Vec<(Place, Listed)>> {
        let understand = |row: &Row<'_>| {
            let id = row::id(row)?;
            // The clock after the row: never before what it was stamped with.
            let seen = row::read(row, |row| row.seen((self.now)(), self.keyring))?;
            Ok((Place { at: at(row)?, id }, (id, seen)))
        };
        let limit = i64::try_from(self.query.one_more()).unwrap_or(i64::MAX);
        let limit: [(&str, &dyn ToSql); 1] = [(":limit", &limit)];
        let values = [&filter.values()[..], more, &limit].concat();
        self.connection.prepare_cached(sql)?.query_map(&values[..], understand)?.collect()
    }

    fn first_of(&self, mut found: Vec<(Place, Listed)>) -> Found {
        found.sort_unstable_by_key(|(place, _)| *place);
        found.truncate(self.query.one_more());
        Found::all(found)
    }
}

fn examined_max() -> i64 {
    i64::try_from(EXAMINED_MAX).unwrap_or(i64::MAX)
}

/// A place in a listing by number; the id does not matter there.
fn numbered(number: i64) -> Place {
    Place { at: Timestamp::from_micros(number), id: Place::START.id }
}

/// The number, which stands behind the columns of a record.
fn by_number(row: &Row<'_>) -> rusqlite::Result<Timestamp> {
    row.get("number").map(Timestamp::from_micros)
}

fn moment(column: &'static str) -> impl Fn(&Row<'_>) -> rusqlite::Result<Timestamp> {
    move |row| row.get(column).map(Timestamp::from_micros)
}

/// The statements of listings. Those with a filter have its parameters and `:limit`.
pub(super) mod sql {
    use super::{COLUMNS, FILTER, LazyLock};

    /// A listing whose pages examine a bounded number of records.
    pub(in super::super) struct Paged {
        pub(in super::super) page: String,
        /// Finds the last place that a page examines, and reads no record.
        pub(in super::super) examined: String,
    }

    /// Relies on the unique index over ids.
    pub(in super::super) static BY_ID: LazyLock<String> = LazyLock::new(|| {
        format!(
            "SELECT {COLUMNS} FROM onlyonce_record INDEXED BY onlyonce_record_by_id
             WHERE id BETWEEN :from AND :to AND id > :after AND {FILTER} ORDER BY id LIMIT :limit"
        )
    });

    /// Relies on the order of the rows. What [`BY_ID`] has shown is left out.
    pub(in super::super) static BY_NUMBER: LazyLock<Paged> =
        LazyLock::new(|| by_number("onlyonce_record", NOT_BY_ID));

    /// Relies on the order of the rows.
    pub(in super::super) static ARCHIVED: LazyLock<Paged> =
        LazyLock::new(|| by_number("onlyonce_archive", "true"));

    fn by_number(table: &str, also: &str) -> Paged {
        let page = format!(
            "SELECT {COLUMNS}, number FROM {table} NOT INDEXED
             WHERE number > :after AND number <= :until AND {FILTER} AND {also} ORDER BY number LIMIT :limit"
        );
        let examined = format!(
            "SELECT number FROM {table} NOT INDEXED WHERE number > ?1 ORDER BY number LIMIT 1 OFFSET ?2 - 1"
        );
        Paged { page, examined }
    }

    /// Relies on the index by state. Only numbers are sorted: an answer may be long.
    pub(in super::super) static OF_STATE: LazyLock<String> = LazyLock::new(|| {
        format!(
            "SELECT {COLUMNS}, number FROM onlyonce_record WHERE number IN (
                 SELECT number FROM onlyonce_record INDEXED BY onlyonce_record_by_due
                 WHERE state = :state AND number > :after AND {FILTER} AND {NOT_BY_ID} ORDER BY number LIMIT :limit)
             ORDER BY number"
        )
    });

    /// Relies on the index by state and due time, read in its order from the cursor on; only what fell due at the very same
    /// moment is sorted.
    pub(in super::super) static DUE: LazyLock<String> = LazyLock::new(|| {
        format!(
            "SELECT {COLUMNS} FROM onlyonce_record INDEXED BY onlyonce_record_by_due
             WHERE state = :state AND due_at <= :now AND due_at >= :at AND (due_at > :at OR id > :after) AND {FILTER}
             ORDER BY due_at, id LIMIT :limit"
        )
    });

    /// Relies on the index of unknown records, read in its order from the cursor on.
    pub(in super::super) static UNKNOWN: LazyLock<Paged> =
        LazyLock::new(|| since("onlyonce_record_by_unknown", "unknown_since IS NOT NULL", "unknown_since"));

    /// Relies on the index of pending records, read in its order from the cursor on.
    pub(in super::super) static PENDING: LazyLock<Paged> =
        LazyLock::new(|| since("onlyonce_record_by_pending", "state = 'pending'", "created_at"));

    fn since(index: &str, which: &str, moment: &str) -> Paged {
        let page = format!(
            "SELECT {COLUMNS} FROM onlyonce_record INDEXED BY {index}
             WHERE {which} AND ({moment}, id) > (:at, :after) AND ({moment}, id) <= (:until, :until_id) AND {FILTER}
             ORDER BY {moment}, id LIMIT :limit"
        );
        let examined = format!(
            "SELECT {moment}, id FROM onlyonce_record INDEXED BY {index}
             WHERE {which} AND ({moment}, id) > (?1, ?2) ORDER BY {moment}, id LIMIT 1 OFFSET ?3 - 1"
        );
        Paged { page, examined }
    }

    const NOT_BY_ID: &str = "(:first IS NULL OR id NOT BETWEEN :first AND :last)";
}

#[cfg(test)]
mod tests;

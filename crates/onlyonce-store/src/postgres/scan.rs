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

use onlyonce_core::record::{Id, StateName, StateSet};
use onlyonce_core::time::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::pool::Pool;
use super::row::{self, CREATED_AT, DUE_AT, Moment, UNKNOWN_SINCE, column, text};
use super::statement::Verb;
use super::url::Database;
use crate::listing::{Digests, Found, Place};
use crate::seal::Keyring;
use crate::{Alive, Count, Error, Order, Page, Query, Search};

/// Records of a state are counted up to this number; beyond it the server's statistics give an estimate.
const COUNTED_MAX: i64 = 100_000;
/// How many records a page of a narrowed listing examines: among a million some 20 ms, since each lies on a page of its own.
const EXAMINED_MAX: usize = 2_000;
/// The moment in the places of a listing by id: the same for all.
const ALIKE: Timestamp = Timestamp::from_micros(0);

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
    let filter = Filter { search: None, ..Filter::of(query) };
    let (after, to) = (after.0.max(before(ids.first)), ids.last);
    let rows = filter.ask(pool, Verb::ById, &[&&after[..], &&to[..], &limit(query)]).await?;
    placed(rows, |_| Ok(Place::START.at))
}

/// The digest before this one; the first of all has none, and is no record's.
fn before(mut digest: [u8; 32]) -> [u8; 32] {
    for byte in digest.iter_mut().rev() {
        let (less, is_borrowed) = byte.overflowing_sub(1);
        *byte = less;
        if !is_borrowed {
            return digest;
        }
    }
    Place::START.id.0
}

async fn by_id(pool: &Pool, query: &Query, after: Id) -> Result<Found<Row>, Error> {
    let examined = match query.is_narrow() {
        true => pool.query(Verb::ExaminedById, &[&&after.0[..], &skipped()]).await?,
        false => Vec::new(),
    };
    let examined = examined.first().map(row::id).transpose()?;
    let to = examined.unwrap_or(Id([0xff; 32]));
    let filter = Filter::of(query);
    let rows = filter.ask(pool, Verb::ById, &[&&after.0[..], &&to.0[..], &limit(query)]).await?;
    Ok(Found { records: placed(rows, |_| Ok(ALIKE))?, examined: examined.map(|id| Place { at: ALIKE, id }) })
}

/// Whether only some states are asked for, and so few records are in them that they can be sorted.
async fn are_few(pool: &Pool, query: &Query) -> Result<bool, Error> {
    if query.states == StateSet::ALL {
        return Ok(false);
    }
    let examined = at_most(EXAMINED_MAX);
    let rows = pool.query(Verb::CountFew, &[&states(query), &(examined + 1)]).await?;
    let counts = rows.iter().map(|row| column::<i64>(row, 0)).collect::<Result<Vec<_>, _>>()?;
    Ok(counts.iter().sum::<i64>() <= examined)
}

async fn of_states(pool: &Pool, query: &Query, after: Id) -> Result<Found<Row>, Error> {
    // More than were counted: some may have come since.
    let examined = at_most(2 * EXAMINED_MAX);
    let more: [&(dyn ToSql + Sync); 4] = [&&after.0[..], &states(query), &examined, &limit(query)];
    let rows = Filter::of(query).ask(pool, Verb::OfStates, &more).await?;
    Ok(Found::all(placed(rows, |_| Ok(ALIKE))?))
}

async fn due(pool: &Pool, query: &Query, after: Place) -> Result<Found<Row>, Error> {
    let more: [&(dyn ToSql + Sync); 4] = [&Moment(after.at), &&after.id.0[..], &states(query), &limit(query)];
    let rows = Filter::of(query).ask(pool, Verb::Due, &more).await?;
    Ok(Found::all(placed(rows, |row| Ok(column::<Moment>(row, DUE_AT)?.0))?))
}

/// A listing by a moment, and the id.
struct Since {
    page: Verb,
    examined: Verb,
    column: usize,
}

const UNKNOWN: Since =
    Since { page: Verb::UnknownSince, examined: Verb::ExaminedUnknown, column: UNKNOWN_SINCE };
const PENDING: Since =
    Since { page: Verb::PendingSince, examined: Verb::ExaminedPending, column: CREATED_AT };

async fn since(pool: &Pool, query: &Query, after: Place, since: &Since) -> Result<Found<Row>, Error> {
    let (at, id) = (Moment(after.at), &after.id.0[..]);
    let examined = match query.is_narrow() {
        true => pool.query(since.examined, &[&at, &id, &skipped()]).await?,
        false => Vec::new(),
    };
    let place = |row: &Row| Ok::<_, Error>(Place { at: column::<Moment>(row, 1)?.0, id: row::id(row)? });
    let examined = examined.first().map(place).transpose()?;
    let to = examined.unwrap_or(Place { at: Moment::LAST.0, id: Id([0xff; 32]) });
    let more: [&(dyn ToSql + Sync); 5] = [&at, &id, &Moment(to.at), &&to.id.0[..], &limit(query)];
    let rows = Filter::of(query).ask(pool, since.page, &more).await?;
    let records = placed(rows, |row| Ok(column::<Moment>(row, since.column)?.0))?;
    Ok(Found { records, examined })
}

/// By number, which stands between the columns of a record and the clock.
async fn archived(pool: &Pool, query: &Query, after: Place) -> Result<Found<Row>, Error> {
    let after = after.at.as_micros().max(0);
    let examined = match query.is_narrow() {
        true => pool.query(Verb::ExaminedArchive, &[&after, &skipped()]).await?,
        false => Vec::new(),
    };
    let examined = examined.first().map(|row| column::<i64>(row, 0)).transpose()?;
    let more: [&(dyn ToSql + Sync); 3] = [&after, &examined.unwrap_or(i64::MAX), &limit(query)];
    let rows = Filter::of(query).ask(pool, Verb::Archive, &more).await?;
    let number = |row: &Row| Ok(Timestamp::from_micros(column::<i64>(row, row.len() - 2)?));
    let examined = examined.map(|number| Place { at: Timestamp::from_micros(number), id: Place::START.id });
    Ok(Found { records: placed(rows, number)?, examined })
}

/// The first parameters of a listing; see `statement.rs`.
struct Filter<'a> {
    query: &'a Query,
    search: Option<&'a Search>,
}

impl<'a> Filter<'a> {
    fn of(query: &'a Query) -> Self {
        Self { query, search: query.search.as_ref() }
    }

    async fn ask(&self, pool: &Pool, verb: Verb, more: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Error> {
        let Self { query, search } = self;
        // No filter for all states: the planner would underestimate how many rows pass.
        let states = Some(states(query)).filter(|_| query.states != StateSet::ALL);
        let scope = query.scope.as_ref().map(|scope| &scope[..]);
        let route = query.route.as_deref().map(text);
        let searched = search.map(|search| text(search.text()));
        let prefix = search.and_then(Search::key_prefix).map(text);
        let digests = search.and_then(Search::digests);
        let [first, last] = [
            digests.as_ref().map(|digests| &digests.first[..]),
            digests.as_ref().map(|digests| &digests.last[..]),
        ];
        let filter: [&(dyn ToSql + Sync); 8] =
            [&states, &scope, &route, &query.dead_letter, &searched, &prefix, &first, &last];
        Ok(pool.query(verb, &[&filter, more].concat()).await?)
    }
}

fn states(query: &Query) -> Vec<&'static str> {
    query.states.iter().map(StateName::as_str).collect()
}

fn limit(query: &Query) -> i64 {
    at_most(query.one_more())
}

fn skipped() -> i64 {
    at_most(EXAMINED_MAX - 1)
}

fn at_most(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn placed(rows: Vec<Row>, at: impl Fn(&Row) -> Result<Timestamp, Error>) -> Result<Vec<(Place, Row)>, Error> {
    rows.into_iter().map(|row| Ok((Place { at: at(&row)?, id: row::id(&row)? }, row))).collect()
}

/// How many records have not expired, counted up to `limit`.
pub(super) async fn count_alive(pool: &Pool, scope: Option<[u8; 32]>, limit: u64) -> Result<Alive, Error> {
    let most = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = match &scope {
        Some(scope) => pool.query(Verb::AliveOfScope, &[&&scope[..], &most]).await?,
        None => pool.query(Verb::Alive, &[&most]).await?,
    };
    let row = super::only(&rows)?;
    let left: Option<i64> = column(row, 1)?;
    Ok(Alive {
        count: column::<i64>(row, 0)?.unsigned_abs().min(limit),
        next_expiry: left.map(|micros| Duration::from_micros(micros.max(0).unsigned_abs())),
    })
}

/// How many records there are in each state.
pub(super) async fn count(pool: &Pool, database: &Database) -> Result<Vec<(StateName, Count)>, Error> {
    let states = StateName::ALL.map(StateName::as_str);
    let table = format!("{}.onlyonce_record", database.quoted_schema());
    let rows = pool.query(Verb::Count, &[&&states[..], &(COUNTED_MAX + 1), &table]).await?;
    let counted = |(state, row): (StateName, &Row)| {
        let (counted, about): (i64, Option<i64>) = (column(row, 1)?, column(row, 2)?);
        let number = |number: i64| number.max(0).cast_unsigned();
        Ok(match counted {
            0..=COUNTED_MAX => (state, Count::Exact(number(counted))),
            _ => (state, Count::About(number(about.unwrap_or(0).max(counted)))),
        })
    };
    StateName::ALL.into_iter().zip(&rows).map(counted).collect()
}

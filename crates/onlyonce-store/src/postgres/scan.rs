//! Listings and counts.

use onlyonce_core::record::{StateName, StateSet};
use onlyonce_core::time::Timestamp;
use tokio_postgres::Row;

use super::pool::Pool;
use super::row::{self, DUE_AT, Moment, UNKNOWN_SINCE, column};
use super::statement::Verb;
use super::url::Database;
use crate::listing::{self, Place};
use crate::{Count, Error, Order, Page, Query};

/// Records of a state are counted up to this number; beyond it the server's statistics give an estimate.
const COUNTED_MAX: i64 = 100_000;

/// A page of records. A listing for workers (due, unknown) skips rows that cannot be decoded, so that one damaged row does
/// not block all others; a listing for people returns the error.
pub(super) async fn list(pool: &Pool, query: &Query) -> Result<Page, Error> {
    let mut records = Vec::new();
    let (rows, next) = listing::page(rows(pool, query).await?, query.limit);
    for row in rows {
        match (query.order, row::seen(&row)) {
            (_, Ok(seen)) => records.push((row::id(&row)?, seen)),
            (Order::Any, Err(error)) => return Err(error),
            (Order::Due | Order::UnknownSince, Err(error)) => {
                tracing::warn!("left out of a listing: {error}");
            }
        }
    }
    Ok(Page { records, next })
}

/// Up to one row more than a page, in order, each with its place.
pub(super) async fn rows(pool: &Pool, query: &Query) -> Result<Vec<(Place, Row)>, Error> {
    let after = Place::or_start(Place::of(query)?);
    let (at, id) = (Moment(after.at), &after.id.0[..]);
    let limit = i64::try_from(query.one_more()).unwrap_or(i64::MAX);
    let states: Vec<&str> = query.states.iter().map(StateName::as_str).collect();
    // No filter for all states: the planner would underestimate how many rows pass.
    let some_states = Some(&states).filter(|_| query.states != StateSet::ALL);
    let scope = query.scope.as_ref().map(|scope| &scope[..]);
    let route = query.route.as_deref();
    let rows = match query.order {
        Order::Any => pool.query(Verb::ById, &[&id, &some_states, &scope, &route, &limit]).await?,
        Order::Due => pool.query(Verb::Due, &[&at, &id, &states, &scope, &route, &limit]).await?,
        Order::UnknownSince => {
            pool.query(Verb::UnknownSince, &[&at, &id, &some_states, &scope, &route, &limit]).await?
        }
    };
    let placed = |row: Row| {
        let at = match query.order {
            Order::Any => Timestamp::from_micros(0),
            Order::Due => column::<Moment>(&row, DUE_AT)?.0,
            Order::UnknownSince => column::<Moment>(&row, UNKNOWN_SINCE)?.0,
        };
        Ok((Place { at, id: row::id(&row)? }, row))
    };
    rows.into_iter().map(placed).collect()
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

//! The audit log: entries written with their change (`write.rs`) or by themselves, listed newest first, deleted by age.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::pool::{Asked, Pool};
use super::reap::counted;
use super::row::{Moment, Span, column, text};
use super::statement::Verb;
use crate::Error;
use crate::audit::table::{self, EXAMINED_MAX, Part, Place, TEXTS};
use crate::audit::{Entry, Page, Query, Written};

/// How many entries are deleted, or changed, at once.
const AT_ONCE: usize = 1_000;
/// Nothing is older than a thousand years; the server cannot count back for ever.
const AGE_MAX: Duration = Duration::from_secs(1_000 * 365 * 86_400);

/// The columns of an entry as parameters, in their order.
pub(super) struct Columns<'a> {
    texts: [Option<Cow<'a, str>>; TEXTS],
    forced: bool,
}

impl<'a> Columns<'a> {
    pub(super) fn of(entry: &'a Entry) -> Self {
        let without_nul = |told: Option<Cow<'a, str>>| told.map(|told| Cow::Owned(text(&told).into_owned()));
        Self { texts: table::texts(entry).map(without_nul), forced: entry.forced }
    }

    pub(super) fn parameters(&self) -> Vec<&(dyn ToSql + Sync)> {
        let texts = self.texts.iter().map(|text| text as &(dyn ToSql + Sync));
        texts.chain([&self.forced as &(dyn ToSql + Sync)]).collect()
    }
}

pub(super) async fn write(pool: &Pool, entry: &Entry) -> Result<(), Error> {
    let columns = Columns::of(entry);
    pool.write(Asked::Statement(Verb::Note, &columns.parameters())).await?;
    Ok(())
}

pub(super) async fn list(pool: &Pool, query: &Query) -> Result<Page, Error> {
    let part = Part::of(query)?;
    let examined = examined(pool, query, part).await?;
    let Part { before, from } = part.examined(examined);
    let [who, action, key] = [&query.who, &query.action, &query.key].map(|told| told.as_deref().map(text));
    let scope = query.scope.map(table::hex);
    let parameters: [&(dyn ToSql + Sync); 9] = [
        &Moment(before.at),
        &before.number,
        &Moment(from.at),
        &from.number,
        &who,
        &action,
        &scope,
        &key,
        &query.one_more(),
    ];
    let rows = pool.query(Verb::Log, &parameters).await?;
    let found = rows.iter().map(written).collect::<Result<Vec<_>, _>>()?;
    Ok(table::page(found, query.limit, examined))
}

/// The last place that is examined; none where that is all, or where everything passes.
async fn examined(pool: &Pool, query: &Query, Part { before, from }: Part) -> Result<Option<Place>, Error> {
    if !query.is_narrow() {
        return Ok(None);
    }
    let skipped = i64::try_from(EXAMINED_MAX - 1).unwrap_or(i64::MAX);
    let parameters: [&(dyn ToSql + Sync); 5] =
        [&Moment(before.at), &before.number, &Moment(from.at), &from.number, &skipped];
    pool.query(Verb::ExaminedLog, &parameters).await?.first().map(place).transpose()
}

fn place(row: &Row) -> Result<Place, Error> {
    Ok(Place { at: column::<Moment>(row, 0)?.0, number: column(row, 1)? })
}

fn written(row: &Row) -> Result<(Place, Written), Error> {
    let place = place(row)?;
    let text = |number: usize| Ok(column::<Option<&str>>(row, number + 2)?.map(Arc::from));
    let entry = table::entry::<Error>(text, column(row, TEXTS + 2)?)?;
    Ok((place, Written { at: place.at, entry }))
}

/// Deletes up to `limit` entries that are older than `age`, and returns how many.
pub(super) async fn reap(pool: &Pool, age: Duration, limit: usize) -> Result<usize, Error> {
    older(pool, Verb::DeleteEntries, age, limit).await
}

/// Runs a statement on up to `limit` rows that are older than `age`, and returns how many.
pub(super) async fn older(pool: &Pool, verb: Verb, age: Duration, limit: usize) -> Result<usize, Error> {
    if age > AGE_MAX {
        return Ok(0);
    }
    in_batches(pool, verb, &Span::at_most(age), limit).await
}

/// Takes keys and labels out of the entries of a scope.
pub(super) async fn blank(pool: &Pool, scope: [u8; 32]) -> Result<(), Error> {
    in_batches(pool, Verb::BlankEntries, &table::hex(scope), usize::MAX).await.map(drop)
}

/// Runs a statement, whose second parameter is how many rows it may change, until there are no more or `limit` is reached.
/// Returns how many it changed.
pub(super) async fn in_batches(
    pool: &Pool,
    verb: Verb,
    of: &(dyn ToSql + Sync),
    limit: usize,
) -> Result<usize, Error> {
    let mut done = 0;
    while done < limit {
        let rows = AT_ONCE.min(limit - done);
        let at_most = i64::try_from(rows).unwrap_or(i64::MAX);
        let changed = counted(&pool.write(Asked::Statement(verb, &[of, &at_most])).await?)?;
        done += changed;
        if changed < rows {
            break;
        }
    }
    Ok(done)
}

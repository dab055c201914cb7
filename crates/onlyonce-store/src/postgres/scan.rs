//! Listings: by id, or what is due in the order it fell due.

use std::collections::BTreeSet;

use onlyonce_core::record::{Id, StateName};
use onlyonce_core::time::Timestamp;
use tokio_postgres::Row;

use super::due;
use super::pool::Pool;
use super::row::{self, Moment, Stored, column};
use super::statement::Verb;
use crate::{Cursor, Error, ErrorKind, Page, Query};

pub(super) async fn list(pool: &Pool, query: &Query) -> Result<Page, Error> {
    let limit = one_more(query.limit);
    let after_id = query.after.as_ref().map_or(&[][..], |Cursor { id: Id(id), .. }| id);
    let scope = query.scope.as_ref().map(|scope| &scope[..]);
    if query.only_due {
        return due_page(pool, query, scope).await;
    }
    let rows = match query.state {
        // Most records are completed: those are read in the order of their ids.
        None | Some(StateName::Completed) => {
            let state = query.state.map(StateName::as_str);
            pool.query(Verb::ById, &[&after_id, &scope, &limit, &state]).await?
        }
        Some(state) => pool.query(Verb::ByState, &[&state.as_str(), &after_id, &scope, &limit]).await?,
    };
    page(rows.iter().map(Listed::read).collect::<Result<Vec<_>, _>>()?, query)
}

/// What is due, as the list of that has it. Who has changed since it was looked at is left out.
async fn due_page(pool: &Pool, query: &Query, scope: Option<&[u8]>) -> Result<Page, Error> {
    due::turn(pool).await?;
    let states: Vec<_> = query.state.map_or_else(|| StateName::ALL.to_vec(), |state| vec![state]);
    let mut found = BTreeSet::new();
    for state in &states {
        let limit = query.limit.saturating_add(1);
        found.append(&mut due::in_order(pool, *state, scope, query.after.as_ref(), limit).await?);
    }
    let has_next = found.len() > query.limit;
    let places: Vec<_> = found.into_iter().take(query.limit).collect();
    let next = places.last().filter(|_| has_next);
    let next = next.map(|(due_at, id)| Cursor { due_at: Some(*due_at), id: *id });
    let ids = places.iter().map(|(_, id)| *id).collect::<Vec<_>>();
    let mut listed = load_due(pool, &ids, &states).await?;
    listed.sort_unstable_by_key(|listed| (listed.due_at, listed.id));
    let records = listed.into_iter().map(|listed| Ok((listed.id, listed.stored.seen()?)));
    Ok(Page { records: records.collect::<Result<_, Error>>()?, next })
}

/// Those of these records that are in one of these states, and due.
pub(super) async fn load_due(pool: &Pool, ids: &[Id], states: &[StateName]) -> Result<Vec<Listed>, Error> {
    let ids: Vec<&[u8]> = ids.iter().map(|id| &id.0[..]).collect();
    let states: Vec<&str> = states.iter().map(|state| state.as_str()).collect();
    let rows = pool.query(Verb::LoadDue, &[&ids, &states]).await?;
    rows.iter().map(Listed::read).collect()
}

/// How many records there are in each state, all of them read by the server alone.
pub(super) async fn count(pool: &Pool) -> Result<Vec<(StateName, u64)>, Error> {
    let rows = pool.query(Verb::Count, &[]).await?;
    let mut counts: Vec<_> = StateName::ALL.into_iter().map(|state| (state, 0)).collect();
    for row in &rows {
        let (name, number): (&str, i64) = (column(row, 0)?, column(row, 1)?);
        let Some((_, count)) = counts.iter_mut().find(|(state, _)| state.as_str() == name) else {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("state \"{name}\" of a row is not what we wrote"),
            ));
        };
        *count = u64::try_from(number).unwrap_or(0);
    }
    Ok(counts)
}

/// A row of a listing, not yet understood.
pub(super) struct Listed {
    pub(super) id: Id,
    pub(super) due_at: Option<Timestamp>,
    pub(super) stored: Stored,
}

impl Listed {
    /// From the columns id, those of a record, and due_at.
    fn read(row: &Row) -> Result<Self, Error> {
        let id = row::id(row, 0)?;
        let due_at = column::<Option<Moment>>(row, 5)?.map(|moment| moment.0);
        Ok(Self { id, due_at, stored: Stored::read(id, row, 1)? })
    }
}

fn page(listed: Vec<Listed>, query: &Query) -> Result<Page, Error> {
    let has_next = listed.len() > query.limit;
    let last = query.limit.checked_sub(1).and_then(|last| listed.get(last)).filter(|_| has_next);
    let next = last.map(|last| Cursor { due_at: None, id: last.id });
    let records = listed.into_iter().take(query.limit).map(|listed| Ok((listed.id, listed.stored.seen()?)));
    Ok(Page { records: records.collect::<Result<_, Error>>()?, next })
}

/// A page and one record more, which only says that there is another page.
fn one_more(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1)
}

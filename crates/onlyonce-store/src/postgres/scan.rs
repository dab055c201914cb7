//! Listings: by id, or what is due in the order it fell due.

use onlyonce_core::record::{Id, StateName};
use onlyonce_core::time::Timestamp;
use tokio_postgres::Row;

use super::pool::Pool;
use super::row::{self, Moment, Stored, column};
use super::statement::Verb;
use crate::{Cursor, Error, ErrorKind, Page, Query};

pub(super) async fn list(pool: &Pool, query: &Query) -> Result<Page, Error> {
    let limit = one_more(query.limit);
    let after_id = query.after.as_ref().map_or(&[][..], |Cursor { id: Id(id), .. }| id);
    let scope = query.scope.as_ref().map(|scope| &scope[..]);
    if query.only_due {
        let states: Vec<_> = query.state.map_or_else(|| StateName::ALL.to_vec(), |state| vec![state]);
        return page(due(pool, &states, query.after.as_ref(), scope, limit).await?, query);
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

/// Up to `limit` records in one of these states that are due, after the cursor.
pub(super) async fn due(
    pool: &Pool,
    states: &[StateName],
    after: Option<&Cursor>,
    scope: Option<&[u8]>,
    limit: i64,
) -> Result<Vec<Listed>, Error> {
    let states: Vec<&str> = states.iter().map(|state| state.as_str()).collect();
    let after_due = after.and_then(|cursor| cursor.due_at).map(Moment);
    let after_id = after.map_or(&[][..], |cursor| &cursor.id.0);
    let rows = pool.query(Verb::Due, &[&states, &after_due, &after_id, &scope, &limit]).await?;
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

    /// Where a listing of what is due goes on after it.
    pub(super) fn cursor(&self) -> Cursor {
        Cursor { due_at: self.due_at, id: self.id }
    }
}

fn page(listed: Vec<Listed>, query: &Query) -> Result<Page, Error> {
    let has_next = listed.len() > query.limit;
    let last = query.limit.checked_sub(1).and_then(|last| listed.get(last)).filter(|_| has_next);
    let next = last.map(|last| Cursor { due_at: last.due_at.filter(|_| query.only_due), id: last.id });
    let records = listed.into_iter().take(query.limit).map(|listed| Ok((listed.id, listed.stored.seen()?)));
    Ok(Page { records: records.collect::<Result<_, Error>>()?, next })
}

/// A page and one record more, which only says that there is another page.
fn one_more(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1)
}

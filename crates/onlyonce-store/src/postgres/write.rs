//! Writes: in batches, and alone.
//!
//! ```text
//!   swap ──► batcher ──► one: the plain statement ─┐   applied, or lost to what stands there
//!      │          └────► many: one for all ────────┤
//!      │                                           └─► no answer for a row: it goes alone
//!      └─ with messages ─► alone ◄──────────────────────┘
//! ```
//!
//! A lone insert that is lost shows what it was lost to; a lone update does not, and what stands there is looked at then.
//!
//! A batch does not wait for one row. The first that meets a row that somebody holds gives up after a moment and is sent
//! once more, without such rows; and so are those of the next minute, at once. What was skipped, what could not be inserted
//! since somebody inserts it right now, and every row of a batch that the server refused goes alone: outside the batcher,
//! with a lock time-out, so that nobody else waits and one bad row fails alone.

use std::collections::HashMap;
use std::sync::Arc;

use onlyonce_core::record::Id;
use onlyonce_core::time::Timestamp;
use tokio::sync::Semaphore;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::care::Care;
use super::doubt::Mark;
use super::failure::{Failure, Left};
use super::pool::Pool;
use super::row::{self, Columns, Moment, Stored, Swap, column};
use super::statement::{FIRST_LOOK, Verb};
use crate::{Error, ErrorKind, Swapped};

/// How often a row is looked at that answers neither way: it comes and goes.
const LOOKS_MAX: u32 = 5;

/// What a batch has to say about a row.
pub(super) enum Answer {
    /// The end of it.
    Swapped(Swapped),
    /// Nothing was written. It goes alone.
    Alone(Box<Swap>),
}

/// Writes what was handed in together.
pub(super) async fn together(pool: &Pool, swaps: Vec<Swap>) -> Vec<Result<Answer, Error>> {
    let mark = pool.doubts.mark();
    let asked = match &swaps[..] {
        [swap] => one(pool, swap).await,
        swaps => many(pool, swaps).await,
    };
    match asked {
        Ok(rows) => {
            settle(pool, mark, &rows);
            follow(pool, &swaps, &rows);
            let mut answers = Answers::of(rows);
            let shows = pool.doubts.are_settled();
            // What stands there is not shown on doubt: that takes a look of its own.
            let mut found = |id| answers.take(id).filter(|found| shows || matches!(found, Found::Written(_)));
            swaps.into_iter().map(|swap| answer(found(swap.id), swap)).collect()
        }
        Err(failure) => {
            // A row that is held, or refused for what it is, must not take the others with it. A server in trouble
            // would refuse each of them as well.
            let goes_alone = match failure.left {
                Left::Busy | Left::Again => true,
                Left::Nothing => swaps.len() > 1 && failure.kind == ErrorKind::Other,
                Left::Doubt => false,
            };
            let told =
                |swap| if goes_alone { Ok(Answer::Alone(Box::new(swap))) } else { Err(failure.error()) };
            swaps.into_iter().map(told).collect()
        }
    }
}

fn answer(found: Option<Found>, swap: Swap) -> Result<Answer, Error> {
    match found {
        Some(Found::Written(written_at)) => Ok(Answer::Swapped(swap.applied(written_at))),
        Some(Found::Stands(stored)) => Ok(Answer::Swapped(Swapped::Lost(Some(stored?.seen()?)))),
        None => Ok(Answer::Alone(Box::new(swap))),
    }
}

/// Writes one row, and waits for whoever holds it as long as the pool's lock time-out allows.
pub(super) async fn alone(pool: &Pool, swap: Swap) -> Result<Swapped, Error> {
    for _ in 0..LOOKS_MAX {
        let mark = pool.doubts.mark();
        let rows = one(pool, &swap).await?;
        settle(pool, mark, &rows);
        match Answers::of(rows).take(swap.id) {
            Some(Found::Written(written_at)) => return Ok(swap.applied(written_at)),
            Some(Found::Stands(stored)) if pool.doubts.are_settled() => {
                return Ok(Swapped::Lost(Some(stored?.seen()?)));
            }
            Some(Found::Stands(_)) | None => {}
        }
        // The row changed while the statement ran, and is neither written nor seen; or it is not to be shown yet.
        let seen = load(pool, swap.id).await?;
        if seen.as_ref().is_none_or(|stored| Some(stored.revision.0.cast_signed()) != swap.expected) {
            return Ok(Swapped::Lost(seen.map(Stored::seen).transpose()?));
        }
    }
    Err(Error::new(
        ErrorKind::Unavailable,
        format!("record {} changes faster than it can be looked at", swap.id),
    ))
}

pub(super) async fn load(pool: &Pool, id: Id) -> Result<Option<Stored>, Error> {
    let read = |rows: &[Row]| rows.first().map(|row| Stored::read(id, row, 0)).transpose();
    if pool.doubts.are_settled() {
        let rows = pool.query(Verb::Load, &[&&id.0[..]]).await?;
        // It may have taken a new connection, and that a doubt.
        if pool.doubts.are_settled() {
            return read(&rows);
        }
    }
    let mark = pool.doubts.mark();
    let rows = pool.write(Verb::Confirm, &[&&id.0[..]]).await?;
    if !rows.is_empty() {
        pool.doubts.settle(mark);
    }
    read(&rows)
}

/// What was written is confirmed, and with it all that was written before.
fn settle(pool: &Pool, mark: Mark, rows: &[(Id, Found)]) {
    if rows.iter().any(|(_, found)| matches!(found, Found::Written(_))) {
        pool.doubts.settle(mark);
    }
}

/// Remembers what a statement has listed, and what it has completed.
fn follow(pool: &Pool, swaps: &[Swap], rows: &[(Id, Found)]) {
    let written = |(id, found): &(Id, Found)| match found {
        Found::Written(written_at) => Some((*id, *written_at)),
        Found::Stands(_) => None,
    };
    let written: HashMap<Id, Timestamp> = rows.iter().filter_map(written).collect();
    let mut listed: Vec<(&Swap, Timestamp)> = Vec::new();
    for swap in swaps {
        let Some(written_at) = written.get(&swap.id) else { continue };
        if swap.is_listed() {
            listed.push((swap, *written_at));
        } else if let Some(expires_at) = swap.due(*written_at) {
            pool.followed.completed(swap.id, expires_at);
        }
    }
    // A row that lists what was there before is left to who looks.
    if listed.iter().any(|(swap, _)| swap.expected.is_some()) {
        return;
    }
    let Some(now) = listed.first().map(|(_, written_at)| *written_at) else { return };
    let due_at = listed.iter().filter_map(|(swap, written_at)| swap.due(*written_at)).min();
    let due_at = due_at.map_or(now.plus(FIRST_LOOK), |due_at| due_at.min(now.plus(FIRST_LOOK)));
    let ids: Vec<Id> = listed.iter().map(|(swap, _)| swap.id).collect();
    if let Some(first) = swaps.first() {
        pool.followed.listed(first.number, due_at, now, &ids);
    }
}

/// What a statement says of a row.
enum Found {
    Written(Timestamp),
    /// As it stood when the statement began; its revision is not the one that was expected.
    Stands(Result<Stored, Error>),
}

/// The answers of a statement, each for its row. There is at most one for a row, but where it was deleted between the
/// beginning of the statement and its insert: then it was written, and that counts.
struct Answers {
    /// By id.
    rows: Vec<(Id, Option<Found>)>,
}

impl Answers {
    fn of(rows: Vec<(Id, Found)>) -> Self {
        let mut rows: Vec<_> = rows.into_iter().map(|(id, found)| (id, Some(found))).collect();
        rows.sort_unstable_by_key(|(id, found)| (id.0, !matches!(found, Some(Found::Written(_)))));
        rows.dedup_by_key(|(id, _)| *id);
        Self { rows }
    }

    fn take(&mut self, id: Id) -> Option<Found> {
        let place = self.rows.binary_search_by_key(&id.0, |(id, _)| id.0).ok()?;
        self.rows[place].1.take()
    }
}

async fn one(pool: &Pool, swap: &Swap) -> Result<Vec<(Id, Found)>, Failure> {
    let keys: Vec<&str> = swap.messages.iter().map(|message| &*message.key).collect();
    let destinations: Vec<&str> = swap.messages.iter().map(|message| &*message.destination).collect();
    let payloads: Vec<&[u8]> = swap.messages.iter().map(|message| &message.payload[..]).collect();
    let (id, state, scope) = (&swap.id.0[..], swap.state(), swap.scope());
    let (label, key, route) = (swap.label(), swap.key(), swap.route());
    let (has_messages, messages): (bool, [&(dyn ToSql + Sync); 3]) =
        (!swap.messages.is_empty(), [&keys, &destinations, &payloads]);
    let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&id];
    let verb = match (&swap.expected, has_messages) {
        (None, false) => Verb::Insert,
        (None, true) => Verb::InsertWithMessages,
        (Some(_), false) if swap.is_listed() => Verb::UpdateAndList,
        (Some(_), false) => Verb::Update,
        (Some(_), true) => Verb::UpdateWithMessages,
    };
    match &swap.expected {
        None => parameters.extend([
            &swap.revision as &(dyn ToSql + Sync),
            &swap.due_at,
            &swap.due_after,
            &state,
            &scope,
            &label,
            &key,
            &route,
            &swap.record,
        ]),
        Some(expected) => parameters.extend([
            expected as &(dyn ToSql + Sync),
            &swap.revision,
            &swap.due_at,
            &swap.due_after,
            &state,
            &label,
            &route,
            &swap.record,
        ]),
    }
    if verb != Verb::Update {
        parameters.push(&swap.number);
    }
    if has_messages {
        parameters.extend(messages);
    }
    let rows = pool.write(verb, &parameters).await?;
    match swap.expected {
        Some(expected) if rows.is_empty() => lost_to(pool, swap.id, expected).await,
        _ => Ok(rows.iter().map(|row| (swap.id, found(swap.id, row, 0))).collect()),
    }
}

/// What an update that wrote nothing was lost to: nothing to tell where the row is gone, or is what was expected by now.
async fn lost_to(pool: &Pool, id: Id, expected: i64) -> Result<Vec<(Id, Found)>, Failure> {
    let rows = pool.query(Verb::Load, &[&&id.0[..]]).await?;
    let is_other = |row: &&Row| column::<i64>(row, 0).ok() != Some(expected);
    Ok(rows.iter().filter(is_other).map(|row| (id, found(id, row, 0))).collect())
}

/// In the order of ids: rows are locked in that order.
async fn many(pool: &Pool, swaps: &[Swap]) -> Result<Vec<(Id, Found)>, Failure> {
    let mut sorted: Vec<&Swap> = swaps.iter().collect();
    sorted.sort_unstable_by_key(|swap| swap.id.0);
    let (inserts, updates): (Vec<&Swap>, Vec<&Swap>) =
        sorted.into_iter().partition(|swap| swap.expected.is_none());
    let (inserts, updates) = (Columns::of(&inserts), Columns::of(&updates));
    let number = swaps.first().map_or(0, |swap| swap.number);
    let parameters: [&(dyn ToSql + Sync); 21] = [
        &inserts.ids,
        &inserts.revisions,
        &inserts.due_at,
        &inserts.due_after,
        &inserts.states,
        &inserts.scopes,
        &inserts.labels,
        &inserts.keys,
        &inserts.routes,
        &inserts.records,
        &updates.ids,
        &updates.expected,
        &updates.revisions,
        &updates.due_at,
        &updates.due_after,
        &updates.states,
        &updates.labels,
        &updates.routes,
        &updates.records,
        &updates.listed,
        &number,
    ];
    let care = pool.held.care();
    let send = async |care| pool.write_batch(care, swaps.len(), &parameters).await;
    let rows = match (care, send(care).await) {
        (Care::None, Err(failure)) if failure.left == Left::Busy => {
            pool.held.met();
            send(Care::Taken).await?
        }
        (_, rows) => rows?,
    };
    if rows.len() < swaps.len() {
        // What answers nothing was held, as far as anybody can tell.
        pool.held.met();
    }
    // A row that names no record of ours answers for none.
    let answers = rows.iter().filter_map(|row| row::id(row, 0).ok().map(|id| (id, found(id, row, 1))));
    Ok(answers.collect())
}

/// From the columns of a record, from `first` on; what was written has no revision there.
fn found(id: Id, row: &Row, first: usize) -> Found {
    match column::<Option<i64>>(row, first) {
        Ok(Some(_)) => Found::Stands(Stored::read(id, row, first)),
        Ok(None) => match column::<Moment>(row, first + 1) {
            Ok(written_at) => Found::Written(written_at.0),
            Err(error) => Found::Stands(Err(error)),
        },
        Err(error) => Found::Stands(Err(error)),
    }
}

/// Carries a row on by itself, also where its caller goes away. `places` leaves connections to those who only look.
pub(super) async fn carried_on(
    pool: Arc<Pool>,
    places: Arc<Semaphore>,
    swap: Swap,
) -> Result<Swapped, Error> {
    let carried = tokio::spawn(async move {
        let _place = places.acquire().await.expect("the places are never closed");
        alone(&pool, swap).await
    });
    carried.await.unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::Unavailable, "the write was given up with its runtime"))
    })
}

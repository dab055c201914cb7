//! Writes: in batches, and alone.
//!
//! ```text
//!   swap ──► batcher ──► one: the plain statement ─┐   applied, or lost to what stands there
//!      │          └────► many: one for all ────────┤
//!      │                                           └─► no answer for a row: it goes alone
//!      └─ with messages ─► alone ◄──────────────────────┘
//! ```
//!
//! A lone write is a plain statement. An insert that is lost shows what it was lost to, by a look. Where that can be foreseen
//! the look is sent right behind the insert, and is not waited for where it was won: the key was tried here before, or others
//! were found taken lately. An update that is lost goes alone, which shows it.
//!
//! A batch does not wait for one row. The first that meets a row that somebody holds gives up after a moment and is sent
//! once more, without such rows; and so are those of the next minute, at once. What was skipped, what could not be inserted
//! since somebody inserts it right now, and every row of a batch that the server refused goes alone: outside the batcher,
//! with a lock time-out, so that nobody else waits and one bad row fails alone.

use std::sync::Arc;

use onlyonce_core::record::Id;
use onlyonce_core::time::Timestamp;
use tokio::sync::Semaphore;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::care::Care;
use super::failure::{Failure, Left};
use super::pool::Pool;
use super::row::{self, Columns, Moment, Span, Stored, Swap, column};
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
pub(super) async fn together(pool: &Pool, mut swaps: Vec<Swap>) -> Vec<Result<Answer, Error>> {
    if swaps.len() == 1
        && let Some(swap) = swaps.pop()
    {
        return vec![lone(pool, swap).await];
    }
    let (mark, number) = (pool.doubts.mark(), row::fresh_number());
    // Apart: a lone write has no need of the room for it.
    match Box::pin(many(pool, &swaps, number)).await {
        Ok(mut answers) => {
            if swaps.iter().any(|swap| answers.written_at(swap.id).is_some()) {
                pool.doubts.settle(mark);
            }
            follow_batch(pool, number, &swaps, &answers);
            swaps.into_iter().map(|swap| answer(pool, answers.take(swap.id), swap)).collect()
        }
        Err(failure) => {
            // A row that is held, or refused for what it is, must not take the others with it. A server in trouble
            // would refuse each of them as well.
            let goes_alone = match failure.left {
                Left::Busy | Left::Again => true,
                Left::Nothing => failure.kind == ErrorKind::Other,
                Left::Doubt => false,
            };
            let told =
                |swap| if goes_alone { Ok(Answer::Alone(Box::new(swap))) } else { Err(failure.error()) };
            swaps.into_iter().map(told).collect()
        }
    }
}

/// Writes what nothing came along with, by the plain statement where that will do.
async fn lone(pool: &Pool, swap: Swap) -> Result<Answer, Error> {
    let mark = pool.doubts.mark();
    let asked = if swap.is_plain() { plain(pool, &swap).await } else { Box::pin(in_full(pool, &swap)).await };
    let found = match asked {
        Ok(found) => found,
        Err(failure) if matches!(failure.left, Left::Busy | Left::Again) => {
            return Ok(Answer::Alone(Box::new(swap)));
        }
        Err(failure) => return Err(failure.error()),
    };
    if let Some(Found::Written(written_at)) = found {
        pool.doubts.settle(mark);
        follow_completion(pool, &swap, written_at);
    }
    answer(pool, found, swap)
}

fn answer(pool: &Pool, found: Option<Found>, swap: Swap) -> Result<Answer, Error> {
    match found {
        Some(Found::Written(written_at)) => Ok(Answer::Swapped(swap.applied(written_at))),
        Some(Found::Stands(stored)) if pool.doubts.are_settled() => {
            Ok(Answer::Swapped(Swapped::Lost(Some((*stored)?.seen()?))))
        }
        // What stands there is not shown on doubt: that takes a look of its own.
        Some(Found::Stands(_)) | None => Ok(Answer::Alone(Box::new(swap))),
    }
}

/// Writes one row, and waits for whoever holds it as long as the pool's lock time-out allows.
pub(super) async fn alone(pool: &Pool, mut swap: Swap) -> Result<Swapped, Error> {
    for _ in 0..LOOKS_MAX {
        let mark = pool.doubts.mark();
        let found = in_full(pool, &swap).await?;
        if let Some(Found::Written(_)) = found {
            pool.doubts.settle(mark);
        }
        match answer(pool, found, swap)? {
            Answer::Swapped(swapped) => return Ok(swapped),
            Answer::Alone(again) => swap = *again,
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

/// Remembers what a batch has listed under its number, and what it has completed.
fn follow_batch(pool: &Pool, number: i64, swaps: &[Swap], answers: &Answers) {
    let mut listed: Vec<(&Swap, Timestamp)> = Vec::with_capacity(swaps.len());
    for swap in swaps {
        let Some(written_at) = answers.written_at(swap.id) else { continue };
        if swap.is_listed() {
            listed.push((swap, written_at));
        } else {
            follow_completion(pool, swap, written_at);
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
    pool.followed.listed(number, due_at, now, &ids);
}

/// All there is to remember of a lone write: what it lists is left to who looks.
fn follow_completion(pool: &Pool, swap: &Swap, written_at: Timestamp) {
    if !swap.is_listed()
        && let Some(expires_at) = swap.due(written_at)
    {
        pool.followed.completed(swap.id, expires_at);
    }
}

/// What a statement says of a row.
enum Found {
    Written(Timestamp),
    /// As it stood when the statement began; its revision is not the one that was expected. Boxed: of a batch, nearly all
    /// are written, and all are sorted.
    Stands(Box<Result<Stored, Error>>),
}

/// The answers of a batch.
enum Answers {
    /// All of it was written, at this moment.
    All(Timestamp),
    /// Each for its row, by id. There is at most one for a row, but where it was deleted between the beginning of the
    /// statement and its insert: then it was written, and that counts.
    Each(Vec<(Id, Option<Found>)>),
}

impl Answers {
    fn of(rows: &[Row]) -> Self {
        if let [row] = rows
            && let (Ok(None), Ok(written_at)) = (column::<Option<&[u8]>>(row, 0), column::<Moment>(row, 2))
        {
            return Self::All(written_at.0);
        }
        // A row that names no record of ours answers for none.
        let answer = |row| row::id(row, 0).ok().map(|id| (id, Some(found(id, row, 1))));
        let mut answers: Vec<_> = rows.iter().filter_map(answer).collect();
        let is_written = |found: &Option<Found>| matches!(found, Some(Found::Written(_)));
        answers.sort_unstable_by(|(one, found), (other, beside)| {
            one.0.cmp(&other.0).then_with(|| is_written(beside).cmp(&is_written(found)))
        });
        answers.dedup_by_key(|(id, _)| *id);
        Self::Each(answers)
    }

    /// How many rows of so many were answered.
    fn count(&self, rows: usize) -> usize {
        match self {
            Self::All(_) => rows,
            Self::Each(answers) => answers.len(),
        }
    }

    fn written_at(&self, id: Id) -> Option<Timestamp> {
        match self {
            Self::All(written_at) => Some(*written_at),
            Self::Each(answers) => match &answers[place(answers, id)?].1 {
                Some(Found::Written(written_at)) => Some(*written_at),
                Some(Found::Stands(_)) | None => None,
            },
        }
    }

    fn take(&mut self, id: Id) -> Option<Found> {
        match self {
            Self::All(written_at) => Some(Found::Written(*written_at)),
            Self::Each(answers) => {
                let place = place(answers, id)?;
                answers[place].1.take()
            }
        }
    }
}

fn place(answers: &[(Id, Option<Found>)], id: Id) -> Option<usize> {
    answers.binary_search_by(|(other, _)| other.0.cmp(&id.0)).ok()
}

/// One record by itself. An insert that is lost is shown what stands there; an update is not.
async fn plain(pool: &Pool, swap: &Swap) -> Result<Option<Found>, Failure> {
    let (id, state, scope) = (&swap.id.0[..], swap.state(), swap.scope());
    let (label, key, route) = (swap.label(), swap.key(), swap.route());
    let rows = match &swap.expected {
        None => {
            let first_look = Span::of(FIRST_LOOK);
            let look_after = swap.due_after.map_or(first_look, |due_after| due_after.min(first_look));
            let parameters: [&(dyn ToSql + Sync); 10] = [
                &id,
                &swap.revision,
                &swap.due_after,
                &state,
                &scope,
                &label,
                &key,
                &route,
                &swap.record,
                &look_after,
            ];
            let care = if pool.tried.again(swap.id) { Care::Taken } else { pool.taken.care() };
            pool.write_or_look(care, Verb::Insert, &parameters, swap.id).await?
        }
        Some(expected) => {
            let parameters: [&(dyn ToSql + Sync); 8] =
                [&id, expected, &swap.revision, &swap.due_after, &state, &label, &route, &swap.record];
            pool.write(Verb::Update, &parameters).await?
        }
    };
    let found = rows.first().map(|row| found(swap.id, row, 0));
    if let Some(Found::Stands(_)) = found {
        pool.taken.met();
    }
    Ok(found)
}

/// One record with all there may be to it, listed anew.
async fn in_full(pool: &Pool, swap: &Swap) -> Result<Option<Found>, Failure> {
    let keys: Vec<&str> = swap.messages.iter().map(|message| &*message.key).collect();
    let destinations: Vec<&str> = swap.messages.iter().map(|message| &*message.destination).collect();
    let payloads: Vec<&[u8]> = swap.messages.iter().map(|message| &message.payload[..]).collect();
    let (id, state, scope) = (&swap.id.0[..], swap.state(), swap.scope());
    let (label, key, route) = (swap.label(), swap.key(), swap.route());
    let number = row::fresh_number();
    let (verb, mut parameters): (Verb, Vec<&(dyn ToSql + Sync)>) = match &swap.expected {
        None => (
            Verb::InsertInFull,
            vec![&id, &swap.revision, &swap.due_at, &swap.due_after, &state, &scope, &label, &key],
        ),
        Some(expected) => (
            Verb::UpdateInFull,
            vec![&id, expected, &swap.revision, &swap.due_at, &swap.due_after, &state, &label],
        ),
    };
    let rest: [&(dyn ToSql + Sync); 6] = [&route, &swap.record, &number, &keys, &destinations, &payloads];
    parameters.extend(rest);
    let rows = pool.write(verb, &parameters).await?;
    // One row, but where it was deleted between the beginning of the statement and its insert: then it was written, and that
    // comes first.
    Ok(rows.first().map(|row| found(swap.id, row, 0)))
}

/// In the order of ids: rows are locked in that order.
async fn many(pool: &Pool, swaps: &[Swap], number: i64) -> Result<Answers, Failure> {
    let mut sorted: Vec<&Swap> = swaps.iter().collect();
    sorted.sort_unstable_by_key(|swap| swap.id.0);
    let (inserts, updates): (Vec<&Swap>, Vec<&Swap>) =
        sorted.into_iter().partition(|swap| swap.expected.is_none());
    // Whoever comes with one of these again, and alone, takes a look along.
    for insert in &inserts {
        pool.tried.again(insert.id);
    }
    let (inserts, updates) = (Columns::of(&inserts), Columns::of(&updates));
    let parameters: [&(dyn ToSql + Sync); 33] = [
        &inserts.ids,
        &inserts.revisions,
        &inserts.keys,
        &inserts.records,
        &inserts.due_at.each,
        &inserts.due_after.each,
        &inserts.states.each,
        &inserts.scopes.each,
        &inserts.labels.each,
        &inserts.routes.each,
        &inserts.due_at.all,
        &inserts.due_after.all,
        &inserts.states.all,
        &inserts.scopes.all,
        &inserts.labels.all,
        &inserts.routes.all,
        &updates.ids,
        &updates.expected,
        &updates.revisions,
        &updates.records,
        &updates.due_at.each,
        &updates.due_after.each,
        &updates.states.each,
        &updates.labels.each,
        &updates.routes.each,
        &updates.listed.each,
        &updates.due_at.all,
        &updates.due_after.all,
        &updates.states.all,
        &updates.labels.all,
        &updates.routes.all,
        &updates.listed.all,
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
    let answers = Answers::of(&rows);
    if answers.count(swaps.len()) < swaps.len() {
        // What answers nothing was held, as far as anybody can tell.
        pool.held.met();
    }
    Ok(answers)
}

/// From the columns of a record, from `first` on; what was written has no revision there.
fn found(id: Id, row: &Row, first: usize) -> Found {
    match column::<Option<i64>>(row, first) {
        Ok(Some(_)) => Found::Stands(Box::new(Stored::read(id, row, first))),
        Ok(None) => match column::<Moment>(row, first + 1) {
            Ok(written_at) => Found::Written(written_at.0),
            Err(error) => Found::Stands(Box::new(Err(error))),
        },
        Err(error) => Found::Stands(Box::new(Err(error))),
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

//! Writes: in batches, and alone.
//!
//! ```text
//!   swap ──► batcher ──► one: the plain statement ─┐   applied, or lost with the current record
//!      │          └────► many: one transaction ────┤
//!      │                                           └─► no answer for a row: sent alone
//!      └─ with messages, ─► alone ◄─────────────────────┘
//!         or an audit entry
//! ```
//!
//! A lost insert returns the current record in the same round trip. A lost update needs a second one.
//!
//! A batch does not wait for one row: locked rows are skipped. Skipped rows, rows that conflict with a concurrent insert, and
//! every row of a batch that the server refused are sent alone: outside the batcher, with a lock time-out, so that no other
//! row waits and one bad row fails alone.

use std::collections::HashMap;
use std::sync::Arc;

use onlyonce_core::record::{Id, Seen};
use onlyonce_core::time::Timestamp;
use tokio::sync::Semaphore;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Statement, Transaction};

use super::audit;
use super::connection::Connection;
use super::failure::Failure;
use super::look;
use super::pool::{Asked, Pool};
use super::row::{self, Moment, REVISION, Span, Swap, Values, column};
use super::statement::Verb;
use super::url::Database;
use crate::accepted::Request;
use crate::hash::ById;
use crate::result::{PhaseResult, Results};
use crate::seal::Keyring;
use crate::sql::Sealing;
use crate::{Error, ErrorKind, Swapped};

/// How often a write is retried that neither applied nor returned the current record, since the row changes constantly.
const LOOKS_MAX: u32 = 5;

/// What a batch returned for a row.
pub(super) enum Answer {
    /// The result.
    Swapped(Swapped),
    /// Nothing was written: send it alone.
    Alone(Box<Swap>),
}

/// Writes a batch.
pub(super) async fn together(
    pool: &Pool,
    keyring: Option<&Keyring>,
    swaps: Vec<Swap>,
) -> Vec<Result<Answer, Error>> {
    let mark = pool.doubts.mark();
    let rows = match &swaps[..] {
        [swap] if swap.with.is_empty() => one(pool, swap).await,
        many => batch(pool, many).await,
    };
    let rows = match rows {
        Ok(rows) => rows,
        Err(failure) => {
            let goes_alone = failure.is_of_one_row(swaps.len());
            let told =
                |swap| if goes_alone { Ok(Answer::Alone(Box::new(swap))) } else { Err(failure.error()) };
            return swaps.into_iter().map(told).collect();
        }
    };
    let mut answers = answers(&rows, keyring);
    if answers.values().any(|found| matches!(found, Found::Written(_))) {
        pool.doubts.settle(mark);
    }
    let answer = |swap: Swap| match answers.remove(&swap.id) {
        Some(Found::Written(written_at)) => Ok(Answer::Swapped(swap.applied(written_at))),
        Some(Found::Stands(Ok(seen))) if pool.doubts.are_settled() => {
            Ok(Answer::Swapped(Swapped::Lost(Some(seen))))
        }
        // A record in doubt, too large for a shared answer, or damaged is read alone.
        Some(Found::Stands(_)) | None => Ok(Answer::Alone(Box::new(swap))),
    };
    swaps.into_iter().map(answer).collect()
}

/// Writes one row, and waits for its lock up to the pool's lock time-out.
async fn alone(pool: &Pool, keyring: Option<&Keyring>, swap: Swap) -> Result<Swapped, Error> {
    for _ in 0..LOOKS_MAX {
        let mark = pool.doubts.mark();
        let rows = match swap.with.is_empty() {
            true => one(pool, &swap).await?,
            false => pool.write(Asked::WithAttached(&swap)).await?,
        };
        match rows.first().map(|row| found(row, keyring)) {
            Some(Found::Written(written_at)) => {
                pool.doubts.settle(mark);
                return Ok(swap.applied(written_at));
            }
            Some(Found::Stands(seen)) if pool.doubts.are_settled() => return Ok(Swapped::Lost(Some(seen?))),
            // The row changed while the statement ran, so it was neither written nor returned; or it is in doubt.
            Some(Found::Stands(_)) | None => {}
        }
        let seen = look::alone(pool, keyring, swap.id).await?;
        if !swap.expects(seen.as_ref()) {
            return Ok(Swapped::Lost(seen));
        }
    }
    Err(Error::new(ErrorKind::Unavailable, format!("record {} changes faster than it can be read", swap.id)))
}

/// Writes one row in a task of its own, so that it completes even if the caller is cancelled. `places` keeps connections
/// free for reads.
pub(super) async fn in_a_task(
    pool: Arc<Pool>,
    places: Arc<Semaphore>,
    keyring: Option<Keyring>,
    swap: Swap,
) -> Result<Swapped, Error> {
    let task = tokio::spawn(async move {
        let _place = places.acquire().await.expect("the places are never closed");
        alone(&pool, keyring.as_ref(), swap).await
    });
    task.await.unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::Unavailable, "the write was given up with its runtime"))
    })
}

/// Writes one row and what is attached to it in a transaction of the caller's.
pub(super) async fn in_transaction(
    transaction: &Transaction<'_>,
    database: &Database,
    keyring: Option<&Keyring>,
    swap: Swap,
) -> Result<Swapped, Error> {
    let schema = database.quoted_schema();
    let failed = |error: tokio_postgres::Error| Failure::of(database, &error).error();
    let prepare = |verb: Verb| {
        let sql = verb.sql(&schema);
        async move { transaction.prepare(&sql).await }
    };
    let prepared = Prepared::of(&swap, prepare).await.map_err(failed)?;
    let rows = within(transaction, &prepared, &swap).await.map_err(failed)?;
    match rows.first().map(|row| found(row, keyring)) {
        Some(Found::Written(written_at)) => return Ok(swap.applied(written_at)),
        Some(Found::Stands(seen)) => return Ok(Swapped::Lost(Some(seen?))),
        None => {}
    }
    let rows = transaction.query(&Verb::Load.sql(&schema), &[&&swap.id.0[..]]).await.map_err(failed)?;
    Ok(Swapped::Lost(rows.first().map(|row| row::seen(row, keyring)).transpose()?))
}

/// The same in a transaction of its own.
pub(super) async fn in_own_transaction(
    connection: &mut Connection,
    swap: &Swap,
) -> Result<Vec<Row>, tokio_postgres::Error> {
    let prepared = Prepared::of(swap, |verb| connection.prepare(verb)).await?;
    let transaction = connection.client.transaction().await?;
    let rows = within(&transaction, &prepared, swap).await?;
    transaction.commit().await?;
    Ok(rows)
}
/// The statements of a write and of what is attached to it.
struct Prepared {
    write: Statement,
    send: Option<Statement>,
    note: Option<Statement>,
    results: Option<Statement>,
    request: Option<Statement>,
}

impl Prepared {
    async fn of<F>(swap: &Swap, prepare: impl Fn(Verb) -> F) -> Result<Self, tokio_postgres::Error>
    where
        F: Future<Output = Result<Statement, tokio_postgres::Error>>,
    {
        let write = prepare(verb(swap)).await?;
        let send = match swap.with.messages.is_empty() {
            true => None,
            false => Some(prepare(Verb::Send).await?),
        };
        let note = match swap.with.audit.is_none() {
            true => None,
            false => Some(prepare(Verb::Note).await?),
        };
        let results = match &swap.with.results {
            Results::Keep => None,
            Results::Drop => Some(prepare(Verb::DropResults).await?),
            Results::Add(_) => Some(prepare(Verb::AddResult).await?),
        };
        let request = match &swap.with.request {
            Request::Keep => None,
            Request::Drop => Some(prepare(Verb::DropRequest).await?),
            Request::Put(_) => Some(prepare(Verb::PutRequest).await?),
        };
        Ok(Self { write, send, note, results, request })
    }
}

/// A swap that is lost leaves what is attached to it unwritten.
async fn within(
    transaction: &Transaction<'_>,
    prepared: &Prepared,
    swap: &Swap,
) -> Result<Vec<Row>, tokio_postgres::Error> {
    let values = Values::of(swap);
    let parameters = values.parameters().map(|value| value.0);
    let write = &prepared.write;
    let rows = transaction.query(write, &parameters[..write.params().len()]).await?;
    let Some(written_at) = rows.first().and_then(written) else { return Ok(rows) };
    if let Some(send) = &prepared.send {
        store_messages(transaction, send, swap).await?;
    }
    if let (Some(note), Some(entry)) = (&prepared.note, &swap.with.audit) {
        let columns = audit::Columns::of(entry);
        transaction.execute(note, &columns.parameters()).await?;
    }
    if let Some(results) = &prepared.results {
        change_results(transaction, results, swap).await?;
    }
    if let Some(request) = &prepared.request {
        change_request(transaction, request, swap, written_at).await?;
    }
    Ok(rows)
}

async fn store_messages(
    transaction: &Transaction<'_>,
    send: &Statement,
    swap: &Swap,
) -> Result<(), tokio_postgres::Error> {
    let messages = &swap.with.messages;
    let keys: Vec<&str> = messages.iter().map(|message| &*message.key).collect();
    let destinations: Vec<&str> = messages.iter().map(|message| &*message.destination).collect();
    let payloads: Vec<&[u8]> = messages.iter().map(|message| &message.payload[..]).collect();
    let content_types: Vec<&str> = messages.iter().map(|message| &*message.content_type).collect();
    let groups: Vec<Option<&str>> = messages.iter().map(|message| message.group.as_deref()).collect();
    let delays: Vec<Span> = messages.iter().map(|message| Span::at_most(message.delay)).collect();
    let record = &swap.id.0[..];
    let key_id = swap.sealing.as_deref().and_then(Sealing::payload_key);
    let parameters: [&(dyn ToSql + Sync); 8] =
        [&keys, &destinations, &payloads, &content_types, &groups, &delays, &record, &key_id];
    transaction.execute(send, &parameters).await.map(drop)
}

async fn change_results(
    transaction: &Transaction<'_>,
    statement: &Statement,
    swap: &Swap,
) -> Result<(), tokio_postgres::Error> {
    let record = &swap.id.0[..];
    match &swap.with.results {
        Results::Keep => Ok(()),
        Results::Drop => transaction.execute(statement, &[&record]).await.map(drop),
        Results::Add(PhaseResult { number, phase, json }) => {
            let number = i32::try_from(*number).unwrap_or(i32::MAX);
            let used_at = row::used_at(&swap.next);
            let sealed = swap.sealing.as_deref().and_then(|sealing| sealing.result.as_deref());
            let clear = sealed.is_none().then_some(&**json);
            let values: [&(dyn ToSql + Sync); 6] = [&record, &number, &used_at, &&**phase, &clear, &sealed];
            transaction.execute(statement, &values).await.map(drop)
        }
    }
}

async fn change_request(
    transaction: &Transaction<'_>,
    statement: &Statement,
    swap: &Swap,
    written_at: Timestamp,
) -> Result<(), tokio_postgres::Error> {
    let record = &swap.id.0[..];
    match &swap.with.request {
        Request::Keep => Ok(()),
        Request::Drop => transaction.execute(statement, &[&record]).await.map(drop),
        Request::Put(request) => {
            let used_at = Moment(swap.next.created_at.stamp(written_at));
            let key_id = swap.sealing.as_deref().and_then(Sealing::request_key);
            transaction.execute(statement, &[&record, &used_at, &&request[..], &key_id]).await.map(drop)
        }
    }
}

fn verb(swap: &Swap) -> Verb {
    if swap.expected.is_none() { Verb::Insert } else { Verb::Update }
}

async fn one(pool: &Pool, swap: &Swap) -> Result<Vec<Row>, Failure> {
    let (verb, values) = (verb(swap), Values::of(swap));
    let parameters = values.parameters().map(|value| value.0);
    pool.write(Asked::Statement(verb, &parameters[..verb.parameters().len()])).await
}

/// Sorted by id, so that rows are always locked in that order.
async fn batch(pool: &Pool, swaps: &[Swap]) -> Result<Vec<Row>, Failure> {
    let mut sorted: Vec<&Swap> = swaps.iter().collect();
    sorted.sort_unstable_by_key(|swap| swap.id);
    let (inserts, updates): (Vec<_>, Vec<_>) = sorted.into_iter().partition(|swap| swap.expected.is_none());
    pool.write(Asked::Batch { inserts: &inserts, updates: &updates }).await
}

/// What a statement returned for a row.
enum Found {
    Written(Timestamp),
    /// The record when the statement began; its revision is not the expected one.
    Stands(Result<Seen, Error>),
}

/// A row that was written is returned without a revision.
fn is_written(row: &Row) -> bool {
    row.len() == 2 || matches!(column::<Option<i64>>(row, REVISION), Ok(None))
}

/// When a row was written; none where it was not.
fn written(row: &Row) -> Option<Timestamp> {
    row::last_moment(row).ok().filter(|_| is_written(row))
}

fn found(row: &Row, keyring: Option<&Keyring>) -> Found {
    match (is_written(row), row::last_moment(row)) {
        (true, Ok(written_at)) => Found::Written(written_at),
        (true, Err(error)) => Found::Stands(Err(error)),
        (false, _) => Found::Stands(row::seen(row, keyring)),
    }
}

/// The answers of a batch by id. A row has two if it was deleted between the statement's snapshot and its insert: then it
/// was written, which comes first. A row whose id cannot be read answers nothing.
fn answers(rows: &[Row], keyring: Option<&Keyring>) -> HashMap<Id, Found, ById> {
    let mut answers = HashMap::with_capacity_and_hasher(rows.len(), ById::default());
    for row in rows {
        if let Ok(id) = row::id(row) {
            answers.entry(id).or_insert_with(|| found(row, keyring));
        }
    }
    answers
}

//! Writes of records.
//!
//! A write that changes a row was applied, at the stamp that its answer carries. One that changes none is lost: a second
//! trip shows the record as it stands.

use std::sync::Arc;

use mysql_async::{Conn, Value};
use onlyonce_core::record::Id;
use onlyonce_core::time::Timestamp;
use tokio::sync::Semaphore;

use super::failure::Left;
use super::pool::{Pool, Work, ask, begin, commit, roll_back};
use super::{audit, look, row, statement};
use crate::accepted::Request;
use crate::outbox::Message;
use crate::result::{PhaseResult, Results};
use crate::seal::Keyring;
use crate::sql::{Sealing, Swap};
use crate::{Error, ErrorKind, Swapped};

/// How often a write is retried that neither applied nor finds a changed record, since the row changes constantly.
const LOOKS_MAX: u32 = 5;

/// Writes one record in a task of its own, so that it completes even if the caller is cancelled. `places` keeps connections
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

/// Writes one record and what is attached to it, and waits for its lock up to the pool's lock time-out.
async fn alone(pool: &Pool, keyring: Option<&Keyring>, swap: Swap) -> Result<Swapped, Error> {
    for _ in 0..LOOKS_MAX {
        let held = match pool.write(&Write(&swap)).await {
            Ok(Some(written_at)) => return Ok(swap.applied(written_at)),
            Ok(None) => None,
            // An insert waits for whoever holds the row, whose record is an answer. An update needs the row.
            Err(failure) if failure.left == Left::Busy && swap.expected.is_none() => Some(failure),
            Err(failure) => return Err(failure.error()),
        };
        let seen = look::alone(pool, keyring, swap.id).await?;
        match held {
            Some(failure) if seen.is_none() => return Err(failure.error()),
            Some(_) | None if !swap.expects(seen.as_ref()) => return Ok(Swapped::Lost(seen)),
            Some(_) | None => {}
        }
    }
    Err(Error::new(ErrorKind::Unavailable, format!("record {} changes faster than it can be read", swap.id)))
}

/// A write of one record: alone in a statement, or with what is attached to it in a transaction. None where it was lost; then
/// nothing is written.
pub(super) struct Write<'a>(pub(super) &'a Swap);

impl Work for Write<'_> {
    type Answer = Option<Timestamp>;

    async fn run(&self, connection: &mut Conn) -> Result<Option<Timestamp>, mysql_async::Error> {
        let Self(swap) = self;
        if swap.with.is_empty() {
            return write(connection, swap).await;
        }
        begin(connection).await?;
        let written_at = write(connection, swap).await?;
        let Some(stamp) = written_at else {
            roll_back(connection).await?;
            return Ok(None);
        };
        attach(connection, swap, stamp).await?;
        commit(connection).await?;
        Ok(written_at)
    }
}

async fn write(connection: &mut Conn, swap: &Swap) -> Result<Option<Timestamp>, mysql_async::Error> {
    let answer = match swap.expected {
        None => ask(connection, &statement::INSERT, row::values(swap)).await?,
        Some(expected) => ask(connection, &statement::UPDATE, changed(swap, expected)).await?,
    };
    Ok(answer.stamp.filter(|_| answer.changed > 0).map(Timestamp::from_micros))
}

/// The values of an update.
pub(super) fn changed(swap: &Swap, expected: i64) -> Vec<Value> {
    let values = row::values(swap);
    let mut changed: Vec<Value> =
        statement::changed_values().flat_map(|range| values[range].to_vec()).collect();
    changed.extend([swap.id.0.into(), expected.into()]);
    changed
}

async fn attach(connection: &mut Conn, swap: &Swap, written_at: Timestamp) -> Result<(), mysql_async::Error> {
    let key_id = swap.sealing.as_deref().and_then(Sealing::payload_key);
    for message in &swap.with.messages {
        send(connection, swap.id, message, key_id).await?;
    }
    if let Some(entry) = &swap.with.audit {
        ask(connection, &audit::note(), audit::values(entry)).await?;
    }
    change_results(connection, swap).await?;
    change_request(connection, swap, written_at).await
}

/// A message whose key exists already is the same message: it is stored once. Relies on the messages' unique keys.
async fn send(
    connection: &mut Conn,
    record: Id,
    message: &Message,
    key_id: Option<&[u8]>,
) -> Result<(), mysql_async::Error> {
    let sql = statement::filled(
        "INSERT INTO onlyonce_outbox (`key`, destination, payload, content_type, group_key, due_at, record, key_id)
         VALUES (?, ?, ?, ?, ?, {now} + ?, ?, ?)
         ON DUPLICATE KEY UPDATE number = number",
    );
    let values = vec![
        (*message.key).into(),
        (*message.destination).into(),
        message.payload[..].into(),
        (*message.content_type).into(),
        message.group.as_deref().into(),
        row::span(message.delay).into(),
        record.0.into(),
        key_id.into(),
    ];
    ask(connection, &sql, values).await.map(drop)
}

/// Relies on the primary key of the results.
async fn change_results(connection: &mut Conn, swap: &Swap) -> Result<(), mysql_async::Error> {
    match &swap.with.results {
        Results::Keep => Ok(()),
        Results::Drop => ask(connection, DROP_RESULTS, vec![swap.id.0.into()]).await.map(drop),
        Results::Add(result) => ask(connection, ADD_RESULT, result_values(swap, result)).await.map(drop),
    }
}

pub(super) const DROP_RESULTS: &str = "DELETE FROM onlyonce_result WHERE record = ?";
pub(super) const ADD_RESULT: &str = "
    INSERT INTO onlyonce_result (record, number, used_at, phase, result, sealed) VALUES (?, ?, ?, ?, ?, ?)
    ON DUPLICATE KEY UPDATE used_at = VALUES(used_at), phase = VALUES(phase), result = VALUES(result), sealed = VALUES(sealed)";

pub(super) fn result_values(swap: &Swap, result: &PhaseResult) -> Vec<Value> {
    let PhaseResult { number, phase, json } = result;
    let sealed = swap.sealing.as_deref().and_then(|sealing| sealing.result.as_deref());
    let clear = sealed.is_none().then_some(&**json);
    let used_at = row::used_at(&swap.next);
    vec![swap.id.0.into(), (*number).into(), used_at.into(), (**phase).into(), clear.into(), sealed.into()]
}

/// Relies on the primary key of the requests.
async fn change_request(
    connection: &mut Conn,
    swap: &Swap,
    written_at: Timestamp,
) -> Result<(), mysql_async::Error> {
    const PUT: &str = "
        INSERT INTO onlyonce_request (record, used_at, request, key_id) VALUES (?, ?, ?, ?)
        ON DUPLICATE KEY UPDATE used_at = VALUES(used_at), request = VALUES(request), key_id = VALUES(key_id)";
    match &swap.with.request {
        Request::Keep => Ok(()),
        Request::Drop => ask(connection, DROP_REQUEST, vec![swap.id.0.into()]).await.map(drop),
        Request::Put(request) => {
            let used_at = swap.next.created_at.stamp(written_at).as_micros();
            let key_id = swap.sealing.as_deref().and_then(Sealing::request_key);
            let values = vec![swap.id.0.into(), used_at.into(), request[..].into(), key_id.into()];
            ask(connection, PUT, values).await.map(drop)
        }
    }
}

pub(super) const DROP_REQUEST: &str = "DELETE FROM onlyonce_request WHERE record = ?";

//! The messages stored with records.

use std::sync::Arc;

use bytes::Bytes;
use onlyonce_core::record::Token;
use onlyonce_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::outbox::{Claimed, Message, Settled};

/// In the transaction that carries its swap over. Relies on the unique index over keys: a message that is there already is the same
/// message, and is kept once.
pub(super) fn store(connection: &Connection, message: &Message, now: Timestamp) -> rusqlite::Result<()> {
    const SQL: &str = "
        INSERT INTO message (key, destination, payload, due_at) VALUES (?1, ?2, ?3, ?4)
        ON CONFLICT (key) DO NOTHING";
    let (key, destination) = (&*message.key, &*message.destination);
    let parameters = params![key, destination, &message.payload[..], now.as_micros()];
    connection.prepare_cached(SQL)?.execute(parameters).map(drop)
}

/// What a claim has been asked for.
#[derive(Clone, Copy)]
pub(super) struct Claim {
    pub(super) token: Token,
    pub(super) lease: std::time::Duration,
    pub(super) limit: usize,
}

/// Relies on the index by due time; the writer is alone, so nobody claims in between.
pub(super) fn claim(connection: &Connection, claim: Claim, now: Timestamp) -> rusqlite::Result<Vec<Claimed>> {
    const DUE: &str = "
        SELECT number, key, destination, payload, delivery FROM message
        WHERE due_at <= ?1 ORDER BY due_at, number LIMIT ?2";
    const TAKE: &str = "UPDATE message SET token = ?2, delivery = ?3, due_at = ?4 WHERE number = ?1";
    let limit = i64::try_from(claim.limit).unwrap_or(i64::MAX);
    let mut due = connection.prepare_cached(DUE)?;
    let found = due.query_map(params![now.as_micros(), limit], |row| {
        Ok((row.get::<_, i64>(0)?, message(row, 1)?, row.get::<_, u32>(4)?))
    })?;
    let found = found.collect::<rusqlite::Result<Vec<_>>>()?;
    let until = now.plus(claim.lease).as_micros();
    let mut take = connection.prepare_cached(TAKE)?;
    let mut claimed = Vec::with_capacity(found.len());
    for (number, message, delivery) in found {
        let delivery = delivery.saturating_add(1);
        take.execute(params![number, claim.token.0, delivery, until])?;
        claimed.push(Claimed { message, delivery, token: claim.token });
    }
    Ok(claimed)
}

/// Relies on the unique index over keys. A claim that has lapsed still settles while nobody else has claimed the
/// message: it brings the truth.
pub(super) fn settle(
    connection: &Connection,
    key: &str,
    token: Token,
    settled: &Settled,
    now: Timestamp,
) -> rusqlite::Result<bool> {
    const SQL: &str = "SELECT number FROM message WHERE key = ?1 AND token = ?2";
    let number = connection.prepare_cached(SQL)?.query_row(params![key, token.0], |row| row.get(0));
    let Some(number) = number.optional()? else { return Ok(false) };
    match settled {
        Settled::Delivered { provider_id: _ } => delete(connection, number)?,
        Settled::Again { after, error } => {
            note(connection, number, error)?;
            release(connection, number, Some(now.plus(*after)))?;
        }
        Settled::Dead { error } => {
            note(connection, number, error)?;
            release(connection, number, None)?;
        }
    }
    Ok(true)
}

fn delete(connection: &Connection, number: i64) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM message_error WHERE message = ?1")?.execute([number])?;
    connection.prepare_cached("DELETE FROM message WHERE number = ?1")?.execute([number]).map(drop)
}

fn note(connection: &Connection, number: i64, error: &str) -> rusqlite::Result<()> {
    const SQL: &str = "
        INSERT INTO message_error (message, number, error)
        SELECT ?1, coalesce(max(number), 0) + 1, ?2 FROM message_error WHERE message = ?1";
    connection.prepare_cached(SQL)?.execute(params![number, error]).map(drop)
}

fn release(connection: &Connection, number: i64, due_at: Option<Timestamp>) -> rusqlite::Result<()> {
    const SQL: &str = "UPDATE message SET token = NULL, due_at = ?2 WHERE number = ?1";
    let due_at = due_at.map(Timestamp::as_micros);
    connection.prepare_cached(SQL)?.execute(params![number, due_at]).map(drop)
}

/// Relies on the index by due time, where dead letters stand first, in the order they were stored.
pub(super) fn dead(connection: &Connection, limit: usize) -> rusqlite::Result<Vec<(Message, Vec<Arc<str>>)>> {
    const DEAD: &str = "
        SELECT number, key, destination, payload FROM message
        WHERE due_at IS NULL ORDER BY number LIMIT ?1";
    const ERRORS: &str = "SELECT error FROM message_error WHERE message = ?1 ORDER BY number";
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut dead = connection.prepare_cached(DEAD)?;
    let mut errors = connection.prepare_cached(ERRORS)?;
    let mut letters = Vec::new();
    let mut rows = dead.query([limit])?;
    while let Some(row) = rows.next()? {
        let errors = errors.query_map([row.get::<_, i64>(0)?], |row| row.get::<_, Arc<str>>(0))?;
        letters.push((message(row, 1)?, errors.collect::<rusqlite::Result<_>>()?));
    }
    Ok(letters)
}

/// From the columns key, destination and payload, from `first` on.
fn message(row: &Row<'_>, first: usize) -> rusqlite::Result<Message> {
    Ok(Message {
        key: row.get(first)?,
        destination: row.get(first + 1)?,
        payload: Bytes::copy_from_slice(row.get_ref(first + 2)?.as_blob()?),
    })
}

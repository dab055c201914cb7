//! The messages stored with records.

use std::sync::Arc;

use bytes::Bytes;
use onlyonce_core::record::{Id, Token};
use onlyonce_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::outbox::{Claimed, DeadLetter, DeliveryError, Message, Settled};

/// In the transaction of their record. Relies on the unique index over keys: a message that is there already is the same
/// message, and is kept once.
pub(super) fn store(
    connection: &Connection,
    record: Id,
    messages: &[Message],
    now: Timestamp,
) -> rusqlite::Result<()> {
    const SQL: &str = "
        INSERT INTO onlyonce_outbox (key, destination, payload, content_type, group_key, record, created_at, due_at)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
        ON CONFLICT (key) DO NOTHING";
    if messages.is_empty() {
        return Ok(());
    }
    let mut statement = connection.prepare_cached(SQL)?;
    for message in messages {
        statement.execute(params![
            &*message.key,
            &*message.destination,
            &message.payload[..],
            &*message.content_type,
            message.group.as_deref(),
            record.0,
            now.as_micros(),
            now.plus(message.delay).as_micros(),
        ])?;
    }
    Ok(())
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
        SELECT number, key, destination, payload, content_type, group_key, deliveries FROM onlyonce_outbox
        WHERE state IN ('waiting', 'claimed') AND due_at <= ?1 ORDER BY due_at, number LIMIT ?2";
    const TAKE: &str = "
        UPDATE onlyonce_outbox SET state = 'claimed', token = ?2, deliveries = ?3, due_at = ?4 WHERE number = ?1";
    let limit = i64::try_from(claim.limit).unwrap_or(i64::MAX);
    let mut due = connection.prepare_cached(DUE)?;
    let found = due.query_map(params![now.as_micros(), limit], |row| {
        let claimed = Claimed {
            key: row.get(1)?,
            destination: row.get(2)?,
            payload: payload(row, 3)?,
            content_type: row.get(4)?,
            group: row.get(5)?,
            delivery: row.get::<_, u32>(6)?.saturating_add(1),
            token: claim.token,
        };
        Ok((row.get::<_, i64>(0)?, claimed))
    })?;
    let found = found.collect::<rusqlite::Result<Vec<_>>>()?;
    let until = now.plus(claim.lease).as_micros();
    let mut take = connection.prepare_cached(TAKE)?;
    for (number, claimed) in &found {
        take.execute(params![number, claim.token.0, claimed.delivery, until])?;
    }
    Ok(found.into_iter().map(|(_, claimed)| claimed).collect())
}

/// Relies on the unique index over keys. A claim that has lapsed still settles while nobody else has claimed the
/// message: its delivery was made.
pub(super) fn settle(
    connection: &Connection,
    key: &str,
    token: Token,
    settled: &Settled,
    now: Timestamp,
) -> rusqlite::Result<bool> {
    const DELIVERED: &str = "
        UPDATE onlyonce_outbox
        SET state = 'delivered', token = NULL, payload = NULL, delivered_at = ?3, provider_id = ?4
        WHERE key = ?1 AND token = ?2";
    const AGAIN: &str = "
        UPDATE onlyonce_outbox
        SET state = 'waiting', token = NULL, due_at = ?5,
            errors = json_insert(errors, '$[#]', json_object('at', ?3, 'delivery', deliveries, 'error', ?4))
        WHERE key = ?1 AND token = ?2";
    const DEAD: &str = "
        UPDATE onlyonce_outbox
        SET state = 'dead', token = NULL,
            errors = json_insert(errors, '$[#]', json_object('at', ?3, 'delivery', deliveries, 'error', ?4))
        WHERE key = ?1 AND token = ?2";
    let at = now.as_micros();
    let settled = match settled {
        Settled::Delivered { provider_id } => connection.prepare_cached(DELIVERED)?.execute(params![
            key,
            token.0,
            at,
            provider_id.as_deref()
        ])?,
        Settled::Again { after, error } => connection.prepare_cached(AGAIN)?.execute(params![
            key,
            token.0,
            at,
            &**error,
            now.plus(*after).as_micros()
        ])?,
        Settled::Dead { error } => {
            connection.prepare_cached(DEAD)?.execute(params![key, token.0, at, &**error])?
        }
    };
    Ok(settled > 0)
}

/// Relies on the unique index over keys.
pub(super) fn provider_id(connection: &Connection, key: &str) -> rusqlite::Result<Option<Arc<str>>> {
    const SQL: &str = "SELECT provider_id FROM onlyonce_outbox WHERE key = ?1";
    let found = connection.prepare_cached(SQL)?.query_row([key], |row| row.get(0)).optional()?;
    Ok(found.flatten())
}

/// Relies on the index of dead letters, in the order they were stored.
pub(super) fn dead(connection: &Connection, limit: usize) -> rusqlite::Result<Vec<DeadLetter>> {
    const DEAD: &str = "
        SELECT number, key, destination, payload FROM onlyonce_outbox
        WHERE state = 'dead' ORDER BY number LIMIT ?1";
    const ERRORS: &str = "
        SELECT json_extract(error.value, '$.at'), json_extract(error.value, '$.delivery'),
               json_extract(error.value, '$.error')
        FROM onlyonce_outbox, json_each(errors) AS error WHERE number = ?1 ORDER BY error.key";
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut dead = connection.prepare_cached(DEAD)?;
    let mut errors = connection.prepare_cached(ERRORS)?;
    let mut letters = Vec::new();
    let mut rows = dead.query([limit])?;
    while let Some(row) = rows.next()? {
        let errors = errors.query_map([row.get::<_, i64>(0)?], |row| {
            let at = Timestamp::from_micros(row.get(0)?);
            Ok(DeliveryError { at, delivery: row.get(1)?, error: row.get(2)? })
        })?;
        letters.push(DeadLetter {
            key: row.get(1)?,
            destination: row.get(2)?,
            payload: payload(row, 3)?,
            errors: errors.collect::<rusqlite::Result<_>>()?,
        });
    }
    Ok(letters)
}

fn payload(row: &Row<'_>, column: usize) -> rusqlite::Result<Bytes> {
    Ok(Bytes::copy_from_slice(row.get_ref(column)?.as_blob_or_null()?.unwrap_or_default()))
}

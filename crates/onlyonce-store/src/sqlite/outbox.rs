//! The messages stored with records.

use std::sync::Arc;

use bytes::Bytes;
use onlyonce_core::record::{Id, Token};
use onlyonce_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::audit;
use super::writer::Refused;
use crate::audit::Entry;
use crate::outbox::table::{self, COUNTED_MAX, Examined, HELD_AT_ONCE, Order, Place, ROUNDS_MAX};
use crate::outbox::{
    Census, Changed, Claimed, Claims, DeliveryError, Failed, Item, Message, Oldest, OnDead, Page, Payload,
    Query, Settled, State, Wanted,
};
use crate::seal::{Keyring, Unsealable};
use crate::{Count, Error, ErrorKind, sql};

/// So many delivered messages are deleted in one transaction.
pub(super) const ROWS_MAX: usize = 256;

/// In the transaction of their record. Relies on the unique index over keys: a message that is there already is the same
/// message, and is kept once. With a `key_id` their payloads are encrypted.
pub(super) fn store(
    connection: &Connection,
    record: Id,
    messages: &[Message],
    key_id: Option<&[u8]>,
    now: Timestamp,
) -> rusqlite::Result<()> {
    const SQL: &str = "
        INSERT INTO onlyonce_outbox (key, destination, payload, content_type, group_key, record, created_at, due_at, key_id)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
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
            key_id,
        ])?;
    }
    Ok(())
}

/// The writer is alone, so nobody claims in between.
pub(super) fn claim(
    connection: &Connection,
    token: Token,
    wanted: &[Wanted],
    keyring: Option<&Keyring>,
    now: Timestamp,
) -> rusqlite::Result<Claims> {
    let mut claims = Claims::default();
    for wanted in wanted {
        let (claimed, is_more) = claim_of(connection, token, wanted, keyring, now)?;
        claims.claimed.extend(claimed);
        claims.is_more |= is_more;
    }
    claims.claimed.sort_by_key(|claimed| (std::cmp::Reverse(claimed.age), claimed.number));
    Ok(claims)
}

/// Of one destination. Where some of what is due is behind other messages, it looks further.
fn claim_of(
    connection: &Connection,
    token: Token,
    wanted: &Wanted,
    keyring: Option<&Keyring>,
    now: Timestamp,
) -> rusqlite::Result<(Vec<Claimed>, bool)> {
    let (mut claimed, mut looks) = (Vec::new(), wanted.limit);
    for _ in 0..ROUNDS_MAX {
        let mut held = 0;
        for due in due(connection, wanted, looks, now)? {
            if claimed.len() == wanted.limit {
                break;
            }
            if is_behind(connection, &due, wanted)? {
                held += 1;
                connection
                    .prepare_cached("UPDATE onlyonce_outbox SET held = 1 WHERE number = ?1")?
                    .execute([due.number])?;
            } else {
                claimed.push(take(connection, &due, token, wanted, keyring, now)?);
            }
        }
        if held == 0 || claimed.len() == wanted.limit {
            return Ok((claimed, held > 0));
        }
        looks = HELD_AT_ONCE;
    }
    Ok((claimed, true))
}

/// A message that is due.
struct Due {
    number: i64,
    group: Option<Arc<str>>,
    is_claimed: bool,
}

/// Relies on the index by due time.
fn due(connection: &Connection, wanted: &Wanted, limit: usize, now: Timestamp) -> rusqlite::Result<Vec<Due>> {
    const SQL: &str = "
        SELECT number, group_key, state = 'claimed' FROM onlyonce_outbox INDEXED BY onlyonce_outbox_by_due
        WHERE destination = ?1 AND state IN ('waiting', 'claimed') AND held = 0 AND due_at <= ?2
        ORDER BY due_at, number LIMIT ?3";
    let mut statement = connection.prepare_cached(SQL)?;
    let due = |row: &Row<'_>| Ok(Due { number: row.get(0)?, group: row.get(1)?, is_claimed: row.get(2)? });
    statement.query_map(params![&*wanted.destination, now.as_micros(), at_most(limit)], due)?.collect()
}

/// Whether another message of its group must go first. Relies on the index by group and that of dead letters. One whose claim
/// has lapsed is the one of its group that is under way.
fn is_behind(connection: &Connection, due: &Due, wanted: &Wanted) -> rusqlite::Result<bool> {
    const SQL: &str = "
        SELECT EXISTS (SELECT 1 FROM onlyonce_outbox
                       WHERE destination = ?1 AND group_key = ?2 AND state = 'claimed' AND group_key IS NOT NULL)
            OR EXISTS (SELECT 1 FROM onlyonce_outbox INDEXED BY onlyonce_outbox_by_group
                       WHERE destination = ?1 AND group_key = ?2 AND state IN ('waiting', 'claimed') AND number < ?3
                         AND group_key IS NOT NULL)
            OR ?4 AND EXISTS (SELECT 1 FROM onlyonce_outbox INDEXED BY onlyonce_outbox_dead
                              WHERE destination = ?1 AND group_key = ?2 AND state = 'dead' AND number < ?3)";
    let Some(group) = due.group.as_deref().filter(|_| !due.is_claimed) else { return Ok(false) };
    let blocks = wanted.on_dead == OnDead::Block;
    let values = params![&*wanted.destination, group, due.number, blocks];
    connection.prepare_cached(SQL)?.query_row(values, |row| row.get(0))
}

/// Relies on the primary key.
fn take(
    connection: &Connection,
    due: &Due,
    token: Token,
    wanted: &Wanted,
    keyring: Option<&Keyring>,
    now: Timestamp,
) -> rusqlite::Result<Claimed> {
    const SQL: &str = "
        UPDATE onlyonce_outbox
        SET state = 'claimed', token = ?2, deliveries = deliveries + 1, first_due_at = coalesce(first_due_at, due_at),
            due_at = ?3
        WHERE number = ?1
        RETURNING key, payload, content_type, group_key, deliveries, failures, first_due_at, key_id";
    let values = params![due.number, token.0, now.plus(wanted.lease).as_micros()];
    connection.prepare_cached(SQL)?.query_row(values, |row| {
        let key: Arc<str> = row.get(0)?;
        Ok(Claimed {
            number: due.number.unsigned_abs(),
            payload: opened(row, keyring, &key, [1, 7])?.map(Option::unwrap_or_default),
            key,
            destination: wanted.destination.clone(),
            content_type: row.get(2)?,
            group: row.get(3)?,
            delivery: row.get(4)?,
            failures: row.get(5)?,
            age: now.since(Timestamp::from_micros(row.get(6)?)),
            token,
        })
    })
}

/// Relies on the primary key. A claim that has lapsed still settles while nobody else has claimed the message: its delivery
/// was made. The next of its group is looked at again.
pub(super) fn settle(
    connection: &Connection,
    claimed: &Claimed,
    settled: &Settled,
    now: Timestamp,
) -> rusqlite::Result<bool> {
    const DELIVERED: &str = "
        UPDATE onlyonce_outbox
        SET state = 'delivered', token = NULL, payload = NULL, key_id = NULL, delivered_at = ?3, provider_id = ?4
        WHERE number = ?1 AND token = ?2";
    // An error that does not count takes the place of the one before it, if that said the same.
    const AGAIN: &str = "
        UPDATE onlyonce_outbox
        SET state = 'waiting', token = NULL, due_at = ?6, failures = failures + ?7,
            errors = json_insert(
                CASE WHEN ?7 = 0 AND json_extract(errors, '$[#-1].error') = ?5 THEN json_remove(errors, '$[#-1]')
                     ELSE errors END,
                '$[#]', json_object('at', ?3, 'delivery', deliveries, 'status', ?4, 'error', ?5))
        WHERE number = ?1 AND token = ?2";
    const DEAD: &str = "
        UPDATE onlyonce_outbox
        SET state = 'dead', token = NULL,
            errors = json_insert(errors, '$[#]',
                                 json_object('at', ?3, 'delivery', deliveries, 'status', ?4, 'error', ?5))
        WHERE number = ?1 AND token = ?2";
    let (number, token, at) = (number(claimed.number), claimed.token.0, now.as_micros());
    let settled = match settled {
        Settled::Delivered { provider_id } => connection.prepare_cached(DELIVERED)?.execute(params![
            number,
            token,
            at,
            provider_id.as_deref()
        ])?,
        Settled::Again { after, counts, failed: Failed { status, error } } => {
            let due_at = now.plus(*after).as_micros();
            let values = params![number, token, at, status, &**error, due_at, i64::from(*counts)];
            connection.prepare_cached(AGAIN)?.execute(values)?
        }
        Settled::Dead { failed: Failed { status, error } } => {
            connection.prepare_cached(DEAD)?.execute(params![number, token, at, status, &**error])?
        }
    };
    if let Some(group) = &claimed.group {
        wake(connection, &claimed.destination, group)?;
    }
    Ok(settled > 0)
}

/// The first of a group is looked at again. Relies on the index by group.
fn wake(connection: &Connection, destination: &str, group: &str) -> rusqlite::Result<()> {
    const SQL: &str = "
        UPDATE onlyonce_outbox SET held = 0
        WHERE held = 1 AND number = (
            SELECT number FROM onlyonce_outbox INDEXED BY onlyonce_outbox_by_group
            WHERE destination = ?1 AND group_key = ?2 AND state IN ('waiting', 'claimed') AND group_key IS NOT NULL
            ORDER BY number LIMIT 1)";
    connection.prepare_cached(SQL)?.execute(params![destination, group]).map(drop)
}

/// The same for every group with a dead letter. Relies on the index of dead letters.
pub(super) fn pass_dead(connection: &Connection, destination: &str) -> rusqlite::Result<()> {
    const SQL: &str = "
        SELECT DISTINCT group_key FROM onlyonce_outbox INDEXED BY onlyonce_outbox_dead
        WHERE destination = ?1 AND state = 'dead' AND group_key IS NOT NULL";
    let mut statement = connection.prepare_cached(SQL)?;
    let groups = statement.query_map([destination], |row| row.get::<_, String>(0))?;
    for group in groups.collect::<rusqlite::Result<Vec<_>>>()? {
        wake(connection, destination, &group)?;
    }
    Ok(())
}

/// A page. The connection is in a transaction: all that a page asks is one snapshot.
pub(super) fn list(connection: &Connection, query: &Query) -> Result<Page, Refused> {
    // Each relies on the index of its order.
    const BY_NUMBER: &str = "
        SELECT ?1, number, state, destination FROM onlyonce_outbox WHERE number > ?2 ORDER BY number LIMIT ?3";
    const DEAD: &str = "
        SELECT ?1, number, state, destination FROM onlyonce_outbox INDEXED BY onlyonce_outbox_dead
        WHERE state = 'dead' AND number > ?2 ORDER BY number LIMIT ?3";
    const BY_FIRST_DUE: &str = "
        SELECT coalesce(first_due_at, due_at), number, state, destination
        FROM onlyonce_outbox INDEXED BY onlyonce_outbox_by_first_due
        WHERE state IN ('waiting', 'claimed') AND (coalesce(first_due_at, due_at), number) > (?1, ?2)
        ORDER BY coalesce(first_due_at, due_at), number LIMIT ?3";
    const DELIVERED: &str = "
        SELECT delivered_at, number, state, destination FROM onlyonce_outbox INDEXED BY onlyonce_outbox_delivered
        WHERE state = 'delivered' AND (delivered_at, number) > (?1, ?2) ORDER BY delivered_at, number LIMIT ?3";
    let sql = match Order::of(query) {
        Order::Number => BY_NUMBER,
        Order::Dead => DEAD,
        Order::FirstDue => BY_FIRST_DUE,
        Order::Delivered => DELIVERED,
    };
    let after = Place::of(query)?;
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows =
        statement.query(params![after.at.as_micros(), after.number, table::examined_max(query)])?;
    let mut examined = Vec::new();
    while let Some(row) = rows.next()? {
        let place = Place { at: Timestamp::from_micros(row.get(0)?), number: row.get(1)? };
        examined.push(Examined { place, state: state(row, 2)?, destination: row.get(3)? });
    }
    let (numbers, next) = table::page(&examined, query);
    let items = numbers.iter().map(|number| item(connection, number.unsigned_abs()));
    Ok(Page { items: items.filter_map(Result::transpose).collect::<Result<_, _>>()?, next })
}

/// Relies on the primary key.
pub(super) fn item(connection: &Connection, of: u64) -> Result<Option<Item>, Refused> {
    const SQL: &str = "
        SELECT number, key, destination, group_key, state, deliveries, created_at, due_at, delivered_at, provider_id, record
        FROM onlyonce_outbox WHERE number = ?1";
    let mut statement = connection.prepare_cached(SQL)?;
    let mut rows = statement.query([number(of)])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let moment = Timestamp::from_micros;
    Ok(Some(Item {
        number: row.get::<_, i64>(0)?.unsigned_abs(),
        key: row.get(1)?,
        destination: row.get(2)?,
        group: row.get(3)?,
        state: state(row, 4)?,
        deliveries: row.get(5)?,
        created_at: moment(row.get(6)?),
        due_at: moment(row.get(7)?),
        delivered_at: row.get::<_, Option<i64>>(8)?.map(moment),
        provider_id: row.get(9)?,
        errors: errors(connection, of)?,
        record: bytes(row, 10)?.and_then(|id| id[..].try_into().ok()).map(Id),
    }))
}

fn errors(connection: &Connection, of: u64) -> rusqlite::Result<Vec<DeliveryError>> {
    const SQL: &str = "
        SELECT json_extract(error.value, '$.at'), json_extract(error.value, '$.delivery'),
               json_extract(error.value, '$.status'), json_extract(error.value, '$.error')
        FROM onlyonce_outbox, json_each(errors) AS error WHERE number = ?1 ORDER BY error.key";
    let mut statement = connection.prepare_cached(SQL)?;
    let errors = statement.query_map([number(of)], |row| {
        let at = Timestamp::from_micros(row.get(0)?);
        Ok(DeliveryError { at, delivery: row.get(1)?, status: row.get(2)?, error: row.get(3)? })
    })?;
    errors.collect()
}

fn state(row: &Row<'_>, column: usize) -> Result<State, Refused> {
    let name: String = row.get(column)?;
    State::parse(&name).ok_or_else(|| {
        let message = format!("a message has the state \"{name}\", which is none; restore it from a backup");
        Error::new(ErrorKind::Corrupt, message).into()
    })
}

/// Relies on the primary key.
pub(super) fn payload(
    connection: &Connection,
    of: u64,
    keyring: Option<&Keyring>,
) -> Result<Option<Payload>, Refused> {
    const SQL: &str = "SELECT payload, content_type, key, key_id FROM onlyonce_outbox WHERE number = ?1";
    let mut statement = connection.prepare_cached(SQL)?;
    let mut rows = statement.query([number(of)])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let key: String = row.get(2)?;
    let bytes = opened(row, keyring, &key, [0, 3])?.map_err(|error| table::unreadable(of, error))?;
    Ok(Some(Payload { bytes, content_type: row.get(1)? }))
}

/// The payload of a message, from the columns that have it and the id of its key.
fn opened(
    row: &Row<'_>,
    keyring: Option<&Keyring>,
    key: &str,
    [payload, key_id]: [usize; 2],
) -> rusqlite::Result<Result<Option<Bytes>, Unsealable>> {
    let blob = |column| row.get_ref(column)?.as_blob_or_null().map_err(rusqlite::Error::from);
    Ok(sql::open_payload(keyring, key, blob(payload)?, blob(key_id)?))
}

/// Relies on the primary key.
pub(super) fn redrive(
    connection: &Connection,
    of: u64,
    entry: &Entry,
    now: Timestamp,
) -> Result<Changed, Refused> {
    const SQL: &str = "
        UPDATE onlyonce_outbox SET state = 'waiting', held = 0, failures = 0, due_at = ?2, first_due_at = ?2
        WHERE number = ?1 AND state = 'dead'";
    let changed = connection.prepare_cached(SQL)?.execute(params![number(of), now.as_micros()])?;
    changed_one(connection, of, changed, entry, now)
}

/// Relies on the primary key. The next of its group is looked at again.
pub(super) fn discard(
    connection: &Connection,
    of: u64,
    entry: &Entry,
    now: Timestamp,
) -> Result<Changed, Refused> {
    const SQL: &str = "
        DELETE FROM onlyonce_outbox WHERE number = ?1 AND (state <> 'claimed' OR due_at <= ?2)
        RETURNING destination, group_key";
    let discarded = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, Option<String>>(1)?));
    let values = params![number(of), now.as_micros()];
    let discarded = connection.prepare_cached(SQL)?.query_row(values, discarded).optional()?;
    if let Some((destination, Some(group))) = &discarded {
        wake(connection, destination, group)?;
    }
    changed_one(connection, of, usize::from(discarded.is_some()), entry, now)
}

fn changed_one(
    connection: &Connection,
    of: u64,
    changed: usize,
    entry: &Entry,
    now: Timestamp,
) -> Result<Changed, Refused> {
    if changed > 0 {
        audit::store(connection, entry, now)?;
        return Ok(Changed::Applied);
    }
    Ok(if item(connection, of)?.is_some() { Changed::Refused } else { Changed::Absent })
}

/// Deletes up to `limit` messages that were delivered before a moment. Relies on the index of delivered messages.
pub(super) fn prune(connection: &Connection, before: Timestamp, limit: usize) -> rusqlite::Result<usize> {
    const SQL: &str = "
        DELETE FROM onlyonce_outbox WHERE number IN (
            SELECT number FROM onlyonce_outbox INDEXED BY onlyonce_outbox_delivered
            WHERE state = 'delivered' AND delivered_at < ?1 ORDER BY delivered_at, number LIMIT ?2)";
    connection.prepare_cached(SQL)?.execute(params![before.as_micros(), at_most(limit)])
}

/// The connection is in a transaction: all of it is one snapshot.
pub(super) fn census(connection: &Connection, now: Timestamp) -> rusqlite::Result<Census> {
    const OLDEST: &str = "
        SELECT number, key, destination, coalesce(first_due_at, due_at)
        FROM onlyonce_outbox INDEXED BY onlyonce_outbox_by_first_due
        WHERE state IN ('waiting', 'claimed') AND coalesce(first_due_at, due_at) <= ?1
        ORDER BY coalesce(first_due_at, due_at), number LIMIT 1";
    let oldest = connection.prepare_cached(OLDEST)?.query_row([now.as_micros()], |row| {
        let since = Timestamp::from_micros(row.get(3)?);
        Ok(Oldest {
            number: row.get::<_, i64>(0)?.unsigned_abs(),
            key: row.get(1)?,
            destination: row.get(2)?,
            since,
            age: now.since(since),
        })
    });
    Ok(Census { counts: counts(connection)?, oldest: oldest.optional()? })
}

/// Up to [`COUNTED_MAX`] of each exactly, by the indexes, which are read without the messages; of more, about as many as there
/// are numbers left.
fn counts(connection: &Connection) -> rusqlite::Result<Vec<(State, Count)>> {
    const UNDELIVERED: &str = "
        SELECT count(*) FILTER (WHERE state = 'waiting'), count(*) FILTER (WHERE state = 'claimed') FROM (
            SELECT state FROM onlyonce_outbox INDEXED BY onlyonce_outbox_by_first_due
            WHERE state IN ('waiting', 'claimed') ORDER BY coalesce(first_due_at, due_at), number LIMIT ?1)";
    const DELIVERED: &str = "
        SELECT count(*) FROM (SELECT 1 FROM onlyonce_outbox INDEXED BY onlyonce_outbox_delivered
                              WHERE state = 'delivered' LIMIT ?1)";
    const DEAD: &str = "
        SELECT count(*) FROM (SELECT 1 FROM onlyonce_outbox INDEXED BY onlyonce_outbox_dead
                              WHERE state = 'dead' LIMIT ?1)";
    const NUMBERS: &str = "
        SELECT coalesce((SELECT max(number) FROM onlyonce_outbox) - (SELECT min(number) FROM onlyonce_outbox) + 1, 0)";
    let limit = [COUNTED_MAX + 1];
    let (waiting, claimed): (i64, i64) =
        connection.prepare_cached(UNDELIVERED)?.query_row(limit, |row| Ok((row.get(0)?, row.get(1)?)))?;
    let delivered: i64 = connection.prepare_cached(DELIVERED)?.query_row(limit, |row| row.get(0))?;
    let dead: i64 = connection.prepare_cached(DEAD)?.query_row(limit, |row| row.get(0))?;
    let numbers: i64 = connection.prepare_cached(NUMBERS)?.query_row([], |row| row.get(0))?;
    let counts = [waiting, claimed, delivered, dead];
    let many = counts.iter().filter(|count| **count >= COUNTED_MAX).count();
    let few: i64 = counts.iter().filter(|count| **count < COUNTED_MAX).sum();
    let told = |count: i64| match i64::try_from(many) {
        Ok(many) if count >= COUNTED_MAX => Count::About(((numbers - few) / many).max(count).unsigned_abs()),
        Ok(_) | Err(_) => Count::Exact(count.unsigned_abs()),
    };
    Ok(State::ALL.into_iter().zip(counts.map(told)).collect())
}

fn bytes(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Bytes>> {
    Ok(row.get_ref(column)?.as_blob_or_null()?.map(Bytes::copy_from_slice))
}

/// As its column has it. No message has a greater one.
fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn at_most(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

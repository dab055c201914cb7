//! The messages stored with records.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use mysql_async::{Conn, Row, Value};
use onlyonce_core::record::{Id, Token};
use onlyonce_core::time::Timestamp;

use super::pool::{Pool, Work, ask, begin, commit, roll_back};
use super::row::{at_most, column, moment, span};
use super::statement::{filled, marks};
use super::{audit, scan};
use crate::audit::Entry;
use crate::outbox::table::{self, COUNTED_MAX, Examined, HELD_AT_ONCE, Order, Place, ROUNDS_MAX};
use crate::outbox::{
    Census, Changed, Claimed, Claims, DeliveryError, Failed, Item, Oldest, OnDead, Page, Payload, Query,
    Settled, State, Wanted,
};
use crate::seal::Keyring;
use crate::{Error, ErrorKind, sql};

/// Claims what is due of each destination.
pub(super) async fn claim(
    pool: &Pool,
    keyring: Option<&Keyring>,
    token: Token,
    wanted: &[Wanted],
) -> Result<Claims, Error> {
    let mut claims = Claims::default();
    for wanted in wanted {
        let (claimed, is_more) = claim_of(pool, keyring, token, wanted).await?;
        claims.claimed.extend(claimed);
        claims.is_more |= is_more;
    }
    claims.claimed.sort_by_key(|claimed| (Reverse(claimed.age), claimed.number));
    Ok(claims)
}

/// Of one destination. Where some of what is due is behind other messages, it looks further.
async fn claim_of(
    pool: &Pool,
    keyring: Option<&Keyring>,
    token: Token,
    wanted: &Wanted,
) -> Result<(Vec<Claimed>, bool), Error> {
    let (mut claimed, mut looks) = (Vec::new(), wanted.limit);
    for _ in 0..ROUNDS_MAX {
        let limit = wanted.limit - claimed.len();
        let round = pool.write(&Claim { token, wanted, limit, looks }).await?;
        for row in &round.rows {
            claimed.push(claimed_of(row, keyring, token, wanted)?);
        }
        if round.held == 0 || claimed.len() == wanted.limit {
            return Ok((claimed, round.held > 0));
        }
        looks = HELD_AT_ONCE;
    }
    Ok((claimed, true))
}

fn claimed_of(row: &Row, keyring: Option<&Keyring>, token: Token, wanted: &Wanted) -> Result<Claimed, Error> {
    let key = column::<&str>(row, 1)?;
    let payload = sql::open_payload(keyring, key, column(row, 2)?, column(row, 9)?);
    let [first_due, now] = [moment(row, 7)?, moment(row, 8)?];
    Ok(Claimed {
        number: column::<i64>(row, 0)?.unsigned_abs(),
        key: key.into(),
        destination: wanted.destination.clone(),
        payload: payload.map(Option::unwrap_or_default),
        content_type: column::<&str>(row, 3)?.into(),
        group: column::<Option<&str>>(row, 4)?.map(Arc::from),
        delivery: column(row, 5)?,
        failures: column(row, 6)?,
        age: now.since(first_due),
        token,
    })
}

/// One transaction that claims messages of a destination. Messages that another relay is claiming are skipped.
///
/// A message that is behind another is marked as held only while that other one is locked as undelivered. Whoever settles it
/// then waits for this transaction, and wakes the group by a statement that sees the mark: no message is held for nothing.
struct Claim<'a> {
    token: Token,
    wanted: &'a Wanted,
    limit: usize,
    /// How many messages are looked at.
    looks: usize,
}

/// What such a transaction got, and how many messages it found behind others.
struct Round {
    rows: Vec<Row>,
    held: usize,
}

impl Work for Claim<'_> {
    type Answer = Round;

    async fn run(&self, connection: &mut Conn) -> Result<Round, mysql_async::Error> {
        begin(connection).await?;
        let due = self.due(connection).await?;
        let ordered: Vec<i64> = due.iter().filter(|due| due.has_order).map(|due| due.number).collect();
        let ahead = self.ahead(connection, &ordered).await?;
        let blocking = self.blocking(connection, &ahead).await?;
        let behind = ahead.iter().filter(|(_, ahead)| blocking.contains(ahead));
        let held: Vec<Value> = behind.map(|(number, _)| (*number).into()).collect();
        let first = due.iter().filter(|due| !ahead.contains_key(&due.number)).take(self.limit);
        let first: Vec<Value> = first.map(|due| due.number.into()).collect();
        if !held.is_empty() {
            let sql =
                format!("UPDATE onlyonce_outbox SET held = TRUE WHERE number IN ({})", marks(held.len()));
            ask(connection, &sql, held.clone()).await?;
        }
        let rows = if first.is_empty() { Vec::new() } else { self.take(connection, first).await? };
        commit(connection).await?;
        Ok(Round { rows, held: held.len() })
    }
}

/// A message that is due.
struct Due {
    number: i64,
    /// Others may have to go first. One whose claim has lapsed is the one of its group that is under way.
    has_order: bool,
}

impl Claim<'_> {
    /// Relies on the messages' index by due time.
    async fn due(&self, connection: &mut Conn) -> Result<Vec<Due>, mysql_async::Error> {
        const SQL: &str = "
            SELECT number, group_key IS NOT NULL AND state = 'waiting'
            FROM onlyonce_outbox FORCE INDEX (onlyonce_outbox_by_due)
            WHERE destination = ? AND ready_at <= {now} ORDER BY ready_at, number LIMIT ? FOR UPDATE SKIP LOCKED";
        let values = vec![(*self.wanted.destination).into(), at_most(self.looks).into()];
        let rows = ask(connection, &filled(SQL), values).await?.rows;
        let due = |row: &Row| Some(Due { number: column(row, 0).ok()?, has_order: column(row, 1).ok()? });
        Ok(rows.iter().filter_map(due).collect())
    }

    /// The message that must go before each of these, where there is one. Relies on the indexes by group and by state.
    async fn ahead(
        &self,
        connection: &mut Conn,
        numbers: &[i64],
    ) -> Result<HashMap<i64, i64>, mysql_async::Error> {
        if numbers.is_empty() {
            return Ok(HashMap::new());
        }
        let sql = format!(
            "SELECT due.number, COALESCE(
                 (SELECT other.number FROM onlyonce_outbox AS other
                  WHERE other.destination = due.destination AND other.claimed_group = due.group_key),
                 (SELECT min(other.number) FROM onlyonce_outbox AS other
                  WHERE other.destination = due.destination AND other.open_group = due.group_key
                    AND other.number < due.number),
                 (SELECT min(other.number) FROM onlyonce_outbox AS other
                  WHERE ? AND other.state = 'dead' AND other.destination = due.destination
                    AND other.group_key = due.group_key AND other.number < due.number))
             FROM onlyonce_outbox AS due WHERE due.number IN ({})",
            marks(numbers.len())
        );
        let values =
            [self.blocks_on_dead().into()].into_iter().chain(numbers.iter().map(|number| number.into()));
        let rows = ask(connection, &sql, values.collect()).await?.rows;
        let ahead = |row: &Row| Some((column(row, 0).ok()?, column::<Option<i64>>(row, 1).ok()??));
        Ok(rows.iter().filter_map(ahead).collect())
    }

    /// Those of them that are still undelivered, locked. Relies on the primary key.
    async fn blocking(
        &self,
        connection: &mut Conn,
        ahead: &HashMap<i64, i64>,
    ) -> Result<Vec<i64>, mysql_async::Error> {
        if ahead.is_empty() {
            return Ok(Vec::new());
        }
        let sql = format!(
            "SELECT number FROM onlyonce_outbox
             WHERE number IN ({}) AND (state IN ('waiting', 'claimed') OR (? AND state = 'dead'))
             FOR UPDATE SKIP LOCKED",
            marks(ahead.len())
        );
        let values = ahead.values().map(|number| number.into()).chain([self.blocks_on_dead().into()]);
        let rows = ask(connection, &sql, values.collect()).await?.rows;
        Ok(rows.iter().filter_map(|row| column(row, 0).ok()).collect())
    }

    /// Relies on the primary key.
    async fn take(&self, connection: &mut Conn, numbers: Vec<Value>) -> Result<Vec<Row>, mysql_async::Error> {
        let places = marks(numbers.len());
        let update = filled(&format!(
            "UPDATE onlyonce_outbox
             SET state = 'claimed', token = ?, deliveries = deliveries + 1,
                 first_due_at = COALESCE(first_due_at, due_at), due_at = {{now}} + ?
             WHERE number IN ({places})"
        ));
        let select = filled(&format!(
            "SELECT number, `key`, payload, content_type, group_key, deliveries, failures, first_due_at, {{now}}, key_id
             FROM onlyonce_outbox WHERE number IN ({places})"
        ));
        let mut values = vec![self.token.0.into(), span(self.wanted.lease).into()];
        values.extend(numbers.iter().cloned());
        ask(connection, &update, values).await?;
        Ok(ask(connection, &select, numbers).await?.rows)
    }

    fn blocks_on_dead(&self) -> bool {
        self.wanted.on_dead == OnDead::Block
    }
}

/// False if another relay has claimed the message since. A lapsed claim can still settle if no other relay has claimed the
/// message: its delivery was made. The next of its group is looked at again in the same commit.
pub(super) async fn settle(pool: &Pool, claimed: &Claimed, settled: &Settled) -> Result<bool, Error> {
    Ok(pool.write(&Settle { claimed, settled }).await?)
}

struct Settle<'a> {
    claimed: &'a Claimed,
    settled: &'a Settled,
}

impl Work for Settle<'_> {
    type Answer = bool;

    async fn run(&self, connection: &mut Conn) -> Result<bool, mysql_async::Error> {
        let (sql, values) = self.statement();
        let Some(group) = &self.claimed.group else {
            return Ok(ask(connection, &sql, values).await?.changed > 0);
        };
        begin(connection).await?;
        if ask(connection, &sql, values).await?.changed == 0 {
            roll_back(connection).await?;
            return Ok(false);
        }
        wake(connection, (*self.claimed.destination).into(), (**group).into()).await?;
        commit(connection).await?;
        Ok(true)
    }
}

/// A failed delivery, as it is noted with its message.
const TOLD: &str = "JSON_OBJECT(_utf8mb4'at', {now}, _utf8mb4'delivery', deliveries, _utf8mb4'status', ?,
                                _utf8mb4'error', CONVERT(? USING utf8mb4))";

impl Settle<'_> {
    /// Relies on the primary key.
    fn statement(&self) -> (String, Vec<Value>) {
        const DELIVERED: &str = "
            state = 'delivered', token = NULL, payload = NULL, key_id = NULL, delivered_at = {now}, provider_id = ?";
        // An error that does not count takes the place of the one before it, if that said the same.
        const AGAIN: &str = "
            state = 'waiting', token = NULL, due_at = {now} + ?, failures = failures + ?,
            errors = JSON_ARRAY_APPEND(
                IF(? = 0 AND CAST(JSON_UNQUOTE(JSON_EXTRACT(errors, {last error})) AS BINARY) = ?,
                   JSON_REMOVE(errors, {last}), errors),
                _utf8mb4'$', {told})";
        const DEAD: &str = "
            state = 'dead', token = NULL, errors = JSON_ARRAY_APPEND(errors, _utf8mb4'$', {told})";
        let status = |failed: &Failed| Value::from(failed.status);
        let (set, mut values) = match self.settled {
            Settled::Delivered { provider_id } => (DELIVERED, vec![provider_id.as_deref().into()]),
            Settled::Again { after, counts, failed } => {
                let error: Value = (*failed.error).into();
                let values = vec![
                    span(*after).into(),
                    (*counts).into(),
                    (*counts).into(),
                    error.clone(),
                    status(failed),
                    error,
                ];
                (AGAIN, values)
            }
            Settled::Dead { failed } => (DEAD, vec![status(failed), (*failed.error).into()]),
        };
        values.extend([number(self.claimed.number).into(), self.claimed.token.0.into()]);
        // Neither server takes a path of bytes, and not every one knows `$[last]`.
        let last = |rest: &str| {
            format!("CONVERT(CONCAT('$[', GREATEST(JSON_LENGTH(errors), 1) - 1, ']{rest}') USING utf8mb4)")
        };
        let set =
            set.replace("{told}", TOLD).replace("{last error}", &last(".error")).replace("{last}", &last(""));
        (filled(&format!("UPDATE onlyonce_outbox SET {set} WHERE number = ? AND token = ?")), values)
    }
}

/// The first of a group is looked at again. In the transaction of what it waited for, and after that. Relies on the index by
/// group.
async fn wake(connection: &mut Conn, destination: Value, group: Value) -> Result<(), mysql_async::Error> {
    const FIRST: &str = "
        SELECT number FROM onlyonce_outbox FORCE INDEX (onlyonce_outbox_by_group)
        WHERE destination = ? AND open_group = ? ORDER BY number LIMIT 1";
    const WAKE: &str = "UPDATE onlyonce_outbox SET held = FALSE WHERE number = ? AND held";
    let rows = ask(connection, FIRST, vec![destination, group]).await?.rows;
    if let Some(first) = rows.first().and_then(|row| column::<i64>(row, 0).ok()) {
        ask(connection, WAKE, vec![first.into()]).await?;
    }
    Ok(())
}

/// The same for every group with a dead letter. Relies on the index by state and on that by group.
pub(super) async fn pass_dead(pool: &Pool, destination: &str) -> Result<(), Error> {
    const SQL: &str = "
        UPDATE onlyonce_outbox AS message
            JOIN (SELECT min(number) AS number FROM onlyonce_outbox
                  WHERE destination = ? AND open_group IN (
                      SELECT group_key FROM onlyonce_outbox WHERE state = 'dead' AND destination = ?)
                  GROUP BY open_group) AS first ON first.number = message.number
        SET message.held = FALSE WHERE message.held";
    pool.change(SQL, vec![destination.into(), destination.into()]).await?;
    Ok(())
}

/// Each listing relies on the index of its order.
pub(super) async fn list(pool: &Pool, query: &Query) -> Result<Page, Error> {
    const BY_NUMBER: &str = "
        SELECT ?, number, state, destination FROM onlyonce_outbox WHERE number > ? ORDER BY number LIMIT ?";
    const DEAD: &str = "
        SELECT ?, number, state, destination FROM onlyonce_outbox FORCE INDEX (onlyonce_outbox_by_state)
        WHERE state = 'dead' AND number > ? ORDER BY number LIMIT ?";
    const BY_MOMENT: &str = "
        SELECT {at}, number, state, destination FROM onlyonce_outbox FORCE INDEX ({index})
        WHERE {at} >= ? AND ({at} > ? OR number > ?) ORDER BY {at}, number LIMIT ?";
    let after = Place::of(query)?;
    let (at, number) = (Value::from(after.at.as_micros()), Value::from(after.number));
    let by_moment = |at: &str, index: &str| BY_MOMENT.replace("{at}", at).replace("{index}", index);
    let (sql, mut values) = match Order::of(query) {
        Order::Number => (BY_NUMBER.to_owned(), vec![at, number]),
        Order::Dead => (DEAD.to_owned(), vec![at, number]),
        Order::FirstDue => {
            (by_moment("waiting_since", "onlyonce_outbox_by_first_due"), vec![at.clone(), at, number])
        }
        Order::Delivered => {
            (by_moment("delivered_at", "onlyonce_outbox_delivered"), vec![at.clone(), at, number])
        }
    };
    values.push(table::examined_max(query).into());
    let rows = pool.query(&sql, values).await?;
    let examined = rows.iter().map(examined).collect::<Result<Vec<_>, _>>()?;
    let (numbers, next) = table::page(&examined, query);
    let mut items = items(pool, &numbers).await?;
    items.sort_by_key(|item| numbers.iter().position(|number| number.unsigned_abs() == item.number));
    Ok(Page { items, next })
}

fn examined(row: &Row) -> Result<Examined, Error> {
    Ok(Examined {
        place: Place { at: moment(row, 0)?, number: column(row, 1)? },
        state: state(row, 2)?,
        destination: column::<&str>(row, 3)?.to_owned(),
    })
}

pub(super) async fn item(pool: &Pool, of: u64) -> Result<Option<Item>, Error> {
    Ok(items(pool, &[number(of)]).await?.pop())
}

/// Relies on the primary key.
async fn items(pool: &Pool, numbers: &[i64]) -> Result<Vec<Item>, Error> {
    if numbers.is_empty() {
        return Ok(Vec::new());
    }
    let places = marks(numbers.len());
    let values: Vec<Value> = numbers.iter().map(|number| number.into()).collect();
    let messages = format!(
        "SELECT number, `key`, destination, group_key, state, deliveries, created_at, due_at, delivered_at, provider_id,
                record
         FROM onlyonce_outbox WHERE number IN ({places})"
    );
    let errors = format!(
        "SELECT message.number, told.at, told.delivery, told.status, told.error
         FROM onlyonce_outbox AS message, JSON_TABLE(message.errors, '$[*]' COLUMNS (
             place FOR ORDINALITY, at BIGINT PATH '$.at', delivery INT PATH '$.delivery', status INT PATH '$.status',
             error LONGTEXT PATH '$.error')) AS told
         WHERE message.number IN ({places}) ORDER BY message.number, told.place"
    );
    let rows = pool.query(&messages, values.clone()).await?;
    let mut items = rows.iter().map(item_of).collect::<Result<Vec<_>, _>>()?;
    for row in pool.query(&errors, values).await? {
        let number = column::<i64>(&row, 0)?.unsigned_abs();
        if let Some(item) = items.iter_mut().find(|item| item.number == number) {
            item.errors.push(error_of(&row)?);
        }
    }
    Ok(items)
}

fn item_of(row: &Row) -> Result<Item, Error> {
    let record = column::<Option<&[u8]>>(row, 10)?.and_then(|id| id.try_into().ok()).map(Id);
    Ok(Item {
        number: column::<i64>(row, 0)?.unsigned_abs(),
        key: column::<&str>(row, 1)?.into(),
        destination: column::<&str>(row, 2)?.into(),
        group: column::<Option<&str>>(row, 3)?.map(Arc::from),
        state: state(row, 4)?,
        deliveries: column(row, 5)?,
        created_at: moment(row, 6)?,
        due_at: moment(row, 7)?,
        delivered_at: column::<Option<i64>>(row, 8)?.map(Timestamp::from_micros),
        provider_id: column::<Option<&str>>(row, 9)?.map(Arc::from),
        errors: Vec::new(),
        record,
    })
}

fn error_of(row: &Row) -> Result<DeliveryError, Error> {
    let status = column::<Option<i64>>(row, 3)?;
    Ok(DeliveryError {
        at: moment(row, 1)?,
        delivery: column(row, 2)?,
        status: status.and_then(|status| u16::try_from(status).ok()),
        error: column::<&str>(row, 4)?.into(),
    })
}

fn state(row: &Row, place: usize) -> Result<State, Error> {
    let name = column::<&str>(row, place)?;
    State::parse(name).ok_or_else(|| {
        let message = format!("a message has the state \"{name}\", which is none; restore it from a backup");
        Error::new(ErrorKind::Corrupt, message)
    })
}

/// Relies on the primary key.
pub(super) async fn payload(
    pool: &Pool,
    keyring: Option<&Keyring>,
    of: u64,
) -> Result<Option<Payload>, Error> {
    const SQL: &str = "SELECT payload, content_type, `key`, key_id FROM onlyonce_outbox WHERE number = ?";
    let rows = pool.query(SQL, vec![number(of).into()]).await?;
    let payload = |row: &Row| {
        let opened = sql::open_payload(keyring, column(row, 2)?, column(row, 0)?, column(row, 3)?);
        let bytes = opened.map_err(|error| table::unreadable(of, error))?;
        Ok(Payload { bytes, content_type: column::<&str>(row, 1)?.into() })
    };
    rows.first().map(payload).transpose()
}

pub(super) async fn redrive(pool: &Pool, of: u64, entry: &Entry) -> Result<Changed, Error> {
    Ok(pool.write(&Redrive { number: number(of), entry }).await?)
}

struct Redrive<'a> {
    number: i64,
    entry: &'a Entry,
}

impl Work for Redrive<'_> {
    type Answer = Changed;

    /// Relies on the primary key.
    async fn run(&self, connection: &mut Conn) -> Result<Changed, mysql_async::Error> {
        const REDRIVE: &str = "
            UPDATE onlyonce_outbox
            SET state = 'waiting', held = FALSE, failures = 0, due_at = {now}, first_due_at = {now}
            WHERE number = ? AND state = 'dead'";
        begin(connection).await?;
        if ask(connection, &filled(REDRIVE), vec![self.number.into()]).await?.changed > 0 {
            ask(connection, &audit::note(), audit::values(self.entry)).await?;
            commit(connection).await?;
            return Ok(Changed::Applied);
        }
        let sql = "SELECT number FROM onlyonce_outbox WHERE number = ?";
        let rows = ask(connection, sql, vec![self.number.into()]).await?.rows;
        roll_back(connection).await?;
        Ok(if rows.is_empty() { Changed::Absent } else { Changed::Refused })
    }
}

pub(super) async fn discard(pool: &Pool, of: u64, entry: &Entry) -> Result<Changed, Error> {
    Ok(pool.write(&Discard { number: number(of), entry }).await?)
}

struct Discard<'a> {
    number: i64,
    entry: &'a Entry,
}

impl Work for Discard<'_> {
    type Answer = Changed;

    /// Relies on the primary key. The next of its group is looked at again in the same commit.
    async fn run(&self, connection: &mut Conn) -> Result<Changed, mysql_async::Error> {
        const FIND: &str = "
            SELECT state <> 'claimed' OR due_at <= {now}, destination, group_key FROM onlyonce_outbox
            WHERE number = ? FOR UPDATE";
        begin(connection).await?;
        let rows = ask(connection, &filled(FIND), vec![self.number.into()]).await?.rows;
        let refusal = match rows.first().map(|row| column::<bool>(row, 0)) {
            Some(Ok(true)) => None,
            Some(_) => Some(Changed::Refused),
            None => Some(Changed::Absent),
        };
        if let Some(refusal) = refusal {
            roll_back(connection).await?;
            return Ok(refusal);
        }
        ask(connection, "DELETE FROM onlyonce_outbox WHERE number = ?", vec![self.number.into()]).await?;
        ask(connection, &audit::note(), audit::values(self.entry)).await?;
        let of_group = rows.first().map(|row| [row.as_ref(1), row.as_ref(2)]);
        if let Some([Some(destination), Some(group)]) =
            of_group.filter(|[_, group]| *group != Some(&Value::NULL))
        {
            wake(connection, destination.clone(), group.clone()).await?;
        }
        commit(connection).await?;
        Ok(Changed::Applied)
    }
}

/// Relies on the index of delivered messages.
pub(super) async fn prune(pool: &Pool, age: Duration, limit: usize) -> Result<usize, Error> {
    const SQL: &str = "
        DELETE FROM onlyonce_outbox WHERE delivered_at < {now} - ? ORDER BY delivered_at, number LIMIT ?";
    audit::in_batches(pool, SQL, span(age).into(), limit).await
}

/// Relies on the index by state, which is read up to a limit, and on that by first due time.
pub(super) async fn census(pool: &Pool) -> Result<Census, Error> {
    const OLDEST: &str = "
        SELECT number, `key`, destination, waiting_since, {now}
        FROM onlyonce_outbox FORCE INDEX (onlyonce_outbox_by_first_due)
        WHERE waiting_since <= {now} ORDER BY waiting_since, number LIMIT 1";
    let states = State::ALL.map(State::as_str);
    let counts = scan::count_states(pool, &scan::MESSAGES, &states, COUNTED_MAX).await?;
    let rows = pool.query(&filled(OLDEST), Vec::new()).await?;
    let oldest = rows.first().map(oldest).transpose()?;
    Ok(Census { counts: State::ALL.into_iter().zip(counts).collect(), oldest })
}

fn oldest(row: &Row) -> Result<Oldest, Error> {
    let (since, now) = (moment(row, 3)?, moment(row, 4)?);
    Ok(Oldest {
        number: column::<i64>(row, 0)?.unsigned_abs(),
        key: column::<&str>(row, 1)?.into(),
        destination: column::<&str>(row, 2)?.into(),
        since,
        age: now.since(since),
    })
}

/// As its column has it. No message has a greater one.
fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

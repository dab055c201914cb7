//! The messages stored with records.

use std::sync::Arc;
use std::time::Duration;

use onlyonce_core::record::{Id, Token};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::audit::{self, Columns};
use super::pool::{Asked, Pool};
use super::row::{Moment, Span, column, text};
use super::statement::Verb;
use super::url::Database;
use crate::audit::Entry;
use crate::outbox::table::{self, COUNTED_MAX, Examined, HELD_AT_ONCE, Order, Place, ROUNDS_MAX};
use crate::outbox::{
    Census, Changed, Claimed, Claims, DeliveryError, Failed, Item, Oldest, OnDead, Page, Payload, Query,
    Settled, State, Wanted,
};
use crate::seal::Keyring;
use crate::{Count, Error, ErrorKind, sql};

/// Claims what is due. Where some of it is behind other messages, it looks further.
pub(super) async fn claim(
    pool: &Pool,
    keyring: Option<&Keyring>,
    token: Token,
    wanted: &[Wanted],
) -> Result<Claims, Error> {
    let mut claims = Claims::default();
    let mut looks: Vec<(Wanted, usize)> =
        wanted.iter().map(|wanted| (wanted.clone(), wanted.limit)).collect();
    for _ in 0..ROUNDS_MAX {
        let round = match claim_once(pool, keyring, token, &looks).await {
            Ok(round) => round,
            // What earlier rounds have claimed is delivered; nobody else may until the claim lapses.
            Err(_) if !claims.claimed.is_empty() => break,
            Err(error) => return Err(error),
        };
        claims.is_more = !round.held.is_empty();
        for (wanted, looks) in &mut looks {
            let of = |destination: &Arc<str>| *destination == wanted.destination;
            wanted.limit -=
                round.claimed.iter().filter(|claimed| of(&claimed.destination)).count().min(wanted.limit);
            *looks = HELD_AT_ONCE;
        }
        looks.retain(|(wanted, _)| wanted.limit > 0 && round.held.contains(&wanted.destination));
        claims.claimed.extend(round.claimed);
        if looks.is_empty() {
            break;
        }
    }
    Ok(claims)
}

/// What one statement got, and of which destinations it met messages that are behind others.
struct Round {
    claimed: Vec<Claimed>,
    held: Vec<Arc<str>>,
}

async fn claim_once(
    pool: &Pool,
    keyring: Option<&Keyring>,
    token: Token,
    looks: &[(Wanted, usize)],
) -> Result<Round, Error> {
    let destinations: Vec<&str> = looks.iter().map(|(wanted, _)| &*wanted.destination).collect();
    let limits: Vec<i64> = looks.iter().map(|(wanted, _)| at_most(wanted.limit)).collect();
    let examined: Vec<i64> = looks.iter().map(|(_, looks)| at_most(*looks)).collect();
    let leases: Vec<Span> = looks.iter().map(|(wanted, _)| Span::at_most(wanted.lease)).collect();
    let blocks = looks.iter().filter(|(wanted, _)| wanted.on_dead == OnDead::Block);
    let blocks: Vec<&str> = blocks.map(|(wanted, _)| &*wanted.destination).collect();
    let bytes = &token.0[..];
    let parameters: [&(dyn ToSql + Sync); 6] = [&bytes, &destinations, &limits, &examined, &leases, &blocks];
    let rows = pool.write(Asked::Statement(Verb::Claim, &parameters)).await?;
    let mut round = Round { claimed: Vec::new(), held: Vec::new() };
    for row in &rows {
        match column::<bool>(row, 0)? {
            true => round.held.push(column::<&str>(row, 1)?.into()),
            false => round.claimed.push(claimed(row, keyring, token)?),
        }
    }
    Ok(round)
}

fn claimed(row: &Row, keyring: Option<&Keyring>, token: Token) -> Result<Claimed, Error> {
    let key = column::<&str>(row, 3)?;
    let payload = sql::open_payload(keyring, key, column(row, 4)?, column(row, 11)?);
    let [first_due, now] = [column::<Moment>(row, 9)?.0, column::<Moment>(row, 10)?.0];
    Ok(Claimed {
        number: column::<i64>(row, 2)?.unsigned_abs(),
        key: key.into(),
        destination: column::<&str>(row, 1)?.into(),
        payload: payload.map(Option::unwrap_or_default),
        content_type: column::<&str>(row, 5)?.into(),
        group: column::<Option<&str>>(row, 6)?.map(Arc::from),
        delivery: column::<i32>(row, 7)?.unsigned_abs(),
        failures: column::<i32>(row, 8)?.unsigned_abs(),
        age: now.since(first_due),
        token,
    })
}

/// A delivery of a message without a group, which has no message behind it to look at.
pub(super) struct Done {
    number: i64,
    token: Token,
    provider_id: Option<String>,
}

/// Such a delivery, where it is one.
pub(super) fn done(claimed: &Claimed, settled: &Settled) -> Option<Done> {
    match (settled, &claimed.group) {
        (Settled::Delivered { provider_id }, None) => Some(Done {
            number: number(claimed.number),
            token: claimed.token,
            provider_id: provider_id.as_deref().map(|id| text(id).into_owned()),
        }),
        (Settled::Delivered { .. } | Settled::Again { .. } | Settled::Dead { .. }, _) => None,
    }
}

/// Settles all of these in one commit, each with its own answer.
pub(super) async fn deliver_together(pool: &Pool, done: Vec<Done>) -> Vec<Result<bool, Error>> {
    let numbers: Vec<i64> = done.iter().map(|done| done.number).collect();
    let tokens: Vec<&[u8]> = done.iter().map(|done| &done.token.0[..]).collect();
    let provider_ids: Vec<Option<&str>> = done.iter().map(|done| done.provider_id.as_deref()).collect();
    let written = match (&numbers[..], &tokens[..], &provider_ids[..]) {
        ([number], [token], [provider_id]) => {
            pool.write(Asked::Statement(Verb::Deliver, &[number, token, provider_id])).await
        }
        _ => pool.write(Asked::Statement(Verb::DeliverMany, &[&numbers, &tokens, &provider_ids])).await,
    };
    match written {
        Ok(rows) => {
            let written: Vec<i64> = rows.iter().filter_map(|row| column(row, 0).ok()).collect();
            numbers.iter().map(|number| Ok(written.contains(number))).collect()
        }
        Err(failure) => numbers.iter().map(|_| Err(failure.error())).collect(),
    }
}

/// False if another relay has claimed the message since. The next of its group is looked at again in the same commit.
pub(super) async fn settle(pool: &Pool, claimed: &Claimed, settled: &Settled) -> Result<bool, Error> {
    let (number, token) = (number(claimed.number), &claimed.token.0[..]);
    let status = |failed: &Failed| failed.status.map(i32::from);
    let rows = match settled {
        Settled::Delivered { provider_id } => {
            let provider_id = provider_id.as_deref().map(text);
            with_wake(pool, claimed, Verb::Deliver, &[&number, &token, &provider_id]).await?
        }
        Settled::Again { after, counts, failed } => {
            let (status, error, after) = (status(failed), text(&failed.error), Span::at_most(*after));
            let parameters: [&(dyn ToSql + Sync); 6] = [&number, &token, &status, &error, &after, counts];
            with_wake(pool, claimed, Verb::Retry, &parameters).await?
        }
        Settled::Dead { failed } => {
            let (status, error) = (status(failed), text(&failed.error));
            with_wake(pool, claimed, Verb::Bury, &[&number, &token, &status, &error]).await?
        }
    };
    Ok(!rows.is_empty())
}

async fn with_wake(
    pool: &Pool,
    claimed: &Claimed,
    verb: Verb,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Row>, Error> {
    let Some(group) = &claimed.group else {
        return Ok(pool.write(Asked::Statement(verb, parameters)).await?);
    };
    let (destination, group) = (&*claimed.destination, &**group);
    let of_group: [&(dyn ToSql + Sync); 2] = [&destination, &group];
    Ok(pool.write(Asked::Two([(verb, parameters), (Verb::Wake, &of_group)])).await?)
}

pub(super) async fn pass_dead(pool: &Pool, destination: &str) -> Result<(), Error> {
    pool.write(Asked::Statement(Verb::PassDead, &[&text(destination)])).await?;
    Ok(())
}

pub(super) async fn list(pool: &Pool, query: &Query) -> Result<Page, Error> {
    let verb = match Order::of(query) {
        Order::Number => Verb::MessagesByNumber,
        Order::Dead => Verb::MessagesDead,
        Order::FirstDue => Verb::MessagesByFirstDue,
        Order::Delivered => Verb::MessagesDelivered,
    };
    let after = Place::of(query)?;
    let parameters: [&(dyn ToSql + Sync); 3] =
        [&Moment(after.at), &after.number, &table::examined_max(query)];
    let rows = pool.query(verb, &parameters).await?;
    let examined = rows.iter().map(examined).collect::<Result<Vec<_>, _>>()?;
    let (numbers, next) = table::page(&examined, query);
    let mut items = items(pool, &numbers).await?;
    items.sort_by_key(|item| numbers.iter().position(|number| number.unsigned_abs() == item.number));
    Ok(Page { items, next })
}

fn examined(row: &Row) -> Result<Examined, Error> {
    Ok(Examined {
        place: Place { at: column::<Moment>(row, 0)?.0, number: column(row, 1)? },
        state: state(row, 2)?,
        destination: column(row, 3)?,
    })
}

pub(super) async fn item(pool: &Pool, of: u64) -> Result<Option<Item>, Error> {
    Ok(items(pool, &[number(of)]).await?.pop())
}

async fn items(pool: &Pool, numbers: &[i64]) -> Result<Vec<Item>, Error> {
    if numbers.is_empty() {
        return Ok(Vec::new());
    }
    pool.query(Verb::Messages, &[&numbers]).await?.iter().map(item_of).collect()
}

fn item_of(row: &Row) -> Result<Item, Error> {
    let record = column::<Option<&[u8]>>(row, 10)?.and_then(|id| id.try_into().ok()).map(Id);
    Ok(Item {
        number: column::<i64>(row, 0)?.unsigned_abs(),
        key: column::<&str>(row, 1)?.into(),
        destination: column::<&str>(row, 2)?.into(),
        group: column::<Option<&str>>(row, 3)?.map(Arc::from),
        state: state(row, 4)?,
        deliveries: column::<i32>(row, 5)?.unsigned_abs(),
        created_at: column::<Moment>(row, 6)?.0,
        due_at: column::<Moment>(row, 7)?.0,
        delivered_at: column::<Option<Moment>>(row, 8)?.map(|moment| moment.0),
        provider_id: column::<Option<&str>>(row, 9)?.map(Arc::from),
        errors: errors(row)?,
        record,
    })
}

fn state(row: &Row, place: usize) -> Result<State, Error> {
    let name = column::<&str>(row, place)?;
    State::parse(name).ok_or_else(|| {
        let message = format!("a message has the state \"{name}\", which is none; restore it from a backup");
        Error::new(ErrorKind::Corrupt, message)
    })
}

/// The errors from four array columns; all of them null if there was none.
fn errors(row: &Row) -> Result<Vec<DeliveryError>, Error> {
    let moments = column::<Option<Vec<Moment>>>(row, 11)?.unwrap_or_default();
    let deliveries = column::<Option<Vec<i32>>>(row, 12)?.unwrap_or_default();
    let statuses = column::<Option<Vec<Option<i32>>>>(row, 13)?.unwrap_or_default();
    let errors = column::<Option<Vec<&str>>>(row, 14)?.unwrap_or_default();
    let told = moments.into_iter().zip(deliveries).zip(statuses).zip(errors);
    let error = |(((at, delivery), status), error): (((Moment, i32), Option<i32>), &str)| DeliveryError {
        at: at.0,
        delivery: delivery.unsigned_abs(),
        status: status.and_then(|status| u16::try_from(status).ok()),
        error: error.into(),
    };
    Ok(told.map(error).collect())
}

pub(super) async fn payload(
    pool: &Pool,
    keyring: Option<&Keyring>,
    of: u64,
) -> Result<Option<Payload>, Error> {
    let rows = pool.query(Verb::Payload, &[&number(of)]).await?;
    let payload = |row: &Row| {
        let opened = sql::open_payload(keyring, column(row, 2)?, column(row, 0)?, column(row, 3)?);
        let bytes = opened.map_err(|error| table::unreadable(of, error))?;
        Ok(Payload { bytes, content_type: column::<&str>(row, 1)?.into() })
    };
    rows.first().map(payload).transpose()
}

pub(super) async fn redrive(pool: &Pool, of: u64, entry: &Entry) -> Result<Changed, Error> {
    let (number, columns) = (number(of), Columns::of(entry));
    changed(&pool.write(Asked::Statement(Verb::Redrive, &with_number(&number, &columns))).await?)
}

/// The next of its group is looked at again in the same commit.
pub(super) async fn discard(pool: &Pool, of: u64, entry: &Entry) -> Result<Changed, Error> {
    let Some(item) = item(pool, of).await? else { return Ok(Changed::Absent) };
    let (number, columns) = (number(of), Columns::of(entry));
    let parameters = with_number(&number, &columns);
    let rows = match &item.group {
        None => pool.write(Asked::Statement(Verb::Discard, &parameters)).await?,
        Some(group) => {
            let (destination, group) = (&*item.destination, &**group);
            let of_group: [&(dyn ToSql + Sync); 2] = [&destination, &group];
            pool.write(Asked::Two([(Verb::Discard, &parameters), (Verb::Wake, &of_group)])).await?
        }
    };
    changed(&rows)
}

fn with_number<'a>(number: &'a i64, columns: &'a Columns<'_>) -> Vec<&'a (dyn ToSql + Sync)> {
    let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![number];
    parameters.extend(columns.parameters());
    parameters
}

fn changed(rows: &[Row]) -> Result<Changed, Error> {
    match rows.first().map(|row| column::<bool>(row, 0)).transpose()? {
        Some(true) => Ok(Changed::Applied),
        Some(false) => Ok(Changed::Refused),
        None => Ok(Changed::Absent),
    }
}

pub(super) async fn prune(pool: &Pool, age: Duration, limit: usize) -> Result<usize, Error> {
    audit::older(pool, Verb::Prune, age, limit).await
}

pub(super) async fn census(pool: &Pool, database: &Database) -> Result<Census, Error> {
    let table = format!("{}.onlyonce_outbox", database.quoted_schema());
    let rows = pool.query(Verb::CountMessages, &[&COUNTED_MAX, &table]).await?;
    let counts = rows.iter().map(counted).collect::<Result<Vec<_>, _>>()?;
    let rows = pool.query(Verb::OldestMessage, &[]).await?;
    Ok(Census { counts, oldest: rows.first().map(oldest).transpose()? })
}

/// What reached the limit is as many as the statistics say, where they know.
fn counted(row: &Row) -> Result<(State, Count), Error> {
    let (count, told) = (column::<i64>(row, 1)?, column::<Option<i64>>(row, 2)?);
    let count = match told {
        Some(told) if count >= COUNTED_MAX => Count::About(told.max(count).unsigned_abs()),
        None if count >= COUNTED_MAX => Count::Unknown,
        Some(_) | None => Count::Exact(count.unsigned_abs()),
    };
    Ok((state(row, 0)?, count))
}

fn oldest(row: &Row) -> Result<Oldest, Error> {
    let (since, now) = (column::<Moment>(row, 3)?.0, column::<Moment>(row, 4)?.0);
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

fn at_most(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

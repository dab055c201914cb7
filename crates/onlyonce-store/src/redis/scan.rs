//! Listings and counts.
//!
//! There is no index by state, scope or route. A listing of all goes from part to part, by ids; one that is narrowed reads the
//! heads of the records first, and a page of it examines at most [`EXAMINED_MAX`] of them. What is due, and what is unknown or
//! waits to begin, has a list of its own.

use std::time::Duration;

use onlyonce_core::machine;
use onlyonce_core::record::{Id, Record, StateName};
use onlyonce_core::time::Timestamp;
use redis::Pipeline;

use super::due::Reading;
use super::layout::{Head, Keys, bucket_of, buckets};
use super::list::{self, Span};
use super::{Redis, script};
use crate::listing::{Digests, Found, Place};
use crate::{Alive, Count, Error, Order, Page, Query, Search};

/// How many records a page of a narrowed listing examines.
const EXAMINED_MAX: usize = 2_000;
/// Up to so many records are counted one by one; of more, so many of each part tell how many there are of each state.
const COUNTED_MAX: usize = 5_000;
const SAMPLED: usize = 20;
/// The moment in the places of a listing by id: the same for all.
const ALIKE: Timestamp = Timestamp::from_micros(0);
/// Later than every moment in a list.
const END: Timestamp = Timestamp::from_micros(i64::MAX);

/// A record that was found: its value, and the store's now.
type Value = (Id, Vec<u8>, Timestamp);

/// A page of records. A listing for workers (due, unknown) skips records that cannot be decoded, so that a damaged one does
/// not block all others; a listing for people returns the error.
pub(super) async fn list(redis: &Redis, query: &Query) -> Result<Page, Error> {
    let after = Place::of(query)?;
    let found = match query.order {
        Order::Any => any(redis, query, Place::or_start(after)).await?,
        Order::Due => due(redis, query, Place::or_start(after)).await?,
        Order::UnknownSince => since(redis, query, Place::or_start(after), machine::unknown_since).await?,
        Order::PendingSince => since(redis, query, Place::or_start(after), machine::pending_since).await?,
        // Nothing is archived here.
        Order::Archived => Found::all(Vec::new()),
    };
    found.read(query, |(id, value, now)| Ok((id, redis.seen(id, &value, now)?)))
}

/// All, by id. What the beginning of an id is looked for comes first: its places have the earliest moment.
async fn any(redis: &Redis, query: &Query, after: Place) -> Result<Found<Value>, Error> {
    let digests = query.search.as_ref().and_then(Search::digests);
    let mut found = Found::all(Vec::new());
    if let Some(digests) = digests
        && after.at == Place::START.at
    {
        let ids = list::ids(&redis.background, &redis.keys, digests.first[0]).await?;
        let ids: Vec<Id> = ids.into_iter().filter(|id| *id > after.id && is_among(*id, &digests)).collect();
        add(redis, query, &mut found, &ids, Place::START.at).await?;
    }
    // After what was found by its id, the listing begins anew.
    let after = if after.at == ALIKE { after.id } else { Place::START.id };
    let mut examined = 0;
    for bucket in bucket_of(after)..=u8::MAX {
        let ids = list::ids(&redis.background, &redis.keys, bucket).await?;
        let is_left = |id: &Id| *id > after && digests.is_none_or(|digests| !is_among(*id, &digests));
        let ids: Vec<Id> = ids.into_iter().filter(is_left).collect();
        for some in ids.chunks(EXAMINED_MAX) {
            if found.records.len() > query.limit {
                return Ok(found);
            }
            add(redis, query, &mut found, some, ALIKE).await?;
            examined += some.len();
            if query.is_narrow() && examined >= EXAMINED_MAX {
                found.examined = some.last().map(|id| Place { at: ALIKE, id: *id });
                return Ok(found);
            }
        }
    }
    Ok(found)
}

fn is_among(id: Id, digests: &Digests) -> bool {
    (digests.first..=digests.last).contains(&id.0)
}

/// Adds those of these records that the query is about, up to one more than a page.
async fn add(
    redis: &Redis,
    query: &Query,
    found: &mut Found<Value>,
    ids: &[Id],
    at: Timestamp,
) -> Result<(), Error> {
    let heads = list::heads(&redis.background, &redis.keys, ids).await?;
    let mut fitting = Vec::new();
    for (id, head) in ids.iter().zip(heads) {
        if head.transpose()?.is_some_and(|head| fits(query, &head)) {
            fitting.push(Place { at, id: *id });
        }
    }
    take(redis, query, found, &fitting).await
}

/// Reads records in order, and takes those that the query is about, up to one more than a page.
async fn take(redis: &Redis, query: &Query, found: &mut Found<Value>, places: &[Place]) -> Result<(), Error> {
    let mut left = places;
    while found.records.len() < query.one_more() && !left.is_empty() {
        let wanted = (query.one_more() - found.records.len()).min(left.len());
        let (some, rest) = left.split_at(wanted);
        left = rest;
        let ids: Vec<Id> = some.iter().map(|place| place.id).collect();
        let values = list::records(&redis.background, &redis.keys, &ids).await?;
        for value in values {
            let place = some.iter().find(|place| place.id == value.0);
            if let Some(place) = place.filter(|_| covers(redis, query, &value)) {
                found.records.push((*place, value));
            }
        }
    }
    Ok(())
}

/// Whether the head of a record does not leave it out.
fn fits(query: &Query, head: &Head) -> bool {
    query.states.contains(head.state) && query.scope.is_none_or(|scope| scope == head.scope)
}

/// Whether the query is about a record. One that cannot be read is not left out here.
fn covers(redis: &Redis, query: &Query, (id, value, now): &Value) -> bool {
    match redis.seen(*id, value, *now) {
        Ok(seen) => query.covers(&seen.record),
        Err(error) => error.unreadable().is_none_or(|unreadable| query.covers(&unreadable.record)),
    }
}

async fn due(redis: &Redis, query: &Query, after: Place) -> Result<Found<Value>, Error> {
    let until = redis.now().await?;
    let mut reading = Reading::new(redis, after, until);
    let mut found = Found::all(Vec::new());
    while found.records.len() < query.one_more() {
        let Some(due) = reading.next(query.one_more()).await? else { break };
        let fitting = due.into_iter().filter(|(_, head)| fits(query, head)).map(|(place, _)| place);
        let fitting: Vec<Place> = fitting.collect();
        take(redis, query, &mut found, &fitting).await?;
    }
    Ok(found)
}

/// What is open, by since when. Entries of what no longer is are taken off the list.
async fn since(
    redis: &Redis,
    query: &Query,
    after: Place,
    since: fn(&Record) -> Option<Timestamp>,
) -> Result<Found<Value>, Error> {
    let span = Span { list: Keys::open, after, until: END };
    let entries = span.first(&redis.background, &redis.keys, EXAMINED_MAX).await?;
    let mut found = Found::all(Vec::new());
    let mut closed = Vec::new();
    for some in entries.chunks(query.one_more().max(1)) {
        if found.records.len() > query.limit {
            break;
        }
        let ids: Vec<Id> = some.iter().map(|place| place.id).collect();
        let values = list::records(&redis.background, &redis.keys, &ids).await?;
        closed
            .extend(ids.iter().filter(|id| values.iter().all(|value| value.0 != **id)).map(|id| (*id, None)));
        for value in values {
            let Some(place) = some.iter().find(|place| place.id == value.0) else { continue };
            let seen = redis.seen(value.0, &value.1, value.2);
            let record = match &seen {
                Ok(seen) => Some(&seen.record),
                Err(error) => error.unreadable().map(|unreadable| &unreadable.record),
            };
            let Some(record) = record else {
                found.records.push((*place, value));
                continue;
            };
            if since(record).is_some() && query.covers(record) {
                found.records.push((*place, value));
            } else if machine::unknown_since(record).is_none() && !machine::is_accepted(record) {
                closed.push((value.0, Head::read(value.0, &value.1).ok()));
            }
        }
    }
    if entries.len() == EXAMINED_MAX {
        found.examined = entries.last().copied();
    }
    close(redis, &closed).await?;
    Ok(found)
}

/// Takes records off the list of what is open, unless they were written meanwhile.
async fn close(redis: &Redis, closed: &[(Id, Option<Head>)]) -> Result<(), Error> {
    if closed.is_empty() {
        return Ok(());
    }
    let mut trip = Pipeline::new();
    for (id, head) in closed {
        let keys = [redis.keys.open(bucket_of(*id)), redis.keys.record(*id)];
        let revision = head.map_or_else(String::new, |head| super::layout::revision_text(head.revision));
        script::call(&mut trip, &script::UNLIST, &keys).arg(revision).arg(&id.0);
    }
    let mut answers = redis.background.ask(trip).await?;
    for _ in closed {
        answers.integer_unless_moving()?;
    }
    Ok(())
}

/// How many records there are in each state: all are counted where they are few, and some of each part where they are many.
pub(super) async fn count(redis: &Redis) -> Result<Vec<(StateName, Count)>, Error> {
    let mut trip = Pipeline::new();
    for bucket in buckets() {
        trip.cmd("ZCARD").arg(redis.keys.due(bucket));
    }
    let mut answers = redis.background.ask(trip).await?;
    let mut total = 0;
    for _ in buckets() {
        total += usize::try_from(answers.integer()?).unwrap_or(0);
    }
    let is_sampled = total > COUNTED_MAX;
    let size = if is_sampled { SAMPLED } else { total };
    let mut trip = Pipeline::new();
    for bucket in buckets() {
        trip.cmd("ZRANDMEMBER").arg(redis.keys.due(bucket)).arg(size);
    }
    let mut answers = redis.background.ask(trip).await?;
    let mut ids = Vec::new();
    for _ in buckets() {
        ids.extend(answers.strings()?.into_iter().filter_map(|id| id.try_into().ok().map(Id)));
    }
    let mut counts = StateName::ALL.map(|state| (state, 0));
    for head in list::heads(&redis.background, &redis.keys, &ids).await?.into_iter().flatten() {
        counts[head?.state as usize].1 += 1;
    }
    let count = |counted: usize| match is_sampled {
        false => Count::Exact(counted as u64),
        true => Count::About((counted * total / ids.len().max(1)) as u64),
    };
    Ok(counts.into_iter().map(|(state, counted)| (state, count(counted))).collect())
}

/// How many records have not expired, counted up to `limit`. It reads the head of every record: there is no index by scope.
pub(super) async fn count_alive(redis: &Redis, scope: Option<[u8; 32]>, limit: u64) -> Result<Alive, Error> {
    let (mut count, mut next_expiry) = (0, None::<Duration>);
    for bucket in buckets() {
        if count >= limit {
            break;
        }
        let ids = list::ids(&redis.background, &redis.keys, bucket).await?;
        let now = redis.now().await?;
        for head in list::heads(&redis.background, &redis.keys, &ids).await?.into_iter().flatten() {
            let head = head?;
            if head.may_reap(now) || scope.is_some_and(|scope| scope != head.scope) {
                continue;
            }
            count += 1;
            let left = head.expires_at.map(|expires_at| expires_at.since(now));
            next_expiry = next_expiry.into_iter().chain(left).min();
        }
    }
    Ok(Alive { count: count.min(limit), next_expiry: next_expiry.filter(|_| scope.is_some()) })
}

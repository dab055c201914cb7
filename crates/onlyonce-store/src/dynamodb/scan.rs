//! Listings and counts.
//!
//! What is due, unknown or accepted is found by an index. Every other listing reads the table, part by part: a page of it
//! examines at most [`EXAMINED_MAX`] items, for each of which somebody pays.

use std::time::Duration;

use onlyonce_core::machine;
use onlyonce_core::record::{Id, Record, StateName};
use onlyonce_core::time::Timestamp;
use serde_json::{Value, json};

use super::DynamoDb;
use super::index::Span;
use super::layout::{HEAD, List, Stored};
use super::read::{For, in_list};
use super::url::Reap;
use super::value::{Item, names, of_text};
use crate::listing::{Found, Place, foreign};
use crate::{Alive, Count, Cursor, Error, Order, Page, Query, Search};

/// How many items a page of a listing examines.
const EXAMINED_MAX: usize = 2_000;
/// At least and at most so many entries of an index are read at once.
const ENTRIES_MIN: usize = 20;
const ENTRIES_MAX: usize = 500;
/// Later than every moment in an index.
const END: Timestamp = Timestamp::from_micros(i64::MAX);

pub(super) async fn list(store: &DynamoDb, query: &Query) -> Result<Page, Error> {
    if query.order == Order::Any {
        return any(store, query).await;
    }
    let after = Place::or_start(Place::of(query)?);
    let now = store.client.clock.now();
    let found = match query.order {
        // What DynamoDB deletes by itself is due for nobody.
        Order::Due if store.reaping() == Reap::Ttl => {
            listed(store, query, &[List::Due], after, now, None).await?
        }
        Order::Due => listed(store, query, &[List::Due, List::Reap], after, now, None).await?,
        Order::UnknownSince => {
            listed(store, query, &[List::Unknown], after, END, Some(machine::unknown_since)).await?
        }
        Order::PendingSince => {
            listed(store, query, &[List::Pending], after, END, Some(machine::pending_since)).await?
        }
        // Nothing is archived here.
        Order::Any | Order::Archived => Found::all(Vec::new()),
    };
    found.read(query, |stored: Stored| Ok((stored.id, store.seen(&stored)?)))
}

type Since = fn(&Record) -> Option<Timestamp>;

/// What an index names, in order. Each record is read again: it counts where it still stands at the place that the index names.
async fn listed(
    store: &DynamoDb,
    query: &Query,
    lists: &[List],
    after: Place,
    until: Timestamp,
    since: Option<Since>,
) -> Result<Found<Stored>, Error> {
    let [_, shard_name, at_name] = lists[0].index();
    let mut span = Span { lists, after, until };
    let mut found = Found::all(Vec::new());
    let mut examined = 0;
    while found.records.len() < query.one_more() {
        let entries = span.first(store, query.one_more().clamp(ENTRIES_MIN, ENTRIES_MAX)).await?;
        let Some(last) = entries.last().copied() else { break };
        let keys = entries.iter().map(|entry| Item::key(&entry.id.0, HEAD)).collect();
        let mut items: Vec<_> =
            store.items(For::Background, keys).await?.into_iter().filter_map(Stored::of).collect();
        items.retain(|stored| stored.item.has(shard_name));
        for entry in &entries {
            let is_there = |stored: &Stored| {
                stored.id == entry.id && stored.item.number(at_name) == Some(entry.at.as_micros())
            };
            let Some(place) = items.iter().position(is_there) else { continue };
            let stored = store.with_pieces(For::Background, items.swap_remove(place)).await?;
            if found.records.len() < query.one_more() && covers(store, query, &stored, since) {
                found.records.push((*entry, stored));
            }
        }
        span.after = last;
        examined += entries.len();
        // Workers are shown all that is due.
        if since.is_some() && examined >= EXAMINED_MAX {
            found.examined = Some(last);
            break;
        }
    }
    Ok(found)
}

/// Whether the query is about a record. One that cannot be read is not left out here.
fn covers(store: &DynamoDb, query: &Query, stored: &Stored, since: Option<Since>) -> bool {
    let fits = |record: &Record| query.covers(record) && since.is_none_or(|since| since(record).is_some());
    match store.seen(stored) {
        Ok(seen) => fits(&seen.record),
        Err(error) => error.unreadable().is_none_or(|unreadable| fits(&unreadable.record)),
    }
}

/// All, in the order of the table. A record whose whole id is looked for comes first.
async fn any(store: &DynamoDb, query: &Query) -> Result<Page, Error> {
    let sought = query.search.as_ref().and_then(Search::digests);
    let sought = sought.filter(|digests| digests.first == digests.last).map(|digests| Id(digests.first));
    let start = match &query.after {
        None => Start::Beginning,
        Some(cursor) => Start::of(cursor)?,
    };
    let mut records = Vec::new();
    if let (Start::Beginning, Some(id)) = (&start, sought) {
        let stored =
            store.stored(For::Background, id).await?.filter(|stored| covers(store, query, stored, None));
        records.extend(stored);
        if records.len() >= query.limit.max(1) {
            return page(store, query, records, Some(Start::Table.cursor()));
        }
    }
    let mut from = match start {
        Start::Beginning | Start::Table => None,
        Start::After(key) => Some(key),
    };
    let mut examined = 0;
    loop {
        let wanted = query.limit.saturating_sub(records.len()).saturating_add(1);
        let limit =
            if query.is_narrow() { EXAMINED_MAX - examined } else { wanted.min(EXAMINED_MAX - examined) };
        let part = store.table_part(from.take(), limit, None).await?;
        examined += part.examined.max(1);
        for stored in part.items.into_iter().filter_map(Stored::of) {
            if Some(stored.id) == sought {
                continue;
            }
            let stored = store.with_pieces(For::Background, stored).await?;
            if !covers(store, query, &stored, None) {
                continue;
            }
            if records.len() == query.limit {
                let next =
                    records.last().map(|last: &Stored| Start::After(Item::key(&last.id.0, HEAD)).cursor());
                return page(store, query, records, next);
            }
            records.push(stored);
        }
        let Some(next) = part.next else { return page(store, query, records, None) };
        if examined >= EXAMINED_MAX {
            return page(store, query, records, Some(Start::After(next).cursor()));
        }
        from = Some(next);
    }
}

fn page(store: &DynamoDb, query: &Query, records: Vec<Stored>, next: Option<Cursor>) -> Result<Page, Error> {
    let records = records.into_iter().map(|stored| (Place { at: END, id: stored.id }, stored)).collect();
    let page = Found::all(records).read(query, |stored: Stored| Ok((stored.id, store.seen(&stored)?)))?;
    Ok(Page { next, ..page })
}

/// Where a page of the table begins.
enum Start {
    Beginning,
    /// Behind what was found by its id.
    Table,
    /// Behind the item with this key.
    After(Item),
}

impl Start {
    fn cursor(&self) -> Cursor {
        match self {
            Self::Beginning | Self::Table => Cursor(Box::from(&b"t"[..])),
            Self::After(key) => {
                let (id, part) = (key.bytes("id").unwrap_or_default(), key.text("part").unwrap_or_default());
                let length = [u8::try_from(id.len()).unwrap_or(0)];
                Cursor([b"a", &length[..], &id, part.as_bytes()].concat().into())
            }
        }
    }

    fn of(cursor: &Cursor) -> Result<Self, Error> {
        match cursor.0.split_first() {
            Some((b't', [])) => Ok(Self::Table),
            Some((b'a', rest)) => {
                let (length, rest) = rest.split_first().ok_or_else(foreign)?;
                let (id, part) = rest.split_at_checked((*length).into()).ok_or_else(foreign)?;
                let part = str::from_utf8(part).map_err(|_| foreign())?;
                Ok(Self::After(Item::key(id, part)))
            }
            _ => Err(foreign()),
        }
    }
}

/// Some items of the table, and where to go on.
pub(super) struct TablePart {
    pub(super) items: Vec<Item>,
    pub(super) examined: usize,
    pub(super) next: Option<Item>,
}

/// A filter of items that the server applies.
pub(super) struct Filter<'a> {
    pub(super) expression: &'a str,
    pub(super) names: &'a [&'a str],
    pub(super) values: Value,
}

impl DynamoDb {
    /// Records among the next `limit` items of the table, narrowed further where there is a filter.
    pub(super) async fn table_part(
        &self,
        from: Option<Item>,
        limit: usize,
        filter: Option<&Filter<'_>>,
    ) -> Result<TablePart, Error> {
        let is_record = "#part = :head AND attribute_exists(#state)";
        let mut body = json!({ "TableName": self.table(), "Limit": limit.max(1) });
        let mut of_names = vec!["part", "state"];
        body["FilterExpression"] = is_record.into();
        body["ExpressionAttributeValues"] = json!({ ":head": of_text(HEAD) });
        if let Some(filter) = filter {
            body["FilterExpression"] = format!("{is_record} AND {}", filter.expression).into();
            of_names.extend(filter.names);
            for (name, value) in filter.values.as_object().into_iter().flatten() {
                body["ExpressionAttributeValues"][name] = value.clone();
            }
        }
        body["ExpressionAttributeNames"] = names(&of_names);
        self.scan_part(body, from).await
    }

    /// A call of `Scan`.
    pub(super) async fn scan_part(&self, mut body: Value, from: Option<Item>) -> Result<TablePart, Error> {
        if let Some(from) = from {
            body["ExclusiveStartKey"] = from.value();
        }
        let answer = self.call(For::Background, "Scan", &body).await?;
        Ok(TablePart {
            items: in_list(&answer["Items"]).collect(),
            examined: answer["ScannedCount"]
                .as_u64()
                .and_then(|count| usize::try_from(count).ok())
                .unwrap_or(0),
            next: answer["LastEvaluatedKey"].as_object().map(|key| Item(key.clone())),
        })
    }
}

/// Nobody knows without reading the table, and reading it costs money.
pub(super) fn count() -> Vec<(StateName, Count)> {
    StateName::ALL.map(|state| (state, Count::Unknown)).into()
}

/// How many records have not expired, counted up to `limit`. It reads the table: there is no index by scope.
pub(super) async fn count_alive(
    store: &DynamoDb,
    scope: Option<[u8; 32]>,
    limit: u64,
) -> Result<Alive, Error> {
    let (mut count, mut next_expiry, mut from) = (0, None::<Duration>, None);
    while count < limit {
        let part = store.table_part(from, EXAMINED_MAX, None).await?;
        let now = store.client.clock.now();
        for stored in part.items.into_iter().filter_map(Stored::of) {
            let is_other =
                scope.is_some_and(|scope| stored.item.bytes("scope").as_deref() != Some(&scope[..]));
            if stored.may_reap(now) || is_other {
                continue;
            }
            count += 1;
            let left =
                stored.item.number("reap_at").map(|reap_at| Timestamp::from_micros(reap_at).since(now));
            next_expiry = next_expiry.into_iter().chain(left).min();
        }
        from = part.next;
        if from.is_none() {
            break;
        }
    }
    Ok(Alive { count: count.min(limit), next_expiry: next_expiry.filter(|_| scope.is_some()) })
}

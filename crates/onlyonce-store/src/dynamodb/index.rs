//! What the indexes name, in order.
//!
//! An index is divided by the ids, so that no part of it takes every write. All parts are read side by side. An index follows
//! its table within a second or so: what it names is read again, and what it does not name yet is found next time.

use std::sync::Arc;

use onlyonce_core::record::Id;
use onlyonce_core::time::Timestamp;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::layout::List;
use super::read::{For, in_list};
use super::value::{Item, names, of_number, of_text};
use super::{DynamoDb, client::Client};
use crate::listing::Place;
use crate::{Error, ErrorKind};

/// How many pages of one part are read at most, where they all have the same moment.
const PAGES_MAX: usize = 1_000;

/// Entries of lists of one index, after `after` and up to `until`.
pub(super) struct Span<'a> {
    pub(super) lists: &'a [List],
    pub(super) after: Place,
    pub(super) until: Timestamp,
}

/// The entries of one part.
struct Part {
    entries: Vec<Place>,
    /// There may be more entries at this moment, and after it.
    more_at: Option<Timestamp>,
}

impl Span<'_> {
    /// The first entries in order: about `count`, or all where there are fewer. None where there are no more.
    pub(super) async fn first(&self, store: &DynamoDb, count: usize) -> Result<Vec<Place>, Error> {
        if self.until < self.after.at {
            return Ok(Vec::new());
        }
        let mut reading = JoinSet::new();
        for list in self.lists {
            for shard in 0..store.shards {
                let (client, within) = (store.client.clone(), store.within(For::Background));
                let (after, until, list) = (self.after, self.until, *list);
                reading.spawn(async move { read(&client, within, list, shard, after, until, count).await });
            }
        }
        let (mut entries, mut bound) = (Vec::new(), None::<Timestamp>);
        while let Some(part) = reading.join_next().await {
            let ended =
                |error| Error::new(ErrorKind::Unavailable, "a part of an index was not read").because(error);
            let part = part.map_err(ended)??;
            entries.extend(part.entries);
            bound = bound.into_iter().chain(part.more_at).min();
        }
        // What lies at or after the end of a part that has more may not be complete.
        entries.retain(|entry| bound.is_none_or(|bound| entry.at < bound));
        entries.sort_unstable();
        entries.truncate(count);
        Ok(entries)
    }
}

async fn read(
    client: &Arc<Client>,
    within: std::time::Duration,
    list: List,
    shard: u8,
    after: Place,
    until: Timestamp,
    count: usize,
) -> Result<Part, Error> {
    let [index, shard_name, at_name] = list.index();
    let mut body = json!({
        "TableName": client.database.table,
        "IndexName": index,
        "KeyConditionExpression": format!("#{shard_name} = :shard AND #{at_name} BETWEEN :from AND :until"),
        "ExpressionAttributeNames": names(&[shard_name, at_name]),
        "ExpressionAttributeValues": {
            ":shard": of_text(&list.shard(shard)),
            ":from": of_number(after.at.as_micros()),
            ":until": of_number(until.as_micros()),
        },
        // One more: the entry that the last page ended with is read again.
        "Limit": count.saturating_add(1),
    });
    let mut entries = Vec::new();
    for _ in 0..PAGES_MAX {
        let answer = client.call(within, "Query", &body).await?;
        entries.extend(in_list(&answer["Items"]).filter_map(|item| entry(&item, at_name)));
        let last = entries.iter().map(|entry: &Place| entry.at).max();
        let next = &answer["LastEvaluatedKey"];
        if next.is_null() {
            entries.retain(|entry| *entry > after);
            return Ok(Part { entries, more_at: None });
        }
        if entries.iter().any(|entry| *entry > after && Some(entry.at) < last) {
            entries.retain(|entry| *entry > after);
            return Ok(Part { entries, more_at: last });
        }
        body["ExclusiveStartKey"] = next.clone();
    }
    let message =
        format!("more than {PAGES_MAX} pages of index \"{index}\" have one moment; see who writes them");
    Err(Error::new(ErrorKind::Other, message))
}

fn entry(item: &Item, at_name: &str) -> Option<Place> {
    let at = Timestamp::from_micros(item.number(at_name)?);
    Some(Place { at, id: Id(item.bytes("id")?.try_into().ok()?) })
}

/// How many requests of accepted work there are, counted up to `limit`.
pub(super) async fn count_requests(store: &DynamoDb, limit: usize) -> Result<usize, Error> {
    let mut counting = JoinSet::new();
    for shard in 0..store.shards {
        let (client, within) = (store.client.clone(), store.within(For::Background));
        counting.spawn(async move { count(&client, within, shard, limit).await });
    }
    let mut total: usize = 0;
    while let Some(count) = counting.join_next().await {
        let ended =
            |error| Error::new(ErrorKind::Unavailable, "a part of an index was not read").because(error);
        total = total.saturating_add(count.map_err(ended)??);
    }
    Ok(total.min(limit))
}

async fn count(
    client: &Client,
    within: std::time::Duration,
    shard: u8,
    limit: usize,
) -> Result<usize, Error> {
    let [index, shard_name, _] = List::Request.index();
    let mut body = json!({
        "TableName": client.database.table,
        "IndexName": index,
        "Select": "COUNT",
        "KeyConditionExpression": format!("#{shard_name} = :shard"),
        "ExpressionAttributeNames": names(&[shard_name]),
        "ExpressionAttributeValues": { ":shard": of_text(&List::Request.shard(shard)) },
    });
    let mut total: usize = 0;
    loop {
        let answer = client.call(within, "Query", &body).await?;
        total += answer["Count"].as_u64().and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
        if total >= limit || answer["LastEvaluatedKey"].is_null() {
            return Ok(total);
        }
        body["ExclusiveStartKey"] = Value::clone(&answer["LastEvaluatedKey"]);
    }
}

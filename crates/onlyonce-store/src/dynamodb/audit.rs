//! The log of what operators changed.
//!
//! Entries stand behind one id in the order of time, so that they are listed as they stand there now, and beside each stands
//! an item with its id: what is sent twice is written once. Both are written in the transaction of the change.

use std::time::Duration;

use onlyonce_core::time::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::DynamoDb;
use super::failure::{CONDITION, Fault};
use super::layout::{ENTRY, LOG};
use super::read::{For, in_list};
use super::value::{Item, names, of_bytes, of_text};
use crate::audit::table::{self, COLUMNS, EXAMINED_MAX, Part, Place, TEXTS};
use crate::audit::{Entry, Page, Query, Written};
use crate::{Error, ErrorKind};

/// The digits of a moment and of a number: so wide that their texts have their order.
const MOMENT_DIGITS: usize = 19;

/// The parts of a transaction that write an entry. The first has the condition that it is not there yet.
pub(super) fn puts(store: &DynamoDb, entry: &Entry, at: Timestamp) -> [Value; 2] {
    let place = Place { at, number: number(&entry.id) };
    let part = format!("{}.{}", text_of(place), entry.id);
    let mut marker = Item::key(ENTRY, &entry.id);
    marker.put_text("entry", &part);
    let put = |item: Item| json!({ "TableName": store.table(), "Item": item.value() });
    let mut first = put(marker);
    first["ConditionExpression"] = "attribute_not_exists(#id)".into();
    first["ExpressionAttributeNames"] = names(&["id"]);
    [json!({ "Put": first }), json!({ "Put": put(item(entry, &part)) })]
}

/// An entry: an attribute for each column, of the same name. `id` is the table's own name, so the entry's is `entry_id`.
fn item(entry: &Entry, part: &str) -> Item {
    let mut item = Item::key(LOG, part);
    for (name, text) in columns().zip(table::texts(entry)) {
        if let Some(text) = text {
            item.put_text(name, &text);
        }
    }
    item.put_flag("forced", entry.forced);
    item
}

fn columns() -> impl Iterator<Item = &'static str> {
    let name = |name: &'static str| if name == "id" { "entry_id" } else { name };
    COLUMNS.split(", ").take(TEXTS).map(name)
}

fn read(item: &Item) -> Result<(Place, Written), Error> {
    let part = item.text("part").unwrap_or_default();
    let place = place_of(part).ok_or_else(|| {
        let message = format!("entry \"{part}\" of the log has no moment; restore it from a backup");
        Error::new(ErrorKind::Corrupt, message)
    })?;
    let names: Vec<_> = columns().collect();
    let text = |place: usize| Ok::<_, Error>(item.text(names[place]).map(Into::into));
    let entry = table::entry(text, item.flag("forced").unwrap_or(false))?;
    Ok((place, Written { at: place.at, entry }))
}

/// What orders entries of the same moment: not negative.
fn number(id: &str) -> i64 {
    let digest = Sha256::digest(id);
    i64::from_be_bytes(*digest.first_chunk().expect("a SHA-256 digest has 32 bytes")) & i64::MAX
}

fn text_of(place: Place) -> String {
    let (at, number) = (place.at.as_micros().max(0), place.number.max(0));
    format!("{at:0MOMENT_DIGITS$}.{number:0MOMENT_DIGITS$}")
}

fn place_of(part: &str) -> Option<Place> {
    let mut words = part.splitn(3, '.');
    let at = Timestamp::from_micros(words.next()?.parse().ok()?);
    Some(Place { at, number: words.next()?.parse().ok()? })
}

/// Writes an entry by itself.
pub(super) async fn write(store: &DynamoDb, entry: &Entry) -> Result<(), Error> {
    let body = json!({ "TransactItems": puts(store, entry, store.client.clock.now()) });
    match store.call(For::Requests, "TransactWriteItems", &body).await {
        Ok(_) => Ok(()),
        Err(Fault::Cancelled(reasons)) if reasons.first().is_some_and(|reason| reason.code == CONDITION) => {
            Ok(())
        }
        Err(fault) => Err(fault.into()),
    }
}

/// Entries, newest first.
pub(super) async fn list(store: &DynamoDb, query: &Query) -> Result<Page, Error> {
    let part = Part::of(query)?;
    let page = query.limit.saturating_add(1).min(EXAMINED_MAX);
    let count = if query.is_narrow() { EXAMINED_MAX } else { page };
    let (mut found, mut examined, mut last) = (Vec::new(), 0, None);
    let mut from = None;
    while examined < count && found.len() <= query.limit {
        let (items, next) =
            entries(store, part.from, part.before, Toward::Older, count - examined, from).await?;
        examined += items.len().max(1);
        for item in items {
            let (place, written) = read(&item)?;
            if place >= part.before || place < part.from {
                continue;
            }
            last = Some(place);
            if query.covers(&written) {
                found.push((place, written));
            }
        }
        from = next;
        if from.is_none() {
            last = None;
            break;
        }
    }
    found.truncate(query.limit.saturating_add(1));
    Ok(table::page(found, query.limit, last))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Toward {
    Older,
    Newer,
}

/// Entries between two places, both included, and where to go on.
async fn entries(
    store: &DynamoDb,
    from: Place,
    until: Place,
    toward: Toward,
    limit: usize,
    start: Option<Value>,
) -> Result<(Vec<Item>, Option<Value>), Error> {
    if until < from {
        return Ok((Vec::new(), None));
    }
    let mut body = json!({
        "TableName": store.table(),
        "ConsistentRead": true,
        "KeyConditionExpression": "#id = :log AND #part BETWEEN :from AND :until",
        "ExpressionAttributeNames": names(&["id", "part"]),
        "ExpressionAttributeValues": {
            ":log": of_bytes(LOG),
            ":from": of_text(&text_of(from)),
            // After every entry of that place.
            ":until": of_text(&format!("{}/", text_of(until))),
        },
        "ScanIndexForward": toward == Toward::Newer,
        "Limit": limit.max(1),
    });
    if let Some(start) = start {
        body["ExclusiveStartKey"] = start;
    }
    let answer = store.call(For::Background, "Query", &body).await?;
    let next = Some(answer["LastEvaluatedKey"].clone()).filter(|next| !next.is_null());
    Ok((in_list(&answer["Items"]).collect(), next))
}

/// Deletes up to `limit` entries that are older than `age`, the oldest first.
pub(super) async fn prune(store: &DynamoDb, age: Duration, limit: usize) -> Result<usize, Error> {
    let limit = limit.min(EXAMINED_MAX);
    let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
    let before = store.client.clock.now().as_micros().saturating_sub(age);
    if limit == 0 || before <= 0 {
        return Ok(0);
    }
    let [from, until] = [(0, 0), (before - 1, i64::MAX)]
        .map(|(micros, number)| Place { at: Timestamp::from_micros(micros), number });
    let (mut pruned, mut start) = (0, None);
    loop {
        let (items, next) = entries(store, from, until, Toward::Newer, limit - pruned, start).await?;
        for item in items {
            let (part, id) =
                (item.text("part").unwrap_or_default(), item.text("entry_id").unwrap_or_default());
            let mut body = store.of_key(Item::key(LOG, part));
            body["ConditionExpression"] = "attribute_exists(#id)".into();
            body["ExpressionAttributeNames"] = names(&["id"]);
            match store.call(For::Background, "DeleteItem", &body).await {
                Ok(_) => pruned += 1,
                // Another node was faster.
                Err(Fault::Condition(_)) => {}
                Err(fault) => return Err(fault.into()),
            }
            store.call(For::Background, "DeleteItem", &store.of_key(Item::key(ENTRY, id))).await?;
        }
        start = next;
        if pruned >= limit || start.is_none() {
            return Ok(pruned);
        }
    }
}

/// Takes keys and labels out of the entries of a scope.
pub(super) async fn erase(store: &DynamoDb, scope: [u8; 32]) -> Result<(), Error> {
    let [from, until] =
        [0, i64::MAX].map(|extreme| Place { at: Timestamp::from_micros(extreme), number: extreme });
    let mut start = None;
    loop {
        let (items, next) = entries(store, from, until, Toward::Newer, EXAMINED_MAX, start).await?;
        for item in items {
            let (_, Written { entry, .. }) = read(&item)?;
            let is_blank = entry.key.is_none() && entry.scope_label.is_none();
            if entry.scope != Some(scope) || is_blank {
                continue;
            }
            let mut body = store.of_key(Item::key(LOG, item.text("part").unwrap_or_default()));
            body["UpdateExpression"] = "REMOVE #key, #scope_label".into();
            body["ConditionExpression"] = "attribute_exists(#id)".into();
            body["ExpressionAttributeNames"] = names(&["id", "key", "scope_label"]);
            match store.call(For::Background, "UpdateItem", &body).await {
                Ok(_) | Err(Fault::Condition(_)) => {}
                Err(fault) => return Err(fault.into()),
            }
        }
        start = next;
        if start.is_none() {
            return Ok(());
        }
    }
}

//! What stands beside records, and may no longer be referred to: pieces, requests, results.
//!
//! | what | is left behind where | is referred to |
//! |---|---|---|
//! | pieces | a write died before its record was written; an answer was lost and nobody cleared up | by the record, or its request, of their revision |
//! | a request, a result | DynamoDB deleted the record by its time to live | by the record of the same use of the key |
//!
//! 1. Each request and result is on the list `left` of the index `due`, and so is a note of pieces, which is written before them. Once a
//!    day the reaper looks at each.
//! 2. A note is first marked. A write refers to pieces only where their note stands unmarked, in one transaction: what is not referred to
//!    after the mark never will be. So a write that stood still for days cannot refer to pieces that are gone.
//! 3. A request or a result is deleted only while it is the one that was read.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use onlyonce_core::record::Id;
use onlyonce_core::time::Timestamp;
use serde_json::{Value, json};

use super::DynamoDb;
use super::failure::{Failure, Fault};
use super::index::Span;
use super::layout::{HEAD, LOOKED_AFTER, List, NOTE, Pieces, REQUEST, Whole, revision_of};
use super::read::For;
use super::value::{Item, names, of_number};
use crate::listing::Place;
use crate::{Error, ErrorKind};

/// How often a node reads the list.
const LOOK_EVERY: Duration = Duration::from_secs(600);
/// How many entries of the index are read at once, and how many times in one round of the reaper.
const ENTRIES_MAX: usize = 100;
const READ_MAX: usize = 10;

/// Puts an item on the list.
pub(super) fn list(item: &mut Item, id: Id, at: Timestamp, shards: u8) {
    item.put_text("due_shard", &List::Left.shard_of(id, shards));
    item.put_number("due_at", at.plus(LOOKED_AFTER).as_micros());
}

/// Notes that pieces are about to be written, and gives the key of the note.
pub(super) async fn note(store: &DynamoDb, id: Id, pieces: &Pieces) -> Result<Item, Error> {
    let key = pieces.note(id);
    let mut item = key.clone();
    item.put_number("parts", i64::try_from(pieces.count).unwrap_or(i64::MAX));
    list(&mut item, id, store.client.clock.now(), store.shards);
    let body = json!({
        "TableName": store.table(),
        "Item": item.value(),
        "ConditionExpression": "attribute_not_exists(#dropped)",
        "ExpressionAttributeNames": names(&["dropped"]),
    });
    match store.call(For::Requests, "PutItem", &body).await {
        Ok(_) => Ok(key),
        Err(Fault::Condition(_)) => {
            let what = format!("pieces of an earlier try to write record {id} are being deleted");
            Err(Failure::refused(ErrorKind::Busy, format!("{what}; it may be tried again")).into())
        }
        Err(fault) => Err(fault.into()),
    }
}

/// The part of a transaction that holds only where a note stands, and is not marked.
pub(super) fn stands(store: &DynamoDb, note: &Item) -> Value {
    let mut check = store.of_key(note.clone());
    check["ConditionExpression"] = "attribute_exists(#id) AND attribute_not_exists(#dropped)".into();
    check["ExpressionAttributeNames"] = names(&["id", "dropped"]);
    json!({ "ConditionCheck": check })
}

/// Looks at what is due on the list, and deletes what nothing refers to. Not with every round of the reaper: reading an empty list costs
/// a query for each shard.
pub(super) async fn look(store: &DynamoDb, until: Timestamp) -> Result<(), Error> {
    if until.as_micros() < store.look_at.load(Ordering::Acquire) {
        return Ok(());
    }
    let mut span = Span { lists: &[List::Left], after: Place::START, until };
    for _ in 0..READ_MAX {
        let entries = span.first(store, ENTRIES_MAX).await?;
        let Some(last) = entries.last() else {
            store.look_at.store(until.plus(LOOK_EVERY).as_micros(), Ordering::Release);
            break;
        };
        span.after = *last;
        let ids: BTreeSet<Id> = entries.iter().map(|entry| entry.id).collect();
        for id in ids {
            look_beside(store, id, until).await?;
        }
    }
    Ok(())
}

/// Looks at what stands beside a record, whether that is there or not.
async fn look_beside(store: &DynamoDb, id: Id, until: Timestamp) -> Result<(), Error> {
    let mut all = store.of_parts(id, "#part >= :part", NOTE);
    all["ProjectionExpression"] = "#id, #part, #used_at, #revision, #parts, #due_at".into();
    all["ExpressionAttributeNames"] = names(&["id", "part", "used_at", "revision", "parts", "due_at"]);
    let items = store.query(For::Background, all).await?;
    let is_due = |item: &&Item| item.number("due_at").is_some_and(|due_at| due_at <= until.as_micros());
    let (notes, attached): (Vec<&Item>, Vec<&Item>) =
        items.iter().filter(is_due).partition(|item| Pieces::of_note(item).is_some());
    // Read after them: what goes with a record was written with it.
    let head = store.item(For::Background, Item::key(&id.0, HEAD)).await?;
    let again_at = look_again_at(head.as_ref(), until);
    let created_at = head.as_ref().and_then(|head| head.number("created_at"));
    for item in attached {
        if created_at.is_some() && created_at == item.number("used_at") {
            put_off(store, item, again_at).await?;
        } else {
            store.drop_attached(id, item).await?;
        }
    }
    for item in notes {
        if let Some(pieces) = Pieces::of_note(item) {
            look_at_pieces(store, id, item, &pieces, again_at).await?;
        }
    }
    Ok(())
}

/// When to look again at what is referred to: there is nothing to be found before the record may be deleted.
fn look_again_at(head: Option<&Item>, now: Timestamp) -> i64 {
    let reap_at = head.and_then(|head| head.number("reap_at")).unwrap_or(0);
    now.max(Timestamp::from_micros(reap_at)).plus(LOOKED_AFTER).as_micros()
}

/// Puts off the next look at an item, unless it was written anew since it was read.
async fn put_off(store: &DynamoDb, item: &Item, again_at: i64) -> Result<(), Error> {
    let update = "SET #due_at = :again_at";
    update_note(store, item, update, &["due_at"], again_at).await.map(drop)
}

/// Marks the note of pieces, and deletes them where nothing refers to them.
async fn look_at_pieces(
    store: &DynamoDb,
    id: Id,
    note: &Item,
    pieces: &Pieces,
    again_at: i64,
) -> Result<(), Error> {
    let mark = "SET #due_at = :again_at, #dropped = :again_at";
    if !update_note(store, note, mark, &["due_at", "dropped"], again_at).await? {
        return Ok(());
    }
    let part = match pieces.of {
        Whole::Record => HEAD,
        Whole::Request => REQUEST,
    };
    let refers = store.item(For::Background, Item::key(&id.0, part)).await?;
    let is_referred_to = refers.is_some_and(|item| revision_of(&item) == Some(pieces.revision));
    if !is_referred_to {
        return store.drop_pieces(id, pieces).await;
    }
    let mut marked = note.clone();
    marked.put_number("due_at", again_at);
    let unmark = "SET #due_at = :again_at REMOVE #dropped";
    update_note(store, &marked, unmark, &["due_at", "dropped"], again_at).await.map(drop)
}

/// Changes an item of the list; false where it was written or deleted since it was read.
async fn update_note(
    store: &DynamoDb,
    item: &Item,
    update: &str,
    of_names: &[&str],
    again_at: i64,
) -> Result<bool, Error> {
    let (Some(id), Some(part), Some(due_at)) = (item.bytes("id"), item.text("part"), item.number("due_at"))
    else {
        return Ok(false);
    };
    let mut body = store.of_key(Item::key(&id, part));
    body["UpdateExpression"] = update.into();
    body["ConditionExpression"] = "#due_at = :due_at".into();
    body["ExpressionAttributeNames"] = names(of_names);
    body["ExpressionAttributeValues"] =
        json!({ ":due_at": of_number(due_at), ":again_at": of_number(again_at) });
    match store.call(For::Background, "UpdateItem", &body).await {
        Ok(_) => Ok(true),
        Err(Fault::Condition(_)) => Ok(false),
        Err(fault) => Err(fault.into()),
    }
}

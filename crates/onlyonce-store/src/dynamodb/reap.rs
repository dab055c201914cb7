//! Deleting what has expired, erasing a scope, and which encryption keys are in use.

use std::collections::BTreeMap;

use serde_json::json;

use super::failure::Fault;
use super::index::Span;
use super::layout::{self, HEAD, List, REQUEST, Stored};
use super::read::For;
use super::scan::Filter;
use super::value::{Item, names, of_bytes, of_number};
use super::{DynamoDb, audit};
use crate::listing::Place;
use crate::seal::KeyId;
use crate::{Error, KeyUse};

/// How many entries of the index are read at once.
const ENTRIES_MAX: usize = 200;
/// How many items of the table are read at once.
const ITEMS_MAX: usize = 1_000;

/// Deletes up to `limit` records that have expired and are listed for the reaper. Where DynamoDB deletes by itself, those are
/// what was written while the reaper did.
pub(super) async fn reap(store: &DynamoDb, limit: usize) -> Result<usize, Error> {
    let until = store.client.clock.now();
    let mut span = Span { lists: &[List::Reap], after: Place::START, until };
    let mut reaped = 0;
    while reaped < limit {
        let entries = span.first(store, (limit - reaped).min(ENTRIES_MAX)).await?;
        let Some(last) = entries.last() else { break };
        span.after = *last;
        let keys = entries.iter().map(|entry| Item::key(&entry.id.0, HEAD)).collect();
        for item in store.items(For::Background, keys).await? {
            let Some(stored) = Stored::of(item).filter(|stored| stored.may_reap(until)) else { continue };
            reaped += usize::from(delete(store, &stored).await?);
        }
    }
    Ok(reaped)
}

/// Deletes a record that was judged, with all that goes with it. False where it was written meanwhile.
async fn delete(store: &DynamoDb, judged: &Stored) -> Result<bool, Error> {
    let Some(revision) = judged.revision() else { return Ok(false) };
    let mut body = store.of_key(Item::key(&judged.id.0, HEAD));
    body["ConditionExpression"] = "#revision = :judged".into();
    body["ExpressionAttributeNames"] = names(&["revision"]);
    body["ExpressionAttributeValues"] = json!({ ":judged": of_number(revision.0.cast_signed()) });
    match store.call(For::Background, "DeleteItem", &body).await {
        Ok(_) => {}
        Err(Fault::Condition(_)) => return Ok(false),
        Err(fault) => return Err(fault.into()),
    }
    let id = judged.id;
    if judged.parts() > 0 {
        store.drop_pieces(id, judged.parts(), |number| layout::piece(revision, number)).await;
    }
    let Some(used_at) = judged.item.number("created_at") else { return Ok(true) };
    for item in store.attached(For::Background, id).await? {
        let Some(part) = item.text("part") else { continue };
        let mut body = store.of_key(Item::key(&id.0, part));
        // A later use of the key may have begun.
        body["ConditionExpression"] = "#used_at <= :used_at".into();
        body["ExpressionAttributeNames"] = names(&["used_at"]);
        body["ExpressionAttributeValues"] = json!({ ":used_at": of_number(used_at) });
        match store.call(For::Background, "DeleteItem", &body).await {
            Ok(_) if part == REQUEST => store.drop_request_pieces(id, &item).await,
            Ok(_) | Err(Fault::Condition(_)) => {}
            Err(fault) => return Err(fault.into()),
        }
    }
    Ok(true)
}

/// Deletes up to `limit` records of a scope that have expired; once none is left, its keys and labels go out of the log.
pub(super) async fn erase(store: &DynamoDb, scope: [u8; 32], limit: usize) -> Result<usize, Error> {
    let now = store.client.clock.now();
    let filter = Filter {
        expression: "#scope = :scope AND #reap_at <= :now",
        names: &["scope", "reap_at"],
        values: json!({ ":scope": of_bytes(&scope), ":now": of_number(now.as_micros()) }),
    };
    let (mut erased, mut from) = (0, None);
    while erased < limit {
        let part = store.table_part(from, ITEMS_MAX, Some(&filter)).await?;
        for stored in part.items.into_iter().filter_map(Stored::of) {
            if erased < limit {
                erased += usize::from(delete(store, &stored).await?);
            }
        }
        from = part.next;
        if from.is_none() {
            break;
        }
    }
    if erased < limit {
        audit::erase(store, scope).await?;
    }
    Ok(erased)
}

/// Which encryption keys something stored here needs. It reads the table.
pub(super) async fn keys_in_use(store: &DynamoDb) -> Result<Vec<KeyUse>, Error> {
    let body = json!({
        "TableName": store.table(),
        "Limit": ITEMS_MAX,
        "ProjectionExpression": "#key_id, #rest_key_id, #sealed",
        "ExpressionAttributeNames": names(&["key_id", "rest_key_id", "sealed"]),
    });
    let (mut rows, mut from) = (BTreeMap::new(), None);
    loop {
        let part = store.scan_part(body.clone(), from).await?;
        for item in part.items {
            let [key_id, rest_key_id, sealed] =
                ["key_id", "rest_key_id", "sealed"].map(|name| item.bytes(name));
            note(&mut rows, rest_key_id.filter(|rest_key_id| Some(rest_key_id) != key_id.as_ref()));
            note(&mut rows, key_id);
            note(&mut rows, sealed);
        }
        from = part.next;
        if from.is_none() {
            break;
        }
    }
    let keyring = store.keyring.as_ref();
    let key_use = |(id, rows)| KeyUse { id, rows, is_known: keyring.is_some_and(|keyring| keyring.has(id)) };
    Ok(rows.into_iter().map(key_use).collect())
}

/// Counts a use of the key whose id these bytes begin with.
fn note(rows: &mut BTreeMap<KeyId, u64>, key_id: Option<Vec<u8>>) {
    if let Some(key_id) = key_id.and_then(|bytes| bytes.first_chunk().copied()) {
        *rows.entry(KeyId(key_id)).or_default() += 1;
    }
}

//! Deleting what has expired, erasing a scope, and which encryption keys are in use.

use std::collections::BTreeMap;

use serde_json::json;

use super::failure::{CONDITION, Fault};
use super::index::Span;
use super::layout::{DELETED_MAX, HEAD, List, Pieces, Stored};
use super::read::For;
use super::scan::Filter;
use super::value::{Item, names, of_bytes, of_number};
use super::{DynamoDb, audit, left};
use crate::listing::Place;
use crate::seal::KeyId;
use crate::{Error, KeyUse, failpoint};

/// How many entries of the index are read at once.
const ENTRIES_MAX: usize = 200;
/// How many items of the table are read at once.
const ITEMS_MAX: usize = 1_000;

/// Deletes up to `limit` records that have expired and are listed for the reaper. Where DynamoDB deletes by itself, those are
/// what was written while the reaper did. Then it looks for what is left of records that are gone.
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
    if limit > 0 {
        left::look(store, until).await?;
    }
    Ok(reaped)
}

/// Deletes a record that was judged, with all that goes with it. False where it was written or deleted meanwhile.
async fn delete(store: &DynamoDb, judged: &Stored) -> Result<bool, Error> {
    let (id, Some(revision)) = (judged.id, judged.revision()) else { return Ok(false) };
    // Asked before: a later use of the key brings its own with a record of another revision, and the condition no longer holds.
    let attached = store.attached(For::Background, id).await?;
    let mut head = store.of_key(Item::key(&id.0, HEAD));
    head["ConditionExpression"] = "#revision = :judged".into();
    head["ExpressionAttributeNames"] = names(&["revision"]);
    head["ExpressionAttributeValues"] = json!({ ":judged": of_number(revision.0.cast_signed()) });
    let deleted = if attached.is_empty() {
        store.call(For::Background, "DeleteItem", &head).await
    } else {
        let parts = attached.iter().filter_map(|item| item.text("part"));
        let keys = parts.take(DELETED_MAX).map(|part| store.delete(Item::key(&id.0, part)));
        let all: Vec<_> = [json!({ "Delete": head })].into_iter().chain(keys).collect();
        store.call(For::Background, "TransactWriteItems", &json!({ "TransactItems": all })).await
    };
    let is_ours = match deleted {
        Ok(_) => true,
        Err(Fault::Condition(_)) => false,
        Err(Fault::Cancelled(reasons)) if reasons.first().is_some_and(|reason| reason.code == CONDITION) => {
            false
        }
        Err(fault) => return Err(fault.into()),
    };
    failpoint!("dynamodb.reap.between");
    // Only a record of this revision refers to these, and it is gone, whoever was faster.
    if let Some(pieces) = judged.pieces() {
        store.drop_pieces(id, &pieces).await?;
    }
    if is_ours {
        for item in attached.iter().skip(DELETED_MAX) {
            store.drop_attached(id, item).await?;
        }
        for pieces in attached.iter().filter_map(Pieces::of_request) {
            store.drop_pieces(id, &pieces).await?;
        }
    }
    Ok(is_ours)
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

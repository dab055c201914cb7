//! The one write of a record: compare and swap.
//!
//! ```text
//!   insert   PutItem  attribute_not_exists(id)
//!   update   PutItem  revision = :expected AND written_at <= :at
//!   with …   TransactWriteItems: the same, and all that goes with it
//! ```
//!
//! 1. A condition that does not hold shows what stands there, in the same trip; where the server does not show it, it is read.
//! 2. What is too large for one item is written in pieces first, which are named by the revision that is about to be written and are
//!    never overwritten; then the record itself. Before the pieces there is a note of them, unless DynamoDB deletes them by their time to
//!    live: by it they are found where nothing refers to them (`left.rs`). The record is written on condition that the note stands.
//!    Whoever replaces a record, or loses a write, deletes the pieces and their note.
//! 3. The stamp is this node's (`clock.rs`). One that is before the record's last is refused by the condition, and made anew.

use std::sync::Arc;

use onlyonce_core::record::{Draft, Id, Revision, Seen};
use onlyonce_core::time::Timestamp;
use serde_json::{Value, json};

use super::failure::{CONDITION, Failure, Fault, Reason};
use super::layout::{self, DELETED_MAX, HEAD, List, Pieces, REQUEST, Stored, Unstamped, Whole};
use super::read::For;
use super::value::{Item, names, of_number};
use super::{DynamoDb, audit, left};
use crate::accepted::Request;
use crate::result::Results;
use crate::sql::{Columns, Sealing};
use crate::{Attached, Change, Error, ErrorKind, Swapped, failpoint};

/// How often a write is sent: again with another stamp, or without an entry that stands in the log already.
const SENT_MAX: u32 = 5;

/// What the server said to a write.
enum Said {
    /// With the record that it replaced, where that is known.
    Written(Option<Stored>),
    /// The condition does not hold; what stands there, where the server shows it.
    Lost(Option<Item>),
    /// The entry of the log stands there already.
    HasEntry,
}

/// A write, before it is stamped.
struct Write<'a> {
    store: &'a DynamoDb,
    expected: Option<Revision>,
    record: Unstamped<'a>,
    with: &'a Attached,
    sealing: Option<&'a Sealing>,
    /// What went with the record before.
    before: Vec<Item>,
    /// The notes of its pieces.
    notes: Vec<Item>,
}

pub(super) async fn swap(store: &DynamoDb, id: Id, mut change: Change) -> Result<Swapped, Error> {
    if !change.with.messages.is_empty() {
        let message = "this store is DynamoDB, which keeps no messages; use PostgreSQL or SQLite for handlers that send any";
        // Of this kind, since it is about one handler: the store can be used.
        return Err(Error::new(ErrorKind::Other, message).having_written_nothing());
    }
    let sealing = Sealing::of(store.keyring.as_ref(), &id, &change.next, &mut change.with);
    let draft: &Draft = &change.next;
    let record = Unstamped::new(id, change.revision, draft, Columns::of(draft, sealing.as_deref()));
    let mut write = Write {
        store,
        expected: change.expected,
        record,
        with: &change.with,
        sealing: sealing.as_deref(),
        before: Vec::new(),
        notes: Vec::new(),
    };
    write.prepare().await?;
    let swapped = write.send().await?;
    Ok(match swapped {
        Ok((at, now)) => {
            let record = Arc::new(change.next.stamp(at));
            Swapped::Applied(Seen { record, revision: change.revision, now })
        }
        Err(lost) => Swapped::Lost(lost),
    })
}

impl Write<'_> {
    /// Writes the pieces of what is large, and looks for what the transaction must delete.
    async fn prepare(&mut self) -> Result<(), Error> {
        let id = self.record.id;
        if let (Some(pieces), Some(large)) = (self.record.pieces(), &self.record.large) {
            let ttl = self.record.pieces_ttl(self.store.client.clock.now(), self.store.reaping());
            if ttl.is_none() {
                self.notes.push(left::note(self.store, id, &pieces).await?);
            }
            self.store.put_pieces(id, &pieces, large, ttl).await?;
        }
        if let Some((pieces, request)) = self.large_request() {
            let note = left::note(self.store, id, &pieces).await?;
            self.store.put_pieces(id, &pieces, request, None).await?;
            self.notes.push(note);
        }
        if self.record.large.is_some() || self.large_request().is_some() {
            failpoint!("dynamodb.pieces.after");
        }
        let drops = self.with.results == Results::Drop || self.with.request == Request::Drop;
        if drops || self.expected.is_some() && matches!(self.with.request, Request::Put(_)) {
            self.before = self.store.attached(For::Requests, id).await?;
        }
        Ok(())
    }

    /// Sends the write until it is executed or lost.
    async fn send(&self) -> Result<Result<(Timestamp, Timestamp), Option<Seen>>, Error> {
        let Unstamped { id, revision, .. } = &self.record;
        let clock = &self.store.client.clock;
        let (mut floor, mut has_entry) = (Timestamp::from_micros(0), false);
        for _ in 0..SENT_MAX {
            let at = clock.now().max(floor);
            let said = self.send_at(at, has_entry).await?;
            let stands = match said {
                Said::Written(replaced) => {
                    self.clear(replaced).await;
                    return Ok(Ok((at, clock.now().max(at))));
                }
                Said::HasEntry => {
                    has_entry = true;
                    continue;
                }
                Said::Lost(Some(item)) => Stored::of(item),
                Said::Lost(None) => self.store.stored(For::Requests, *id).await?,
            };
            let Some(stands) = stands else {
                self.clear_own().await;
                return Ok(Err(None));
            };
            if stands.revision().is_some() && stands.revision() == self.expected {
                // It was written later than our stamp says.
                floor = stands.written_at();
                continue;
            }
            if stands.revision() != Some(*revision) {
                self.clear_own().await;
            }
            let whole = if stands.pieces().is_some() && stands.large.is_none() {
                self.store.stored(For::Requests, *id).await?
            } else {
                Some(stands)
            };
            return Ok(Err(whole.map(|whole| self.store.seen(&whole)).transpose()?));
        }
        let message = format!(
            "record {id} was written by others {SENT_MAX} times while this node stamped its own write"
        );
        Err(Error::new(ErrorKind::Busy, message).having_written_nothing())
    }

    async fn send_at(&self, at: Timestamp, has_entry: bool) -> Result<Said, Error> {
        let mut put = json!({
            "TableName": self.store.table(),
            "Item": self.record.item(at, self.store.reaping(), self.store.shards).value(),
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        });
        match self.expected {
            None => {
                put["ConditionExpression"] = "attribute_not_exists(#id)".into();
                put["ExpressionAttributeNames"] = names(&["id"]);
            }
            Some(expected) => {
                put["ConditionExpression"] = "#revision = :expected AND #written_at <= :at".into();
                put["ExpressionAttributeNames"] = names(&["revision", "written_at"]);
                put["ExpressionAttributeValues"] = json!({
                    ":expected": of_number(expected.0.cast_signed()),
                    ":at": of_number(at.as_micros()),
                });
            }
        }
        if !self.with.is_empty() || !self.notes.is_empty() {
            return self.send_with(put, at, has_entry).await;
        }
        if self.expected.is_some() {
            put["ReturnValues"] = "ALL_OLD".into();
        }
        failpoint!("dynamodb.write.before");
        let said = self.store.call(For::Requests, "PutItem", &put).await;
        failpoint!("dynamodb.write.after");
        match said {
            Ok(answer) => {
                let replaced = answer["Attributes"].as_object().map(|item| Item(item.clone()));
                Ok(Said::Written(replaced.and_then(Stored::of)))
            }
            Err(Fault::Condition(item)) => Ok(Said::Lost(item)),
            Err(fault) => Err(fault.into()),
        }
    }

    /// The record and all that goes with it, in one transaction.
    async fn send_with(&self, put: Value, at: Timestamp, has_entry: bool) -> Result<Said, Error> {
        // A transaction does not show what it replaces.
        let replaced = match self.expected {
            Some(_) => self.store.item(For::Requests, Item::key(&self.record.id.0, HEAD)).await?,
            None => None,
        };
        let mut parts = vec![json!({ "Put": put })];
        parts.extend(self.attached(at));
        let notes_at = parts.len();
        parts.extend(self.notes.iter().map(|note| left::stands(self.store, note)));
        let entry_at = parts.len();
        if let Some(entry) = self.with.audit.as_ref().filter(|_| !has_entry) {
            parts.extend(audit::puts(self.store, entry, at));
        }
        let body = json!({ "TransactItems": parts });
        failpoint!("dynamodb.write.before");
        let said = self.store.call(For::Requests, "TransactWriteItems", &body).await;
        failpoint!("dynamodb.write.after");
        match said {
            Ok(_) => {
                let replaced = replaced.and_then(Stored::of);
                Ok(Said::Written(replaced.filter(|stored| stored.revision() == self.expected)))
            }
            Err(Fault::Cancelled(mut reasons)) => {
                let failed =
                    |place: usize| reasons.get(place).is_some_and(|reason: &Reason| reason.code == CONDITION);
                if failed(0) {
                    Ok(Said::Lost(reasons[0].item.take()))
                } else if (notes_at..entry_at).any(failed) {
                    let what =
                        format!("pieces of record {} were deleted before it was written", self.record.id);
                    Err(Failure::refused(ErrorKind::Busy, format!("{what}; it may be tried again")).into())
                } else if failed(entry_at) {
                    Ok(Said::HasEntry)
                } else {
                    Err(Fault::Cancelled(reasons).failure(&self.store.shown_here()).into())
                }
            }
            Err(fault) => Err(fault.into()),
        }
    }

    /// What the transaction does to results of phases and to the request.
    fn attached(&self, at: Timestamp) -> Vec<Value> {
        let (store, id) = (self.store, self.record.id);
        let used_at = self.record.draft.created_at.stamp(at).as_micros();
        let item = |part: &str| {
            let mut item = Item::key(&id.0, part);
            item.put_number("used_at", used_at);
            item.put_number("revision", self.record.revision.0.cast_signed());
            left::list(&mut item, id, at, store.shards);
            item
        };
        let put = |item: Item| json!({ "Put": { "TableName": store.table(), "Item": item.value() } });
        let dropped = self.dropped().filter_map(|item| item.text("part")).take(DELETED_MAX);
        let mut parts: Vec<Value> = dropped.map(|part| store.delete(Item::key(&id.0, part))).collect();
        if let Results::Add(result) = &self.with.results {
            let mut item = item(&layout::result_part(result.number));
            item.put_number("number", result.number.into());
            item.put_text("phase", &result.phase);
            match self.sealing.and_then(|sealing| sealing.result.as_deref()) {
                Some(sealed) => item.put_bytes("sealed", sealed),
                None => item.put_text("result", &result.json),
            }
            parts.push(put(item));
        }
        if let Request::Put(request) = &self.with.request {
            let mut item = item(REQUEST);
            match self.large_request() {
                Some((pieces, _)) => {
                    item.put_number("parts", i64::try_from(pieces.count).unwrap_or(i64::MAX));
                }
                None => item.put_bytes("request", request),
            }
            if let Some(key_id) = self.sealing.and_then(Sealing::request_key) {
                item.put_bytes("key_id", key_id);
            }
            item.put_text("open_shard", &List::Request.shard_of(id, store.shards));
            item.put_number("open_since", at.as_micros());
            parts.push(put(item));
        }
        parts
    }

    /// What went with the record before, and does no longer.
    fn dropped(&self) -> impl Iterator<Item = &Item> {
        self.before.iter().filter(|item| match item.text("part") {
            Some(REQUEST) => self.with.request == Request::Drop,
            _ => self.with.results == Results::Drop,
        })
    }

    /// The request and its pieces, where it is too large for one item.
    fn large_request(&self) -> Option<(Pieces, &[u8])> {
        match &self.with.request {
            Request::Put(request) if request.len() > layout::PIECE_BYTES => {
                Some((Pieces::new(Whole::Request, self.record.revision, request), request))
            }
            Request::Put(_) | Request::Keep | Request::Drop => None,
        }
    }

    /// Deletes what nothing refers to after this write. It was executed: what cannot be deleted now is found later.
    async fn clear(&self, replaced: Option<Stored>) {
        let id = self.record.id;
        self.store.drop_pieces_or_tell(id, replaced.and_then(|replaced| replaced.pieces())).await;
        if self.with.request != Request::Keep {
            for item in self.before.iter().filter(|item| item.text("part") == Some(REQUEST)) {
                self.store.drop_pieces_or_tell(id, Pieces::of_request(item)).await;
            }
        }
        for item in self.dropped().skip(DELETED_MAX) {
            if let Err(error) = self.store.drop_attached(id, item).await {
                tracing::warn!("a result of record {id} is left in the table for a day or more: {error}");
            }
        }
    }

    /// Deletes the pieces of this write, which was lost.
    async fn clear_own(&self) {
        let id = self.record.id;
        self.store.drop_pieces_or_tell(id, self.record.pieces()).await;
        self.store.drop_pieces_or_tell(id, self.large_request().map(|(pieces, _)| pieces)).await;
    }
}

impl DynamoDb {
    /// The part of a transaction that deletes an item.
    pub(super) fn delete(&self, key: Item) -> Value {
        json!({ "Delete": self.of_key(key) })
    }

    pub(super) fn of_key(&self, key: Item) -> Value {
        json!({ "TableName": self.table(), "Key": key.value() })
    }

    /// Begins a new epoch.
    pub(super) async fn raise(&self) -> Result<(), Error> {
        const RAISED_MAX: u32 = 100;
        for _ in 0..RAISED_MAX {
            let (epoch, now, _) = self.look_at_epoch(For::Requests).await?;
            let next = i64::try_from(epoch.after(now).0).unwrap_or(i64::MAX);
            let mut body = self.of_key(Item::key(layout::STORE, HEAD));
            body["UpdateExpression"] = "SET #epoch = :next".into();
            body["ConditionExpression"] = "#epoch < :next".into();
            body["ExpressionAttributeNames"] = names(&["epoch"]);
            body["ExpressionAttributeValues"] = json!({ ":next": of_number(next) });
            match self.call(For::Requests, "UpdateItem", &body).await {
                Ok(_) => return Ok(()),
                // Somebody else has raised it, to the same or higher: ours must be another.
                Err(Fault::Condition(_)) => {}
                Err(fault) => return Err(fault.into()),
            }
        }
        Err(Failure::refused(
            ErrorKind::Busy,
            format!("others raised the epoch {RAISED_MAX} times meanwhile"),
        )
        .into())
    }
}

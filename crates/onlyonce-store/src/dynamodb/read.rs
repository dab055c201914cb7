//! Reading: one item, many items, and the pieces of large records.

use std::time::Duration;

use onlyonce_core::record::Id;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::DynamoDb;
use super::failure::{Failure, Fault};
use super::layout::{self, HEAD, Pieces, Stored, WITH};
use super::value::{Item, names, of_bytes, of_number, of_text};
use crate::{Error, ErrorKind};

/// How many items one call reads.
const KEYS_MAX: usize = 100;
/// How often a call is repeated for the items that it left out.
const ROUNDS_MAX: u32 = 20;
/// The pause before it is.
const PAUSE: Duration = Duration::from_millis(20);
/// How often a record is read whose pieces are replaced meanwhile.
const READ_MAX: u32 = 5;

/// Which calls are meant: those of requests, or those of workers and operators, which may take longer.
#[derive(Clone, Copy, Debug)]
pub(super) enum For {
    Requests,
    Background,
}

impl DynamoDb {
    /// One item, as it stands there now.
    pub(super) async fn item(&self, who: For, key: Item) -> Result<Option<Item>, Error> {
        let body = json!({ "TableName": self.table(), "Key": key.value(), "ConsistentRead": true });
        let answer = self.call(who, "GetItem", &body).await?;
        Ok(answer["Item"].as_object().map(|item| Item(item.clone())))
    }

    /// A record with its pieces.
    pub(super) async fn stored(&self, who: For, id: Id) -> Result<Option<Stored>, Error> {
        let mut last = None;
        for _ in 0..READ_MAX {
            let Some(item) = self.item(who, Item::key(&id.0, HEAD)).await? else { return Ok(None) };
            let Some(stored) = Stored::of(item) else { return Ok(None) };
            let stored = self.with_pieces(who, stored).await?;
            // Where pieces are missing, the record was replaced meanwhile; or they are lost.
            if stored.pieces().is_none() || stored.large.is_some() || last == stored.revision() {
                return Ok(Some(stored));
            }
            last = stored.revision();
        }
        let message = format!("record {id} was replaced {READ_MAX} times while it was read");
        Err(Error::new(ErrorKind::Busy, message).having_written_nothing())
    }

    /// The same record with its pieces, where none is missing.
    pub(super) async fn with_pieces(&self, who: For, mut stored: Stored) -> Result<Stored, Error> {
        if let Some(pieces) = stored.pieces() {
            stored.large = self.joined(who, stored.id, &pieces).await?;
        }
        Ok(stored)
    }

    /// Pieces put together; none where one is missing.
    pub(super) async fn joined(&self, who: For, id: Id, pieces: &Pieces) -> Result<Option<Vec<u8>>, Error> {
        let items = self.items(who, pieces.keys(id)).await?;
        let mut joined = Vec::new();
        for number in 0..pieces.count {
            let name = pieces.part(number);
            let item = items.iter().find(|item| item.text("part") == Some(&name));
            let Some(bytes) = item.and_then(|item| item.bytes("piece")) else { return Ok(None) };
            joined.extend(bytes);
        }
        Ok(Some(joined))
    }

    /// The items with these keys that stand there now, in no order.
    pub(super) async fn items(&self, who: For, keys: Vec<Item>) -> Result<Vec<Item>, Error> {
        let mut items = Vec::new();
        for some in keys.chunks(KEYS_MAX) {
            let mut left = Value::from(some.iter().map(|key| key.clone().value()).collect::<Vec<_>>());
            for round in 0.. {
                let mut tables = serde_json::Map::new();
                tables.insert(self.table().to_owned(), json!({ "Keys": left, "ConsistentRead": true }));
                let answer = self.call(who, "BatchGetItem", &json!({ "RequestItems": tables })).await?;
                items.extend(in_list(&answer["Responses"][self.table()]));
                left = answer["UnprocessedKeys"][self.table()]["Keys"].clone();
                if left.as_array().is_none_or(Vec::is_empty) {
                    break;
                }
                self.pause_before(round).await?;
            }
        }
        Ok(items)
    }

    /// Writes bytes that are too large for one item, in pieces.
    pub(super) async fn put_pieces(
        &self,
        id: Id,
        pieces: &Pieces,
        bytes: &[u8],
        ttl: Option<i64>,
    ) -> Result<(), Error> {
        // A call may have 16 MB.
        const TOGETHER: usize = 10;
        let keys = pieces.keys(id);
        let all: Vec<_> = keys.into_iter().zip(bytes.chunks(layout::PIECE_BYTES)).collect();
        for some in all.chunks(TOGETHER) {
            let put = |(key, piece): &(Item, &[u8])| {
                let mut item = key.clone();
                item.put_bytes("piece", piece);
                if let Some(ttl) = ttl {
                    item.put_number("ttl", ttl);
                }
                json!({ "PutRequest": { "Item": item.value() } })
            };
            self.write_all(For::Requests, some.iter().map(put).collect()).await?;
        }
        Ok(())
    }

    /// Deletes pieces that nothing refers to any more, and then their note.
    pub(super) async fn drop_pieces(&self, id: Id, pieces: &Pieces) -> Result<(), Error> {
        const TOGETHER: usize = 25;
        for some in pieces.keys(id).chunks(TOGETHER) {
            let delete = |key: &Item| json!({ "DeleteRequest": { "Key": key.clone().value() } });
            self.write_all(For::Background, some.iter().map(delete).collect()).await?;
        }
        self.call(For::Background, "DeleteItem", &self.of_key(pieces.note(id))).await?;
        Ok(())
    }

    /// The same after a write that was executed: what cannot be deleted now is told, and found later.
    pub(super) async fn drop_pieces_or_tell(&self, id: Id, pieces: Option<Pieces>) {
        if let Some(pieces) = pieces
            && let Err(error) = self.drop_pieces(id, &pieces).await
        {
            tracing::warn!(
                "pieces of an earlier state of record {id} are left in the table for a day or more: {error}"
            );
        }
    }

    /// Deletes what went with a record, unless it was written anew since it was read.
    pub(super) async fn drop_attached(&self, id: Id, item: &Item) -> Result<(), Error> {
        let (Some(part), Some(revision)) = (item.text("part"), layout::revision_of(item)) else {
            return Ok(());
        };
        let mut body = self.of_key(Item::key(&id.0, part));
        body["ConditionExpression"] = "#revision = :revision".into();
        body["ExpressionAttributeNames"] = names(&["revision"]);
        body["ExpressionAttributeValues"] = json!({ ":revision": of_number(revision.0.cast_signed()) });
        match self.call(For::Background, "DeleteItem", &body).await {
            Ok(_) | Err(Fault::Condition(_)) => Ok(()),
            Err(fault) => Err(fault.into()),
        }
    }

    /// Puts and deletes without conditions, together.
    async fn write_all(&self, who: For, requests: Vec<Value>) -> Result<(), Error> {
        let mut left = Value::from(requests);
        for round in 0.. {
            let mut tables = serde_json::Map::new();
            tables.insert(self.table().to_owned(), left);
            let answer = self.call(who, "BatchWriteItem", &json!({ "RequestItems": tables })).await?;
            left = answer["UnprocessedItems"][self.table()].clone();
            if left.as_array().is_none_or(Vec::is_empty) {
                return Ok(());
            }
            self.pause_before(round).await?;
        }
        Ok(())
    }

    /// What a call left out is asked for again after a pause, and not for ever.
    async fn pause_before(&self, round: u32) -> Result<(), Error> {
        if round >= ROUNDS_MAX {
            let what = format!(
                "{}: it leaves out items again and again; raise the capacity of the table",
                self.shown_here()
            );
            return Err(Failure::doubt(what).into());
        }
        sleep(PAUSE * (round + 1)).await;
        Ok(())
    }

    /// What goes with a record, without its bytes: requests and results, of any use of the key.
    pub(super) async fn attached(&self, who: For, id: Id) -> Result<Vec<Item>, Error> {
        let mut body = self.of_parts(id, "begins_with(#part, :part)", WITH);
        body["ProjectionExpression"] = "#id, #part, #used_at, #revision, #parts".into();
        body["ExpressionAttributeNames"] = names(&["id", "part", "used_at", "revision", "parts"]);
        self.query(who, body).await
    }

    /// A query of items of a record, by their part.
    pub(super) fn of_parts(&self, id: Id, condition: &str, part: &str) -> Value {
        json!({
            "TableName": self.table(),
            "ConsistentRead": true,
            "KeyConditionExpression": format!("#id = :id AND {condition}"),
            "ExpressionAttributeNames": names(&["id", "part"]),
            "ExpressionAttributeValues": { ":id": of_bytes(&id.0), ":part": of_text(part) },
        })
    }

    /// All that a query finds.
    pub(super) async fn query(&self, who: For, mut body: Value) -> Result<Vec<Item>, Error> {
        let mut items = Vec::new();
        loop {
            let answer = self.call(who, "Query", &body).await?;
            items.extend(in_list(&answer["Items"]));
            if answer["LastEvaluatedKey"].is_null() {
                return Ok(items);
            }
            body["ExclusiveStartKey"] = answer["LastEvaluatedKey"].clone();
        }
    }
}

/// The items of a list.
pub(super) fn in_list(list: &Value) -> impl Iterator<Item = Item> {
    list.as_array().into_iter().flatten().filter_map(|item| item.as_object().map(|item| Item(item.clone())))
}

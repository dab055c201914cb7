//! What a request costs, counted from the calls and the items: units of writing as DynamoDB bills them.

use std::sync::Arc;

use http::HeaderValue;
use http::header::CONTENT_TYPE;
use onlyonce_core::record::{Effects, Response, Revision, Source, State};
use onlyonce_core::time::When;
use onlyonce_store::dynamodb::Options;
use onlyonce_store::{Change, Store, Swapped};
use onlyonce_testkit::engines::dynamodb::Server;
use serde_json::Value;

use super::created;
use crate::sqlite::world::{HOUR, draft, id, insert, running};

/// A unit of writing is so many bytes of an item.
const UNIT: usize = 1_024;
/// What an entry of an index holds beside its own key: that of the table.
const DUE: [&str; 4] = ["id", "part", "due_shard", "due_at"];

fn answered() -> State<When> {
    let headers = vec![(CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    let response = Response { status: 201, headers, body: vec![b'x'; 150].into() };
    let expires_at = When::AfterWrite(24 * HOUR);
    State::Completed { response: Some(Arc::new(response)), by: Source::Attempt, expires_at }
}

/// The size of an item, as DynamoDB counts it: names, and values by their type.
fn bytes(item: &Value, only: Option<&[&str]>) -> usize {
    let attributes = item.as_object().unwrap().iter();
    let counted = attributes.filter(|(name, _)| only.is_none_or(|only| only.contains(&name.as_str())));
    let value = |value: &Value| {
        let (kind, value) = value.as_object().unwrap().iter().next().unwrap();
        match (kind.as_str(), value.as_str()) {
            ("S", Some(text)) => text.len(),
            ("B", Some(base64)) => base64.len() / 4 * 3,
            ("N", Some(digits)) => digits.len().div_ceil(2) + 1,
            _ => 1,
        }
    };
    counted.map(|(name, of_name)| name.len() + value(of_name)).sum()
}

/// E07: a fresh request is two calls and four units of writing, two of them of the index; a replay from a node that has no copy is
/// one call, and a look another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_fresh_request_is_two_calls_and_four_units() {
    let url = Server::shared().fresh_table().replace("reap=index", "reap=ttl");
    let store = created(&url, Options::default()).await;
    store.prepare().await.unwrap();
    let item = |key: &str| {
        let items = Server::shared().items(&url);
        items.into_iter().find(|item| item["key"]["S"] == key).unwrap()
    };
    let before = Server::shared().calls(&url).len();
    let seen = insert(&store, draft("order-4711", Effects::Opaque, running()), 1).await.unwrap();
    let reserved = item("order-4711");
    let done =
        Change::new(Some(seen.revision), Revision(2), draft("order-4711", Effects::Opaque, answered()).1);
    assert!(matches!(store.swap(id("order-4711"), done).await.unwrap(), Swapped::Applied(_)));
    let completed = item("order-4711");
    assert_eq!(Server::shared().calls(&url)[before..], ["PutItem", "PutItem"]);

    let units = |bytes: usize| bytes.div_ceil(UNIT);
    let [first, second] = [bytes(&reserved, None), bytes(&completed, None)];
    let entry = bytes(&reserved, Some(&DUE));
    // The entry is made by the first write and removed by the second.
    assert!(reserved.get("due_shard").is_some() && completed.get("due_shard").is_none());
    let all = units(first) + units(second) + 2 * units(entry);
    println!(
        "reserved {first} bytes, completed {second} bytes, entry of the index {entry} bytes: {all} units"
    );
    assert_eq!(all, 4);

    let before = Server::shared().calls(&url).len();
    let again = Change::new(None, Revision(3), draft("order-4711", Effects::Opaque, running()).1);
    assert!(matches!(store.swap(id("order-4711"), again).await.unwrap(), Swapped::Lost(Some(_))));
    assert_eq!(Server::shared().calls(&url)[before..], ["PutItem"], "it answers with what stands there");
    assert!(store.load(id("order-4711")).await.unwrap().is_some());
    assert_eq!(Server::shared().calls(&url)[before + 1..], ["GetItem"]);
}

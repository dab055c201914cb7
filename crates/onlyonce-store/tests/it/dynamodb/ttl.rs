//! With `reap=ttl`, DynamoDB deletes by itself.

use onlyonce_core::record::{Effects, Revision};
use onlyonce_core::time::When;
use onlyonce_store::dynamodb::{DynamoDb, Options};
use onlyonce_store::promises::{Expiry, Listing};
use onlyonce_store::{Change, Level, Order, Query, Store, Swapped};
use onlyonce_testkit::engines::dynamodb::{Server, table};
use serde_json::{Value, json};

use super::created;
use super::faults::until;
use crate::sqlite::world::{completed, draft, id, insert, running};

fn by_ttl(url: &str) -> String {
    url.replace("reap=index", "reap=ttl")
}

fn item(url: &str, key: &str) -> Value {
    let items = Server::shared().items(url);
    items.into_iter().find(|item| item["key"]["S"] == key).unwrap()
}

fn number(item: &Value, name: &str) -> i64 {
    item[name]["N"].as_str().unwrap().parse().unwrap()
}

/// T03, M02: what has expired has a time to live and is on no list; what must be looked at has none, and is.
#[tokio::test(flavor = "multi_thread")]
async fn what_has_expired_is_left_to_dynamodb() {
    let url = by_ttl(&Server::shared().fresh_table());
    let store = created(&url, Options::default()).await;
    assert_eq!(store.promises().expiry, Expiry::Theirs);
    assert!(matches!(store.promises().listing, Listing::Late { .. }));
    insert(&store, draft("done", Effects::Opaque, completed(When::WRITE)), 1).await.unwrap();
    insert(&store, draft("runs", Effects::Opaque, running()), 1).await.unwrap();
    let done = item(&url, "done");
    let seconds = number(&done, "reap_at").div_euclid(1_000_000) + 3_600;
    assert!((seconds..=seconds + 1).contains(&number(&done, "ttl")), "{done}");
    assert!(done.get("due_shard").is_none(), "{done}");
    let runs = item(&url, "runs");
    assert!(runs.get("ttl").is_none() && runs.get("due_shard").is_some(), "{runs}");
    assert_eq!(store.reap(9).await.unwrap(), 0);
    assert_eq!(store.scan(Query { order: Order::Due, ..Query::all(9) }).await.unwrap().records, []);
    // It may stand for days: its key can be used again meanwhile.
    let seen = store.load(id("done")).await.unwrap().unwrap();
    let again = Change::new(Some(seen.revision), Revision(2), draft("done", Effects::Opaque, running()).1);
    assert!(matches!(store.swap(id("done"), again).await.unwrap(), Swapped::Applied(_)));
    assert!(item(&url, "done").get("ttl").is_none(), "DynamoDB no longer deletes it");
}

/// E07: the way to delete can be changed; what was written before is deleted in its own way.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_for_the_reaper_is_reaped_after_a_change_to_ttl() {
    let url = Server::shared().fresh_table();
    let before = created(&url, Options::default()).await;
    insert(&before, draft("done", Effects::Opaque, completed(When::WRITE)), 1).await.unwrap();
    let store = DynamoDb::open(&by_ttl(&url), Options::default()).await.unwrap();
    // A node that has just been told the time may be a second behind the one that wrote.
    until("it is deleted", async || store.reap(9).await.unwrap() == 1).await;
    assert!(store.load(id("done")).await.unwrap().is_none());
}

/// E07
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_deletes_nothing_is_found() {
    let (server, url) = (Server::shared(), Server::shared().fresh_table());
    let store = created(&by_ttl(&url), Options::default()).await;
    assert_eq!(store.examine().await.unwrap(), []);
    let off = json!({ "AttributeName": "ttl", "Enabled": false });
    server.call("UpdateTimeToLive", &json!({ "TableName": table(&url), "TimeToLiveSpecification": off }));
    let findings = store.examine().await.unwrap();
    assert_eq!((findings[0].level, findings[0].code), (Level::Warning, "dynamodb.ttl"));
    let store = DynamoDb::open(&url, Options::default()).await.unwrap();
    assert_eq!(store.examine().await.unwrap(), [], "the reaper deletes");
}

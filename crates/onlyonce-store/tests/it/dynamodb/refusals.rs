//! What cannot work is refused, by name and with the remedy.

use std::sync::Arc;

use onlyonce_core::record::{Effects, Revision};
use onlyonce_store::dynamodb::{DynamoDb, Keys, Options};
use onlyonce_store::{Change, ErrorKind, Expired, Level, Store};
use onlyonce_testkit::engines::dynamodb::{Server, table};
use serde_json::json;

use super::created;
use crate::sqlite::world::{draft, id, message, put, running};

fn keys(id: &str, secret: &str, token: Option<&str>) -> Options {
    let keys = Keys {
        access_key_id: id.to_owned(),
        secret_access_key: secret.to_owned(),
        session_token: token.map(str::to_owned),
    };
    Options { keys: Some(keys), ..Options::default() }
}

/// E07: a table that is missing is created by nobody who serves.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_is_missing_is_refused_and_created_on_demand() {
    let url = Server::shared().fresh_table();
    let store = DynamoDb::open(&url, Options::default()).await.unwrap();
    for error in [store.prepare().await.unwrap_err(), store.examine().await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
        assert!(error.to_string().contains("there is no such table"), "{error}");
        assert!(error.to_string().contains("onlyonce migrate"), "{error}");
    }
    let error = store.load(id("k")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    let schema = store.schema().await.unwrap();
    assert_eq!((schema.version, schema.pending.len()), (0, 1));
    assert!(schema.pending[0].sql.contains("PAY_PER_REQUEST"), "{}", schema.pending[0].sql);
    // Five at once agree.
    let store = Arc::new(store);
    let creating: Vec<_> = (0..5)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.create().await })
        })
        .collect();
    for created in creating {
        created.await.unwrap().unwrap();
    }
    store.prepare().await.unwrap();
    assert_eq!(store.schema().await.unwrap().pending, []);
    assert_eq!(store.examine().await.unwrap(), []);
    put(&*store, "k").await;
}

/// E07: somebody else's table.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_with_another_key_is_refused() {
    let (server, url) = (Server::shared(), Server::shared().fresh_table());
    server.call(
        "CreateTable",
        &json!({
            "TableName": table(&url),
            "KeySchema": [{ "AttributeName": "id", "KeyType": "HASH" }],
            "AttributeDefinitions": [{ "AttributeName": "id", "AttributeType": "S" }],
            "BillingMode": "PAY_PER_REQUEST",
        }),
    );
    let error = DynamoDb::open(&url, Options::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("key is id (S), and must be id (B), part (S)"), "{error}");
}

/// E07: a table of a later release.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_another_layout_is_found() {
    let (server, url) = (Server::shared(), Server::shared().fresh_table());
    let store = created(&url, Options::default()).await;
    let item = server.items(&url).remove(0);
    let mut item = item.as_object().unwrap().clone();
    item.insert("layout".to_owned(), json!({ "N": "9" }));
    server.call("PutItem", &json!({ "TableName": table(&url), "Item": item }));
    let findings = store.examine().await.unwrap();
    assert_eq!((findings[0].level, findings[0].code), (Level::Error, "dynamodb.layout"));
    assert!(findings[0].says.contains("layout 9"), "{findings:?}");
}

/// X01: calls are signed, as the emulator verifies with AWS's own library.
#[tokio::test(flavor = "multi_thread")]
async fn credentials_that_are_wrong_are_refused() {
    let url = Server::shared().fresh_table();
    let secret = "wJalrXUtnFEMI/K7MDENG";
    created(&url, keys("AKIDTEST", secret, Some("session"))).await.prepare().await.unwrap();
    for (options, told) in [
        (keys("AKIDTEST", "wrong", Some("session")), "check the AWS secret access key"),
        (keys("AKIDTEST", secret, Some("expired")), "check the AWS credentials"),
        (keys("AKIDTEST", secret, None), "check the AWS credentials"),
        (keys("nobody", secret, None), "check the AWS credentials"),
        (keys("no\nheader", secret, None), "no header can have"),
    ] {
        let error = DynamoDb::open(&url, options).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
        assert!(error.to_string().contains(told), "{error}");
        assert!(!error.to_string().contains(secret), "{error}");
    }
}

/// X01: rights that are missing are told.
#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_is_missing_is_told() {
    let (server, url) = (Server::shared(), Server::shared().fresh_table());
    let store = created(&url, Options::default()).await;
    server.fault(&url, r#""operation":"GetItem","count":1,"status":400,"type":"AccessDeniedException""#);
    let error = store.load(id("k")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("docs/engines.md"), "{error}");
}

/// E07: what DynamoDB cannot do.
#[tokio::test(flavor = "multi_thread")]
async fn an_archive_and_messages_are_refused_by_name() {
    let url = Server::shared().fresh_table();
    let error =
        DynamoDb::open(&url, Options { expired: Expired::Keep, ..Options::default() }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().contains("expired = \"delete\""), "{error}");
    let store = created(&url, Options::default()).await;
    assert!(store.outbox().is_none());
    let change = Change::new(None, Revision(1), draft("k", Effects::Opaque, running()).1);
    let error = store.swap(id("k"), change.with_messages(vec![message("m")])).await.unwrap_err();
    // About one handler: a store that is misconfigured would be refused to everybody.
    assert_eq!(error.kind(), ErrorKind::Other);
    assert!(error.wrote_nothing() && error.to_string().contains("keeps no messages"), "{error}");
    assert!(store.load(id("k")).await.unwrap().is_none());
}

/// X05: what somebody else has written is not taken for something else.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_was_altered_is_refused() {
    let (server, url) = (Server::shared(), Server::shared().fresh_table());
    let store = created(&url, Options::default()).await;
    put(&store, "k").await;
    let items = server.items(&url);
    let whole = items.iter().find(|item| item.get("state").is_some()).unwrap().as_object().unwrap();
    for (name, value, told) in [
        ("state", json!({ "S": "done" }), "\"done\""),
        ("rest", json!({ "B": "AAAA" }), "cannot be read"),
        ("scope", json!({ "NULL": true }), "\"scope\""),
        ("attempt", json!({ "N": "1.5" }), "\"attempt\""),
    ] {
        let mut item = whole.clone();
        item.insert(name.to_owned(), value);
        server.call("PutItem", &json!({ "TableName": table(&url), "Item": item }));
        let error = store.load(id("k")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error}");
        assert!(error.to_string().contains(told), "{name}: {error}");
    }
}

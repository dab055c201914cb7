//! What stands beside a record, and nothing refers to any more: it is found and deleted, and never what is still referred to.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use onlyonce_core::record::{Effects, Revision, Seen, State};
use onlyonce_core::time::When;
use onlyonce_store::accepted::Request;
use onlyonce_store::dynamodb::{DynamoDb, Options};
use onlyonce_store::result::{PhaseResult, Results};
use onlyonce_store::{Change, Error, ErrorKind, Store, Swapped};
use onlyonce_testkit::engines::dynamodb::{Server, table};
use serde_json::json;

use super::faults::until;
use super::large::{LARGE, body, parts};
use super::{created, few_shards};
use crate::sqlite::world::{HOUR, completed, draft, id, running};

const LATER: When = When::AfterWrite(HOUR);
/// After that what is left is looked for.
const DAY: Duration = Duration::from_secs(24 * 3_600);
/// Both sendings of a call are executed, and both of their answers are lost.
const UNHEARD: &str = r#""count":2,"execute":true,"status":500,"type":"InternalServerError""#;
/// Neither is executed, as where its process dies before it.
const NOT_SENT: &str = r#""count":2,"status":500,"type":"InternalServerError""#;

/// A node whose clock a test sets.
pub(super) struct Node {
    pub(super) url: String,
    pub(super) store: Arc<DynamoDb>,
    pub(super) ahead: Arc<AtomicI64>,
}

impl Node {
    pub(super) async fn new() -> Self {
        Self::on(Server::shared().fresh_table()).await
    }

    pub(super) async fn on(url: String) -> Self {
        let ahead = Arc::<AtomicI64>::default();
        let store = created(&url, Options { ahead: ahead.clone(), ..few_shards() }).await;
        Self { url, store: Arc::new(store), ahead }
    }

    fn fault(&self, operation: &str, fault: &str) {
        Server::shared().fault(&self.url, &format!(r#""operation":"{operation}",{fault}"#));
    }

    fn passes(&self, span: Duration) {
        self.ahead.fetch_add(i64::try_from(span.as_micros()).unwrap(), Ordering::AcqRel);
    }

    pub(super) async fn write(&self, change: Change) -> Result<Seen, Error> {
        match self.store.swap(id("k"), change).await? {
            Swapped::Applied(seen) => Ok(seen),
            Swapped::Lost(seen) => panic!("it must apply, and was lost to {seen:?}"),
        }
    }

    /// Accepts work with a request of so many bytes.
    pub(super) async fn accept(
        &self,
        expected: Option<u64>,
        revision: u64,
        bytes: usize,
    ) -> Result<Seen, Error> {
        let next = draft("k", Effects::Opaque, State::Pending { expires_at: LATER }).1;
        let change = Change::new(expected.map(Revision), Revision(revision), next);
        self.write(change.with_request(Request::Put(body(bytes)))).await
    }

    /// The attempt ends so that the record and its request may be deleted by age at once.
    async fn give_up(&self, expected: u64, revision: u64, seen: &Seen) {
        let mut next = seen.record.draft();
        next.state = State::Retryable { retry_after: None, expires_at: When::WRITE, stuck_since: None };
        self.write(Change::new(Some(Revision(expected)), Revision(revision), next)).await.unwrap();
    }

    pub(super) async fn request(&self, seen: &Seen) -> Option<Bytes> {
        self.store.request(id("k"), seen.record.created_at).await.unwrap()
    }

    /// What is left a day later, once the reaper has come round.
    pub(super) async fn left(&self) -> Vec<String> {
        self.passes(2 * DAY);
        self.store.reap(9).await.unwrap();
        parts(&self.url)
    }
}

/// T03, W07: a reaper that is slow, and a later use of the key by a node whose clock is behind: what belongs to that use stays.
#[tokio::test(flavor = "multi_thread")]
async fn a_reaper_leaves_the_request_of_a_later_use() {
    let reaper = Node::new().await;
    let seen = reaper.accept(None, 1, 9).await.unwrap();
    reaper.give_up(1, 2, &seen).await;
    reaper.fault("Query", r#""count":2,"hold":true"#);
    // The reaper's first question is what has expired: two parts of an index. It is let go on, and its next one is held.
    let reaping = tokio::spawn({
        let store = reaper.store.clone();
        async move { store.reap(9).await }
    });
    let server = Server::shared();
    until("it asks", async || server.held(&reaper.url) == 2).await;
    reaper.fault("Query", r#""count":1,"hold":true,"release":true"#);
    until("it asks again", async || server.held(&reaper.url) == 1).await;
    let other = Node::on(reaper.url.clone()).await;
    other.ahead.store(-1_000_000, Ordering::Release);
    let stands = other.store.load(id("k")).await.unwrap();
    let later = other.accept(stands.map(|seen| seen.revision.0), 3, 7).await.unwrap();
    reaper.fault("Query", r#""count":0,"hold":true,"release":true"#);
    reaping.await.unwrap().unwrap();
    assert_eq!(other.request(&later).await, Some(body(7)));
    assert_eq!(other.left().await, ["0", "with.request"]);
}

/// M02, X05: the answer to the deletion of a record is lost: all of it is gone, or all of it is found.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_whose_answer_is_lost_leaves_nothing() {
    for bytes in [9, LARGE] {
        let node = Node::new().await;
        let seen = node.accept(None, 1, bytes).await.unwrap();
        node.give_up(1, 2, &seen).await;
        node.fault("TransactWriteItems", UNHEARD);
        let error = node.store.reap(9).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Unavailable && !error.wrote_nothing(), "{error}");
        assert_eq!(node.store.load(id("k")).await.unwrap(), None);
        assert_eq!(node.store.requests(9).await.unwrap(), 0, "it is not counted");
        assert_eq!(node.left().await, [""; 0]);
    }
}

/// M02, X05: the same of a large record.
#[tokio::test(flavor = "multi_thread")]
async fn pieces_of_a_record_whose_deletion_was_not_heard_of_are_found() {
    let node = Node::new().await;
    let next = draft("k", Effects::Opaque, super::large::completed(LARGE, When::WRITE)).1;
    node.write(Change::new(None, Revision(1), next)).await.unwrap();
    node.fault("DeleteItem", UNHEARD);
    node.store.reap(9).await.unwrap_err();
    assert_eq!(node.store.load(id("k")).await.unwrap(), None);
    assert_eq!(node.left().await, [""; 0]);
}

/// W07, M02: whoever writes a large request dies before its record is written.
#[tokio::test(flavor = "multi_thread")]
async fn pieces_of_a_write_that_never_came_to_its_end_are_found() {
    let node = Node::new().await;
    node.fault("TransactWriteItems", NOT_SENT);
    let error = node.accept(None, 1, LARGE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(parts(&node.url).len() >= 3, "{:?}", parts(&node.url));
    assert_eq!(node.left().await, [""; 0]);
    // And so of a large record that does not expire.
    let mut next = draft("k", Effects::Opaque, running()).1;
    let found = super::large::response(LARGE);
    next.progress.found = Some(Arc::new(found));
    node.fault("TransactWriteItems", NOT_SENT);
    node.write(Change::new(None, Revision(2), next.clone())).await.unwrap_err();
    assert_eq!(node.left().await, [""; 0]);
    // What is referred to stays, however often it is looked at.
    node.write(Change::new(None, Revision(3), next)).await.unwrap();
    for _ in 0..3 {
        assert_eq!(node.left().await.len(), 5);
        node.store.load(id("k")).await.unwrap().unwrap();
    }
    node.accept(Some(3), 4, LARGE).await.unwrap();
    for _ in 0..3 {
        assert_eq!(node.left().await.len(), 6);
    }
    let seen = node.store.load(id("k")).await.unwrap().unwrap();
    assert_eq!(node.request(&seen).await, Some(body(LARGE)));
}

/// X05: a write that stood still for days finds its pieces gone, and does not refer to them.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_pieces_were_deleted_meanwhile_is_refused() {
    let node = Node::new().await;
    node.fault("TransactWriteItems", r#""count":1,"hold":true"#);
    let writing = tokio::spawn({
        let store = node.store.clone();
        async move {
            let next = draft("k", Effects::Opaque, State::Pending { expires_at: LATER }).1;
            let change = Change::new(None, Revision(1), next).with_request(Request::Put(body(LARGE)));
            store.swap(id("k"), change).await
        }
    });
    let server = Server::shared();
    until("its pieces are written", async || server.held(&node.url) == 1).await;
    let other = Node::on(node.url.clone()).await;
    assert_eq!(other.left().await, [""; 0]);
    node.fault("TransactWriteItems", r#""count":0,"hold":true,"release":true"#);
    let error = writing.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert_eq!(parts(&node.url), [""; 0]);
    // It may be written anew, with the same revision.
    let seen = node.accept(None, 1, LARGE).await.unwrap();
    assert_eq!(node.request(&seen).await, Some(body(LARGE)));
}

/// W03, W07, M02: with `reap=ttl`, DynamoDB deletes the record and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn what_belonged_to_a_record_that_dynamodb_deleted_is_found() {
    let node = Node::on(Server::shared().fresh_table().replace("reap=index", "reap=ttl")).await;
    let seen = node.accept(None, 1, LARGE).await.unwrap();
    let mut next = seen.record.draft();
    next.state = completed(LATER);
    let result = PhaseResult { number: 1, phase: "charge".into(), json: "1".into() };
    let change = Change::new(Some(Revision(1)), Revision(2), next).with_results(Results::Add(result));
    node.write(change).await.unwrap();
    let all = parts(&node.url);
    assert_eq!(node.left().await, all, "the record stands, whether expired or not");
    let key = json!({ "id": super::large::head(&node.url)["id"], "part": { "S": "0" } });
    Server::shared().call("DeleteItem", &json!({ "TableName": table(&node.url), "Key": key }));
    assert_eq!(node.left().await, [""; 0]);
    assert_eq!(node.store.requests(9).await.unwrap(), 0);
}

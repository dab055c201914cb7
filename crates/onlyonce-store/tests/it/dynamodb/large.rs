//! Records and requests that are too large for one item, and what is encrypted.

use std::sync::Arc;

use bytes::Bytes;
use onlyonce_core::record::{Effects, Id, Response, Revision, Source, State};
use onlyonce_core::time::When;
use onlyonce_store::accepted::Request;
use onlyonce_store::dynamodb::{DynamoDb, Options};
use onlyonce_store::result::{PhaseResult, Results};
use onlyonce_store::seal::Keyring;
use onlyonce_store::{Change, ErrorKind, Order, Query, Store, Swapped};
use onlyonce_testkit::engines::dynamodb::{Server, table};
use serde_json::{Value, json};

use super::created;
use crate::sqlite::world::{HOUR, draft, id, insert, running};

/// Three pieces.
pub(super) const LARGE: usize = 1_000_000;
const LATER: When = When::AfterWrite(HOUR);

pub(super) fn body(bytes: usize) -> Bytes {
    (0..=u8::MAX).cycle().skip(3).take(bytes).collect::<Vec<_>>().into()
}

pub(super) fn response(bytes: usize) -> Response {
    Response { status: 200, headers: Vec::new(), body: body(bytes) }
}

pub(super) fn completed(bytes: usize, expires_at: When) -> State<When> {
    State::Completed { response: Some(Arc::new(response(bytes))), by: Source::Attempt, expires_at }
}

async fn write(
    store: &DynamoDb,
    key: &str,
    expected: Option<u64>,
    revision: u64,
    state: State<When>,
) -> Swapped {
    let next = draft(key, Effects::Opaque, state).1;
    store.swap(id(key), Change::new(expected.map(Revision), Revision(revision), next)).await.unwrap()
}

/// The parts of all items, without the store's own.
pub(super) fn parts(url: &str) -> Vec<String> {
    let part = |item: &Value| item["part"]["S"].as_str().unwrap().to_owned();
    let items = Server::shared().items(url);
    let mut parts: Vec<_> = items.iter().filter(|item| item.get("layout").is_none()).map(part).collect();
    parts.sort_unstable();
    parts
}

/// The item of the one record in the table.
pub(super) fn head(url: &str) -> Value {
    let items = Server::shared().items(url);
    items.into_iter().find(|item| item.get("state").is_some()).unwrap()
}

fn pieces(revision: u64) -> Vec<String> {
    (0..3).map(|number| format!("{revision:016x}.{number}")).collect()
}

/// The parts of a record in pieces, with their note.
fn whole(revision: u64) -> Vec<String> {
    [vec!["0".to_owned()], pieces(revision), vec![format!("note.{revision:016x}")]].concat()
}

/// S01, E07: byte for byte, by every way to read it; and its pieces go when it is replaced or deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_record_is_written_in_pieces_that_go_with_it() {
    let url = Server::shared().fresh_table();
    let store = created(&url, Options::default()).await;
    insert(&store, draft("k", Effects::Opaque, running()), 1).await.unwrap();
    let Swapped::Applied(written) = write(&store, "k", Some(1), 2, completed(LARGE, LATER)).await else {
        panic!("it must apply")
    };
    assert_eq!(parts(&url), whole(2));
    assert_eq!(store.load(id("k")).await.unwrap().unwrap().record, written.record);
    let page = store.scan(Query::all(9)).await.unwrap();
    assert_eq!(page.records[0].1.record, written.record);
    // A write that is lost is shown the whole record, and leaves no pieces.
    for expected in [None, Some(9)] {
        let Swapped::Lost(Some(seen)) = write(&store, "k", expected, 3, completed(LARGE, LATER)).await else {
            panic!("it must be lost")
        };
        assert_eq!(seen.record, written.record);
    }
    assert_eq!(parts(&url), whole(2));
    // Replaced by another large one, and then by a small one.
    assert!(matches!(
        write(&store, "k", Some(2), 4, completed(LARGE, When::WRITE)).await,
        Swapped::Applied(_)
    ));
    assert_eq!(parts(&url), whole(4));
    assert_eq!(store.reap(9).await.unwrap(), 1);
    assert_eq!(parts(&url), [""; 0], "deleted with its pieces");
    assert!(matches!(write(&store, "k", None, 5, completed(LARGE, LATER)).await, Swapped::Applied(_)));
    assert!(matches!(write(&store, "k", Some(5), 6, completed(7, LATER)).await, Swapped::Applied(_)));
    assert_eq!(parts(&url), ["0"]);
}

/// X05: a piece that is missing is no empty answer, and does not hide other records from workers.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_without_one_of_its_pieces_is_refused() {
    let (server, url) = (Server::shared(), Server::shared().fresh_table());
    let store = created(&url, Options::default()).await;
    assert!(matches!(write(&store, "k", None, 2, completed(LARGE, When::WRITE)).await, Swapped::Applied(_)));
    assert!(matches!(write(&store, "fine", None, 3, completed(9, When::WRITE)).await, Swapped::Applied(_)));
    let items = server.items(&url);
    let lost = items.iter().find(|item| item["part"]["S"] == *pieces(2)[1]).unwrap();
    let key = json!({ "id": lost["id"], "part": lost["part"] });
    server.call("DeleteItem", &json!({ "TableName": table(&url), "Key": key }));
    let error = store.load(id("k")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("some of its parts are missing"), "{error}");
    let due = store.scan(Query { order: Order::Due, ..Query::all(9) }).await.unwrap();
    assert_eq!(due.records.iter().map(|(id, _)| *id).collect::<Vec<Id>>(), [id("fine")]);
    assert_eq!(store.scan(Query::all(9)).await.unwrap_err().kind(), ErrorKind::Corrupt);
}

/// W07: a request in pieces, too, goes with the write that ends its work.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_request_is_stored_in_pieces_that_go_with_it() {
    let url = Server::shared().fresh_table();
    let store = created(&url, Options::default()).await;
    let next = draft("k", Effects::Opaque, State::Pending { expires_at: LATER }).1;
    let change = Change::new(None, Revision(1), next).with_request(Request::Put(body(LARGE)));
    let Swapped::Applied(seen) = store.swap(id("k"), change).await.unwrap() else { panic!("it must apply") };
    assert_eq!(parts(&url).len(), 6, "{:?}", parts(&url));
    assert_eq!(store.request(id("k"), seen.record.created_at).await.unwrap(), Some(body(LARGE)));
    let done = draft("k", Effects::Opaque, completed(9, LATER)).1;
    let change = Change::new(Some(Revision(1)), Revision(2), done).with_request(Request::Drop);
    assert!(matches!(store.swap(id("k"), change).await.unwrap(), Swapped::Applied(_)));
    assert_eq!(parts(&url), ["0"]);
}

/// L05: nothing that a client sent or was answered stands there in clear; without the key it is told, and not taken as absent.
#[tokio::test(flavor = "multi_thread")]
async fn answers_results_and_requests_are_encrypted() {
    const SECRET: &str = "cGxhaW4gc2VjcmV0"; // "plain secret" in Base64
    let url = Server::shared().fresh_table();
    let keyring = |number: u8| Some(Keyring::new([[number; 32]]).unwrap());
    let store = created(&url, Options { keyring: keyring(1), ..Options::default() }).await;
    let secret = || Bytes::from_static(b"plain secret");
    let next = draft("k", Effects::Opaque, running()).1;
    let result = PhaseResult { number: 1, phase: "charge".into(), json: "\"plain secret\"".into() };
    let change = Change::new(None, Revision(1), next)
        .with_results(Results::Add(result.clone()))
        .with_request(Request::Put(secret()));
    let Swapped::Applied(seen) = store.swap(id("k"), change).await.unwrap() else { panic!("it must apply") };
    let used_at = seen.record.created_at;
    let response = Response { status: 200, headers: Vec::new(), body: secret() };
    let state =
        State::Completed { response: Some(Arc::new(response)), by: Source::Attempt, expires_at: LATER };
    let Swapped::Applied(done) = write(&store, "k", Some(1), 2, state).await else { panic!("it must apply") };
    let stored = Value::from(Server::shared().items(&url)).to_string();
    assert!(!stored.contains(SECRET) && !stored.contains("plain secret"), "{stored}");
    assert_eq!(store.load(id("k")).await.unwrap().unwrap().record, done.record);
    assert_eq!(store.results(id("k"), used_at).await.unwrap(), [result]);
    assert_eq!(store.request(id("k"), used_at).await.unwrap(), Some(secret()));
    let used = store.keys_in_use().await.unwrap();
    assert_eq!(used.iter().map(|key| (key.rows, key.is_known)).collect::<Vec<_>>(), [(3, true)]);
    let other = DynamoDb::open(&url, Options { keyring: keyring(2), ..Options::default() }).await.unwrap();
    assert_eq!(other.load(id("k")).await.unwrap_err().kind(), ErrorKind::Undecryptable);
    assert_eq!(other.request(id("k"), used_at).await.unwrap_err().kind(), ErrorKind::Undecryptable);
    assert_eq!(other.scan(Query::all(9)).await.unwrap().unreadable.len(), 1);
}

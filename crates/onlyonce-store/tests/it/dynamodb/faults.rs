//! DynamoDB throttles, is in trouble, stands still, is away, or its answers are lost: nothing is written twice, and nothing hangs.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use onlyonce_core::record::{Effects, Revision, Seen};
use onlyonce_core::time::When;
use onlyonce_store::dynamodb::{DynamoDb, Options};
use onlyonce_store::{Change, Error, ErrorKind, Store, Swapped};
use onlyonce_testkit::engines::dynamodb::{self, Server};
use onlyonce_testkit::wire::{Direction, Wire};

use super::{created, fresh};
use crate::sqlite::world::{HOUR, completed, draft, id, insert, put, running};

/// How long anything may take before the test is over: a bound, never a pause.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let over = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < over, "it never came to this: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn reserve(store: &DynamoDb, key: &str, revision: u64) -> Result<Swapped, Error> {
    store.swap(id(key), Change::new(None, Revision(revision), draft(key, Effects::Opaque, running()).1)).await
}

/// The record that a write was lost to, which must be the write itself.
#[track_caller]
fn own(swapped: &Swapped, revision: u64) -> &Seen {
    match swapped {
        Swapped::Lost(Some(seen)) if seen.revision == Revision(revision) => seen,
        other @ (Swapped::Applied(_) | Swapped::Lost(_)) => {
            panic!("it must find itself, and found {other:?}")
        }
    }
}

/// X01: what is throttled is sent again once, and has then written nothing.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_throttled_is_sent_again_and_then_refused() {
    let (server, url) = (Server::shared(), Server::shared().fresh_table());
    let store = created(&url, Options::default()).await;
    for kind in
        ["ThrottlingException", "ProvisionedThroughputExceededException", "TransactionConflictException"]
    {
        let fault = |count| format!(r#""operation":"PutItem","count":{count},"status":400,"type":"{kind}""#);
        server.fault(&url, &fault(1));
        assert!(matches!(reserve(&store, kind, 1).await.unwrap(), Swapped::Applied(_)), "{kind}");
        server.fault(&url, &fault(2));
        let error = reserve(&store, &format!("{kind} again"), 1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.wrote_nothing() && error.to_string().contains(kind), "{error}");
    }
}

/// X05: an answer of 5xx says nothing about the write. Sent again, it finds itself.
#[tokio::test(flavor = "multi_thread")]
async fn what_ended_with_a_server_error_is_recognised_by_its_revision() {
    let (server, url) = (Server::shared(), Server::shared().fresh_table());
    let store = created(&url, Options::default()).await;
    let fault = r#""operation":"PutItem","status":500,"type":"InternalServerError""#;
    server.fault(&url, &format!(r#"{fault},"count":1,"execute":true"#));
    own(&reserve(&store, "executed", 7).await.unwrap(), 7);
    server.fault(&url, &format!(r#"{fault},"count":2"#));
    let error = reserve(&store, "in doubt", 7).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(!error.wrote_nothing(), "nobody knows: {error}");
    assert!(store.load(id("in doubt")).await.unwrap().is_none());
    // Refused after a doubt is still a doubt.
    server.fault(&url, &format!(r#"{fault},"count":1"#));
    server.fault(&url, r#""operation":"PutItem","status":400,"type":"ThrottlingException","count":1"#);
    let error = reserve(&store, "in doubt", 7).await.unwrap_err();
    assert!(!error.wrote_nothing(), "{error}");
}

async fn behind_a_wire() -> (Wire, Arc<DynamoDb>, DynamoDb) {
    let url = Server::shared().fresh_table();
    let direct = created(&url, Options::default()).await;
    let wire = Wire::to(Server::shared().port()).unwrap();
    let url = dynamodb::url(dynamodb::table(&url), wire.address().port());
    let options = Options { request_timeout: Duration::from_secs(2), ..Options::default() };
    let store = DynamoDb::open(&format!("{url}&connect_timeout=1"), options).await.unwrap();
    store.prepare().await.unwrap();
    (wire, Arc::new(store), direct)
}

/// X01: what does not answer is given up in time, and a write is then in doubt.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stands_still_is_given_up_in_time() {
    let (wire, store, _) = behind_a_wire().await;
    put(&*store, "before").await;
    wire.hold(Direction::ToServer);
    let began = Instant::now();
    let error = store.load(id("before")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("no answer within 2000 ms"), "{error}");
    let error = reserve(&store, "k", 7).await.unwrap_err();
    assert!(!error.wrote_nothing(), "it may still be executed: {error}");
    let looks: Vec<_> = (0..50)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.load(id("before")).await })
        })
        .collect();
    for look in looks {
        assert_eq!(look.await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    }
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    wire.mend();
    until("it answers", async || store.load(id("before")).await.is_ok()).await;
}

/// X05: the answer is lost after the write was executed. The write is sent again on another connection, and finds itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_answer_is_lost_finds_itself() {
    let (wire, store, direct) = behind_a_wire().await;
    put(&*store, "before").await;
    wire.hold(Direction::ToClient);
    let writing = {
        let store = store.clone();
        tokio::spawn(async move { reserve(&store, "k", 7).await })
    };
    until("it is executed", async || direct.load(id("k")).await.unwrap().is_some()).await;
    wire.cut();
    wire.mend();
    own(&writing.await.unwrap().unwrap(), 7);
}

/// X01: what was never sent has written nothing; what is back is used again.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_is_used_again() {
    let (wire, store, _) = behind_a_wire().await;
    put(&*store, "before").await;
    wire.vanish();
    // A connection that was open finds out at its first use.
    until("nothing is sent", async || reserve(&store, "k", 7).await.unwrap_err().wrote_nothing()).await;
    let error = store.load(id("before")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("check that 127.0.0.1"), "{error}");
    wire.mend();
    until("it answers", async || store.load(id("before")).await.is_ok()).await;
    assert!(matches!(reserve(&store, "k", 7).await.unwrap(), Swapped::Applied(_)));
}

/// R08: the calendar of this machine is ten minutes behind the server's, and the server's counts: for signatures, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_a_wrong_calendar_changes_nothing() {
    const AHEAD: Duration = Duration::from_secs(600);
    let (server, url) = (Server::shared(), Server::shared().fresh_table());
    let first = created(&url, Options::default()).await;
    let seen = put(&first, "k").await;
    server.fault(&url, r#""ahead":600"#);
    let store = DynamoDb::open(&url, Options::default()).await.unwrap();
    let now = store.load(id("k")).await.unwrap().unwrap().now;
    let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap() + AHEAD;
    let differs = i64::try_from(wall.as_micros()).unwrap() - now.as_micros();
    assert!((0..2_000_000).contains(&differs), "it is {differs} us behind the server");
    // A node that has not been told is behind: it stamps its write with the time of the record that it replaces.
    let later = insert(&store, draft("later", Effects::Opaque, running()), 1).await.unwrap();
    assert!(later.record.written_at.since(seen.record.written_at) > AHEAD / 2);
    let done = draft("later", Effects::Opaque, completed(When::AfterWrite(HOUR))).1;
    let slow = fresh(Options::default()).await;
    assert!(slow.load(id("later")).await.unwrap().is_none(), "another table");
    let swapped = first.swap(id("later"), Change::new(Some(Revision(1)), Revision(2), done)).await.unwrap();
    let Swapped::Applied(done) = swapped else { panic!("{swapped:?}") };
    assert!(done.record.written_at >= later.record.written_at);
}

/// E07: answers without a date are told.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_date_its_answers_is_found() {
    let (server, url) = (Server::shared(), Server::shared().fresh_table());
    let store = created(&url, Options::default()).await;
    let codes = async || {
        let findings = store.examine().await.unwrap();
        findings.into_iter().map(|finding| finding.code).collect::<Vec<_>>()
    };
    assert_eq!(codes().await, [""; 0]);
    server.fault(&url, r#""undated":true"#);
    put(&store, "k").await;
    assert_eq!(codes().await, ["dynamodb.clock"]);
}

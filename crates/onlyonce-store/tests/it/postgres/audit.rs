//! The audit log as people see it, in the caller's own transaction, and while somebody holds a row.

use std::time::Duration;

use onlyonce_core::record::{Effects, Id, Revision, Token};
use onlyonce_core::time::When;
use onlyonce_store::audit::{Entry, Query};
use onlyonce_store::postgres::{Options, Postgres};
use onlyonce_store::{Change, ErrorKind, Expired, Store, Swapped};
use onlyonce_testkit::engines::postgres::Server;
use tokio_postgres::{Client, NoTls};

use crate::sqlite::world::{HOUR, completed, draft, id, insert, message, running, wanted};

async fn world() -> (Postgres, Client) {
    let url = Server::shared().fresh_schema();
    let schema = url.split_once("schema=").unwrap().1;
    let options =
        Options { lock_wait: Duration::from_millis(50), expired: Expired::Keep, ..Options::default() };
    let store = Postgres::open(&url, options).await.unwrap();
    store.prepare().await.unwrap();
    let (client, connection) =
        tokio_postgres::connect(&Server::shared().url("postgres"), NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(&format!("SET search_path = {schema}")).await.unwrap();
    (store, client)
}

fn entry(id: &str) -> Entry {
    Entry {
        id: id.into(),
        who: "ann".into(),
        role: "operate".into(),
        via: "cli".into(),
        action: "verdict".into(),
        scope: Some([1; 32]),
        scope_label: Some("acme".into()),
        key: Some("k".into()),
        record: Some(Id([0xab; 32])),
        reason: Some("checked with the bank".into()),
        result: "applied".into(),
        ..Entry::default()
    }
}

async fn log(store: &Postgres) -> Vec<Entry> {
    let page = store.audit().list(Query { limit: 9, ..Query::default() }).await.unwrap();
    page.entries.into_iter().map(|written| written.entry).collect()
}

fn complete(expected: u64) -> Change {
    let (_, next) = draft("k", Effects::Local, completed(When::AfterWrite(HOUR)));
    let change = Change::new(Some(Revision(expected)), Revision(2), next);
    change.with_messages(vec![message("m")]).with_audit(Some(entry("e1")))
}

/// O01, E09
#[tokio::test(flavor = "multi_thread")]
async fn the_log_can_be_read_with_psql() {
    let (store, client) = world().await;
    store.audit().write(entry("e1")).await.unwrap();
    let refused =
        Entry { forced: true, result: "refused".into(), code: Some("record_running".into()), ..entry("e2") };
    store.audit().write(refused).await.unwrap();
    let sql = "SELECT string_agg(concat_ws('|', who, action, scope_label, key, reason, forced, result, code,
                   left(scope, 4), left(record, 4), at <= clock_timestamp()), E'\\n') FROM onlyonce_log";
    let told: String = client.query_one(sql, &[]).await.unwrap().get(0);
    assert_eq!(
        told,
        "ann|verdict|acme|k|checked with the bank|t|refused|record_running|0101|abab|t\n\
         ann|verdict|acme|k|checked with the bank|f|applied|0101|abab|t",
        "newest first"
    );
}

/// O01: an entry goes with the transaction of the caller that its change is in.
#[tokio::test(flavor = "multi_thread")]
async fn an_entry_commits_or_goes_with_the_users_own_transaction() {
    for commits in [true, false] {
        let (store, mut client) = world().await;
        insert(&store, draft("k", Effects::Local, running()), 1).await.unwrap();
        let transaction = client.transaction().await.unwrap();
        let lost = store.swap_in(&transaction, id("k"), complete(7)).await.unwrap();
        assert!(matches!(lost, Swapped::Lost(Some(_))), "{lost:?}");
        let applied = store.swap_in(&transaction, id("k"), complete(1)).await.unwrap();
        assert!(matches!(applied, Swapped::Applied(_)), "{applied:?}");
        assert_eq!(log(&store).await, []);
        match commits {
            true => transaction.commit().await.unwrap(),
            false => transaction.rollback().await.unwrap(),
        }
        assert_eq!(log(&store).await, if commits { vec![entry("e1")] } else { Vec::new() });
    }
}

/// O01: text that the server cannot hold is no reason to refuse an order, and a question about it none to fail.
#[tokio::test(flavor = "multi_thread")]
async fn text_with_nul_is_written_and_asked_for() {
    let (store, _client) = world().await;
    store
        .audit()
        .write(Entry { reason: Some("a\0b".into()), who: "\0".into(), ..entry("e1") })
        .await
        .unwrap();
    let asked = Query { who: Some("\0".into()), limit: 9, ..Query::default() };
    let page = store.audit().list(asked).await.unwrap();
    assert_eq!(
        page.entries.iter().map(|written| written.entry.reason.as_deref()).collect::<Vec<_>>(),
        [Some("a\u{fffd}b")]
    );
}

/// S06: an erasure does not leave behind what somebody holds; it says so.
#[tokio::test(flavor = "multi_thread")]
async fn an_erasure_that_meets_a_held_record_fails_and_is_repeated() {
    let (store, client) = world().await;
    for key in ["a", "b", "c"] {
        insert(&store, draft(key, Effects::Opaque, completed(When::WRITE)), 1).await.unwrap();
    }
    store.audit().write(entry("e1")).await.unwrap();
    client.batch_execute("BEGIN; SELECT 1 FROM onlyonce_record WHERE key = 'b' FOR UPDATE").await.unwrap();
    let error = store.erase([1; 32], 100).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert_eq!(log(&store).await, [entry("e1")]);
    client.batch_execute("COMMIT").await.unwrap();
    while store.erase([1; 32], 100).await.unwrap() > 0 {}
    let left = client.query_one("SELECT count(*) FROM onlyonce_record", &[]).await.unwrap();
    assert_eq!(left.get::<_, i64>(0), 0);
    assert_eq!(log(&store).await, [Entry { key: None, scope_label: None, ..entry("e1") }]);
}

/// O01: no entry, no change.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_whose_entry_cannot_be_written_is_not_made() {
    let (store, client) = world().await;
    let reserved = insert(&store, draft("k", Effects::Local, running()), 1).await.unwrap();
    client.batch_execute("ALTER TABLE onlyonce_audit ADD CHECK (who <> 'ann')").await.unwrap();
    let error = store.swap(id("k"), complete(1)).await.unwrap_err();
    assert!(error.wrote_nothing(), "{error}");
    let seen = store.load(id("k")).await.unwrap().unwrap();
    assert_eq!((seen.revision, seen.record), (reserved.revision, reserved.record));
    assert_eq!(store.outbox().unwrap().claim(Token([1; 16]), &[wanted(HOUR)]).await.unwrap().claimed, []);
    assert_eq!(log(&store).await, []);
}

//! A swap inside the caller's own transaction.

use onlyonce_core::record::{Effects, Revision, Token};
use onlyonce_core::time::When;
use onlyonce_store::outbox::Outbox as _;
use onlyonce_store::postgres::{Options, Postgres};
use onlyonce_store::{Change, ErrorKind, Store, Swapped};
use onlyonce_testkit::engines::postgres::Server;
use std::time::Duration;
use tokio_postgres::{Client, IsolationLevel, NoTls};

use crate::sqlite::world::{HOUR, completed, draft, id, insert, message, running, wanted};

/// A store, and a user's connection with a table of its own.
async fn world() -> (Postgres, Client) {
    let url = Server::shared().fresh_schema();
    let schema = url.split_once("schema=").unwrap().1;
    let options = Options { lock_wait: Duration::from_millis(50), ..Options::default() };
    let store = Postgres::open(&url, options).await.unwrap();
    store.prepare().await.unwrap();
    let (client, connection) =
        tokio_postgres::connect(&Server::shared().url("postgres"), NoTls).await.unwrap();
    tokio::spawn(connection);
    let table = format!("SET search_path = {schema}; CREATE TABLE payment (amount integer)");
    client.batch_execute(&table).await.unwrap();
    (store, client)
}

async fn payments(client: &Client) -> i64 {
    client.query_one("SELECT count(*) FROM payment", &[]).await.unwrap().get(0)
}

fn complete(expected: u64) -> Change {
    let (_, next) = draft("k", Effects::Local, completed(When::AfterWrite(HOUR)));
    Change::new(Some(Revision(expected)), Revision(2), next).with_messages(vec![message("m")])
}

/// W01: the record, its message and the user's rows are there together, or none of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_completion_commits_or_goes_with_the_users_own_rows() {
    for commits in [true, false] {
        let (store, mut client) = world().await;
        let reserved = insert(&store, draft("k", Effects::Local, running()), 1).await.unwrap();
        let transaction = client.transaction().await.unwrap();
        transaction.execute("INSERT INTO payment VALUES (120)", &[]).await.unwrap();
        let Swapped::Applied(done) = store.swap_in(&transaction, id("k"), complete(1)).await.unwrap() else {
            panic!("nobody else has written")
        };
        let seen = store.load(id("k")).await.unwrap().unwrap();
        assert_eq!(
            (seen.revision, seen.record),
            (reserved.revision, reserved.record.clone()),
            "not committed yet"
        );
        match commits {
            true => transaction.commit().await.unwrap(),
            false => transaction.rollback().await.unwrap(),
        }
        let seen = store.load(id("k")).await.unwrap().unwrap();
        let expected =
            if commits { (done.revision, done.record) } else { (reserved.revision, reserved.record) };
        assert_eq!((seen.revision, seen.record), expected);
        let messages = store.claim(Token([1; 16]), &[wanted(HOUR)]).await.unwrap().claimed.len();
        assert_eq!((payments(&client).await, messages), if commits { (1, 1) } else { (0, 0) });
    }
}

/// R01, R05: what is lost changes nothing, and shows what stands there; the transaction can go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_swap_that_is_lost_in_a_transaction_shows_what_stands_there() {
    let (store, mut client) = world().await;
    let stands = insert(&store, draft("k", Effects::Local, running()), 7).await.unwrap();
    let transaction = client.transaction().await.unwrap();
    let (_, again) = draft("k", Effects::Local, running());
    for change in [complete(1), Change::new(None, Revision(3), again)] {
        let Swapped::Lost(Some(seen)) = store.swap_in(&transaction, id("k"), change).await.unwrap() else {
            panic!("another revision stands there")
        };
        assert_eq!((seen.revision, seen.record), (stands.revision, stands.record.clone()));
    }
    assert_eq!(store.swap_in(&transaction, id("gone"), gone()).await.unwrap(), Swapped::Lost(None));
    transaction.commit().await.unwrap();
    assert_eq!(store.claim(Token([1; 16]), &[wanted(HOUR)]).await.unwrap().claimed, []);
}

fn gone() -> Change {
    Change::new(Some(Revision(1)), Revision(2), draft("gone", Effects::Local, running()).1)
}

/// R04, X02: while the transaction is open nobody else can write the record, and nobody waits for long.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_a_transaction_has_written_is_busy_until_it_ends() {
    let (store, mut client) = world().await;
    insert(&store, draft("k", Effects::Local, running()), 1).await.unwrap();
    let transaction = client.transaction().await.unwrap();
    store.swap_in(&transaction, id("k"), complete(1)).await.unwrap();
    let (id, next) = draft("k", Effects::Local, running());
    let renewal = Change::new(Some(Revision(1)), Revision(9), next);
    let error = store.swap(id, renewal.clone()).await.unwrap_err();
    assert_eq!((error.kind(), error.wrote_nothing()), (ErrorKind::Busy, true), "{error}");
    transaction.commit().await.unwrap();
    let Swapped::Lost(Some(seen)) = store.swap(id, renewal).await.unwrap() else { panic!("it is completed") };
    assert_eq!(seen.revision, Revision(2));
}

/// R05: at a stricter level of isolation a record that was written meanwhile fails the transaction, which is to be retried.
#[tokio::test(flavor = "multi_thread")]
async fn at_repeatable_read_a_record_that_changed_meanwhile_fails_the_transaction() {
    let (store, mut client) = world().await;
    insert(&store, draft("k", Effects::Local, running()), 1).await.unwrap();
    let strict = client.build_transaction().isolation_level(IsolationLevel::RepeatableRead);
    let transaction = strict.start().await.unwrap();
    transaction.query("SELECT * FROM payment", &[]).await.unwrap();
    let (id, next) = draft("k", Effects::Local, running());
    store.swap(id, Change::new(Some(Revision(1)), Revision(5), next)).await.unwrap();
    let error = store.swap_in(&transaction, id, complete(1)).await.unwrap_err();
    assert_eq!((error.kind(), error.wrote_nothing()), (ErrorKind::Unavailable, true), "{error}");
    assert!(error.to_string().contains("40001"), "{error}");
}

//! A swap in a transaction of the user's own, by any driver, is the swap that the store itself would have made.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, Value as Own};
use onlyonce_core::machine;
use onlyonce_core::record::{Effects, Handle, Id, Response, Revision, Token};
use onlyonce_core::time::{Timestamp, When};
use onlyonce_store::conformance::random::Random;
use onlyonce_store::mysql::{Mysql, Options};
use onlyonce_store::outbox::{Message, OnDead, Outbox as _, Wanted};
use onlyonce_store::result::{PhaseResult, Results};
use onlyonce_store::seal::Keyring;
use onlyonce_store::user::{Completion, LockWait, Statement, Value};
use onlyonce_store::{Change, KeyUse, Store as _};
use onlyonce_testkit::engines::mariadb::Server;

use crate::sealed::keyring;
use crate::sqlite::world::{draft, insert, running};

/// How many random records are written, each inserted and then updated.
const RANDOM: u64 = 300;
const DUPLICATE: u16 = 1062;

/// As a driver does it that counts the rows that were found.
async fn run(connection: &mut Conn, statement: &Statement) -> Option<i64> {
    let own = |value: &Value| match value {
        Value::Bytes(bytes) => Own::from(bytes),
        Value::Text(text) => Own::from(text),
        Value::Integer(integer) => Own::from(integer),
        Value::Flag(flag) => Own::from(flag),
    };
    let values: Vec<Own> = statement.values.iter().map(own).collect();
    match connection.exec_iter(&*statement.sql, values).await {
        Ok(result) => {
            let is_changed = result.affected_rows() > 0;
            let stamp = result.last_insert_id();
            result.drop_result().await.unwrap();
            is_changed.then(|| stamp.unwrap_or(0).cast_signed())
        }
        Err(mysql_async::Error::Server(error)) if error.code == DUPLICATE => None,
        Err(error) => panic!("{error:?}\n{}", statement.sql),
    }
}

/// A store, and a connection of the user's in another database of the same server.
async fn world(keyring: Option<Keyring>) -> (Mysql, Conn) {
    let server = Server::shared();
    let url = server.url(&server.fresh_database());
    let store = Mysql::open(&url, Options { keyring, ..Options::default() }).await.unwrap();
    store.prepare().await.unwrap();
    let url = format!("{}?client_found_rows=true", server.url("mysql"));
    (store, Conn::new(Opts::from_url(&url).unwrap()).await.unwrap())
}

/// W09, L05: what the library completes and sends in a user's transaction is encrypted, and nodes read it.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_user_completes_and_sends_is_encrypted() {
    let keyring = keyring(&[1]);
    let (store, mut connection) = world(Some(keyring.clone())).await;
    let response = Arc::new(Response {
        status: 201,
        headers: vec![(HeaderName::from_static("x-note"), HeaderValue::from_static("paid"))],
        body: Bytes::from_static(b"answer"),
    });
    let (id, next) = draft("library", Effects::Local, running());
    let seen = insert(&store, (id, next), 1).await.unwrap();
    let handle = Handle { id, token: seen.record.token };
    run(&mut connection, &store.hold_statement(handle)).await;
    let message = Message::new("m", "billing", Bytes::from_static(b"payload"));
    run(&mut connection, &store.send_statement(handle, &message)).await;
    let completion = Completion {
        status: 201,
        headers: r#"{"x-note":["paid"]}"#.to_owned(),
        response: Some(response.clone()),
        keep_us: Some(7_000_001),
    };
    run(&mut connection, &store.complete_statement(handle, completion)).await;
    let seen = store.load(id).await.unwrap().unwrap();
    let (stored, expires_at) = machine::stored(&seen.record).unwrap();
    assert_eq!(stored, &*response);
    assert_eq!(expires_at.as_micros() - seen.record.written_at.as_micros(), 7_000_001);
    let wanted =
        Wanted { destination: "billing".into(), limit: 9, lease: Duration::ZERO, on_dead: OnDead::Block };
    let claimed = store.claim(Token([1; 16]), &[wanted]).await.unwrap().claimed;
    assert_eq!(claimed[0].payload.clone().unwrap(), "payload");
    let used = KeyUse { id: keyring.first(), rows: 2, is_known: true };
    assert_eq!(store.keys_in_use().await.unwrap(), [used]);
}

/// W09, L05: the procedure for what is encrypted takes nothing else: in clear it would pass by what is checked of headers.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_in_clear_is_refused_by_the_procedure_for_encrypted_ones() {
    let server = Server::shared();
    let database = server.fresh_database();
    let store = Mysql::open(&server.url(&database), Options::default()).await.unwrap();
    store.prepare().await.unwrap();
    let (id, next) = draft("k", Effects::Local, running());
    let seen = insert(&store, (id, next), 1).await.unwrap();
    let handle = Handle { id, token: seen.record.token }.to_string();
    let mut connection = Conn::new(Opts::from_url(&server.url(&database)).unwrap()).await.unwrap();
    for arguments in [
        "201, 'set-cookie: a=b', 'body', NULL, NULL",
        "201, 'set-cookie: a=b', 'body', NULL, ''",
        "201, 'set-cookie: a=b', 'body', NULL, X'0102'",
        "201, NULL, 'body', NULL, X'0102030405060708'",
        "201, 'x: y', NULL, NULL, X'0102030405060708'",
        "99, 'x: y', 'body', NULL, X'0102030405060708'",
    ] {
        let sql = format!("CALL onlyonce_complete_sealed('{handle}', {arguments})");
        let error = connection.query_drop(&sql).await.unwrap_err();
        let mysql_async::Error::Server(error) = error else { panic!("{error:?}") };
        assert_eq!(error.state, "22023", "{arguments}");
    }
    assert_eq!(store.load(id).await.unwrap().unwrap().record, seen.record);
}

/// W01, W03, P07: whatever the session's time zone, modes and database.
#[tokio::test(flavor = "multi_thread")]
async fn a_swap_in_a_users_transaction_writes_what_the_store_would() {
    swaps_are_the_stores(None).await;
}

/// W01, L05: the same, encrypted.
#[tokio::test(flavor = "multi_thread")]
async fn a_swap_in_a_users_transaction_is_encrypted_as_the_store_would() {
    swaps_are_the_stores(Some(keyring(&[1]))).await;
}

async fn swaps_are_the_stores(keyring: Option<Keyring>) {
    let (store, mut connection) = world(keyring).await;
    connection.query_drop("SET time_zone = '-05:00', sql_mode = 'ANSI', NAMES utf8mb4").await.unwrap();
    for seed in 0..RANDOM {
        let first = Random::new(seed).draft();
        let id = Id::of(&first.scope, &first.key);
        let mut expected = None;
        let lock_wait = if seed % 2 == 0 { LockWait::OfSession } else { LockWait::Shortly };
        for (revision, mut draft) in [(1, first.clone()), (2, Random::new(seed + RANDOM).draft())] {
            (draft.scope, draft.key) = (first.scope.clone(), first.key.clone());
            if revision == 2 {
                draft.created_at =
                    When::At(draft.created_at.stamp(Timestamp::from_micros(1_700_000_000_123_457)));
            }
            let result = PhaseResult { number: 1, phase: "charged".into(), json: "[7]".into() };
            let results = if revision == 2 { Results::Add(result.clone()) } else { Results::Keep };
            let change = Change::new(expected, Revision(revision), draft.clone()).with_results(results);
            let lost = Change { expected: Some(Revision(99)), ..change.clone() };
            let lost = store.swap_statements(id, lost, LockWait::OfSession).unwrap();
            assert_eq!(run(&mut connection, &lost[0]).await, None, "seed {seed}");
            let statements = store.swap_statements(id, change.clone(), lock_wait).unwrap();
            let written_at = run(&mut connection, &statements[0]).await.expect("it is written");
            for statement in &statements[1..] {
                run(&mut connection, statement).await;
            }
            let seen = store.load(id).await.unwrap().expect("it is there");
            assert_eq!(*seen.record, draft.stamp(Timestamp::from_micros(written_at)), "seed {seed}");
            assert_eq!(seen.revision, Revision(revision));
            if revision == 2 {
                assert_eq!(store.results(id, seen.record.created_at).await.unwrap(), [result], "seed {seed}");
            }
            let again = Change { expected: None, ..change };
            let again = store.swap_statements(id, again, LockWait::Shortly).unwrap();
            assert_eq!(run(&mut connection, &again[0]).await, None, "it is there already");
            expected = Some(Revision(revision));
        }
    }
}

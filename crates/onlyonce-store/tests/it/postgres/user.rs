//! A swap in a transaction of the user's own, by any driver, is the swap that the store itself would have made.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use onlyonce_core::machine;
use onlyonce_core::record::{Effects, Handle, Id, Response, Revision, Token};
use onlyonce_core::time::{Timestamp, When};
use onlyonce_store::conformance::random::Random;
use onlyonce_store::outbox::{Message, OnDead, Outbox as _, Wanted};
use onlyonce_store::postgres::user::{Completion, LockWait, Statement, Value};
use onlyonce_store::postgres::{Options, Postgres};
use onlyonce_store::result::{PhaseResult, Results};
use onlyonce_store::seal::Keyring;
use onlyonce_store::{Change, KeyUse, Store as _};
use onlyonce_testkit::engines::postgres::Server;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, NoTls};

use crate::sealed::keyring;
use crate::sqlite::world::{draft, insert, running};

/// How many random records are written, each inserted and then updated.
const RANDOM: u64 = 300;

async fn run(client: &Client, statement: &Statement) -> Option<i64> {
    query(client, statement).await.unwrap_or_else(|error| panic!("{error:?}\n{}", statement.sql))
}

async fn query(client: &Client, statement: &Statement) -> Result<Option<i64>, tokio_postgres::Error> {
    let typed = statement.values.iter().map(|value| match value {
        Value::Bytes(bytes) => (bytes as &(dyn ToSql + Sync), Type::BYTEA),
        Value::Text(text) => (text as &(dyn ToSql + Sync), Type::TEXT),
        Value::Integer(integer) => (integer as &(dyn ToSql + Sync), Type::INT8),
        Value::Flag(flag) => (flag as &(dyn ToSql + Sync), Type::BOOL),
    });
    let rows = client.query_typed(&statement.sql, &typed.collect::<Vec<_>>()).await;
    Ok(rows?.first().map(|row| row.get(0)))
}

async fn world(keyring: Option<Keyring>) -> (Postgres, Client) {
    let url = Server::shared().fresh_schema();
    let store = Postgres::open(&url, Options { keyring, ..Options::default() }).await.unwrap();
    store.prepare().await.unwrap();
    let (client, connection) =
        tokio_postgres::connect(&Server::shared().url("postgres"), NoTls).await.unwrap();
    tokio::spawn(connection);
    let schema = url.split_once("schema=").unwrap().1;
    client.batch_execute(&format!("SET search_path = {schema}")).await.unwrap();
    (store, client)
}

/// W09, L05: what the library completes and sends in a user's transaction is encrypted, and what SQL does itself is not: nodes
/// read both.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_user_completes_and_sends_is_encrypted_and_sql_stores_in_clear() {
    let keyring = keyring(&[1]);
    let (store, client) = world(Some(keyring.clone())).await;
    let response = Arc::new(Response {
        status: 201,
        headers: vec![(HeaderName::from_static("x-note"), HeaderValue::from_static("paid"))],
        body: Bytes::from_static(b"answer"),
    });
    for key in ["library", "sql"] {
        let (id, next) = draft(key, Effects::Local, running());
        let seen = insert(&store, (id, next), 1).await.unwrap();
        let handle = Handle { id, token: seen.record.token };
        if key == "library" {
            let message = Message::new("m", "billing", Bytes::from_static(b"payload"));
            run(&client, &store.send_statement(handle, &message)).await;
            let completion = Completion {
                status: 201,
                headers: r#"{"x-note":["paid"]}"#.to_owned(),
                response: Some(response.clone()),
                keep_us: None,
            };
            run(&client, &store.complete_statement(handle, completion)).await;
        } else {
            let sql = "SELECT onlyonce_send('billing', 'payload', key => 'n')";
            client.execute(sql, &[]).await.unwrap();
            let sql = "SELECT onlyonce_complete($1, 201, '{\"x-note\": \"paid\"}', 'answer')";
            client.execute(sql, &[&handle.to_string()]).await.unwrap();
        }
        let seen = store.load(id).await.unwrap().unwrap();
        assert_eq!(machine::stored(&seen.record).unwrap().0, &*response, "{key}");
    }
    let wanted =
        Wanted { destination: "billing".into(), limit: 9, lease: Duration::ZERO, on_dead: OnDead::Block };
    let claimed = store.claim(Token([1; 16]), &[wanted]).await.unwrap().claimed;
    let payloads: Vec<_> = claimed.iter().map(|claimed| claimed.payload.clone().unwrap()).collect();
    assert_eq!(payloads, ["payload", "payload"]);
    let sql = "SELECT key, key_id IS NULL, body FROM onlyonce_record
               UNION ALL SELECT key, key_id IS NULL, payload FROM onlyonce_outbox";
    for row in client.query(sql, &[]).await.unwrap() {
        let (key, is_clear, bytes): (String, bool, Vec<u8>) = (row.get(0), row.get(1), row.get(2));
        assert_eq!(is_clear, ["sql", "n"].contains(&&*key), "{key}");
        assert_eq!(is_clear, [&b"answer"[..], b"payload"].contains(&&*bytes), "{key}");
    }
    let used = KeyUse { id: keyring.first(), rows: 2, is_known: true };
    assert_eq!(store.keys_in_use().await.unwrap(), [used]);
}

/// W09, L05: the function for what is encrypted takes nothing else: in clear it would pass by what is checked of headers.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_in_clear_is_refused_by_the_function_for_encrypted_ones() {
    let (store, client) = world(None).await;
    let seen = insert(&store, draft("k", Effects::Local, running()), 1).await.unwrap();
    let (id, _) = draft("k", Effects::Local, running());
    let handle = Handle { id, token: seen.record.token }.to_string();
    for arguments in [
        "'set-cookie: a=b', 'body', NULL, NULL",
        "'set-cookie: a=b', 'body', NULL, ''",
        "'set-cookie: a=b', 'body', NULL, '\\x0102'",
        "NULL, 'body', NULL, '\\x0102030405060708'",
        "'x: y', NULL, NULL, '\\x0102030405060708'",
    ] {
        let sql = format!("SELECT onlyonce_complete_sealed($1, 201, {arguments})");
        let error = client.execute(&sql, &[&handle]).await.unwrap_err();
        assert_eq!(error.code().map(SqlState::code), Some("22023"), "{arguments}");
    }
    assert_eq!(store.load(id).await.unwrap().unwrap().record, seen.record);
}

/// W01, W03, P07: whatever the session's time zone.
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
    let (store, client) = world(keyring).await;
    client.batch_execute("SET TIME ZONE 'America/New_York'").await.unwrap();
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
            assert_eq!(
                run(&client, &store.swap_statements(id, lost, LockWait::OfSession).unwrap()[0]).await,
                None,
                "seed {seed}"
            );
            let statements = store.swap_statements(id, change.clone(), lock_wait).unwrap();
            let written_at = run(&client, &statements[0]).await.expect("it is written");
            for statement in &statements[1..] {
                run(&client, statement).await;
            }
            let seen = store.load(id).await.unwrap().expect("it is there");
            assert_eq!(*seen.record, draft.stamp(Timestamp::from_micros(written_at)), "seed {seed}");
            assert_eq!(seen.revision, Revision(revision));
            if revision == 2 {
                assert_eq!(store.results(id, seen.record.created_at).await.unwrap(), [result], "seed {seed}");
            }
            let again = Change { expected: None, ..change };
            let again = &store.swap_statements(id, again, LockWait::Shortly).unwrap()[0];
            let duplicate = query(&client, again).await.unwrap_err();
            assert_eq!(duplicate.code(), Some(&SqlState::UNIQUE_VIOLATION), "it is there already");
            expected = Some(Revision(revision));
        }
    }
}

//! Messages that users store by SQL of their own.

use std::time::Duration;

use onlyonce_core::record::Token;
use onlyonce_store::Store;
use onlyonce_store::outbox::{Outbox as _, Settled};
use onlyonce_store::postgres::{Options, Postgres};
use onlyonce_testkit::engines::postgres::Server;
use tokio_postgres::{Client, NoTls};

const LEASE: Duration = Duration::from_secs(60);
const TOKEN: Token = Token([3; 16]);

/// A store, and a connection of a user's in its schema.
async fn world() -> (Postgres, Client) {
    let url = Server::shared().fresh_schema();
    let schema = url.split_once("schema=").unwrap().1;
    let store = Postgres::open(&url, Options::default()).await.unwrap();
    store.prepare().await.unwrap();
    let (client, connection) =
        tokio_postgres::connect(&Server::shared().url("postgres"), NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(&format!("SET search_path = {schema}")).await.unwrap();
    (store, client)
}

/// W01: a plain INSERT of what a user must say is a message that is delivered; in bulk too.
#[tokio::test(flavor = "multi_thread")]
async fn a_plain_insert_is_a_message_that_is_delivered() {
    let (store, client) = world().await;
    let one = "INSERT INTO onlyonce_outbox (key, destination, payload) VALUES ('receipt-1', 'receipts', '{\"to\":7}')";
    client.batch_execute(one).await.unwrap();
    let claimed = store.claim(TOKEN, LEASE, 10).await.unwrap();
    let [first] = &claimed[..] else { panic!("{claimed:?}") };
    assert_eq!((&*first.key, &*first.destination, first.delivery), ("receipt-1", "receipts", 1));
    assert_eq!((&first.payload[..], &*first.content_type), (&b"{\"to\":7}"[..], "application/json"));
    assert_eq!(first.group, None);
    assert!(
        store
            .settle("receipt-1", TOKEN, Settled::Delivered { provider_id: Some("evt".into()) })
            .await
            .unwrap()
    );
    assert_eq!(store.provider_id("receipt-1").await.unwrap().as_deref(), Some("evt"));

    let many = "INSERT INTO onlyonce_outbox (destination, payload, group_key)
                SELECT 'receipts', convert_to(n::text, 'UTF8'), 'g' FROM generate_series(1, 200) AS n";
    client.batch_execute(many).await.unwrap();
    let claimed = store.claim(TOKEN, LEASE, 1_000).await.unwrap();
    let payloads: Vec<_> =
        claimed.iter().map(|claimed| String::from_utf8(claimed.payload.to_vec()).unwrap()).collect();
    assert_eq!(
        payloads,
        (1..=200).map(|number: u32| number.to_string()).collect::<Vec<_>>(),
        "in their order"
    );
    assert!(claimed.iter().all(|claimed| claimed.group.as_deref() == Some("g") && claimed.key.len() == 36));
    assert_eq!(store.dead_letters(10).await.unwrap(), []);
}

/// W01: it is there when its transaction commits, not before its time, and not at all where the transaction is rolled back.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_belongs_to_the_transaction_that_stores_it_and_waits_for_its_time() {
    let (store, client) = world().await;
    client
        .batch_execute("BEGIN; INSERT INTO onlyonce_outbox (destination, payload) VALUES ('d', '')")
        .await
        .unwrap();
    assert_eq!(store.claim(TOKEN, LEASE, 10).await.unwrap(), []);
    client.batch_execute("ROLLBACK").await.unwrap();
    let later = "INSERT INTO onlyonce_outbox (destination, payload, due_at)
                 VALUES ('d', '', clock_timestamp() + interval '1 hour')";
    client.batch_execute(later).await.unwrap();
    assert_eq!(store.claim(TOKEN, LEASE, 10).await.unwrap(), []);
}

/// W01: what breaks a rule of the table is refused when it is stored, and not found out by who delivers.
#[tokio::test(flavor = "multi_thread")]
async fn what_could_not_be_delivered_is_refused() {
    let (_store, client) = world().await;
    for (values, code) in [
        ("('a b', 'd', '', NULL)", "23514"),
        ("('', 'd', '', NULL)", "23514"),
        ("(repeat('k', 129), 'd', '', NULL)", "23514"),
        ("('k', 'd', convert_to(repeat('x', 1048577), 'UTF8'), NULL)", "23514"),
        ("('k', 'd', '', '')", "23514"),
        ("('k', 'd', '', repeat('g', 256))", "23514"),
        ("('k', 'd', NULL, NULL)", "23514"),
        ("('k', NULL, '', NULL)", "23502"),
    ] {
        let sql =
            format!("INSERT INTO onlyonce_outbox (key, destination, payload, group_key) VALUES {values}");
        let error = client.batch_execute(&sql).await.unwrap_err();
        assert_eq!(error.code().map(|code| code.code()), Some(code), "{values}");
    }
    let twice =
        "INSERT INTO onlyonce_outbox (key, destination, payload) VALUES ('k', 'd', ''), ('k', 'd', '')";
    assert_eq!(client.batch_execute(twice).await.unwrap_err().code().map(|code| code.code()), Some("23505"));
}

/// W05: every error keeps its time, for people who look with `psql` too.
#[tokio::test(flavor = "multi_thread")]
async fn errors_of_deliveries_can_be_read_with_psql() {
    let (store, client) = world().await;
    client
        .batch_execute("INSERT INTO onlyonce_outbox (key, destination, payload) VALUES ('m', 'd', '')")
        .await
        .unwrap();
    for settled in [
        Settled::Again { after: Duration::ZERO, error: "busy".into() },
        Settled::Dead { error: "gone\0".into() },
    ] {
        assert_eq!(store.claim(TOKEN, LEASE, 10).await.unwrap().len(), 1);
        assert!(store.settle("m", TOKEN, settled).await.unwrap());
    }
    let sql = "SELECT state, deliveries, string_agg(concat_ws(' ', error ->> 'delivery', error ->> 'error',
                   (error ->> 'at')::timestamptz BETWEEN created_at AND clock_timestamp()), '; ')
               FROM onlyonce_outbox CROSS JOIN LATERAL jsonb_array_elements(errors) AS error GROUP BY 1, 2";
    let row = client.query_one(sql, &[]).await.unwrap();
    assert_eq!((row.get(0), row.get(1), row.get(2)), ("dead", 2, "1 busy t; 2 gone\u{fffd} t"));
    let dead = store.dead_letters(10).await.unwrap();
    assert_eq!(dead[0].errors.iter().map(|error| error.delivery).collect::<Vec<_>>(), [1, 2]);
}

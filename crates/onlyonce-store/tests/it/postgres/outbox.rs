//! Messages that users store by SQL of their own.

use std::time::Duration;

use onlyonce_core::record::Token;
use onlyonce_store::Store;
use onlyonce_store::outbox::{Claimed, Failed, OnDead, Outbox, Query, Settled, State, Wanted};
use onlyonce_store::postgres::{Options, Postgres};
use onlyonce_testkit::engines::postgres::Server;
use tokio_postgres::{Client, NoTls};

const LEASE: Duration = Duration::from_secs(60);
const TOKEN: Token = Token([3; 16]);

fn wanted(destination: &str, limit: usize) -> Wanted {
    Wanted { destination: destination.into(), limit, lease: LEASE, on_dead: OnDead::Block }
}

async fn claim(store: &Postgres, destination: &str, limit: usize) -> Vec<Claimed> {
    store.claim(TOKEN, &[wanted(destination, limit)]).await.unwrap().claimed
}

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
    let claimed = claim(&store, "receipts", 10).await;
    let [first] = &claimed[..] else { panic!("{claimed:?}") };
    assert_eq!((&*first.key, &*first.destination, first.delivery), ("receipt-1", "receipts", 1));
    let payload = first.payload.as_ref().unwrap();
    assert_eq!((&payload[..], &*first.content_type), (&b"{\"to\":7}"[..], "application/json"));
    assert_eq!(first.group, None);
    let delivered = || Settled::Delivered { provider_id: Some("evt".into()) };
    assert!(store.settle(first, delivered()).await.unwrap());
    assert_eq!(store.item(first.number).await.unwrap().unwrap().provider_id.as_deref(), Some("evt"));

    let many = "INSERT INTO onlyonce_outbox (destination, payload, group_key)
                SELECT 'receipts', convert_to(n::text, 'UTF8'), 'g' FROM generate_series(1, 200) AS n";
    client.batch_execute(many).await.unwrap();
    for number in 1..=200 {
        let claimed = claim(&store, "receipts", 1_000).await;
        let [one] = &claimed[..] else { panic!("{claimed:?}") };
        assert_eq!(one.payload.as_ref().unwrap(), &number.to_string(), "in their order");
        assert_eq!((one.group.as_deref(), one.key.len()), (Some("g"), 36));
        assert!(store.settle(one, delivered()).await.unwrap());
    }
}

/// W05: of two transactions that overlap, the later one commits first and is claimed. The other, with the smaller number, waits
/// until that is settled: never two of a group at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_committed_late_waits_for_the_one_under_way() {
    let (store, client) = world().await;
    let insert = |key: &str| {
        format!(
            "INSERT INTO onlyonce_outbox (key, destination, payload, group_key) VALUES ('{key}', 'd', '', 'g')"
        )
    };
    let (schema, early) =
        (client.query_one("SELECT current_schema()::text", &[]).await.unwrap(), second().await);
    early.batch_execute(&format!("SET search_path = {}", schema.get::<_, &str>(0))).await.unwrap();
    early.batch_execute(&format!("BEGIN; {}", insert("early"))).await.unwrap();
    client.batch_execute(&insert("late")).await.unwrap();
    let late = claim(&store, "d", 9).await;
    assert_eq!(&*late[0].key, "late");
    early.batch_execute("COMMIT").await.unwrap();
    assert_eq!(claim(&store, "d", 9).await, []);
    let failed = Failed { status: None, error: "busy".into() };
    let again = Settled::Again { after: Duration::ZERO, counts: true, failed };
    assert!(store.settle(&late[0], again).await.unwrap());
    for key in ["early", "late"] {
        let claimed = claim(&store, "d", 9).await;
        assert_eq!(claimed.iter().map(|claimed| &*claimed.key).collect::<Vec<_>>(), [key]);
        assert!(store.settle(&claimed[0], Settled::Delivered { provider_id: None }).await.unwrap());
    }
}

async fn second() -> Client {
    let (client, connection) =
        tokio_postgres::connect(&Server::shared().url("postgres"), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// W05: a group with thousands behind a message that waits costs other messages a look, and then nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_group_does_not_keep_others_waiting() {
    let (store, client) = world().await;
    let long = "INSERT INTO onlyonce_outbox (destination, payload, group_key, due_at)
                SELECT 'd', '', 'g', clock_timestamp() + CASE n WHEN 1 THEN interval '1 hour' ELSE '0' END
                FROM generate_series(1, 5000) AS n;
                INSERT INTO onlyonce_outbox (key, destination, payload, group_key) VALUES ('other', 'd', '', 'h')";
    client.batch_execute(long).await.unwrap();
    let mut rounds = 0;
    let other = loop {
        let claims = store.claim(TOKEN, &[wanted("d", 8)]).await.unwrap();
        if let Some(claimed) = claims.claimed.first() {
            break claimed.clone();
        }
        assert!(claims.is_more, "it says that there is more");
        rounds += 1;
    };
    assert_eq!(&*other.key, "other");
    assert!(rounds <= 5, "{rounds} claims");
    let held = client.query_one("SELECT count(*) FROM onlyonce_outbox WHERE held", &[]).await.unwrap();
    assert_eq!(held.get::<_, i64>(0), 4_999);
    let claims = store.claim(TOKEN, &[wanted("d", 8)]).await.unwrap();
    assert_eq!((claims.claimed, claims.is_more), (Vec::new(), false), "none is looked at twice");
}

/// W01: it is there when its transaction commits, not before its time, and not at all where the transaction is rolled back.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_belongs_to_the_transaction_that_stores_it_and_waits_for_its_time() {
    let (store, client) = world().await;
    client
        .batch_execute("BEGIN; INSERT INTO onlyonce_outbox (destination, payload) VALUES ('d', '')")
        .await
        .unwrap();
    assert_eq!(claim(&store, "d", 10).await, []);
    client.batch_execute("ROLLBACK").await.unwrap();
    let later = "INSERT INTO onlyonce_outbox (destination, payload, due_at)
                 VALUES ('d', '', clock_timestamp() + interval '1 hour')";
    client.batch_execute(later).await.unwrap();
    assert_eq!(claim(&store, "d", 10).await, []);
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
    let failed = |status, error: &str| Failed { status, error: error.into() };
    for settled in [
        Settled::Again { after: Duration::ZERO, counts: true, failed: failed(None, "busy") },
        Settled::Dead { failed: failed(Some(410), "gone\0") },
    ] {
        let claimed = claim(&store, "d", 10).await;
        assert!(store.settle(&claimed[0], settled).await.unwrap());
    }
    let sql = "SELECT state, deliveries, string_agg(concat_ws(' ', error ->> 'delivery', error ->> 'status', error ->> 'error',
                   (error ->> 'at')::timestamptz BETWEEN created_at AND clock_timestamp()), '; ')
               FROM onlyonce_messages CROSS JOIN LATERAL jsonb_array_elements(errors) AS error GROUP BY 1, 2";
    let row = client.query_one(sql, &[]).await.unwrap();
    assert_eq!((row.get(0), row.get(1), row.get(2)), ("dead", 2, "1 busy t; 2 410 gone\u{fffd} t"));
    let query = Query { state: Some(State::Dead), limit: 10, ..Query::default() };
    let dead = Outbox::list(&store, query).await.unwrap().items;
    assert_eq!(dead[0].errors.iter().map(|error| error.delivery).collect::<Vec<_>>(), [1, 2]);
}

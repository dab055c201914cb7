//! Schemas that are created, found up to date, or refused.

use onlyonce_store::postgres::{Options, Postgres};
use onlyonce_store::{Error, ErrorKind, Level, Store};
use onlyonce_testkit::engines::postgres::Server;

use crate::sqlite::world::put;

const NODES: usize = 20;

async fn open(url: &str) -> Postgres {
    Postgres::open(url, Options { connections: 1, ..Options::default() }).await.unwrap()
}

async fn prepared(url: &str) -> Result<(), Error> {
    open(url).await.prepare().await
}

/// The URL of a schema that is ready, and its name.
async fn made() -> (String, String) {
    let url = Server::shared().fresh_schema();
    prepared(&url).await.unwrap();
    let schema = url.split_once("schema=").unwrap().1.to_owned();
    (url, schema)
}

/// E02, M04
#[tokio::test(flavor = "multi_thread")]
async fn twenty_nodes_that_start_at_once_make_the_schema_once() {
    let url = Server::shared().fresh_schema();
    let mut stores = Vec::new();
    for _ in 0..NODES {
        stores.push(open(&url).await);
    }
    let nodes: Vec<_> =
        stores.into_iter().map(|store| tokio::spawn(async move { store.prepare().await })).collect();
    for node in nodes {
        node.await.unwrap().unwrap();
    }
    let schema = url.split_once("schema=").unwrap().1;
    let numbers = Server::shared().sql(&format!("SELECT number FROM {schema}.onlyonce_migration ORDER BY 1"));
    assert_eq!(numbers.lines().collect::<Vec<_>>(), ["1", "2"]);
}

/// E02
#[tokio::test(flavor = "multi_thread")]
async fn what_is_to_be_applied_is_told_beforehand() {
    let url = Server::shared().fresh_schema();
    let store = open(&url).await;
    let before = store.schema().await.unwrap();
    assert_eq!((before.version, before.latest), (0, 2));
    let pending = &before.pending;
    assert_eq!(pending.iter().map(|step| step.name).collect::<Vec<_>>(), ["0001-first", "0002-write-first"]);
    let schema = url.split_once("schema=").unwrap().1;
    assert!(
        pending[0].sql.contains(&format!("CREATE TABLE \"{schema}\".onlyonce_record")),
        "{}",
        pending[0].sql
    );
    assert_eq!(store.schema().await.unwrap(), before, "nothing was changed");
    store.prepare().await.unwrap();
    let after = store.schema().await.unwrap();
    assert_eq!((after.version, after.latest, &after.pending[..]), (2, 2, &[][..]));
}

/// E02: a schema of before records were columns is refused with advice, and not touched.
#[tokio::test(flavor = "multi_thread")]
async fn a_schema_of_the_old_layout_is_refused_and_left_as_it_is() {
    const OLD: [&str; 3] = [
        "CREATE TABLE onlyonce_record (id bytea PRIMARY KEY, revision bigint, record bytea NOT NULL)",
        "CREATE TABLE onlyonce_due (state text, due_at timestamptz, ids bytea[])",
        "CREATE TABLE onlyonce_record (id bytea PRIMARY KEY, record bytea NOT NULL);
         CREATE TABLE onlyonce_migration (number integer PRIMARY KEY, name text NOT NULL, checksum bytea NOT NULL,
             needs integer NOT NULL, applied_at timestamptz NOT NULL DEFAULT clock_timestamp());
         INSERT INTO onlyonce_migration VALUES (1, '0001-records', '\\x01', 3), (5, '0005-due', '\\x02', 5)",
    ];
    for old in OLD {
        let url = Server::shared().fresh_schema();
        let schema = url.split_once("schema=").unwrap().1;
        let sql = |sql: &str| Server::shared().sql(&format!("SET search_path = {schema}; {sql}"));
        sql(old);
        let columns = format!(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = '{schema}' ORDER BY 1, 2"
        );
        let before = sql(&columns);
        let store = open(&url).await;
        for error in [store.prepare().await.unwrap_err(), store.schema().await.unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
            for told in ["from before records were columns", "nothing was changed", "name a new schema"] {
                assert!(error.to_string().contains(told), "{error}");
            }
        }
        assert_eq!(sql(&columns), before);
    }
}

/// E02: one that works with this release is taken, one that does not is refused, and neither is touched.
#[tokio::test(flavor = "multi_thread")]
async fn a_newer_schema_is_taken_where_it_says_so_and_else_refused() {
    let (url, schema) = made().await;
    Server::shared().sql(&format!(
        "INSERT INTO {schema}.onlyonce_migration (number, name, checksum, needs) VALUES (3, '0003-later', '\\x00', 2)"
    ));
    prepared(&url).await.unwrap();
    Server::shared().sql(&format!("UPDATE {schema}.onlyonce_migration SET needs = 3 WHERE number = 3"));
    let error = prepared(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    for told in ["\"0003-later\" of a newer release", "upgrade this node"] {
        assert!(error.to_string().contains(told), "{error}");
    }
}

/// E02
#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_something_else_made_is_refused() {
    let (url, schema) = made().await;
    Server::shared()
        .sql(&format!("UPDATE {schema}.onlyonce_migration SET checksum = '\\x00' WHERE number = 1"));
    let error = prepared(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().contains("was not made by migration \"0001-first\""), "{error}");

    let url = Server::shared().fresh_schema();
    let schema = url.split_once("schema=").unwrap().1;
    Server::shared().sql(&format!("CREATE TABLE {schema}.onlyonce_migration (number integer)"));
    let error = prepared(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
}

/// E02: names are quoted.
#[tokio::test(flavor = "multi_thread")]
async fn a_schema_may_have_any_name() {
    let server = Server::shared();
    let name = format!("My keys; \"{}\"", server.fresh_name());
    server.sql(&format!("CREATE SCHEMA \"{}\"", name.replace('"', "\"\"")));
    let encoded: String = name.bytes().map(|byte| format!("%{byte:02x}")).collect();
    prepared(&format!("{}?schema={encoded}", server.url("postgres"))).await.unwrap();
}

/// E02, W09: a server without PL/pgSQL gets the tables and nothing else; nodes serve, and the operator is told.
#[tokio::test(flavor = "multi_thread")]
async fn where_the_server_cannot_create_the_functions_they_are_left_out() {
    let server = Server::shared();
    let database = server.fresh_name();
    server.sql(&format!("CREATE DATABASE {database}"));
    server.sql_in(&database, "DROP EXTENSION plpgsql");
    let store = open(&server.url(&database)).await;
    store.prepare().await.unwrap();
    assert_eq!(store.schema().await.unwrap().pending, []);
    let findings = store.examine().await.unwrap();
    let codes: Vec<_> = findings.iter().map(|finding| (finding.level, finding.code)).collect();
    assert_eq!(codes, [(Level::Note, "postgres.functions")]);
    put(&store, "k").await;

    server.sql_in(&database, "CREATE EXTENSION plpgsql");
    server.sql_in(&database, "DELETE FROM onlyonce_migration WHERE number = 2");
    store.prepare().await.unwrap();
    assert_eq!(store.examine().await.unwrap(), []);
}

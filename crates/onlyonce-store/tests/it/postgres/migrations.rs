//! A schema that is made, found, or not understood.

use onlyonce_store::postgres::{Options, Postgres};
use onlyonce_store::{Error, ErrorKind, Store};
use onlyonce_testkit::engines::postgres::Server;

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
    assert_eq!(numbers.lines().collect::<Vec<_>>(), ["1", "2", "3", "4", "5", "6"]);
}

/// E02
#[tokio::test(flavor = "multi_thread")]
async fn what_is_to_be_applied_is_told_beforehand() {
    let url = Server::shared().fresh_schema();
    let store = open(&url).await;
    let before = store.schema().await.unwrap();
    assert_eq!((before.version, before.latest), (0, 6));
    let pending = &before.pending;
    assert_eq!(
        pending.iter().map(|step| step.name).collect::<Vec<_>>(),
        ["0001-records", "0002-messages", "0003-archive", "0004-epoch", "0005-due", "0006-lone"]
    );
    let schema = url.split_once("schema=").unwrap().1;
    assert!(
        pending[0].sql.contains(&format!("CREATE TABLE \"{schema}\".onlyonce_record")),
        "{}",
        pending[0].sql
    );
    assert_eq!(store.schema().await.unwrap(), before, "nothing was changed");
    store.prepare().await.unwrap();
    let after = store.schema().await.unwrap();
    assert_eq!((after.version, after.latest, &after.pending[..]), (6, 6, &[][..]));
}

/// E02
#[tokio::test(flavor = "multi_thread")]
async fn an_older_schema_is_brought_to_this_releases() {
    let (url, schema) = made().await;
    Server::shared().sql(&format!(
        "DROP TABLE {schema}.onlyonce_archive, {schema}.onlyonce_epoch, {schema}.onlyonce_due;
         ALTER TABLE {schema}.onlyonce_record DROP COLUMN look_at;
         CREATE INDEX onlyonce_record_by_due ON {schema}.onlyonce_record (state, due_at);
         DELETE FROM {schema}.onlyonce_migration WHERE number >= 3"
    ));
    prepared(&url).await.unwrap();
    assert_eq!(Server::shared().sql(&format!("SELECT count(*) FROM {schema}.onlyonce_archive")), "0");
    assert_eq!(Server::shared().sql(&format!("SELECT count(*) FROM {schema}.onlyonce_epoch")), "1");
}

/// E02: one that works with this release is taken, one that does not is refused, and neither is touched.
#[tokio::test(flavor = "multi_thread")]
async fn a_newer_schema_is_taken_where_it_says_so_and_else_refused() {
    let (url, schema) = made().await;
    Server::shared().sql(&format!(
        "INSERT INTO {schema}.onlyonce_migration (number, name, checksum, needs) VALUES (7, '0007-later', '\\x00', 6)"
    ));
    prepared(&url).await.unwrap();
    Server::shared().sql(&format!("UPDATE {schema}.onlyonce_migration SET needs = 7 WHERE number = 7"));
    let error = prepared(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    for told in ["\"0007-later\" of a newer release", "upgrade this node"] {
        assert!(error.to_string().contains(told), "{error}");
    }
}

/// E02
#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_something_else_made_is_refused() {
    let (url, schema) = made().await;
    Server::shared()
        .sql(&format!("UPDATE {schema}.onlyonce_migration SET checksum = '\\x00' WHERE number = 2"));
    let error = prepared(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().contains("was not made by migration \"0002-messages\""), "{error}");

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

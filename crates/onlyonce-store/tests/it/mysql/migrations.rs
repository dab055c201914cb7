//! Migrations: many nodes at once, steps that were broken off, schemas of other releases.

use onlyonce_core::record::Id;
use onlyonce_store::mysql::{Mysql, Options};
use onlyonce_store::{ErrorKind, Store};
use onlyonce_testkit::engines::mariadb::Server;

use super::fresh_url;

const NODES: usize = 20;

/// E03: twenty nodes that start at once on an empty database, and one that comes later.
#[tokio::test(flavor = "multi_thread")]
async fn many_nodes_migrate_at_once() {
    let url = fresh_url();
    let mut nodes = Vec::new();
    for _ in 0..NODES {
        let url = url.clone();
        nodes.push(tokio::spawn(async move {
            let store = Mysql::open(&url, Options::default()).await.unwrap();
            store.prepare().await.unwrap();
            store.epoch().await.unwrap().store
        }));
    }
    let mut names = Vec::new();
    for node in nodes {
        names.push(node.await.unwrap());
    }
    names.dedup();
    assert_eq!(names.len(), 1, "one store has one name");
    let late = Mysql::open(&url, Options::default()).await.unwrap();
    assert_eq!((late.schema().await.unwrap().version, late.schema().await.unwrap().pending.len()), (2, 0));
    late.prepare().await.unwrap();
    assert_eq!(late.epoch().await.unwrap().store, names[0]);
}

/// E03: a node that died in the middle of a step leaves what the next one completes.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_was_broken_off_is_completed() {
    let url = fresh_url();
    let database = url.rsplit_once('/').unwrap().1;
    let store = Mysql::open(&url, Options::default()).await.unwrap();
    assert_eq!(store.schema().await.unwrap().version, 0);
    store.prepare().await.unwrap();
    Server::shared()
        .sql(database, "DELETE FROM onlyonce_migration; DROP TABLE onlyonce_store; DROP VIEW onlyonce_log");
    assert_eq!(store.schema().await.unwrap().pending.len(), 2);
    store.prepare().await.unwrap();
    assert_eq!(store.load(Id([1; 32])).await.unwrap(), None);
    assert_eq!(Server::shared().sql(database, "SELECT count(*) FROM onlyonce_log"), "0");
}

/// E03
#[tokio::test(flavor = "multi_thread")]
async fn a_schema_of_another_release_is_refused() {
    let url = fresh_url();
    let database = url.rsplit_once('/').unwrap().1;
    let store = Mysql::open(&url, Options::default()).await.unwrap();
    store.prepare().await.unwrap();
    let newer = "INSERT INTO onlyonce_migration (number, name, checksum, needs) VALUES (3, '0003-later', REPEAT('x', 32), 3)";
    Server::shared().sql(database, newer);
    let error = store.prepare().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().contains("\"0003-later\" of a newer release"), "{error}");
    // A node that runs learns it with the epoch, and refuses everything from then on.
    assert_eq!(store.epoch().await.unwrap_err().kind(), ErrorKind::Misconfigured);
    assert_eq!(store.load(Id([1; 32])).await.unwrap_err().kind(), ErrorKind::Misconfigured);
    Server::shared().sql(database, "UPDATE onlyonce_migration SET needs = 2 WHERE number = 3");
    store.prepare().await.unwrap();
    Server::shared()
        .sql(database, "UPDATE onlyonce_migration SET checksum = REPEAT('x', 32) WHERE number = 1");
    let error = store.prepare().await.unwrap_err();
    assert!(error.to_string().contains("was not made by migration \"0001-first\""), "{error}");
}

/// E09: people read records, messages and the log without knowing how they are stored.
#[tokio::test(flavor = "multi_thread")]
async fn people_can_read_the_views() {
    let url = fresh_url();
    let database = url.rsplit_once('/').unwrap().1;
    let store = Mysql::open(&url, Options::default()).await.unwrap();
    store.prepare().await.unwrap();
    crate::sqlite::world::put(&store, "order-é").await;
    let shown = Server::shared().sql(
        database,
        "SELECT `key`, state, LENGTH(id), ABS(TIMESTAMPDIFF(SECOND, created_at, UTC_TIMESTAMP())) < 60 FROM onlyonce_keys",
    );
    let words: Vec<&str> = shown.split('\t').collect();
    assert_eq!((words[0], words[2], words[3]), ("order-é", "64", "1"), "{shown}");
}

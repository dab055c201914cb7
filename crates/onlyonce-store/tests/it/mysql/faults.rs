//! A server that is killed, frozen, stopped or made read-only under a store.

use std::time::{Duration, Instant};

use onlyonce_core::record::Effects;
use onlyonce_store::mysql::{Mysql, Options};
use onlyonce_store::{ErrorKind, Store};
use onlyonce_testkit::engines::mariadb::{Owned, Server};

use crate::sqlite::world::{draft, insert, running};

const STATEMENT: Duration = Duration::from_secs(1);
/// Longer than any time-out of a store that is opened by [`store`].
const PATIENCE: Duration = Duration::from_secs(20);

async fn store(server: &Server) -> Mysql {
    let options = Options { statement_timeout: STATEMENT, ..Options::default() };
    let url = server.url(&server.fresh_database());
    let store = Mysql::open(&format!("{url}?connect_timeout=1"), options).await.unwrap();
    store.prepare().await.unwrap();
    store
}

fn server() -> Owned {
    Server::start(&[]).unwrap()
}

async fn put(store: &Mysql, key: &str) -> Result<(), onlyonce_store::Error> {
    insert(store, draft(key, Effects::Opaque, running()), 1).await.map(drop)
}

/// X01, X05: what was answered is there after a crash, and the store goes on by itself.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_survives_a_killed_server() {
    let server = server();
    let store = store(&server).await;
    for number in 0..20 {
        put(&store, &format!("k{number}")).await.unwrap();
    }
    server.kill();
    let error = put(&store, "away").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    server.start_again();
    for number in 0..20 {
        let (id, _) = draft(&format!("k{number}"), Effects::Opaque, running());
        assert!(store.load(id).await.unwrap().is_some(), "{number}");
    }
    put(&store, "again").await.unwrap();
}

/// X01: connections that the server has closed in order are not used for the next request.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_between_requests_is_not_noticed() {
    let server = server();
    let store = store(&server).await;
    put(&store, "before").await.unwrap();
    server.stop();
    server.start_again();
    put(&store, "after").await.unwrap();
}

/// X01: a server that answers nobody is given up in time, and its answer is unknown.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_server_is_given_up_in_time() {
    let server = server();
    let store = store(&server).await;
    put(&store, "before").await.unwrap();
    server.freeze();
    let began = Instant::now();
    let error = put(&store, "frozen").await.unwrap_err();
    assert_eq!((error.kind(), error.wrote_nothing()), (ErrorKind::Unavailable, false), "{error}");
    assert!(began.elapsed() < PATIENCE, "it hung");
    server.thaw();
    put(&store, "after").await.unwrap();
}

/// X01: nothing was written, and the store goes on once the server takes writes again.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_becomes_read_only_refuses_and_wrote_nothing() {
    let server = server();
    let name = server.fresh_database();
    // A user that a server which is read-only refuses; root is none.
    server.sql("", &format!("CREATE USER ann@'127.0.0.1'; GRANT ALL ON {name}.* TO ann@'127.0.0.1'"));
    let store = Mysql::open(&server.url_of("ann", &name), Options::default()).await.unwrap();
    store.prepare().await.unwrap();
    put(&store, "before").await.unwrap();
    server.sql("", "SET GLOBAL read_only = 1");
    for key in ["one", "two"] {
        let error = put(&store, key).await.unwrap_err();
        assert_eq!((error.kind(), error.wrote_nothing()), (ErrorKind::Unavailable, true), "{error}");
        assert!(error.to_string().contains("read-only"), "{error}");
    }
    server.sql("", "SET GLOBAL read_only = 0");
    put(&store, "one").await.unwrap();
}

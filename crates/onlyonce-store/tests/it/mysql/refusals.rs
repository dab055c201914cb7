//! A store that cannot be opened is refused with a remedy: never a hang, never the password.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use onlyonce_core::record::Id;
use onlyonce_store::mysql::{Mysql, Options};
use onlyonce_store::{Error, ErrorKind, Level, Store};
use onlyonce_testkit::engines::mariadb::Server;

const PASSWORD: &str = "s3cret";

async fn refused(url: &str, kind: ErrorKind, told: &[&str]) {
    let began = Instant::now();
    let error = opened(url).await.expect_err(url);
    assert!(began.elapsed() < Duration::from_secs(20), "it hung");
    assert_eq!(error.kind(), kind, "{error}");
    for told in told {
        assert!(error.to_string().contains(told), "{url}: {error}");
    }
    assert!(!format!("{error} {error:?}").contains(PASSWORD), "{error}");
}

async fn opened(url: &str) -> Result<Mysql, Error> {
    let store = Mysql::open(url, Options::default()).await?;
    store.prepare().await?;
    assert!(!format!("{store:?}").contains(PASSWORD), "{store:?}");
    Ok(store)
}

/// A user with a password and these privileges on a database of its own, of the same name.
fn user(privileges: &str) -> (String, String) {
    let server = Server::shared();
    let name = server.fresh_database();
    server.sql("", &format!("CREATE USER {name}@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'"));
    server.sql("", &format!("GRANT {privileges} ON {name}.* TO {name}@'127.0.0.1'"));
    let url = server.url_of(&format!("{name}:{PASSWORD}"), &name);
    (name, url)
}

/// S04, E03
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_user_or_database_is_named() {
    let server = Server::shared();
    let (name, url) = user("ALL");
    opened(&url).await.unwrap();
    let wrong = url.replace(PASSWORD, "guess");
    refused(&wrong, ErrorKind::Misconfigured, &["Access denied", &format!("password of user \"{name}\"")])
        .await;
    let nobody = server.url_of(&format!("nobody:{PASSWORD}"), &name);
    refused(&nobody, ErrorKind::Misconfigured, &["\"nobody\""]).await;
    let elsewhere = server.url("nowhere");
    refused(&elsewhere, ErrorKind::Misconfigured, &["Unknown database", "CREATE DATABASE `nowhere`"]).await;
}

/// X01
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_or_silent_is_told_in_time() {
    let away = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("mysql://ann:{PASSWORD}@{away}/pay");
    refused(&url, ErrorKind::Unavailable, &[&away.to_string(), "check that it runs"]).await;
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let url = format!("mysql://ann:{PASSWORD}@{address}/pay?connect_timeout=1");
    refused(&url, ErrorKind::Unavailable, &["no answer within 1000 ms"]).await;
}

/// X01: of several hosts, the first that accepts writes is used.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_away_leaves_the_others() {
    let server = Server::shared();
    let away = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let name = server.fresh_database();
    let url = format!("mysql://root@{away},127.0.0.1:{}/{name}", server.port());
    assert_eq!(opened(&url).await.unwrap().load(Id([1; 32])).await.unwrap(), None);
}

/// E03: a database that nobody has prepared, and a user that may not.
#[tokio::test(flavor = "multi_thread")]
async fn tables_that_are_missing_are_told() {
    let (name, url) = user("SELECT, INSERT, UPDATE, DELETE");
    let store = Mysql::open(&url, Options::default()).await.unwrap();
    let error = store.load(Id([1; 32])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("lacks a migration"), "{error}");
    let told = [&*format!("user \"{name}\" may not apply it"), "\"onlyonce migrate\""];
    refused(&url, ErrorKind::Misconfigured, &told).await;
    // Once somebody else has, reading and writing rows is enough.
    opened(&Server::shared().url(&name)).await.unwrap();
    opened(&url).await.unwrap();
}

/// X01
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_read_only_is_told() {
    let server = Server::start(&["read-only=1"]).unwrap();
    let told = ["is read-only", "list all hosts in it"];
    refused(&server.url("mysql"), ErrorKind::Unavailable, &told).await;
}

/// X05: what no write would survive is refused by name, and a server that may lose writes is found.
#[tokio::test(flavor = "multi_thread")]
async fn settings_that_break_a_promise_are_refused_or_found() {
    assert_eq!(opened(&super::fresh_url()).await.unwrap().examine().await.unwrap(), []);
    let by_statement =
        Server::start(&["log-bin", "binlog-format=STATEMENT", "max-allowed-packet=1M"]).unwrap();
    let told = ["binlog_format = STATEMENT", "set binlog_format = ROW"];
    refused(&by_statement.url("mysql"), ErrorKind::Misconfigured, &told).await;
    drop(by_statement);
    let small = Server::start(&["max-allowed-packet=1M"]).unwrap();
    refused(&small.url("mysql"), ErrorKind::Misconfigured, &["max_allowed_packet is 1048576"]).await;
    drop(small);
    let careless =
        Server::start(&["log-bin", "binlog-format=MIXED", "innodb-flush-log-at-trx-commit=2"]).unwrap();
    let name = careless.fresh_database();
    let findings = opened(&careless.url(&name)).await.unwrap().examine().await.unwrap();
    let found: Vec<_> = findings.iter().map(|finding| (finding.level, finding.code)).collect();
    let warnings = ["mysql.innodb_flush_log_at_trx_commit", "mysql.sync_binlog"];
    assert_eq!(found, warnings.map(|code| (Level::Warning, code)));
}

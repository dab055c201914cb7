//! A store that cannot be opened is refused with a remedy: never a hang, never the password.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use onlyonce_core::record::Id;
use onlyonce_store::promises::Survives;
use onlyonce_store::redis::{Options, Redis};
use onlyonce_store::{Error, ErrorKind, Expired, Finding, Level, Store};
use onlyonce_testkit::engines::redis::Server;

use super::outages::until;
use crate::sqlite::world::{id, put};

pub(super) const PASSWORD: &str = "s3cret";

async fn opened(url: &str) -> Result<Redis, Error> {
    let store = Redis::open(url, Options::default()).await?;
    store.prepare().await?;
    assert!(!format!("{store:?}").contains(PASSWORD), "{store:?}");
    Ok(store)
}

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

fn levels(findings: &[Finding]) -> Vec<(Level, &'static str)> {
    findings.iter().map(|finding| (finding.level, finding.code)).collect()
}

/// S04
#[tokio::test]
async fn a_wrong_password_or_user_is_told() {
    let server = Server::start(&[("requirepass", PASSWORD)]).unwrap();
    opened(&server.url_of(&format!(":{PASSWORD}@"))).await.unwrap();
    for login in [":guess@", "nobody:guess@"] {
        let told = ["does not accept the login", "check user and password"];
        refused(&server.url_of(login), ErrorKind::Misconfigured, &told).await;
    }
    refused(&server.url(), ErrorKind::Misconfigured, &["NOAUTH", "check user and password"]).await;
    let elsewhere = server.url_of(&format!(":{PASSWORD}@")).replace("/0", "/99");
    refused(&elsewhere, ErrorKind::Misconfigured, &["no database of that number"]).await;
}

/// X01
#[tokio::test]
async fn a_server_that_is_away_or_silent_is_told_in_time() {
    let away = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("redis://ann:{PASSWORD}@{away}/0");
    refused(&url, ErrorKind::Unavailable, &[&away.to_string(), "check that it runs"]).await;
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let url = format!("redis://ann:{PASSWORD}@{address}/0?connect_timeout=1");
    refused(&url, ErrorKind::Unavailable, &["no answer within 1000 ms"]).await;
}

/// X05: each is refused by its name, with its remedy, and found later where it is changed while a node runs.
#[tokio::test(flavor = "multi_thread")]
async fn settings_that_lose_acknowledged_writes_are_refused_by_name() {
    let server = Server::start(&[]).unwrap();
    let store = opened(&server.url()).await.unwrap();
    assert_eq!(store.examine().await.unwrap(), []);
    assert_eq!(store.promises().survives, Survives::Crash);
    for (setting, value, safe, code) in [
        ("appendfsync", "everysec", "always", "redis.appendfsync"),
        ("appendfsync", "no", "always", "redis.appendfsync"),
        ("no-appendfsync-on-rewrite", "yes", "no", "redis.no_appendfsync_on_rewrite"),
        ("maxmemory-policy", "allkeys-lru", "noeviction", "redis.maxmemory_policy"),
        ("appendonly", "no", "yes", "redis.appendonly"),
    ] {
        server.command(&["CONFIG", "SET", setting, value]);
        let told = [&*format!("{setting} is {value}"), &format!("set {setting} {safe}")];
        refused(&server.url(), ErrorKind::Misconfigured, &told).await;
        assert_eq!(levels(&store.examine().await.unwrap()), [(Level::Error, code)]);
        let careless = opened(&format!("{}?durability=none", server.url())).await.unwrap();
        let warned = [(Level::Warning, "redis.durability"), (Level::Warning, code)];
        assert_eq!(levels(&careless.examine().await.unwrap()), warned);
        assert_eq!(careless.promises().survives, Survives::Nothing);
        server.command(&["CONFIG", "SET", setting, safe]);
    }
    server.command(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]);
    opened(&server.url()).await.expect("nothing of ours is volatile");
}

/// Adds the user that docs/engines.md lists.
pub(super) fn add_user(server: &Server) {
    let listed = include_str!("../../../../../docs/engines.md");
    let line = listed.lines().find(|line| line.starts_with("ACL SETUSER onlyonce on")).expect("it is listed");
    let secret = format!(">{PASSWORD}");
    let words: Vec<&str> =
        line.split_whitespace().map(|word| if word == ">…" { &secret } else { word }).collect();
    server.command(&words);
}

/// X05, S04: a user that has no more than docs/engines.md lists; and one that may not read settings.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_needs_no_more_than_is_listed_and_settings_that_cannot_be_read_are_vouched_for() {
    let server = Server::start(&[]).unwrap();
    add_user(&server);
    let url = server.url_of(&format!("onlyonce:{PASSWORD}@"));
    let store = opened(&url).await.unwrap();
    put(&store, "k").await;
    assert!(store.load(id("k")).await.unwrap().is_some());
    assert_eq!(store.reap(10).await.unwrap(), 0);
    store.raise_epoch().await.unwrap();
    assert_eq!(store.examine().await.unwrap(), []);
    // It may wait for replicas; there are none.
    refused(&format!("{url}?replicas=1"), ErrorKind::Unavailable, &["0 of the 1 replicas"]).await;
    server.command(&["ACL", "SETUSER", "onlyonce", "-config|get"]);
    refused(
        &url,
        ErrorKind::Misconfigured,
        &["settings cannot be read", "+config|get", "durability=vouched"],
    )
    .await;
    let vouched = opened(&format!("{url}?durability=vouched")).await.unwrap();
    assert_eq!(levels(&vouched.examine().await.unwrap()), [(Level::Warning, "redis.settings")]);
    refused(&format!("{url}?prefix=other"), ErrorKind::Misconfigured, &["NOPERM"]).await;
}

/// X01: a replica is refused, and of several hosts the master is used.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_told_and_of_several_hosts_the_master_is_used() {
    let master = Server::start(&[]).unwrap();
    let replica = Server::start(&[("replicaof", &format!("127.0.0.1 {}", master.port()))]).unwrap();
    refused(&replica.url(), ErrorKind::Unavailable, &["is a replica", "use the master's URL"]).await;
    let both = format!("redis://127.0.0.1:{},127.0.0.1:{}", replica.port(), master.port());
    let store = opened(&both).await.unwrap();
    put(&store, "k").await;
    until("the replica is connected", async || {
        !master.command(&["INFO", "replication"]).contains("connected_slaves:0")
    })
    .await;
    let risky = [(Level::Warning, "redis.replicas"), (Level::Warning, "redis.min_replicas")];
    assert_eq!(levels(&store.examine().await.unwrap()), risky);
    // It takes over: writes, and then reads, find it without a restart.
    assert_eq!(master.command(&["WAIT", "1", "10000"]), "1");
    replica.command(&["REPLICAOF", "NO", "ONE"]);
    master.command(&["REPLICAOF", "127.0.0.1", &replica.port().to_string()]);
    let over = Instant::now() + Duration::from_secs(60);
    while store.raise_epoch().await.is_err() {
        assert!(Instant::now() < over, "the new master was not found");
    }
    put(&store, "after").await;
    assert!(store.load(id("after")).await.unwrap().is_some());
}

/// E07
#[tokio::test]
async fn a_member_of_a_cluster_and_another_layout_are_told() {
    let member = Server::start(&[("cluster-enabled", "yes")]).unwrap();
    let told = ["member of a Redis Cluster", "write redis+cluster://"];
    refused(&member.url(), ErrorKind::Misconfigured, &told).await;
    let server = Server::start(&[]).unwrap();
    let cluster = server.url().replace("redis://", "redis+cluster://");
    let told = ["is no member of a Redis Cluster", "write redis://"];
    refused(&cluster, ErrorKind::Misconfigured, &told).await;
    server.command(&["SET", "{onlyonce}layout", "2"]);
    refused(
        &server.url(),
        ErrorKind::Misconfigured,
        &["prefix \"onlyonce\" has layout \"2\"", "use another prefix"],
    )
    .await;
    opened(&format!("{}?prefix=other", server.url())).await.unwrap();
}

/// T05
#[tokio::test]
async fn expired_records_that_are_to_be_kept_are_refused() {
    let options = Options { expired: Expired::Keep, ..Options::default() };
    let error = Redis::open("redis://127.0.0.1:1", options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().contains("write expired = \"delete\""), "{error}");
}

/// E07: nobody has prepared the prefix, or somebody has deleted all keys.
#[tokio::test]
async fn a_prefix_that_was_not_prepared_is_told() {
    let store = Redis::open(&Server::shared().fresh_prefix(), Options::default()).await.unwrap();
    assert_eq!(store.load(Id([1; 32])).await.unwrap(), None);
    let error = store.epoch().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().contains("has no epoch or no name"), "{error}");
}

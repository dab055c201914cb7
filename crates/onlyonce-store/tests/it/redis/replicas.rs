//! With replicas: what was told survives a failover where the URL says so, and what was not confirmed is in doubt.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, SharedString, Unit};
use onlyonce_core::record::{Effects, Revision};
use onlyonce_core::time::When;
use onlyonce_store::conformance::{agreement, audit, reap, run, swap};
use onlyonce_store::promises::Survives;
use onlyonce_store::redis::{Options, Redis};
use onlyonce_store::{Change, ErrorKind, Level, Store, Swapped};
use onlyonce_testkit::engines::redis::{Owned, Server};

use super::outages::{until, write};
use crate::sqlite::world::{HOUR, completed, draft, id, insert, put, running};

/// A master and its replica.
fn pair() -> [Owned; 2] {
    let master = Server::start(&[]).unwrap();
    let replica = Server::start(&[("replicaof", &format!("127.0.0.1 {}", master.port()))]).unwrap();
    [master, replica]
}

/// The same of Valkey, with these settings of the replica.
fn valkey_pair(of_replica: &[(&str, &str)]) -> [Owned; 2] {
    let master = Server::start_valkey(&[]).unwrap();
    let address = format!("127.0.0.1 {}", master.port());
    let replica = Server::start_valkey(&[&[("replicaof", &*address)], of_replica].concat()).unwrap();
    [master, replica]
}

fn url(servers: &[Owned; 2]) -> String {
    format!("redis://127.0.0.1:{},127.0.0.1:{}/0", servers[0].port(), servers[1].port())
}

async fn is_connected(master: &Server) {
    until("the replica is connected", async || {
        let info = master.command(&["INFO", "replication"]);
        info.contains("connected_slaves:1") && info.contains("state=online")
    })
    .await;
}

async fn opened(servers: &[Owned; 2], replicas: &str) -> Arc<Redis> {
    is_connected(&servers[0]).await;
    let options = Options { request_timeout: Duration::from_secs(1), ..Options::default() };
    let store = Redis::open(&format!("{}?connect_timeout=2{replicas}", url(servers)), options).await.unwrap();
    // One that has just been synchronised may take longer to confirm than this store waits.
    until("the replica confirms", async || store.prepare().await.is_ok()).await;
    Arc::new(store)
}

/// Counts failovers, and nothing else.
struct Failovers(Arc<AtomicU64>);

impl metrics::Recorder for Failovers {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match key.name() {
            "onlyonce_store_failovers_total" => Counter::from_arc(self.0.clone()),
            _ => Counter::noop(),
        }
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// X05, X01: the master is killed while many write, and its replica takes over: each record that was acknowledged is there.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_confirmed_by_the_replica_survives_a_failover() {
    const WRITERS: usize = 16;
    let failovers = Arc::new(AtomicU64::new(0));
    metrics::set_global_recorder(Failovers(failovers.clone())).expect("no other test counts");
    let servers = pair();
    let [master, replica] = &servers;
    let store = opened(&servers, "&replicas=1").await;
    assert_eq!(store.promises().survives, Survives::Failover);
    assert_eq!(store.examine().await.unwrap(), []);
    let writers: Vec<_> =
        (0..WRITERS).map(|writer| tokio::spawn(write(store.clone(), format!("{writer}")))).collect();
    until("something was written", async || master.command(&["DBSIZE"]).parse::<u32>().unwrap() > 300).await;
    assert_eq!(failovers.load(Ordering::Acquire), 0);
    tokio::task::block_in_place(|| master.kill());
    replica.command(&["REPLICAOF", "NO", "ONE"]);
    let mut acknowledged = Vec::new();
    for writer in writers {
        acknowledged.extend(writer.await.unwrap());
    }
    assert!(acknowledged.len() > WRITERS, "a writer that was told nothing proves nothing");
    // The new master has no replica yet: nothing can be confirmed.
    let error = insert(&*store, draft("early", Effects::Opaque, running()), 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    tokio::task::block_in_place(|| master.start_again());
    master.command(&["REPLICAOF", "127.0.0.1", &replica.port().to_string()]);
    is_connected(replica).await;
    for key in &acknowledged {
        until("it answers", async || store.load(id(key)).await.is_ok()).await;
        assert!(store.load(id(key)).await.unwrap().is_some(), "{key} was acknowledged, and is lost");
    }
    put(&*store, "after").await;
    assert_eq!(failovers.load(Ordering::Acquire), 1, "by whichever of its connections was made first");
}

/// X01: fewer replicas than the URL wants is doubt, and not a lost swap; and nothing that is not confirmed is shown.
#[tokio::test(flavor = "multi_thread")]
async fn what_no_replica_confirms_is_in_doubt() {
    let servers = pair();
    let [_, replica] = &servers;
    let store = opened(&servers, "&replicas=1").await;
    let other = opened(&servers, "&replicas=1").await;
    put(&*store, "before").await;
    replica.freeze();
    let error = insert(&*store, draft("k", Effects::Opaque, running()), 7).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(!error.wrote_nothing(), "it may stay: {error}");
    assert!(error.to_string().contains("0 of the 1 replicas"), "{error}");
    // Another node, which has lost no answer, does not show it either: neither by a look nor by a lost swap.
    let error = other.load(id("k")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let error = insert(&*other, draft("k", Effects::Opaque, running()), 8).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    replica.thaw();
    until("it answers", async || other.load(id("before")).await.is_ok()).await;
    assert_eq!(other.load(id("k")).await.unwrap().unwrap().revision, Revision(7));
    let again = Change::new(None, Revision(7), draft("k", Effects::Opaque, running()).1);
    let swapped = store.swap(id("k"), again).await.unwrap();
    assert!(matches!(&swapped, Swapped::Lost(Some(seen)) if seen.revision == Revision(7)), "{swapped:?}");
}

/// X01: memory is full, scripts are lost: what was reserved completes, and is confirmed.
#[tokio::test(flavor = "multi_thread")]
async fn confirming_needs_neither_memory_nor_scripts_that_were_loaded() {
    let servers = pair();
    let store = opened(&servers, "&replicas=1").await;
    let seen = insert(&*store, draft("k", Effects::Opaque, running()), 1).await.unwrap();
    servers[0].command(&["CONFIG", "SET", "maxmemory", "1"]);
    servers[0].command(&["SCRIPT", "FLUSH"]);
    let done = draft("k", Effects::Opaque, completed(When::AfterWrite(24 * HOUR))).1;
    let swapped = store.swap(id("k"), Change::new(Some(seen.revision), Revision(2), done)).await.unwrap();
    assert!(matches!(swapped, Swapped::Applied(_)), "{swapped:?}");
}

/// X01: a master that has become a replica shows what is old; a node that only reads finds out by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_only_reads_does_not_believe_a_master_that_was_demoted() {
    let servers = pair();
    let [master, replica] = &servers;
    let store = opened(&servers, "").await;
    put(&*store, "k").await;
    assert!(store.load(id("k")).await.unwrap().is_some(), "on the connection for looks");
    let confirmed = opened(&servers, "&replicas=1").await;
    assert!(confirmed.load(id("k")).await.unwrap().is_some());
    assert_eq!(master.command(&["WAIT", "1", "10000"]), "1");
    assert_eq!(store.promises().survives, Survives::Crash);
    let found = store.examine().await.unwrap();
    let codes: Vec<_> = found.iter().map(|found| (found.level, found.code)).collect();
    assert_eq!(codes, [(Level::Warning, "redis.replicas"), (Level::Warning, "redis.min_replicas")]);
    replica.command(&["REPLICAOF", "NO", "ONE"]);
    // It becomes a replica of nobody that answers, so that it stays as old as it is.
    master.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let new = Redis::open(&replica.url(), Options::default()).await.unwrap();
    let done = draft("k", Effects::Opaque, completed(When::AfterWrite(HOUR))).1;
    let seen = new.load(id("k")).await.unwrap().unwrap();
    let swapped = new.swap(id("k"), Change::new(Some(seen.revision), Revision(2), done)).await.unwrap();
    assert!(matches!(swapped, Swapped::Applied(_)), "{swapped:?}");
    assert_eq!(store.load(id("k")).await.unwrap().unwrap().revision, Revision(2), "the first look shows it");
    // One that wants confirmations finds the new master, too, and shows nothing that nobody confirms.
    until("the new master is asked", async || {
        let error = confirmed.load(id("k")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        error.to_string().contains("0 of the 1 replicas")
    })
    .await;
}

/// X01: where the server has `WAITAOF`, what was told is on the replica's disk as well: one that has received a write, and does not
/// store it, has not confirmed it.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_confirms_what_is_on_its_disk_where_the_server_has_waitaof() {
    let servers = valkey_pair(&[]);
    let [_, replica] = &servers;
    let store = opened(&servers, "&replicas=1").await;
    assert_eq!(store.examine().await.unwrap(), []);
    let began = Instant::now();
    put(&*store, "before").await;
    let took = began.elapsed();
    replica.command(&["CONFIG", "SET", "appendonly", "no"]);
    let error = insert(&*store, draft("k", Effects::Opaque, running()), 7).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(!error.wrote_nothing(), "it may stay: {error}");
    assert!(error.to_string().contains("0 of the 1 replicas"), "{error}");
    assert!(error.to_string().contains("appendonly yes"), "{error}");
    // It has received it all the same.
    assert_eq!(servers[0].command(&["WAIT", "1", "10000"]), "1");
    replica.command(&["CONFIG", "SET", "appendonly", "yes"]);
    until("it answers", async || store.load(id("k")).await.is_ok()).await;
    put(&*store, "after").await;
    assert!(
        took < Duration::from_secs(1),
        "two trips, each a round trip to the replica and not a second: {took:?}"
    );
}

/// X01: who needs no disk waits for no replica's.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_without_a_file_confirms_where_nothing_needs_to_be_durable() {
    let servers = valkey_pair(&[("appendonly", "no")]);
    let store = opened(&servers, "&replicas=1&durability=none").await;
    put(&*store, "k").await;
}

/// E07: the engine with batches that wait for a replica keeps to the same rules.
#[test]
fn conformance_with_a_replica() {
    conformance(&pair());
}

/// E07: the same on Valkey, where it waits for the replica's disk.
#[test]
fn conformance_with_a_replica_on_valkey() {
    conformance(&valkey_pair(&[]));
}

fn conformance(servers: &[Owned; 2]) {
    let fresh = |prefix: &str| {
        let url = format!("{}?replicas=1&prefix={prefix}", url(servers));
        async move {
            until("the replica confirms", async || match Redis::open(&url, Options::default()).await {
                Ok(store) => store.prepare().await.is_ok(),
                Err(_) => false,
            })
            .await;
            Redis::open(&url, Options::default()).await.unwrap()
        }
    };
    run(fresh("a"), agreement::random_operations_agree_with_memory);
    run(fresh("b"), swap::no_update_is_lost_among_concurrent_writers);
    run(fresh("c"), swap::of_many_concurrent_inserts_exactly_one_applies);
    run(fresh("d"), audit::an_entry_is_written_with_its_change);
    run(fresh("e"), reap::what_has_finished_and_expired_is_deleted);
}

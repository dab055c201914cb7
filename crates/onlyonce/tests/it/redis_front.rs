//! Redis in front of PostgreSQL and SQLite, both real. `front.rs` has the rules on a clock that the tests move; here is what only a real
//! Redis shows: its bytes, its death and its silence.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use onlyonce::operate::Forgotten;
use onlyonce::store::Store;
use onlyonce::store::copies::{Copies as _, CopyOf};
use onlyonce::store::postgres::{self, Postgres};
use onlyonce::store::redis::Copies;
use onlyonce::store::seal::Keyring;
use onlyonce::{Force, Policy};
use onlyonce_testkit::engines::{postgres as pg, redis};
use tokio::time::{Instant, sleep};

use crate::world::{FaultyStore, World, id, order, order_with, ordered};

/// How long is waited for what happens beside a request.
const PATIENCE: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// A busy machine may take more than the 20 ms that a request waits: so many nodes try.
const TRIES: u32 = 40;

/// Nodes on one store, with a prefix of the cache of their own.
struct Nodes {
    store: Arc<dyn Store>,
    url: String,
    prefix: String,
    keyring: Option<Keyring>,
    made: AtomicU32,
}

impl Nodes {
    async fn on_postgres(url: String, keyring: Option<Keyring>) -> Self {
        let options = postgres::Options { keyring: keyring.clone(), ..postgres::Options::default() };
        let store = Postgres::open(&pg::Server::shared().fresh_schema(), options).await.unwrap();
        store.prepare().await.unwrap();
        Self::on(Arc::new(store), url, keyring)
    }

    fn on(store: Arc<dyn Store>, url: String, keyring: Option<Keyring>) -> Self {
        let prefix = url.split_once("prefix=").map_or("onlyonce", |(_, prefix)| prefix).to_owned();
        Self { store, url, prefix, keyring, made: AtomicU32::new(0) }
    }

    async fn copies(&self) -> Copies {
        Copies::open(&self.url, self.keyring.clone()).await.unwrap()
    }

    /// A node without any copy of its own that knows the epoch.
    async fn node(&self) -> World {
        let node = World::on(FaultyStore::over(self.store.clone()), Policy::default());
        node.onlyonce.engine().use_cache(Arc::new(self.copies().await));
        let warm = format!("warm-{}", self.made.fetch_add(1, Ordering::SeqCst));
        // A replay from a copy in the process: then the epoch is known.
        let began = Instant::now();
        loop {
            let trips = trips(&node);
            assert_eq!(node.send(order(&warm)).await.status, 201);
            if trips > 0 && self::trips(&node) == trips {
                return node;
            }
            assert!(began.elapsed() < PATIENCE, "the epoch is never known");
            sleep(LOOK_EVERY).await;
        }
    }

    /// The key "k" is answered by one node and replayed by another, and its copy is in the cache.
    async fn leave_a_copy(&self) {
        assert_eq!(self.node().await.send(order("k")).await.status, 201);
        self.replay_until_copied().await;
    }

    async fn replay_until_copied(&self) {
        let (copies, of) = (self.copies().await, self.copy_of("k").await);
        let began = Instant::now();
        while !matches!(copies.find(of).await, Ok(Some(_))) {
            assert!(began.elapsed() < PATIENCE, "no copy is left");
            assert!(self.node().await.send(order("k")).await.is_replay());
            sleep(LOOK_EVERY).await;
        }
    }

    async fn copy_of(&self, key: &str) -> CopyOf {
        CopyOf { store: self.store.epoch().await.unwrap().store, id: id(key) }
    }

    /// Whether a new node replays "k" without asking the store. It is the right answer in any case.
    async fn is_used(&self) -> bool {
        let node = self.node().await;
        let (before, runs) = (trips(&node), node.handler.runs());
        let answer = node.send(order("k")).await;
        assert!(answer.is_replay(), "{answer:?}");
        assert_eq!(answer.text(), "run 2", "byte for byte");
        assert_eq!(node.handler.runs(), runs, "nothing runs");
        trips(&node) == before
    }

    /// One of many new nodes: the machine may be busy.
    async fn is_used_by_some(&self) -> bool {
        for _ in 0..TRIES {
            if self.is_used().await {
                return true;
            }
        }
        false
    }

    /// Runs a script on every copy, whose key is `k`.
    fn alter(&self, server: &redis::Server, script: &str) -> String {
        let script = format!(
            "local n = 0 for _, k in ipairs(redis.call('KEYS', ARGV[1])) do n = n + 1 {script} end return n"
        );
        server.command(&["EVAL", &script, "0", &format!("{}:c:*", self.prefix)])
    }
}

fn trips(node: &World) -> usize {
    node.store.writes() + node.store.looks()
}

/// E04, P05: a replay from the cache makes no trip to PostgreSQL.
#[tokio::test]
async fn a_replay_from_redis_makes_no_trip_to_postgres() {
    let nodes = Nodes::on_postgres(redis::Server::shared().fresh_prefix(), None).await;
    nodes.leave_a_copy().await;
    assert!(nodes.is_used_by_some().await);
}

/// E04: also in front of a file.
#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_replay_from_redis_does_not_read_the_file() {
    use onlyonce::store::sqlite::{Options, Sqlite};
    let folder = std::env::temp_dir().join(format!("onlyonce-front-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let store = Sqlite::open(folder.join("front.db"), Options::default()).await.unwrap();
    let nodes = Nodes::on(Arc::new(store), redis::Server::shared().fresh_prefix(), None);
    nodes.leave_a_copy().await;
    assert!(nodes.is_used_by_some().await);
    drop(nodes);
    std::fs::remove_dir_all(folder).unwrap();
}

/// E04, X04: no lie of Redis changes an answer.
#[tokio::test]
async fn what_redis_makes_of_a_copy_changes_no_answer() {
    let server = redis::Server::shared();
    let nodes = Nodes::on_postgres(server.fresh_prefix(), None).await;
    nodes.leave_a_copy().await;
    for lie in [
        // A byte of the answer, of the epoch, of the sum.
        "local v = redis.call('GET', k) local i = string.find(v, 'run ', 1, true) or 30 redis.call('SETRANGE', k, i + 3, '9')",
        "redis.call('SETRANGE', k, 8, '!')",
        "redis.call('SETRANGE', k, redis.call('STRLEN', k) - 1, '!!')",
        // Cut short, empty, of another type.
        "redis.call('SET', k, string.sub(redis.call('GET', k), 1, -3))",
        "redis.call('SET', k, '')",
        "redis.call('DEL', k) redis.call('RPUSH', k, 'a')",
    ] {
        assert_ne!(nodes.alter(server, lie), "0", "{lie}");
        assert!(!nodes.is_used().await, "{lie}");
        nodes.alter(server, "redis.call('UNLINK', k)");
        nodes.replay_until_copied().await;
    }
    assert!(nodes.is_used_by_some().await, "as it is without a lie");
}

/// X04: forgetting removes the copy and ends its epoch: one that comes back late is believed by nobody.
#[tokio::test]
async fn a_forgotten_key_is_replayed_by_no_node_also_from_a_copy_that_comes_back() {
    let server = redis::Server::shared();
    let nodes = Nodes::on_postgres(server.fresh_prefix(), None).await;
    nodes.leave_a_copy().await;
    let (copies, of) = (nodes.copies().await, nodes.copy_of("k").await);
    let copy = copies.find(of).await.unwrap().unwrap();
    let node = nodes.node().await;
    let forgotten = node.onlyonce.engine().forget(id("k"), &ordered(Force::No)).await;
    assert!(matches!(forgotten.unwrap(), Forgotten::Done(_)));
    let began = Instant::now();
    while copies.find(of).await.unwrap().is_some() {
        assert!(began.elapsed() < PATIENCE, "it is never removed");
        sleep(LOOK_EVERY).await;
    }
    copies.put(of, copy, Duration::from_secs(60)).await.unwrap();
    let node = nodes.node().await;
    assert!(!node.send(order("k")).await.is_replay());
    assert_eq!(node.handler.runs(), 2, "it runs anew");
}

/// L05: where the store encrypts, so are copies; and only who has the key uses them.
#[tokio::test]
async fn copies_hold_no_plain_text_where_the_store_encrypts() {
    let server = redis::Server::shared();
    let secret = |key: &str| order_with(key, &[("x-answer-x-secret", "s3cret-header")]);
    for keyring in [None, Some(Keyring::new([[7; 32]]).unwrap())] {
        let nodes = Nodes::on_postgres(server.fresh_prefix(), keyring.clone()).await;
        assert_eq!(nodes.node().await.send(secret("k")).await.status, 201);
        nodes.replay_until_copied().await;
        for plain in ["run 2", "s3cret-header"] {
            let is_there =
                format!("if not string.find(redis.call('GET', k), '{plain}', 1, true) then n = n - 1 end");
            let count: u32 = nodes.alter(server, &is_there).parse().unwrap();
            assert_eq!(count > 0, keyring.is_none(), "{plain}");
        }
        assert!(nodes.is_used_by_some().await);
        if keyring.is_some() {
            let other = Copies::open(&nodes.url, Some(Keyring::new([[8; 32]]).unwrap())).await.unwrap();
            let error = other.find(nodes.copy_of("k").await).await.unwrap_err();
            assert_eq!(error.kind(), onlyonce::store::ErrorKind::Undecryptable);
        }
    }
}

/// E04: the user that docs/engines.md recommends can do all that is needed, and nothing to the keys of others.
#[tokio::test]
async fn a_user_with_few_rights_is_enough() {
    let server = redis::Server::shared();
    let url = server.fresh_prefix();
    let prefix = url.split_once("prefix=").unwrap().1;
    let documented = include_str!("../../../../docs/engines.md");
    let documented =
        documented.lines().find_map(|line| line.strip_prefix("ACL SETUSER onlyonce on >… ~onlyonce:c:"));
    let rights = documented.expect("engines.md has the user").replace("onlyonce", prefix);
    let user = format!("front-{prefix}");
    let copies = format!("~{prefix}:c:*");
    let words: Vec<&str> = rights.split_whitespace().skip(1).collect();
    server.command(&[&["ACL", "SETUSER", &user, "on", ">pass", &copies], &words[..]].concat());
    let url = url.replace("redis://", &format!("redis://{user}:pass@"));
    let nodes = Nodes::on_postgres(url, None).await;
    nodes.leave_a_copy().await;
    assert!(nodes.is_used_by_some().await);
    let node = nodes.node().await;
    let findings = node.onlyonce.engine().examine().await.unwrap();
    assert!(findings.iter().any(|found| found.code == "cache.evicts_nothing"), "{findings:?}");
    let forgotten = node.onlyonce.engine().forget(id("k"), &ordered(Force::No)).await;
    assert!(matches!(forgotten.unwrap(), Forgotten::Done(_)));
    let error = Copies::open(&format!("{}-other", nodes.url), None).await.unwrap_err();
    assert_eq!(error.kind(), onlyonce::store::ErrorKind::Misconfigured, "{error}");
}

/// X01, X02: killed, frozen and started again, under nodes that serve.
#[tokio::test]
async fn redis_dies_stalls_and_comes_back_and_no_answer_differs() {
    let server = redis::Server::start(&[("appendonly", "no")]).unwrap();
    let nodes = Nodes::on_postgres(server.url(), None).await;
    nodes.leave_a_copy().await;
    let node = nodes.node().await;
    let serves = async |what: &str| {
        for number in 0..20 {
            let key = format!("{what}-{number}");
            let first = node.send(order(&key)).await;
            assert_eq!((first.status, first.is_replay()), (201, false), "{key}");
            assert_eq!(node.send(order(&key)).await.text(), first.text(), "{key}");
        }
    };
    server.freeze();
    let began = Instant::now();
    serves("frozen").await;
    // Twenty requests of 20 ms each would already be 400 ms; a request that waited for Redis itself would take seconds.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    server.thaw();
    serves("thawed").await;
    server.kill();
    serves("dead").await;
    let findings = node.onlyonce.engine().examine().await.unwrap();
    assert!(findings.iter().any(|found| found.code == "cache.unavailable"), "{findings:?}");
    server.start_again();
    serves("back").await;
    // Everything is lost, and comes again.
    nodes.replay_until_copied().await;
    assert!(nodes.is_used_by_some().await);
    let findings = node.onlyonce.engine().examine().await.unwrap();
    let codes: Vec<_> = findings.iter().map(|found| found.code).collect();
    assert!(codes.contains(&"cache.evicts_nothing") && !codes.contains(&"cache.unavailable"), "{codes:?}");
}

//! Redis Cluster: slots that move under load, and a master that is killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use onlyonce_core::record::{Effects, Revision, StateSet};
use onlyonce_core::time::When;
use onlyonce_store::redis::{Options, Redis};
use onlyonce_store::{Change, ErrorKind, Level, Query, Store, Swapped};
use onlyonce_testkit::engines::redis::{Cluster, Server};
use redis::Value;
use redis::aio::MultiplexedConnection;

use super::outages::until;
use crate::sqlite::world::{HOUR, completed, draft, id, insert, running, unknown};

/// E07
mod default {
    use super::{Cluster, Options, Redis};

    onlyonce_store::conformance!(async {
        Redis::open(&Cluster::shared().fresh_prefix(), Options::default()).await.unwrap()
    });
}

async fn opened(url: &str) -> Arc<Redis> {
    let options = Options { request_timeout: Duration::from_secs(2), ..Options::default() };
    let store = Redis::open(url, options).await.unwrap();
    store.prepare().await.unwrap();
    Arc::new(store)
}

async fn connected(server: &Server) -> MultiplexedConnection {
    let client = redis::Client::open(format!("redis://127.0.0.1:{}", server.port())).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

async fn ask(connection: &mut MultiplexedConnection, words: &[&str]) -> Value {
    redis::cmd(words[0]).arg(&words[1..]).query_async(connection).await.unwrap()
}

/// Moves a slot from one member to another, key by key as `redis-cli --cluster reshard` does.
async fn move_slot(slot: &str, from: (&Server, &str), to: (&Server, &str)) -> usize {
    let (mut source, mut target) = (connected(from.0).await, connected(to.0).await);
    ask(&mut target, &["CLUSTER", "SETSLOT", slot, "IMPORTING", from.1]).await;
    ask(&mut source, &["CLUSTER", "SETSLOT", slot, "MIGRATING", to.1]).await;
    let mut moved = 0;
    loop {
        let keys: Vec<Vec<u8>> =
            redis::cmd("CLUSTER").arg(&["GETKEYSINSLOT", slot, "1"]).query_async(&mut source).await.unwrap();
        if keys.is_empty() {
            break;
        }
        moved += keys.len();
        let mut migrate = redis::cmd("MIGRATE");
        migrate.arg("127.0.0.1").arg(to.0.port()).arg("").arg(0).arg(5_000).arg("KEYS").arg(keys);
        migrate.query_async::<Value>(&mut source).await.unwrap();
    }
    ask(&mut target, &["CLUSTER", "SETSLOT", slot, "NODE", to.1]).await;
    ask(&mut source, &["CLUSTER", "SETSLOT", slot, "NODE", to.1]).await;
    moved
}

/// The part whose slot moves; and after the last one, that all is over.
const OVER: u16 = 256;

/// Reserves, looks at and completes keys of the part that moves; the keys that were completed.
async fn work(store: Arc<Redis>, name: String, moving: Arc<AtomicU16>) -> Vec<String> {
    let mut done = Vec::new();
    for number in 0.. {
        let part = moving.load(Ordering::Acquire);
        if part == OVER {
            break;
        }
        let key = format!("{name} {number}");
        if u16::from(id(&key).0[0]) != part {
            continue;
        }
        let seen = insert(&*store, draft(&key, Effects::Opaque, running()), 1).await.expect("it is reserved");
        assert!(store.load(id(&key)).await.expect("it is looked at").is_some(), "{key} is lost");
        let again = Change::new(None, Revision(9), draft(&key, Effects::Opaque, running()).1);
        let lost = store.swap(id(&key), again).await.expect("it is shown");
        assert!(matches!(lost, Swapped::Lost(Some(_))), "{key}: {lost:?}");
        let mut revision = seen.revision;
        // What is unknown is written by a script with several keys, which may have to wait until they are together again.
        if done.len() % 4 == 0 {
            become_unknown(&store, &key, seen.revision).await;
            revision = Revision(2);
        }
        // What is due at once is listed before the record is written.
        let expires = if done.len() % 3 == 0 { When::WRITE } else { When::AfterWrite(24 * HOUR) };
        let next = draft(&key, Effects::Opaque, completed(expires)).1;
        let swapped = store.swap(id(&key), Change::new(Some(revision), Revision(3), next)).await;
        let swapped = swapped.expect("it is completed");
        assert!(matches!(swapped, Swapped::Applied(_)), "{key}: {swapped:?}");
        done.push(key);
    }
    done
}

/// Writes a record with several keys, to revision 2.
async fn become_unknown(store: &Redis, key: &str, expected: Revision) {
    // Each time, the engine itself waits for a second.
    for _ in 0..30 {
        let next = draft(key, Effects::Opaque, unknown()).1;
        match store.swap(id(key), Change::new(Some(expected), Revision(2), next)).await {
            Ok(Swapped::Applied(_)) => return,
            Ok(lost) => panic!("{key}: {lost:?}"),
            Err(error) => assert!(error.wrote_nothing(), "{error}"),
        }
    }
    panic!("{key}: its keys were never together");
}

/// X01, E07: nothing is refused and nothing is lost while slots move to another master, also for a node whose answers wait for
/// replicas.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_refused_or_lost_while_slots_move() {
    const PARTS: u16 = 6;
    const WRITERS: usize = 6;
    let cluster = tokio::task::block_in_place(|| Cluster::start(true)).unwrap();
    let store = opened(&cluster.url()).await;
    let confirmed = opened(&format!("{}?replicas=1", cluster.url())).await;
    let ids: Vec<String> =
        cluster.members.iter().map(|member| member.command(&["CLUSTER", "MYID"])).collect();
    let moving = Arc::new(AtomicU16::new(0));
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = if writer % 2 == 0 { &store } else { &confirmed };
            tokio::spawn(work(store.clone(), format!("{writer}"), moving.clone()))
        })
        .collect();
    for part in 0..PARTS {
        moving.store(part, Ordering::Release);
        let list = format!("{{onlyonce.{part:02x}}}d");
        let slot = cluster.members[0].command(&["CLUSTER", "KEYSLOT", &list]);
        let owner = slot.parse::<usize>().unwrap() * 3 / 16_384;
        let next = (owner + 1) % 3;
        until("there is something to move", async || {
            cluster.members[owner].command(&["ZCARD", &list]).parse::<u32>().unwrap() > 50
        })
        .await;
        let from = (&cluster.members[owner], &*ids[owner]);
        let moved = move_slot(&slot, from, (&cluster.members[next], &ids[next])).await;
        assert!(moved > 50, "{moved} keys moved");
        store.scan(Query::due(StateSet::ALL, 100)).await.expect("what is due is listed");
    }
    moving.store(OVER, Ordering::Release);
    let (mut done, mut expired) = (Vec::new(), 0);
    for writer in writers {
        let of_one = writer.await.unwrap();
        expired += of_one.len().div_ceil(3);
        done.extend(of_one);
    }
    // A node that begins now finds all of them, and what is due.
    let new = opened(&cluster.url()).await;
    for key in &done {
        let seen = new.load(id(key)).await.unwrap().unwrap_or_else(|| panic!("{key} is lost"));
        assert_eq!(seen.revision, Revision(3), "{key}");
    }
    assert_eq!(new.reap(100_000).await.unwrap(), expired);
}

/// X01, X05: a master is killed, and its replica takes over: what was acknowledged is there, and the others go on meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_confirmed_by_replicas_survives_a_master_that_was_killed() {
    let cluster = tokio::task::block_in_place(|| Cluster::start(true)).unwrap();
    let store = opened(&format!("{}?replicas=1&connect_timeout=2", cluster.url())).await;
    assert_eq!(store.examine().await.unwrap(), []);
    let plain = opened(&format!("{}?connect_timeout=2", cluster.url())).await;
    let warned = plain.examine().await.unwrap();
    assert!(warned.iter().all(|found| found.level == Level::Warning), "{warned:?}");
    let port = cluster.members[1].port();
    assert!(warned.iter().any(|found| found.says.starts_with(&format!("127.0.0.1:{port}: "))), "{warned:?}");
    let writers: Vec<_> = (0..16)
        .map(|writer| tokio::spawn(super::outages::write(store.clone(), format!("{writer}"))))
        .collect();
    until("something was written", async || {
        cluster.members[0].command(&["DBSIZE"]).parse::<u32>().unwrap() > 100
    })
    .await;
    tokio::task::block_in_place(|| cluster.members[0].kill());
    let mut acknowledged = Vec::new();
    for writer in writers {
        acknowledged.extend(writer.await.unwrap());
    }
    assert!(acknowledged.len() > 16, "a writer that was told nothing proves nothing");
    until("the replica has taken over", async || cluster.members[3].command(&["ROLE"]).starts_with("master"))
        .await;
    // It is found without a restart; but with nobody to confirm, only by a node that does not ask for that.
    for key in &acknowledged {
        until("it answers", async || plain.load(id(key)).await.is_ok()).await;
        assert!(plain.load(id(key)).await.unwrap().is_some(), "{key} was acknowledged, and is lost");
    }
    tokio::task::block_in_place(|| cluster.members[0].start_again());
    until("it confirms", async || {
        cluster.members[3].command(&["INFO", "replication"]).contains("state=online")
    })
    .await;
    for number in 0..50 {
        let key = format!("after {number}");
        until("it is written", async || {
            match insert(&*store, draft(&key, Effects::Opaque, running()), 1).await {
                Ok(_) => true,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                    store.load(id(&key)).await.is_ok_and(|seen| seen.is_some())
                }
            }
        })
        .await;
    }
}

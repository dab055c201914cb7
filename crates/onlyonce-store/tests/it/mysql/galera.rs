//! Two nodes of a Galera cluster, each with stores of its own.

use std::sync::Arc;
use std::time::Duration;

use onlyonce_core::record::{Effects, Revision, Token};
use onlyonce_store::mysql::{Mysql, Options};
use onlyonce_store::outbox::{Message, OnDead, Outbox as _, Wanted};
use onlyonce_store::{Change, ErrorKind, Level, Store as _, Swapped};
use onlyonce_testkit::engines::mariadb::Cluster;

use crate::sqlite::world::{draft, id, insert, running};

/// How many keys are contended for, by how many callers on each node, and how many messages are claimed.
const KEYS: usize = 40;
const CALLERS: u64 = 4;
const MESSAGES: usize = 20;
/// How often both nodes migrate a new database at once.
const MIGRATED: usize = 6;

async fn store(url: &str) -> Arc<Mysql> {
    let options = Options { statement_timeout: Duration::from_secs(2), ..Options::default() };
    let store = Mysql::open(&format!("{url}?connect_timeout=2"), options).await.unwrap();
    store.prepare().await.unwrap();
    Arc::new(store)
}

/// A new database that both nodes have migrated at the same moment, with a store on each.
async fn migrated_at_once(cluster: &Cluster) -> (String, [Arc<Mysql>; 2]) {
    let database = cluster.first.fresh_database();
    let [first, second] = [&cluster.first, &cluster.second].map(|server| server.url(&database));
    let (first, second) = tokio::join!(store(&first), store(&second));
    assert_eq!(first.epoch().await.unwrap().store, second.epoch().await.unwrap().store);
    (database, [first, second])
}

/// What the callers do on one node: each tries to insert every key. The keys that it won, by their numbers.
async fn contend(store: &Arc<Mysql>, node: u64) -> Vec<usize> {
    let mut won = Vec::new();
    for key in 0..KEYS {
        let attempts: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let (store, (id, next)) =
                    (store.clone(), draft(&format!("k{key}"), Effects::Opaque, running()));
                let change = Change::new(None, Revision(node * 10 + caller + 1), next);
                tokio::spawn(async move { store.swap(id, change).await })
            })
            .collect();
        for attempt in attempts {
            match attempt.await.unwrap().unwrap() {
                Swapped::Applied(_) => won.push(key),
                Swapped::Lost(seen) => assert!(seen.is_some(), "what won elsewhere is seen here"),
            }
        }
    }
    won
}

/// E03, E08, R03, W05, X01: both may migrate at once; exactly one winner a key; what one node has answered, the other sees; a message is claimed once; a
/// node that is cut off answers that nothing was written, and the next host is taken.
#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_of_a_cluster_are_one_store() {
    let cluster = Cluster::start().unwrap();
    let (database, [first, second]) = migrated_at_once(&cluster).await;
    for _ in 1..MIGRATED {
        migrated_at_once(&cluster).await;
    }
    for node in [&first, &second] {
        let findings = node.examine().await.unwrap();
        let galera = findings.iter().find(|finding| finding.code == "mysql.galera").unwrap();
        assert_eq!(galera.level, Level::Note);
        assert!(galera.says.contains("cluster of 2"), "{galera:?}");
    }

    let (mut won, of_second) = tokio::join!(contend(&first, 1), contend(&second, 2));
    won.extend(of_second);
    won.sort_unstable();
    assert_eq!(won, (0..KEYS).collect::<Vec<_>>(), "each key has one winner");

    // Each write is seen by the other node at once, whose write then finds it.
    let mut revision = insert(&*first, draft("ping", Effects::Local, running()), 1).await.unwrap().revision;
    for number in 2..40 {
        let (there, back) = if number % 2 == 0 { (&second, &first) } else { (&first, &second) };
        let seen = there.load(id("ping")).await.unwrap().unwrap();
        assert_eq!(seen.revision, revision, "{number}");
        let (id, next) = draft("ping", Effects::Local, running());
        let change = Change::new(Some(revision), Revision(number), next.clone());
        assert!(matches!(there.swap(id, change).await.unwrap(), Swapped::Applied(_)), "{number}");
        let late = Change::new(Some(revision), Revision(number + 100), next);
        let Swapped::Lost(Some(seen)) = back.swap(id, late).await.unwrap() else { panic!("{number}") };
        assert_eq!(seen.revision, Revision(number));
        revision = seen.revision;
    }

    for number in 0..MESSAGES {
        let (id, next) = draft(&format!("m{number}"), Effects::Local, running());
        let message = Message::new(&*format!("m{number}"), "receipts", bytes::Bytes::from_static(b"{}"));
        first.swap(id, Change::new(None, Revision(1), next).with_messages(vec![message])).await.unwrap();
    }
    let wanted = [Wanted {
        destination: "receipts".into(),
        limit: MESSAGES,
        lease: Duration::from_secs(60),
        on_dead: OnDead::Block,
    }];
    let (one, two) =
        tokio::join!(first.claim(Token([1; 16]), &wanted), second.claim(Token([2; 16]), &wanted));
    let mut claimed: Vec<_> = [one, two]
        .into_iter()
        .flat_map(|claims| claims.unwrap().claimed)
        .map(|claimed| claimed.number)
        .collect();
    let count = claimed.len();
    claimed.sort_unstable();
    claimed.dedup();
    assert_eq!((count, claimed.len()), (MESSAGES, MESSAGES), "each message is claimed once");

    let both = format!(
        "mysql://root@127.0.0.1:{},127.0.0.1:{}/{database}",
        cluster.second.port(),
        cluster.first.port()
    );
    let either = store(&both).await;
    put(&either, "before").await.unwrap();
    cluster.cut_off();
    let error = put(&second, "away").await.unwrap_err();
    assert_eq!((error.kind(), error.wrote_nothing()), (ErrorKind::Unavailable, true), "{error}");
    // Its connections led to the node that is cut off. Each pool of them notices with a statement, and takes the next host.
    let mut failures = 0;
    while let Err(error) = put(&either, "elsewhere").await {
        assert_eq!((error.kind(), error.wrote_nothing()), (ErrorKind::Unavailable, true), "{error}");
        failures += 1;
        assert!(failures < 20, "{error}");
    }
    put(&first, "majority").await.unwrap();
    assert_eq!(first.load(id("away")).await.unwrap(), None, "nothing was written there");
    assert!(first.load(id("elsewhere")).await.unwrap().is_some());
    // What it has is not shown: it may be old.
    let error = second.load(id("before")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let error = Mysql::open(&cluster.second.url(&database), Options::default()).await.unwrap_err();
    assert!(error.to_string().contains("cut off from its cluster"), "{error}");
}

async fn put(store: &Mysql, key: &str) -> Result<(), onlyonce_store::Error> {
    insert(store, draft(key, Effects::Opaque, running()), 1).await.map(drop)
}

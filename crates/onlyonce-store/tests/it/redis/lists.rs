//! What is in Redis: the list of what is due is never late, a stamp never before the last one, damage is told; and several
//! nodes on one server.

use std::sync::Arc;

use onlyonce_core::record::{Effects, Id, Revision, Seen, State, StateSet};
use onlyonce_core::time::When;
use onlyonce_store::redis::{Options, Redis};
use onlyonce_store::{Change, ErrorKind, Query, Store, Swapped};
use onlyonce_testkit::engines::redis::Server;

use crate::sqlite::world::{HOUR, completed, draft, id, insert, running, unknown};

const DAY: When = When::AfterWrite(HOUR.saturating_mul(24));
const ALL: usize = 1_000;

/// A store, and the prefix of its keys.
async fn fresh() -> (Redis, String) {
    let url = Server::shared().fresh_prefix();
    let store = opened(&url).await;
    let (_, prefix) = url.split_once("prefix=").unwrap();
    (store, prefix.to_owned())
}

async fn opened(url: &str) -> Redis {
    let store = Redis::open(url, Options::default()).await.unwrap();
    store.prepare().await.unwrap();
    store
}

/// The key of the list that a record is in.
fn list(prefix: &str, id: Id) -> String {
    format!("{{{prefix}.{:02x}}}d", id.0[0])
}

/// Runs a script about the list of a record, and about its record: the only one with this prefix.
fn script(prefix: &str, id: Id, lua: &str) -> String {
    let lua = format!("local list, record = KEYS[1], redis.call('KEYS', ARGV[1])[1] {lua}");
    Server::shared().command(&["EVAL", &lua, "1", &list(prefix, id), &format!("{{{prefix}.*}}r*")])
}

fn listed(prefix: &str, id: Id, from: &str, to: &str) -> String {
    Server::shared().command(&["ZCOUNT", &list(prefix, id), from, to])
}

async fn update(store: &Redis, seen: &Seen, state: State<When>) -> Seen {
    let next = draft(seen.record.key.as_str(), Effects::Opaque, state).1;
    let change = Change::new(Some(seen.revision), Revision(seen.revision.0 + 1), next);
    match store.swap(id(seen.record.key.as_str()), change).await.unwrap() {
        Swapped::Applied(seen) => seen,
        Swapped::Lost(lost) => panic!("lost to {lost:?}"),
    }
}

/// M01: a completion leaves the list alone, and whoever looks at what is due puts it right.
#[tokio::test]
async fn an_entry_that_is_early_is_put_right_by_whoever_looks() {
    let (store, prefix) = fresh().await;
    let at_once = State::Running { lapses_at: When::WRITE };
    let seen = insert(&store, draft("k", Effects::Opaque, at_once), 1).await.unwrap();
    let now = seen.now.as_micros().to_string();
    update(&store, &seen, completed(DAY)).await;
    assert_eq!(listed(&prefix, id("k"), "-inf", &now), "1", "as when it ran");
    assert_eq!(store.scan(Query::due(StateSet::ALL, ALL)).await.unwrap().records, []);
    assert_eq!(listed(&prefix, id("k"), "-inf", &now), "0");
    assert_eq!(listed(&prefix, id("k"), &now, "(+inf"), "1", "when it expires");
}

/// M01: what was never due has no entry that is early.
#[tokio::test]
async fn a_record_that_is_due_earlier_than_before_is_listed_so() {
    let (store, prefix) = fresh().await;
    let seen = insert(&store, draft("k", Effects::Opaque, unknown()), 1).await.unwrap();
    assert_eq!(listed(&prefix, id("k"), "-inf", "(+inf"), "0");
    update(&store, &seen, completed(DAY)).await;
    assert_eq!(listed(&prefix, id("k"), "-inf", "(+inf"), "1");
}

/// M01: what a reservation left that never came is no obstacle, and goes an hour after it was due.
#[tokio::test]
async fn an_entry_without_a_record_is_taken_off_the_list() {
    let (store, prefix) = fresh().await;
    insert(&store, draft("k", Effects::Opaque, running()), 1).await.unwrap();
    script(&prefix, id("k"), "return redis.call('DEL', record)");
    assert_eq!(store.scan(Query::all(ALL)).await.unwrap().records, []);
    insert(&store, draft("k", Effects::Opaque, running()), 2).await.unwrap();
    assert_eq!(store.scan(Query::all(ALL)).await.unwrap().records.len(), 1);
    let lua =
        "redis.call('DEL', record) redis.call('ZADD', list, 1, redis.call('ZRANGE', list, 0, 0)[1]) return 1";
    script(&prefix, id("k"), lua);
    assert_eq!(listed(&prefix, id("k"), "-inf", "+inf"), "1");
    assert_eq!(store.reap(ALL).await.unwrap(), 0);
    assert_eq!(listed(&prefix, id("k"), "-inf", "+inf"), "0");
}

/// R08: another node's clock was ahead, or the server's was set back.
#[tokio::test]
async fn a_write_is_never_stamped_before_the_last_one() {
    let (store, prefix) = fresh().await;
    let seen = insert(&store, draft("k", Effects::Opaque, running()), 1).await.unwrap();
    let later = seen.record.written_at.plus(HOUR);
    script(
        &prefix,
        id("k"),
        &format!("return redis.call('SETRANGE', record, 16, '{:016}')", later.as_micros()),
    );
    let seen = store.load(id("k")).await.unwrap().unwrap();
    assert_eq!((seen.record.written_at, seen.now), (later, later));
    let seen = update(&store, &seen, completed(DAY)).await;
    assert!(seen.record.written_at >= later && seen.now >= later, "{seen:?}");
}

/// E07: a damaged record is told by its id, and stands in the way of no other.
#[tokio::test]
async fn a_damaged_record_is_told_and_disturbs_no_other() {
    for (lua, told) in [
        ("return redis.call('SET', record, 'x')", "does not begin with a head"),
        ("return redis.call('SET', record, redis.call('GETRANGE', record, 0, 96))", "ends after its head"),
        ("return redis.call('APPEND', record, 'x')", "cut short or altered"),
        ("return redis.call('SETRANGE', record, 97, 'x')", "upgrade this node"),
    ] {
        let (store, prefix) = fresh().await;
        let at_once = State::Running { lapses_at: When::WRITE };
        insert(&store, draft("k", Effects::Opaque, at_once.clone()), 1).await.unwrap();
        script(&prefix, id("k"), lua);
        let error = store.load(id("k")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(
            error.to_string().contains(told) && error.to_string().contains(&id("k").to_string()),
            "{error}"
        );
        let over = Change::new(None, Revision(2), draft("k", Effects::Opaque, running()).1);
        assert_eq!(store.swap(id("k"), over).await.unwrap_err().kind(), ErrorKind::Corrupt);
        insert(&store, draft("other", Effects::Opaque, at_once), 1).await.unwrap();
        let due = store.scan(Query::due(StateSet::ALL, ALL)).await.unwrap().records;
        assert_eq!(due.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [id("other")]);
    }
}

/// E07: of many nodes at once, one reserves, and no update is lost.
#[tokio::test(flavor = "multi_thread")]
async fn several_nodes_agree() {
    const NODES: usize = 3;
    const UPDATES: usize = 50;
    let url = Server::shared().fresh_prefix();
    let mut nodes = Vec::new();
    for _ in 0..NODES {
        nodes.push(Arc::new(opened(&url).await));
    }
    let names: Vec<_> = [nodes[0].epoch().await.unwrap().store, nodes[1].epoch().await.unwrap().store].into();
    assert_eq!(names[0], names[1], "they share a name");
    let counting = nodes.iter().enumerate().map(|(number, node)| {
        let node = node.clone();
        tokio::spawn(async move {
            let mut reserved = 0;
            for update in 0..UPDATES {
                let revision = Revision((number * UPDATES + update + 1) as u64);
                reserved += usize::from(count_up(&node, revision).await);
            }
            reserved
        })
    });
    let mut reserved = 0;
    for counting in counting.collect::<Vec<_>>() {
        reserved += counting.await.unwrap();
    }
    assert_eq!(reserved, 1, "one node reserved it");
    let seen = nodes[0].load(id("k")).await.unwrap().unwrap();
    assert_eq!(seen.record.attempt as usize, NODES * UPDATES);
}

/// Writes the record with one attempt more, however often that is lost; whether it was inserted.
async fn count_up(node: &Redis, revision: Revision) -> bool {
    let mut seen = None;
    loop {
        let (id, mut next) = draft("k", Effects::Opaque, running());
        next.attempt = seen.as_ref().map_or(0, |seen: &Seen| seen.record.attempt) + 1;
        let expected = seen.as_ref().map(|seen| seen.revision);
        match node.swap(id, Change::new(expected, revision, next)).await.unwrap() {
            Swapped::Applied(_) => return expected.is_none(),
            Swapped::Lost(current) => seen = current,
        }
    }
}

/// L05: what is encrypted is nowhere in clear, and cannot be read without its key.
#[tokio::test]
async fn an_encrypted_answer_is_not_in_redis_in_clear() {
    let url = Server::shared().fresh_prefix();
    let (_, prefix) = url.split_once("prefix=").unwrap();
    let open = async |keys: &[u8]| {
        let keyring = (!keys.is_empty()).then(|| crate::sealed::keyring(keys));
        Redis::open(&url, Options { keyring, ..Options::default() }).await.unwrap()
    };
    let store = open(&[1]).await;
    insert(&store, draft("k", Effects::Opaque, completed(DAY)), 1).await.unwrap();
    let find = "return string.find(redis.call('GET', record), ' paid ', 1, true) and 1 or 0";
    assert_eq!(script(prefix, id("k"), find), "0");
    let uses = store.keys_in_use().await.unwrap();
    assert_eq!((uses.len(), uses[0].rows, uses[0].is_known), (1, 1, true));
    assert!(open(&[2, 1]).await.load(id("k")).await.unwrap().is_some());
    for keys in [&[][..], &[2]] {
        let error = open(keys).await.load(id("k")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Undecryptable, "{error}");
        assert_eq!(error.unreadable().unwrap().revision, Revision(1));
    }
}

//! Writes that nothing goes along with: a plain statement, a trip, and a record that lists itself.

use std::time::Duration;

use onlyonce_core::record::{Effects, Revision, Seen, State, StateName};
use onlyonce_core::time::When;
use onlyonce_store::postgres::{Options, Postgres};
use onlyonce_store::{Change, Query, Store, Swapped};
use onlyonce_testkit::engines::postgres::Server;
use onlyonce_testkit::wire::Wire;

use crate::sqlite::world::{HOUR, completed, draft, id, insert, running};

async fn open(url: &str) -> Postgres {
    let store = Postgres::open(url, Options::default()).await.unwrap();
    store.prepare().await.unwrap();
    store
}

fn schema_of(url: &str) -> &str {
    url.split_once("schema=").unwrap().1
}

async fn complete(store: &Postgres, key: &str, seen: &Seen, revision: u64) -> Seen {
    let (id, next) = draft(key, Effects::Opaque, completed(When::AfterWrite(HOUR)));
    let revision = Revision(revision);
    let change = Change { expected: Some(seen.revision), revision, next, messages: Vec::new() };
    match store.swap(id, change).await.unwrap() {
        Swapped::Applied(seen) => seen,
        Swapped::Lost(seen) => panic!("the swap must apply, and was lost to {seen:?}"),
    }
}

/// A line on which trips are counted, a node on it, and the direct way to the same schema.
async fn by_wire() -> (Wire, Postgres, String) {
    let wire = Wire::to(Server::shared().port()).unwrap();
    let [direct, by_wire] = [Server::shared().port(), wire.address().port()].map(|port| format!(":{port}/"));
    let url = Server::shared().fresh_schema();
    let store = open(&url.replacen(&direct, &by_wire, 1)).await;
    (wire, store, url)
}

/// Trips since it was asked last.
fn counted(wire: &Wire) -> impl FnMut() -> u64 {
    let mut before = 0;
    move || wire.trips() - std::mem::replace(&mut before, wire.trips())
}

/// What an insert of a key that is taken is lost to.
async fn lost_to(store: &Postgres, key: &str) -> Seen {
    let (id, next) = draft(key, Effects::Opaque, running());
    let change = Change { expected: None, revision: Revision(u64::MAX), next, messages: Vec::new() };
    match store.swap(id, change).await.unwrap() {
        Swapped::Lost(Some(seen)) => seen,
        Swapped::Lost(None) => panic!("what it was lost to must be shown"),
        Swapped::Applied(_) => panic!("the key is taken"),
    }
}

/// E02, E07: reserved, completed and replayed, by one caller.
#[tokio::test(flavor = "multi_thread")]
async fn a_lone_write_is_one_trip_and_so_is_one_that_finds_its_key_taken() {
    let (wire, store, _) = by_wire().await;
    let mut trips = counted(&wire);
    for key in ["first", "second"] {
        trips();
        let reserved = insert(&store, draft(key, Effects::Opaque, running()), 1).await.unwrap();
        let reserving = trips();
        let done = complete(&store, key, &reserved, 2).await;
        let completing = trips();
        assert_eq!(lost_to(&store, key).await.record, done.record);
        // The first of all connects, and prepares what it says.
        if key == "second" {
            assert_eq!((reserving, completing, trips()), (1, 1, 1));
        }
    }
}

/// E07: a node that has found no key taken lately takes no look along: it costs each fresh request something.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_key_in_a_while_that_came_by_another_node_takes_a_second_trip_and_those_after_it_do_not() {
    let (wire, store, url) = by_wire().await;
    let other = open(&url).await;
    for key in ["one", "two", "three"] {
        insert(&other, draft(key, Effects::Opaque, running()), 1).await.unwrap();
    }
    // It connects, and prepares what it says.
    insert(&store, draft("own", Effects::Opaque, running()), 1).await.unwrap();
    let mut trips = counted(&wire);
    for (key, expected) in [("one", 2), ("two", 1), ("three", 1)] {
        trips();
        assert_eq!(lost_to(&store, key).await.record.key.as_str(), key);
        assert_eq!(trips(), expected, "{key}");
    }
}

/// X05: the look that a won insert had no need of answers nobody else.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_look_finds_that_nobody_waits_for_is_told_to_nobody() {
    let url = Server::shared().fresh_schema();
    let store = open(&url).await;
    for number in 1..100 {
        let key = format!("k{number}");
        let seen = insert(&store, draft(&key, Effects::Opaque, running()), number).await.unwrap();
        assert_eq!((seen.record.key.as_str(), seen.revision), (&*key, Revision(number)));
        let before = format!("k{}", number / 2 + 1);
        assert_eq!(lost_to(&store, &before).await.record.key.as_str(), before);
        let done = complete(&store, &key, &seen, 1_000 + number).await;
        assert_eq!(store.load(id(&key)).await.unwrap().unwrap().record, done.record);
        insert(&store, draft(&format!("{key}-more"), Effects::Opaque, running()), 1).await.unwrap();
    }
}

/// X05, R05: after a failover the new server's clock may be behind.
#[tokio::test(flavor = "multi_thread")]
async fn no_record_is_stamped_before_its_last_stamp() {
    let url = Server::shared().fresh_schema();
    let store = open(&url).await;
    let seen = insert(&store, draft("k", Effects::Opaque, running()), 1).await.unwrap();
    Server::shared().sql(&format!(
        "UPDATE {}.onlyonce_record SET written_at = written_at + interval '1 hour'",
        schema_of(&url)
    ));
    let done = complete(&store, "k", &seen, 2).await;
    assert_eq!(done.record.written_at, seen.record.written_at.plus(HOUR));
    assert_eq!(store.load(id("k")).await.unwrap().unwrap().record, done.record);
}

/// M01, M02, P05: it lists itself until somebody looks, also where its node is gone, and is counted and listed meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_lone_record_is_found_by_any_node_and_listed_with_others_then() {
    let url = Server::shared().fresh_schema();
    let sql = |sql: &str| Server::shared().sql(&format!("SET search_path = {}; {sql}", schema_of(&url)));
    let store = open(&url).await;
    let lapses_at = |after| State::Running { lapses_at: When::AfterWrite(after) };
    for (key, state) in [
        ("lapsed", lapses_at(Duration::ZERO)),
        ("runs", lapses_at(HOUR)),
        ("expired", completed(When::AfterWrite(Duration::ZERO))),
    ] {
        insert(&store, draft(key, Effects::Opaque, state), 1).await.unwrap();
    }
    drop(store);
    const LONE: &str =
        "SELECT string_agg(key, ' ' ORDER BY key) FROM onlyonce_record WHERE look_at IS NOT NULL";
    assert_eq!(
        (sql(LONE), sql("SELECT count(*) FROM onlyonce_due")),
        ("expired lapsed runs".into(), "0".into())
    );
    let store = open(&url).await;
    let found = async |only_due| {
        let query = Query { state: Some(StateName::Running), scope: None, only_due, after: None, limit: 10 };
        let records = store.scan(query).await.unwrap().records;
        let mut keys: Vec<_> = records.iter().map(|(_, seen)| seen.record.key.as_str().to_owned()).collect();
        keys.sort_unstable();
        keys
    };
    let counted = async || {
        let counts = store.count().await.unwrap();
        counts.into_iter().filter(|(_, count)| *count > 0).collect::<Vec<_>>()
    };
    let both = [(StateName::Running, 2), (StateName::Completed, 1)];
    assert_eq!((found(false).await, counted().await), (vec!["lapsed".into(), "runs".into()], both.into()));
    assert_eq!(found(true).await, ["lapsed"]);
    // What was due is listed with others now, and is still found.
    assert_eq!(sql(LONE), "runs");
    assert_eq!((found(false).await, counted().await), (vec!["lapsed".into(), "runs".into()], both.into()));
    assert_eq!((found(true).await, store.reap(10).await.unwrap()), (vec!["lapsed".into()], 1));
    assert_eq!(sql("SELECT count(*) FROM onlyonce_record"), "2");
}

//! Lone writes: a plain statement, and one round trip.

use onlyonce_core::record::{Effects, Revision, Seen};
use onlyonce_core::time::When;
use onlyonce_store::postgres::{Options, Postgres};
use onlyonce_store::{Change, Store, Swapped};
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
    let change = Change::new(Some(seen.revision), revision, next);
    match store.swap(id, change).await.unwrap() {
        Swapped::Applied(seen) => seen,
        Swapped::Lost(seen) => panic!("the swap must apply, and was lost to {seen:?}"),
    }
}

/// A connection on which trips are counted, a node that uses it, and the direct way to the same schema.
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
    let change = Change::new(None, Revision(u64::MAX), next);
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

/// E07: a replay by a node that has no copy of the answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_came_by_another_node_is_shown_in_one_trip() {
    let (wire, store, url) = by_wire().await;
    let other = open(&url).await;
    for key in ["one", "two", "three"] {
        insert(&other, draft(key, Effects::Opaque, running()), 1).await.unwrap();
    }
    // It connects, and prepares what it says.
    insert(&store, draft("own", Effects::Opaque, running()), 1).await.unwrap();
    let mut trips = counted(&wire);
    for key in ["one", "two", "three"] {
        trips();
        assert_eq!(lost_to(&store, key).await.record.key.as_str(), key);
        assert_eq!(trips(), 1, "{key}");
    }
}

/// R05: an update that is lost looks in a second trip, and shows what it was lost to.
#[tokio::test(flavor = "multi_thread")]
async fn an_update_that_is_lost_shows_what_it_was_lost_to() {
    let (wire, store, _) = by_wire().await;
    let first = insert(&store, draft("k", Effects::Opaque, running()), 1).await.unwrap();
    let done = complete(&store, "k", &first, 2).await;
    let (id, next) = draft("k", Effects::Opaque, running());
    let mut trips = counted(&wire);
    for _ in 0..2 {
        trips();
        let change = Change::new(Some(first.revision), Revision(3), next.clone());
        let Swapped::Lost(Some(seen)) = store.swap(id, change).await.unwrap() else {
            panic!("it must be lost")
        };
        assert_eq!((seen.revision, seen.record), (done.revision, done.record.clone()));
    }
    assert!(trips() <= 3, "the update, once more where it waits for whoever holds the row, and the look");
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

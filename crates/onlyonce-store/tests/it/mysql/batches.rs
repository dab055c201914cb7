//! Batched writes, and writes that must be sent alone.

use std::sync::Arc;
use std::time::Duration;

use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use onlyonce_core::record::{Draft, Effects, Id, Revision};
use onlyonce_core::time::When;
use onlyonce_store::mysql::{Mysql, Options};
use onlyonce_store::{Change, Error, ErrorKind, Store, Swapped};
use tokio::task::JoinHandle;

use super::fresh_url;
use crate::sqlite::world::{HOUR, completed, draft, insert, running};

const KEYS: u64 = 12;
const HELD: u64 = 7;
/// Whatever takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(30);

type Writing = JoinHandle<Result<Swapped, Error>>;

/// A store, and a connection beside it that does what somebody's own transaction would.
struct World {
    store: Arc<Mysql>,
    other: Conn,
}

impl World {
    async fn new(options: Options) -> Self {
        let url = fresh_url();
        let store = Mysql::open(&url, options).await.unwrap();
        store.prepare().await.unwrap();
        Self { store: Arc::new(store), other: Conn::from_url(&url).await.unwrap() }
    }

    async fn sql(&mut self, sql: &str) {
        self.other.query_drop(sql).await.unwrap();
    }

    async fn fill(&self) {
        for number in 0..KEYS {
            let revision = insert(&*self.store, record(number), 1).await.unwrap().revision;
            assert_eq!(revision, Revision(1));
        }
    }

    /// Completes every record at once.
    fn complete_all(&self) -> Vec<Writing> {
        (0..KEYS).map(|number| self.write(number, Some(1))).collect()
    }

    fn insert_all(&self) -> Vec<Writing> {
        (0..KEYS).map(|number| self.write(number, None)).collect()
    }

    /// Begins a transaction in which this is done to the row that is held. The row is named by its id: whoever looks for a key
    /// locks every row it reads.
    async fn hold(&mut self, sql: &str) {
        let (id, _) = record(HELD);
        self.sql("START TRANSACTION").await;
        self.sql(&sql.replace("{held}", &format!("id = UNHEX('{id}')"))).await;
    }

    fn write(&self, number: u64, expected: Option<u64>) -> Writing {
        let store = self.store.clone();
        let (id, next) = match expected {
            None => record(number),
            Some(_) => draft(&key(number), Effects::Opaque, completed(When::AfterWrite(HOUR))),
        };
        let revision = Revision(expected.map_or(3, |_| 2));
        let change = Change::new(expected.map(Revision), revision, next);
        tokio::spawn(async move { store.swap(id, change).await })
    }
}

fn key(number: u64) -> String {
    format!("k{number}")
}

fn record(number: u64) -> (Id, Box<Draft>) {
    draft(&key(number), Effects::Opaque, running())
}

fn patient() -> Options {
    Options { lock_wait: PATIENCE, statement_timeout: PATIENCE, ..Options::default() }
}

fn is_applied(swapped: &Swapped) -> bool {
    matches!(swapped, Swapped::Applied(_))
}

/// Everybody but the one that is held has an answer; gives back the one that is left.
async fn all_but_one(mut writes: Vec<Writing>) -> Writing {
    let held = writes.remove(usize::try_from(HELD).unwrap());
    for write in writes {
        let swapped = tokio::time::timeout(PATIENCE, write).await.expect("nobody waits for one row");
        assert!(is_applied(&swapped.unwrap().unwrap()));
    }
    assert!(!held.is_finished());
    held
}

/// E03, R04
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_does_not_wait_for_a_row_that_somebody_holds() {
    let mut world = World::new(patient()).await;
    world.fill().await;
    world.hold("SELECT 1 FROM onlyonce_record WHERE {held} FOR UPDATE").await;
    let held = all_but_one(world.complete_all()).await;
    world.sql("COMMIT").await;
    assert!(is_applied(&held.await.unwrap().unwrap()), "it was only late");
}

/// E03, R05
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_its_holder_has_changed_is_lost() {
    let mut world = World::new(patient()).await;
    world.fill().await;
    world.hold("UPDATE onlyonce_record SET revision = 77 WHERE {held}").await;
    let held = all_but_one(world.complete_all()).await;
    world.sql("COMMIT").await;
    let Swapped::Lost(Some(seen)) = held.await.unwrap().unwrap() else { panic!("it was changed") };
    assert_eq!(seen.revision, Revision(77), "what stands there now is shown");
}

/// E03: an insert over a row that somebody holds shows the row; an update of it is busy, and wrote nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_stays_held_is_shown_to_an_insert_and_busy_for_an_update() {
    let mut world = World::new(Options::default()).await;
    world.fill().await;
    world.hold("SELECT 1 FROM onlyonce_record WHERE {held} FOR UPDATE").await;
    let lost = world.write(HELD, None).await.unwrap().unwrap();
    assert!(matches!(lost, Swapped::Lost(Some(seen)) if seen.revision == Revision(1)));
    let error = world.write(HELD, Some(1)).await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.wrote_nothing()), (ErrorKind::Busy, true), "{error}");
    world.sql("ROLLBACK").await;
    assert!(is_applied(&world.write(HELD, Some(1)).await.unwrap().unwrap()));
}

/// E03, R05: of a batch in which some are lost, each gets the answer that is its own.
#[tokio::test(flavor = "multi_thread")]
async fn in_a_batch_each_row_gets_its_own_answer() {
    let mut world = World::new(patient()).await;
    world.fill().await;
    world.sql("UPDATE onlyonce_record SET revision = 77 WHERE `key` IN ('k3', 'k9')").await;
    world.sql("DELETE FROM onlyonce_record WHERE `key` = 'k5'").await;
    for (number, write) in (0..).zip(world.complete_all()) {
        match (number, write.await.unwrap().unwrap()) {
            (3 | 9, Swapped::Lost(Some(seen))) => assert_eq!(seen.revision, Revision(77)),
            (5, Swapped::Lost(None)) => {}
            (0..=2 | 4 | 6..=8 | 10.., Swapped::Applied(seen)) => assert_eq!(seen.revision, Revision(2)),
            (number, other) => panic!("{number}: {other:?}"),
        }
    }
    for (number, write) in (0..).zip(world.insert_all()) {
        let swapped = write.await.unwrap().unwrap();
        assert_eq!(is_applied(&swapped), number == 5, "{number}: only one is gone");
    }
}

/// E03, R08: a record's stamp never decreases, even if the clock of a new primary is behind; the others of its batch have theirs.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_was_stamped_in_the_future_keeps_its_stamp() {
    const AHEAD: i64 = 7_000_000_000_000_000;
    let mut world = World::new(patient()).await;
    world.fill().await;
    world.sql(&format!("UPDATE onlyonce_record SET written_at = {AHEAD} WHERE `key` = 'k{HELD}'")).await;
    for (number, write) in (0..).zip(world.complete_all()) {
        let Swapped::Applied(seen) = write.await.unwrap().unwrap() else { panic!("{number} was lost") };
        let written_at = seen.record.written_at.as_micros();
        assert_eq!(written_at == AHEAD, number == HELD, "{number}: {written_at}");
        let (id, _) = record(number);
        let shown = world.store.load(id).await.unwrap().unwrap();
        assert_eq!((&shown.record, shown.revision), (&seen.record, seen.revision), "{number}");
    }
}

/// E03: one row that the server refuses fails alone.
#[tokio::test(flavor = "multi_thread")]
async fn one_bad_row_does_not_fail_the_others() {
    let world = World::new(patient()).await;
    let bad = draft(&"x".repeat(5_000), Effects::Opaque, running());
    let store = world.store.clone();
    let others = world.insert_all();
    let change = Change::new(None, Revision(2), bad.1);
    let error = tokio::spawn(async move { store.swap(bad.0, change).await }).await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.wrote_nothing()), (ErrorKind::Other, true), "{error}");
    for write in others {
        assert!(is_applied(&write.await.unwrap().unwrap()));
    }
}

/// E07: many writers on few keys, from two nodes that lock rows against each other: no update is lost, and none fails.
#[tokio::test(flavor = "multi_thread")]
async fn batches_of_two_nodes_that_meet_lose_nothing() {
    const ROUNDS: u64 = 20;
    let url = fresh_url();
    let mut tasks = Vec::new();
    for node in 0..2_u64 {
        let store = Arc::new(Mysql::open(&url, Options::default()).await.unwrap());
        store.prepare().await.unwrap();
        for key in 0..KEYS {
            for writer in 0..2_u64 {
                let store = store.clone();
                tasks.push(tokio::spawn(async move {
                    let mut applied = 0;
                    for round in 0..ROUNDS {
                        let (id, next) = record(key);
                        let seen = store.load(id).await.unwrap();
                        let revision = Revision(1 + (node << 60 | writer << 50 | round));
                        let expected = seen.map(|seen| seen.revision);
                        let swapped = store.swap(id, Change::new(expected, revision, next)).await.unwrap();
                        applied += u64::from(is_applied(&swapped));
                    }
                    applied
                }));
            }
        }
    }
    let mut applied = 0;
    for task in tasks {
        applied += task.await.unwrap();
    }
    assert!(applied >= KEYS * ROUNDS, "{applied}: in each round of a key somebody wins");
}

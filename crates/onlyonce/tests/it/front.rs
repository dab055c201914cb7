//! A cache in front of the store, on a clock that the tests move: whatever it does, no decision differs from that of the store alone.
//! `redis_front.rs` has the same on a real Redis.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onlyonce::operate::Forgotten;
use onlyonce::store::copies::{Copies, Copy, CopyOf};
use onlyonce::store::{Epoch, Error, ErrorKind, Finding, Level};
use onlyonce::{Force, Policy};
use tokio::time::{Instant, sleep};

use crate::world::{Fault, FaultyStore, World, id, order, order_with, ordered, settle};

/// How long a request waits for the cache, and how long that is left alone after three failures.
const WITHIN: Duration = Duration::from_millis(20);
const LEFT_ALONE: Duration = Duration::from_secs(1);

/// A cache in this process that does on order what a cache may do.
#[derive(Debug, Default)]
struct Shelf {
    copies: Mutex<HashMap<CopyOf, Copy>>,
    kept_for: Mutex<Vec<Duration>>,
    looks: AtomicUsize,
    always: Mutex<Option<Habit>>,
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Habit {
    /// It never answers.
    Stalls,
    /// It answers so late that nobody waits for it.
    Lags,
    /// It says that it cannot.
    Fails,
    /// What it has there cannot be read.
    Garbles,
}

impl Shelf {
    fn looks(&self) -> usize {
        self.looks.load(Ordering::SeqCst)
    }

    fn copies(&self) -> usize {
        self.copies.lock().unwrap().len()
    }

    fn always(&self, habit: Option<Habit>) {
        *self.always.lock().unwrap() = habit;
    }

    async fn acts(&self) -> Result<(), Error> {
        let habit = *self.always.lock().unwrap();
        match habit {
            None => Ok(()),
            Some(Habit::Stalls) => std::future::pending().await,
            Some(Habit::Lags) => {
                sleep(10 * WITHIN).await;
                Ok(())
            }
            Some(Habit::Fails) => Err(Error::new(ErrorKind::Unavailable, "it fails on order")),
            Some(Habit::Garbles) => Err(Error::new(ErrorKind::Corrupt, "it is garbled on order")),
        }
    }

    /// Changes every copy there.
    fn alter(&self, alter: impl Fn(&mut Copy)) {
        self.copies.lock().unwrap().values_mut().for_each(alter);
    }
}

#[async_trait::async_trait]
impl Copies for Shelf {
    async fn find(&self, of: CopyOf) -> Result<Option<Copy>, Error> {
        self.looks.fetch_add(1, Ordering::SeqCst);
        self.acts().await?;
        Ok(self.copies.lock().unwrap().get(&of).cloned())
    }

    async fn put(&self, of: CopyOf, copy: Copy, keep_for: Duration) -> Result<(), Error> {
        self.acts().await?;
        self.kept_for.lock().unwrap().push(keep_for);
        self.copies.lock().unwrap().insert(of, copy);
        Ok(())
    }

    async fn remove(&self, of: CopyOf) -> Result<(), Error> {
        self.acts().await?;
        self.copies.lock().unwrap().remove(&of);
        Ok(())
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        self.acts().await?;
        Ok(Vec::new())
    }
}

/// Nodes on one store with one cache.
struct Nodes {
    store: Arc<FaultyStore>,
    shelf: Arc<Shelf>,
    policy: Policy,
}

impl Nodes {
    fn new() -> Self {
        Self::under(Policy::default())
    }

    fn under(policy: Policy) -> Self {
        Self { store: FaultyStore::new(), shelf: Arc::default(), policy }
    }

    /// A node without any copy of its own that knows the epoch.
    async fn node(&self) -> World {
        let node = World::on(self.store.clone(), self.policy.clone());
        node.onlyonce.engine().use_cache(self.shelf.clone());
        node.send(order("before")).await;
        settle().await;
        node
    }

    /// With the key "k" answered by one node, and replayed by another, which has left a copy of it.
    async fn with_a_copy() -> Self {
        Self::with_a_copy_under(Policy::default()).await
    }

    async fn with_a_copy_under(policy: Policy) -> Self {
        let nodes = Self::under(policy);
        assert_eq!(nodes.node().await.send(order("k")).await.status, 201);
        assert!(nodes.node().await.send(order("k")).await.is_replay());
        settle().await;
        assert!(nodes.has_copy("k"));
        nodes
    }

    fn has_copy(&self, key: &str) -> bool {
        self.shelf.copies.lock().unwrap().keys().any(|of| of.id == id(key))
    }

    /// The store's calls of requests.
    fn trips(&self) -> usize {
        self.store.writes() + self.store.looks()
    }

    /// Whether a new node replays "k" without asking the store. It is the right answer in any case.
    async fn is_used(&self) -> bool {
        let node = self.node().await;
        let before = self.trips();
        let answer = node.send(order("k")).await;
        assert!(answer.is_replay(), "{answer:?}");
        assert_eq!(node.handler.runs(), 0);
        self.trips() == before
    }
}

/// E04, X04: counted: nothing of the store is asked for a replay from the cache.
#[tokio::test(start_paused = true)]
async fn a_node_replays_what_another_one_has_replayed_without_asking_the_store() {
    let nodes = Nodes::with_a_copy().await;
    assert!(nodes.is_used().await);
    let node = nodes.node().await;
    assert!(node.send(order("k")).await.is_replay());
    let looks = nodes.shelf.looks();
    assert!(node.send(order("k")).await.is_replay());
    assert_eq!(nodes.shelf.looks(), looks, "the second is answered from the copy in the process");
    // The copy knows the request: another one with its key is refused by it.
    let other = World::on(nodes.store.clone(), Policy::default());
    other.onlyonce.engine().use_cache(nodes.shelf.clone());
    other.send(order("before")).await;
    let before = nodes.trips();
    let reused = crate::world::post("k").body(axum::body::Body::from(r#"{"amount":6}"#)).unwrap();
    assert_eq!(other.send(reused).await.summary(), "422 idempotency_key_reused");
    assert_eq!(nodes.trips(), before);
}

/// E04: filled by a replay that came from the store, and by nothing else.
#[tokio::test(start_paused = true)]
async fn only_replays_of_completed_records_with_a_body_are_kept() {
    let nodes = Nodes::new();
    let first = nodes.node().await;
    let filled = nodes.shelf.copies();
    assert_eq!(first.send(order("k")).await.status, 201);
    let running = first.start(order_with("slow", &[("x-gate", "1")])).await;
    assert_eq!(first.send(order_with("again", &[("x-status", "503")])).await.status, 503);
    assert_eq!(first.send(order_with("lost", &[("x-status", "504")])).await.status, 504);
    settle().await;
    assert_eq!(nodes.shelf.copies(), filled, "completions fill nothing");
    let second = nodes.node().await;
    assert_eq!(second.send(order("slow")).await.status, 409);
    assert_eq!(second.send(order("lost")).await.status, 409);
    settle().await;
    let kept = |key| nodes.has_copy(key);
    assert!(!kept("slow") && !kept("lost") && !kept("again") && !kept("k"));
    assert!(second.send(order("k")).await.is_replay());
    settle().await;
    assert!(kept("k"), "a replay does");
    nodes.shelf.copies.lock().unwrap().clear();
    assert!(second.send(order("k")).await.is_replay());
    settle().await;
    assert!(!kept("k"), "and not one from the copy in the process");
    first.handler.open(1);
    assert_eq!(running.await.unwrap().status, 201);
}

/// E04: a lie of any kind is found out, and the answer is the store's.
#[tokio::test(start_paused = true)]
async fn what_may_not_be_believed_is_not() {
    let altered = |alter: fn(&mut Copy)| async move {
        let nodes = Nodes::with_a_copy().await;
        assert!(nodes.is_used().await, "before it is altered");
        nodes.shelf.alter(alter);
        nodes.is_used().await
    };
    assert!(!altered(|copy| copy.epoch = Epoch(copy.epoch.0.wrapping_sub(1))).await, "an older epoch");
    assert!(!altered(|copy| copy.epoch = Epoch(copy.epoch.0 + 1)).await, "one that is not known here");
    let another = |copy: &mut Copy| {
        let mut record = (*copy.record).clone();
        record.key = onlyonce_core::key::Key::stored("another");
        copy.record = Arc::new(record);
    };
    assert!(!altered(another).await, "the record of another key");
    let running = |copy: &mut Copy| {
        let mut record = (*copy.record).clone();
        let lapses_at = record.written_at.plus(Duration::from_secs(3_600));
        record.state = onlyonce_core::record::State::Running { lapses_at };
        copy.record = Arc::new(record);
    };
    assert!(!altered(running).await, "a record that is not completed");
}

/// E04, X04: the copies of another store are another store's, although the cache is the same.
#[tokio::test(start_paused = true)]
async fn two_stores_share_a_cache_and_no_copy() {
    let nodes = Nodes::with_a_copy().await;
    let other = Nodes { store: FaultyStore::new(), shelf: nodes.shelf.clone(), policy: Policy::default() };
    let answer = other.node().await.send(order("k")).await;
    assert!(!answer.is_replay(), "it never ran there");
    assert!(nodes.is_used().await);
}

/// X04: forgetting removes the copy; and one that arrives later, from a node that had asked before, is of an older epoch.
#[tokio::test(start_paused = true)]
async fn a_forgotten_record_is_replayed_by_no_node_also_not_from_a_copy_that_comes_late() {
    let nodes = Nodes::with_a_copy().await;
    let before = nodes.shelf.copies.lock().unwrap().clone();
    let node = nodes.node().await;
    let forgotten = node.onlyonce.engine().forget(id("k"), &ordered(Force::No)).await;
    assert!(matches!(forgotten.unwrap(), Forgotten::Done(_)));
    assert!(!nodes.has_copy("k"), "it is removed, too");
    nodes.shelf.copies.lock().unwrap().extend(before);
    for number in 1..=2 {
        let node = nodes.node().await;
        let answer = node.send(order("k")).await;
        assert_eq!((answer.is_replay(), node.handler.runs()), (number == 2, usize::from(number == 1)));
    }
    settle().await;
    assert!(nodes.is_used().await, "the copy of the new answer is used as ever");
}

/// X04: an epoch that was raised, as after a restored backup.
#[tokio::test(start_paused = true)]
async fn a_new_epoch_ends_every_copy() {
    let nodes = Nodes::with_a_copy().await;
    let node = nodes.node().await;
    assert!(node.send(order("k")).await.is_replay());
    node.onlyonce.engine().raise_epoch().await.unwrap();
    assert!(!nodes.is_used().await);
    settle().await;
    assert!(nodes.is_used().await, "that replay has left a new one");
}

/// T02, X04: by the store's clock, with a second to spare; and never for longer than an hour.
#[tokio::test(start_paused = true)]
async fn a_copy_is_used_up_to_a_second_before_its_record_expires() {
    let retention = Duration::from_secs(60);
    let nodes = Nodes::with_a_copy_under(Policy { retention, ..Policy::default() }).await;
    let kept_for = *nodes.shelf.kept_for.lock().unwrap().last().unwrap();
    assert!(kept_for <= retention && kept_for > retention - Duration::from_secs(1), "{kept_for:?}");
    sleep(Duration::from_millis(58_500)).await;
    assert!(nodes.is_used().await);
    sleep(Duration::from_millis(700)).await;
    assert!(!nodes.is_used().await, "though the store replays it still");
    let copies = nodes.shelf.copies.lock().unwrap().clone();
    sleep(Duration::from_secs(1)).await;
    nodes.shelf.copies.lock().unwrap().extend(copies);
    let node = nodes.node().await;
    assert!(!node.send(order("k")).await.is_replay(), "it has expired, whatever the cache says");
    let nodes = Nodes::with_a_copy().await;
    assert_eq!(nodes.shelf.kept_for.lock().unwrap().last(), Some(&Duration::from_secs(3_600)));
}

/// X04: a node that does not know the epoch asks neither the cache nor itself.
#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_look_at_the_epoch_does_not_ask_the_cache() {
    let nodes = Nodes::with_a_copy().await;
    let node = nodes.node().await;
    nodes.store.blind(true);
    sleep(Duration::from_millis(2_100)).await;
    let (looks, trips) = (nodes.shelf.looks(), nodes.trips());
    assert!(node.send(order("k")).await.is_replay());
    assert_eq!((nodes.shelf.looks(), nodes.trips()), (looks, trips + 1));
}

/// X02: what it costs is 20 ms, three times in a row; then nothing for a second.
#[tokio::test(start_paused = true)]
async fn a_cache_that_does_not_answer_costs_its_20_ms_and_is_left_alone_for_a_second() {
    for habit in [Habit::Stalls, Habit::Lags] {
        let nodes = Nodes::with_a_copy().await;
        let node = nodes.node().await;
        nodes.shelf.always(Some(habit));
        for number in 0..10 {
            let (began, looks) = (Instant::now(), nodes.shelf.looks());
            assert_eq!(node.send(order(&format!("new-{number}"))).await.status, 201);
            let (took, looked) = (began.elapsed(), nodes.shelf.looks() - looks);
            let expected = if number < 3 { (WITHIN, 1) } else { (Duration::ZERO, 0) };
            assert!(took >= expected.0 && took < expected.0 + Duration::from_millis(5), "{number}: {took:?}");
            assert_eq!(looked, expected.1, "{habit:?} {number}");
        }
        // After a second one request tries it, and the others do not.
        sleep(LEFT_ALONE).await;
        let looks = nodes.shelf.looks();
        for number in 10..15 {
            assert_eq!(node.send(order(&format!("new-{number}"))).await.status, 201);
        }
        assert_eq!(nodes.shelf.looks(), looks + 1);
        nodes.shelf.always(None);
        sleep(LEFT_ALONE).await;
        let trips = nodes.trips();
        assert!(node.send(order("k")).await.is_replay());
        assert_eq!(nodes.trips(), trips, "and it is used again once it answers");
    }
}

/// X02
#[tokio::test(start_paused = true)]
async fn failures_change_no_answer_and_a_malformed_copy_is_no_failure() {
    let nodes = Nodes::with_a_copy().await;
    nodes.shelf.always(Some(Habit::Garbles));
    for _ in 0..5 {
        let looks = nodes.shelf.looks();
        assert!(!nodes.is_used().await);
        assert!(nodes.shelf.looks() > looks, "it answers, so it is asked");
    }
    nodes.shelf.always(Some(Habit::Fails));
    assert!(!nodes.is_used().await);
    let node = nodes.node().await;
    let forgotten = node.onlyonce.engine().forget(id("k"), &ordered(Force::No)).await;
    assert!(matches!(forgotten.unwrap(), Forgotten::Done(_)), "without the cache, too");
    nodes.shelf.always(None);
    assert!(nodes.has_copy("k"), "its copy could not be removed");
    assert!(!nodes.node().await.send(order("k")).await.is_replay(), "and is not believed");
}

/// E07: at run time it is a warning, and the node stays ready: requests are served without it.
#[tokio::test(start_paused = true)]
async fn a_cache_that_is_away_is_a_warning_and_the_node_is_ready() {
    let nodes = Nodes::with_a_copy().await;
    let node = nodes.node().await;
    let engine = node.onlyonce.engine();
    for habit in [Habit::Fails, Habit::Stalls] {
        nodes.shelf.always(Some(habit));
        let findings = engine.examine().await.unwrap();
        let told: Vec<_> = findings.iter().map(|found| (found.level, found.code)).collect();
        assert_eq!(told, [(Level::Warning, "cache.unavailable")]);
        assert!(engine.health(Duration::from_secs(1)).await.is_ready());
    }
}

/// X01: the store is down; what may be replayed without it is, from the cache too.
#[tokio::test(start_paused = true)]
async fn while_the_store_is_down_copies_are_used_as_long_as_the_last_look_is_good() {
    let nodes = Nodes::with_a_copy().await;
    let node = nodes.node().await;
    nodes.store.always(Some(Fault::Refused));
    assert!(node.send(order("k")).await.is_replay());
    let other = World::on(nodes.store.clone(), Policy::default());
    other.onlyonce.engine().use_cache(nodes.shelf.clone());
    assert_eq!(other.send(order("k")).await.status, 503, "a node that never saw the epoch believes nothing");
}

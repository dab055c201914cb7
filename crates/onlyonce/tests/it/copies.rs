//! Copies of completed records on nodes whose way to the store is slow, late or cut, while keys are forgotten: whatever
//! comes when, nobody who asks after a forgetting was reported gets an answer from before it. Nor where the nodes share a cache that
//! takes copies seconds late and forgets to let go of them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::response::IntoResponse;
use axum::routing::any;
use http::StatusCode;
use onlyonce::operate::Forgotten;
use onlyonce::store::copies::{Copies, Copy, CopyOf};
use onlyonce::store::memory::Memory;
use onlyonce::store::{
    Audit, Change, Count, EpochSeen, Error, ErrorKind, Finding, Outbox, Page, Promises, Query, Store, Swapped,
};
use onlyonce::{Engine, Force, Onlyonce, Policy};
use onlyonce_core::record::{Id, Seen, StateName};
use tokio::time::{Instant, sleep};
use tower::ServiceExt;

use crate::world::{Answer, order, ordered};

const SEEDS: u64 = 40;
const NODES: usize = 3;
const CLIENTS: usize = 4;
/// How long one world lasts, by its own clock.
const LASTS: Duration = Duration::from_secs(60);
const KEYS: [&str; 3] = ["a", "b", "c"];

/// What is random, by a seed.
#[derive(Debug)]
struct Random(AtomicU64);

impl Random {
    fn below(&self, limit: u64) -> u64 {
        let step = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::SeqCst);
        let mixed = (step ^ (step >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    /// Which of so many.
    fn place(&self, count: usize) -> usize {
        usize::try_from(self.below(count as u64)).unwrap()
    }

    fn pause(&self, millis_max: u64) -> Duration {
        Duration::from_millis(self.below(millis_max))
    }
}

/// One node's way to the store: answers come late, and some looks at the epoch not at all.
#[derive(Debug)]
struct Far {
    store: Arc<Memory>,
    random: Arc<Random>,
    is_blind: Arc<AtomicBool>,
}

impl Far {
    /// Mostly soon, sometimes when nobody counts on it any more.
    async fn lags(&self) {
        let millis_max = if self.random.below(4) == 0 { 900 } else { 30 };
        sleep(self.random.pause(millis_max)).await;
    }
}

#[async_trait::async_trait]
impl Store for Far {
    async fn prepare(&self) -> Result<(), Error> {
        self.store.prepare().await
    }

    async fn load(&self, id: Id) -> Result<Option<Seen>, Error> {
        let seen = self.store.load(id).await;
        self.lags().await;
        seen
    }

    async fn swap(&self, id: Id, change: Change) -> Result<Swapped, Error> {
        let swapped = self.store.swap(id, change).await;
        self.lags().await;
        swapped
    }

    async fn scan(&self, query: Query) -> Result<Page, Error> {
        self.store.scan(query).await
    }

    async fn reap(&self, limit: usize) -> Result<usize, Error> {
        self.store.reap(limit).await
    }

    async fn results(
        &self,
        id: Id,
        used_at: onlyonce_core::time::Timestamp,
    ) -> Result<Vec<onlyonce::store::result::PhaseResult>, Error> {
        self.store.results(id, used_at).await
    }

    async fn request(
        &self,
        id: Id,
        used_at: onlyonce_core::time::Timestamp,
    ) -> Result<Option<bytes::Bytes>, Error> {
        self.store.request(id, used_at).await
    }

    async fn requests(&self, limit: usize) -> Result<usize, Error> {
        self.store.requests(limit).await
    }

    async fn count(&self) -> Result<Vec<(StateName, Count)>, Error> {
        self.store.count().await
    }

    async fn epoch(&self) -> Result<EpochSeen, Error> {
        self.lags().await;
        let epoch = self.store.epoch().await;
        self.lags().await;
        match self.is_blind.load(Ordering::SeqCst) {
            true => Err(Error::new(ErrorKind::Other, "the epoch cannot be looked at on order")),
            false => epoch,
        }
    }

    async fn raise_epoch(&self) -> Result<(), Error> {
        self.store.raise_epoch().await
    }

    fn promises(&self) -> Promises {
        self.store.promises()
    }

    async fn erase(&self, scope: [u8; 32], limit: usize) -> Result<usize, Error> {
        self.store.erase(scope, limit).await
    }

    fn outbox(&self) -> Option<&dyn Outbox> {
        None
    }

    fn audit(&self) -> &dyn Audit {
        self.store.audit()
    }
}

/// A cache that all nodes share. What is put there arrives when it likes.
#[derive(Debug)]
struct Shared {
    copies: Mutex<HashMap<CopyOf, Copy>>,
    random: Arc<Random>,
    found: AtomicU64,
}

#[async_trait::async_trait]
impl Copies for Shared {
    async fn find(&self, of: CopyOf) -> Result<Option<Copy>, Error> {
        let found = self.copies.lock().unwrap().get(&of).cloned();
        sleep(self.random.pause(25)).await;
        self.found.fetch_add(u64::from(found.is_some()), Ordering::SeqCst);
        Ok(found)
    }

    async fn put(&self, of: CopyOf, copy: Copy, _keep_for: Duration) -> Result<(), Error> {
        let millis_max = if self.random.below(3) == 0 { 6_000 } else { 20 };
        sleep(self.random.pause(millis_max)).await;
        self.copies.lock().unwrap().insert(of, copy);
        Ok(())
    }

    async fn remove(&self, of: CopyOf) -> Result<(), Error> {
        if self.random.below(2) == 0 {
            self.copies.lock().unwrap().remove(&of);
        }
        Ok(())
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        Ok(Vec::new())
    }
}

/// Answers with when it ran: a replay shows that, too.
fn node(far: Far, began: Instant) -> (Router, Arc<Engine>) {
    let onlyonce = Onlyonce::new(Arc::new(far)).with_policy(Policy::default()).unwrap();
    let engine = onlyonce.engine().clone();
    let works = async move || (StatusCode::CREATED, millis_since(began).to_string()).into_response();
    (Router::new().route("/orders", any(works)).layer(onlyonce.layer()), engine)
}

fn millis_since(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_millis()).unwrap()
}

struct World {
    began: Instant,
    random: Arc<Random>,
    nodes: Vec<(Router, Arc<Engine>)>,
    blind: Vec<Arc<AtomicBool>>,
    /// When the last forgetting of each key began that was reported.
    forgotten_at: [AtomicU64; KEYS.len()],
    forgotten: AtomicU64,
    replays: AtomicU64,
    shared: Arc<Shared>,
}

impl World {
    /// With every other seed the nodes share a cache.
    fn new(seed: u64) -> Self {
        let (store, random) = (Arc::new(Memory::new()), Arc::new(Random(AtomicU64::new(seed))));
        let blind: Vec<Arc<AtomicBool>> = (0..NODES).map(|_| Arc::default()).collect();
        let far = |is_blind: &Arc<AtomicBool>| Far {
            store: store.clone(),
            random: random.clone(),
            is_blind: is_blind.clone(),
        };
        let began = Instant::now();
        let nodes: Vec<_> = blind.iter().map(|is_blind| node(far(is_blind), began)).collect();
        let [forgotten, replays, found] = [0, 0, 0].map(AtomicU64::new);
        let shared = Arc::new(Shared { copies: Mutex::default(), random: random.clone(), found });
        if seed.is_multiple_of(2) {
            nodes.iter().for_each(|(_, engine)| engine.use_cache(shared.clone()));
        }
        Self { began, random, nodes, blind, forgotten_at: Default::default(), forgotten, replays, shared }
    }

    async fn client(&self) {
        loop {
            sleep(self.random.pause(60)).await;
            let key = self.random.place(KEYS.len());
            let forgotten_at = self.forgotten_at[key].load(Ordering::SeqCst);
            let node = &self.nodes[self.random.place(NODES)].0;
            let answer = Answer::of(node.clone().oneshot(order(KEYS[key])).await.unwrap()).await;
            if answer.status != 201 {
                continue;
            }
            let ran_at: u64 = answer.text().parse().unwrap();
            assert!(ran_at >= forgotten_at, "an answer of {ran_at} ms, forgotten at {forgotten_at} ms");
            self.replays.fetch_add(u64::from(answer.is_replay()), Ordering::SeqCst);
        }
    }

    async fn operator(&self) {
        loop {
            sleep(self.random.pause(4_000)).await;
            let key = self.random.place(KEYS.len());
            let engine = &self.nodes[self.random.place(NODES)].1;
            let query = Query::all(10);
            let page = engine.store().scan(query).await.unwrap();
            let found = page.records.iter().find(|(_, seen)| seen.record.key.as_str() == KEYS[key]);
            let Some((id, _)) = found else { continue };
            let began_at = millis_since(self.began);
            if matches!(engine.forget(*id, &ordered(Force::No)).await.unwrap(), Forgotten::Done(_)) {
                self.forgotten_at[key].store(began_at, Ordering::SeqCst);
                self.forgotten.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    async fn network(&self) {
        loop {
            sleep(self.random.pause(2_000)).await;
            let node = &self.blind[self.random.place(NODES)];
            node.store(self.random.below(2) == 0, Ordering::SeqCst);
        }
    }
}

/// X04
#[tokio::test(start_paused = true)]
async fn nobody_who_asks_after_a_forgetting_was_reported_gets_an_answer_from_before_it() {
    let first = std::env::var("ONLYONCE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let (mut replays, mut forgotten, mut found) = (0, 0, 0);
    for seed in first..first + SEEDS {
        println!("repeat with ONLYONCE_SEED={seed}");
        let world = World::new(seed);
        let clients = futures_util::future::join_all((0..CLIENTS).map(|_| world.client()));
        let all = async { tokio::join!(clients, world.operator(), world.network()) };
        let _ = tokio::time::timeout(LASTS, all).await;
        replays += world.replays.into_inner();
        forgotten += world.forgotten.into_inner();
        found += world.shared.found.load(Ordering::SeqCst);
    }
    println!("{forgotten} keys were forgotten, {replays} answers were replayed, {found} copies were found");
    assert!(found > SEEDS, "{found} copies in the cache prove nothing");
    assert!(forgotten > 5 * SEEDS && replays > 100 * SEEDS, "{forgotten} and {replays} prove nothing");
}

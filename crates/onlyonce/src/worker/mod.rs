//! What goes on behind the requests: the sweeper, the reaper, the reconciler and the examiner.
//!
//! Any number of nodes may run them on one store. They share the work through the store's own compare and swap: of two
//! that find the same record, one writes and the other sees that it is done.
//!
//! They leave room for the traffic: they work in small batches, until nothing is due, and rest between two batches for
//! as long as the last one took, so that a slow store is asked less.

mod examiner;
mod reaper;
mod reconciler;
mod sweeper;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::accepted;
use crate::engine::{Engine, chain};

/// How often what goes on behind the requests comes round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Background {
    /// How often lapsed leases are looked for.
    pub sweep_every: Duration,
    /// How often expired records are deleted.
    pub reap_every: Duration,
    /// How many are deleted at once.
    pub reap_batch: usize,
    /// How long entries of the audit log are kept.
    pub audit_retention: Duration,
    /// How long delivered messages are known.
    pub delivered_retention: Duration,
    /// How accepted work is run.
    pub accepted: accepted::Terms,
}

impl Default for Background {
    fn default() -> Self {
        Self {
            sweep_every: Duration::from_secs(5),
            reap_every: Duration::from_secs(30),
            reap_batch: 200,
            audit_retention: Duration::from_secs(400 * 24 * 3600),
            delivered_retention: Duration::from_secs(7 * 24 * 3600),
            accepted: accepted::Terms::default(),
        }
    }
}

/// How often records are looked for that a probe is to be asked about.
const RECONCILE_EVERY: Duration = Duration::from_secs(1);
/// How often the store is asked what is wrong with it.
const EXAMINE_EVERY: Duration = Duration::from_secs(30);

/// The workers of one node. They stop when it is dropped.
#[derive(Debug)]
#[must_use = "the workers stop when this is dropped"]
pub struct Workers(Vec<JoinHandle<()>>);

impl Workers {
    /// Starts them on this runtime.
    pub fn start(engine: &Arc<Engine>, background: &Background) -> Self {
        engine.accepted.use_terms(background.accepted);
        let Background { reap_batch: batch, audit_retention, delivered_retention, .. } = *background;
        Self(vec![
            tokio::spawn(every(background.sweep_every, "sweeper", engine.clone(), async |engine| {
                engine.sweep().await.map(drop)
            })),
            tokio::spawn(every(background.reap_every, "reaper", engine.clone(), async move |engine| {
                engine.reap(batch).await?;
                engine.reap_messages(delivered_retention, batch).await?;
                engine.reap_audit(audit_retention, batch).await.map(drop)
            })),
            tokio::spawn(every(RECONCILE_EVERY, "reconciler", engine.clone(), async |engine| {
                engine.reconcile().await.map(drop)
            })),
            tokio::spawn(engine.clone().work_off()),
            tokio::spawn(every(EXAMINE_EVERY, "examiner", engine.clone(), async |engine| {
                engine.examine().await.map(drop)
            })),
        ])
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // Every write of theirs is one swap: stopped anywhere, nothing is half done.
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// Comes round for ever. A round that fails is told and tried again at the next.
async fn every(
    span: Duration,
    name: &'static str,
    engine: Arc<Engine>,
    round: impl AsyncFn(&Arc<Engine>) -> Result<(), onlyonce_store::Error>,
) {
    let mut rounds = interval(span);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        let began = Instant::now();
        match round(&engine).await {
            Ok(()) => engine.rounds.ended(name, began),
            Err(error) => {
                tracing::warn!(worker = name, error = %chain(&error), "the store did not answer; the worker tries again at its next round");
            }
        }
    }
}

/// When each worker of this node last came to the end of a round.
#[derive(Debug, Default)]
pub(crate) struct Rounds(Mutex<BTreeMap<&'static str, Round>>);

/// A worker's last round that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// When it ended.
    pub ended_at: Instant,
    /// How long it took.
    pub took: Duration,
}

impl Rounds {
    pub(crate) fn ended(&self, worker: &'static str, began: Instant) {
        let round = Round { ended_at: Instant::now(), took: began.elapsed() };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(worker, round);
    }
}

impl Engine {
    /// When each worker of this node last came to the end of a round, by its name.
    pub fn rounds(&self) -> BTreeMap<&'static str, Round> {
        self.rounds.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// How long one store call of a worker may take: nobody waits for it, but one that is never answered must not be the
/// worker's last.
pub(crate) const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// Rests for as long as the work since `began` took: at least half of the store's time is the traffic's.
async fn rest_after(began: Instant) {
    sleep(began.elapsed()).await;
}

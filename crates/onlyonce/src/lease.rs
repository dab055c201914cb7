//! An attempt's hold on its record.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use onlyonce_core::outcome::Outcome;
use onlyonce_core::record::{Effects, Handle, Id, Progress, Seen};
use tokio::time::{Instant, sleep_until};

use crate::cache::reckoned;
use crate::engine::{Ending, Engine, Renewed, chain};
use crate::inflight::Leader;
use crate::limiter::Running;

/// An attempt's hold on its record, from the reservation to the outcome.
///
/// Who is authoritative: the store. Only its clock says whether a lease has lapsed. This node may trust its own clock
/// for one thing, to be *early*: it counts from before it asked for the reservation or the renewal, so what it takes
/// for the end of its lease is never after the store's.
///
/// ```text
///  store   ──────────┬ written ───────────────────────── lapses
///  node    ┬ asked ──┴ answered ──── half: renew ── ends ┘
/// ```
///
/// Renewals start at half the lease, so most attempts never renew. One that fails is tried again. One that finds the
/// attempt completed, by its own transaction or by a verdict, ends it: the answer is stored, and its client need not wait
/// for a service that hangs. One that finds the record moved on stops, and the attempt goes on all the same: it cannot be
/// called back, and its outcome is still the truth. The deadline ends it, renewed or not. Everything it writes carries its token; a *later attempt* has another
/// one, and that alone makes this one superseded.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) handle: Handle,
    /// When this attempt must have ended, by this node's clock.
    pub(crate) deadline: Instant,
    /// What the store last showed, and when this node asked.
    held: Mutex<(Seen, Instant)>,
    /// Held until the lease is dropped, which wakes its followers. None if another request leads this key here.
    leader: Option<Leader>,
    /// Its place among the attempts of this node, where those are counted.
    _running: Option<Running>,
}

/// Why nobody waits for an attempt any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// Its deadline has come.
    Deadline,
    /// It is completed, and its answer stored.
    Completed,
}

/// Renewals start after this part of a lease.
const RENEW_AFTER: u32 = 2;
/// A renewal that failed is tried again after this part of a lease.
const AGAIN_AFTER: u32 = 10;

impl Lease {
    /// The hold on a record that was just reserved; `asked_at` is when this node asked for what it decided on.
    pub(crate) fn new(id: Id, seen: Seen, asked_at: Instant, leader: Option<Leader>) -> Self {
        if let Some(leader) = &leader {
            leader.runs(seen.clone(), asked_at);
        }
        let deadline = asked_at + seen.record.terms.deadline;
        let handle = Handle { id, token: seen.record.token };
        Self { handle, deadline, held: Mutex::new((seen, asked_at)), leader, _running: None }
    }

    /// The same, counted among the attempts of this node until it is dropped.
    pub(crate) fn counted(self, running: Option<Running>) -> Self {
        Self { _running: running, ..self }
    }

    /// What the store last showed, with its clock as this node reckons it now: what is decided on it happens now.
    pub(crate) fn seen(&self) -> Seen {
        let (seen, asked_at) = &*self.held();
        reckoned(seen.clone(), *asked_at, Instant::now())
    }

    /// The attempt's number.
    pub(crate) fn attempt(&self) -> u32 {
        self.held().0.record.attempt
    }

    /// How far earlier attempts have come.
    pub(crate) fn progress(&self) -> Progress {
        self.held().0.record.progress.clone()
    }

    /// What the work touches.
    pub(crate) fn effects(&self) -> Effects {
        self.held().0.record.terms.effects
    }

    /// How the attempt ended.
    pub(crate) fn ending<'a>(&'a self, outcome: &'a Outcome, store_timeout: Duration) -> Ending<'a> {
        Ending { handle: &self.handle, outcome, leader: self.leader.as_ref(), store_timeout }
    }

    /// Whether so much of the lease is used now that nothing may be sent under it any more.
    pub(crate) fn is_half_used(&self, now: Instant) -> bool {
        let held = self.held();
        now.saturating_duration_since(held.1) >= held.0.record.terms.lease / RENEW_AFTER
    }

    /// Renews once.
    pub(crate) async fn renew(
        &self,
        engine: &Engine,
        store_timeout: Duration,
    ) -> Result<Renewed, onlyonce_store::Error> {
        let asked_at = Instant::now();
        let renewed = engine.renew(&self.handle, self.seen(), store_timeout).await?;
        if let Renewed::Until(seen) = &renewed {
            if let Some(leader) = &self.leader {
                leader.runs(seen.clone(), asked_at);
            }
            *self.held.lock().unwrap_or_else(PoisonError::into_inner) = (seen.clone(), asked_at);
        }
        Ok(renewed)
    }

    /// Keeps the lease until the attempt is over, and says why it is.
    pub(crate) async fn keep(&self, engine: &Engine, store_timeout: Duration) -> Over {
        let lease = self.held().0.record.terms.lease;
        let mut renew_at = self.held().1 + lease / RENEW_AFTER;
        while renew_at < self.deadline {
            sleep_until(renew_at).await;
            match self.renew(engine, store_timeout).await {
                Ok(Renewed::Until(_)) => renew_at = self.held().1 + lease / RENEW_AFTER,
                Ok(Renewed::Completed) => return Over::Completed,
                Ok(Renewed::Lost) => {
                    tracing::warn!(record = %self.handle.id.short(), "the lease lapsed while the attempt ran; its outcome still counts");
                    break;
                }
                Err(error) => {
                    tracing::warn!(record = %self.handle.id.short(), error = %chain(&error), "the lease could not be renewed yet; it is tried again");
                    renew_at = Instant::now() + lease / AGAIN_AFTER;
                }
            }
        }
        sleep_until(self.deadline).await;
        Over::Deadline
    }

    fn held(&self) -> std::sync::MutexGuard<'_, (Seen, Instant)> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

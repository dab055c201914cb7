//! The worker that begins accepted work.

use std::sync::Arc;
use std::time::Duration;

use onlyonce_core::machine;
use onlyonce_core::record::{Id, Seen, TraceId};
use onlyonce_store::{Error, ErrorKind, Query, Swapped, failpoint};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::queue::{Place, Waiting};
use super::{Fresh, Runs, Stored, Work};
#[cfg(doc)]
use crate::Policy;
use crate::counts::Operation;
use crate::engine::{Engine, chain, contended, fresh_token};
use crate::gate::Gate;
use crate::inflight::Joined;
use crate::lease::Lease;
use crate::worker::STORE_TIMEOUT;

/// How often the store is looked at for work of other nodes, and for work whose pause is over.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The same while there is no accepted work at all.
const LOOK_IDLE_EVERY: Duration = Duration::from_secs(10);
/// How many records are looked at in one page.
const BATCH: usize = 500;
/// Answers that say that nothing ran, where no layer saw the request: there is no such route, or middleware refused it.
const NOTHING_RAN: [u16; 7] = [401, 403, 404, 405, 425, 429, 503];
/// How often a record may change under an order to cancel it.
const SWAPS_MAX: u32 = 16;

impl Engine {
    /// Has accepted work run by `runner`: from now on [`Policy::accept`] counts. The [workers](crate::worker::Workers) must
    /// run. Called again, it replaces the runner, and what could not be run is tried again.
    pub fn run_accepted_with(&self, runner: Arc<dyn Runs>) {
        self.accepted.use_runner(runner);
    }

    /// Begins no more accepted work. What runs is waited for by [`Engine::idle`]; the rest stays pending, for another node or
    /// the next start.
    pub fn stop_accepted(&self) {
        self.accepted.stop();
    }

    /// Drops the runner, which has this engine in turn. Call it before the process, or the engine, ends.
    pub fn forget_accepted(&self) {
        self.accepted.forget_runner();
    }

    /// Begins accepted work whenever there is a place and work for it.
    pub(crate) async fn work_off(self: Arc<Self>) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = looks.tick() => {}
                () = self.accepted.wake.notified() => {}
            }
            let began = Instant::now();
            match self.look_for_accepted().await {
                Ok(()) => self.rounds.ended("accepted", began),
                Err(error) => {
                    tracing::warn!(worker = "accepted", error = %chain(&error), "the store did not answer; the worker tries again at its next round");
                }
            }
            while let Some(place) = self.accepted.next() {
                let engine = self.clone();
                self.tasks.spawn(async move { engine.run_accepted(place).await });
            }
        }
    }

    /// Looks at what the store has, where the last look is long enough ago and there is a place for more.
    async fn look_for_accepted(&self) -> Result<(), Error> {
        let Some(limit) = self.accepted.begin_look(LOOK_EVERY, LOOK_IDLE_EVERY) else { return Ok(()) };
        let stored = self.guarded(Operation::Scan, STORE_TIMEOUT, self.store().requests(limit)).await?;
        let mut waiting = Vec::new();
        if stored > 0 && self.accepted.begin_listing() {
            self.list_accepted(Query::pending_since(BATCH), limit, &mut waiting).await?;
            self.list_accepted(Query::due(machine::RERUN, BATCH), limit, &mut waiting).await?;
        }
        self.accepted.looked(stored, waiting);
        Ok(())
    }

    /// Those of a listing that may be claimed.
    async fn list_accepted(
        &self,
        mut query: Query,
        limit: usize,
        waiting: &mut Vec<Waiting>,
    ) -> Result<(), Error> {
        loop {
            let page = self.guarded(Operation::Scan, STORE_TIMEOUT, self.store().scan(query.clone())).await?;
            let may_begin = |seen: &Seen| machine::claim(seen, fresh_token(), Duration::ZERO).is_some();
            let found = page.records.iter().filter(|(_, seen)| may_begin(seen));
            waiting.extend(found.map(|(id, seen)| Waiting::of(*id, &seen.record)));
            let Some(next) = page.next.filter(|_| waiting.len() < limit) else { return Ok(()) };
            query.after = Some(next);
        }
    }

    /// Runs accepted work, if it may still begin.
    async fn run_accepted(self: Arc<Self>, mut place: Place) {
        let id = place.waiting.id;
        // What was written long ago may have changed, or be over.
        let fresh = place.fresh.take().filter(|fresh| fresh.asked_at.elapsed() < LOOK_EVERY);
        let work = match fresh {
            Some(fresh) => Ok(Some(fresh)),
            None => Box::pin(self.read_accepted(id)).await,
        };
        match work.map(|read| self.work(&place, read?)) {
            Ok(Some(work)) => match place.runner.run(work.clone()) {
                Ok(running) => {
                    running.await;
                    self.look_after(place, &work);
                }
                Err(work) => self.leave(id, &work, "its route is not in the settings"),
            },
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(record = %id.short(), error = %chain(&error), "accepted work did not begin: the store did not return its request");
                match error.kind() {
                    ErrorKind::Unavailable | ErrorKind::Busy => {}
                    ErrorKind::Corrupt
                    | ErrorKind::Undecryptable
                    | ErrorKind::Misconfigured
                    | ErrorKind::Other => self.accepted.leave(id),
                }
            }
        }
    }

    /// What is to be done with work that nobody claimed, once it was handed over.
    fn look_after(&self, place: Place, work: &Work) {
        let id = place.waiting.id;
        if let Some(limit) = work.refused_by() {
            return place.refused(limit);
        }
        if work.has_arrived() {
            return;
        }
        match work.answer() {
            Some(status) if !NOTHING_RAN.contains(&status.as_u16()) => {
                let route = work.route().unwrap_or_default();
                tracing::error!(record = %id.short(), route, status = status.as_u16(), "accepted work was answered by a handler without the layer, which may have run it without a claim; it is not run again before a reload or a restart: put its route under the layer again, or cancel it by its key");
                self.accepted.leave_for(id, work.seen().record.terms.retention);
            }
            Some(_) | None => self.leave(id, work, "the service answered it before the layer saw it"),
        }
    }

    fn leave(&self, id: Id, work: &Work, why: &str) {
        let route = work.route().unwrap_or_default();
        tracing::warn!(record = %id.short(), route, why, "accepted work cannot run here; it did not run, and is tried again after a reload");
        self.accepted.leave(id);
    }

    /// The work as the store has it; none where there is none.
    async fn read_accepted(&self, id: Id) -> Result<Option<Fresh>, Error> {
        let asked_at = Instant::now();
        let Some(seen) = self.load(&id, STORE_TIMEOUT).await? else { return Ok(None) };
        if machine::claim(&seen, fresh_token(), Duration::ZERO).is_none() {
            return Ok(None);
        }
        let request = self.store().request(id, seen.record.created_at);
        let Some(request) = self.guarded(Operation::Load, STORE_TIMEOUT, request).await? else {
            tracing::error!(record = %id.short(), "the stored request of accepted work is missing; it will be given up at the end of its retention");
            self.accepted.leave(id);
            return Ok(None);
        };
        Ok(Some(Fresh { seen, request, asked_at }))
    }

    /// The work with its request; none where that cannot be understood.
    fn work(&self, place: &Place, read: Fresh) -> Option<Work> {
        let (id, Fresh { seen, request, .. }) = (place.waiting.id, read);
        let Some(stored) = Stored::decoded(request) else {
            tracing::error!(record = %id.short(), "the stored request of accepted work cannot be read; it will be given up at the end of its retention");
            self.accepted.leave(id);
            return None;
        };
        Some(Work::new(id, seen, stored, place.terms.pause_max))
    }

    /// Claims accepted work; none where somebody else has it, or the store did not take the claim.
    pub(crate) async fn claim(
        self: &Arc<Self>,
        work: &Work,
        gate: &Gate<'_>,
        trace: Option<TraceId>,
    ) -> Option<Box<Lease>> {
        work.arrives();
        // Where a limit leaves no place, it waits on.
        let running = gate.run().inspect_err(|refusal| work.refuse(refusal)).ok()?;
        let policy = gate.policy;
        let (id, seen, token) = (work.id(), work.seen(), fresh_token());
        let leader = match self.join(id) {
            Joined::Leader(leader) => Some(leader),
            Joined::Follower(_) => None,
        };
        let mut draft = machine::claim(seen, token, work.pause_max())?;
        draft.trace = trace;
        failpoint!("claim.before");
        let asked_at = Instant::now();
        let swapped = self.swap(id, Some(seen), draft, policy.store_timeout).await;
        failpoint!("claim.after");
        match swapped {
            Ok(Swapped::Applied(now)) => {
                Some(Box::new(Lease::new(*id, now, asked_at, leader).counted(running)))
            }
            Ok(Swapped::Lost(_)) => None,
            Err(error) => {
                tracing::warn!(record = %id.short(), error = %chain(&error), "accepted work was not claimed");
                if !error.wrote_nothing() {
                    self.give_back(*id, token, Some(seen.revision), policy);
                }
                None
            }
        }
    }

    /// Cancels accepted work that waits.
    pub(crate) async fn cancel(&self, id: &Id, store_timeout: Duration) -> Result<Cancelled, Error> {
        let mut seen = self.load(id, store_timeout).await?;
        for _ in 0..SWAPS_MAX {
            let Some(draft) = seen.as_ref().and_then(machine::cancel) else {
                return Ok(Cancelled::Refused(seen));
            };
            failpoint!("cancel.before");
            let swapped = self.swap(id, seen.as_ref(), draft, store_timeout).await?;
            failpoint!("cancel.after");
            match swapped {
                Swapped::Applied(_) => return Ok(Cancelled::Done),
                Swapped::Lost(now) => seen = now,
            }
        }
        Err(contended())
    }
}

/// What became of an order to cancel.
pub(crate) enum Cancelled {
    Done,
    /// It does not wait; as it stands.
    Refused(Option<Seen>),
}

//! The reconciler: asks probes about records whose outcome is unknown.
//!
//! ```text
//!  due? ── claim: the next question is put off, by compare and swap ── ask ── judge by the clock before the question
//! ```
//!
//! 1. A question is claimed before it is asked: of many nodes that find a record due, the one whose swap applies asks. A
//!    node that dies meanwhile is asked for once its claim has lapsed.
//! 2. What the probe says is judged by the store's clock from before the question: an effect may turn up after the probe
//!    has looked.
//! 3. A probe that gives no usable answer decides nothing. It is asked again later, and after a while the record is flagged
//!    as a dead letter.
//! 4. A probe that has no place free for a while is left out until the next round: the records of other probes do not wait
//!    for it.
//! 5. When the probes change, every unknown record is looked at once: it is asked about if its route has a probe now.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use onlyonce_core::history::shortened;
use onlyonce_core::machine::{self, About, Backoff, Force, Ruled, Ruling, Statement};
use onlyonce_core::record::{Draft, Handle, Id, Response, Seen, Source, Verdict, call_token, downstream_key};
use onlyonce_store::{Error, Query, Swapped, failpoint};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::{STORE_TIMEOUT, rest_after};
use crate::counts::{self, Operation};
use crate::engine::{Engine, contended, fresh_token};
use crate::probe::{Answer, Asked, Failure, Places, Probe, Question};

/// How many records are looked at in one batch.
const BATCH: usize = 100;
/// How often a record may change under an answer.
const SWAPS_MAX: u32 = 16;

impl Engine {
    /// Asks about every record that is due, and says how many were settled.
    pub async fn reconcile(self: &Arc<Self>) -> Result<usize, Error> {
        self.schedule_all().await?;
        let probes = self.probes();
        if probes.is_empty() {
            return Ok(0);
        }
        let (all, places) = (Semaphore::new(probes.at_once.max(1)), Places::default());
        let mut query = Query::due(machine::ASKED, BATCH);
        let mut settled = 0;
        loop {
            let began = Instant::now();
            let page = self.guarded(Operation::Scan, STORE_TIMEOUT, self.store().scan(query.clone())).await?;
            let reconcile = |(id, seen)| self.reconcile_record(id, seen, &places, &all);
            let mut asking: FuturesUnordered<_> = page.records.into_iter().map(reconcile).collect();
            while let Some(done) = asking.next().await {
                settled += usize::from(done?);
            }
            let Some(next) = page.next else { return Ok(settled) };
            if places.are_crowded(&probes) {
                return Ok(settled);
            }
            query.after = Some(next);
            rest_after(began).await;
        }
    }

    /// Looks at every unknown record, where one of them may have a probe and not be asked about, or be asked about and have no
    /// probe any more. One that fails is tried again at the next round.
    async fn schedule_all(&self) -> Result<(), Error> {
        if !self.is_unscheduled.swap(false, Ordering::SeqCst) {
            return Ok(());
        }
        let scheduled = self.schedule_pages().await;
        if scheduled.is_err() {
            self.is_unscheduled.store(true, Ordering::SeqCst);
        }
        scheduled
    }

    async fn schedule_pages(&self) -> Result<(), Error> {
        let mut query = Query::unknown_since(BATCH);
        loop {
            let began = Instant::now();
            let page = self.guarded(Operation::Scan, STORE_TIMEOUT, self.store().scan(query.clone())).await?;
            for (id, seen) in &page.records {
                self.schedule(*id, seen).await?;
            }
            let Some(next) = page.next else { return Ok(()) };
            query.after = Some(next);
            rest_after(began).await;
        }
    }

    /// Whoever changes the record meanwhile has looked at its probe too.
    async fn schedule(&self, id: Id, seen: &Seen) -> Result<(), Error> {
        let Some(draft) = machine::schedule(seen, self.backoff(seen)) else { return Ok(()) };
        failpoint!("reconcile.schedule.before");
        let swapped = self.swap(&id, Some(seen), draft, STORE_TIMEOUT).await?;
        failpoint!("reconcile.schedule.after");
        if let Swapped::Applied(now) = swapped
            && machine::facts(&now.record).ask_at.is_some()
        {
            counts::reconcile("scheduled", Source::Probe);
        }
        Ok(())
    }

    /// Whether this node settled the record. It waits for a place of its probe first, and claims the question only then.
    async fn reconcile_record(
        &self,
        id: Id,
        seen: Seen,
        places: &Places,
        all: &Semaphore,
    ) -> Result<bool, Error> {
        let probes = self.probes();
        let (Some(probe), Some(backoff)) = (probes.of(&seen.record), probes.backoff(&seen.record)) else {
            self.schedule(id, &seen).await?;
            return Ok(false);
        };
        // Without one it stays due.
        let Ok(_place_of_probe) = places.wait_for(&**probe).await else { return Ok(false) };
        let _place = all.acquire().await;
        let Some(claim) = machine::ask(&seen, probes.time_out * 2) else { return Ok(false) };
        failpoint!("reconcile.claim.before");
        let claimed = self.swap(&id, Some(&seen), claim, STORE_TIMEOUT).await?;
        failpoint!("reconcile.claim.after");
        let Swapped::Applied(claimed) = claimed else { return Ok(false) };
        let answered = self.ask_probe(&**probe, &claimed).await;
        failpoint!("reconcile.asked");
        self.write_answer(id, claimed, &answered, backoff).await
    }

    /// The answer to work that is known to have happened, where the record's probe has it.
    pub(crate) async fn ask_for_answer(&self, seen: &Seen) -> Option<Arc<Response>> {
        let probe = self.probes().of(&seen.record).cloned()?;
        match self.ask_probe(&*probe, seen).await.ok()?.verdict {
            Verdict::Happened(response) => response,
            Verdict::DidNotHappen { .. } | Verdict::StillUnknown => None,
        }
    }

    /// Asks once, and counts how it was answered.
    pub(crate) async fn ask_probe(&self, probe: &dyn Probe, seen: &Seen) -> Result<Answer, Failure> {
        let record = &*seen.record;
        let id = Id::of(&record.scope, &record.key);
        let trace = self.trace_probe(record);
        let question = Question {
            scope: record.scope.clone(),
            key: record.key.clone(),
            handle: Handle { id, token: record.token },
            attempt: record.attempt,
            route: record.route.clone(),
            call: record.progress.calling.as_ref().map(|calling| Asked {
                name: calling.phase.clone(),
                key: downstream_key(&record.scope, &record.key, &calling.phase).into(),
                handle: Handle { id, token: call_token(record.token, &calling.phase) },
            }),
            traceparent: trace.as_ref().map(|trace| trace.traceparent()),
        };
        let (asked_at, time_out) = (Instant::now(), self.probes().time_out);
        let answered = timeout(time_out, probe.ask(question)).await;
        let answered =
            answered.unwrap_or_else(|_| Err(Failure::new(format!("no answer within {time_out:?}"))));
        counts::probe(&answered, asked_at.elapsed());
        if let Some(trace) = trace {
            trace.asked(self, record, &answered);
        }
        let route = record.route.clone().unwrap_or_default();
        match &answered {
            Ok(_) => self.probe_answers().answered(&route, seen.now),
            Err(failure) => self.probe_answers().failed(&route, seen.now, &failure.says),
        }
        answered
    }

    /// Writes down what was answered, judged on the record as it was before the question.
    async fn write_answer(
        &self,
        id: Id,
        asked: Seen,
        answered: &Result<Answer, Failure>,
        backoff: Backoff,
    ) -> Result<bool, Error> {
        let asked_about = asked.record.token;
        let mut seen = asked.clone();
        for _ in 0..SWAPS_MAX {
            let Some((draft, settles)) = judge(&seen, answered, backoff) else { return Ok(false) };
            failpoint!("reconcile.write.before");
            let swapped = self.swap(&id, Some(&seen), draft, STORE_TIMEOUT).await?;
            failpoint!("reconcile.write.after");
            match swapped {
                Swapped::Applied(now) => {
                    self.tell_answer(id, &seen, &now, settles);
                    return Ok(settles);
                }
                // Somebody else wrote meanwhile. The answer still counts for the attempt that it was about, by the clock
                // of the question.
                Swapped::Lost(Some(now)) if now.record.token == asked_about => {
                    seen = Seen { now: asked.now, ..now };
                }
                Swapped::Lost(_) => return Ok(false),
            }
        }
        Err(contended())
    }

    fn tell_answer(&self, id: Id, before: &Seen, after: &Seen, settles: bool) {
        self.tell_settled(id, before, after, Source::Probe, settles);
        let gave_up =
            !machine::facts(&before.record).dead_letter && machine::facts(&after.record).dead_letter;
        if gave_up {
            tracing::warn!(
                record = %id.short(),
                route = after.record.route.as_deref().unwrap_or_default(),
                attempt = after.record.attempt,
                "the probe gave no verdict and is not called any more; a person has to decide"
            );
            self.tell_transition(id, before.record.state.name(), &after.record, Source::Probe);
        }
    }
}

/// What to write, and whether that settles the record; none where nothing is to be written.
fn judge(seen: &Seen, answered: &Result<Answer, Failure>, backoff: Backoff) -> Option<(Box<Draft>, bool)> {
    let answer = match answered {
        Ok(answer) => answer,
        Err(failure) => return Some((machine::probe_failed(seen, backoff, &failure.says)?, false)),
    };
    let ruling = Ruling {
        verdict: answer.verdict.clone(),
        about: About::Attempt(seen.record.token),
        statement: Statement {
            detail: answer.detail.as_deref().map(shortened),
            ..Statement::by(Source::Probe)
        },
        force: Force::No,
        token: fresh_token(),
        probe: Some(backoff),
    };
    match machine::verdict(seen, &ruling) {
        Ruled::Settles(draft) => Some((draft, true)),
        Ruled::Keeps(draft) | Ruled::Notes(draft, _) => Some((draft, false)),
        // It was settled meanwhile, by somebody else.
        Ruled::Contradicts(_)
        | Ruled::Ignores(..)
        | Ruled::Already
        | Ruled::StillRunning
        | Ruled::TooEarly(_)
        | Ruled::Settled
        | Ruled::NothingToAsk
        | Ruled::Absent => None,
    }
}

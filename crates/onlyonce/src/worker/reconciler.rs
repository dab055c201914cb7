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

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use onlyonce_core::history::shortened;
use onlyonce_core::machine::{self, About, Backoff, Force, Ruled, Ruling, Statement};
use onlyonce_core::record::{Draft, Handle, Id, Seen, Source};
use onlyonce_store::{Error, Query, Swapped, failpoint};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::{STORE_TIMEOUT, rest_after};
use crate::counts::{self, Operation};
use crate::engine::{Engine, contended, fresh_token};
use crate::probe::{Answer, Failure, Probe, Question};

/// How many records are looked at in one batch.
const BATCH: usize = 100;
/// How often a record may change under an answer.
const SWAPS_MAX: u32 = 16;

impl Engine {
    /// Asks about every record that is due, and says how many were settled.
    pub async fn reconcile(self: &Arc<Self>) -> Result<usize, Error> {
        let probes = self.probes();
        if probes.is_empty() {
            return Ok(0);
        }
        let places = Semaphore::new(probes.at_once.max(1));
        let mut query = Query::due(machine::ASKED, BATCH);
        let mut settled = 0;
        loop {
            let began = Instant::now();
            let page = self.guarded(Operation::Scan, STORE_TIMEOUT, self.store().scan(query.clone())).await?;
            let reconcile = |(id, seen)| self.reconcile_record(id, seen, &places);
            let mut asking: FuturesUnordered<_> = page.records.into_iter().map(reconcile).collect();
            while let Some(done) = asking.next().await {
                settled += usize::from(done?);
            }
            let Some(next) = page.next else { return Ok(settled) };
            query.after = Some(next);
            rest_after(began).await;
        }
    }

    /// Whether this node settled the record. It waits for a place of its probe first, and claims the question only then.
    async fn reconcile_record(&self, id: Id, seen: Seen, places: &Semaphore) -> Result<bool, Error> {
        let probes = self.probes();
        let (Some(probe), Some(backoff)) = (probes.of(&seen.record), probes.backoff(&seen.record)) else {
            return self.stop_asking(id, &seen).await;
        };
        let _place_of_probe = match probe.places() {
            Some(places) => Some(places.acquire_owned().await),
            None => None,
        };
        let _place = places.acquire().await;
        let Some(claim) = machine::ask(&seen, probes.time_out * 2) else { return Ok(false) };
        failpoint!("reconcile.claim.before");
        let claimed = self.swap(&id, Some(&seen), claim, STORE_TIMEOUT).await?;
        failpoint!("reconcile.claim.after");
        let Swapped::Applied(claimed) = claimed else { return Ok(false) };
        let answered = self.ask_probe(&**probe, &claimed).await;
        failpoint!("reconcile.asked");
        self.write_answer(id, claimed, &answered, backoff).await
    }

    /// Its route has no probe any more.
    async fn stop_asking(&self, id: Id, seen: &Seen) -> Result<bool, Error> {
        if let Some(draft) = machine::stop_asking(seen) {
            self.swap(&id, Some(seen), draft, STORE_TIMEOUT).await?;
        }
        Ok(false)
    }

    /// Asks once, and counts how it was answered.
    pub(crate) async fn ask_probe(&self, probe: &dyn Probe, seen: &Seen) -> Result<Answer, Failure> {
        let record = &*seen.record;
        let id = Id::of(&record.scope, &record.key);
        let question = Question {
            scope: record.scope.clone(),
            key: record.key.clone(),
            handle: Handle { id, token: record.token },
            attempt: record.attempt,
            route: record.route.clone(),
        };
        let (asked_at, time_out) = (Instant::now(), self.probes().time_out);
        let answered = timeout(time_out, probe.ask(question)).await;
        let answered =
            answered.unwrap_or_else(|_| Err(Failure::new(format!("no answer within {time_out:?}"))));
        counts::probe(&answered, asked_at.elapsed());
        let route = record.route.clone().unwrap_or_default();
        match &answered {
            Ok(_) => self.probe_answers().answered(&route),
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
                "the probe was asked for long enough without a verdict: a person has to decide"
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

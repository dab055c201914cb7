//! The sweeper: what becomes of records nobody came back for.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use onlyonce_core::machine;
use onlyonce_core::record::{Id, Record, Seen, Source};
use onlyonce_store::{Error, Query, Swapped, failpoint};
use tokio::time::Instant;

use super::rest_after;
use crate::counts::Operation;
use crate::engine::Engine;
use crate::probe::Places;

/// How many records are looked at in one batch.
const BATCH: usize = 100;

impl Engine {
    /// Settles every record whose lease has lapsed, whose acceptance has run out or whose downstream may have
    /// forgotten it, and says how many it did.
    pub async fn sweep(&self) -> Result<usize, Error> {
        let mut query = Query::due(machine::SWEPT, BATCH);
        let (mut swept, places) = (0, Places::default());
        loop {
            let began = Instant::now();
            let page =
                self.guarded(Operation::Scan, super::STORE_TIMEOUT, self.store().scan(query.clone())).await?;
            let (lacking, others): (Vec<_>, Vec<_>) =
                page.records.into_iter().partition(|(_, seen)| machine::is_lost_without_answer(seen));
            for (id, seen) in &others {
                swept += usize::from(self.sweep_record(*id, seen).await?);
            }
            // Each may take as long as its probe does.
            let sweep = |(id, seen)| self.sweep_with_answer(id, seen, &places);
            let mut asking: FuturesUnordered<_> = lacking.into_iter().map(sweep).collect();
            while let Some(done) = asking.next().await {
                swept += usize::from(done?);
            }
            let Some(next) = page.next else { return Ok(swept) };
            query.after = Some(next);
            rest_after(began).await;
        }
    }

    /// A record whose attempt is known to have done its work: clients want its answer too, which the probe may have.
    async fn sweep_with_answer(&self, id: Id, seen: Seen, places: &Places) -> Result<bool, Error> {
        let Some(probe) = self.probes().of(&seen.record).cloned() else {
            return self.sweep_record(id, &seen).await;
        };
        // Without a place it is swept in a later round, or settled by whoever asks for it.
        let Ok(_place) = places.wait_for(&*probe).await else { return Ok(false) };
        let seen = self.with_answer(seen).await;
        self.sweep_record(id, &seen).await
    }

    /// Whether it was this node that settled the record: of many that find it, one does, and that one tells.
    async fn sweep_record(&self, id: Id, seen: &Seen) -> Result<bool, Error> {
        let Some(draft) = machine::sweep(seen) else { return Ok(false) };
        failpoint!("sweep.before");
        let swapped = self.swap(&id, Some(seen), draft, super::STORE_TIMEOUT).await?;
        failpoint!("sweep.after");
        match swapped {
            Swapped::Applied(now) if machine::is_flagged(&now.record) => {
                self.tell_flagged(id, &now.record);
                Ok(true)
            }
            Swapped::Applied(now) => {
                tell(id, &seen.record, &now.record);
                Ok(true)
            }
            Swapped::Lost(_) => Ok(false),
        }
    }
}

impl Engine {
    /// Half-done work that nobody came back for waits for a person from now on.
    fn tell_flagged(&self, id: Id, record: &Arc<Record>) {
        tracing::warn!(
            record = %id.short(),
            route = record.route.as_deref().unwrap_or_default(),
            attempt = record.attempt,
            recovery_point = record.progress.recovery_point.as_deref().unwrap_or_default(),
            "half-done work was not resumed within its retention; a person has to decide"
        );
        self.tell_transition(id, record.state.name(), record, Source::Sweeper);
    }
}

/// A record that became unknown is told where it is written.
fn tell(id: Id, before: &Record, after: &Record) {
    let was_lost = machine::is_running(before);
    if was_lost {
        metrics::counter!("onlyonce_lapsed_total").increment(1);
    }
    if machine::is_unknown(after) {
        return;
    }
    let route = after.route.as_deref().unwrap_or_default();
    let (record, attempt, is) = (id.short(), after.attempt, after.state.name());
    if was_lost {
        tracing::warn!(%record, route, attempt, %is, "the attempt of this record was lost");
    } else {
        tracing::warn!(%record, route, attempts = attempt, %is, "accepted work did not succeed within its retention, and is not run again");
    }
}

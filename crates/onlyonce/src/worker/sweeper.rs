//! The sweeper: what becomes of records nobody came back for.

use onlyonce_core::machine;
use onlyonce_core::record::{Id, Record, Seen};
use onlyonce_store::{Error, Query, Swapped, failpoint};
use tokio::time::Instant;

use super::rest_after;
use crate::counts::Operation;
use crate::engine::Engine;

/// How many records are looked at in one batch.
const BATCH: usize = 100;

impl Engine {
    /// Settles every record whose lease has lapsed, whose acceptance has run out or whose downstream may have
    /// forgotten it, and says how many it did.
    pub async fn sweep(&self) -> Result<usize, Error> {
        let mut query = Query::due(machine::SWEPT, BATCH);
        let mut swept = 0;
        loop {
            let began = Instant::now();
            let page =
                self.guarded(Operation::Scan, super::STORE_TIMEOUT, self.store().scan(query.clone())).await?;
            for (id, seen) in &page.records {
                swept += usize::from(self.sweep_record(*id, seen).await?);
            }
            let Some(next) = page.next else { return Ok(swept) };
            query.after = Some(next);
            rest_after(began).await;
        }
    }

    /// Whether it was this node that settled the record: of many that find it, one does, and that one tells.
    async fn sweep_record(&self, id: Id, seen: &Seen) -> Result<bool, Error> {
        let Some(draft) = machine::sweep(seen) else { return Ok(false) };
        failpoint!("sweep.before");
        let swapped = self.swap(&id, Some(seen), draft, super::STORE_TIMEOUT).await?;
        failpoint!("sweep.after");
        match swapped {
            Swapped::Applied(now) => {
                tell(id, &seen.record, &now.record);
                Ok(true)
            }
            Swapped::Lost(_) => Ok(false),
        }
    }
}

/// A record that became unknown is told where it is written.
fn tell(id: Id, before: &Record, after: &Record) {
    metrics::counter!("onlyonce_lapsed_total").increment(1);
    if machine::is_unknown(after) {
        return;
    }
    tracing::warn!(
        record = %id.short(),
        route = after.route.as_deref().unwrap_or_default(),
        attempt = after.attempt,
        was = %before.state.name(),
        is = %after.state.name(),
        "nobody came back for this record"
    );
}

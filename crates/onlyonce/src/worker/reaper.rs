//! The reaper: deletes what has finished and expired.

use std::time::Duration;

use onlyonce_store::{Error, failpoint};
use tokio::time::Instant;

use super::rest_after;
use crate::counts::Operation;
use crate::engine::Engine;

impl Engine {
    /// Deletes expired records, `batch` at a time until none is left, and says how many it did.
    pub async fn reap(&self, batch: usize) -> Result<usize, Error> {
        let mut reaped = 0;
        loop {
            let began = Instant::now();
            failpoint!("reap.before");
            let count = self.guarded(Operation::Reap, super::STORE_TIMEOUT, self.store().reap(batch)).await?;
            failpoint!("reap.after");
            metrics::counter!("onlyonce_reaped_total").increment(count as u64);
            reaped += count;
            if count < batch {
                return Ok(reaped);
            }
            rest_after(began).await;
        }
    }

    /// Deletes entries of the audit log that are older than `age`, `batch` at a time, and says how many it did.
    pub async fn reap_audit(&self, age: Duration, batch: usize) -> Result<usize, Error> {
        let mut reaped = 0;
        loop {
            let began = Instant::now();
            let reap = self.store().audit().prune(age, batch);
            let count = self.guarded(Operation::Reap, super::STORE_TIMEOUT, reap).await?;
            reaped += count;
            if count < batch {
                return Ok(reaped);
            }
            rest_after(began).await;
        }
    }
}

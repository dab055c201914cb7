//! The reaper: deletes what has finished and expired.

use std::time::Duration;

use onlyonce_core::time::Timestamp;
use onlyonce_store::outbox::{self, State};
use onlyonce_store::{Error, Outbox, audit, failpoint};
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

    /// Deletes messages that were delivered longer than `age` ago, `batch` at a time, and says how many it did. What is not
    /// delivered is never deleted by age. It looks first: a look writes nothing.
    pub async fn reap_messages(&self, age: Duration, batch: usize) -> Result<usize, Error> {
        let Some(outbox) = self.store().outbox() else { return Ok(0) };
        let mut reaped = 0;
        while self.has_messages_older_than(outbox, age).await? {
            let began = Instant::now();
            let prune = outbox.prune(age, batch);
            let count = self.guarded(Operation::Reap, super::STORE_TIMEOUT, prune).await?;
            reaped += count;
            if count < batch {
                break;
            }
            rest_after(began).await;
        }
        Ok(reaped)
    }

    async fn has_messages_older_than(&self, outbox: &dyn Outbox, age: Duration) -> Result<bool, Error> {
        let until = self.ago(age).await?;
        let query = outbox::Query { state: Some(State::Delivered), limit: 1, ..outbox::Query::default() };
        let oldest = self.guarded(Operation::Scan, super::STORE_TIMEOUT, outbox.list(query)).await?.items;
        Ok(oldest.first().and_then(|message| message.delivered_at).is_some_and(|at| at < until))
    }

    /// Deletes entries of the audit log that are older than `age`, `batch` at a time, and says how many it did. Hardly ever
    /// is one that old, so it looks first: a look writes nothing.
    pub async fn reap_audit(&self, age: Duration, batch: usize) -> Result<usize, Error> {
        let mut reaped = 0;
        while self.has_entries_older_than(age).await? {
            let began = Instant::now();
            let prune = self.store().audit().prune(age, batch);
            let count = self.guarded(Operation::Reap, super::STORE_TIMEOUT, prune).await?;
            reaped += count;
            if count < batch {
                break;
            }
            rest_after(began).await;
        }
        Ok(reaped)
    }

    async fn has_entries_older_than(&self, age: Duration) -> Result<bool, Error> {
        let query = audit::Query { until: Some(self.ago(age).await?), limit: 1, ..audit::Query::default() };
        let look = self.store().audit().list(query);
        Ok(!self.guarded(Operation::Scan, super::STORE_TIMEOUT, look).await?.entries.is_empty())
    }

    /// The moment that was so long ago, by the store's clock.
    async fn ago(&self, age: Duration) -> Result<Timestamp, Error> {
        let now = self.guarded(Operation::Epoch, super::STORE_TIMEOUT, self.store().epoch()).await?.now;
        let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
        Ok(Timestamp::from_micros(now.as_micros().saturating_sub(age)))
    }
}

//! What operators may do to records: look, settle, forget, purge. The admin API and the program's commands are made of this.
//!
//! 1. Every change is the machine's to allow, and goes to the store by compare and swap.
//! 2. A change and its entry in the audit log are one commit. Where the entry cannot be written, nothing is changed.
//! 3. An order that was refused is in the audit log too.
//! 4. A dry run answers as the order itself would, and writes nothing.

mod forget;
mod order;
mod purge;
mod statement;
mod verdict;

use std::time::Duration;

use onlyonce_core::machine::{self, Action, Backoff};
use onlyonce_core::record::{Id, Seen};
use onlyonce_store::{Error, Page, Query};

pub use forget::Forgotten;
pub use order::{Applied, Operator, Order, Refusal, entry_id};
pub use purge::{Kept, Purged};
pub(crate) use statement::tell_contradiction;
pub use statement::{Heard, Statement, Subject};
pub use verdict::{Judged, Saying};

use crate::counts::Operation;
use crate::engine::Engine;
use crate::probe::Failing;

/// How often a record may change under an order.
const SWAPS_MAX: u32 = 16;
/// How long one store call may take: somebody waits for it, but no request does.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

impl Engine {
    /// The record, unless it has expired.
    ///
    /// # Errors
    ///
    /// Where the store does not answer.
    pub async fn find(&self, id: Id) -> Result<Option<Seen>, Error> {
        let seen = self.load(&id, STORE_TIMEOUT).await?;
        Ok(seen.filter(|seen| !machine::may_reap(&seen.record, seen.now)))
    }

    /// Records as an operator lists them. Expired ones are left out, so a page may be short and still have a next.
    ///
    /// # Errors
    ///
    /// Where the store does not answer, or the cursor is none of its own.
    pub async fn list(&self, query: Query) -> Result<Page, Error> {
        let mut page = self.guarded(Operation::Scan, STORE_TIMEOUT, self.store().scan(query)).await?;
        page.records.retain(|(_, seen)| !machine::may_reap(&seen.record, seen.now));
        Ok(page)
    }

    /// What an operator may do about a record now.
    pub fn actions(&self, seen: &Seen) -> [Action; 4] {
        machine::actions(seen, self.backoff(seen))
    }

    /// How the record's probe is asked; none where its route has none.
    pub(crate) fn backoff(&self, seen: &Seen) -> Option<Backoff> {
        self.probes().backoff(&seen.record)
    }

    /// The probes that have failed several times in a row on this node.
    pub fn failing_probes(&self) -> Vec<Failing> {
        self.probe_answers().failing()
    }
}

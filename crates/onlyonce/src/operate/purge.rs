//! Purging a scope: every record of a caller is forgotten, and what is left of them erased.
//!
//! Records are forgotten one by one, in small batches, and the entry of the audit log is written with the first of them. Cut
//! short, the order is given again and goes on where it was. That entry has the counts as planned. Where records changed
//! meanwhile and others were forgotten, a second entry has the counts as done.

use std::sync::Arc;

use onlyonce_core::machine::Refused;
use onlyonce_core::record::{Id, Seen};
use onlyonce_store::{Error, Query, audit, failpoint};

use super::forget::Tried;
use super::order::{Order, Refusal};
use super::{STORE_TIMEOUT, SWAPS_MAX, in_clear};
use crate::counts::Operation;
use crate::engine::{Engine, contended};

/// How many records are looked at, or erased, at once.
const BATCH: usize = 100;

/// What became of the order to purge a scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// How many records were forgotten, or would be.
    pub forgotten: u64,
    /// What was kept, since it was not forced.
    pub kept: Kept,
    /// The id of the audit entry; none on a dry run.
    pub audit: Option<Arc<str>>,
}

/// Records that a purge left alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Their attempt still runs.
    pub running: u64,
    /// Nobody knows whether they ran.
    pub unknown: u64,
}

impl Purged {
    /// Whether nothing of the scope was kept.
    pub fn is_whole(&self) -> bool {
        self.kept == Kept::default()
    }
}

impl Engine {
    /// Forgets every record of a scope, and erases what is left of them: from the archive too, and keys and labels from the
    /// audit log. Ready after a few seconds, when no node can replay what was forgotten.
    ///
    /// # Errors
    ///
    /// Where the store does not answer. A part may be done: order it again.
    pub async fn purge(&self, scope: [u8; 32], order: &Order) -> Result<Purged, Error> {
        // Counted first: the entry that is written with the first record says what is about to go.
        let planned = self.purge_all(scope, &Order { dry_run: true, ..order.clone() }, None).await?;
        if order.dry_run {
            return Ok(planned);
        }
        let entry = purge_entry(scope, order, &planned);
        let audit = entry.id.clone();
        let mut purged = self.purge_all(scope, order, Some(entry)).await?;
        purged.audit = Some(audit);
        if (purged.forgotten, purged.kept) != (planned.forgotten, planned.kept) {
            self.write_audit(purge_entry(scope, order, &purged)).await?;
        }
        failpoint!("purge.erase.before");
        while self.guarded(Operation::Reap, STORE_TIMEOUT, self.store().erase(scope, BATCH)).await? == BATCH {
        }
        failpoint!("purge.erase.after");
        self.tell_every_node(STORE_TIMEOUT).await?;
        Ok(purged)
    }

    async fn purge_all(
        &self,
        scope: [u8; 32],
        order: &Order,
        mut entry: Option<audit::Entry>,
    ) -> Result<Purged, Error> {
        let mut purged = Purged::default();
        let mut query = Query { scope: Some(scope), ..Query::all(BATCH) };
        loop {
            let page = self.list(query.clone()).await?;
            let unreadable = page.unreadable.iter().map(|unreadable| (unreadable.id(), in_clear(unreadable)));
            for (id, seen) in page.records.into_iter().chain(unreadable) {
                match self.purge_one(id, seen, order, &mut entry).await? {
                    Tried::Done(_) => purged.forgotten += 1,
                    Tried::Refused(Refusal::Refused(Refused::StillRunning, _), _) => purged.kept.running += 1,
                    Tried::Refused(Refusal::Refused(Refused::Unknown, _), _) => purged.kept.unknown += 1,
                    Tried::Refused(..) | Tried::Lost(_) => {}
                }
            }
            let Some(next) = page.next else { break };
            query.after = Some(next);
        }
        // Nothing was forgotten: the order itself is still in the log.
        if let Some(entry) = entry {
            self.write_audit(entry).await?;
        }
        Ok(purged)
    }

    /// The entry goes with the first record that is forgotten.
    async fn purge_one(
        &self,
        id: Id,
        seen: Seen,
        order: &Order,
        entry: &mut Option<audit::Entry>,
    ) -> Result<Tried, Error> {
        let mut seen = Some(seen);
        for _ in 0..SWAPS_MAX {
            let Some(found) = seen else { return Ok(Tried::Lost(None)) };
            match self.forget_seen(id, &found, order, entry.clone()).await? {
                done @ Tried::Done(_) => {
                    *entry = None;
                    return Ok(done);
                }
                refused @ Tried::Refused(..) => return Ok(refused),
                Tried::Lost(now) => seen = now,
            }
        }
        Err(contended())
    }
}

fn purge_entry(scope: [u8; 32], order: &Order, planned: &Purged) -> audit::Entry {
    let Purged { forgotten, kept: Kept { running, unknown }, .. } = planned;
    let after = format!(r#"{{"forgotten":{forgotten},"kept":{{"running":{running},"unknown":{unknown}}}}}"#);
    audit::Entry { scope: Some(scope), after: Some(after.into()), ..order.bare_entry("purge") }
}

//! What operators may do to records and messages: look, settle, forget, purge, redrive, discard. The admin API and the program's commands are made of this.
//!
//! 1. Every change is the machine's to allow, and goes to the store by compare and swap.
//! 2. A change and its entry in the audit log are one commit. Where the entry cannot be written, nothing is changed.
//! 3. An order that was refused is in the audit log too.
//! 4. A dry run answers as the order itself would, and writes nothing.

mod forget;
pub mod message;
mod order;
mod purge;
mod statement;
mod verdict;

use std::time::Duration;

use onlyonce_core::machine::{self, Action, Backoff};
use onlyonce_core::record::{Id, Seen};
use onlyonce_store::{Cursor, Error, Order as Sorting, Page, Query, Unreadable};

pub use forget::Forgotten;
pub use order::{Applied, Operator, Order, Refusal, entry_id};
pub use purge::{Kept, Purged};
pub use statement::CONTRADICTION;
pub(crate) use statement::contradiction;
pub use statement::{Heard, Statement, Subject};
pub use verdict::{Judged, Saying};

use crate::counts::Operation;
use crate::engine::Engine;
use crate::probe::Failing;

/// How many unknown records are looked at for what they tell of their probes.
const TOLD_OF_PROBES: usize = 100;
/// How often a record may change under an order.
const SWAPS_MAX: u32 = 16;
/// Where expired records are. The first byte of a cursor says so.
#[derive(Clone, Copy)]
enum Part {
    Kept = 0,
    Archive = 1,
}

impl Part {
    /// Where a listing goes on, and the store's own cursor there.
    fn of(cursor: Option<Cursor>) -> (Self, Option<Cursor>) {
        let Some(Cursor(bytes)) = cursor else { return (Self::Kept, None) };
        match bytes.split_first() {
            Some((1, [])) => (Self::Archive, None),
            Some((1, rest)) => (Self::Archive, Some(Cursor(rest.into()))),
            Some((_, rest)) => (Self::Kept, Some(Cursor(rest.into()))),
            None => (Self::Kept, Some(Cursor(Box::default()))),
        }
    }

    fn begin(self) -> Cursor {
        self.with(&Cursor(Box::default()))
    }

    fn with(self, Cursor(bytes): &Cursor) -> Cursor {
        Cursor([&[self as u8], &bytes[..]].concat().into())
    }
}

/// Whether a record has expired is told by what stands in clear.
fn has_expired(unreadable: &Unreadable) -> bool {
    machine::may_reap(&unreadable.record, unreadable.now)
}

/// What stands in clear of a record whose encryption key is missing. Whoever writes on it loses the rest.
fn in_clear(unreadable: &Unreadable) -> Seen {
    let Unreadable { record, revision, now, .. } = unreadable;
    Seen { record: record.clone(), revision: *revision, now: *now }
}

/// How long one store call may take: somebody waits for it, but no request does.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

impl Engine {
    /// The record, unless it has expired.
    ///
    /// # Errors
    ///
    /// Where the store does not answer.
    pub async fn find(&self, id: Id) -> Result<Option<Seen>, Error> {
        match self.load(&id, STORE_TIMEOUT).await {
            Err(error) if error.unreadable().is_some_and(has_expired) => Ok(None),
            Err(error) => Err(error),
            Ok(seen) => Ok(seen.filter(|seen| !machine::may_reap(&seen.record, seen.now))),
        }
    }

    /// The same to forget it, which needs no more of a record than what stands in clear.
    pub(crate) async fn find_to_forget(&self, id: Id) -> Result<Option<Seen>, Error> {
        match self.find(id).await {
            Err(error) => error.unreadable().map(in_clear).map(Some).ok_or(error),
            found @ Ok(_) => found,
        }
    }

    /// Records as an operator lists them. Expired ones are left out, so a page may be short and still have a next.
    ///
    /// # Errors
    ///
    /// Where the store does not answer, or the cursor is none of its own.
    pub async fn list(&self, query: Query) -> Result<Page, Error> {
        let mut page = self.guarded(Operation::Scan, STORE_TIMEOUT, self.store().scan(query)).await?;
        page.records.retain(|(_, seen)| !machine::may_reap(&seen.record, seen.now));
        page.unreadable.retain(|unreadable| !has_expired(unreadable));
        Ok(page)
    }

    /// Expired records as an operator lists them: those that the reaper has not deleted yet, then the archive. A record that
    /// is archived between two pages is in both.
    ///
    /// # Errors
    ///
    /// Where the store does not answer, or the cursor is none of its own.
    pub async fn list_expired(&self, mut query: Query) -> Result<Page, Error> {
        let (part, after) = Part::of(query.after.take());
        query.after = after;
        query.order = match part {
            Part::Kept => Sorting::Due,
            Part::Archive => Sorting::Archived,
        };
        let mut page = self.guarded(Operation::Scan, STORE_TIMEOUT, self.store().scan(query)).await?;
        match part {
            Part::Kept => {
                page.records.retain(|(_, seen)| machine::may_reap(&seen.record, seen.now));
                page.unreadable.retain(has_expired);
                page.next = Some(page.next.map_or(Part::Archive.begin(), |next| Part::Kept.with(&next)));
            }
            Part::Archive => page.next = page.next.map(|next| Part::Archive.with(&next)),
        }
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
        self.probe_answers().failing(self.probes().max)
    }

    /// The same, and those that other nodes ask: by the time lines of what has been unknown the longest.
    ///
    /// # Errors
    ///
    /// Where the store does not answer.
    pub async fn failing_probes_of_all(&self) -> Result<Vec<Failing>, Error> {
        let mut all = self.failing_probes();
        let unknown = self.list(Query { states: machine::ASKED, ..Query::unknown_since(TOLD_OF_PROBES) });
        let (unknown, probes) = (unknown.await?, self.probes());
        for (_, seen) in unknown.records.iter().filter(|(_, seen)| probes.of(&seen.record).is_some()) {
            let told = self.probe_answers().failing_by(seen, probes.max);
            if let Some(told) = told.filter(|told| all.iter().all(|failing| failing.route != told.route)) {
                all.push(told);
            }
        }
        Ok(all)
    }
}

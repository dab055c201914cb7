//! Forgetting a key, as an operator orders it: afterwards it is as if it had never been used, on every node.

use onlyonce_core::machine::{self, Forget, Refused};
use onlyonce_core::record::{Id, Seen, Source};
use onlyonce_store::{Error, Swapped, audit, failpoint};

use super::order::{Applied, Order, Refusal};
use super::{STORE_TIMEOUT, SWAPS_MAX};
use crate::engine::{Engine, contended, fresh_token};

/// What became of the order to forget a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forgotten {
    /// Its record is gone, or would be, and no node replays it any more.
    Done(Applied),
    /// Nothing was changed.
    Refused(Refusal),
}

impl Engine {
    /// Makes a key as if it had never been used. What still runs under it is superseded, where that is forced: its answer
    /// is not stored. Ready after a few seconds, when no node can replay what was forgotten. A record whose encryption key is
    /// missing can be forgotten too: its answer is lost then.
    ///
    /// # Errors
    ///
    /// Where the store does not answer. The record may be gone already and still be replayed by other nodes: order it again.
    pub async fn forget(&self, id: Id, order: &Order) -> Result<Forgotten, Error> {
        let forgotten = self.forget_record(id, order).await?;
        if matches!(forgotten, Forgotten::Refused(Refusal::Absent)) && !order.dry_run {
            self.drop_copy(&id).await;
        }
        match &forgotten {
            // Also where there was none: an order that was cut short may have come as far as that.
            Forgotten::Done(_) | Forgotten::Refused(Refusal::Absent) if !order.dry_run => {
                self.tell_every_node(STORE_TIMEOUT).await?;
            }
            Forgotten::Done(_) | Forgotten::Refused(_) => {}
        }
        Ok(forgotten)
    }

    async fn forget_record(&self, id: Id, order: &Order) -> Result<Forgotten, Error> {
        let mut seen = self.find_to_forget(id).await?;
        for _ in 0..SWAPS_MAX {
            let Some(found) = seen else { return Ok(Forgotten::Refused(Refusal::Absent)) };
            let entry = order.entry("forget", &found.record);
            if order.expected.is_some_and(|expected| expected != found.revision) {
                let refusal = Refusal::Changed(found);
                return Ok(Forgotten::Refused(self.refuse(order, Some(entry), refusal).await));
            }
            seen = match self.forget_seen(id, &found, order, Some(entry)).await? {
                Tried::Done(done) => return Ok(Forgotten::Done(done)),
                Tried::Refused(refusal, entry) => {
                    return Ok(Forgotten::Refused(self.refuse(order, entry, refusal).await));
                }
                Tried::Lost(now) => now,
            };
        }
        Err(contended())
    }

    /// One try to forget a record as it was seen, with this entry of the audit log.
    pub(super) async fn forget_seen(
        &self,
        id: Id,
        found: &Seen,
        order: &Order,
        entry: Option<audit::Entry>,
    ) -> Result<Tried, Error> {
        let refused = |refused| Tried::Refused(Refusal::Refused(refused, found.clone()), entry.clone());
        let draft = match machine::forget(found, fresh_token(), order.force) {
            Forget::Write(draft) => draft,
            Forget::StillRunning => return Ok(refused(Refused::StillRunning)),
            Forget::Unknown => return Ok(refused(Refused::Unknown)),
            Forget::Absent => return Ok(Tried::Refused(Refusal::Absent, None)),
        };
        let done = |after: Seen, audit| {
            let becomes = after.record.state.name();
            Tried::Done(Applied { before: found.record.clone(), after, becomes, audit })
        };
        if order.dry_run {
            return Ok(done(found.clone(), None));
        }
        failpoint!("forget.before");
        let swapped = self.swap_with(&id, Some(found), draft, entry.clone(), STORE_TIMEOUT).await?;
        failpoint!("forget.after");
        Ok(match swapped {
            Swapped::Applied(now) => {
                self.drop_copy(&id).await;
                self.tell_transition(id, found.record.state.name(), &now.record, Source::Operator);
                let audit = entry.as_ref().map(|entry| entry.id.clone());
                entry.into_iter().for_each(|entry| self.tell_change(entry, now.record.written_at));
                done(now, audit)
            }
            Swapped::Lost(now) => Tried::Lost(now),
        })
    }
}

/// How one try to forget a record ended.
pub(super) enum Tried {
    Done(Applied),
    Refused(Refusal, Option<audit::Entry>),
    /// The record changed meanwhile; as it stands now.
    Lost(Option<Seen>),
}

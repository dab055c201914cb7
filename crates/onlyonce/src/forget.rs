//! Forgetting a key, as an operator orders it: afterwards it is as if it had never been used, on every node.

use std::time::Duration;

use onlyonce_core::machine::{self, Force};
use onlyonce_core::record::Id;
use onlyonce_store::{Error, Swapped};

use crate::engine::{Engine, contended, fresh_token};

/// How often a record may change under the order.
const SWAPS_MAX: u32 = 16;
/// How long one store call may take: somebody waits for it, but no request does.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// What became of the order to forget a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgotten {
    /// Its record is gone, and no node replays it any more.
    Done,
    /// There was none. No node replays one, either.
    Absent,
    /// It runs, and was left alone: force it, or ask again once it has ended.
    Running,
}

impl Engine {
    /// Makes a key as if it had never been used. What still runs under it is superseded, where that is forced: its answer
    /// is not stored. Ready after a few seconds, when no node can replay what was forgotten.
    ///
    /// # Errors
    ///
    /// Where the store does not answer. The record may be gone already and still be replayed by other nodes: order it again.
    pub async fn forget(&self, id: Id, force: Force) -> Result<Forgotten, Error> {
        let forgotten = self.forget_record(id, force).await?;
        match forgotten {
            Forgotten::Running => {}
            // Also where there was none: an order that was cut short may have come as far as that.
            Forgotten::Done | Forgotten::Absent => self.tell_every_node(STORE_TIMEOUT).await?,
        }
        Ok(forgotten)
    }

    async fn forget_record(&self, id: Id, force: Force) -> Result<Forgotten, Error> {
        let mut seen = self.load(&id, STORE_TIMEOUT).await?;
        for _ in 0..SWAPS_MAX {
            let Some(found) = &seen else { return Ok(Forgotten::Absent) };
            let Some(draft) = machine::forget(found, fresh_token(), force) else {
                return Ok(Forgotten::Running);
            };
            match self.swap(&id, Some(found.revision), draft, STORE_TIMEOUT).await? {
                Swapped::Applied(_) => return Ok(Forgotten::Done),
                Swapped::Lost(now) => seen = now,
            }
        }
        Err(contended())
    }
}

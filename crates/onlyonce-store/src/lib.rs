//! The seam: what Onlyonce asks of a place to keep records, and the engines that offer it.
//!
//! An engine knows one write: compare and swap of one record. It does not know what a lease is or when a key may run
//! again; those rules are [`onlyonce_core::machine`]'s, so no two engines can disagree about them. What an engine must
//! promise instead is small and exact:
//!
//! 1. [`Store::swap`] is atomic, and durable before it answers `Applied`. Of any number of swaps that expect one
//!    revision, at most one applies.
//! 2. The engine's own clock stamps every write and accompanies every look ([`Seen::now`]); it never runs backwards.
//! 3. [`Store::reap`] judges on the very row it deletes.
//! 4. A failure is an [`Error`] of the right [`ErrorKind`], never a wrong answer. A swap whose answer was lost is
//!    `Unavailable`; the caller looks, and recognises its own attempt by its token.
//!
//! The suite in `conformance` (behind the feature of that name) holds an engine to all of it.

pub mod batch;
pub mod clock;
pub mod codec;
#[cfg(feature = "conformance")]
pub mod conformance;
mod error;
pub mod failpoint;
#[doc(hidden)]
pub mod hash;
pub mod memory;
pub mod outbox;
#[cfg(feature = "postgres")]
pub mod postgres;
mod schema;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod timers;

use std::fmt;

use async_trait::async_trait;
pub use error::{Error, ErrorKind};
use onlyonce_core::record::{Draft, Id, Revision, Seen, StateName};
use onlyonce_core::time::Timestamp;
pub use outbox::Outbox;
pub use schema::{Migration, Schema};

/// A place to keep records.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Makes the store ready: creates what is missing, and refuses what it does not understand. Safe from many
    /// processes at once, and more than once.
    async fn prepare(&self) -> Result<(), Error>;

    /// The record, its revision and the store's own now.
    async fn load(&self, id: Id) -> Result<Option<Seen>, Error>;

    /// Writes `change.next` if the record is still at the revision `change` expects.
    async fn swap(&self, id: Id, change: Change) -> Result<Swapped, Error>;

    /// Records an operator or a worker asks for, in the order of their ids or of when they are due.
    async fn scan(&self, query: Query) -> Result<Page, Error>;

    /// Deletes up to `limit` records that have finished and expired, and says how many it did.
    async fn reap(&self, limit: usize) -> Result<usize, Error>;

    /// How many records there are in each state, for operators. An engine that can count without reading the records
    /// does so; this reads them all.
    async fn count(&self) -> Result<Vec<(StateName, u64)>, Error> {
        let mut counts = Vec::new();
        for state in StateName::ALL {
            let mut query =
                Query { state: Some(state), scope: None, only_due: false, after: None, limit: COUNT_BATCH };
            let mut count = 0;
            loop {
                let page = self.scan(query.clone()).await?;
                count += page.records.len() as u64;
                let Some(next) = page.next else { break };
                query.after = Some(next);
            }
            counts.push((state, count));
        }
        Ok(counts)
    }

    /// How often records were changed here that nobody expects to change: what is completed, and forgotten or judged
    /// anew. Whoever keeps a copy of a completed record looks at this, and at a new epoch trusts no copy that is older.
    async fn epoch(&self) -> Result<Epoch, Error>;

    /// Begins a new epoch, higher than any before. Whatever was written before it is seen by everybody who sees it.
    async fn raise_epoch(&self) -> Result<(), Error>;

    /// The messages stored with records, where this engine keeps any.
    fn outbox(&self) -> Option<&dyn Outbox>;
}

/// Which copies of completed records may be believed: those from the same epoch. It only rises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(pub u64);

/// How many records are read at once to count them.
const COUNT_BATCH: usize = 1_000;

/// One write of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The revision it must still have; none where it must not exist.
    pub expected: Option<Revision>,
    /// The revision it has afterwards: minted at random by the caller, so that none ever comes back, also not after
    /// the record was deleted and its key used again.
    pub revision: Revision,
    /// What it becomes.
    pub next: Box<Draft>,
    /// Messages that are stored with it, or not at all.
    pub messages: Vec<outbox::Message>,
}

/// What became of a swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swapped {
    /// Written and durable; as it stands now.
    Applied(Seen),
    /// The record was at another revision; as it stands now, where it still exists. `None` on an insert means that it
    /// came and went: look again.
    Lost(Option<Seen>),
}

/// Which records to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Only those in this state, by name.
    pub state: Option<StateName>,
    /// Only those of this scope, by digest.
    pub scope: Option<[u8; 32]>,
    /// Only those that are due by the store's clock.
    pub only_due: bool,
    /// Only what comes after this cursor of an earlier page.
    pub after: Option<Cursor>,
    /// At most so many.
    pub limit: usize,
}

/// Where a page ended. Opaque: it is given back as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// When the last record of the page was due, in a listing by that.
    pub due_at: Option<Timestamp>,
    /// The last record of the page.
    pub id: Id,
}

/// What becomes of records that have expired, in engines that can keep them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expired {
    /// They are deleted.
    Delete,
    /// They move to an archive, out of replay's reach. Their keys can be used again.
    Keep,
}

/// Some records, and where to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The records.
    pub records: Vec<(Id, Seen)>,
    /// Where to go on; none where this was the last page.
    pub next: Option<Cursor>,
}

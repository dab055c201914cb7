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
//!    `Unavailable`; the caller looks, and recognises its own write by its revision.
//! 5. A write may be sent twice if it carries the same revision: the second one is lost to the first, and shows it.
//!
//! What differs between engines is data: [`Store::promises`]. The suite in `conformance` (behind the feature of that
//! name) holds an engine to all of it.
//!
//! Every SQL engine keeps a record as a row of the same columns (`sql.rs`), so that people can read it and other
//! programs can change it: with a new revision and a stamp that is not earlier. Every node sees that at its next look.

pub mod accepted;
pub mod audit;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis", test))]
mod batch;
pub mod clock;
#[cfg(any(
    feature = "dynamodb",
    feature = "mysql",
    feature = "sqlite",
    feature = "postgres",
    feature = "redis",
    test
))]
mod codec;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod copies;
#[cfg(feature = "dynamodb")]
pub mod dynamodb;
mod error;
#[doc(hidden)]
pub mod failpoint;
#[cfg(any(feature = "dynamodb", feature = "mysql", feature = "postgres"))]
#[cfg_attr(
    not(any(feature = "mysql", feature = "postgres")),
    allow(dead_code, reason = "DynamoDB has failures of its own")
)]
mod failure;
#[doc(hidden)]
pub mod hash;
mod listing;
pub mod memory;
#[cfg(feature = "mysql")]
pub mod mysql;
pub mod outbox;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod promises;
#[cfg(feature = "redis")]
pub mod redis;
pub mod result;
mod schema;
pub mod seal;
#[cfg(any(
    feature = "dynamodb",
    feature = "mysql",
    feature = "sqlite",
    feature = "postgres",
    feature = "redis",
    test
))]
#[cfg_attr(
    not(any(feature = "mysql", feature = "sqlite", feature = "postgres")),
    allow(dead_code, unused_imports, reason = "Redis and DynamoDB have the columns, and no statements")
)]
mod sql;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(any(feature = "dynamodb", feature = "mysql", feature = "postgres", feature = "redis"))]
#[cfg_attr(
    not(any(feature = "mysql", feature = "postgres", feature = "redis")),
    allow(dead_code, reason = "DynamoDB has the parts of a URL, and no certificates of its own")
)]
mod ssl;
mod unreadable;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub mod user;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
pub use audit::Audit;
use bytes::Bytes;
pub use error::{Error, ErrorKind};
pub use listing::{Cursor, Order, Page, Query, Search};
use onlyonce_core::machine;
use onlyonce_core::record::{Draft, Id, Record, Revision, Seen, StateName};
use onlyonce_core::time::Timestamp;
pub use outbox::Outbox;
pub use promises::{Finding, Level, Promises};
use result::{PhaseResult, Results};
pub use schema::{Migration, Schema};
pub use unreadable::{KeyUse, Unreadable};

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

    /// Records an operator or a worker asks for. It never writes.
    async fn scan(&self, query: Query) -> Result<Page, Error>;

    /// Deletes up to `limit` records that have finished and expired, and says how many it did.
    async fn reap(&self, limit: usize) -> Result<usize, Error>;

    /// How many records there are in each state, for operators; in time that does not grow with the store.
    async fn count(&self) -> Result<Vec<(StateName, Count)>, Error>;

    /// How many records have not expired, of a scope or in all, counted up to `limit`. Fast once
    /// [`Store::prepare_counting`] has been called.
    ///
    /// # Errors
    ///
    /// Where the store does not answer; `Misconfigured` where this engine cannot count.
    async fn count_alive(&self, _scope: Option<[u8; 32]>, _limit: u64) -> Result<Alive, Error> {
        let message = "this store cannot count the records of a scope; unset limits.keys_alive and limits.keys_alive_total";
        Err(Error::new(ErrorKind::Misconfigured, message))
    }

    /// Makes [`Store::count_alive`] fast, where that takes an index: it costs every write a little, so it is made only for
    /// those who count. Safe from many processes at once, and more than once.
    async fn prepare_counting(&self) -> Result<(), Error> {
        Ok(())
    }

    /// How often records were changed here that nobody expects to change: what is completed, and forgotten or judged
    /// anew. Whoever keeps a copy of a completed record looks at this, and at a new epoch trusts no copy that is older.
    async fn epoch(&self) -> Result<EpochSeen, Error>;

    /// Begins a new epoch, higher than any before. Whatever was written before it is seen by everybody who sees it.
    async fn raise_epoch(&self) -> Result<(), Error>;

    /// The uses of a key that have expired and were kept ([`Expired::Keep`]), latest first; none where this engine
    /// keeps none.
    async fn archived(&self, _id: Id, _limit: usize) -> Result<Option<Vec<Record>>, Error> {
        Ok(None)
    }

    /// The results of the committed phases of one use of a key, in order: of the record with this id that was reserved at
    /// `used_at`.
    async fn results(&self, id: Id, used_at: Timestamp) -> Result<Vec<PhaseResult>, Error>;

    /// The stored request of accepted work that has not ended: of the record with this id that was reserved at `used_at`.
    async fn request(&self, id: Id, used_at: Timestamp) -> Result<Option<Bytes>, Error>;

    /// How many requests of accepted work are stored; of more than `limit`, `limit`.
    async fn requests(&self, limit: usize) -> Result<usize, Error>;

    /// What is wrong, risky or worth knowing about this store as it is set up now.
    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        Ok(Vec::new())
    }

    /// The keys of [`seal::Keyring`]s that something stored here is encrypted with, and how many rows need each. It reads all
    /// of them: for operators who take a key out of use.
    async fn keys_in_use(&self) -> Result<Vec<KeyUse>, Error> {
        Ok(Vec::new())
    }

    /// What this engine promises where engines differ.
    fn promises(&self) -> Promises;

    /// Deletes up to `limit` records of a scope that have expired, and what was kept of its earlier ones, and says how many
    /// it did. Unlike [`Store::reap`] it archives nothing. Once none is left, it takes the keys and labels out of the
    /// scope's audit entries: a whole erasure calls it until it says fewer than `limit`.
    async fn erase(&self, scope: [u8; 32], limit: usize) -> Result<usize, Error>;

    /// The messages stored with records, where this engine keeps any.
    fn outbox(&self) -> Option<&dyn Outbox>;

    /// The log of what operators changed.
    fn audit(&self) -> &dyn Audit;

    /// The engine itself, for what it alone can do in a transaction of the user's own; none where it can nothing of that.
    fn as_any(&self) -> Option<&dyn std::any::Any> {
        None
    }

    /// The largest record that can be stored, where there is a limit.
    fn record_bytes_max(&self) -> Option<usize> {
        None
    }
}

/// One write of one record, and what is written with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The revision it must still have; none where it must not exist.
    pub expected: Option<Revision>,
    /// The revision it has afterwards: minted at random by the caller, so that none ever comes back, also not after
    /// the record was deleted and its key used again.
    pub revision: Revision,
    /// What it becomes.
    pub next: Box<Draft>,
    /// What is stored with it, or not at all.
    pub with: Attached,
}

impl Change {
    /// A write of the record alone.
    pub fn new(expected: Option<Revision>, revision: Revision, next: Box<Draft>) -> Self {
        Self { expected, revision, next, with: Attached::default() }
    }

    /// A write on what was seen. The results of phases that it ends, and the request of accepted work that it ends, go with it.
    pub fn after(seen: Option<&Seen>, revision: Revision, next: Box<Draft>) -> Self {
        let mut with = Attached::default();
        if machine::ends_progress(seen, &next) {
            with.results = Results::Drop;
        }
        if machine::ends_acceptance(seen, &next) {
            with.request = accepted::Request::Drop;
        }
        Self { expected: seen.map(|seen| seen.revision), revision, next, with }
    }

    /// The same, with these messages.
    #[must_use]
    pub fn with_messages(mut self, messages: Vec<outbox::Message>) -> Self {
        self.with.messages = messages;
        self
    }

    /// The same, with this entry of the audit log.
    #[must_use]
    pub fn with_audit(mut self, entry: Option<audit::Entry>) -> Self {
        self.with.audit = entry;
        self
    }

    /// The same, and this becomes of the stored request of its work.
    #[must_use]
    pub fn with_request(mut self, request: accepted::Request) -> Self {
        self.with.request = request;
        self
    }

    /// The same, and this becomes of the results of its phases.
    #[must_use]
    pub fn with_results(mut self, results: Results) -> Self {
        self.with.results = results;
        self
    }
}

/// What is stored with a record in one commit: both are there, or neither.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attached {
    /// Messages for the outbox.
    pub messages: Vec<outbox::Message>,
    /// The entry of the audit log, where an operator made this change.
    pub audit: Option<audit::Entry>,
    /// What becomes of the results of its phases.
    pub results: Results,
    /// What becomes of the stored request of its work.
    pub request: accepted::Request,
}

impl Attached {
    /// Whether the record is written alone.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
            && self.audit.is_none()
            && self.results == Results::Keep
            && self.request == accepted::Request::Keep
    }

    /// Whether an engine that writes many records together writes this one with others: at most a request goes with it.
    #[cfg(feature = "postgres")]
    pub(crate) fn is_batched(&self) -> bool {
        self.messages.is_empty() && self.audit.is_none() && self.results == Results::Keep
    }
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

/// How many records have not expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alive {
    /// So many, or the limit up to which they were counted.
    pub count: u64,
    /// How long until the next of a scope expires; none where that is not known.
    pub next_expiry: Option<Duration>,
}

/// How many records there are of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// So many.
    Exact(u64),
    /// About so many: counting them would read too much.
    About(u64),
    /// Not known without reading the records.
    Unknown,
}

impl Count {
    /// The number, where there is one.
    pub const fn number(self) -> Option<u64> {
        match self {
            Self::Exact(number) | Self::About(number) => Some(number),
            Self::Unknown => None,
        }
    }
}

/// Which copies of completed records may be believed: those from the same epoch. It only rises, and none comes back:
/// it is raised to one more, or to the store's clock in microseconds where that is more. So an epoch that a failover or a
/// restored backup has lost is not given out again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The epoch after this one, where the store's clock says `now`.
    #[must_use]
    pub fn after(self, now: Timestamp) -> Self {
        Self(self.0.saturating_add(1).max(u64::try_from(now.as_micros()).unwrap_or(0)))
    }
}

/// What a look at the epoch shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochSeen {
    /// The epoch.
    pub epoch: Epoch,
    /// The store's own time.
    pub now: Timestamp,
    /// The store's name: 128 random bits made with its schema. Two databases never have the same, unless one is a copy
    /// of the other.
    pub store: [u8; 16],
}

/// What becomes of records that have expired, in engines that can keep them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expired {
    /// They are deleted.
    Delete,
    /// They move to an archive, out of replay's reach. Their keys can be used again.
    Keep,
}

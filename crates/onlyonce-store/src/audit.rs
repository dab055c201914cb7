//! The audit log: what operators changed, who, when and why; and that two sources disagree about a record, which somebody has
//! to look at.
//!
//! 1. An entry is written in the transaction of its change ([`crate::Attached`]): both are there, or neither.
//! 2. What changes no record (a refused order, a look at a stored answer) is written by itself ([`Audit::write`]).
//! 3. Entries are deleted by age and by nothing else. Erasing a scope takes keys and labels out of its entries, and leaves
//!    that something was done, by whom and when.

#[cfg(any(
    feature = "dynamodb",
    feature = "mysql",
    feature = "sqlite",
    feature = "postgres",
    feature = "redis"
))]
#[cfg_attr(
    not(any(feature = "mysql", feature = "sqlite", feature = "postgres")),
    allow(dead_code, reason = "Redis and DynamoDB have the entries, and no statements")
)]
pub(crate) mod table;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onlyonce_core::record::Id;
use onlyonce_core::time::Timestamp;

use crate::{Cursor, Error};

/// One entry. The store stamps it with its own clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Unique, and made by the caller: a write that is sent twice is one entry.
    pub id: Arc<str>,
    /// Whose token it was, or `local`.
    pub who: Arc<str>,
    /// The token's role.
    pub role: Arc<str>,
    /// What the person calls itself; nobody has verified it.
    pub claims: Option<Arc<str>>,
    /// The address it came from.
    pub from: Option<Arc<str>>,
    /// `api`, `cli`, or `store`.
    pub via: Arc<str>,
    /// What was ordered: `verdict`, `forget`, `purge`, …
    pub action: Arc<str>,
    /// The scope it was about.
    pub scope: Option<[u8; 32]>,
    /// Its readable label.
    pub scope_label: Option<Arc<str>>,
    /// The key it was about.
    pub key: Option<Arc<str>>,
    /// The record it was about.
    pub record: Option<Id>,
    /// Why.
    pub reason: Option<Arc<str>>,
    /// The operator insisted.
    pub forced: bool,
    /// How the record stood before, as a JSON object.
    pub before: Option<Arc<str>>,
    /// How it stood after, as a JSON object.
    pub after: Option<Arc<str>>,
    /// `applied`, `noted` or `refused`.
    pub result: Arc<str>,
    /// Why it was refused.
    pub code: Option<Arc<str>>,
}

/// An entry as it stands in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// When, by the store's clock.
    pub at: Timestamp,
    /// The entry.
    pub entry: Entry,
}

/// Which entries to show, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Only by this operator.
    pub who: Option<Arc<str>>,
    /// Only this action.
    pub action: Option<Arc<str>>,
    /// Only about this scope.
    pub scope: Option<[u8; 32]>,
    /// Only about this key.
    pub key: Option<Arc<str>>,
    /// Only from this time on.
    pub from: Option<Timestamp>,
    /// Only before this time.
    pub until: Option<Timestamp>,
    /// Only what comes after this cursor of an earlier page of the same listing.
    pub after: Option<Cursor>,
    /// At most so many.
    pub limit: usize,
}

impl Query {
    /// Whether an entry passes the filters.
    pub fn covers(&self, written: &Written) -> bool {
        let entry = &written.entry;
        self.who.as_ref().is_none_or(|who| *who == entry.who)
            && self.action.as_ref().is_none_or(|action| *action == entry.action)
            && self.scope.is_none_or(|scope| entry.scope == Some(scope))
            && self.key.as_ref().is_none_or(|key| entry.key.as_ref() == Some(key))
            && self.from.is_none_or(|from| written.at >= from)
            && self.until.is_none_or(|until| written.at < until)
    }
}

/// Some entries, newest first, and where to go on. A page may be short, or empty, and still have a next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The entries.
    pub entries: Vec<Written>,
    /// Where to go on; none where this was the last page.
    pub next: Option<Cursor>,
}

/// The audit log of a store.
#[async_trait]
pub trait Audit: fmt::Debug + Send + Sync {
    /// Writes an entry of something that changed no record, durably.
    async fn write(&self, entry: Entry) -> Result<(), Error>;

    /// Entries, newest first.
    async fn list(&self, query: Query) -> Result<Page, Error>;

    /// Deletes up to `limit` entries that are older than `age`, and says how many it did.
    async fn prune(&self, age: Duration, limit: usize) -> Result<usize, Error>;
}

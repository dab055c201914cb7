//! A cache of completed records in front of a store, which all nodes share: what the layer asks of one.
//!
//! It is never the truth. A copy is judged by the layer (`onlyonce/src/front.rs`): by its epoch, by its expiry, and by
//! [`onlyonce_core::machine::answer_from_copy`]. A cache only has to keep the copies of one record of one store apart from
//! all others, and may lose, delay or repeat anything.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onlyonce_core::record::{Id, Record, Revision};

use crate::{Epoch, Error, Finding};

/// How long a copy is kept at most.
pub const KEPT_FOR_MAX: Duration = Duration::from_secs(3_600);

/// Which record: its id, and the name of its store ([`crate::EpochSeen::store`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CopyOf {
    /// The name of its store.
    pub store: [u8; 16],
    /// Its id.
    pub id: Id,
}

/// A copy of a completed record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    /// The epoch that the node knew before it asked the store for the record.
    pub epoch: Epoch,
    /// The record.
    pub record: Arc<Record>,
    /// Its revision.
    pub revision: Revision,
}

/// A cache of completed records that all nodes share. The layer waits for an answer only as long as it likes, and lets the call go on:
/// each must come to an end by itself, within seconds.
#[async_trait]
pub trait Copies: fmt::Debug + Send + Sync + 'static {
    /// The copy of a record, where there is one.
    ///
    /// # Errors
    ///
    /// `Corrupt` where what is there is no copy of this record, `Undecryptable` where its encryption key is missing: both are
    /// answers. Anything else: the cache did not answer.
    async fn find(&self, of: CopyOf) -> Result<Option<Copy>, Error>;

    /// Keeps a copy for so long. Nobody waits for it.
    ///
    /// # Errors
    ///
    /// Where the cache does not answer, or refuses it.
    async fn put(&self, of: CopyOf, copy: Copy, keep_for: Duration) -> Result<(), Error>;

    /// Lets go of the copy of a record.
    ///
    /// # Errors
    ///
    /// Where the cache does not answer.
    async fn remove(&self, of: CopyOf) -> Result<(), Error>;

    /// What is risky or worth knowing about the cache as it is set up now. Never an error: requests are served without it.
    ///
    /// # Errors
    ///
    /// Where the cache does not answer.
    async fn examine(&self) -> Result<Vec<Finding>, Error>;
}

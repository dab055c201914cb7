//! Messages stored with a record, to be delivered afterwards.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use onlyonce_core::record::Token;

use crate::Error;

/// A side effect stored with a record: both are there, or neither.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The message's own key: the same at every delivery.
    pub key: Arc<str>,
    /// Where it goes, by name.
    pub destination: Arc<str>,
    /// What is delivered.
    pub payload: Bytes,
}

/// A message that a relay has claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The message.
    pub message: Message,
    /// Which delivery this is, from 1.
    pub delivery: u32,
    /// Fences the claim: settling needs it.
    pub token: Token,
}

/// How a delivery ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Delivered; the provider's own id of it.
    Delivered {
        /// What the provider calls it.
        provider_id: Option<Arc<str>>,
    },
    /// Failed; to be tried again after so long.
    Again {
        /// How long to wait.
        after: Duration,
        /// What went wrong.
        error: Arc<str>,
    },
    /// Given up.
    Dead {
        /// What went wrong.
        error: Arc<str>,
    },
}

/// The messages of a store.
#[async_trait]
pub trait Outbox: fmt::Debug + Send + Sync {
    /// Claims up to `limit` messages that are due, each fenced by `token` until `lease` has passed.
    async fn claim(&self, token: Token, lease: Duration, limit: usize) -> Result<Vec<Claimed>, Error>;

    /// Ends a claimed delivery. False where the claim has lapsed and another relay has it: nothing is written.
    async fn settle(&self, key: &str, token: Token, settled: Settled) -> Result<bool, Error>;

    /// Dead letters, oldest first, with every error kept.
    async fn dead_letters(&self, limit: usize) -> Result<Vec<(Message, Vec<Arc<str>>)>, Error>;
}
